"""Boxes cut by a hyperplane."""

from __future__ import annotations

import math

import cvxpy
import pytest
import torch

from bilevel.errors import EmptySetError, InvalidInputError
from bilevel.sets import BoxSection, CappedSimplex, Simplex
from bilevel.testing import SetTestCase


def uniform(generator, *shape):
    return torch.rand(shape, generator=generator, dtype=torch.float64)


class TestBoxSection(SetTestCase):
    def make_set(self, generator, dimension, scale):
        lower = -uniform(generator, dimension)
        upper = lower + 2 * uniform(generator, dimension)
        weight = torch.randn(dimension, generator=generator, dtype=torch.float64)
        inside = torch.lerp(lower, upper, uniform(generator, dimension))
        return BoxSection(lower * scale, upper * scale, weight, (weight * inside).sum() * scale)

    def oracle(self, y, Y):
        return [y >= Y.lower.numpy(), y <= Y.upper.numpy(), Y.weight.numpy() @ y == Y.total.item()]


class TestCappedSimplex(SetTestCase):
    def make_set(self, generator, dimension, scale):
        cap = uniform(generator, dimension) + 0.1
        return CappedSimplex(cap * scale, cap.sum() * (0.1 + 0.8 * uniform(generator)) * scale)

    def oracle(self, y, Y):
        return [y >= 0, y <= Y.cap.numpy(), cvxpy.sum(y) == Y.total.item()]


def test_without_a_cap_it_is_the_simplex():
    z = torch.randn(20, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(BoxSection().project(z), Simplex().project(z))


def test_entries_of_weight_zero_are_only_clipped():
    Y = BoxSection(0.0, 1.0, torch.tensor([1.0, 0.0, 0.0]), 0.25)
    assert Y.project(torch.tensor([3.0, 0.5, 7.0])).tolist() == [0.25, 0.5, 1.0]


def test_a_total_at_its_limit_leaves_one_vertex():
    Y = CappedSimplex(0.5, 1.5)
    assert Y.project(torch.tensor([3.0, -1.0, 0.0])).tolist() == [0.5, 0.5, 0.5]
    assert Y.jacobian(torch.tensor([3.0, -1.0, 0.0])).dimension == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: CappedSimplex(0.2, 1.0).project(torch.zeros(3)),
            "between 0 and 0.6, and never reaches the total 1",
        ),
        (lambda: BoxSection(0.0, 1.0, torch.ones(2), 3.0), "between 0 and 2"),
        (lambda: BoxSection(1.0, 0.0), "lower exceeds upper by 1"),
        (lambda: CappedSimplex(-1.0), "cap must be at least 0, got -1"),
    ],
)
def test_empty_sections_are_refused(make, message):
    with pytest.raises(EmptySetError, match=message):
        make()


def test_sizes_must_fit():
    with pytest.raises(InvalidInputError, match=r"weight of shape \(3,\) does not fit points of shape \(1,\)"):
        BoxSection(0.0, math.inf, torch.ones(3)).project(torch.ones(1))


def test_large_offset_along_the_weight_changes_nothing():
    noise = torch.randn(50, generator=torch.Generator().manual_seed(0))
    z = 1e6 + noise
    Y = CappedSimplex(0.3, 1.0)
    assert (Y.project(z).double() - Y.project(z.double())).abs().max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 2, 20, 500])
def test_one_vector_of_a_capped_simplex_is_a_batch_of_one(size, dtype):
    """Short vectors have a search of their own: the same nearest point, near and far, with ties and at corners."""
    generator = torch.Generator().manual_seed(size)
    for share in (1e-9, 0.01, 0.3, 0.5, 0.999, 1.0):
        for scale in (1e-3, 0.5, 1.0, 30.0, 1e5):
            Y = CappedSimplex(0.5, share * 0.5 * size)
            normal = torch.randn(size, generator=generator, dtype=torch.float64) * scale
            for z in (normal, (4 * normal).round() / 4, torch.full_like(normal, scale)):
                one, batch = Y.project(z.to(dtype)), Y.project(z.to(dtype).double()[None])[0]
                assert Y.contains(one)
                torch.testing.assert_close(one.double(), batch, rtol=0, atol=1e-13 + torch.finfo(dtype).eps)
