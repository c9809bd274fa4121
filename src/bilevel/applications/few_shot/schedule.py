"""The course of a training: how long it goes on, when it is looked at, its checkpoints, and what Ctrl-C does."""

from __future__ import annotations

import math
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...checkpoints import Checkpoint, CheckpointWarning
from ...files import Damaged, FileExists, FileMissing, NotWritten, check_writable
from ...progress import ProgressBar, Silent
from .evaluation import EpisodeSource
from .training_state import TrainingRecord, TrainingState, load_state, save_state


@dataclass
class Plan:
    """How long to train, and what to do on the way."""

    steps: int | None
    minutes: float | None
    evaluate_every: int
    validate: EpisodeSource | None
    validate_count: int
    files: Files | None
    clock: Callable[[], float]

    def share(self, state_step: int, seconds: float) -> float:
        """How much of the plan is done, from 0 to 1."""
        parts = [state_step / self.steps if self.steps else 0.0, seconds / (60 * self.minutes) if self.minutes else 0.0]
        return min(max(parts), 1.0)

    def is_done(self, state: TrainingState) -> bool:
        return self.share(state.step, state.seconds) >= 1.0

    def is_due(self, state: TrainingState) -> bool:
        return state.step % self.evaluate_every == 0 or self.is_done(state)

    def write(self, snapshot: Callable[[], TrainingState]) -> None:
        """Write a checkpoint if one is due."""
        if self.files is not None:
            state = snapshot()
            if state.step % (self.files.settings.every or self.evaluate_every) == 0:
                self.files.write(state)


class Files:
    """The checkpoint on disk, and the one before it."""

    def __init__(self, settings: Checkpoint, *, resume: bool) -> None:
        self.settings, self.path = settings, Path(settings.path)
        check_writable(self.path, overwrite=True)
        self.found = self.path.exists() or settings.previous.exists()
        if self.found and not resume:
            raise FileExists(
                f"{self.path} exists and was left as it is: fit(..., resume=True) goes on from it; to start "
                "anew, choose another name or delete it"
            )
        self._keep = False

    def write(self, state: TrainingState) -> None:
        """A full disk is a warning, and leaves what was there."""
        try:
            save_state(state, self.path, overwrite=True, previous=self.settings.previous if self._keep else None)
            self._keep = True
        except NotWritten as error:
            warnings.warn(f"{error}. The training goes on", CheckpointWarning, stacklevel=2)


def load_newest(path: Path) -> TrainingState:
    """A file, or if it is damaged or missing the one before it, with a warning."""
    try:
        return load_state(path)
    except (Damaged, FileMissing) as error:
        before = Checkpoint(path).previous
        if not before.exists():
            raise
        warnings.warn(f"{error}. The one before it is used: {before}", CheckpointWarning, stacklevel=3)
        return load_state(before)


def progress_bar(wanted: bool) -> Any:
    return ProgressBar(100, counter="{done:.0f} %") if wanted else Silent()


def show(bar: Any, record: TrainingRecord, plan: Plan) -> None:
    if isinstance(bar, ProgressBar):
        text = f"step {record.step}  loss {record.loss:.4g}  accuracy {100 * record.accuracy:.1f} %"
        if record.validation is not None and record.interval is not None and not math.isnan(record.interval):
            text += f"  validation {100 * record.validation:.1f} +- {100 * record.interval:.1f} %"
        bar.show(100 * plan.share(record.step, record.seconds), text)


@contextmanager
def interrupts_after_the_step() -> Iterator[Callable[[], bool]]:
    """Ctrl-C is kept until the step is complete: gives a function that says whether it was pressed.

    Pressed twice it interrupts at once; in a thread other than the main one it is not ours to keep.
    """
    pressed: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.getsignal(signal.SIGINT)

    def keep(number: int, frame: Any) -> None:
        pressed.append(number)
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, keep)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)
