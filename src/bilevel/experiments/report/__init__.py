"""Reports: the paper's tables and figures with ours beside them, as Markdown, HTML, SVG, PNG and CSV."""

from .markdown import render_markdown
from .writing import write_report

__all__ = ["write_report", "render_markdown"]
