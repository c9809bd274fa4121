"""Every public name is on the reference page and teaches: summary, formula, shapes, an example that runs, a reference.

The examples themselves are run by pytest (`--doctest-modules` over src).
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from pathlib import Path
from typing import Any, Protocol

import pytest
from numpydoc.docscrape import get_doc_object
from numpydoc.validate import validate

ROOT = Path(__file__).resolve().parents[2]

HOMES = (
    "bilevel",
    "bilevel.sets",
    "bilevel.solvers",
    "bilevel.hypergradients",
    "bilevel.diagnostics",
    "bilevel.testing",
    "bilevel.applications.hyper_cleaning",
    "bilevel.applications.hyper_cleaning.losses",
    "bilevel.applications.few_shot",
    "bilevel.distributed",
    "bilevel.datasets",
    "bilevel.experiments",
    "bilevel.experiments.report",
)

CHECKS_THAT_ARE_OFF = {
    "ES01": "an extended summary only where one line is not enough",
    "SA01": "'See also' only where there is something to see: the pages of the manual link more than it could",
    "SS02": "a docstring starts with its formula, and mathematics does not start with a capital",
    "SS03": "the summary of a problem may be a question",
    "PR03": "parameters that belong together are explained together, whatever their order",
    "PR04": "types are in the signature, and shown from there",
    "PR08": "the description of a parameter may start with its symbol in the paper",
}

# Names that hold, write or report: nothing is computed by a formula, and nothing is taken from a publication.
WITHOUT_MATHEMATICS = """
    Costs Coordinates Linearization Seeds Cause Ground HypergradientCheck Comparison Budget compare Solution Status
    Record Checkpoint Observer CSVFile JSONLines TensorBoard iterate meta_train sets.Membership solvers.State
    solvers.Solver testing.SetTestCase testing.KnownProblem applications.hyper_cleaning.Design
    applications.hyper_cleaning.SavedCleaner applications.hyper_cleaning.save_cleaner
    applications.hyper_cleaning.load_cleaner applications.few_shot.Training applications.few_shot.TrainingRecord
    applications.few_shot.Tasks applications.few_shot.generated_images datasets.load datasets.fetch datasets.verify
    datasets.data_folder datasets.Dataset datasets.Rows datasets.ImageClasses datasets.Cifar100 datasets.Entry
    datasets.RemoteFile datasets.FileCheck datasets.omniglot_split experiments.RunRecord experiments.ResultsStore
    experiments.Configuration experiments.load_configuration experiments.report.write_report
    experiments.report.render_markdown distributed.Ranks distributed.connect distributed.ShardedCheckpoint
"""
# Networks, tasks and splits of data come from a publication, and have no formula.
WITHOUT_FORMULA = {
    "bilevel.applications.few_shot.ResNet12",
    "bilevel.applications.few_shot.Episodes",
    "bilevel.datasets.fc100_split",
}

FORMULA = re.compile(r"[<>]?=|<-|->|\^|\||sqrt|argmin|\bmean of\b|\bE\[|\{\w+ :|\bx\b \d")
REFERENCE = re.compile(r"\b(?:19|20)\d\d\b|\bpaper\b|\berrat(?:um|a)\b|\bOurs\b")
SHAPE = re.compile(
    r"\(\.\.\.|\((?:\w+(?: \* \w+)?,? ?)+(?:\.\.\.)?\)|\bshapes?\b|scalar|number|\bas in\b|the point", re.IGNORECASE
)
ARRAY = re.compile(r"Tensor|ndarray|Vector|Value")


def public_objects() -> dict[str, Any]:
    """Dotted name -> class, function or value; each object once, under the first home that lists it."""
    found: dict[str, Any] = {}
    known: set[int] = set()
    for home in HOMES:
        module = importlib.import_module(home)
        for name in module.__all__:
            thing = getattr(module, name)
            if not inspect.ismodule(thing) and name != "__version__" and id(thing) not in known:
                known.add(id(thing))
                found[f"{home}.{name}"] = thing
    return found


def is_alarm(thing: Any) -> bool:
    """Errors and warnings."""
    return inspect.isclass(thing) and issubclass(thing, Exception)


def is_not_called(thing: Any) -> bool:
    """Errors, enumerations and protocols: users give them no arguments."""
    return is_alarm(thing) or isinstance(thing, enum.EnumType | type(Protocol))


PUBLIC = public_objects()
CALLABLE = {name: thing for name, thing in PUBLIC.items() if callable(thing)}
PLAIN = {f"bilevel.{name}" for name in WITHOUT_MATHEMATICS.split()}
MATHEMATICS = [n for n, thing in CALLABLE.items() if not is_alarm(thing) and n not in PLAIN]


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
    assert {id(thing) for thing in objects} == {id(thing) for thing in PUBLIC.values()}


def test_the_lists_above_name_public_names():
    assert PUBLIC.keys() >= PLAIN | WITHOUT_FORMULA


@pytest.mark.parametrize("name", CALLABLE)
def test_numpydoc_is_content(name):
    """With the checks that are off named above, each with its reason."""
    errors = [f"{code}: {text}" for code, text in validate(name)["errors"] if code not in CHECKS_THAT_ARE_OFF]
    if is_not_called(PUBLIC[name]):
        errors = [error for error in errors if not error.startswith("PR01")]
    assert not errors


@pytest.mark.parametrize("name", CALLABLE)
def test_an_example_that_runs(name):
    assert ">>> " in (inspect.getdoc(CALLABLE[name]) or "")


@pytest.mark.parametrize("name", [n for n in MATHEMATICS if n not in WITHOUT_FORMULA])
def test_a_formula(name):
    doc = inspect.getdoc(CALLABLE[name]) or ""
    assert FORMULA.search(doc.split("\nExamples\n")[0])


@pytest.mark.parametrize("name", MATHEMATICS)
def test_a_reference(name):
    """The equation, section or erratum of the paper, or where a method comes from."""
    assert REFERENCE.search(inspect.getdoc(CALLABLE[name]) or "")


@pytest.mark.parametrize("name", [n for n, thing in CALLABLE.items() if not is_alarm(thing)])
def test_shapes(name):
    """Whoever takes arrays says their shape."""
    thing = CALLABLE[name]
    annotated = inspect.signature(thing).parameters.values()
    arrays = {p.name for p in annotated if ARRAY.search(str(p.annotation)) and "Callable" not in str(p.annotation)}
    for parameter in get_doc_object(thing)["Parameters"]:
        if arrays & set(parameter.name.split(", ")):
            assert SHAPE.search(" ".join(parameter.desc)), f"{name}: {parameter.name}"
