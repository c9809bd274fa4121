"""The reference page lists every public name once."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

HOMES = (
    "bilevel",
    "bilevel.sets",
    "bilevel.solvers",
    "bilevel.hypergradients",
    "bilevel.run",
    "bilevel.diagnostics",
    "bilevel.testing",
    "bilevel.cleaning",
    "bilevel.cleaning.losses",
    "bilevel.few_shot",
    "bilevel.distributed",
    "bilevel.datasets",
    "bilevel.experiments",
    "bilevel.experiments.report",
    "bilevel.errors",
)


def names_of(module: Any) -> list[str]:
    if hasattr(module, "__all__"):
        return list(module.__all__)
    of_errors = module.__name__ == "bilevel.errors"  # its functions are for the library itself
    own = module.__name__ if of_errors else f"{module.__name__}."
    public = {name: thing for name, thing in vars(module).items() if name[0] != "_"}
    classes = [name for name, thing in public.items() if inspect.isclass(thing) and thing.__module__.startswith(own)]
    return classes if of_errors else [*classes, *(name for name in public if inspect.isfunction(public[name]))]


def public_objects() -> dict[str, Any]:
    """Dotted name -> class, function or value; each object once, under the first home that lists it."""
    found: dict[str, Any] = {}
    known: set[int] = set()
    for home in HOMES:
        module = importlib.import_module(home)
        for name in names_of(module):
            thing = getattr(module, name)
            if not inspect.ismodule(thing) and name != "__version__" and id(thing) not in known:
                known.add(id(thing))
                found[f"{home}.{name}"] = thing
    return found


def on_the_reference_page() -> list[str]:
    """Dotted names in its autosummary tables."""
    names, module = [], ""
    for line in (ROOT / "docs" / "reference.md").read_text().splitlines():
        if line.startswith(".. currentmodule:: "):
            module = line.split(":: ")[1]
        elif re.fullmatch(r"   \w+", line):
            names.append(f"{module}.{line.strip()}")
    return names


def test_the_reference_page_has_every_public_name_once():
    listed = on_the_reference_page()
    on_page = {
        id(getattr(importlib.import_module(home), name)) for home, _, name in (n.rpartition(".") for n in listed)
    }
    public = {id(thing): name for name, thing in public_objects().items()}
    assert [name for thing, name in public.items() if thing not in on_page] == []
    assert len(on_page) == len(listed) == len(public)
