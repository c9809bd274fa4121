"""Where nothing can be certified, nothing is: the lower level is not convex, not curved, or not solved."""

import dataclasses
import math

import pytest
import torch

import bilevel
from bilevel import Status, certificate, sets
from bilevel.diagnostics import Cause
from bilevel.diagnostics.finite_differences import Probe
from bilevel.diagnostics.lower_level import solved_lower


def vector(*entries):
    return torch.tensor(entries, dtype=torch.float64)


def absolute_value(y0):
    """F(x) = |x|, as f = 2 y - x with y* = max(x, 0)."""
    return bilevel.Problem(
        lambda x, y: (2 * y - x).sum(), lambda x, y: (y - x).square().sum() / 2, sets.NonNegative(), y0=vector(y0)
    )


def nearly_flat(curvature):
    """y_2* = x + 1 by a curvature that is hardly there; F = y_2*^2 has slope 2 at x = 0."""
    return bilevel.Problem(
        lambda x, y: y[1].square(),
        lambda x, y: (y[0] - x[0]).square() / 2 + curvature * (y[1] - x[0] - 1).square() / 2,
        y0=vector(0.0, 0.0),
    )


@pytest.mark.parametrize("constraint", [sets.Box(-1.0, 1.0), None], ids=repr)
def test_a_maximiser_is_not_certified(constraint):
    problem = bilevel.Problem(
        lambda x, y: (y + 0.7).square().sum(), lambda x, y: -(y - x).square().sum() / 2, constraint, y0=vector(0.3)
    )
    found = certificate(problem, vector(-0.7), 0.1, samples=20)
    assert found.flaw is Cause.NOT_STRONGLY_CONVEX
    assert math.isnan(found.eps)
    assert str(found).startswith("no certificate: g is not convex in y")
    run = bilevel.minimize(
        problem,
        vector(-0.7),
        vector(-0.7),
        steps=2,
        evaluate_every=1,
        tol=1e-3,
        delta=0.1,
        solver=bilevel.DMLCBO(upper_step=0.1),
    )
    assert run.status is Status.STEPS


def test_a_flat_lower_level_is_not_certified():
    """A residual of 1e-12, which rounding leaves, allows an error of 1 in y."""
    found = certificate(nearly_flat(1e-12), vector(0.0), 1e-3, samples=20)
    assert found.flaw is Cause.SINGULAR_HESSIAN
    assert found.lower_residual < 1e-11
    assert found.lower_error > 1e-4
    run = bilevel.minimize(
        nearly_flat(1e-12),
        vector(0.0),
        vector(0.0, 0.0),
        steps=1,
        evaluate_every=1,
        tol=1e-3,
        delta=1e-3,
        solver=bilevel.DMLCBO(upper_step=0.1),
    )
    assert run.status is Status.STEPS


def test_the_error_of_the_lower_level_is_bounded():
    """|y - y*| <= (1 + L)/mu residual at random y of a box, where y* = clamp(x, x + 1)."""
    free, x = nearly_flat(0.01), vector(0.5)
    problem = bilevel.Problem(free.upper, free.lower, sets.Box(-1.0, 1.2), y0=free.y0)
    probe, solution = Probe(problem, x, free.y0), vector(0.5, 1.2)
    exact = solved_lower(probe, probe.x, probe.y)
    assert torch.allclose(exact.y, solution)
    for seed in range(20):
        y = sets.Box(-1.0, 1.2).random_point(torch.Generator().manual_seed(seed), 2).double()
        found = dataclasses.replace(exact, y=y, residual=bilevel.lower_residual(problem, x, y))
        assert found.error >= float((y - solution).norm())


def test_a_lower_level_that_is_not_solved_to_delta_is_flagged():
    """mu = 1e-5 is not flat, but rounding in g leaves y farther away than this delta."""
    found = certificate(nearly_flat(1e-5), vector(0.3), 1e-13, samples=20)
    assert found.flaw is Cause.UNSOLVED
    assert found.lower_error > 1e-13
    assert not found.valid


def test_a_run_is_certified_only_with_its_own_lower_level_solved():
    """x = 1e-4 is within delta of the kink from the start, but y = 5 is not y*."""
    start = {"steps": 5, "evaluate_every": 1, "tol": 1e-3, "delta": 1e-2}
    assert (
        bilevel.minimize(
            absolute_value(5.0), vector(1e-4), vector(5.0), **start, solver=bilevel.DMLCBO(upper_step=0.1)
        ).status
        is Status.STEPS
    )
    solved = bilevel.minimize(
        absolute_value(5.0), vector(1e-4), vector(1e-4), solver=bilevel.Implicit(upper_step=1e-6), **start
    )
    assert solved.status is Status.CERTIFIED
    assert solved.history[-1].lower_residual <= 1e-3
    assert "F itself may still decrease" in str(solved.status)


@pytest.mark.parametrize(
    ("upper", "start"),
    [
        (lambda x, y: 0.01 * y.square().sum() - y.abs().sum(), [0.0, 0.0]),
        (lambda x, y: 0.01 * x.square().sum() - y.relu().sum(), [0.0, -1.0]),
        (lambda x, y: y[0] ** 2 - y[1] ** 2, [0.0, 0.0]),
        (lambda x, y: (y - 1).abs().sum(), [1.0, 1.0]),
    ],
    ids=["maximum at a kink of f", "half a kink of f", "saddle", "minimum at a kink of f"],
)
def test_a_point_from_which_f_falls_is_not_certified(upper, start, request):
    """At each of them h = 0, by the derivative that torch has for a kink."""
    start = torch.tensor(start).double()
    problem = bilevel.Problem(upper, lambda x, y: (y - x).square().sum() / 2)
    solution = bilevel.minimize(problem, start, start, steps=3, tol=1e-3, delta=1e-2, solver=bilevel.DMLCBO())
    assert (solution.status is bilevel.Status.CERTIFIED) == ("minimum" in request.node.name)
