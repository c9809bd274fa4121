"""The sweep makes missing runs in any number of processes and stores each when it ends.

Only the driver plans runs, chooses step sizes and writes the store; workers turn specs into records. The sweep is
idempotent: the same call again makes only the missing runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import BilevelError, MissingFileError
from .configuration import Configuration, select_parts
from .data import data_hash, has_files
from .plan import RunSpec, catalogue_names, count_runs, planned_runs
from .run import copy_record
from .run_folder import Outcome, RunRecord
from .store import ResultsStore
from .worker_pools import Group, Pool, WorkerLostError


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
        Where runs are stored.
    folder
        The data folder.
    pool
        Where runs are made; entered.
    show
        Called with the progress at the start and after every run.
    """
    store.remove_abandoned()
    state = _Sweep(configurations, store, hash_data(configurations, folder), pool)
    state.submit_missing(configurations)
    state.show(show)
    while len(pool):
        state.store_result(*pool.next())
        state.show(show)
    return state.progress


class _Sweep:
    """The state of the driver: finished runs, submitted runs, and how far it is."""

    def __init__(
        self, configurations: Sequence[Configuration], store: ResultsStore, hashes: dict[str, str], pool: Pool
    ) -> None:
        self.configurations, self.store, self.hashes, self.pool = configurations, store, hashes, pool
        self.progress = Progress(*count_runs(configurations))
        self.finished: dict[str, RunRecord] = {}
        self.by_work: dict[tuple[object, str], str] = {}
        self.planned: set[str] = set()
        for record in store.records(curves=False):
            self._add_finished(record)

    def submit_missing(self, tables: Iterable[Configuration]) -> None:
        """Submit what is planned, new and missing; runs that share their work go together."""
        missing: dict[str, list[RunSpec]] = {}
        for table in tables:
            for spec in planned_runs(table, self.hashes, self.finished):
                if spec.identity not in self.planned:
                    self.planned.add(spec.identity)
                    if self._is_stored(spec):
                        self._count(spec)
                    else:
                        missing.setdefault(spec.work, []).append(spec)
        for specs in missing.values():
            self.pool.submit(tuple(specs))

    def store_result(self, specs: Group, result: list[Outcome] | Exception) -> None:
        """Store what has ended, and submit what is known to be needed now."""
        if isinstance(result, BilevelError):  # such as data that cannot be read: no other run will do better
            raise result
        if isinstance(result, Exception):  # the next call tries again
            self.progress.lost |= {spec.identity: _loss_reason(result) for spec in specs}
            return
        self.store.add(result)
        for spec, outcome in zip(specs, result, strict=True):
            self._add_finished(outcome.record)
            self._count(spec)
        # Only these parts of the tables may have a plan that depends on the runs.
        datasets, methods = {spec.dataset for spec in specs}, {spec.method for spec in specs}
        self.submit_missing(select_parts(self.configurations, datasets, methods))

    def show(self, show: Callable[[Progress], None]) -> None:
        self.progress.running = self.pool.running()
        show(self.progress)

    def _is_stored(self, spec: RunSpec) -> bool:
        """Whether the store has it; a run that stands in another table is copied."""
        twin = self.by_work.get((spec.work, spec.dataset))
        if spec.identity not in self.finished and twin is not None:
            outcome = self.store.outcome(twin)
            copy = Outcome(copy_record(outcome.record, spec), outcome.state)
            self.store.add([copy])
            self._add_finished(copy.record)
        return spec.identity in self.finished

    def _add_finished(self, record: RunRecord) -> None:
        self.finished[record.identity] = record
        self.by_work[record.environment.get("work"), record.dataset] = record.identity

    def _count(self, spec: RunSpec) -> None:
        self.progress.done += 1
        self.progress.spent += spec.weight
        self.progress.failed += self.finished[spec.identity].status in ("failed", "diverged")


def hash_data(configurations: Sequence[Configuration], folder: Path) -> dict[str, str]:
    """The hash of each dataset's files; a missing or damaged dataset is an error before the first run."""
    names = sorted({name for configuration in configurations for name in catalogue_names(configuration).values()})
    if missing := [name for name in names if not has_files(name, folder)]:
        raise MissingFileError(
            f"{', '.join(missing)}: there are no such data in {folder}. Get them with "
            f"`bilevel data fetch {' '.join(missing)}`, or place them there; --quick without them needs no download"
        )
    return {name: data_hash(name, folder) for name in names}


def _loss_reason(error: Exception) -> str:
    if isinstance(error, WorkerLostError):
        return f"was lost with its workers ({error})"
    return f"ended with an error of its worker ({type(error).__name__}: {str(error) or 'no text'})"
