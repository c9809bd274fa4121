"""What workers do in tests of pools: importable by a new process, and light."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def die_or_fail(specs: Any, folder: Path) -> list[Any]:
    """The method "dmlcbo" ends its worker, all others raise."""
    if specs[0].method != "dmlcbo":
        raise LookupError("a mistake")
    with (folder / "deaths").open("a") as file:
        file.write("x")
    os._exit(7)


def die_once(specs: Any, folder: Path) -> list[Any]:
    """The first worker of each run dies; the second returns who it is."""
    mark = folder / specs[0].identity
    if not mark.exists():
        mark.touch()
        os._exit(7)
    return [os.getpid()]
