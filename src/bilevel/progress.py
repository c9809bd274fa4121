"""A progress bar for long runs: rich when it is installed, plain lines otherwise."""

from __future__ import annotations

import sys
from typing import Any, Self

from .solution import Record


class Silent:
    """No progress is shown."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        return None

    def __call__(self, record: Record, state: Any) -> None:
        return None


class ProgressBar(Silent):
    """Steps done, time left, the upper value and the lower residual, on standard error."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._first: int | None = None
        self._bar: Any = None

    def __enter__(self) -> Self:
        try:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        except ImportError:
            return self
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=Console(stderr=True),
        )  # fmt: skip
        self._bar.start()
        self._task = self._bar.add_task("starting", total=self._steps)
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, record: Record, state: Any) -> None:
        if self._first is None:
            self._first = record.step
        text = f"upper {record.upper:.5g}  lower residual {record.lower_residual:.1e}"
        if self._bar is None:
            print(f"step {record.step}: {text}", file=sys.stderr)
        else:
            done = record.step % self._steps or self._steps
            self._bar.update(self._task, completed=done, description=text)
