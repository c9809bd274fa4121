"""Approx (HOAG)."""

import pytest
import torch
from tests.solver_contract import assert_feasible_path, assert_reproducible, run_known

import bilevel
from bilevel import sets
from bilevel.random import Seeds
from bilevel.testing.known_problems import known_problems

KNOWN = known_problems()
BY_NAME = {known.name: known for known in KNOWN}
each = pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name.replace(" ", "-"))


@each
def test_reaches_the_minimum_untuned(known):
    """All ten problems, default settings, 25 steps."""
    assert run_known(known, bilevel.Approx(), steps=25).gap <= 0.01


@pytest.mark.parametrize("name", ["l1 ball", "half-space"])
@pytest.mark.parametrize("solver", [bilevel.Approx(inner="plain"), bilevel.Approx(step_rule="fixed", upper_step=0.4)])
def test_plain_inner_steps_and_fixed_upper_steps(name, solver):
    assert run_known(BY_NAME[name], solver, steps=60).gap <= 0.01


@pytest.mark.parametrize("name", ["simplex", "l2 ball", "dictionary"])
def test_feasible_and_reproducible(name):
    known = BY_NAME[name]
    assert_feasible_path(known.problem, known.x0, known.y0, bilevel.Approx())
    assert_reproducible(known.problem, known.x0, known.y0, bilevel.Approx(refresh=4))


def test_the_tolerance_decreases_and_the_lower_level_obeys():
    known, solver = BY_NAME["half-space"], bilevel.Approx(tolerance=1e-2, decay=0.5)
    state = solver.init(known.problem, known.x0, known.y0, Seeds())
    for k in range(1, 20):
        state = solver.step(known.problem, state)
        assert solver.tolerance_at(k) == pytest.approx(1e-2 * 0.5**k)
        # The gradient mapping at step 1/L bounds the residual at step 1 up to the factor max(1, L); here L <= 2.
        assert bilevel.lower_residual(known.problem, state.x, state.y) <= 2 * state.tolerance


def test_a_rejected_step_leaves_x_alone_and_shrinks_the_step():
    known = BY_NAME["l1 ball"]
    solver = bilevel.Approx(upper_step=1e3)
    first = solver.init(known.problem, known.x0, known.y0, Seeds())
    second = solver.step(known.problem, first)
    assert second.stats["accepted"] == 0.0
    assert torch.equal(second.x, first.x)
    assert second.upper_step == first.upper_step / 2


def test_warm_starts_make_a_solved_lower_level_cost_one_gradient():
    """With x held (a vanishing step) each step takes one inner gradient, one projection, one linearisation."""
    known = BY_NAME["affine set"]
    solver = bilevel.Approx(step_rule="fixed", upper_step=1e-30, tolerance=1e-6, decay=0.999999)
    solution = bilevel.minimize(known.problem, known.x0, known.y0, solver=solver, steps=1)
    more = bilevel.minimize(known.problem, resume=solution, solver=solver, steps=9)
    for name, count in {"projections": 9, "lower_gradients": 18, "upper_gradients": 9, "cross_products": 9}.items():
        assert more.stats[name] - solution.stats[name] == count, name
    assert more.stats["hessian_products"] - solution.stats["hessian_products"] <= 18


def test_long_runs_past_the_minimum_stay_finite():
    """At a stationary point every trial is accepted: the step must not grow without bound."""
    problem = bilevel.Problem(lambda x, y: y.square().sum(), lambda x, y: (y - x).square().sum(), sets.L2Ball(1.0))
    zero = torch.zeros(2).double()
    solution = bilevel.minimize(problem, zero, zero, solver=bilevel.Approx(), steps=200, evaluate_every=200)
    assert torch.equal(solution.x, zero)
    assert solution.state.upper_step <= 1e6


@pytest.mark.parametrize(
    "solver",
    [bilevel.Approx(), bilevel.Implicit(), bilevel.solvers.RMDPCD(steps=6), bilevel.solvers.VPBGD(upper_step=0.5)],
)
def test_single_precision(solver):
    for known in known_problems(torch.float32)[3:4]:
        solution = bilevel.minimize(known.problem, known.x0, known.y0, solver=solver, steps=30, evaluate_every=30)
        assert solution.x.dtype == solution.y.dtype == torch.float32
        assert known.problem.constraint.contains(solution.y)
        assert float(known.value(solution.x)) < 0.5 * float(known.value(known.x0)), known.name


def test_bad_settings_are_named():
    with pytest.raises(bilevel.InvalidInputError, match=r"decay must lie in \(0, 1\), got 1.0, so that"):
        bilevel.Approx(decay=1.0)
    with pytest.raises(bilevel.InvalidInputError, match="upper_step must be a positive number, got -1"):
        bilevel.Approx(upper_step=-1)
    with pytest.raises(bilevel.InvalidInputError, match="inner must be one of 'accelerated', 'plain', got 'newton'"):
        bilevel.Approx(inner="newton")


def test_adaptive_steps_are_refused_on_batches():
    problem = bilevel.Problem(
        upper=lambda x, y, batch: (y - 1).square().sum(),
        lower=lambda x, y, batch: (y - x).square().sum(),
        sampler=lambda generator: torch.randint(3, (2,), generator=generator),
    )
    start = torch.zeros(2).double()
    with pytest.raises(bilevel.IncompatibleError, match="use step_rule='fixed' with a problem that has a sampler"):
        bilevel.minimize(problem, start, start, solver=bilevel.Approx(), steps=2)
    solution = bilevel.minimize(
        problem, start, start, solver=bilevel.Approx(step_rule="fixed", upper_step=0.2), steps=60
    )
    assert float((solution.x - 1).abs().max()) < 1e-3
