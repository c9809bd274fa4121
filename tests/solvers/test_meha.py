"""MEHA: the ten known problems, and the bias of its penalty in closed form."""

import pytest
from tests.biased_problem import BiasedProblem
from tests.solver_contract import assert_feasible_path, assert_reproducible, run_known

import bilevel
from bilevel.testing.known_problems import known_problems

KNOWN = known_problems()
each = pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name.replace(" ", "-"))
SOLVER = bilevel.solvers.MEHA(penalty=1.0, growth=0.0, upper_step=0.5)


@each
def test_reaches_the_minimum(known):
    """c = 1, p = 0, upper_step 0.5, 80 steps; f_y = 0 at these solutions, so that the penalty has no bias there."""
    assert run_known(known, SOLVER, 80).gap <= 0.01


def test_ends_at_the_minimiser_of_the_penalty_and_the_bias_shrinks():
    """sigma = 1/(c kappa) with kappa = gamma/(1 + gamma)."""
    biased, gamma, gaps = BiasedProblem(), 4.0, []
    best = bilevel.upper_value(biased.problem, biased.answer(0.0))
    for penalty in (2.0, 8.0):
        solver = bilevel.solvers.MEHA(penalty=penalty, growth=0.0, gamma=gamma, upper_step=0.8)
        solution = bilevel.minimize(biased.problem, solver=solver, steps=200, evaluate_every=200)
        sigma = (1 + gamma) / (gamma * penalty)
        assert float((solution.x - biased.answer(sigma)).norm()) < 1e-4
        assert biased.normal @ solution.y == pytest.approx(biased.offset)  # on the face, although f pulls inwards
        gaps.append(float(bilevel.upper_value(biased.problem, solution.x) - best))
    assert 0 < gaps[1] < gaps[0] / 4


@each
def test_every_iterate_is_feasible(known):
    assert_feasible_path(known.problem, known.x0, known.y0, SOLVER, 30)


def test_same_bits_and_resume():
    assert_reproducible(KNOWN[9].problem, KNOWN[9].x0, KNOWN[9].y0, SOLVER)


def test_costs_per_step():
    """First order: two gradients of f (y moves after x), four of g, two projections."""
    solver = bilevel.solvers.MEHA(lower_step=0.2, envelope_step=0.2)
    stats = bilevel.minimize(KNOWN[3].problem, KNOWN[3].x0, solver=solver, steps=20).stats
    assert (stats["upper_gradients"], stats["lower_gradients"], stats["projections"]) == (40, 80, 40)
    assert stats["hessian_products"] == stats["cross_products"] == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": 0.0}, "gamma must be a positive number, got 0.0"),
        ({"growth": -0.5}, r"growth must lie in \[0, 1\], got -0.5"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(bilevel.InvalidInputError, match=message):
        bilevel.solvers.MEHA(**settings)
