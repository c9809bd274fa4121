"""The lower level: steep places, general metrics, and derivatives there."""

import math

import pytest
import scipy.optimize
import torch

import bilevel
from bilevel import sets

METRIC = torch.tensor(
    [[2.0, 0.7, 0.1, 0.0], [0.7, 1.5, -0.4, 0.2], [0.1, -0.4, 1.0, 0.3], [0.0, 0.2, 0.3, 0.8]]
).double()


def test_an_overshoot_into_a_steep_place_is_taken_back():
    """g = sum exp(y) + |y - 40|^2/2 from y = -50: the first step of length 1/L lands where the slope is 1e17."""
    problem = bilevel.Problem(
        lambda x, y: y.sum(),
        lambda x, y: y.exp().sum() + (y - x).square().sum() / 2,
        y0=torch.full((3,), -50.0).double(),
    )
    solution = bilevel.solve_lower(problem, torch.full((3,), 40.0).double())
    assert solution.converged
    y = solution.y[0]
    assert float(y.exp() + y - 40) == pytest.approx(0.0, abs=1e-9)


def test_a_lower_level_that_lives_only_inside_its_set():
    """Entropy on the simplex: y* = softmax(x), although the extrapolated point may leave the set."""
    x = torch.tensor([1.0, -0.5, 2.0, 0.3]).double()
    problem = bilevel.Problem(
        lambda x, y: y.sum(),
        lambda x, y: (y * y.log()).sum() - x @ y,
        sets.Simplex(1.0),
        y0=torch.full((4,), 0.25).double(),
    )
    solution = bilevel.solve_lower(problem, x, tol=1e-9)
    assert torch.allclose(solution.y, x.softmax(0), atol=1e-8)


@pytest.mark.parametrize(
    "constraint",
    [sets.L1Ball(1.0), sets.L2Ball(1.0), sets.Simplex(1.0), sets.Box(-0.3, 0.4), sets.SecondOrderCone()],
    ids=repr,
)
def test_hypergradient_under_a_general_metric(constraint):
    """No multiple of the identity: conjugate gradients on a face, GMRES on curved sets; differences of F agree."""
    shift = torch.tensor([0.9, -0.7, 0.5, 0.2]).double()
    problem = bilevel.Problem(
        upper=lambda x, y: (y - shift).square().sum() + 0.1 * x.square().sum(),
        lower=lambda x, y: (y - x) @ METRIC @ (y - x) / 2,
        constraint=constraint,
        y0=constraint.project(torch.zeros(4).double()),
    )
    x = torch.tensor([1.1, -0.9, 0.8, 0.3]).double()
    h = bilevel.hypergradient(problem, x, details=True)
    differences = torch.stack(
        [
            (bilevel.upper_value(problem, x + e, tol=1e-13) - bilevel.upper_value(problem, x - e, tol=1e-13)) / 2e-5
            for e in 1e-5 * torch.eye(4).double()
        ]
    )
    assert float((h.gradient - differences).norm() / differences.norm()) < 1e-6
    assert h.stats["residual"] < 1e-9


def ill_conditioned(n, condition, constraint):
    """g = (y - x)' A (y - x)/2 with eigenvalues from 1 to 1/condition, and its matrix and centre."""
    generator = torch.Generator().manual_seed(n)
    basis = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64)).Q
    matrix = (basis * torch.logspace(0, -math.log10(condition), n, dtype=torch.float64)) @ basis.T
    x = 2 * torch.randn(n, generator=generator, dtype=torch.float64)
    problem = bilevel.Problem(
        lambda x, y: y.sum(), lambda x, y: (y - x) @ matrix @ (y - x) / 2, constraint, y0=torch.zeros(n).double()
    )
    return problem, matrix, x


@pytest.mark.parametrize(
    ("n", "condition", "lower", "upper"),
    [(40, 1e6, -3.0, 3.0), (40, 1e8, 0.0, math.inf), (200, 1e8, 0.0, math.inf)],
)
def test_ill_conditioned_lower_levels_within_bounds(n, condition, lower, upper):
    problem, matrix, x = ill_conditioned(n, condition, sets.Box(lower, upper))
    solved = bilevel.solve_lower(problem, x, max_steps=1_000)
    values, basis = torch.linalg.eigh(matrix)
    root = ((basis * values.sqrt()) @ basis.T).numpy()
    exact = scipy.optimize.lsq_linear(root, root @ x.numpy(), (lower, upper), method="bvls", tol=1e-15).x
    assert solved.converged
    assert float((solved.y - torch.as_tensor(exact)).norm()) < 1e-4


