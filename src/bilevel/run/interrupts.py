"""Ctrl-C between two steps."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from typing import Any, Self

from .progress import write


class Interrupts:
    """Delay Ctrl-C to the end of the step (`pressed`); a second one, `patience` seconds later or more, acts at once.

    Outside the main thread this has no effect, because Python delivers signals to the main thread.
    """

    def __init__(self, patience: float = 0.0) -> None:
        self.pressed, self._patience = False, patience
        self._when = -math.inf
        self._before: Any = None

    def __enter__(self) -> Self:
        self._here = threading.current_thread() is threading.main_thread()
        if self._here:
            self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *_: Any) -> None:
        if self._here:
            signal.signal(signal.SIGINT, signal.SIG_DFL if self._before is None else self._before)

    def _press(self, number: int, frame: Any) -> None:
        if self.pressed and time.monotonic() >= self._when + self._patience:
            if callable(self._before):
                self._before(number, frame)
            raise KeyboardInterrupt
        if not self.pressed:
            self.pressed, self._when = True, time.monotonic()
            with contextlib.suppress(RuntimeError, OSError):  # amid another text
                write("bilevel: stopping after this step; press Ctrl-C again to stop at once\n")
