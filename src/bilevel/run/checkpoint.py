"""Checkpoints: the newest complete state of a run on the disk, and the previous one in case the newest is damaged.

    run.safetensors             written under a temporary name, flushed to the disk, renamed
    run.previous.safetensors    the previous content of run.safetensors

All runs use the same format, `RunDocument`. A resumed run gives the same bits as one that was never interrupted.
"""

from __future__ import annotations

import contextlib
import copy
import os
import shlex
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout

from .._checks import check_count
from .._files import (
    CorruptFileError,
    MissingFileError,
    OutputExistsError,
    WriteError,
    check_name,
    check_writable,
    document_writer,
    is_intact,
    load_document,
    remove_temporaries,
    write_atomically,
)
from .._serializable import matches
from ..errors import CheckpointWarning, IncompatibleError, InvalidInputError, InvalidTypeError
from ._serialization import TensorStore, decode, encode, serializable
from .solution import Status

Fact = str | int | float | bool | None
FORMAT, VERSION = "bilevel.Run", 1


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often `minimize` writes the state of its run.

    Parameters
    ----------
    path
        The file, usually NAME.safetensors; the one before it is kept as NAME.previous.safetensors.
    every
        The number of steps between checkpoints; default at every evaluation. The end of a run is always written.
    about
        Notes to store with the run, by name: texts and numbers. `bilevel resume` shows them.

    Examples
    --------
    >>> Checkpoint("run.safetensors", every=500).previous.name
    'run.previous.safetensors'
    """

    path: str | Path
    every: int | None = field(default=None, kw_only=True)
    about: dict[str, Fact] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | Path) or not str(self.path):
            raise InvalidTypeError(f"checkpoint must be a path such as 'run.safetensors', got {self.path!r}")
        check_name(Path(self.path))
        check_name(self.previous)
        if self.every is not None:
            check_count("every", self.every)
        if not matches(self.about, dict[str, Fact]):
            raise InvalidTypeError(f"about holds texts and numbers by name, got {self.about!r}")

    @classmethod
    def of(cls, checkpoint: str | Path | Checkpoint) -> Checkpoint:
        """The settings for a path; settings are returned unchanged."""
        if not isinstance(checkpoint, str | Path | Checkpoint):
            raise InvalidInputError(f"checkpoint must be a path or bilevel.Checkpoint(...), got {checkpoint!r}")
        return checkpoint if isinstance(checkpoint, Checkpoint) else cls(checkpoint)

    @property
    def previous(self) -> Path:
        """The file with the state before the newest one."""
        return previous_of(Path(self.path))

    @property
    def files(self) -> tuple[Path, Path]:
        """The newest checkpoint, and the one before it."""
        return Path(self.path), self.previous

    def load(self) -> RunDocument:
        """The newest state of the run; if the file is damaged or missing the one before it, with a warning."""
        path, read = Path(self.path), version_of(Path(self.path))
        try:
            return RunDocument.load(path)
        except (CorruptFileError, MissingFileError) as error:
            try:
                document = RunDocument.load(self.previous)
            except MissingFileError:
                raise error from None
            except CorruptFileError as second:
                raise CorruptFileError(f"{error}; and {second}") from None
            message = f"{error}. The one before it is used: {self.previous}, {document.place.lower()}"
            warnings.warn(message, CheckpointWarning, stacklevel=3)
            return replace(document, path=path, read=read)


def version_of(path: Path) -> tuple[int, int, int] | None:
    """A value that changes when the file is replaced; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def previous_of(path: Path) -> Path:
    """The file that keeps the checkpoint before the one in `path`."""
    if not path.name:
        raise InvalidInputError(f"{path} is a folder: name a file in it, for example {path / 'run.safetensors'}")
    path = path.resolve() if os.path.islink(path) else path  # unlike Path's own, without errors
    return path.with_name(f"{path.stem}.previous{path.suffix}")


