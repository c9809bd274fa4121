"""The version of the code of a run: release, hash of the files that runs execute, and commit."""

from __future__ import annotations

import hashlib
import subprocess
from functools import lru_cache
from pathlib import Path

from .._version import __version__

ROOT = Path(__file__).parents[1]
EXCLUDED = {"cli", "datasets", "diagnostics", "distributed", "examples", "experiments", "testing"}
EXCLUDED |= {"__main__.py", "_html.py", "demo.py"}
"""Top-level names that runs do not execute, or that are checked otherwise (data, by their hash). All others count."""
INCLUDED = tuple(f"experiments/{name}.py" for name in ("run", "few_shot_run", "methods", "data"))
"""Files of excluded packages that runs execute."""


@lru_cache(maxsize=1)
def code_version() -> str:
    """ "0.2.0/" and 12 digits of SHA-256.

    Examples
    --------
    >>> version, slash, digits = code_version().partition("/")
    >>> len(digits)
    12
    """
    digest = hashlib.sha256()
    for name in covered_files():
        digest.update(name.encode() + b"\0" + (ROOT / name).read_bytes() + b"\0")
    return f"{__version__}/{digest.hexdigest()[:12]}"


def covered_files() -> list[str]:
    """The files that count, relative to the package."""
    names = sorted(file.relative_to(ROOT).as_posix() for file in ROOT.rglob("*.py"))
    return [name for name in names if name in INCLUDED or name.partition("/")[0] not in EXCLUDED]


@lru_cache(maxsize=1)
def commit() -> str:
    """The last commit of the package, with "+" after it if files have changed since; empty for an installed package."""
    found = _git("log", "-1", "--format=%h", "--abbrev=12", "--", ".")
    return found + "+" if found and _git("status", "--porcelain", "--", ".") else found


def _git(*arguments: str) -> str:
    try:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
