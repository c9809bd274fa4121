"""Which code makes the numbers of a run: the version of bilevel, and a hash of the statements that runs are made by."""

from __future__ import annotations

import ast
import hashlib
from functools import lru_cache
from pathlib import Path

from .._version import __version__

ROOT = Path(__file__).parents[1]
NOT_OF_RUNS = ("cli", "datasets", "diagnostics", "distributed", "experiments", "pages", "testing")
"""Parts of the package that runs are not made by, or that are checked otherwise: data by their hash."""
OF_RUNS = tuple(
    f"experiments/{name}.py" for name in ("run", "few_shot_run", "methods", "cleaning_data", "solved_level")
)
"""Files of those parts that runs are made by."""


@lru_cache(maxsize=1)
def code_version() -> str:
    """ "0.1.0/" and 12 digits of SHA-256; comments, docstrings and layout do not count.

    Examples
    --------
    >>> version, slash, digits = code_version().partition("/")
    >>> len(digits)
    12
    """
    digest = hashlib.sha256()
    for name in _files():
        digest.update(name.encode() + b"\0" + statements(ROOT / name).encode() + b"\0")
    return f"{__version__}/{digest.hexdigest()[:12]}"


def statements(file: Path) -> str:
    """What a file of Python does, without what it says.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "f.py"
    ...     _ = file.write_text('def f(x):\\n    "Twice."\\n    return 2 * x  # doubled')
    ...     before = statements(file)
    ...     _ = file.write_text('def f(x):\\n    "Two times."\\n    return (2 * x)')
    ...     statements(file) == before
    True
    """
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            said = [each for each in body if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)]
            node.body = [each for each in body if each not in said]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _files() -> list[str]:
    names = sorted(file.relative_to(ROOT).as_posix() for file in ROOT.rglob("*.py"))
    return [name for name in names if name in OF_RUNS or name.partition("/")[0] not in NOT_OF_RUNS]