@pytest.mark.parametrize("n", [40, 700])
@pytest.mark.parametrize("condition", [1e4, 1e8])
def test_ill_conditioned_lower_levels_in_a_ball(n, condition):
    """On the sphere (A + mu I) y = A x: mu by bisection."""
    problem, matrix, x = ill_conditioned(n, condition, sets.L2Ball(0.5))
    solved = bilevel.solve_lower(problem, x, max_steps=2_000)
    values, basis = torch.linalg.eigh(matrix)
    pull = values * (basis.T @ x)
    mu = scipy.optimize.brentq(lambda mu: float((pull / (values + mu)).norm()) - 0.5, 0.0, 100.0, xtol=1e-15)
    assert solved.converged
    assert float((solved.y - basis @ (pull / (values + mu))).norm()) < 1e-8


def test_a_lower_level_without_curvature_is_solved_by_gradient_steps():
    """A linear g over the l1 ball: the vertex of the largest coefficient."""
    c = torch.tensor([0.3, -1.1, 0.7]).double()
    problem = bilevel.Problem(
        lambda x, y: y.sum(), lambda x, y: c @ y * x, sets.L1Ball(1.0), y0=torch.tensor([0.2, 0.3, 0.1]).double()
    )
    solved = bilevel.solve_lower(problem, torch.tensor(1.0).double())
    assert solved.converged
    torch.testing.assert_close(solved.y, torch.tensor([0.0, 1.0, 0.0]).double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("of_g", "of_y"), [(1.0, 1.0), (1e-8, 1.0), (1e8, 1.0), (1.0, 1e-6), (1.0, 1e6)])
def test_units_of_g_and_y_do_not_matter(dtype, of_g, of_y):
    weights, target = torch.tensor([1.0, 0.01, 0.3], dtype=dtype), torch.tensor([0.5, 3.0, -0.2], dtype=dtype)
    problem = bilevel.Problem(
        lambda x, y: y.sum(), lambda x, y: of_g * ((y - of_y * x).square() * weights).sum(), sets.NonNegative()
    )
    solution = bilevel.solve_lower(problem, target, torch.zeros(3, dtype=dtype))
    assert solution.converged
    assert torch.allclose(solution.y / of_y, target.clamp_min(0), rtol=1e-5 if dtype == torch.float32 else 1e-9)


@pytest.mark.parametrize("of_g", [1e-36, 1e-30, 1e-24, 1e-18, 1e18, 1e25, 1e32])
def test_a_g_whose_squared_gradients_leave_the_range_of_float32_is_solved_or_the_user_is_told(of_g):
    target = torch.tensor([0.3, -1.7, 0.9, 0.6])
    problem = bilevel.Problem(
        lambda x, y: y.sum(), lambda x, y: of_g * (y - x).square().sum(), sets.L1Ball(1.0), y0=torch.zeros(4)
    )
    problem.flaws = None
    solution = bilevel.solve_lower(problem, target)
    right = torch.allclose(solution.y, sets.L1Ball(1.0).project(target), atol=1e-5)
    assert right is solution.converged
    assert right or of_g > 1e19


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("start", [0.0, 1.0])
@pytest.mark.parametrize("seed", [0, 7, 16, 39])
def test_a_solution_that_is_zero_but_for_rounding_is_recognised(dtype, start, seed):
    """The gradient at 0 is A'b, a sum that cancels."""
    generator = torch.Generator().manual_seed(seed)
    A, b = (torch.randn(size, generator=generator, dtype=torch.float64) for size in ((50, 10), (50, 1)))
    b = b - A @ torch.linalg.lstsq(A, b).solution
    A, b = A.to(dtype), b[:, 0].to(dtype)
    problem = bilevel.Problem(lambda x, y: y.sum() * x.sum(), lambda x, y: (A @ y - b).square().mean() + 0 * x.sum())
    solution = bilevel.solve_lower(problem, torch.zeros(1, dtype=dtype), torch.full((10,), start, dtype=dtype))
    assert solution.converged
    assert solution.steps < 1000
    assert float(solution.y.norm()) < 10 * torch.finfo(dtype).eps