@serializable
@dataclass(frozen=True)
class Outcome:
    """How a stage ended, and its result.

    `state` is the last one; None if the stage ended in an earlier run and another stage came after it.
    """

    result: Any
    status: Status
    message: str = ""
    state: Any = field(default=None, metadata={"stored": False})


@serializable
@dataclass(kw_only=True)
class RunDocument:
    """The content of the file of a run: the results of its finished stages and the progress of the current one.

    Parameters
    ----------
    kind, identity
        The function that was called, and the properties in which a call must agree to resume it.
    about
        Notes stored with the run, by name; `bilevel resume` shows them.
    plan
        The arguments of the call, such as the number of steps.
    finished
        The outcome of each stage that has ended, by name.
    stage, state, recorded, result, counts
        The current stage, its state, the step of its last record, its result so far, and its costs.
    history, seconds
        The records of all stages, and the time spent in their steps.
    status, message
        How the run ended; `Status.RUNNING` when it did not.
    path, read
        The file it was read from, and which version of it: see `version_of`.
    """

    kind: str
    identity: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    plan: Any = None
    finished: dict[str, Outcome] = field(default_factory=dict)
    stage: str = ""
    state: Any = None
    recorded: int = 0
    result: Any = None
    counts: dict[str, float] = field(default_factory=dict)
    history: list[Any] = field(default_factory=list)
    seconds: float = 0.0
    status: Status = Status.RUNNING
    message: str = ""
    path: Path | None = field(default=None, compare=False, metadata={"stored": False})
    read: Any = field(default=None, compare=False, repr=False, metadata={"stored": False})

    def __post_init__(self) -> None:
        if self.state is not None and not isinstance(getattr(self.state, "step", None), int):
            raise InvalidInputError(f"this is not the state of a run: {self.state!r:.100}")

    @property
    def place(self) -> str:
        """A description of how far the run is."""
        if not self.stage:
            return "The beginning"
        if self.state is None:
            return f'The end of "{self.stage}"'
        return f"Step {self.state.step}" + ("" if self.stage == self.kind else f' of "{self.stage}"')

    def remedy(self, path: Path) -> str:
        """How to continue: by the command line that started the run, or else by a call."""
        if "command_line" in self.about:
            return f"{self.about['command_line']} --resume {shlex.quote(str(path))}"
        command = f" or bilevel resume {shlex.quote(str(path))}" if self.kind == "minimize" else ""
        return f"{self.kind}(..., resume={str(path)!r}){command}"

    def check_identity(self, kind: str, identity: Mapping[str, Fact]) -> None:
        """Raise if the run had other settings or data, and name the difference."""
        if self.kind != kind:
            raise IncompatibleError(f"{self.path or 'this run'} is a run of {self.kind}, not of {kind}")
        for name in dict.fromkeys([*self.identity, *identity]):
            was, now = self.identity.get(name), identity.get(name)
            if was is not now and not (isinstance(was, Fact) and was == now):
                values = "" if str(was).startswith("sha256:") else f": {was!r:.200} then, {now!r:.200} now"
                raise IncompatibleError(
                    f"{self.path or 'this run'} cannot be continued, since {name} differs from that of its run"
                    f"{values}; use the original one to continue, or another checkpoint for a new run"
                )

    def copy(self) -> RunDocument:
        """An independent copy from which a run continues; its steps and records do not change this one."""
        own = {"about": {**self.about}, "finished": {**self.finished}, "history": [*self.history]}
        return replace(self, **own, state=copy.copy(self.state))

    def save(self, path: str | Path, *, overwrite: bool = False, previous: Path | None = None) -> Path:
        """Write everything to one safetensors file, complete or not at all."""
        too_long = f"the history of {len(self.history)} records is too long for one file: record less often"
        tensors = TensorStore()
        content = {"format": FORMAT, "version": VERSION, "value": encode("run", self, tensors)}
        writer = document_writer(content, tensors.stored, too_long=too_long)
        return write_atomically(Path(path), writer, overwrite=overwrite, previous=previous)

    @classmethod
    def load(cls, path: str | Path) -> RunDocument:
        """Read a file written by `save`; nothing is unpickled, and values of a wrong type raise."""
        read = version_of(Path(path))
        document = load_document(
            Path(path), lambda content, tensors: decode(content["value"], tensors), format=FORMAT, version=VERSION,
            what="a run",
        )  # fmt: skip
        if not isinstance(document, cls):
            raise InvalidInputError(f"{path}: this is not a run saved by bilevel")
        return replace(document, path=Path(path), read=read)


