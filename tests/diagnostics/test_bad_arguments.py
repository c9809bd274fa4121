"""What is passed to the diagnostics, the theory and the observers by mistake: an error of ours that names it."""

import math
from pathlib import Path

import pytest
import torch

import bilevel
from bilevel import DMLCBO, LinearSolve, Problem, sets
from bilevel.diagnostics import (
    Constants,
    Theory,
    dmlcbo_from_theory,
    estimate_constants,
    goldstein_measure,
    smoothing_lipschitz,
)
from bilevel.run import CSVFile

X = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)
UNIT = {"mu": 1, "smoothness": 1, "cross": 1, "upper_slope": 1, "upper_smoothness": 0, "dimension": 1}
THEORY = Theory(constants=Constants(**UNIT), delta=1.0)


def problem(**options):
    return Problem(
        upper=lambda x, y: (y - 1).square().sum(),
        lower=lambda x, y: (y - x).square().sum(),
        constraint=sets.Box(-1.0, 1.0),
        y0=torch.zeros(3, dtype=torch.float64),
        **options,
    )


def steep():
    return Problem(lambda x, y: (x.exp() * y).sum(), lambda x, y: (y - x).square().sum(), y0=X)


DIAGNOSTICS = {
    "check_hypergradient": bilevel.check_hypergradient,
    "certificate": lambda p, x, *y, **options: bilevel.certificate(p, x, 0.1, *y, **options),
    "goldstein_measure": lambda p, x, *y, **options: goldstein_measure(p, x, 0.1, *y, **options),
    "estimate_constants": estimate_constants,
}


@pytest.mark.parametrize("name", [*DIAGNOSTICS, "solve_lower", "hypergradient", "argmin", "upper_value"])
def test_no_problem(name):
    with pytest.raises(bilevel.InvalidTypeError, match="problem must be a bilevel.Problem, got NoneType"):
        (DIAGNOSTICS.get(name) or getattr(bilevel, name))(None, X)


@pytest.mark.parametrize("name", DIAGNOSTICS)
def test_a_y_of_the_wrong_size(name):
    with pytest.raises(bilevel.InvalidInputError, match=r"lower\(x, y\) failed|y0 of the problem|does not fit"):
        DIAGNOSTICS[name](problem(), X, torch.zeros(5).double())


@pytest.mark.parametrize("name", DIAGNOSTICS)
@pytest.mark.parametrize("seed", ["a", -1, 0.5, None])
def test_seeds_that_are_none(name, seed):
    with pytest.raises(bilevel.BilevelError, match="seed must be"):
        DIAGNOSTICS[name](problem(), X, seed=seed)


