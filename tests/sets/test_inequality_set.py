"""Projections on {y in Y : h(y) <= 0} against Clarabel, closed forms and the optimality condition."""

import cvxpy as cp
import pytest
import torch

from bilevel import errors, sets
from bilevel.sets.inequality_set import InequalitySet, joint_projection, multipliers


def ball_and_half_space(y):
    return torch.stack([y.square().sum() - 1.0, y.sum() - 0.3])


def unit_ball(y):
    return (y.square().sum() - 1.0).reshape(1)


@pytest.mark.parametrize("within", [None, sets.NonNegative()], ids=["free", "non-negative"])
@pytest.mark.parametrize("scale", [0.5, 2.0, 10.0])
def test_agrees_with_clarabel(within, scale):
    z = scale * torch.randn(6, generator=torch.Generator().manual_seed(1)).double()
    y = InequalitySet(ball_and_half_space, within).project(z)
    v = cp.Variable(6)
    constraints = [cp.norm(v) <= 1, cp.sum(v) <= 0.3] + ([] if within is None else [v >= 0])
    tight = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-10)
    cp.Problem(cp.Minimize(cp.sum_squares(v - z.numpy())), constraints).solve(solver=cp.CLARABEL, **tight)
    assert float((y - torch.tensor(v.value)).norm()) < 3e-5
    assert InequalitySet(ball_and_half_space, within).contains(y, tol=1e-10)


@pytest.mark.parametrize("size", [1.5, 4.0, 100.0, 1e5])
def test_far_points_of_a_curved_set(size):
    z = torch.tensor([3.0, -4.0, 12.0]).double() * size / 13
    y = InequalitySet(unit_ball).project(z)
    assert float((y - z / size).norm()) < 1e-12


@pytest.mark.parametrize("condition", [1e1, 1e3, 1e5, 1e7])
def test_ill_conditioned_ellipsoids(condition):
    """sum d_i y_i^2 <= 1: y_i = z_i / (1 + 2 m d_i), m by bisection."""
    d = torch.logspace(0, torch.tensor(condition).log10(), 10).double()
    z = 3 * torch.randn(10, generator=torch.Generator().manual_seed(0)).double()
    low, high = -20.0, 20.0
    for _ in range(200):
        middle = (low + high) / 2
        outside = float((d * (z / (1 + 2 * 10**middle * d)).square()).sum()) > 1
        low, high = (middle, high) if outside else (low, middle)
    y = InequalitySet(lambda y: ((d * y * y).sum() - 1.0).reshape(1)).project(z)
    assert float((y - z / (1 + 2 * 10**low * d)).norm()) < 1e-10


def test_entries_of_very_different_scales():
    """The same set, one entry of h in units of 1e-6 and the other of 1e4."""
    z = 3 * torch.randn(6, generator=torch.Generator().manual_seed(2)).double()
    scales = torch.tensor([1e6, 1e-4]).double()
    plain = InequalitySet(ball_and_half_space, sets.NonNegative()).project(z)
    scaled = InequalitySet(lambda y: scales * ball_and_half_space(y), sets.NonNegative()).project(z)
    assert float((plain - scaled).norm()) < 1e-10


@pytest.mark.parametrize("within", [sets.L1Ball(0.8), sets.Box(-0.2, 0.5)], ids=["l1 ball", "box"])
def test_the_answer_within_a_set_obeys_the_variational_inequality(within):
    """<z - y, v - y> <= 0 for points v of the set."""
    generator, region = torch.Generator().manual_seed(4), InequalitySet(ball_and_half_space, within)
    z = 2 * torch.randn(6, generator=generator).double()
    y = region.project(z)
    assert region.contains(y, tol=1e-12)
    for _ in range(20):
        v = region.project(torch.randn(6, generator=generator).double())
        assert float((z - y) @ (v - y)) <= 1e-10


def test_affine_functions_are_solved_at_once():
    """One look at h, its gradients, and a look at the answer; the products are one per row."""
    calls = []

    def box(y):
        calls.append(1)
        return torch.cat([y - 0.5, -y - 0.5])

    z = torch.linspace(-2, 2, 7).double()
    nearest = joint_projection([z], box, [sets.FreeSpace()])
    assert torch.allclose(nearest.parts[0], z.clamp(-0.5, 0.5), atol=1e-14)
    assert len(calls) == 4
    assert nearest.products == 14


def test_multipliers_minimise_the_dual():
    """0 <= m, K m - r >= 0, complementary; with dependent rows as well."""
    rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).double()
    rows = torch.cat([rows, rows[:2]])
    excess = rows @ torch.ones(3).double() * 0.5
    m = multipliers(rows @ rows.mT, excess)
    slope = rows @ rows.mT @ m - excess
    assert float(m.min()) >= 0
    assert float(slope.min()) >= -1e-9
    assert float((m * slope).abs().max()) < 1e-9


def test_single_precision():
    z = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    y = InequalitySet(lambda y: (y.norm() - 1).reshape(1)).project(z)
    assert y.dtype == torch.float32
    assert float((y - z / z.norm()).norm()) < 4e-6  # |z| = 32, and the rounding of float32 is 1.2e-7


def test_points_inside_stay():
    y = torch.tensor([0.1, -0.2]).double()
    assert InequalitySet(ball_and_half_space).project(y).equal(y)
    assert joint_projection([y], ball_and_half_space, [sets.FreeSpace()]).products == 0


def test_products_with_derivatives_are_counted():
    """Every reverse pass through h that the projection asks for."""
    passes = []

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y):
            ctx.save_for_backward(y)
            return y.square().sum().reshape(1)

        @staticmethod
        def backward(ctx, cotangent):
            passes.append(1)
            (y,) = ctx.saved_tensors
            return 2 * cotangent * y

    z = torch.tensor([3.0, 4.0]).double()
    # A gradient is one pass of h; a product with the second derivative differentiates that pass again.
    products = joint_projection([z], lambda y: Square.apply(y) - 1.0, [sets.FreeSpace()]).products
    assert len(passes) <= products <= 3 * len(passes)


@pytest.mark.parametrize(
    ("function", "within"),
    [
        (lambda y: (y.square().sum() + 1.0).reshape(1), None),
        (lambda y: torch.stack([y[0] - 1.0, 2.0 - y[0]]), None),
        (lambda y: (y.sum() + 1.0).reshape(1), sets.NonNegative()),
    ],
    ids=["one entry", "two entries", "with a set"],
)
def test_an_empty_set_is_recognised(function, within):
    where = "y in its set" if within else "y has"
    with pytest.raises(errors.EmptySetError, match=f"no point {where}.*h cannot be brought below about"):
        InequalitySet(function, within).project(torch.tensor([2.0, 1.0]).double())


def test_a_set_without_interior_is_a_question_back():
    """|y|^2 <= 0: no multiplier exists."""
    with pytest.raises(errors.NotConvergedError, match=r"is h convex.*is there a point with h\(y\) < 0"):
        InequalitySet(lambda y: y.square().sum().reshape(1)).project(torch.tensor([2.0, 1.0]).double())


def test_values_that_are_not_finite_are_reported():
    with pytest.raises(errors.NonFiniteError, match=r"1 of 1 entries of h\(y\) are NaN"):
        InequalitySet(lambda y: (y - 3.0).sqrt().sum().reshape(1)).project(torch.zeros(2).double())


def test_there_is_no_jacobian():
    with pytest.raises(errors.IncompatibleError, match="BiCGAFFA, LVHBA"):
        InequalitySet(ball_and_half_space).jacobian(torch.zeros(2))
