"""The Goldstein measure: of F itself, on X, and with a word where the lower level is not solved."""

import math

import pytest
import torch

import bilevel
from bilevel import sets
from bilevel.diagnostics import Cause, goldstein_measure


def vector(*entries):
    return torch.tensor(entries, dtype=torch.float64)


def on_the_positive_quadrant():
    """F(x) = |x + 1|^2 on x >= 0: the gradient at the minimum x = 0 is (2, 2)."""
    return bilevel.Problem(
        lambda x, y: (y + 1).square().sum(), lambda x, y: (y - x).square().sum() / 2, sets.Box(-9.0, 9.0),
        upper_constraint=sets.NonNegative(), y0=vector(0.0, 0.0),
    )  # fmt: skip


def test_a_minimum_on_the_boundary_of_x_is_stationary():
    found = goldstein_measure(on_the_positive_quadrant(), vector(0.0, 0.0), 1e-3, samples=10)
    assert found.value < 1e-9
    assert found.gradient_norm < 1e-9


def test_elsewhere_on_x_the_projected_step_counts():
    """At (0, 5) the first entry cannot fall, and the second has slope 12 but only 5 to go."""
    found = goldstein_measure(on_the_positive_quadrant(), vector(0.0, 5.0), 1e-6, samples=10)
    assert found.value == pytest.approx(5.0, rel=1e-5)
    assert found.gradient_norm == pytest.approx(5.0)


def logarithm(upper_constraint=None):
    """F(x) = x log x, defined for x > 0 only."""
    return bilevel.Problem(
        lambda x, y: (y * x.log()).sum(), lambda x, y: (y - x).square().sum() / 2,
        upper_constraint=upper_constraint, y0=vector(0.5),
    )  # fmt: skip


def test_outside_of_its_domain_f_has_no_measure():
    with pytest.raises(bilevel.NonFiniteError, match="not finite .* from x: take a smaller radius"):
        goldstein_measure(logarithm(), vector(0.5), 2.0, samples=20)
    inside = goldstein_measure(logarithm(sets.Box(1e-3, 9.0)), vector(0.5), 0.45, samples=20)
    assert inside.value < 1e-6  # the minimum exp(-1) is within reach


def test_residuals_are_reported():
    found = goldstein_measure(on_the_positive_quadrant(), vector(1.0, 1.0), 1e-3, samples=5)
    assert found.valid
    assert found.lower_residual < 1e-10
    assert found.linear_residual < 1e-9


def test_a_singular_lower_level_has_no_measure():
    problem = bilevel.Problem(
        lambda x, y: (y - 1).square().sum() + x.square().sum(), lambda x, y: (y.sum() - x.sum()) ** 2 / 2,
        y0=vector(0.2, 0.1),
    )  # fmt: skip
    found = goldstein_measure(problem, vector(0.3, 0.4), 0.1, samples=5)
    assert found.flaw is Cause.SINGULAR_HESSIAN
    assert math.isnan(found.value)
    assert str(found).startswith("no Goldstein measure: g is flat")
