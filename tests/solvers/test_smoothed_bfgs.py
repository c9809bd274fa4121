"""SmoothedBFGS: kinks are left, no unit of x, y, f or g matters, and a run ends by itself."""

import dataclasses
import math

import pytest
import torch
from tests.solver_contract import assert_feasible_path, assert_reproducible, run_known

import bilevel
from bilevel import sets
from bilevel.solvers import SmoothedBFGS
from bilevel.testing.known_problems import known_problems

DOUBLE = torch.float64
KNOWN = known_problems()
BY_NAME = {known.name: known for known in KNOWN}


def solve(problem, x0, y0, **options):
    return bilevel.minimize(problem, x0, y0, solver=SmoothedBFGS(), **options)


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name.replace(" ", "-"))
def test_reaches_the_minimum_untuned(known):
    run = run_known(known, SmoothedBFGS(), steps=500)
    assert run.gap <= 1e-3
    assert run.solution.status is bilevel.Status.CONVERGED


@pytest.mark.parametrize("name", ["simplex", "l2 ball", "dictionary"])
def test_feasible_and_reproducible(name):
    known = BY_NAME[name]
    assert_feasible_path(known.problem, known.x0, known.y0, SmoothedBFGS())
    assert_reproducible(known.problem, known.x0, known.y0, SmoothedBFGS())


def tensor(*entries):
    return torch.tensor(entries, dtype=DOUBLE)


KINKS = {
    "orthant": (sets.NonNegative(), tensor(1.0, 0.5), tensor(0.0, 0.0)),
    "box": (sets.Box(0.0, 1.0), tensor(0.5, 0.8, 0.3), tensor(0.0, 0.0, 0.0)),
    "l1 vertex": (sets.L1Ball(1.0), tensor(0.3, 0.4, -0.1), tensor(1.0, 0.0, 0.0)),
    "simplex vertex": (sets.Simplex(1.0), tensor(0.2, 0.5, 0.3), tensor(1.0, 0.0, 0.0)),
    "psd apex": (sets.PSDCone(), tensor([1.0, 0.3], [0.3, 0.5]), torch.zeros(2, 2, dtype=DOUBLE)),
    "second-order apex": (sets.SecondOrderCone(), tensor(1.0, 0.3, 0.2), tensor(0.0, 0.0, 0.0)),
}


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("name", KINKS)
def test_a_start_on_a_kink_is_left(name, mixed):
    """There h = 0, and F falls in every direction into the set: F* = 0."""
    constraint, target, at = KINKS[name]
    size = target.numel()
    matrix = torch.eye(size, dtype=DOUBLE)
    if mixed:
        root = torch.randn(size, size, generator=torch.Generator().manual_seed(3), dtype=DOUBLE)
        matrix = root @ root.T / size + 0.5 * matrix

    def lower(x, y):
        d = (y - x).reshape(-1)
        return d @ matrix @ d / 2

    problem = bilevel.Problem(lambda x, y: (y - target).square().sum(), lower, constraint)
    solution = solve(problem, at, at, steps=500)
    first, last = (float(bilevel.upper_value(problem, x, at)) for x in (at, solution.x))
    assert last <= 0.05 * first


def regression(scale_x=1.0, scale_y=1.0, scale_f=1.0, scale_g=1.0, dtype=DOUBLE):
    """One penalty per feature; all four units may be changed."""
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(60, 6, generator=generator, dtype=DOUBLE)
    noise = torch.randn(60, generator=generator, dtype=DOUBLE)
    labels = (data @ tensor(1.0, 0.0, 0.5, 0.0, 0.0, 2.0) + 0.3 * noise).to(dtype)
    data = data.to(dtype)
    train, held = slice(0, 20), slice(20, 60)

    def upper(x, y):
        x, y = x / scale_x, y / scale_y
        return scale_f * ((data[held] @ y - labels[held]).square().mean() + 1e-2 * x.square().mean())

    def lower(x, y):
        x, y = x / scale_x, y / scale_y
        return scale_g * ((data[train] @ y - labels[train]).square().mean() + (x.exp() * y.square()).sum())

    problem = bilevel.Problem(upper, lower, sets.NonNegative())
    return problem, torch.zeros(6, dtype=dtype), torch.zeros(6, dtype=dtype)


def test_units_do_not_matter():
    scales = {"scale_x": 1e3, "scale_y": 1e-3, "scale_f": 1e2, "scale_g": 1e-3}
    base, other = (solve(*regression(**units), steps=300) for units in ({}, scales))
    values = [float(bilevel.upper_value(regression()[0], u, base.y)) for u in (base.x, other.x / 1e3)]
    start = float(bilevel.upper_value(regression()[0], torch.zeros(6, dtype=DOUBLE), base.y))
    assert abs(values[1] - values[0]) <= 1e-3 * (start - values[0])


