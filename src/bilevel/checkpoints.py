"""Checkpoints: the newest complete state of a run on the disk, and the one before it, should that be damaged.

    run.safetensors             written beside its place, flushed to the disk, renamed
    run.previous.safetensors    what run.safetensors was before

A checkpoint is a saved `Solution`: `Solution.load` reads it, and `minimize(problem, resume="run.safetensors")` goes on
from it with the same bits as a run that never stopped.
"""

from __future__ import annotations

import os
import shlex
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from .checks import check_count
from .errors import InvalidInput, InvalidType
from .files import (
    Damaged,
    FileExists,
    FileMissing,
    NotWritten,
    check_name,
    check_writable,
    is_intact,
    remove_temporaries,
)
from .solution import Solution
from .storage import load_solution, save_solution, save_values

Fact = str | int | float | bool | None
Content = TypeVar("Content")


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written, or was damaged and the one before it is used.

    Examples
    --------
    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warnings.warn("run.safetensors could not be written: the disk is full", CheckpointWarning)
    >>> caught[0].category.__name__
    'CheckpointWarning'
    """


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often `minimize` writes the state of its run.

    Parameters
    ----------
    path
        The file, usually NAME.safetensors; the one before it is kept as NAME.previous.safetensors.
    every
        Write after so many steps; default at every evaluation. The end of a run is always written.
    about
        Facts to keep with the run, by name: texts and numbers. `bilevel resume` shows them.

    Examples
    --------
    >>> Checkpoint("run.safetensors", every=500).previous.name
    'run.previous.safetensors'
    """

    path: str | Path
    every: int | None = field(default=None, kw_only=True)
    about: Mapping[str, Fact] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | Path) or not str(self.path):
            raise InvalidType(f"checkpoint must be a path such as 'run.safetensors', got {self.path!r}")
        for path in self.files:
            check_name(path)
        if self.every is not None:
            check_count("every", self.every)
        facts = self.about.items() if isinstance(self.about, Mapping) else [("about", self.about)]
        for name, value in facts:
            if not isinstance(self.about, Mapping) or not isinstance(name, str) or not isinstance(value, Fact):
                raise InvalidType(f"about holds texts and numbers by name, got {name!r}: {value!r}")

    @classmethod
    def of(cls, checkpoint: str | Path | Checkpoint) -> Checkpoint:
        """A path, or the given settings."""
        if not isinstance(checkpoint, str | Path | Checkpoint):
            raise InvalidInput(f"checkpoint must be a path or bilevel.Checkpoint(...), got {checkpoint!r}")
        return checkpoint if isinstance(checkpoint, Checkpoint) else cls(checkpoint)

    @property
    def previous(self) -> Path:
        """The file that keeps the state before the newest."""
        return previous_of(Path(self.path))

    @property
    def files(self) -> tuple[Path, Path]:
        """The newest, and the one before it."""
        return Path(self.path), self.previous

    def load(self) -> Solution:
        """The newest state of the run; see `load_checkpoint`."""
        return load_newest(Path(self.path), load_solution, _step_of)

    def start(self, resumed: Path | None = None) -> CheckpointFiles:
        """The files of a run that is about to begin, or goes on from `resumed`."""
        return CheckpointFiles(self, resumed)


def previous_of(path: Path) -> Path:
    """The file that keeps the checkpoint before the one in `path`."""
    if not path.name:
        raise InvalidInput(f"{path} is a folder: name a file in it, for example {path / 'run.safetensors'}")
    path = path.resolve() if os.path.islink(path) else path  # unlike Path's own, without errors
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def load_checkpoint(path: str | Path) -> Solution:
    """The newest state of a run: `path`, or if that is damaged or missing the one before it, with a warning."""
    return load_newest(Path(path), load_solution, _step_of)


def _step_of(solution: Solution) -> str:
    return f"step {solution.stats.get('steps', 0):g}"


def load_newest(path: Path, load: Callable[[Path], Content], describe: Callable[[Content], str]) -> Content:
    """What `load` reads from `path`, or if that is damaged or missing from the file before it, with a warning."""
    before = previous_of(path)
    try:
        return load(path)
    except (Damaged, FileMissing) as error:
        try:
            content = load(before)
        except FileMissing:
            raise error from None
        except Damaged as second:
            raise Damaged(f"{error}; and {second}") from None
        told = f"{error}. The one before it is used: {before}, {describe(content)}"
        warnings.warn(told, CheckpointWarning, stacklevel=4)
        return content


class CheckpointFiles:
    """The checkpoint of one run, and the one before it, as they are on the disk.

    Parameters
    ----------
    settings
        Where they are.
    resumed
        The file the run goes on from, which it may replace; any other file is left alone.
    replace
        Files of another run may be replaced: at the first write, and not before.
    """

    def __init__(self, settings: Checkpoint, resumed: Path | None = None, *, replace: bool = False) -> None:
        self.settings, self.path = settings, Path(settings.path)
        self.step: int | str | None = None  # of the newest state on the disk
        self.remedy = f"minimize(..., resume={str(self.path)!r}) or bilevel resume {shlex.quote(str(self.path))}"
        check_writable(self.path, overwrite=True)
        self.resumed = same = resumed is not None and resumed.resolve() == self.path.resolve()
        for old in settings.files:
            if old.exists() and not (same or replace):
                raise FileExists(
                    f"{old} exists and was left as it is: resume={str(self.path)!r} goes on from it; to start anew, "
                    "choose another name or delete it"
                )
        for old in settings.files:  # only now: they may be those of a running program, which this call leaves alone
            remove_temporaries(old)
        self._newest_is_good, self._replacing = same and is_intact(self.path), replace and not same

    def holds(self, step: int) -> bool:
        """Whether the newest file is intact and of this step."""
        return self._newest_is_good and self.step == step

    def write(self, solution: Solution) -> bool:
        """Make `solution` the newest checkpoint; see `write_by`."""
        return self.write_by(partial(save_solution, solution), solution.state.step)

    def write_values(self, values: Mapping[str, Any], step: int | str, *, format: str, version: int) -> bool:
        """Make these values the newest checkpoint; see `save_values` and `write_by`."""
        return self.write_by(partial(save_values, values, format=format, version=version), step)

    def write_by(self, save: Callable[..., Any], step: int | str) -> bool:
        """Make what `save(path, overwrite=, previous=)` writes the newest checkpoint.

        A full disk is a warning, and leaves what was there. What no file can hold, such as the state of a solver that
        is not registered, is an error at the first one.
        """
        keep = self.settings.previous if self._newest_is_good else None
        try:
            save(self.path, overwrite=True, previous=keep)
        except (NotWritten, InvalidInput) as error:
            if self.step is None and isinstance(error, InvalidInput):
                raise
            warnings.warn(f"{error}. {self}", CheckpointWarning, stacklevel=3)
            return False
        if self._replacing:
            self.settings.previous.unlink(missing_ok=True)  # of another run
            self._replacing = False
        self._newest_is_good, self.step = True, step
        return True

    def __str__(self) -> str:
        if self.step is None:
            return "No state of this run has been written yet"
        place = f"Step {self.step}" if isinstance(self.step, int) else self.step
        return f"{place} is in {self.path}: {self.remedy} goes on from there"


def start_checkpoints(checkpoint: str | Path | Checkpoint | None, resume: object = None) -> CheckpointFiles | None:
    """The files of a run that is about to begin, or None when it keeps none."""
    if checkpoint is None:
        return None
    resumed = Path(Checkpoint.of(resume).path) if isinstance(resume, str | Path | Checkpoint) else None
    return Checkpoint.of(checkpoint).start(resumed)
