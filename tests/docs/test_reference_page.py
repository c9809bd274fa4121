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
    if module.__name__ != "bilevel.errors":
        return list(module.__all__)
    classes = {name: thing for name, thing in vars(module).items() if inspect.isclass(thing)}
    return [name for name, thing in classes.items() if thing.__module__ == module.__name__]


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
    objects = [getattr(importlib.import_module(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in listed]
    assert len({id(thing) for thing in objects}) == len(objects)
    assert {id(thing) for thing in objects} == {id(thing) for thing in public_objects().values()}
