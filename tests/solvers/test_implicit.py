"""Implicit (JaxOpt's way); its hypergradient is compared with jaxopt's in test_jaxopt_reference.py."""

import pytest
from tests.solver_contract import assert_feasible_path, assert_reproducible, run_known

import bilevel
from bilevel.random import Seeds
from bilevel.testing.known_problems import known_problems

KNOWN = known_problems()
each = pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name.replace(" ", "-"))


@each
def test_reaches_the_minimum_untuned(known):
    """All ten problems, default settings, 25 steps."""
    run = run_known(known, bilevel.Implicit(), steps=25)
    assert run.gap <= 0.01
    assert run.solution.history[-1].lower_residual <= 2e-6


@each
def test_the_hypergradient_is_the_closed_form(known):
    state = bilevel.Implicit(tol=1e-10).init(known.problem, known.x0, known.y0, Seeds())
    truth = known.gradient(known.x0)
    assert float((known.flat(state.gradient) - truth).norm() / truth.norm()) < 1e-8


@pytest.mark.parametrize("index", [3, 8, 9])
def test_feasible_and_reproducible(index):
    known = KNOWN[index]
    assert_feasible_path(known.problem, known.x0, known.y0, bilevel.Implicit(), steps=10)
    assert_reproducible(known.problem, known.x0, known.y0, bilevel.Implicit(refresh=5))


def test_bad_settings_are_named():
    with pytest.raises(bilevel.InvalidInputError, match="tol must be a positive number, got 0"):
        bilevel.Implicit(tol=0)
    with pytest.raises(bilevel.InvalidInputError, match="linear_steps must be an integer of at least 1, got 0"):
        bilevel.Implicit(linear_steps=0)
