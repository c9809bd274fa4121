"""Memory between steps: what is given back to the system must be asked for, and cleared, in the next step."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""The numbers of two settings in glibc's malloc.h."""


def keep_freed_memory() -> bool:
    """Let this process keep what it frees for later; returns whether the C library could be asked (glibc).

    A step of training allocates and frees hundreds of megabytes. In blocks of this size, glibc returns each to the
    system at once, and the next step finds cleared pages, tens of thousands of page faults. The price is that the
    process stays as large as it has ever been. Results do not change.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, -1))
