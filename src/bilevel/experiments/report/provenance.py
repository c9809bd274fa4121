"""Where the numbers come from: runs and their cost, versions and machines, and what went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..printed import DATASETS, printed_table
from ..record import RunRecord
from .cells import cells_of, is_finished

HIDDEN = ("work",)
"""What the environment of a run says that is of no use to readers."""


@dataclass(frozen=True)
class Trouble:
    """A run that is in no mean, or an older one of which a longer run is there."""

    run: RunRecord
    what: str
    why: str


def core_hours(records: Sequence[RunRecord]) -> float:
    """Wall time x threads over all runs, the search of step sizes included; work that several tables share counts once.

    Examples
    --------
    >>> run = {
    ...     "experiment": "table-2",
    ...     "role": "grid",
    ...     "dataset": "mnist",
    ...     "method": "approx",
    ...     "settings": {},
    ...     "seed": 0,
    ... }
    >>> run |= {"status": "iterations", "wall_seconds": 1800.0}
    >>> core_hours([RunRecord(identity=name, **run, environment={"threads": 1}) for name in ("a", "b")])
    1.0
    """
    work = {record.environment.get("work", record.identity): record for record in records}
    return sum(run.wall_seconds * int(run.environment.get("threads", 1)) for run in work.values()) / 3600


def facts(records: Sequence[RunRecord]) -> dict[str, str]:
    """Versions, machine and data: one value where all runs agree, otherwise by dataset or all that occur."""
    names = sorted({name for record in records for name in record.environment} - set(HIDDEN))
    return {name: _values(records, name) for name in names}


def _values(records: Sequence[RunRecord], name: str) -> str:
    by_dataset: dict[str, set[str]] = {}
    for record in records:
        if name in record.environment:
            by_dataset.setdefault(record.dataset, set()).add(str(record.environment[name]))
    values = sorted(set().union(*by_dataset.values()))
    if len(values) > 1 and all(len(found) == 1 for found in by_dataset.values()):
        return ", ".join(f"{dataset}: {found.pop()}" for dataset, found in sorted(by_dataset.items()))
    return ", ".join(value or "none" for value in values)


def troubles(records: Sequence[RunRecord]) -> list[Trouble]:
    """Final runs that diverged, failed or ended without a number, and those that were left out for longer ones."""
    found = []
    for experiment in sorted({record.experiment for record in records}):
        for cell in cells_of(records, experiment):
            found += [Trouble(run, _status(run), run.reason or "no reason is stored") for run in cell.broken]
            found += [Trouble(run, "left out", "a longer run of the same seed is there") for run in cell.left_out]
    return found


def _status(run: RunRecord) -> str:
    return run.status if run.status in ("diverged", "failed") else f"ended by {run.status}, without a number"


def search_of_steps(records: Sequence[RunRecord]) -> list[tuple[str, str, str, int, int]]:
    """Of each search of step sizes: experiment, dataset, method, pairs tried, and how many of them broke."""
    groups: dict[tuple[str, str, str], list[RunRecord]] = {}
    for record in records:
        if record.role == "grid":
            groups.setdefault((record.experiment, record.dataset, record.method), []).append(record)
    return [
        (printed_table(key[0]).name, DATASETS.get(key[1], key[1]), key[2],
         len(runs), sum(not is_finished(run) for run in runs))
        for key, runs in sorted(groups.items())
    ]  # fmt: skip
