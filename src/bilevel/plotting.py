"""Pictures of a run; matplotlib is imported only here and only when asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .errors import InvalidInput, MissingExtra
from .solution import Record


def plot_history(history: list[Record], path: str | Path | None = None) -> Any:
    """Upper value, stationarity and lower residual against steps."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("Plotting", "apps") from None
    if not history:
        raise InvalidInput("there is no record to plot: the run ended before its first evaluation")
    figure = Figure(figsize=(9, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    steps = [record.step for record in history]
    left.plot(steps, [record.upper for record in history])
    left.set(xlabel="step", ylabel="f(x, y)", title="upper value")
    right.semilogy(steps, [record.stationarity for record in history], label="hypergradient norm")
    right.semilogy(steps, [record.lower_residual for record in history], label="lower residual")
    right.set(xlabel="step", title="optimality")
    right.legend(frameon=False)
    if path is not None:
        figure.savefig(path)
    return figure
