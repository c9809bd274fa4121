"""A folder per run: its row as JSON, its curve and its final state.

    FOLDER/runs/IDENTITY/{record.json, curve.csv, state.safetensors}

A folder is written aside and renamed: a program that is killed leaves it complete or not at all.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import secrets
import shutil
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from ..files import Damaged, NotWritten, write_atomically
from .record import Curve, RunRecord
from .run import Outcome

OLD = 3600.0
"""Seconds after which what was written aside belongs to no program that is still writing it."""


class RunFolders:
    """The folders of finished runs below `place`."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def make(self) -> None:
        """Make the place that they lie in."""
        with self._writing():
            self.place.mkdir(parents=True, exist_ok=True)

    def write(self, outcome: Outcome) -> None:
        """The folder of one run; one that is there already stays as it is."""
        identity = outcome.record.identity
        folder, aside = self.place / identity, self.place / f".{identity}.{secrets.token_hex(4)}.tmp"
        if (folder / "record.json").is_file():
            return  # another program was faster
        with self._writing():
            try:
                aside.mkdir()
                (aside / "curve.csv").write_text(curve_text(outcome.record.curve), encoding="utf-8", newline="")
                if outcome.state:
                    _write_state(aside / "state.safetensors", outcome.state)
                _write_json(row_of(outcome.record), aside / "record.json")
                for file in aside.iterdir():
                    _flush(file)
                _rename(aside, folder)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
            with suppress(OSError):  # not every system flushes folders
                _flush(self.place)

    def records(self, *, but: Container[str]) -> Iterator[RunRecord]:
        """The runs of complete folders, without their curves and without those of some identities.

        A folder that is still written aside, or was when its program was killed, is none of them.
        """
        for folder in sorted(self.place.iterdir()) if self.place.is_dir() else ():
            if not folder.name.startswith(".") and folder.name not in but and (folder / "record.json").is_file():
                with _reading(folder / "record.json"):
                    yield RunRecord.from_row({**_read_json(folder / "record.json"), "curve": "{}"})

    def describe(self, identity: str, configuration: str) -> None:
        """Give a run the configuration that versions before this one did not keep."""
        path = self.place / identity / "record.json"
        with _reading(path):
            row = _read_json(path) | {"configuration": configuration}
        write_atomically(path, partial(_write_json, row), overwrite=True)

    def curve(self, identity: str) -> Curve:
        """The evaluations of a run, by columns."""
        path = self.place / identity / "curve.csv"
        with _reading(path):
            head, *rows = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8")))) or [[]]
            columns = zip(*rows, strict=True) if rows else ([] for _ in head)
            return {name: [_number(cell) for cell in cells] for name, cells in zip(head, columns, strict=True)}

    def state(self, identity: str) -> dict[str, Any]:
        """The final state of a run, arrays by name; empty if it has none."""
        path = self.place / identity / "state.safetensors"
        if not path.exists():
            return {}
        from safetensors.numpy import load_file

        with _reading(path):
            return load_file(path)

    def remove_leftovers(self) -> None:
        """Remove what programs that were killed long ago wrote aside."""
        for left in self.place.glob(".*.tmp"):
            with suppress(OSError):  # gone meanwhile
                if time.time() - left.stat().st_mtime > OLD:
                    shutil.rmtree(left, ignore_errors=True)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise NotWritten(
                f"{self.place} cannot be written ({error.strerror or error}): make room or choose another folder, then "
                "run the command again; what was stored is still there"
            ) from error


def row_of(record: RunRecord) -> dict[str, Any]:
    """A record without its curve, which has a file of its own."""
    return {name: value for name, value in record.to_row().items() if name != "curve"}


def curve_text(curve: Curve) -> str:
    """A curve as CSV; numbers come back with the same bits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(curve)
    writer.writerows([repr(value) for value in row] for row in zip(*curve.values(), strict=True))
    return text.getvalue()


def _number(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return float(text)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Damaged(
            f"{path} is damaged or missing ({error}): delete the folder {path.parent} and results.sqlite beside runs; "
            "the next command makes the rows again, and that one run"
        ) from error


def _rename(aside: Path, folder: Path) -> None:
    try:
        os.rename(aside, folder)
    except OSError as error:
        faster = error.errno in (errno.ENOTEMPTY, errno.EEXIST) and (folder / "record.json").is_file()
        if not faster:  # than another program, whose run has the same numbers
            raise


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def _write_json(row: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(row, indent=1), encoding="utf-8")


def _write_state(path: Path, state: dict[str, Any]) -> None:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        save_file(state, path)
    except SafetensorError as error:  # its word for what the system calls an OSError
        raise OSError(str(error)) from None


def _flush(path: Path) -> None:
    """To the disk; a disk that is full may say so only now."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