def test_float32_gets_as_far_as_float64():
    narrow, wide = (solve(*regression(dtype=dtype), steps=300) for dtype in (torch.float32, DOUBLE))
    problem, x0, y0 = regression()
    first, best, found = (float(bilevel.upper_value(problem, x.double(), y0)) for x in (x0, wide.x, narrow.x))
    assert found - best <= 1e-2 * (first - best)


def test_bounds_on_x_are_obeyed_and_reached():
    problem, x0, y0 = regression()
    problem = bilevel.Problem(problem.upper, problem.lower, problem.constraint, upper_constraint=sets.Box(-1.0, 1.0))
    solution = solve(problem, x0, y0, steps=300)
    assert float(solution.x.abs().max()) <= 1.0
    assert solution.status is bilevel.Status.CONVERGED


def test_a_minimum_at_a_kink_is_a_minimum():
    """F = |x| + 1: no gradient is small anywhere, and yet the run may claim that it is done."""
    problem = bilevel.Problem(
        lambda x, y: y.sum() + 1.0, lambda x, y: (y - torch.cat([x, -x])).square().sum(), sets.NonNegative()
    )
    solution = solve(problem, tensor(0.7), torch.zeros(2, dtype=DOUBLE))
    assert abs(float(solution.x)) < 1e-4
    assert solution.status is bilevel.Status.CONVERGED


def test_a_killed_run_goes_on_from_its_file_with_the_same_bits(tmp_path):
    problem, x0, y0 = regression()
    whole = solve(problem, x0, y0, steps=40)
    solve(problem, x0, y0, steps=15, checkpoint=tmp_path / "run.safetensors")
    rest = bilevel.minimize(problem, resume=tmp_path / "run.safetensors", solver=SmoothedBFGS(), steps=25)
    assert torch.equal(rest.x, whole.x)
    assert torch.equal(rest.y, whole.y)


def test_the_best_point_is_returned_and_its_lower_level_is_solved():
    problem, x0, y0 = regression()
    solution = solve(problem, x0, y0, steps=60)
    assert bilevel.lower_residual(problem, solution.x, solution.y) < 1e-6
    value = float(problem.upper(solution.x, solution.y))
    assert value <= float(bilevel.upper_value(problem, solution.state.x, y0)) + 1e-9
    assert math.isclose(value, float(bilevel.upper_value(problem, solution.x, y0)), rel_tol=1e-6)


def test_a_large_lower_level_agrees_with_a_small_one():
    """The same problem, 80 times side by side: beyond the size where matrices are kept."""

    def copies(count):
        target = torch.linspace(-1, 1, 8, dtype=DOUBLE).repeat(count, 1)
        problem = bilevel.Problem(
            lambda x, y: (y - 0.5 * target.abs()).square().sum() / count,
            lambda x, y: (y - x * target).square().sum() / 2,
            sets.NonNegative(),
        )
        return problem, torch.full((8,), 0.1, dtype=DOUBLE), torch.zeros(count, 8, dtype=DOUBLE)

    small, large = (solve(*copies(count), steps=20) for count in (1, 80))
    assert torch.allclose(small.x[4:], large.x[4:], atol=1e-3)


def test_a_lower_level_that_cannot_be_solved_is_refused_at_the_start():
    problem = bilevel.Problem(lambda x, y: y.sum() + x.sum(), lambda x, y: -y.square().sum() * x.exp().sum())
    with pytest.raises(bilevel.BilevelError):
        solve(problem, tensor(0.0), tensor(1.0))


def test_a_flat_start_is_left():
    """The ball does not touch y*(x0), so that F does not depend on x around x0; it falls where the ball is smaller."""
    problem = bilevel.Problem(
        lambda x, y: (y - 0.3).square().sum(),
        lambda x, y: (y - 1).square().sum(),
        lambda x: sets.L1Ball(radius=x[0].exp()),
    )
    solution = solve(problem, tensor(4.0), torch.zeros(3, dtype=DOUBLE))
    assert float(problem.upper(solution.x, solution.y)) < 1e-4


def test_a_poor_minimum_far_away_is_left():
    """Far from 0, where F is nearly flat, there is a minimum of its own; the good one is near 0."""
    wanted = tensor(1.0, -1.0)
    problem = bilevel.Problem(
        lambda x, y: (y - wanted).square().sum() + 1e-3 * (x - 30.0).square().mean(),
        lambda x, y: (y - 2.0 * x.tanh()).square().sum(),
        sets.Box(-3.0, 3.0),
    )
    solution = solve(problem, tensor(25.0, 25.0), torch.zeros(2, dtype=DOUBLE))
    assert float(problem.upper(solution.x, solution.y)) < 2.0