class CheckpointFiles:
    """The checkpoint files of one run; a lock prevents other runs from writing them.

    Parameters
    ----------
    settings
        The path and how often to write.
    document
        The run. Only the file from which it was read may be replaced.
    overwrite
        Replace files of another run, at the first write and not before.
    """

    def __init__(self, settings: Checkpoint, document: RunDocument, *, overwrite: bool = False) -> None:
        self.path: Path = Path(settings.path)  # as messages name it
        check_writable(self.path, overwrite=True)
        self.settings: Checkpoint = replace(settings, path=self.path.absolute())  # a callback may chdir
        self.resumed: bool = document.path is not None and document.path.resolve() == self.path.resolve()
        self._overwrite, self._read = overwrite, document.read
        self._remedy, self.newest_is_good = document.remedy(self.path), False
        self._check_free()
        self.place = document.place if self.resumed else None  # of the newest state on the disk
        target = self.path.resolve()
        self._lock = FileLock(target.with_name(f".{target.name}.lock"), timeout=0)

    def __enter__(self) -> Self:
        try:
            self._lock.acquire()
        except Timeout:
            raise InvalidInputError(
                f"{self.path} is the checkpoint of a run in progress: wait for it, or end it"
            ) from None
        except OSError as error:
            warnings.warn(
                f"{self.path} cannot be locked ({error.strerror or error}): let no other run write it",
                CheckpointWarning,
                stacklevel=2,
            )
        try:
            self._check_free()  # again: until now it may have been the file of another run
        except BaseException:
            self.__exit__()
            raise
        for old in self.settings.files:  # only now: until then they may have been those of a running program
            remove_temporaries(old)
        self.newest_is_good = self.resumed and is_intact(self.settings.files[0])
        return self

    def _check_free(self) -> None:
        """Raise if a file belongs to another run, or was written by another run since this one read it."""
        for old in self.settings.files:
            if old.exists() and not (self.resumed or self._overwrite):
                raise OutputExistsError(
                    f"{old} exists and was left as it is: {self._remedy} continues from it; for a new run, choose "
                    "another name or delete it"
                )
        if self.resumed and self._read != version_of(self.settings.files[0]):
            raise InvalidInputError(
                f"{self.path} was written by another run after this one had read it, and was left as it is: "
                "resume again"
            )

    def __exit__(self, *_: Any) -> None:
        with contextlib.suppress(OSError):  # some systems delete no file that is open: it stays, and locks nothing
            Path(self._lock.lock_file).unlink(missing_ok=True)
        self._lock.release()

    def write(self, document: RunDocument) -> bool:
        """Write this as the newest checkpoint; return whether that succeeded.

        A full disk gives a warning and leaves the old files. A state that no file can hold raises at the first write.
        """
        ours = self.place is not None or self._overwrite
        try:
            previous = self.settings.previous if self.newest_is_good else None
            document.save(self.settings.path, overwrite=ours, previous=previous)
        except (WriteError, InvalidInputError) as error:
            if self.place is None and isinstance(error, InvalidInputError):
                raise
            message = str(error).replace(str(self.settings.path), str(self.path))
            warnings.warn(f"{message}. {self}", CheckpointWarning, stacklevel=3)
            return False
        if self.place is None:
            self.settings.previous.unlink(missing_ok=True)  # of another run, which may be overwritten
        self.newest_is_good, self.place = True, document.place
        return True

    def __str__(self) -> str:
        if self.place is None:
            return "No state of this run has been written yet"
        return f"{self.place} is in {self.path}: {self._remedy} goes on from there"
