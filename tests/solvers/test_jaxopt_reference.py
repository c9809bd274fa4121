"""Hypergradients of hyper-cleaning against jaxopt 0.8.5 and against central differences (tests/references)."""

import json
from pathlib import Path

import pytest
import torch

import bilevel
from bilevel import sets
from bilevel.random import Seeds

FILE = Path(__file__).parent.parent / "references" / "jaxopt_hyper_cleaning.json"
DATA = json.loads(FILE.read_text())
SETS = {"l1 ball": sets.L1Ball(DATA["radius"]), "box": sets.Box(-DATA["bound"], DATA["bound"])}


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


ROWS, LABELS, TRUSTED, TRUSTED_LABELS = map(
    tensor, (DATA["rows"], DATA["labels"], DATA["trusted_rows"], DATA["trusted_labels"])
)
X, Y0 = tensor(DATA["x"]), torch.zeros(len(DATA["rows"][0]), dtype=torch.float64)


def cleaning(constraint):
    logistic = torch.nn.functional.softplus
    return bilevel.Problem(
        upper=lambda x, y: logistic(-TRUSTED_LABELS * (TRUSTED @ y)).mean(),
        lower=lambda x, y: (x.sigmoid() * logistic(-LABELS * (ROWS @ y))).mean() + DATA["ridge"] * y @ y,
        constraint=constraint,
        y0=Y0,
    )


def error(a, b):
    return float((a - b).norm() / b.norm())


each_set = pytest.mark.parametrize("name", SETS)


@each_set
def test_the_constraint_is_active(name):
    y = tensor(DATA["sets"][name]["y"])
    held = (y == 0) if name == "l1 ball" else (y.abs() > DATA["bound"] - 1e-9)
    assert 0 < int(held.sum()) < len(y)


@each_set
def test_the_reference_agrees_with_central_differences(name):
    """And shows what is avoided: ProjectedGradient at its defaults is off by more than 0.5 %."""
    part = DATA["sets"][name]
    h = tensor(part["hypergradient"])
    assert error(tensor(part["central_differences"]), h) < 1e-8
    assert error(tensor(part["projected_gradient_defaults"]), h) > 5e-3


SOLVERS = {
    "Implicit": bilevel.Implicit(tol=1e-10),
    "Approx": bilevel.Approx(tolerance=1e-10),
    "RMDPCD": bilevel.solvers.RMDPCD(steps=100),
    "RMDPCD full steps": bilevel.solvers.RMDPCD(steps=100, inner="full"),
    "RMDPCD implicit-forward": bilevel.solvers.RMDPCD(steps=100, mode="implicit-forward"),
}


@each_set
@pytest.mark.parametrize("solver", SOLVERS)
def test_hypergradient(name, solver):
    """To 1e-6 of jaxopt's, and of central differences, which share nothing with implicit differentiation."""
    constraint, part = SETS[name], DATA["sets"][name]
    state = SOLVERS[solver].init(cleaning(constraint), X, Y0, Seeds())
    assert error(state.y, tensor(part["y"])) < 1e-7
    assert error(state.gradient, tensor(part["hypergradient"])) < 1e-6
    assert error(state.gradient, tensor(part["central_differences"])) < 1e-6
    if isinstance(SOLVERS[solver], bilevel.solvers.RMDPCD):
        coordinates = name == "box" and "full" not in solver
        assert state.ran == ("proximal coordinate descent" if coordinates else "projected gradient")
