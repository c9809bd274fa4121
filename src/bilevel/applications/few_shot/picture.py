"""Learning curves: accuracy on classes that training does not see, against the minutes of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import InvalidInput, MissingExtra
from .training_state import TrainingRecord


def check_picture(path: Path) -> None:
    """A name that tells a format."""
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InvalidInput(f"--picture {path}: the name of the picture must end in .png, .svg or .pdf")


def plot_curve(
    curves: Mapping[str, Sequence[TrainingRecord]], path: str | Path | None = None, *, title: str = ""
) -> Any:
    """One line per curve with its 95 % interval as a band; a matplotlib figure, and a file if there is a path.

    Examples
    --------
    >>> records = [TrainingRecord(10, 6.0, 1.0, 0.5, 0.6, 0.02), TrainingRecord(20, 12.0, 0.8, 0.6, 0.7, 0.02)]
    >>> plot_curve({"dmlcbo": records}).axes[0].get_xlabel()
    'minutes of training'
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("Plotting", "apps") from None
    figure = Figure(figsize=(6, 4), layout="constrained")
    axis = figure.subplots()
    for name, history in curves.items():
        rows = [record for record in history if record.validation is not None]
        if not rows:
            raise InvalidInput(f"the curve {name!r} has no accuracy to plot: train with validate=...")
        minutes = [record.seconds / 60 for record in rows]
        mean = [100 * (record.validation or 0.0) for record in rows]
        half = [100 * (record.interval or 0.0) for record in rows]
        (line,) = axis.plot(minutes, mean, label=name)
        low, high = ([m + sign * h for m, h in zip(mean, half, strict=True)] for sign in (-1, 1))
        axis.fill_between(minutes, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axis.set(xlabel="minutes of training", ylabel="accuracy on unseen classes, %", title=title)
    if len(curves) > 1:
        axis.legend(frameon=False)
    if path is not None:
        figure.savefig(path)
    return figure
