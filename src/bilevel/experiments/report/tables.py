"""The tables of a report as data: runs sorted into the cells of the paper, and cells into lines of text.

Our mean is compared with the printed one:

    above     ours - printed >  2 s
    within   |ours - printed| <= 2 s        s^2 = std^2 / n + printed_std^2 / 10
    below     ours - printed < -2 s

s is the standard error of the difference of two means, ours over n seeds and the paper's over its 10 runs.
"""

from __future__ import annotations

import math
import statistics
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import InvalidInputError
from ..paper_values import DATASETS, METHODS, RUNS, SOURCE, Printed, printed_table
from ..run_folder import RunRecord
from .curves import is_reached, value_after

CAPTIONS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("captions.toml").read_text(encoding="utf-8"))
TIMES: dict[str, tuple[int, ...]] = {"hyper-cleaning": (1, 5, 10, 20, 30, 60), "few-shot": (30, 60, 120, 300, 600)}
"""Seconds of training after which runs are compared."""
PERCENT = {"accuracy", "solved_accuracy", "training_class_accuracy", "half_width", "zero_share", "own_zero_share"}
"""Measures that runs store as shares and tables show in percent."""
STANDARD_ERRORS = 2.0
"""How many standard errors of the difference are no difference."""
FEW_SEEDS = 5
"""Below so many seeds two standard errors are a rough guide."""
RISE = 1e-6
"""The accuracy of F: its lower level is solved to 1e-7."""
NOTHING = "–"
ENDS = {"time limit": "at the time limit", "converged": "converged"}
"""How runs end as planned before their iterations are over, as the column n has it."""

Column = str | float
Line = tuple[str, ...]
Group = tuple[str, tuple[Line, ...]]


class Verdict(StrEnum):
    """The position of our mean, or why it cannot be compared."""

    ABOVE = "above"
    WITHIN = "within two standard errors"
    BELOW = "below"
    ONE_SEED = "none from one seed"
    NOT_RUN = "not run"
    NOT_PRINTED = "not printed"


COMPARED = (Verdict.ABOVE, Verdict.WITHIN, Verdict.BELOW)
"""Verdicts on a difference."""


class Spread(NamedTuple):
    """Mean, standard deviation (n - 1 in its denominator; NaN for n < 2) and number of values."""

    mean: float
    std: float
    n: int

    def text(self, digits: int, *, std: bool = True) -> str:
        """ "94.10 ± 0.21"; the mean alone where there is no spread, a dash where there is nothing."""
        if not self.n:
            return NOTHING
        return f"{self.mean:.{digits}f}" + (f" ± {self.std:.{digits}f}" if std and self.n > 1 else "")


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation of these values.

    Examples
    --------
    >>> spread([1.0, 3.0])
    Spread(mean=2.0, std=1.4142135623730951, n=2)
    >>> spread([])
    Spread(mean=nan, std=nan, n=0)
    """
    n = len(values)
    return Spread(statistics.fmean(values) if n else math.nan, statistics.stdev(values) if n > 1 else math.nan, n)


def verdict(ours: Spread, printed: Printed | None) -> Verdict:
    """Ours against the print, both in percent.

    Examples
    --------
    >>> verdict(Spread(94.0, 0.3, 10), Printed(94.24, 0.01))  # 2 s = 2 sqrt(0.3^2 / 10 + 0.01^2 / 10) = 0.19
    <Verdict.BELOW: 'below'>
    """
    if ours.n == 0:
        return Verdict.NOT_RUN
    if printed is None:
        return Verdict.NOT_PRINTED
    if ours.n == 1:
        return Verdict.ONE_SEED
    difference = ours.mean - printed.mean
    margin = STANDARD_ERRORS * math.sqrt(ours.std**2 / ours.n + printed.std**2 / RUNS)
    if abs(difference) <= margin:
        return Verdict.WITHIN
    return Verdict.ABOVE if difference > 0 else Verdict.BELOW


# --- cells ------------------------------------------------------------------------------------------------------------


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
        Those of a seed of which there is a longer run (another budget, or another version of the code).
    """

    experiment: str
    dataset: str
    column: Column
    settings: dict[str, Any]
    runs: tuple[RunRecord, ...] = ()
    broken: tuple[RunRecord, ...] = ()
    left_out: tuple[RunRecord, ...] = ()

    @property
    def printed(self) -> Printed | None:
        """What the paper has there."""
        return printed_table(self.experiment).cells.get(self.dataset, {}).get(self.column)

    @property
    def title(self) -> str:
        """What ran, by the label of its configuration, or "Q = 3"; the paper's name where nothing ran."""
        varies = printed_table(self.experiment).varies
        if varies == "method":
            return self.label or METHODS.get(str(self.column), str(self.column))
        return f"{varies} = {self.column if isinstance(self.column, str) else format(self.column, 'g')}"

    @property
    def label(self) -> str:
        """What the configuration of its runs calls the method."""
        return next((run.configuration.get("label", "") for run in (*self.runs, *self.broken)), "")

    @property
    def ours(self) -> Spread:
        """The paper's measure, in percent."""
        return self.final("accuracy")

    @property
    def verdict(self) -> Verdict:
        """Ours against the print."""
        return verdict(self.ours, self.printed)

    def final(self, measure: str) -> Spread:
        """A column of the curves at the end of the runs."""
        return _finite_spread((run.final.get(measure, math.nan) for run in self.runs), measure)

    def after(self, measure: str, seconds: float) -> Spread:
        """A column of the curves after so many seconds of training, over the runs that got there."""
        return _finite_spread((value_after(run, measure, seconds) for run in self.runs), measure)


