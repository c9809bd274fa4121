"""What a worker of a local cluster does first: Ctrl-C is for the driver, which then ends the workers in order."""

from __future__ import annotations

import signal
from typing import Any


def dask_setup(worker: Any) -> None:
    """Called by Dask when the worker starts, or is started again."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
