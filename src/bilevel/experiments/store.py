"""The results: SQLite in WAL mode with a row per run, and a folder per run with its curve and its final state.

    FOLDER/results.sqlite
    FOLDER/runs/IDENTITY/{record.json, curve.csv, state.safetensors}        see `RunFolders`

A run's folder is written, then its row is inserted: a program that is killed leaves a run complete or not at all.
Folders without a row are taken in when the store is opened, so that the rows can be made again from them.
Who only reads gets a copy of the rows in memory, and writes nothing: a sweep that is at work is not disturbed.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

from ..errors import InvalidInput
from ..files import Damaged, FileMissing, NotWritten
from .lock import StoreLocked
from .record import RunRecord
from .run import Outcome
from .run_folders import RunFolders, row_of

VERSION = 1
COLUMNS = tuple(each.name for each in fields(RunRecord) if each.name != "curve")
REAL, INTEGER = ("wall_seconds", "training_seconds"), ("seed",)
PATIENCE = 30.0
"""Seconds to wait for another program that writes."""


class ResultsStore:
    """The finished runs of a folder.

    Parameters
    ----------
    folder
        Made if it does not exist.
    reading
        Only read what is there now: nothing in the folder is made, changed or waited for.
    patience
        Seconds to wait for another program that writes.

    Examples
    --------
    >>> import tempfile
    >>> about = dict(experiment="table-2", role="final", dataset="mnist", method="dmlcbo", settings={}, seed=0)
    >>> record = RunRecord(**about, identity="0123456789abcdef", status="iterations", curve={"step": [0, 100]})
    >>> with tempfile.TemporaryDirectory() as folder, ResultsStore(folder) as store:
    ...     store.add([Outcome(record)]), store.add([Outcome(record)])
    ...     store.records(experiment="table-2") == [record]
    (1, 0)
    True
    """

    def __init__(self, folder: str | Path, *, reading: bool = False, patience: float = PATIENCE) -> None:
        self.folder = Path(folder)
        self.file, self.runs = self.folder / "results.sqlite", self.folder / "runs"
        self.folders = RunFolders(self.runs)
        if reading and not self.file.exists() and not self.runs.is_dir():
            raise FileMissing(f"{self.folder} holds no results: name another folder, or make some by bilevel reproduce")
        if not reading:
            self.folders.make()
        with self._speaking():
            place = ":memory:" if reading else self.file
            self._rows = sqlite3.connect(place, timeout=patience, isolation_level=None)
        try:
            if reading and self.file.exists():
                self._copy_rows(patience)
            self._prepare()
            self._take_in()
        except BaseException:
            self._rows.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._rows.close()

    def add(self, outcomes: Sequence[Outcome]) -> int:
        """Store runs: a folder for each, then all rows at once. Returns how many are new.

        Runs that are there already stay as they are. After an error those whose folder is complete are not lost: their
        rows are made when the store is opened next.
        """
        known = self.identities()
        new = [outcome for outcome in outcomes if outcome.record.identity not in known]
        for outcome in new:
            self.folders.write(outcome)
        return self._insert([outcome.record for outcome in new])

    def describe(self, configurations: Mapping[str, dict[str, Any]]) -> None:
        """Give stored runs, by identity, the configuration that versions before this one did not keep."""
        for identity, configuration in configurations.items():
            text = json.dumps(configuration, sort_keys=True)
            self.folders.describe(identity, text)
            with self._speaking():
                self._rows.execute("UPDATE runs SET configuration = ? WHERE identity = ?", (text, identity))

    def identities(self) -> set[str]:
        """The runs that are here."""
        with self._speaking():
            return {row[0] for row in self._rows.execute("SELECT identity FROM runs")}

    def records(
        self, *, experiment: str | None = None, role: str | None = None, curves: bool = True
    ) -> list[RunRecord]:
        """The runs of an experiment and a role, or all of them, in a fixed order.

        Parameters
        ----------
        experiment, role
            None for any.
        curves
            Whether to read their curves; without them it is faster.
        """
        asked = {"experiment": experiment, "role": role}
        given = {name: value for name, value in asked.items() if value is not None}
        where = " AND ".join(f"{name} = :{name}" for name in given) or "1"
        order = "experiment, role, dataset, method, settings, seed, identity"
        with self._speaking():
            names = ", ".join(COLUMNS)
            rows = self._rows.execute(f"SELECT {names} FROM runs WHERE {where} ORDER BY {order}", given).fetchall()
        found = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
        return [self._with_curve(row, curves) for row in found]

    def record(self, identity: str) -> RunRecord:
        """One run, with its curve."""
        with self._speaking():
            names = ", ".join(COLUMNS)
            row = self._rows.execute(f"SELECT {names} FROM runs WHERE identity = ?", (identity,)).fetchone()
        if row is None:
            raise InvalidInput(f"{self.folder} holds no run {identity!r}: `bilevel status` shows what it holds")
        return self._with_curve(dict(zip(COLUMNS, row, strict=True)), True)

    def say(self, **progress: Any) -> None:
        """Keep how far the running sweep is, for `bilevel status`."""
        text = json.dumps({**progress, "updated": time.time()})
        with self._speaking():
            self._rows.execute("INSERT OR REPLACE INTO notes VALUES ('sweep', ?)", (text,))

    def said(self) -> dict[str, Any]:
        """What `say` kept last."""
        with self._speaking():
            row = self._rows.execute("SELECT text FROM notes WHERE name = 'sweep'").fetchone()
        return json.loads(row[0]) if row else {}

    def _with_curve(self, row: dict[str, Any], curves: bool) -> RunRecord:
        curve = json.dumps(self.folders.curve(row["identity"]) if curves else {})
        try:
            return RunRecord.from_row(row | {"curve": curve})
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(f"the row of run {row['identity']}: {error}") from error

    def _prepare(self) -> None:
        types = dict.fromkeys(REAL, "REAL") | dict.fromkeys(INTEGER, "INTEGER")
        columns = ", ".join(f"{name} {types.get(name, 'TEXT')} NOT NULL" for name in COLUMNS)
        with self._speaking():
            version = self._rows.execute("PRAGMA user_version").fetchone()[0]
            if version > VERSION:
                raise InvalidInput(
                    f"{self.file} has version {version}, and this bilevel reads up to {VERSION}: upgrade bilevel"
                )
            if version < VERSION:
                self._rows.execute("PRAGMA journal_mode = WAL")
                self._rows.execute(f"CREATE TABLE IF NOT EXISTS runs ({columns}, PRIMARY KEY (identity))")
                self._rows.execute("CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, text TEXT NOT NULL)")
                self._rows.execute(f"PRAGMA user_version = {VERSION}")
            if "configuration" not in {row[1] for row in self._rows.execute("PRAGMA table_info(runs)")}:
                # Rows of older versions; the version stays, since those versions can go on with such a file.
                self._rows.execute("ALTER TABLE runs ADD COLUMN configuration TEXT NOT NULL DEFAULT '{}'")
            self._rows.execute("PRAGMA synchronous = FULL")
            self._rows.execute("SELECT count(*) FROM runs").fetchone()

    def _copy_rows(self, patience: float) -> None:
        """The rows as they are now, in memory.

        By a connection that could write, where one may: SQLite then removes its -wal and -shm files after the last one.
        """
        may_write = os.access(self.file, os.W_OK) and os.access(self.folder, os.W_OK)
        how = "mode=rw" if may_write else "mode=ro&immutable=1"  # nobody writes there
        with self._speaking():
            source = sqlite3.connect(f"{self.file.absolute().as_uri()}?{how}", uri=True, timeout=patience)
            try:
                # A reader from here on: a backup alone would wait for ever for a program that locks readers out.
                source.execute("BEGIN")
                source.execute("SELECT count(*) FROM sqlite_master").fetchone()
                source.backup(self._rows)
            finally:
                source.close()

    def _take_in(self) -> None:
        """Insert rows for complete folders without one."""
        self._insert(list(self.folders.records(but=self.identities())))

    def _insert(self, records: Sequence[RunRecord]) -> int:
        """In one transaction: all rows or none. An identity that is there already is left alone."""
        if not records:
            return 0
        places = ", ".join(f":{name}" for name in COLUMNS)
        with self._speaking():
            self._rows.execute("BEGIN IMMEDIATE")
            try:
                before = self._rows.total_changes
                self._rows.executemany(
                    f"INSERT OR IGNORE INTO runs ({', '.join(COLUMNS)}) VALUES ({places})",
                    [row_of(record) for record in records],
                )
                added = self._rows.total_changes - before
                self._rows.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._rows.execute("ROLLBACK")
                raise
        return added

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        """Errors of SQLite as ours, each with what to do."""
        try:
            yield
        except sqlite3.OperationalError as error:
            text = str(error)
            if "locked" in text or "busy" in text:
                raise StoreLocked(
                    f"{self.file} is locked by another program: wait for it or end it, then run the command again; "
                    "nothing was lost"
                ) from error
            if "full" in text or "disk I/O" in text or "readonly" in text or "unable to open" in text:
                raise NotWritten(
                    f"{self.file} cannot be written ({text}): make room or choose another folder, then run the command "
                    "again; what was stored is still there"
                ) from error
            raise self._damaged(error) from error
        except sqlite3.DatabaseError as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception | str) -> Damaged:
        return Damaged(
            f"{self.file} is damaged or not a file of results ({error}): move it aside together with its -wal and -shm "
            f"files; the next command makes it again from the runs in {self.runs}, and nothing is lost"
        )
