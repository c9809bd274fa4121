"""The tables of a report as data: headings, groups of lines, remarks. How they look is up to Markdown or HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..printed import DATASETS, SOURCE, printed_table
from ..record import RunRecord
from .cells import Cell, cells_of, f_rose, is_few_shot, series_diverged
from .curves import is_reached
from .verdicts import COMPARED, Spread, Verdict, explanation, explanations, remarks

BUDGETS = {"hyper-cleaning": (1, 5, 10, 20, 30, 60), "few-shot": (30, 60, 120, 300, 600)}
"""Seconds of training after which runs are looked at."""
ROUGH = 5
"""Below so many seeds two standard errors are a rough guide."""
NOTHING = "–"
Line = tuple[str, ...]
Group = tuple[str, tuple[Line, ...]]


@dataclass(frozen=True)
class Table:
    """Lines of texts in named groups; the first heading is that of the lines' names."""

    title: str
    headings: tuple[str, ...]
    groups: tuple[Group, ...]
    remarks: tuple[str, ...] = ()


def tables_of(records: Sequence[RunRecord], experiment: str, seeds: int | None = None) -> list[Table]:
    """The table of the paper with ours beside it, and what was reached after some seconds of training.

    Parameters
    ----------
    records
        Runs; those of other experiments and of the search of step sizes are passed over.
    experiment
        ``"table-2"`` ... ``"table-5"``.
    seeds
        How many were asked for; by default as many as the cell with most of them has.
    """
    cells = cells_of(records, experiment)
    asked = seeds or max((len(cell.runs) + len(cell.broken) for cell in cells), default=0)
    few_shot = experiment == "table-3" or any(is_few_shot(run) for cell in cells for run in cell.runs)
    return [_results(experiment, cells, asked, few_shot), _budgets(experiment, cells, few_shot)]


def _results(experiment: str, cells: list[Cell], asked: int, few_shot: bool) -> Table:
    beside = FEW_SHOT if few_shot else CLEANING
    headings = (_lines_are(experiment), "printed", "ours", "n", "verdict", *beside, "settings")

    def line(cell: Cell) -> Line:
        printed = "not printed" if cell.printed is None else f"{cell.printed.mean:.2f} ± {cell.printed.std:.2f}"
        ours = plus_minus(cell.ours, 2) if cell.ours.n else "not run" if not cell.broken else "no run ended"
        measured = tuple(text(cell) if cell.ours.n else NOTHING for text in beside.values())
        return (cell.title, printed, ours, number_of_runs(cell, asked), cell.verdict, *measured, settings_of(cell))

    return Table(
        f"{printed_table(experiment).name}: {printed_table(experiment).caption}",
        headings, _grouped(cells, line),
        (*_reading(few_shot), *remarks(experiment), *remarks(experiment, "clock"), *_rough(cells), *_reasons(cells)),
    )  # fmt: skip


def _budgets(experiment: str, cells: list[Cell], few_shot: bool) -> Table:
    measures = [("accuracy", "accuracy", 2)]
    if not few_shot:
        measures.append(("solved_upper_value", "F(x)", 4))
    times = BUDGETS["few-shot" if few_shot else "hyper-cleaning"]
    reached = [time for time in times if any(is_reached(run, time) for cell in cells for run in cell.runs)]
    budgets = [(measure, name, digits, time) for measure, name, digits in measures for time in reached]

    def text(cell: Cell, measure: str, digits: int, time: float) -> str:
        found = cell.after(measure, time)
        fewer = f" (n = {found.n})" if 0 < found.n < cell.ours.n else ""
        return plus_minus(found, digits) + fewer

    return Table(
        f"{printed_table(experiment).name} against the clock: what was reached after some seconds of training",
        (_lines_are(experiment), *(f"{name}, {time} s" for _, name, _, time in budgets)),
        _grouped(
            [cell for cell in cells if cell.runs and reached],
            lambda cell: (cell.title, *(text(cell, measure, digits, time) for measure, _, digits, time in budgets)),
        ),
        (
            "Processor seconds of training, without evaluations; the last evaluation before that time. A run that had "
            f"finished its iterations keeps its last value; {NOTHING}: no run got so far.",
            *remarks(experiment, "clock"),
        ),
    )  # fmt: skip


def _lines_are(experiment: str) -> str:
    return "method" if printed_table(experiment).varies == "method" else "DMLCBO with"


def _grouped(cells: list[Cell], line: Callable[[Cell], Line]) -> tuple[Group, ...]:
    datasets = dict.fromkeys(cell.dataset for cell in cells)
    return tuple(
        (DATASETS.get(dataset, dataset), tuple(line(cell) for cell in cells if cell.dataset == dataset))
        for dataset in datasets
    )


