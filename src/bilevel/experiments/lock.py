"""One driver at a time in a folder of results: a lock that the system releases however the driver ends."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import BilevelError
from ..files import NotWritten

NAME = "driver.lock"


class StoreLocked(BilevelError, OSError):
    """Another program is writing to the results; nothing was changed.

    Examples
    --------
    >>> issubclass(StoreLocked, OSError)
    True
    """


@contextmanager
def only_driver(folder: Path) -> Iterator[None]:
    """Hold the folder as its one driver; `StoreLocked` while another program does.

    The lock is that of the open file (flock): kill -9 releases it as well. Where the system has no such locks, two
    drivers would only do the same work twice: runs are stored once in any case.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, only_driver(Path(folder)):
    ...     with only_driver(Path(folder)):
    ...         pass
    Traceback (most recent call last):
    bilevel.experiments.lock.StoreLocked: another bilevel reproduce (process ...) is at work in ...: wait for it ...
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise NotWritten(
            f"{folder} cannot be written ({error.strerror or error}): make room or choose another folder, then run the "
            "command again; what was stored is still there"
        ) from error
    try:
        _lock(handle, folder)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            return  # a file system without locks
        raise StoreLocked(
            f"another bilevel reproduce (process {_holder(handle)}) is at work in {folder}: wait for it or stop it by "
            "Ctrl-C, or choose another folder by --results; `bilevel status` shows how far it is"
        ) from None
    with suppress(OSError):  # a full disk: the number of the process is for messages only
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)


def _holder(handle: int) -> str:
    with suppress(OSError):
        return os.pread(handle, 20, 0).decode(errors="replace") or "unknown"
    return "unknown"
