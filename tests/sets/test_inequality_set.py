"""Projections on {y in Y : h(y) <= 0} against Clarabel, closed forms and the optimality condition."""

import cvxpy as cp
import pytest
import torch

from bilevel import errors, sets
from bilevel.sets.inequality_set import InequalitySet, multipliers


def ball_and_half_space(y):
    return torch.stack([y.square().sum() - 1.0, y.sum() - 0.3])


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


@pytest.mark.parametrize("size", [1.5, 4.0, 100.0])
def test_far_points_of_a_curved_set(size):
    """Plain linearisation overshoots from 2 radii on; the damped rounds end at z / |z|."""
    z = torch.tensor([3.0, -4.0, 12.0]).double() * size / 13
    y = InequalitySet(lambda y: (y.square().sum() - 1.0).reshape(1)).project(z)
    assert float((y - z / size).norm()) < 1e-9


def test_affine_functions_take_one_round():
    calls = []

    def box(y):
        calls.append(1)
        return torch.cat([y - 0.5, -y - 0.5])

    z = torch.linspace(-2, 2, 7).double()
    assert torch.allclose(InequalitySet(box).project(z), z.clamp(-0.5, 0.5), atol=1e-14)
    assert len(calls) <= 4  # feasible?, two rounds, and the check that the answer is a fixed point


def test_points_inside_stay():
    y = torch.tensor([0.1, -0.2]).double()
    assert InequalitySet(ball_and_half_space).project(y).equal(y)


def test_multipliers_minimise_the_dual():
    """0 <= m, K m - r >= 0, complementary; with dependent rows as well."""
    rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).double()
    rows = torch.cat([rows, rows[:2]])
    excess = torch.linspace(-1.0, 1.0, 7).double()
    excess[5:] = excess[:2]
    gram = rows @ rows.mT
    m = multipliers(gram, rows @ torch.ones(3).double() * 0.5)
    slope = gram @ m - rows @ torch.ones(3).double() * 0.5
    assert float(m.min()) >= 0
    assert float(slope.min()) >= -1e-9
    assert float((m * slope).abs().max()) < 1e-9


def test_an_empty_set_is_reported():
    with pytest.raises(errors.NotConverged, match="is h convex, and is there a point"):
        InequalitySet(lambda y: (y.square().sum() + 1.0).reshape(1)).project(torch.tensor([2.0, 1.0]).double())


def test_there_is_no_jacobian():
    with pytest.raises(errors.Incompatible, match="BiCGAFFA, LVHBA"):
        InequalitySet(ball_and_half_space).jacobian(torch.zeros(2))
