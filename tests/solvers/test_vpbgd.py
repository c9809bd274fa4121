"""V-PBGD: first order, with the bias its penalty predicts."""

import pytest
import torch
from tests.biased_problem import BiasedProblem
from tests.solver_contract import assert_feasible_path, assert_reproducible, run_known

import bilevel
from bilevel import sets
from bilevel.testing.known_problems import known_problems

KNOWN = known_problems()
BY_NAME = {known.name: known for known in KNOWN}
each = pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name.replace(" ", "-"))


@each
def test_reaches_the_minimum(known):
    """All ten problems, gamma = 10 after 20 steps, 45 steps of 0.5; where F* = 0 the penalty has no bias."""
    run = run_known(known, bilevel.solvers.VPBGD(gamma=10.0, ramp=20, upper_step=0.5), steps=45)
    assert run.gap <= 0.01
    # The curvature, at most one product per dimension; nothing else is of second order.
    assert 1 <= run.solution.stats["hessian_products"] <= min(20, known.target.numel())


def test_ends_at_the_minimiser_of_the_penalty_and_the_bias_shrinks():
    """On a face along which grad_y f is not zero; the error of x is O(1/gamma), that of F is O(1/gamma^2)."""
    biased, gaps = BiasedProblem(), []
    best = bilevel.upper_value(biased.problem, biased.answer(0.0))
    for gamma in (4.0, 16.0):
        solver = bilevel.solvers.VPBGD(gamma=gamma, first_gamma=gamma, ramp=0, upper_step=0.5)
        solution = bilevel.minimize(biased.problem, solver=solver, steps=60, evaluate_every=60)
        assert float((solution.x - biased.answer(1 / gamma)).norm()) < 1e-5
        gaps.append(float(bilevel.upper_value(biased.problem, solution.x) - best))
        assert gaps[-1] == pytest.approx(biased.bias(1 / gamma), rel=1e-2)
    assert 0 < gaps[1] < gaps[0] / 8


def test_the_bias_where_the_answer_is_a_kink():
    """f = |y - t|^2/2 + rho |x|^2/2, g = |y - x|^2/2 over [-0.6, 0.6], rho = 0.1, t = (0.5, 2).

    Inside, x_gamma = c t/(c + rho) with c = gamma/(1 + gamma), against x* = t/(1 + rho); where the bound holds,
    x_gamma = 0.6 gamma/(gamma + rho) against 0.6.
    """
    t, rho, bound = torch.tensor([0.5, 2.0]).double(), 0.1, 0.6
    problem = bilevel.Problem(
        lambda x, y: (y - t).square().sum() / 2 + rho * x.square().sum() / 2,
        lambda x, y: (y - x).square().sum() / 2,
        sets.Box(-bound, bound),
        y0=torch.zeros(2).double(),
    )
    truth = torch.tensor([0.5 / (1 + rho), bound]).double()
    biases = []
    for gamma in (1.0, 5.0, 25.0):
        solver = bilevel.solvers.VPBGD(
            gamma=gamma, ramp=0, upper_step=min(0.5, 1 / gamma), lower_steps=1, penalty_steps=1
        )
        steps = int(40 + 10 * gamma)
        solution = bilevel.minimize(problem, torch.zeros(2).double(), solver=solver, steps=steps, evaluate_every=steps)
        c = gamma / (1 + gamma)
        predicted = torch.tensor([c * 0.5 / (c + rho), bound * gamma / (gamma + rho)]).double()
        assert torch.allclose(solution.x, predicted, atol=2e-4), gamma
        biases.append(float((solution.x - truth).norm()))
    assert biases[1] < 0.3 * biases[0]
    assert biases[2] < 0.3 * biases[1]


@pytest.mark.parametrize("name", ["simplex", "l2 ball", "dictionary"])
def test_feasible_and_reproducible(name):
    known, solver = BY_NAME[name], bilevel.solvers.VPBGD(refresh=5)
    assert_feasible_path(known.problem, known.x0, known.y0, solver)
    assert_reproducible(known.problem, known.x0, known.y0, solver)


def test_the_auxiliary_variable_is_feasible_too():
    known = BY_NAME["l1 ball"]
    solution = bilevel.minimize(known.problem, known.x0, known.y0, solver=bilevel.solvers.VPBGD(), steps=5)
    assert known.problem.constraint.contains(solution.state.auxiliary)


def test_costs_are_counted():
    """Per step: T gradients for w, one per step of y, one in x at y and at w; f once per point."""
    known = BY_NAME["box"]
    solver = bilevel.solvers.VPBGD(lower_steps=4, penalty_steps=3)
    first = bilevel.minimize(known.problem, known.x0, known.y0, solver=solver, steps=1)
    more = bilevel.minimize(known.problem, resume=first, solver=solver, steps=1)
    spent = {name: more.stats[name] - first.stats[name] for name in bilevel.linearization.Costs().as_dict()}
    assert spent["lower_gradients"] == 4 + 3 + 2
    assert spent["upper_gradients"] == 4
    assert spent["projections"] == 4 + 3
    assert spent["hessian_products"] == spent["cross_products"] == 0


def test_the_penalty_ramps():
    solver = bilevel.solvers.VPBGD(gamma=10.0, first_gamma=1.0, ramp=9)
    assert [solver.penalty(k) for k in (0, 3, 9, 50)] == [1.0, 4.0, 10.0, 10.0]
    with pytest.raises(bilevel.InvalidInputError, match="first_gamma is 20, above gamma 10"):
        bilevel.solvers.VPBGD(first_gamma=20.0)
    with pytest.raises(bilevel.InvalidInputError, match="ramp must be an integer of at least 0, got -1"):
        bilevel.solvers.VPBGD(ramp=-1)