@pytest.mark.parametrize("name", ["check_hypergradient", "certificate", "goldstein_measure"])
def test_function_constraints(name):
    with pytest.raises(bilevel.IncompatibleError, match=f"{name} cannot use function constraints"):
        DIAGNOSTICS[name](problem(inequality=lambda x, y: y - 1), X)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bilevel.check_hypergradient(problem(), X, tol="a"), r"tol must lie in \(0, 1\), got 'a'"),
        (lambda: bilevel.check_hypergradient(problem(), X, tol=math.nan), r"tol must lie in \(0, 1\), got nan"),
        (lambda: bilevel.check_hypergradient(problem(), X, method=3), "method must be an object such as"),
        (lambda: bilevel.check_hypergradient(problem(), X, method=LinearSolve), "method must be an object such as"),
        (lambda: bilevel.hypergradient(problem(), X, method=3), "method must be an object such as"),
        (lambda: bilevel.check_hypergradient(problem(), X, solver=3), "solver must be an object such as"),
        (lambda: bilevel.check_hypergradient(problem(), X, solver=DMLCBO), "solver must be an object such as"),
        (lambda: next(bilevel.iterate(problem(), X, solver=DMLCBO)), "solver must be an object such as"),
        (lambda: bilevel.check_hypergradient(problem(), X, directions=2.5), "directions must be an integer"),
        (lambda: bilevel.certificate(problem(), X, "a"), "delta must be a positive number, got 'a'"),
        (lambda: bilevel.certificate(problem(), X, 0.1, eta=-1), "eta must be a positive number, got -1"),
        (lambda: bilevel.certificate(problem(), X, 0.1, samples=5), "samples must be an integer of at least 20, got 5"),
        (lambda: bilevel.certificate(problem(), X, 0.1, goldstein_radius="a"), "goldstein_radius must be a positive"),
        (lambda: goldstein_measure(problem(), X, math.inf), "radius must be a positive number, got inf"),
        (lambda: goldstein_measure(problem(), X, 0.1, samples=True), "samples must be an integer"),
        (lambda: estimate_constants(problem(), X, radius="a"), "radius must be a positive number, got 'a'"),
        (lambda: estimate_constants(problem(), X, samples=2.5), "samples must be an integer of at least 2"),
        (lambda: estimate_constants(steep(), X, radius=1e4), "not finite at a point within radius"),
        (lambda: Constants(**{**UNIT, "dimension": 2.5}), "dimension must be an integer of at least 1, got 2.5"),
        (lambda: Constants(**{**UNIT, "cross": 1 << 5000}), "cross = 14.* is a very large integer"),
        (lambda: Theory(constants=3, delta=1.0), r"constants must be bilevel.diagnostics.Constants\(...\), got 3"),
        (lambda: Theory(constants=Constants(**UNIT), delta="a"), "delta must be a positive number, got 'a'"),
        (lambda: Theory(constants=Constants(**UNIT), delta=1.0, eta="a"), "eta must be a positive number, got 'a'"),
        (lambda: Theory(constants=Constants(**UNIT), delta=1e-300), "lead to numbers that float64 does not have"),
        (lambda: Theory(constants=Constants(**{**UNIT, "mu": 1e-200}), delta=1.0), "numbers that float64 does not"),
        (lambda: THEORY.steps_for(1e-80, gap=1.0), r"eps = 1e-80 needs more than 1e\+100 steps: take a larger one"),
        (lambda: THEORY.steps_for("a", gap=1.0), "eps must be a positive number, got 'a'"),
        (lambda: THEORY.steps_for(0.1, gap=-5), "gap must be a non-negative number, got -5"),
        (lambda: THEORY.steps_for(0.1, gap=math.nan), "gap must be a non-negative number, got nan"),
        (lambda: THEORY.bound(0, gap=1.0), r"steps must be an integer from 1 to 1e\+100, got 0"),
        (lambda: THEORY.bound(10, gap=1.0, lower_error=math.nan), "lower_error must be a non-negative number"),
        (lambda: THEORY.bound(10, gap=1e300, lower_error=1e300), "is beyond float64"),
        (lambda: THEORY.terms(2.5), "steps must be an integer"),
        (lambda: THEORY.bias("a"), "terms must be an integer"),
        (lambda: smoothing_lipschitz(0, 1.0), "dimension must be an integer"),
        (lambda: dmlcbo_from_theory("a", eps=0.1, gap=1.0), "theory must be bilevel.diagnostics.Theory"),
        (lambda: CSVFile(3), "path must be a path such as 'run.csv', got 3"),
        (lambda: bilevel.run.CSVFile(""), "path must be a path such as 'run.csv', got ''"),
        (lambda: CSVFile("a\0b"), "cannot be the name of a file"),
        (lambda: CSVFile("a" * 5000), "cannot be the name of a file"),
        (lambda: CSVFile(Path(__file__) / "run.csv"), "cannot be the name of a file"),
    ],
)  # fmt: skip
def test_settings_that_are_none(call, message):
    with pytest.raises(bilevel.BilevelError, match=message):
        call()


def test_a_seed_of_many_digits():
    """Seeds are hashed or cut; torch itself takes 64 bits."""
    for name, call in DIAGNOSTICS.items():
        assert call(problem(), X, seed=1 << 70) is not None, name
