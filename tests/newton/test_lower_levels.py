"""F, its error and its gradient from Newton steps on the lower level."""

import pytest
import torch

import bilevel
from bilevel import sets
from bilevel.newton import DenseLevel, OperatorLevel, Smoothing

DOUBLE = torch.float64
SIZE = 12
SETS = {
    "free": sets.FreeSpace(),
    "nonnegative": sets.NonNegative(),
    "box": sets.Box(-0.5, 0.5),
    "l1": sets.L1Ball(1.0),
    "l2": sets.L2Ball(0.7),
    "simplex": sets.Simplex(1.0),
    "capped": sets.CappedSimplex(2.0),
}


def quadratic(constraint, condition=1e2, size=SIZE, seed=0):
    """g = (y - Bx)' G (y - Bx)/2 with a given condition number, f = |y - t|^2/2."""
    generator = torch.Generator().manual_seed(seed)
    basis, _ = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=DOUBLE))
    hessian = basis @ torch.diag(torch.logspace(0, -torch.tensor(condition).log10(), size, dtype=DOUBLE)) @ basis.T
    cross, target = torch.randn(size, 3, generator=generator, dtype=DOUBLE), torch.ones(size, dtype=DOUBLE)

    def lower(x, y):
        d = y - cross @ x
        return d @ hessian @ d / 2

    return bilevel.Problem(lambda x, y: (y - target).square().sum() / 2, lower, constraint)


def start(constraint, size=SIZE):
    return torch.tensor([0.3, -0.2, 0.5], dtype=DOUBLE), constraint.project(torch.zeros(size, dtype=DOUBLE))


def central_differences(level, point, slack, width=1e-5):
    slopes = []
    for unit in torch.eye(len(point.x), dtype=DOUBLE):
        up, down = (level.evaluate(point.x + sign * width * unit, slack, point).value for sign in (1.0, -1.0))
        slopes.append((up - down) / (2 * width))
    return torch.tensor(slopes, dtype=DOUBLE)


