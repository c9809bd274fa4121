"""The table on the terminal: the runs, means and spreads of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..record import RunRecord
from .cells import Cell, cells_of
from .tables import number_of_runs, plus_minus, settings_of

MEASURES = (("accuracy", 2), ("solved_accuracy", 2), ("solved_upper_value", 5))
HEADINGS = ("table", "dataset", "method", "accuracy, %", "solved, %", "F", "n", "settings")


def plain_table(records: Sequence[RunRecord], seeds: Mapping[str, int]) -> str:
    """Means and standard deviations over the seeds; runs that diverged or failed are counted and in no mean.

    Parameters
    ----------
    records
        The runs.
    seeds
        How many were asked for, by experiment.
    """
    names = dict.fromkeys(record.experiment for record in records)
    cells = [cell for name in names for cell in cells_of(records, name) if cell.runs or cell.broken]
    lines = [HEADINGS, *(_line(cell, seeds[cell.experiment]) for cell in cells)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(f"{text:>{width}}" if 3 <= place <= 5 else f"{text:{width}}" for place, (text, width) in
                  enumerate(zip(line, widths, strict=True))).rstrip()
        for line in lines
    )  # fmt: skip


def _line(cell: Cell, seeds: int) -> tuple[str, ...]:
    found = (cell.final(measure) for measure, _ in MEASURES)
    texts = (plus_minus(each, digits) if each.n else "" for each, (_, digits) in zip(found, MEASURES, strict=True))
    plain = (text.replace("±", "+-") for text in texts)  # for terminals without that sign
    method = cell.method if isinstance(cell.column, str) else f"{cell.method}, {cell.title}"
    return (
        cell.experiment,
        cell.dataset,
        method,
        *plain,
        number_of_runs(cell, seeds),
        settings_of(cell).replace("–", "-"),
    )
