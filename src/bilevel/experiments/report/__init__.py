"""Reports: the paper's tables and figures with ours beside them, as Markdown, HTML, SVG, PNG and CSV."""

from .writing import render_markdown, write_report

__all__ = ["write_report", "render_markdown"]
