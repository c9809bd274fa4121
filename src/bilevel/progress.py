"""Progress of long runs, on standard error: a live bar in a terminal (with rich), about ten plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from typing import Any, Self

from .solution import Record

LINES = 10
"""How many lines a run prints when standard error is a file or a pipe."""


class Silent:
    """No progress is shown."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        return None

    def __call__(self, record: Record, state: Any) -> None:
        return None


class ProgressBar(Silent):
    """Steps done, time left, the upper value and the lower residual.

    Parameters
    ----------
    steps
        How many steps the run will take.
    start
        The step number it starts from (more than 0 when it resumes).
    counter
        How `done` of `steps` is written.
    fresh
        Nothing is done yet. If not, the first `show` tells what was done before, which took no time of this run.
    """

    def __init__(self, steps: int, start: int = 0, counter: str = "step {done}/{steps}", *, fresh: bool = True) -> None:
        self._steps, self._start, self._counter, self._fresh = steps, start, counter, fresh
        self._clock = TimeLeft(steps)
        self._display: _Plain | _Rich = _Plain(steps, counter)

    def __enter__(self) -> Self:
        self._display = _display(self._steps, self._clock, self._counter)
        if self._fresh:
            self._clock.update(0)
        self._display.open()
        return self

    def __exit__(self, *_: Any) -> None:
        self._display.close()

    def __call__(self, record: Record, state: Any) -> None:
        text = f"upper {record.upper:.5g}  lower residual {record.lower_residual:.1e}"
        self.show(record.step - self._start, text)

    def show(self, done: float, text: str) -> None:
        """`done` steps are done, and `text` says how it goes."""
        self._clock.update(done)
        self._display.show(done, text, self._clock)


class TimeLeft:
    """How long the rest takes, at the pace of the latter half of what is done: the start, with its warm-up, fades.

    Examples
    --------
    >>> clock = TimeLeft(100)
    >>> clock.update(0, now=0.0), clock.update(20, now=8.0), clock.update(40, now=10.0)
    (None, None, None)
    >>> clock.seconds(now=10.0)  # 20 steps took 2 seconds, 60 are left
    6.0
    >>> clock.seconds(now=11.0)
    5.0
    >>> resumed = TimeLeft(100)  # what was done before does not count
    >>> resumed.update(50, now=0.0), resumed.update(60, now=10.0)
    (None, None)
    >>> resumed.seconds(now=10.0)
    40.0
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._seen: list[tuple[float, float]] = []

    def update(self, done: float, now: float | None = None) -> None:
        """`done` steps are done."""
        self._seen.append((done, time.monotonic() if now is None else now))

    def seconds(self, now: float | None = None) -> float:
        """An estimate in seconds; NaN before a hundredth is done."""
        if len(self._seen) < 2 or self._seen[-1][0] < 0.01 * self._steps:
            return math.nan
        (first, _), (done, then) = self._seen[0], self._seen[-1]
        half = 0.5 * (first + done)
        earlier, began = max((pair for pair in self._seen[:-1] if pair[0] <= half), default=self._seen[0])
        left = (self._steps - done) * (then - began) / (done - earlier or 1)
        return max(left - ((time.monotonic() if now is None else now) - then), 0.0)

    def __str__(self) -> str:
        seconds = self.seconds()
        return "estimating the time" if math.isnan(seconds) else f"{readable(seconds)} left"


def readable(seconds: float) -> str:
    """A duration for people.

    Examples
    --------
    >>> readable(7.2), readable(75), readable(7300)
    ('8 s', '1 min 15 s', '2 h 1 min')
    """
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class _Plain:
    """Without rich, or without a terminal: a line each time another tenth of the run is done."""

    def __init__(self, steps: int, counter: str) -> None:
        self._steps, self._counter = steps, counter
        self._lines = 0

    def open(self) -> None:
        return None

    def show(self, done: float, text: str, clock: TimeLeft) -> None:
        tenths = int(LINES * done // self._steps)
        if tenths > self._lines:
            self._lines = tenths
            ending = "" if done >= self._steps else f", {clock}"
            _write(f"{self._counter.format(done=done, steps=self._steps)}{ending}: {text}\n")

    def close(self) -> None:
        return None


class _Rich:
    """A live bar; the time left counts down between evaluations."""

    def __init__(self, console: Any, steps: int, clock: TimeLeft, counter: str) -> None:
        from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
        from rich.text import Text

        class Count(ProgressColumn):
            def render(self, task: Task) -> Text:
                return Text(counter.format(done=task.completed, steps=steps).removeprefix("step "))

        class Left(ProgressColumn):
            def render(self, task: Task) -> Text:
                return Text("done" if task.finished else str(clock), style="cyan")

        self._bar = Progress(
            SpinnerColumn(finished_text="✓" if console.encoding.startswith("utf") else "+"), BarColumn(),
            Count(), Left(), TextColumn("[dim]{task.description}"),
            console=console,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=steps)

    def open(self) -> None:
        self._bar.start()

    def show(self, done: float, text: str, clock: TimeLeft) -> None:
        self._bar.update(self._task, completed=done, description=text)

    def close(self) -> None:
        self._bar.stop()


def _display(steps: int, clock: TimeLeft, counter: str) -> _Plain | _Rich:
    try:
        from rich.console import Console
    except ImportError:
        return _Plain(steps, counter)
    console = Console(stderr=True)
    live = console.is_terminal or console.is_jupyter
    return _Rich(console, steps, clock, counter) if live else _Plain(steps, counter)


def _write(text: str) -> None:
    if sys.stderr is not None:  # None in programs without a console
        sys.stderr.write(text)
        sys.stderr.flush()
