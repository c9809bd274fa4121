"""Where the numbers come from: runs and their cost, versions and machines, and what went wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...run.solution import Status
from ..paper_values import DATASETS, printed_table
from ..plan import score
from ..run_folder import RunRecord, group_runs
from .tables import f_rose, make_cells, rise_of_f, series_diverged


@dataclass(frozen=True)
class Trouble:
    """Runs of one cell with the same trouble: in no mean, left out, made with a divergent series, or F rose."""

    runs: tuple[RunRecord, ...]
    what: str
    why: str

    @property
    def seeds(self) -> str:
        """ "0, 1, 2"."""
        return ", ".join(str(run.seed) for run in self.runs)


def core_hours(records: Sequence[RunRecord]) -> float:
    """Processor time of all runs, the search of step sizes included; work that several tables share counts once.

    Examples
    --------
    >>> run = {"experiment": "table-2", "role": "grid", "dataset": "mnist", "method": "approx", "settings": {}}
    >>> run |= {"seed": 0, "status": "iterations", "processor_seconds": 1800.0}
    >>> core_hours([RunRecord(identity=name, **run) for name in ("a", "b")])
    1.0
    """
    work = {record.environment.get("work", record.identity): record for record in records}
    return sum(run.processor_seconds for run in work.values()) / 3600


def facts(records: Sequence[RunRecord]) -> dict[str, str]:
    """Versions, machine and data: one value where all runs agree, otherwise by dataset or all that occur."""
    names = sorted({name for record in records for name in record.environment} - {"work"})
    return {name: _values(records, name) for name in names}


def _values(records: Sequence[RunRecord], name: str) -> str:
    by_dataset: dict[str, set[str]] = {}
    for record in records:
        if name in record.environment:
            by_dataset.setdefault(record.dataset, set()).add(str(record.environment[name]))
    values = sorted(set().union(*by_dataset.values()))
    if len(values) > 1 and all(len(texts) == 1 for texts in by_dataset.values()):
        return ", ".join(f"{dataset}: {texts.pop()}" for dataset, texts in sorted(by_dataset.items()))
    return ", ".join(value or "none" for value in values)


def troubles(records: Sequence[RunRecord]) -> list[Trouble]:
    """Final runs that diverged, failed or ended without a number, were left out, whose series diverged, or F rose."""
    result = []
    for experiment in sorted({record.experiment for record in records}):
        for cell in make_cells(records, experiment):
            groups: dict[tuple[str, str], list[RunRecord]] = {}
            for run in cell.broken:
                groups.setdefault((_status(run), run.reason or "no reason is stored"), []).append(run)
            for run in cell.left_out:
                groups.setdefault(("left out", "a longer run of the same seed is there"), []).append(run)
            for run in filter(series_diverged, cell.runs):
                groups.setdefault(("series diverged", run.reason or str(Status.SERIES_DIVERGES)), []).append(run)
            if rose := list(filter(f_rose, cell.runs)):
                most = max(map(rise_of_f, rose))
                why = f"F(x), lower level solved, ended above its start by {most:.2g} at most"
                groups["F rose", why] = rose
            result += [Trouble(tuple(runs), what, why) for (what, why), runs in groups.items()]
    return result


def _status(run: RunRecord) -> str:
    return run.status if run.status in ("diverged", "failed") else f"ended by {run.status}, without a number"


def step_searches(records: Sequence[RunRecord]) -> list[tuple[str, str, str, int, int, int]]:
    """Of each search: experiment, dataset, method, runs, how many of them broke, in how many the series diverged."""
    result = []
    searches = (record for record in records if record.role == "grid")
    for (experiment, dataset, method), runs in group_runs(searches, "experiment", "dataset", "method"):
        broken, series = sum(math.isinf(score(run)) for run in runs), sum(map(series_diverged, runs))
        name = printed_table(experiment).name
        result.append((name, DATASETS.get(dataset, dataset), method, len(runs), broken, series))
    return result
