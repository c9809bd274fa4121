"""Observers for `minimize(callbacks=[...])`, which write the records of a run to CSV files and to TensorBoard.

An observer is any function of (record, state); if it returns a true value, the run ends. Its optional methods are
`begin(history)`, called at the start with the records so far, and `end()`, called at the end in any case. The observers
here flush every record at once, so that a killed run loses none; a resumed run continues the same file.
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .._files import OutputExistsError, WriteError, check_name, check_writable, write_atomically
from ..errors import InvalidInputError, InvalidTypeError, MissingExtraError, ObserverWarning
from .solution import Record, record_values


class CSVFile:
    """Write every record of a run as a row of a CSV file, with a header.

    Parameters
    ----------
    path
        The file to write. When a run is resumed, its file is cut back to the checkpoint and continued.

    Examples
    --------
    >>> import bilevel, torch, tempfile
    >>> problem = bilevel.Problem(lambda x, y: (y - 1).square().sum(), lambda x, y: (y - x).square().sum())
    >>> path = Path(tempfile.mkdtemp()) / "run.csv"
    >>> run = {"solver": bilevel.DMLCBO(), "steps": 20, "evaluate_every": 10, "callbacks": [CSVFile(path)]}
    >>> solution = bilevel.minimize(problem, torch.zeros(2), torch.zeros(2), **run)
    >>> [line.split(",")[0] for line in path.read_text().splitlines()]
    ['step', '0', '10', '20']
    """

    def __init__(self, path: str | Path) -> None:
        self.path: Path = _checked_path("path", path)
        self._file: Any = None
        check_writable(self.path, overwrite=True)

    def check(self, history: Sequence[Record]) -> None:
        """Raise if the file exists and is not the log of this run."""
        if self.path.exists() and not self.is_log_of(history):
            raise OutputExistsError(f"{self.path} exists and was left as it is: choose another name or delete it")

    def begin(self, history: Sequence[Record]) -> None:
        """Write the records so far; a file that is not the log of this run is not changed."""
        self.check(history)
        text = self._start(history) + "".join(map(_row, history[1:]))
        write_atomically(self.path, partial(Path.write_text, data=text, encoding="utf-8", newline=""), overwrite=True)
        self._file = self.path.open("a", encoding="utf-8", newline="")

    def __call__(self, record: Record, state: Any) -> None:
        if self._file is None:
            return
        try:
            head = "" if self._file.tell() else _header(record)  # a run resumed from a state has no history
            self._file.write(head + _row(record))
            self._file.flush()
        except OSError as error:
            message = f"{self.path} could not be written at step {record.step} ({error.strerror})"
            warnings.warn(f"{message}: the run continues without it", ObserverWarning, stacklevel=2)
            with contextlib.suppress(OSError):
                self.end()
            self._file = None

    def end(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def is_log_of(self, history: Sequence[Record]) -> bool:
        """Whether the file is the log of this run, identified by the seconds of the first record."""
        start = self._start(history)
        if not start or not self.path.is_file():
            return False
        with self.path.open(encoding="utf-8", errors="replace", newline="") as file:
            return file.read(len(start)) == start

    def _start(self, history: Sequence[Record]) -> str:
        return "".join(_header(record) + _row(record) for record in history[:1])


class TensorBoard:
    """Write every record of a run as scalars for TensorBoard (pip install 'bilevel[tensorboard]').

    Parameters
    ----------
    folder
        The folder of the event files. When a run is resumed, events written after its checkpoint are hidden.

    Examples
    --------
    >>> import bilevel, torch, tempfile
    >>> problem = bilevel.Problem(lambda x, y: (y - 1).square().sum(), lambda x, y: (y - x).square().sum())
    >>> folder = Path(tempfile.mkdtemp()) / "run"
    >>> watch = TensorBoard(folder)
    >>> solution = bilevel.minimize(problem, torch.zeros(2), torch.zeros(2), steps=20, callbacks=[watch])
    >>> len(list(folder.iterdir()))
    1
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError("TensorBoard", "tensorboard") from None
        self.folder: Path = _checked_path("folder", folder)
        self._make = SummaryWriter
        self._writer: Any = None
        check_name(self.folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise InvalidInputError(f"{self.folder} is a file: TensorBoard writes to a folder")

    def begin(self, history: Sequence[Record]) -> None:
        """Open the event file."""
        resumed = len(history) > 1
        try:
            self._writer = self._make(str(self.folder), purge_step=history[-1].step + 1 if resumed else None)
        except OSError as error:
            raise WriteError(f"the folder {self.folder} could not be made ({error.strerror or error})") from error
        if history and not resumed:
            self(history[0], None)

    def __call__(self, record: Record, state: Any) -> None:
        for name, value in record_values(record).items():
            if name != "step" and isinstance(value, int | float) and math.isfinite(value):
                self._writer.add_scalar(f"bilevel/{name}", value, record.step)
        self._writer.flush()

    def end(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def checked_callbacks(callbacks: Any) -> list[Any]:
    """A list of functions of (record, state)."""
    several = isinstance(callbacks, Iterable) and not callable(callbacks)
    checked = list(callbacks) if several else []
    if not several or not all(map(callable, checked)):
        raise InvalidTypeError(f"callbacks must be a list of functions of (record, state), got {callbacks!r}")
    return checked


def check_logs(callbacks: Iterable[Any], history: Sequence[Record], others: Iterable[Path] = ()) -> None:
    """Raise before anything is written if a log would overwrite another run's file, another log or one of `others`."""
    taken = [path.resolve() for path in others]
    for log in callbacks:
        if isinstance(log, CSVFile):
            if log.path.resolve() in taken:
                raise InvalidInputError(f"{log.path} is named twice: each log and checkpoint needs a file of its own")
            log.check(history)
            taken.append(log.path.resolve())


def named_logs(callbacks: Iterable[Any]) -> dict[str, str]:
    """The files of the logs among the observers, each with its kind, as stored in a checkpoint."""
    return {str(log.path): "CSVFile" for log in callbacks if type(log) is CSVFile}


def logs_of(names: Mapping[str, str], history: Sequence[Record]) -> Iterator[tuple[str, CSVFile | None]]:
    """The logs named in a checkpoint, to be continued; None for a file that is not the log of this run.

    A checkpoint may be untrusted and name any file: a file that does not begin with this run's first record is neither
    created nor changed.
    """
    for path, kind in names.items():
        there = "\0" not in path and kind == "CSVFile" and Path(path).is_file()
        log = CSVFile(path) if there else None
        yield path, log if log and log.is_log_of(history) else None


def _checked_path(name: str, value: Any) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise InvalidTypeError(f"{name} must be a path such as 'run.csv', got {value!r}")
    return Path(value)


def _header(record: Record) -> str:
    return _csv_line(record_values(record))


def _row(record: Record) -> str:
    return _csv_line("" if value is None else value for value in record_values(record).values())


def _csv_line(values: Iterable[Any]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(values)
    return line.getvalue()
