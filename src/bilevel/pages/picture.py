"""Pictures as SVG text whose colours are those of the page, light or dark.

matplotlib draws with stand-in colours, and each of them becomes a CSS variable of the page.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import Any

from ..errors import MissingExtra

try:
    import matplotlib
except ImportError:
    raise MissingExtra("The report", "apps") from None

INK, MUTED, LINE, ACCENT, WARN, CARD, SOFT = (f"#00000{digit}" for digit in range(1, 8))
SERIES = tuple(f"#00001{digit}" for digit in range(1, 9))
"""Colours of lines, told apart by colour-blind eyes as well; beyond the eighth they begin again."""
VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    LINE: "--line",
    ACCENT: "--accent",
    WARN: "--warn",
    CARD: "--card",
    SOFT: "--soft",
    **{colour: f"--series-{place}" for place, colour in enumerate(SERIES, 1)},
}
ON_WHITE = dict(
    zip(
        VARIABLES,
        (
            "#1b2330", "#5d6879", "#d9dee6", "#2563b8", "#c2570c", "#ffffff", "#eef1f5",
            "#124aaa", "#e0700f", "#3ba060", "#af78a0", "#0a162c", "#584000", "#0890fa", "#9e0078",
        ),
        strict=True,
    )
)  # fmt: skip
"""The same colours as page.css has them on a light page, for pictures that are files of their own."""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # texts stay texts
    "font.size": 10.5,
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.use_mathtext": False,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "figure.facecolor": "none",
}


@dataclass(frozen=True)
class Picture:
    """An SVG picture: its title and what it shows in words, its size, and what is inside its svg element."""

    title: str
    description: str
    width: float
    height: float
    content: str


def style_on_white(salt: str) -> dict[Any, Any]:
    """STYLE in real colours, for a file; names inside an SVG file are made from `salt`, the same in every run."""
    real: dict[Any, Any] = {name: ON_WHITE.get(value, value) for name, value in STYLE.items()}
    real.update({"figure.facecolor": "white", "svg.hashsalt": salt})
    return real


def picture_of(figure: Any, title: str, description: str) -> Picture:
    """What a matplotlib figure, drawn in stand-in colours under STYLE, is on a page."""
    text = io.StringIO()
    # Names inside the picture are made from the title: unique on the page, the same in every run.
    with matplotlib.rc_context({"svg.hashsalt": title}):
        figure.savefig(text, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = text.getvalue()
    found = re.search(r'<svg [^>]*viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*>(.*)</svg>', svg, re.DOTALL)
    assert found is not None
    prefix = re.sub(r"\W+", "-", title.lower())

    def adapt(tag: re.Match[str]) -> str:
        coloured = re.sub(r"#0000(0[1-7]|1[1-8])\b", lambda colour: f"var({VARIABLES[colour[0]]})", tag[0])
        return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", coloured)

    # Only inside of tags: labels are texts of the user, in which < and > are escaped.
    return Picture(title, description, float(found[1]), float(found[2]), re.sub(r"<[^>]+>", adapt, found[3]))
