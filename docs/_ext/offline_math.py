"""Formulas as MathML, made by docutils when the manual is built: no script, no font and no network when it is read."""

from __future__ import annotations

import html
import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml

GROUP = r"(?:\{((?:[^{}]|\{[^{}]*\})*)\}|(\w))"
"""What stands in braces, which may hold braces once more, or a single letter."""


def mathml(tex: str, *, block: bool) -> str:
    """A formula of TeX as MathML, with its source for those who copy it or cannot see it.

    docutils does not know all commands: those that only choose a size or a place are written in ones that it knows.
    """
    plain = re.sub(
        r"\\operatorname\*\{(\w+)\}_" + GROUP,
        lambda found: rf"\underset{{{found[2] or found[3]}}}{{\operatorname{{{found[1]}}}}}\;",
        tex.strip(),
    )
    plain = plain.replace(r"\operatorname*", r"\operatorname")
    plain = re.sub(r"\\tfrac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}", plain).replace(r"\tfrac", r"\frac")
    plain = plain.replace(r"\textstyle", "").replace(r"\dots", r"\ldots")
    if not block:
        plain = " ".join(plain.split())
    made = tex2mathml(plain, as_block=block)
    return made.replace("<math ", f'<math alttext="{html.escape(tex.strip(), quote=True)}" ', 1)


def visit_inline(writer: Any, node: nodes.math) -> None:
    write(writer, node, block=False)


def visit_block(writer: Any, node: nodes.math_block) -> None:
    writer.body.append(writer.starttag(node, "div", CLASS="formula"))
    write(writer, node, block=True, after="</div>\n")


def write(writer: Any, node: nodes.Node, *, block: bool, after: str = "") -> None:
    try:
        writer.body.append(mathml(node.astext(), block=block) + after)
    except MathError as error:
        from sphinx.util import logging

        logging.getLogger(__name__).warning("formula %r: %s", node.astext(), error, location=node)
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