def _pair(cell: Cell, solved: str, own: str, digits: int) -> str:
    """A measure at the solved lower level and at the run's own y."""
    both = (cell.final(measure) for measure in (solved, own))
    return " / ".join(f"{found.mean:.{digits}f}" if found.n else NOTHING for found in both)


CLEANING = {
    "F(x)": lambda cell: plus_minus(cell.final("solved_upper_value"), 4),
    "accuracy, solved": lambda cell: plus_minus(cell.final("solved_accuracy"), 2),
    "zero scores %, solved / own": lambda cell: _pair(cell, "zero_share", "own_zero_share", 2),
    "non-zeros, solved / own": lambda cell: _pair(cell, "nonzeros", "own_nonzeros", 1),
}
FEW_SHOT = {
    "interval in a run": lambda cell: number(cell.final("half_width"), 2, before="± "),
    "training classes": lambda cell: plus_minus(cell.final("training_class_accuracy"), 2),
}
"""What stands beside the paper's measure: heading and text of a cell."""


def plus_minus(found: Spread, digits: int) -> str:
    """ "94.10 ± 0.21"; the mean alone where there is no spread."""
    if found.n < 2:
        return number(found, digits)
    return f"{found.mean:.{digits}f} ± {found.std:.{digits}f}"


def number(found: Spread, digits: int, before: str = "") -> str:
    """The mean, or a dash."""
    return f"{before}{found.mean:.{digits}f}" if found.n else NOTHING


def number_of_runs(cell: Cell, asked: int) -> str:
    """ "10", "7 of 10", "8 of 10, 2 diverged", "10, 4 at the time limit", "10, F rose in 2"."""
    count = str(cell.ours.n) if cell.ours.n == asked else f"{cell.ours.n} of {asked}"
    statuses = [run.status if run.status in ("diverged", "failed") else "without a number" for run in cell.broken]
    broken = [f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses)]
    series = sum(map(series_diverged, cell.runs))
    rose = sum(map(f_rose, cell.runs))
    limited = sum(run.status == "time limit" for run in cell.runs)
    broken += [f"{limited} at the time limit"] * bool(limited)
    told = [f"series diverged in {series}"] * bool(series) + [f"F rose in {rose}"] * bool(rose)
    return ", ".join([count, *broken, *told])


def settings_of(cell: Cell) -> str:
    """ "gamma 0.1, tau 1"; without what the lines of the table differ in."""
    shown = {name: value for name, value in cell.settings.items() if name != printed_table(cell.experiment).varies}
    texts = (f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in shown.items())
    return ", ".join(texts) or NOTHING


def _reading(few_shot: bool) -> tuple[str, ...]:
    return (
        "Printed and ours: test accuracy in percent, mean ± standard deviation, of 10 runs there and of n seeds here "
        f"(printed in {SOURCE}). The verdict is above or below when the means differ by more than two standard errors "
        "of their difference.",
        "Accuracy is that on novel classes. Interval in a run: 95 % over the tasks it was judged on. Training classes: "
        "accuracy on tasks of classes that were trained on."
        if few_shot
        else "Ours is the paper's measure: the run's own last y, where a score of exactly zero counts half. Solved: "
        "the same x with the lower level solved; F(x) is the upper objective there, on validation rows, and lower is "
        "better. Zero scores: share of the test rows. Non-zeros: coefficients of y that are not zero.",
    )


def _rough(cells: list[Cell]) -> list[str]:
    few = any(cell.ours.n < ROUGH for cell in cells if cell.verdict in COMPARED)
    return [f"Where n is below {ROUGH}, two standard errors are a rough guide."] if few else []


def _reasons(cells: list[Cell]) -> list[str]:
    """Dataset by dataset what we know of the verdicts, and of which cells we know nothing."""
    found, unexplained = [], []
    for dataset in dict.fromkeys(cell.dataset for cell in cells if cell.verdict in COMPARED):
        ours = [cell for cell in cells if cell.dataset == dataset and cell.verdict in COMPARED]
        experiment, title = ours[0].experiment, DATASETS.get(dataset, dataset)
        always = explanations(experiment, dataset).get("any", "")
        found += [f"{title}: {always}"] if always else []
        for verdict in COMPARED:
            lines = ", ".join(cell.title for cell in ours if cell.verdict is verdict)
            text = explanation(experiment, dataset, verdict)
            if lines and text:
                found.append(f"{title}, {verdict} ({lines}): {text}")
            elif lines and not always and verdict is not Verdict.WITHIN:
                unexplained.append(f"{title} {verdict} ({lines})")
    return found + ([f"We have no explanation for: {'; '.join(unexplained)}."] if unexplained else [])