def _finite_spread(values: Iterable[float], measure: str) -> Spread:
    scale = 100.0 if measure in PERCENT else 1.0
    return spread([scale * value for value in values if math.isfinite(value)])


def make_cells(records: Sequence[RunRecord], experiment: str) -> list[Cell]:
    """All cells of an experiment in the order of the paper, those without runs included, then what the paper lacks."""
    table = printed_table(experiment)
    groups: dict[tuple[str, Column], dict[tuple, list[RunRecord]]] = {
        (dataset, column): {} for dataset, row in table.cells.items() for column in row
    }
    for record in records:
        if record.experiment == experiment and record.role == "final":
            settings = tuple(sorted(record.settings.items()))
            place = record.dataset, _column(record, table.varies)
            groups.setdefault(place, {}).setdefault(settings, []).append(record)
    datasets, columns = list(table.cells), list(table.columns)

    def order(key: tuple[str, Column]) -> tuple:
        dataset, column = key
        row = datasets.index(dataset) if dataset in datasets else len(datasets)
        return row, dataset, columns.index(column) if column in columns else len(columns), str(column)

    return [
        _cell(experiment, *key, dict(settings), group)
        for key in sorted(groups, key=order)
        for settings, group in sorted(groups[key].items(), key=repr) or [((), [])]
    ]


def _column(record: RunRecord, varies: str) -> Column:
    if varies == "method":
        return record.method
    if varies not in record.settings:
        raise InvalidInputError(
            f"run {record.identity} of {record.experiment} has no {varies!r} in its settings {record.settings}: "
            f"{record.experiment} varies {varies}, and a run must say with which it was made"
        )
    value = record.settings[varies]
    return float(value) if isinstance(value, int | float) else str(value)


def _cell(experiment: str, dataset: str, column: Column, settings: dict, group: list[RunRecord]) -> Cell:
    longest = {run.seed: run for run in sorted(group, key=lambda run: (run.final.get("step", 0), run.identity))}
    runs = [run for _, run in sorted(longest.items())]
    return Cell(
        experiment,
        dataset,
        column,
        settings,
        runs=tuple(run for run in runs if is_finished(run)),
        broken=tuple(run for run in runs if not is_finished(run)),
        left_out=tuple(run for run in group if run is not longest[run.seed]),
    )


def is_finished(run: RunRecord) -> bool:
    """Whether a run counts in means: it ended as planned, with a number."""
    return run.status in ("iterations", "time limit", "converged") and math.isfinite(
        run.final.get("accuracy", math.nan)
    )


def find_application(records: Sequence[RunRecord], experiment: str) -> str:
    """ "few-shot" for runs that were evaluated on tasks, otherwise "hyper-cleaning"."""
    tasks = any("half_width" in record.final for record in records if record.experiment == experiment)
    return "few-shot" if tasks else printed_table(experiment).application


def series_diverged(run: RunRecord) -> bool:
    """Whether the Neumann series behind its hypergradients diverged at an evaluation."""
    return run.counts.get("series_diverged", 0) > 0


def rise_of_f(run: RunRecord) -> float:
    """By how much F at the solved lower level ended above its start; NaN when that is not known."""
    values = run.curve.get("solved_upper_value", [])
    return values[-1] - values[0] if values else math.nan


def f_rose(run: RunRecord) -> bool:
    """Whether the run ended worse than it began."""
    return rise_of_f(run) > RISE


# --- tables -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """Lines of texts in named groups; the first heading is that of the lines' names."""

    title: str
    headings: tuple[str, ...]
    groups: tuple[Group, ...]
    remarks: tuple[str, ...] = ()


def make_tables(records: Sequence[RunRecord], experiment: str, seeds: int | None = None) -> list[Table]:
    """The table of the paper with ours beside it, and what was reached after some seconds of training.

    Parameters
    ----------
    records
        Runs; those of other experiments and of the search of step sizes are ignored.
    experiment
        ``"table-2"`` ... ``"table-5"``.
    seeds
        How many were asked for; by default as many as the cell with most of them has.
    """
    cells, application = make_cells(records, experiment), find_application(records, experiment)
    planned = seeds or max((len(cell.runs) + len(cell.broken) for cell in cells), default=0)
    return [_results(experiment, cells, planned, application), _clock(experiment, cells, application)]


