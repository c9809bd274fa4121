"""PenaltyMomentum: the penalty's minimiser in closed form, the ten known problems, momentum over batches."""

import pytest
import torch
from tests.biased_problem import BiasedProblem
from tests.solver_contract import assert_feasible_path, assert_reproducible, run_known

import bilevel
from bilevel.testing.known_problems import known_problems

KNOWN = known_problems()
each = pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name.replace(" ", "-"))
SOLVER = bilevel.solvers.PenaltyMomentum(penalty=5.0, upper_step=0.2)


@each
def test_reaches_the_minimum(known):
    """penalty 5, upper_step 0.2, 150 steps; f_y = 0 at these solutions, so that the penalty has no bias there."""
    assert run_known(known, SOLVER, 150).gap <= 0.01


def test_ends_at_the_minimiser_of_the_penalty_and_the_bias_shrinks():
    biased = BiasedProblem()
    gaps = []
    for penalty in (4.0, 16.0):
        solver = bilevel.solvers.PenaltyMomentum(penalty=penalty, upper_step=0.2)
        solution = bilevel.minimize(biased.problem, solver=solver, steps=200, evaluate_every=200)
        assert float((solution.x - biased.answer(1 / penalty)).norm()) < 1e-6
        best = bilevel.upper_value(biased.problem, biased.answer(0.0))
        gaps.append(float(bilevel.upper_value(biased.problem, solution.x) - best))
        assert gaps[-1] == pytest.approx(biased.bias(1 / penalty), rel=1e-2)
    assert 0 < gaps[1] < gaps[0] / 8  # the error of x is O(sigma), that of F is O(sigma^2): about 16


@each
def test_every_iterate_is_feasible(known):
    assert_feasible_path(known.problem, known.x0, known.y0, SOLVER, 30)


def batched():
    return bilevel.Problem(
        upper=lambda x, y, batch: (y - 1).square().sum() + (0 if batch is None else (batch * y).sum()),
        lower=lambda x, y, batch: (y - x).square().sum() + (0 if batch is None else (batch * y).sum()),
        constraint=bilevel.sets.L1Ball(1.0),
        sampler=lambda generator: 0.5 * torch.randn(3, generator=generator).double(),
        y0=torch.zeros(3).double(),
    )


def test_same_bits_and_resume():
    assert_reproducible(KNOWN[3].problem, KNOWN[3].x0, KNOWN[3].y0, SOLVER)
    assert_reproducible(batched(), torch.zeros(3).double(), torch.zeros(3).double(), SOLVER)


def test_recursive_momentum_reduces_the_noise():
    """Steps with momentum 0.1 wander less around the answer than plain stochastic gradients."""

    def spread(momentum):
        solver = bilevel.solvers.PenaltyMomentum(penalty=2.0, upper_step=0.02, lower_step=0.05, momentum=momentum)
        xs = []
        for state in bilevel.iterate(batched(), torch.full((3,), 1 / 3).double(), solver=solver):
            xs.append(state.x)
            if state.step == 300:
                break
        return float(torch.stack(xs[150:]).std(0).mean())

    assert spread(0.1) < 0.8 * spread(1.0)


def test_costs_per_step():
    """First order: with a given lower_step not one Hessian product; two projections and five gradients per step."""
    known = KNOWN[3]
    solver = bilevel.solvers.PenaltyMomentum(lower_step=0.2)
    stats = bilevel.minimize(known.problem, known.x0, solver=solver, steps=20).stats
    assert (stats["upper_gradients"], stats["lower_gradients"], stats["projections"]) == (20, 80, 40)
    assert stats["hessian_products"] == stats["cross_products"] == 0


def test_a_moving_set_is_refused_by_name():
    problem = bilevel.Problem(
        lambda x, y: y.sum(),
        lambda x, y: (y - x).square().sum(),
        lambda x: bilevel.sets.L2Ball(1.0 + x.square().sum()),
        y0=torch.zeros(2).double(),
    )
    with pytest.raises(bilevel.IncompatibleError, match="PenaltyMomentum cannot .* needs a set that does not move"):
        bilevel.minimize(problem, torch.zeros(2).double(), solver=bilevel.solvers.PenaltyMomentum(), steps=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"penalty": -1.0}, "penalty must be a positive number, got -1.0"),
        ({"momentum": 1.5}, r"momentum must lie in \(0, 1\], got 1.5"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(bilevel.InvalidInputError, match=message):
        bilevel.solvers.PenaltyMomentum(**settings)
