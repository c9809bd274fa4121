"""Packages whose names are loaded when first used."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import MissingExtraError


def lazy_names(
    package: str, file: str, *, extra: str = "", fallback: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, from the imports of its stub `__init__.pyi`.

    Each name is thus listed once, with its type: `from .module import name as name`.

    Parameters
    ----------
    package, file
        `__name__` and `__file__` of the package.
    extra
        The optional part of bilevel that a missing module belongs to.
    fallback
        A module of the package in which other names that begin with a capital letter are looked up.
    """
    stub = Path(file).with_suffix(".pyi").read_text(encoding="utf-8")
    homes = {name: module or name for module, name in re.findall(r"^from \.(\S*) import (\w+) as", stub, re.MULTILINE)}

    def load(name: str) -> Any:
        home = homes.get(name, fallback if name[:1].isupper() else "")
        try:
            module = importlib.import_module(f".{home}", package) if home else None
        except ModuleNotFoundError as error:
            if not extra:
                raise
            raise MissingExtraError(f"{name} ({error})", extra) from None
        value = module if home == name else getattr(module, name, None)
        if value is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        vars(sys.modules[package])[name] = value
        return value

    return load, lambda: sorted(homes), list(homes)
