"""Transport plans and doubly stochastic matrices."""

from __future__ import annotations

import cvxpy
import pytest
import torch

from bilevel.errors import EmptySetError, InvalidInputError
from bilevel.sets import BirkhoffPolytope, TransportPolytope
from bilevel.testing import SetTestCase


class TestTransportPolytope(SetTestCase):
    oracle_cases = 30  # 2,000 among the slow tests
    dimensions = (1, 2, 3, 5, 8, 12)
    small_dimensions = (1, 2)

    def shape(self, dimension):
        return (dimension, dimension % 4 + 1) if dimension < 8 else (dimension, 20 - dimension)

    def make_set(self, generator, dimension, scale):
        shape = self.shape(dimension)
        plan = torch.rand(shape, generator=generator, dtype=torch.float64) * scale
        return TransportPolytope(plan.sum(1), plan.sum(0))

    def oracle(self, y, Y):
        return [y >= 0, cvxpy.sum(y, 1) == Y.row_sums.numpy(), cvxpy.sum(y, 0) == Y.column_sums.numpy()]

    def test_parameter_derivatives(self):
        """Along changes of both sums that keep the totals equal: autograd and differences."""
        generator = torch.Generator().manual_seed(0)
        Y = self.make_set(generator, 3, 1.0)
        z, u, change = torch.randn(3, 3, 4, generator=generator, dtype=torch.float64)
        moves = change.sum(1), change.sum(0)
        sums = [value.clone().requires_grad_() for value in (Y.row_sums, Y.column_sums)]
        grads = torch.autograd.grad(TransportPolytope(*sums).project(z), sums, u)
        by_autograd = sum((grad * move).sum() for grad, move in zip(grads, moves, strict=True))
        ends = [
            TransportPolytope(*(s.detach() + h * m for s, m in zip(sums, moves, strict=True))).project(z)
            for h in (1e-6, -1e-6)
        ]
        by_difference = ((ends[0] - ends[1]) / 2e-6 * u).sum()
        torch.testing.assert_close(by_autograd, by_difference, rtol=1e-6, atol=1e-6)


class TestBirkhoffPolytope(SetTestCase):
    oracle_cases = 30  # 2,000 among the slow tests
    dimensions = (1, 2, 3, 5, 8, 12)
    small_dimensions = (1, 2)

    def shape(self, dimension):
        return (dimension, dimension)

    def make_set(self, generator, dimension, scale):
        if scale == 1:
            return BirkhoffPolytope(dimension)
        return TransportPolytope(*(torch.full((dimension,), scale, dtype=torch.float64),) * 2)

    def oracle(self, y, Y):
        return [y >= 0, cvxpy.sum(y, 0) == Y.row_sums.numpy(), cvxpy.sum(y, 1) == Y.row_sums.numpy()]


def test_permutations_are_vertices():
    """Z far along a permutation matrix projects on it: the assignment problem."""
    from scipy.optimize import linear_sum_assignment

    z = torch.randn(20, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    p = BirkhoffPolytope(6).project(z * 1e6)
    for cost, plan in zip(z, p, strict=True):
        rows, columns = linear_sum_assignment(cost.numpy(), maximize=True)
        torch.testing.assert_close(plan[rows, columns], torch.ones(6, dtype=torch.float64))


@pytest.mark.parametrize("offset", [1e6, 1e9, 1e12])
def test_large_potentials_are_harmless(offset):
    """P(Z + a 1' + 1 b') = P(Z): at offset 1e12 all that is lost are the digits that Z itself has lost."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(20, 6, 6, dtype=torch.float64, generator=generator)
    a, b = offset * torch.randn(2, 20, 6, dtype=torch.float64, generator=generator)
    Y = BirkhoffPolytope(6)
    for shift in (torch.full_like(noise, offset), a.unsqueeze(-1) + b.unsqueeze(-2)):
        z = noise + shift
        p = Y.project(z)
        assert Y.contains(p), Y.contains(p).reason
        spacing = offset * torch.finfo(torch.float64).eps
        assert float((p - Y.project(noise)).abs().max()) <= 100 * spacing
        assert float(Y.jacobian(z).apply(noise).sum(-1).abs().max()) <= 1e-12


def test_points_of_the_polytope_beside_others():
    """Elements of a batch that need no step, whose Newton matrix is singular, do not disturb those that do."""
    Y = BirkhoffPolytope(8)
    z = 10 * torch.randn(400, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inside = Y.project(z)
    both = Y.project(torch.cat([inside, z]))
    torch.testing.assert_close(both, torch.cat([inside, inside]), rtol=0, atol=1e-12)


def test_errors_carry_the_numbers():
    with pytest.raises(EmptySetError, match="totals that differ by 1"):
        TransportPolytope(torch.ones(2), torch.ones(3))
    with pytest.raises(EmptySetError, match="row_sums must be at least 0, got -1"):
        TransportPolytope(-torch.ones(2), -torch.ones(2))
    with pytest.raises(InvalidInputError, match=r"takes points of shape \(2, 2\), .*, got \(2, 3\)"):
        BirkhoffPolytope(2).project(torch.zeros(2, 3))
    with pytest.raises(EmptySetError, match="size must be at least 1, got 0"):
        BirkhoffPolytope(0)


def test_totals_are_compared_point_by_point():
    rows = torch.tensor([[1e13, 1e13], [1.0, 1.0]], dtype=torch.float64)
    columns = torch.tensor([[1e13, 1e13], [1.0, 2.0]], dtype=torch.float64)
    with pytest.raises(EmptySetError, match="totals that differ by 1"):
        TransportPolytope(rows, columns)
    rounded = torch.tensor([1e13, 1e13 + 1.0], dtype=torch.float64)
    TransportPolytope(rows[0], rounded)  # 1 is the rounding of so large sums
