"""A picture of F along a line; matplotlib is imported only here and only when asked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    from .report import HypergradientCheck

POINTS = 41


def plot_line(check: HypergradientCheck, path: str | Path | None = None) -> Any:
    """F(x + t d) for t around 0, and the line F(x) + t <h, d>."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("Plotting", "apps") from None
    if check.line is None or not check.slopes:
        raise InvalidInput(f"there is no line to plot: the check ended with {check.cause.name} before F was looked at")
    times = [check.reach * (2 * k / (POINTS - 1) - 1) for k in range(POINTS)]
    found = max(check.slopes, key=lambda s: s.jump)
    middle = check.line(0.0)
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axis = figure.subplots()
    axis.plot(times, [check.line(t) for t in times], label="F, lower level solved")
    axis.plot(times, [middle + t * found.predicted for t in times], "--", label="what h predicts")
    axis.axvline(0.0, color="0.8", linewidth=1, zorder=0)
    axis.set(
        xlabel="t", ylabel="F(x + t d)", title=f"{check.cause.name.lower().replace('_', ' ')}: F along a direction"
    )
    axis.legend(frameon=False)
    if path is not None:
        figure.savefig(path)
    return figure
