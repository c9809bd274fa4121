"""DMLCBO without a step size: the same run in other units, pace of the lower level, noisy batches."""

import functools

import pytest
import torch

import bilevel
from bilevel import sets
from bilevel.hypergradients import AveragedAdjoint

DOUBLE = torch.float64
ROWS = torch.randn(40, 6, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
TARGETS = torch.randn(40, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)


def weights(f=1.0, g=1.0, x_unit=1.0, y_unit=1.0, rows=None):
    """Row weights x under an l1 ball, with f, g, x = x_unit u and y = y_unit v in other units, and in batches."""

    def upper(u, v, batch=None):
        some = slice(15) if batch is None else batch[0]
        return f * (ROWS[some] @ (y_unit * v) - TARGETS[some]).square().mean()

    def lower(u, v, batch=None):
        some = slice(25) if batch is None else batch[1]
        weight, y = (x_unit * u[some]).sigmoid(), y_unit * v
        return g * ((weight * (ROWS[15:][some] @ y - TARGETS[15:][some]).square()).mean() + 1e-2 * y @ y)

    def draw(generator):
        return torch.randint(15, (rows,), generator=generator), torch.randint(25, (rows,), generator=generator)

    return bilevel.Problem(upper, lower, sets.L1Ball(0.5 / y_unit), sampler=draw if rows else None)


def trajectory(problem, x_unit=1.0):
    x0, y0 = torch.zeros(25, dtype=DOUBLE), torch.zeros(6, dtype=DOUBLE)
    found = []
    bilevel.minimize(
        problem, x0, y0, solver=bilevel.DMLCBO(), steps=40, evaluate_every=20,
        callbacks=[lambda record, state: found.append(x_unit * state.x)],
    )  # fmt: skip
    return torch.stack(found)


@functools.cache
def usual_trajectory(rows):
    return trajectory(weights(rows=rows))


@pytest.mark.parametrize("rows", [None, 8], ids=["all rows", "batches"])
@pytest.mark.parametrize("scale", [1e-3, 1e3])
@pytest.mark.parametrize("what", ["f", "g", "x_unit", "y_unit"])
def test_automatic_steps_do_not_depend_on_units(what, scale, rows):
    usual = usual_trajectory(rows)
    other = trajectory(weights(**{what: scale}, rows=rows), scale if what == "x_unit" else 1.0)
    assert float((usual - other).abs().max()) < 1e-3 * float(usual.abs().max())


def test_an_optimum_far_away_is_reached():
    """F = |x - 1000|^2 / 2 from x = 0: a step in units of x would take thousands of steps."""
    problem = bilevel.Problem(
        lambda x, y: (y - 1000.0).square().sum() / 2, lambda x, y: (y - x).square().sum() / 2, sets.FreeSpace()
    )
    solution = bilevel.minimize(
        problem,
        torch.zeros(2, dtype=DOUBLE),
        torch.zeros(2, dtype=DOUBLE),
        solver=bilevel.DMLCBO(),
        steps=400,
    )
    assert float((solution.x - 1000.0).abs().max()) < 10.0


@pytest.mark.slow
def test_batches_reach_the_value_of_all_rows():
    """Batches of 5 of 15 and 25 rows, six unknowns: at least 80 % of the decrease that all rows give."""
    x0, y0 = torch.zeros(25, dtype=DOUBLE), torch.zeros(6, dtype=DOUBLE)
    whole, batches = (
        bilevel.minimize(weights(rows=rows), x0, y0, solver=bilevel.DMLCBO(), steps=300).x for rows in (None, 5)
    )
    start, best, found = (float(bilevel.upper_value(weights(), x, y0)) for x in (x0, whole, batches))
    assert start - found > 0.8 * (start - best) > 0.0


def test_noise_without_a_sampler_is_seen():
    """f and g with a random slope each call: F = |x - 1|^2 comes within its noise, and the solver is named."""
    noise = torch.Generator().manual_seed(0)

    def noisy(y):
        return 0.1 * torch.randn(3, dtype=DOUBLE, generator=noise) @ y

    problem = bilevel.Problem(
        lambda x, y: (y - 1.0).square().sum() + noisy(y),
        lambda x, y: (y - x).square().sum() / 2 + noisy(y),
        sets.Box(-2.0, 2.0),
    )
    start = torch.zeros(3, dtype=DOUBLE)
    with pytest.warns(bilevel.errors.ProblemWarning, match="differs between two calls"):
        solution = bilevel.minimize(problem, start, start, steps=300)
    assert "DMLCBO" in solution.solver
    assert "differ between two calls" in solution.solver
    assert float((solution.x - 1.0).abs().max()) < 0.2


def test_a_start_on_a_plateau_is_not_left_far_behind():
    """h = 1e-17 at the start, by rounding, is no reason for a step of 1e15."""
    problem = bilevel.Problem(
        lambda x, y: (y - 0.5).square().sum() + 1e-17 * x.sum(), lambda x, y: (y - x).square().sum(), sets.Box(0.0, 1.0)
    )
    start, corner = torch.full((2,), 3.0, dtype=DOUBLE), torch.ones(2, dtype=DOUBLE)
    solution = bilevel.minimize(problem, start, corner, solver=bilevel.DMLCBO(), steps=50)
    assert float(solution.x.abs().max()) < 30.0


def test_a_lower_level_that_is_nan_at_a_later_call_is_an_error():
    calls = iter(range(100_000))
    problem = bilevel.Problem(
        lambda x, y: y.square().sum(), lambda x, y: (y - x).square().sum() * (1.0 if next(calls) < 2 else torch.nan)
    )
    start = torch.ones(2, dtype=DOUBLE)
    with pytest.warns(bilevel.errors.ProblemWarning, match="and nan"), pytest.raises(bilevel.errors.NonFiniteError):
        bilevel.minimize(problem, start, start, solver=bilevel.DMLCBO(), steps=5)


def test_a_lagging_lower_level_is_reported():
    scale = torch.logspace(0, -8, 10, dtype=DOUBLE)
    problem = bilevel.Problem(
        lambda x, y: (y - 1.0).square().sum(),
        lambda x, y: (scale * (y - x).square()).sum(),
        sets.Box(-5.0, 5.0),
    )
    start = torch.zeros(10, dtype=DOUBLE)
    slow = bilevel.minimize(problem, start, start, solver=bilevel.DMLCBO(pace=1), steps=60)
    assert "lagged" in slow.message
    quick = bilevel.minimize(problem, start, start, solver=bilevel.DMLCBO(), steps=60)
    assert "lagged" not in quick.message
    assert quick.history[-1].upper < 1e-2 * quick.history[0].upper


def test_the_averaged_adjoint_removes_the_bias_of_batches():
    """G is 0.5 or 1.5, f_y = 1: the mean of inverses is 4/3, the inverse of the mean is 1."""
    problem = bilevel.Problem(
        lambda x, y, batch=None: y.sum(),
        lambda x, y, batch=None: ((1.0 if batch is None else batch) * y.square() / 2 - x * y).sum(),
        sets.FreeSpace(),
        sampler=lambda generator: 0.5 + float(torch.randint(2, (), generator=generator)),
    )
    x = torch.zeros(1, dtype=DOUBLE)

    def mean_adjoint(method):
        adjoint, total = None, 0.0
        for k in range(1500):
            streams = bilevel.solvers.State(x=x, y=x, step=k).streams()
            lin = problem.linearize(x, x, problem.sampler(streams.generator("data")))
            found = method.estimate(lin, streams, curvature=2.0, start=adjoint)
            adjoint, total = found.adjoint, total + float(found.gradient)
        return total / 1500

    assert mean_adjoint(AveragedAdjoint()) == pytest.approx(1.0, abs=0.05)
    assert mean_adjoint(bilevel.LinearSolve()) == pytest.approx(4 / 3, abs=0.05)


def test_automatic_steps_after_given_ones_know_of_batches():
    zero, problem = torch.zeros(25, dtype=DOUBLE), weights(rows=8)
    given = bilevel.DMLCBO(upper_step=0.01, lower_step=0.01)
    first = bilevel.minimize(problem, zero, torch.zeros(6, dtype=DOUBLE), solver=given, steps=5)
    further = bilevel.minimize(problem, resume=first.state, solver=bilevel.DMLCBO(), steps=5)
    assert (first.state.noisy, further.state.noisy) == (False, True)
    assert further.state.distance > 0


def test_shortened_again_and_again_the_distance_stays_positive():
    """The distance 1e-30 |x|, after many shortenings, would soon have a square of 0."""
    problem = bilevel.Problem(lambda x, y: (y - 1).square().sum(), lambda x, y: (y - x).square().sum())
    one = torch.ones(2, dtype=DOUBLE)
    state = bilevel.minimize(problem, 2 * one, 2 * one, solver=bilevel.DMLCBO(), steps=3).state
    state.distance, state.waited = 1e-30, 30
    state = bilevel.DMLCBO().step(problem, state)
    assert state.distance >= 1e-16
