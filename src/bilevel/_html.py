"""Offline HTML pages, and SVG pictures in the colours of the page, light or dark.

A page is self-contained: it includes its style, script and pictures, and forbids access to the network. Every
text is escaped by jinja2; a template of a report extends page.html.j2 and fills `title` and `content`.

matplotlib draws pictures in stand-in colours, and each of them becomes a CSS variable of the page.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import MissingExtraError

try:
    import jinja2
    import matplotlib
    from markupsafe import Markup, escape
except ImportError:
    raise MissingExtraError("The report", "apps") from None

TEMPLATES = Path(__file__).parent / "_templates"
CSS, SCRIPT = ((TEMPLATES / f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))

INK, MUTED, LINE, ACCENT, WARN, CARD, SOFT = (f"#00000{digit}" for digit in range(1, 8))
SERIES = tuple(f"#00001{digit}" for digit in range(1, 9))
"""Colours of lines, distinguishable by colour-blind readers as well; beyond the eighth they begin again."""
NAMES = ("ink", "muted", "line", "accent", "warn", "card", "soft", *(f"series-{place}" for place in range(1, 9)))
VARIABLES = {
    colour: f"--{name}"
    for colour, name in zip((INK, MUTED, LINE, ACCENT, WARN, CARD, SOFT, *SERIES), NAMES, strict=True)
}
_LIGHT = dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6})", CSS.partition("@media")[0]))
ON_WHITE = {colour: _LIGHT[name] for colour, name in VARIABLES.items()}
"""The colours of a light page, for pictures that are files of their own."""
OPTION = re.compile(r"--[a-z][a-z-]*")
"""An option of a command within a text, which no line should break."""
STYLE: dict[Any, Any] = matplotlib.rc_params_from_file(TEMPLATES / "pictures.mplstyle", use_default_template=False)


@dataclass(frozen=True)
class Picture:
    """An SVG picture: its title and what it shows in words, its size, and what is inside its svg element."""

    title: str
    description: str
    width: float
    height: float
    content: str


def render_page(folder: Path, template: str, *, script: str = "", **values: Any) -> str:
    """The page as text, from a template in `folder` with the variables `values`; `script` is added to the page's."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, TEMPLATES]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    environment.filters["percent"] = lambda share: f"{100 * share:.1f} %"
    environment.filters["options"] = lambda text: Markup(
        OPTION.sub(r'<code class="option">\g<0></code>', str(escape(text)))
    )
    environment.filters["count"] = lambda number: f"{number:,}".replace(",", "\u202f")
    program = SCRIPT + script
    digest = base64.b64encode(hashlib.sha256(program.encode()).digest()).decode()
    return environment.get_template(template).render(
        css=Markup(CSS), script=Markup(program), script_digest=digest, **values
    )


def json_block(content: Any) -> Markup:
    """JSON for a <script type="application/json"> element, which no text of the user can end."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def style_on_white(salt: str) -> dict[Any, Any]:
    """STYLE in real colours, for a file; names inside an SVG file are made from `salt`, the same in every run."""
    real: dict[Any, Any] = {name: ON_WHITE.get(value, value) for name, value in STYLE.items()}
    return real | {"figure.facecolor": "white", "svg.hashsalt": salt}


def make_picture(figure: Any, title: str, description: str) -> Picture:
    """A matplotlib figure, drawn in stand-in colours under STYLE, as a picture of a page."""
    text = io.StringIO()
    # Names inside the picture are made from the title: unique on the page, the same in every run.
    with matplotlib.rc_context({"svg.hashsalt": title}):
        figure.savefig(text, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    found = re.search(r'<svg [^>]*viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*>(.*)</svg>', text.getvalue(), re.DOTALL)
    assert found is not None
    prefix = re.sub(r"\W+", "-", title.lower())

    def adapt(tag: re.Match[str]) -> str:
        coloured = re.sub(r"#0000(0[1-7]|1[1-8])\b", lambda colour: f"var({VARIABLES[colour[0]]})", tag[0])
        return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", coloured)

    # Only inside of tags: labels are texts of the user, in which < and > are escaped.
    return Picture(title, description, float(found[1]), float(found[2]), re.sub(r"<[^>]+>", adapt, found[3]))
