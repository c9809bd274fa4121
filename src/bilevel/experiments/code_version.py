"""Which code makes the numbers of a run: the version of bilevel, and a hash of the statements that runs execute."""

from __future__ import annotations

import ast
import hashlib
from functools import lru_cache
from pathlib import Path

from .._version import __version__

ROOT = Path(__file__).parents[1]
EXCLUDED = {"cli", "datasets", "diagnostics", "distributed", "experiments", "testing"}
EXCLUDED |= {"__main__.py", "_html.py", "demo.py"}
"""Top-level names that runs do not execute, or that are checked otherwise (data, by their hash). All others count."""
INCLUDED = tuple(f"experiments/{name}.py" for name in ("run", "few_shot_run", "methods", "data"))
"""Files of excluded packages that runs execute."""


@lru_cache(maxsize=1)
def code_version() -> str:
    """ "0.2.0/" and 12 digits of SHA-256; comments, docstrings and layout do not count.

    Examples
    --------
    >>> version, slash, digits = code_version().partition("/")
    >>> len(digits)
    12
    """
    digest = hashlib.sha256()
    for name in covered_files():
        digest.update(name.encode() + b"\0" + statements((ROOT / name).read_text(encoding="utf-8")).encode() + b"\0")
    return f"{__version__}/{digest.hexdigest()[:12]}"


def covered_files() -> list[str]:
    """The files whose statements count, relative to the package."""
    names = sorted(file.relative_to(ROOT).as_posix() for file in ROOT.rglob("*.py"))
    return [name for name in names if name in INCLUDED or name.partition("/")[0] not in EXCLUDED]


def statements(source: str) -> str:
    """The syntax tree of a Python source without its docstrings.

    Examples
    --------
    >>> one = 'def f(x):\\n    "Twice."\\n    return 2 * x  # doubled'
    >>> statements(one) == statements('def f(x):\\n    "Two times."\\n    return (2 * x)')
    True
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_text(each)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
