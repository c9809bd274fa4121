"""Progress of long runs on standard error: a live bar in a terminal (with rich), about ten plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, Self

LINES = 10
"""The number of lines that a run prints if standard error is a file or a pipe."""


PATIENCE = 5.0
"""Seconds after which a run shows a bar in a terminal if `progress` is None."""


class Progress:
    """Show the fraction of the work that is done, the time left and a text; with wanted=False show nothing.

    With wanted=None a bar appears in a terminal once the run takes longer than five seconds.

    Examples
    --------
    >>> with Progress(wanted=False) as bar:
    ...     bar.show(0.5, "step 5/10", "upper 0.3")
    """

    def __init__(self, wanted: bool | None = True) -> None:
        self._wanted, self._time_left = wanted is not False, TimeLeft()
        self._lines_wanted, self._late = bool(wanted), math.inf
        self._last, self._lines, self._bar = -math.inf, 0, None

    def __enter__(self) -> Self:
        if self._lines_wanted:
            self._start_bar()
        else:
            self._late = time.monotonic() + PATIENCE
        return self

    def _start_bar(self) -> None:
        self._late, self._bar = math.inf, _live_bar(self._time_left)
        if self._bar is not None:
            self._bar.start()

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, share: float) -> None:
        """Set the fraction that was done before; its time does not count for the time left."""
        self._time_left.update(share)

    def is_due(self) -> bool:
        """Whether the display is older than half a second."""
        return self._wanted and time.monotonic() > self._last + 0.5

    def show(self, share: float, counter: str, text: str) -> None:
        """Show the fraction that is done, a counter such as "step 5/10", and a text."""
        if not self._wanted:
            return
        self._last = time.monotonic()
        self._time_left.update(share)
        if self._last > self._late:
            self._start_bar()
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=share, counter=counter, description=text)
        elif self._lines_wanted and int(LINES * share) > self._lines:
            self._lines = int(LINES * share)
            write(f"{counter}{'' if share >= 1.0 else f', {self._time_left}'}: {text}\n")


def _live_bar(time_left: TimeLeft) -> Any:
    """A bar of rich, whose time left counts down between updates; None without rich or without a terminal."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
        from rich.text import Text
    except ImportError:
        return None
    console = Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter):
        return None

    class Left(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text("done" if task.finished else str(time_left), style="cyan")

    spinner = SpinnerColumn(finished_text="✓" if console.encoding.startswith("utf") else "+")
    texts = TextColumn("{task.fields[counter]}"), Left(), TextColumn("[dim]{task.description}")
    bar = Progress(spinner, BarColumn(), *texts, console=console)
    bar.add_task("", total=1.0, counter="")
    return bar


def write(text: str) -> None:
    """Write to standard error, if the program has one."""
    if sys.stderr is not None:
        sys.stderr.write(text)
        sys.stderr.flush()


class WorkShare:
    """The fraction of a run that is done, from the work of its stages.

    Parameters
    ----------
    work
        The expected work of each stage, by name, in any unit.
    finished
        The stages that ended in an earlier run.

    Examples
    --------
    >>> run = WorkShare({"learning": 30.0, "training": 10.0})
    >>> run.share("learning", 1 / 3)
    0.25
    >>> run.end("learning", 1 / 3)  # earlier than expected
    >>> run.share("training", 0.0)
    0.5
    """

    def __init__(self, work: Mapping[str, float], finished: Iterable[str] = ()) -> None:
        self.work: dict[str, float] = dict(work)
        self._ended = dict.fromkeys(finished, 1.0)

    def end(self, stage: str, share: float = 1.0) -> None:
        """End a stage after this fraction of its expected work."""
        self._ended[stage] = share

    def share(self, stage: str, share: float) -> float:
        """The fraction of the run that is done, given the fraction of the current stage."""
        work = {stage: 1.0, **self.work}
        done = sum(work.get(name, 0.0) * part for name, part in {**self._ended, stage: share}.items())
        left = sum(amount for name, amount in work.items() if name not in {**self._ended, stage: share})
        return done / max(done + left + work[stage] * (1.0 - share), 1e-300)


class TimeLeft:
    """Estimate the time left from the pace of the second half of the work so far, which excludes the warm-up.

    Examples
    --------
    >>> clock = TimeLeft()
    >>> clock.update(0.0, now=0.0), clock.update(0.25, now=8.0), clock.update(0.5, now=10.0)
    (None, None, None)
    >>> clock.seconds(now=10.0)  # a quarter took 2 seconds, a half is left
    4.0
    >>> clock.seconds(now=11.0)
    3.0
    >>> resumed = TimeLeft()  # what was done before does not count
    >>> resumed.update(0.5, now=0.0), resumed.update(0.625, now=10.0)
    (None, None)
    >>> resumed.seconds(now=10.0)
    30.0
    """

    def __init__(self) -> None:
        self._seen: list[tuple[float, float]] = []

    def update(self, share: float, now: float | None = None) -> None:
        """Set the fraction that is done."""
        self._seen.append((share, time.monotonic() if now is None else now))

    def seconds(self, now: float | None = None) -> float:
        """The estimate in seconds; NaN before 1 % is done."""
        if len(self._seen) < 2 or self._seen[-1][0] < 0.01:
            return math.nan
        (first, _), (done, then) = self._seen[0], self._seen[-1]
        half = 0.5 * (first + done)
        earlier, began = max((pair for pair in self._seen[:-1] if pair[0] <= half), default=self._seen[0])
        left = (1.0 - done) * (then - began) / (done - earlier or 1)
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
