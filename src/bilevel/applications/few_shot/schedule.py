"""The course of a training: how long it goes on, when it is looked at, its checkpoints, and what Ctrl-C does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...checkpoints import CheckpointFiles, load_newest
from ...progress import ProgressBar, Silent
from .evaluation import EpisodeSource
from .training_state import TrainingState, load_state, save_state


@dataclass
class Plan:
    """How long to train, and what to do on the way."""

    steps: int | None
    minutes: float | None
    evaluate_every: int
    validate: EpisodeSource | None
    validate_count: int
    files: CheckpointFiles | None
    write_every: int | None
    clock: Callable[[], float]

    def share(self, state_step: int, seconds: float) -> float:
        """How much of the plan is done, from 0 to 1."""
        parts = [state_step / self.steps if self.steps else 0.0, seconds / (60 * self.minutes) if self.minutes else 0.0]
        return min(max(parts), 1.0)

    def is_done(self, state: TrainingState) -> bool:
        return self.share(state.step, state.seconds) >= 1.0

    def is_due(self, state: TrainingState) -> bool:
        return state.step % self.evaluate_every == 0 or self.is_done(state)

    def is_written(self, state: TrainingState) -> bool:
        """Whether a checkpoint is due."""
        return self.write_every is not None and state.step % self.write_every == 0


def write(files: CheckpointFiles, state: TrainingState) -> None:
    """Make the state the newest checkpoint; a full disk is a warning, and leaves what was there."""
    files.write_by(partial(save_state, state), state.step)


def load_training(path: str | Path) -> TrainingState:
    """A file, or if it is damaged or missing the one before it, with a warning."""
    return load_newest(Path(path), load_state, lambda state: f"step {state.step}")


def progress_bar(wanted: bool) -> Any:
    return ProgressBar(100, counter="{done:.0f} %") if wanted else Silent()


def show(bar: Any, state: TrainingState, plan: Plan) -> None:
    """How far the training is, and how it does: on its own tasks since the last record, and at that record."""
    if isinstance(bar, ProgressBar):
        loss, accuracy, count = state.recent
        text = f"step {state.step}  loss {loss / count:.4g}  accuracy {100 * accuracy / count:.1f} %"
        last = state.history[-1] if state.history else None
        if last is not None and last.validation is not None and last.interval is not None:
            text += f"  validation {100 * last.validation:.1f} +- {100 * last.interval:.1f} %"
        bar.show(100 * plan.share(state.step, state.seconds), text)


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
