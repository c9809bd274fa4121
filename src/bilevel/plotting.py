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


def plot_comparison(curves: dict[str, list[Any]], path: str | Path | None = None) -> Any:
    """F, hypergradient norm and lower residual against seconds and against cost, one line per solver."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("Plotting", "apps") from None
    if not any(curves.values()):
        raise InvalidInput("there is nothing to plot: no solver ran")
    figure = Figure(figsize=(9, 9), layout="constrained")
    axes = figure.subplots(3, 2, sharex="col", sharey="row")
    measures = (
        ("value", "F(x)", "upper value, lower level solved"),
        ("hypergradient_norm", "|h|", "hypergradient norm"),
        ("lower_residual", "|y - P(y - grad g)|", "lower residual"),
    )
    for pair, (measure, label, title) in zip(axes, measures, strict=True):
        for axis, spent in zip(pair, ("seconds", "cost"), strict=True):
            for name, rows in curves.items():
                axis.plot([getattr(row, spent) for row in rows], [getattr(row, measure) for row in rows], label=name)
            if measure != "value" and any(getattr(row, measure) > 0 for rows in curves.values() for row in rows):
                axis.set_yscale("log")
            axis.set_title(title, fontsize="medium")
        pair[0].set_ylabel(label)
    axes[-1][0].set_xlabel("seconds")
    axes[-1][1].set_xlabel("gradients and products")
    axes[0][1].legend(frameon=False, fontsize="small")
    if path is not None:
        figure.savefig(path)
    return figure
