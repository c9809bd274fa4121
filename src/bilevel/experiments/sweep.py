"""The sweep: does what is missing, in any number of processes, and stores each run as it ends.

The driver plans, chooses and alone writes the store; workers only turn specs into records. It is idempotent: the same
call again does only what is missing. A worker that is killed costs one retry of its run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import BilevelError
from .cleaning_data import data_hash, files_of
from .configuration import Configuration
from .plan import RunSpec, count, planned
from .plan import files_of as catalogue_name
from .pools import Group, Pool, WorkerGone
from .record import RunRecord
from .run import Outcome, copied
from .store import ResultsStore


@dataclass
class Progress:
    """How far a sweep is; `share` is of the time that the limits allow."""

    total: int
    seconds: float
    done: int = 0
    spent: float = 0.0
    running: int = 0
    failed: int = 0
    lost: dict[str, str] = field(default_factory=dict)

    @property
    def share(self) -> float:
        return min(self.spent / self.seconds, 1.0) if self.seconds else 1.0

    def __str__(self) -> str:
        return f"{self.done} of {self.total} runs done, {self.running} running, {self.failed} failed or diverged"


def sweep(
    configurations: Sequence[Configuration],
    store: ResultsStore,
    folder: Path,
    pool: Pool,
    *,
    show: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Make every run of these tables that the store does not hold.

    Parameters
    ----------
    configurations
        The tables.
    store
        Where runs are kept.
    folder
        The data folder.
    pool
        `InProcess` or `OnCluster`, entered.
    show
        Told of the progress at the start and after every run.
    """
    store.folders.remove_leftovers()
    made = _Sweep(configurations, store, hash_data(configurations, folder), pool)
    made.begin(configurations)
    made.tell(show)
    while len(pool):
        made.take(*pool.next())
        made.tell(show)
    return made.progress


class _Sweep:
    """What the driver knows: the runs that have finished, those it has asked for, and how far it is."""

    def __init__(
        self, configurations: Sequence[Configuration], store: ResultsStore, hashes: dict[str, str], pool: Pool
    ) -> None:
        self.configurations, self.store, self.hashes, self.pool = configurations, store, hashes, pool
        self.progress = Progress(*total(configurations))
        self.finished: dict[str, RunRecord] = {}
        self.by_work: dict[tuple[object, str], str] = {}
        self.asked: set[str] = set()
        for record in store.records(curves=False):
            self._know(record)

    def begin(self, tables: Iterable[Configuration]) -> None:
        """Submit what is planned, new and missing; runs that share their work go together."""
        waiting: dict[str, list[RunSpec]] = {}
        unknown: dict[str, dict[str, Any]] = {}
        for table in tables:
            for spec in planned(table, self.hashes, self.finished):
                if spec.identity not in self.asked:
                    self.asked.add(spec.identity)
                    if self._is_known(spec):
                        self._count(spec)
                        if not self.finished[spec.identity].configuration:
                            unknown[spec.identity] = spec.document
                    else:
                        waiting.setdefault(spec.work, []).append(spec)
        self.store.describe(unknown)
        for specs in waiting.values():
            self.pool.submit(tuple(specs))

    def take(self, specs: Group, result: list[Outcome] | Exception) -> None:
        """Store what has ended, and begin with what is known to be needed now."""
        if isinstance(result, BilevelError):  # data that cannot be read: no run will do better
            raise result
        if isinstance(result, Exception):  # its workers were lost, or failed; the next call tries again
            self.progress.lost |= {spec.identity: _told(result) for spec in specs}
            return
        self.store.add(result)
        for spec, outcome in zip(specs, result, strict=True):
            self._know(outcome.record)
            self._count(spec)
        self.begin(_cells(self.configurations, specs))

    def tell(self, show: Callable[[Progress], None]) -> None:
        self.progress.running = self.pool.running()
        show(self.progress)

    def _is_known(self, spec: RunSpec) -> bool:
        """Whether it is stored; a run that stands in another table is copied."""
        twin = self.by_work.get((spec.work, spec.dataset))
        if spec.identity not in self.finished and twin is not None:
            record = copied(self.store.record(twin), spec)
            self.store.add([Outcome(record, self.store.folders.state(twin))])
            self._know(record)
        return spec.identity in self.finished

    def _know(self, record: RunRecord) -> None:
        self.finished[record.identity] = record
        self.by_work[record.environment.get("work"), record.dataset] = record.identity

    def _count(self, spec: RunSpec) -> None:
        self.progress.done += 1
        self.progress.spent += spec.weight
        self.progress.failed += self.finished[spec.identity].status in ("failed", "diverged")


def total(configurations: Sequence[Configuration]) -> tuple[int, float]:
    """How many runs the tables need together, and their weights; a grid that two tables share counts once."""
    names = {configuration.experiment for configuration in configurations}
    found = []
    for configuration in configurations:
        shared = configuration.vary is not None and configuration.like
        found.append(count(configuration, grids=not shared or configuration.like not in names))
        names |= {configuration.like} if shared and configuration.like else set()
    return sum(runs for runs, _ in found), sum(seconds for _, seconds in found)


def hash_data(configurations: Sequence[Configuration], folder: Path) -> dict[str, str]:
    """The hash of each dataset's files; one that is missing or damaged is named before the first run."""
    names = {
        catalogue_name(configuration.application, name, data.model_dump())
        for configuration in configurations
        for name, data in configuration.datasets.items()
    }
    return {name: "" if name == "generated" else data_hash(files_of(name, folder)) for name in sorted(names)}


def _told(error: Exception) -> str:
    if isinstance(error, WorkerGone):
        return f"was lost with its workers ({error})"
    return f"ended with an error of its worker ({type(error).__name__}: {str(error) or 'no text'})"


def _cells(configurations: Sequence[Configuration], specs: Group) -> Iterable[Configuration]:
    """The parts of the tables that may know more now."""
    datasets, methods = {spec.dataset for spec in specs}, {spec.method for spec in specs}
    for configuration in configurations:
        names = [name for name in configuration.datasets if name in datasets]
        columns = [name for name in configuration.methods if name in methods]
        if names and columns:
            yield configuration.only(datasets=names, methods=columns)
