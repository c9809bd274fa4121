"""The results of sweeps: a folder per run, and the progress of the running sweep.

    FOLDER/runs/IDENTITY/{record.json, curve.csv, state.safetensors}        see `run_folder`
    FOLDER/status.json
    FOLDER/driver.lock

The folder of a run is written atomically: a program that is killed loses at most its current run. Readers write nothing
and do not disturb a running sweep.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .._files import write_atomically
from ..errors import BilevelError, CorruptFileError, InvalidInputError, MissingFileError, WriteError
from .run_folder import Outcome, RunRecord, is_complete, read_record, read_state, sort_key, write_run

ABANDONED = 3600.0
"""Seconds after which a temporary folder belongs to no program that is still writing it."""


class StoreLockedError(BilevelError, OSError):
    """Another program is writing to the results; nothing was changed.

    Examples
    --------
    >>> issubclass(StoreLockedError, OSError)
    True
    """


class ResultsStore:
    """The finished runs of a folder.

    Parameters
    ----------
    folder
        The folder, created with the first run.
    reading
        Raise if the folder holds no results.

    Examples
    --------
    >>> import tempfile
    >>> from bilevel.experiments.run_folder import Outcome, RunRecord
    >>> about = dict(experiment="table-2", role="final", dataset="mnist", method="dmlcbo", settings={}, seed=0)
    >>> record = RunRecord(**about, identity="0123456789abcdef", status="iterations", curve={"step": [0, 100]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = ResultsStore(folder)
    ...     store.add([Outcome(record)])
    ...     store.records(experiment="table-2") == [record]
    True
    """

    def __init__(self, folder: str | Path, *, reading: bool = False) -> None:
        self.folder: Path = Path(folder)
        self.runs: Path = self.folder / "runs"
        if (self.folder / "results.sqlite").exists():
            raise InvalidInputError(f"{self.folder} holds results of bilevel 0.1: choose another folder")
        if reading and not self.runs.is_dir() and not self.status():
            raise MissingFileError(
                f"{self.folder} holds no results: name another folder, or make some by bilevel reproduce"
            )

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Store runs, a folder for each. Existing runs are not changed."""
        with self._writing(self.runs):
            for outcome in outcomes:
                write_run(outcome, self.runs)

    def identities(self) -> list[str]:
        """The identities of the stored runs."""
        folders = self.runs.iterdir() if self.runs.is_dir() else ()
        return sorted(folder.name for folder in folders if is_complete(folder))

    def records(
        self, *, experiment: str | None = None, role: str | None = None, curves: bool = True
    ) -> list[RunRecord]:
        """The runs of an experiment and a role, or all of them, in a fixed order.

        Parameters
        ----------
        experiment, role
            None for any.
        curves
            Whether to read their curves; it is faster without them.
        """
        records = [read_record(self.runs / identity, curve=curves) for identity in self.identities()]
        wanted = [run for run in records if experiment in (None, run.experiment) and role in (None, run.role)]
        return sorted(wanted, key=sort_key)

    def outcome(self, identity: str) -> Outcome:
        """One run, with its curve and its final state."""
        return Outcome(read_record(self.runs / identity), read_state(self.runs / identity))

    def set_status(self, **status: Any) -> None:
        """Store the progress of the running sweep, for `bilevel status`."""
        text = json.dumps({**status, "updated": time.time()})
        with self._writing(self.folder):
            write_atomically(self.folder / "status.json", lambda file: file.write_text(text), overwrite=True)

    def status(self) -> dict[str, Any]:
        """The last progress that `set_status` stored."""
        path = self.folder / "status.json"
        try:
            found = json.loads(path.read_text()) if path.exists() else {}
            return {**found}
        except (ValueError, TypeError, RecursionError) as error:
            raise CorruptFileError(f"{path} is damaged ({error}): delete it, no run is lost") from error

    def remove_abandoned(self) -> None:
        """Remove temporary folders of programs that were killed long ago."""
        for left in self.runs.glob(".*.tmp"):
            with suppress(OSError):  # gone meanwhile
                if time.time() - left.stat().st_mtime > ABANDONED:
                    shutil.rmtree(left, ignore_errors=True)

    @contextmanager
    def only_driver(self) -> Iterator[None]:
        """Lock the folder for one driver; raise `StoreLockedError` if another program holds the lock.

        The system releases the lock however the program ends, also after kill -9.

        Examples
        --------
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, ResultsStore(folder).only_driver():
        ...     with ResultsStore(folder).only_driver():
        ...         pass
        Traceback (most recent call last):
        bilevel.experiments.store.StoreLockedError: another bilevel reproduce (process unknown) is writing to ...
        """
        from filelock import FileLock, Timeout

        try:
            with self._writing(self.folder):
                lock = FileLock(self.folder / "driver.lock").acquire(timeout=0)
        except Timeout:
            raise StoreLockedError(
                f"another bilevel reproduce (process {self.status().get('pid', 'unknown')}) is writing to "
                f"{self.folder}: wait for it or stop it by Ctrl-C, or choose another folder by --results; "
                "`bilevel status` shows its progress"
            ) from None
        with lock:
            yield

    @contextmanager
    def _writing(self, folder: Path) -> Iterator[None]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            yield
        except TimeoutError:
            raise
        except OSError as error:
            raise WriteError(
                f"{folder} cannot be written ({error.strerror or error}): make room or choose another folder, then run "
                "the command again; what was stored is still there"
            ) from error
