"""Runs sorted into the cells of a table of the paper."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...errors import InvalidInput
from ..printed import METHODS, Printed, printed_table
from ..record import RunRecord
from .curves import after
from .verdicts import Spread, Verdict, spread, verdict

FINISHED = ("iterations", "time limit")
PERCENT = {"accuracy", "solved_accuracy", "training_class_accuracy", "half_width", "zero_share", "own_zero_share"}
"""Measures that runs store as shares and tables show in percent."""

Column = str | float


@dataclass(frozen=True)
class Cell:
    """One line of a table: a dataset, a column of the paper (a method, or a value of Q or eta) and its runs.

    Parameters
    ----------
    runs
        Those that ended by iterations or at the time limit, by seed: all numbers are over these.
    broken
        Those that diverged or failed: they are counted and listed.
    left_out
        Those of a seed of which a longer run is there (another budget, or another version of the code).
    """

    experiment: str
    dataset: str
    column: Column
    settings: dict[str, float | int | str]
    runs: tuple[RunRecord, ...] = ()
    broken: tuple[RunRecord, ...] = ()
    left_out: tuple[RunRecord, ...] = ()

    @property
    def printed(self) -> Printed | None:
        """What the paper has there."""
        return printed_table(self.experiment).cells.get(self.dataset, {}).get(self.column)

    @property
    def method(self) -> str:
        """The method of its runs."""
        return next((run.method for run in (*self.runs, *self.broken)), "")

    @property
    def title(self) -> str:
        """What the line is called."""
        return column_title(self.experiment, self.column)

    @cached_property
    def ours(self) -> Spread:
        """The paper's measure, in percent."""
        return self.final("accuracy")

    @property
    def verdict(self) -> Verdict:
        """Ours against the print."""
        return verdict(self.ours, self.printed)

    def final(self, measure: str) -> Spread:
        """A column of the curves at the end of the runs."""
        return _over([run.final.get(measure, math.nan) for run in self.runs], measure)

    def after(self, measure: str, seconds: float) -> Spread:
        """A column of the curves after so many seconds of training, over the runs that got there."""
        return _over([after(run, measure, seconds) for run in self.runs], measure)


def _over(values: Iterable[float], measure: str) -> Spread:
    scale = 100.0 if measure in PERCENT else 1.0
    return spread([scale * value for value in values if math.isfinite(value)])


def column_title(experiment: str, column: Column) -> str:
    """ "V-PBGD", "Q = 3"; methods that the paper does not have keep their own name."""
    varies = printed_table(experiment).varies
    if varies == "method":
        return METHODS.get(str(column), str(column))
    return f"{varies} = {column if isinstance(column, str) else format(column, 'g')}"


def cells_of(records: Sequence[RunRecord], experiment: str) -> list[Cell]:
    """All cells of an experiment in the order of the paper, those without runs included, then what the paper lacks."""
    table = printed_table(experiment)
    found: dict[tuple[str, Column], dict[tuple, list[RunRecord]]] = {
        (dataset, column): {} for dataset, row in table.cells.items() for column in row
    }
    for record in records:
        if record.experiment == experiment and record.role == "final":
            column = _column(record, table.varies)
            settings = tuple(sorted(record.settings.items()))
            found.setdefault((record.dataset, column), {}).setdefault(settings, []).append(record)
    datasets, columns = list(table.cells), list(table.columns)

    def place(key: tuple[str, Column]) -> tuple:
        dataset, column = key
        known = datasets.index(dataset) if dataset in datasets else len(datasets)
        return known, dataset, columns.index(column) if column in columns else len(columns), str(column)

    return [
        _cell(experiment, *key, dict(settings), group)
        for key in sorted(found, key=place)
        for settings, group in sorted(found[key].items(), key=repr) or [((), [])]
    ]


def _column(record: RunRecord, varies: str) -> Column:
    if varies == "method":
        return record.method
    if varies not in record.settings:
        raise InvalidInput(
            f"run {record.identity} of {record.experiment} has no {varies!r} in its settings {record.settings}: "
            f"{record.experiment} varies {varies}, and a run must say with which it was made"
        )
    value = record.settings[varies]
    return float(value) if isinstance(value, int | float) else str(value)


def _cell(experiment: str, dataset: str, column: Column, settings: dict, group: list[RunRecord]) -> Cell:
    kept: dict[int, RunRecord] = {}
    for run in sorted(group, key=lambda run: (run.final.get("step", 0), run.identity)):
        kept[run.seed] = run
    ended = {seed: run for seed, run in sorted(kept.items()) if is_finished(run)}
    return Cell(
        experiment, dataset, column, settings,
        runs=tuple(ended.values()),
        broken=tuple(run for seed, run in sorted(kept.items()) if seed not in ended),
        left_out=tuple(run for run in group if run is not kept[run.seed]),
    )  # fmt: skip


def is_few_shot(record: RunRecord) -> bool:
    """Whether a run was judged on tasks."""
    return record.experiment == "table-3" or "half_width" in record.curve


def series_diverged(run: RunRecord) -> bool:
    """Whether the Neumann series behind its hypergradients diverged at an evaluation."""
    return run.counts.get("series_diverged", 0) > 0


RISE = 1e-6
"""What F is known to: its lower level is solved to 1e-7."""


def rise_of_f(run: RunRecord) -> float:
    """By how much F at the solved lower level ended above its start; NaN when that is not known."""
    values = run.curve.get("solved_upper_value", [])
    return values[-1] - values[0] if values else math.nan


def f_rose(run: RunRecord) -> bool:
    """Whether the run ended worse than it began."""
    return rise_of_f(run) > RISE


def is_finished(run: RunRecord) -> bool:
    """Whether a run counts in means: it ended as planned, with a number."""
    return run.status in FINISHED and math.isfinite(run.final.get("accuracy", math.nan))
