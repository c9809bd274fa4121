"""Pictures of runs; matplotlib is imported only here and only when asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import InvalidInputError, MissingExtraError


def plot_runs(
    runs: Mapping[str, Sequence[Any]],
    measures: Mapping[str, str],
    against: Mapping[str, str],
    path: str | Path | None = None,
) -> Any:
    """Plot attributes of the records of runs against others: a row of axes per measure, a line per run.

    Parameters
    ----------
    runs
        The records of each run, by its name.
    measures, against
        Attributes of a record, with the names of their axes; all measures but the first on a logarithmic scale.
    path
        The file in which the picture is saved, or None.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("Plotting", "apps") from None
    if not any(runs.values()):
        raise InvalidInputError("there is nothing to plot: no run has a record")
    figure = Figure(figsize=(4.5 * len(against), 3 * len(measures)), layout="constrained")
    axes = figure.subplots(len(measures), len(against), sharex="col", sharey="row", squeeze=False)
    for number, (row, (measure, label)) in enumerate(zip(axes, measures.items(), strict=True)):
        values = {name: [getattr(record, measure) for record in records] for name, records in runs.items()}
        for axis, spent in zip(row, against, strict=True):
            for name, records in runs.items():
                axis.plot([getattr(record, spent) for record in records], values[name], label=name)
            if number > 0 and any(value > 0 for line in values.values() for value in line):
                axis.set_yscale("log")
        row[0].set_ylabel(label)
    for axis, label in zip(axes[-1], against.values(), strict=True):
        axis.set_xlabel(label)
    if len(runs) > 1:
        axes[0][-1].legend(frameon=False, fontsize="small")
    if path is not None:
        figure.savefig(path)
    return figure