@pytest.mark.parametrize("kind", [DenseLevel, OperatorLevel])
@pytest.mark.parametrize("name", SETS)
def test_value_and_gradient_agree_with_the_solved_lower_level(name, kind):
    constraint = SETS[name]
    problem, (x, y) = quadratic(constraint), start(constraint)
    level = kind(problem, x, y)
    point = level.evaluate(x, 1e-12, level.evaluate(x))
    solved = bilevel.solve_lower(problem, x, y, tol=1e-14)
    expected = float(problem.upper(x, solved.y))
    assert abs(point.value - expected) <= point.error + 1e-9
    h = bilevel.hypergradient(problem, x, solved.y)
    assert float((point.gradient - h).norm()) <= 1e-3 * float(h.norm())


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, DenseLevel) for name in ("box", "l1", "l2", "simplex")] + [(name, OperatorLevel) for name in ("box", "l1")],
)
def test_the_gradient_of_a_smoothed_lower_level_is_exact(name, kind):
    constraint = SETS[name]
    x, y = start(constraint)
    level = kind(quadratic(constraint, condition=10.0), x, y, Smoothing(radius=0.2, eta=1.0))
    point = level.evaluate(x, 1e-13, level.evaluate(x))
    assert point.ok
    assert torch.allclose(point.gradient, central_differences(level, point, 1e-13), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("condition", [1e4, 1e8])
@pytest.mark.parametrize("name", ["nonnegative", "l1", "l2"])
def test_ill_conditioned_lower_levels_are_solved(name, condition):
    """The optimality condition |y - P(y - grad g)| holds, and the gradient agrees with differences of F."""
    constraint = SETS[name]
    problem, (x, y) = quadratic(constraint, condition), start(constraint)
    level = DenseLevel(problem, x, y)
    point = level.evaluate(x, 1e-10, level.evaluate(x))
    assert bilevel.lower_residual(problem, x, level.tree_y(point.y)) < 1e-10
    assert torch.allclose(point.gradient, central_differences(level, point, 1e-12), rtol=1e-3, atol=1e-4)


def test_a_steep_loss_with_many_kinks_of_its_slope_is_minimised():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(60, 10, generator=generator, dtype=DOUBLE)
    signs = (rows[:, :3].sum(1) + 0.5 * torch.randn(60, generator=generator, dtype=DOUBLE)).sign()

    def hinge(x, y):
        short = (1 - signs * (rows @ (x.exp() * y))).clamp(min=0)
        return torch.where(short < 0.1, short.square() / 0.2, short - 0.05).mean() + 1e-2 * y.square().sum()

    problem = bilevel.Problem(lambda x, y: y.square().sum(), hinge, sets.Box(-1.0, 1.0))
    scales = torch.linspace(-4.0, 5.0, 10, dtype=DOUBLE)
    solved = bilevel.solve_lower(problem, scales, torch.zeros(10, dtype=DOUBLE))
    assert solved.converged
    assert solved.steps < 2000
    assert bilevel.lower_residual(problem, scales, solved.y) < 1e-12


def test_single_precision_knows_f_to_its_own_rounding():
    """At condition number 1e4: the error bound holds, and is about the rounding of f, not eta L times that of y."""
    problem, (x, y) = quadratic(SETS["box"], 1e4), start(SETS["box"])
    wide = DenseLevel(problem, x, y).evaluate(x, 1e-12)

    def narrow(function):
        return lambda *xy: function(*(u.double() for u in xy)).float()

    single = bilevel.Problem(narrow(problem.upper), narrow(problem.lower), problem.constraint)
    level = DenseLevel(single, x.float(), y.float())
    point = level.evaluate(x, 1e-7 * wide.value, level.evaluate(x, relative=1e-4))
    assert abs(point.value - wide.value) <= point.error <= 1e-4 * wide.value


def test_a_set_that_moves_with_x_passes_its_motion_to_the_gradient():
    problem = bilevel.Problem(
        lambda x, y: (y - 1).square().sum() / 2,
        lambda x, y: (y - 2).square().sum() / 2,
        lambda x: sets.L1Ball(radius=x[0].exp()),
    )
    x, y = torch.tensor([0.2], dtype=DOUBLE), torch.zeros(4, dtype=DOUBLE)
    level = DenseLevel(problem, x, y)
    point = level.evaluate(x, 1e-13, level.evaluate(x))
    radius = float(x.exp())  # y = radius/4 in each entry
    assert point.gradient.tolist() == pytest.approx([4 * (radius / 4 - 1) * radius / 4])


def test_a_point_without_a_solution_is_marked_as_failed():
    problem = bilevel.Problem(lambda x, y: y.sum(), lambda x, y: (y * x.log()).sum() + y.square().sum())
    level = DenseLevel(problem, torch.ones(2, dtype=DOUBLE), torch.zeros(2, dtype=DOUBLE))
    assert not level.evaluate(torch.tensor([-1.0, 1.0], dtype=DOUBLE)).ok


class MatrixJacobian(sets.ProjectionJacobian):
    """H as a matrix, for a single vector."""

    def __init__(self, matrix):
        self.matrix = matrix

    def apply(self, v):
        return self.matrix @ v


class SinglePointBall(sets.ConvexSet):
    """The unit ball, written for a single vector as one would on paper."""

    parameters = ()

    def project(self, z):
        return z / max(1.0, float(z.detach().norm()))

    def jacobian(self, z):
        eye, size = torch.eye(len(z), dtype=z.dtype), z.norm()
        return MatrixJacobian(eye if size <= 1 else (eye - torch.outer(z, z) / size**2) / size)

    def excess(self, y):
        return (y.norm() - 1).clamp_min(0), 1.0, "y is too long"


class SinglePointJacobian(sets.ConvexSet):
    """The orthant: its projection takes stacks, and the matrix of its Jacobian does not."""

    parameters = ()

    def project(self, z):
        return z.clamp_min(0.0)

    def jacobian(self, z):
        return MatrixJacobian(torch.diag((z > 0).to(z)))

    def excess(self, y):
        return (-y).clamp_min(0).norm(), 1.0, "y is negative"


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        (SinglePointBall(), sets.L2Ball(1.0)),
        (sets.from_projection(lambda z: z / z.norm().clamp_min(1.0)), sets.L2Ball(1.0)),
        (SinglePointJacobian(), sets.NonNegative()),
    ],
    ids=["class", "function", "jacobian"],
)
def test_sets_written_for_single_points_are_solved_like_those_that_take_stacks(constraint, expected):
    target = torch.tensor([2.0, 1.0, -1.0, 0.5], dtype=DOUBLE)
    x = y = torch.zeros(4, dtype=DOUBLE)

    def solved(constraint):
        upper, lower = lambda x, y: (y - target).square().sum(), lambda x, y: (y - x).square().sum() / 2
        return bilevel.minimize(bilevel.Problem(upper, lower, constraint), x, y)

    assert torch.allclose(solved(constraint).y, expected.project(target), atol=1e-6)
    assert torch.equal(solved(constraint).y, solved(expected).y)