def _results(experiment: str, cells: list[Cell], planned: int, application: str) -> Table:
    beside = BESIDE[application]

    def line(cell: Cell) -> Line:
        printed = "not printed" if cell.printed is None else f"{cell.printed.mean:.2f} ± {cell.printed.std:.2f}"
        ours = cell.ours.text(2) if cell.ours.n else "not run" if not cell.broken else "no run ended"
        measured = tuple(text(cell) if cell.ours.n else NOTHING for text in beside.values())
        return (cell.title, printed, ours, _number_of_runs(cell, planned), cell.verdict, *measured, _settings(cell))

    remarks = [_caption("verdict", printed_runs=RUNS, source=SOURCE), _caption(application)]
    if any(cell.ours.n < FEW_SEEDS for cell in cells if cell.verdict in COMPARED):
        remarks.append(_caption("few_seeds", few=FEW_SEEDS))
    headings = (_lines_are(experiment, cells), "printed", "ours", "n", "verdict", *beside, "settings")
    table = printed_table(experiment)
    return Table(f"{table.name}: {table.caption}", headings, _grouped(cells, line), tuple(remarks))


def _clock(experiment: str, cells: list[Cell], application: str) -> Table:
    measures = [("accuracy", "accuracy", 2)]
    if application == "hyper-cleaning":
        measures.append(("solved_upper_value", "F(x)", 4))
    times = TIMES[application]
    reached = [time for time in times if any(is_reached(run, time) for cell in cells for run in cell.runs)]
    columns = [(measure, name, digits, time) for measure, name, digits in measures for time in reached]

    def text(cell: Cell, measure: str, digits: int, time: float) -> str:
        value = cell.after(measure, time)
        return value.text(digits) + (f" (n = {value.n})" if 0 < value.n < cell.ours.n else "")

    def line(cell: Cell) -> Line:
        return (cell.title, *(text(cell, measure, digits, time) for measure, _, digits, time in columns))

    return Table(
        _caption("clock_title", table=printed_table(experiment).name),
        (_lines_are(experiment, cells), *(f"{name}, {time} s" for _, name, _, time in columns)),
        _grouped([cell for cell in cells if cell.runs and reached], line),
        (_caption("clock", nothing=NOTHING),),
    )


def _caption(name: str, **values: Any) -> str:
    return " ".join(CAPTIONS["tables"][name].format(**values).split())


def _lines_are(experiment: str, cells: list[Cell]) -> str:
    label = next((cell.label for cell in cells if cell.label), "DMLCBO")
    return "method" if printed_table(experiment).varies == "method" else f"{label} with"


def _grouped(cells: list[Cell], line: Callable[[Cell], Line]) -> tuple[Group, ...]:
    datasets = dict.fromkeys(cell.dataset for cell in cells)
    return tuple(
        (DATASETS.get(dataset, dataset), tuple(line(cell) for cell in cells if cell.dataset == dataset))
        for dataset in datasets
    )


def _pair(solved: str, own: str, digits: int) -> Callable[[Cell], str]:
    """A measure at the solved lower level and at the run's own y."""
    return lambda cell: " / ".join(cell.final(name).text(digits, std=False) for name in (solved, own))


def _effort(cell: Cell) -> str:
    """Steps and processor seconds of training of a run."""
    return f"{cell.final('step').text(0, std=False)} / {cell.final('training_seconds').text(0, std=False)}"


BESIDE: dict[str, dict[str, Callable[[Cell], str]]] = {
    "hyper-cleaning": {
        "F(x)": lambda cell: cell.final("solved_upper_value").text(4),
        "accuracy, solved": lambda cell: cell.final("solved_accuracy").text(2),
        "zero scores %, solved / own": _pair("zero_share", "own_zero_share", 2),
        "non-zeros, solved / own": _pair("nonzeros", "own_nonzeros", 1),
        "steps / seconds": _effort,
    },
    "few-shot": {
        "interval in a run": lambda cell: f"± {cell.final('half_width').text(2, std=False)}",
        "training classes": lambda cell: cell.final("training_class_accuracy").text(2),
        "steps / seconds": _effort,
    },
}
"""What stands beside the paper's measure: heading and text of a cell."""


def _number_of_runs(cell: Cell, planned: int) -> str:
    """ "10", "7 of 10", "8 of 10, 2 diverged", "10, 4 at the time limit", "10, F rose in 2"."""
    count = str(cell.ours.n) if cell.ours.n == planned else f"{cell.ours.n} of {planned}"
    statuses = [run.status if run.status in ("diverged", "failed") else "without a number" for run in cell.broken]
    texts = [f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses)]
    ends = [run.status for run in cell.runs]
    series, rose = (sum(map(test, cell.runs)) for test in (series_diverged, f_rose))
    texts += [f"{ends.count(end)} {text}" for end, text in ENDS.items() if end in ends]
    texts += [f"series diverged in {series}"] * bool(series) + [f"F rose in {rose}"] * bool(rose)
    return ", ".join([count, *texts])


def _settings(cell: Cell) -> str:
    """ "gamma 0.1, tau 1"; without what the lines of the table differ in."""
    varies = printed_table(cell.experiment).varies
    shown = {name: value for name, value in cell.settings.items() if name != varies}
    texts = (f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in shown.items())
    return ", ".join(texts) or NOTHING