def test_nothing_is_claimed_where_rounding_hides_decreases_of_f():
    """In float32, with condition number 1e8, F is known worse than it falls; in float64 the claim is made."""

    def outcome(dtype):
        scale = torch.logspace(0, -4, 6, dtype=dtype)
        wanted = torch.ones(6, dtype=dtype)
        problem = bilevel.Problem(
            lambda x, y: 1.0 + 1e-3 * (scale * (y - wanted)).square().sum(),
            lambda x, y: (scale * y - scale * wanted * (1 + x)).square().sum() / 2 + 1e-9 * y.square().sum(),
            sets.Box(-10.0, 10.0),
        )
        return bilevel.minimize(problem, torch.full((1,), 0.1, dtype=dtype), torch.zeros(6, dtype=dtype))

    assert outcome(DOUBLE).status is bilevel.Status.CONVERGED
    single = outcome(torch.float32)
    assert single.status is bilevel.Status.STALLED
    assert "float64" in single.message


@pytest.mark.parametrize("upper", [lambda x, y: -y.sum(), lambda x, y: -y.exp().sum()], ids=["far away", "near"])
def test_a_value_that_falls_without_end_is_said(upper):
    problem = bilevel.Problem(upper, lambda x, y: (y - x).square().sum(), bilevel.sets.NonNegative())
    start = torch.zeros(3, dtype=torch.float64)
    solution = bilevel.minimize(problem, start, start)
    assert solution.status is bilevel.Status.UNFINISHED
    assert not solution.status.ok
    assert "F falls without end" in solution.message
    assert "bound x" in solution.message


@pytest.mark.parametrize("options", [{}, {"tol": 1e-3}, {"tol": 1e-3, "delta": 1e-2}], ids=str)
def test_steps_that_end_nowhere_are_no_success(options):
    """|x| is beyond 1e30, where x - h is x."""
    problem = bilevel.Problem(
        lambda x, y: -x.sum() + 0 * y.sum(), lambda x, y: (y - x).square().sum(), sets.Box(-3.0, 3.0)
    )
    start = torch.ones(4, dtype=torch.float64)
    solution = bilevel.minimize(problem, start, 0 * start, solver=bilevel.DMLCBO(), steps=300, **options)
    assert float(solution.x.norm()) > 1e30
    assert solution.status is bilevel.Status.UNFINISHED
    assert "x needs bounds" in str(solution)
    assert solution.history[-1].stationarity == pytest.approx(2.0)


def test_a_start_from_which_f_falls_towards_infinity_is_left():
    """F = ((x + 1) / (1 + x^2) - 1)^2 is 0 at 0 and at 1; left of -3 it falls towards 1, its limit."""
    problem = bilevel.Problem(
        lambda x, y: (y - 1).square().sum(), lambda x, y: (y - (x + 1) / (1 + x.square())).square().sum()
    )
    solution = solve(problem, torch.tensor([-50.0], dtype=DOUBLE), torch.zeros(1, dtype=DOUBLE))
    assert float(bilevel.upper_value(problem, solution.x, solution.y)) < 1e-6


def test_a_tiny_gradient_at_the_start_leads_nowhere_far():
    """F = 1 - exp(-x^2 / 2) with a gradient of 1e-13 at x = 8: the first step is not as long as 1 % of F would need."""
    problem = bilevel.Problem(lambda x, y: 1 - y.sum(), lambda x, y: (y - (-x.square() / 2).exp()).square().sum())
    solution = solve(problem, torch.tensor([8.0], dtype=DOUBLE), torch.zeros(1, dtype=DOUBLE))
    assert float(solution.x.abs()) < 1e-2


def test_an_end_that_no_run_has_is_refused():
    """A file with a checksum that fits may say anything."""
    problem = bilevel.Problem(lambda x, y: y.square().sum(), lambda x, y: (y - x).square().sum())
    state = bilevel.minimize(problem, torch.ones(2), torch.ones(2), steps=1).state
    with pytest.raises(bilevel.InvalidInputError, match="end must be one of '', 'converged', 'stalled', got 'soon'"):
        dataclasses.replace(state, end="soon")


def test_a_start_at_which_f_is_zero_is_left():
    """Prices of 0 earn nothing, and so do prices of 5, at which nobody buys; 0.5 is best for a demand of 1 - x."""
    problem = bilevel.Problem(
        lambda x, y: -(x * y).sum(),
        lambda x, y: (y - (1 - x)).square().sum(),
        sets.NonNegative(),
        upper_constraint=sets.Box(0.0, 5.0),
    )
    solution = solve(problem, torch.tensor([0.0, 5.0, 0.0], dtype=DOUBLE), torch.zeros(3, dtype=DOUBLE))
    assert solution.history[0].upper == 0.0
    torch.testing.assert_close(solution.x[::2], torch.full((2,), 0.5, dtype=DOUBLE), atol=1e-4, rtol=0)
