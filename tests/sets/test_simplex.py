"""The simplex and the l1 ball."""

from __future__ import annotations

import cvxpy
import pytest
import torch

from bilevel.errors import EmptySetError
from bilevel.sets import L1Ball, Simplex
from bilevel.sets.threshold import cut_level
from bilevel.testing import SetTestCase


def positive(generator, *shape):
    return torch.rand(shape, generator=generator, dtype=torch.float64) + 0.2


class TestSimplex(SetTestCase):
    def make_set(self, generator, dimension, scale):
        return Simplex(positive(generator) * scale)

    def oracle(self, y, Y):
        return [y >= 0, cvxpy.sum(y) == Y.radius.item()]


class TestL1Ball(SetTestCase):
    def make_set(self, generator, dimension, scale):
        return L1Ball(positive(generator) * scale)

    def oracle(self, y, Y):
        return [cvxpy.norm1(y) <= Y.radius.item()]


def long_vectors():
    """Dense and sparse answers, ties, offsets, a long tail, one outlier."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(20_000, generator=generator, dtype=torch.float64)
    yield "normal", normal
    yield "ties", (4 * normal).round() / 4
    yield "constant", torch.full_like(normal, 3.0)
    yield "offset", 1e6 + normal
    yield "tail", normal.abs() ** -2
    yield "outlier", torch.cat([normal, torch.tensor([1e12], dtype=torch.float64)])
    yield "zeros", torch.zeros_like(normal)
    yield "sorted", torch.linspace(-1, 1, 19_999, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("radius", [1e-12, 1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize(("name", "z"), [pytest.param(*case, id=case[0]) for case in long_vectors()])
def test_all_searches_agree(name, z, radius, dtype):
    """Newton on one long vector, Newton on a batch and sorting give the same level: the sum is the radius."""
    z = z.to(dtype)
    b = z - z.max()
    r = torch.full((1,), radius, dtype=dtype)
    exact = ((b.double().sort(descending=True).values.cumsum(0) - radius) / torch.arange(1, len(b) + 1)).max()
    eps = torch.finfo(dtype).eps
    slack = 64 * eps * max(float(exact.abs()), 1e-300)
    assert abs(cut_level(b, r).double() - exact) <= slack
    pair = torch.stack([b, b.flip(0)])
    assert ((cut_level(pair, r.expand(2, 1)).double() - exact).abs() <= slack).all()
    p = Simplex(radius).project(z)
    assert p.min() >= 0
    assert abs(p.double().sum() - radius) <= 300 * eps * radius


@pytest.mark.parametrize("size", [1, 50, 5_000])
def test_a_batch_is_a_loop_over_short_and_long_vectors(size):
    z = torch.randn(3, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = torch.stack([Simplex().project(row) for row in z])
    torch.testing.assert_close(Simplex().project(z), expected)


def test_float32_with_a_large_offset_is_exact_to_rounding():
    z = 1e6 + torch.randn(5_000, generator=torch.Generator().manual_seed(0))
    for Y in (Simplex(), L1Ball()):
        assert (Y.project(z).double() - Y.project(z.double())).abs().max() < 1e-6


@pytest.mark.parametrize("make", [Simplex, L1Ball])
def test_radius_per_batch_element_carries_derivatives(make):
    radius = torch.tensor([0.5, 2.0, 50.0], dtype=torch.float64, requires_grad=True)
    z = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    Y = make(radius)
    u = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (by_autograd,) = torch.autograd.grad(Y.project(z), radius, u)
    ends = [make(radius.detach() + step).project(z) for step in (1e-6, -1e-6)]
    by_difference = ((ends[0] - ends[1]) * u).sum(-1) / 2e-6
    torch.testing.assert_close(by_autograd, by_difference, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(Y.project(z)[1], make(2.0).project(z[1]))
    torch.testing.assert_close(Y.project(z[0])[2], make(50.0).project(z[0]))


def test_empty_sets_are_refused():
    with pytest.raises(EmptySetError, match="radius must be at least 0, got -1"):
        Simplex(-1.0)
    with pytest.raises(EmptySetError, match="radius must be at least 0, got -1"):
        L1Ball(torch.tensor([1.0, -1.0]))


def test_reasons_carry_numbers():
    reason = L1Ball(1.0).contains(torch.tensor([1.0, 0.5])).reason
    assert reason == "the l1 norm exceeds the radius 1 (by 0.5)"


def test_a_ball_of_radius_zero_is_a_point():
    assert L1Ball(0.0).project(torch.tensor([1.0, -2.0, 0.0])).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("kind", [L1Ball, Simplex])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [7, 1_000, 5_000])
def test_the_jacobian_of_one_vector_is_that_of_a_batch(kind, dtype, size):
    """Short and long vectors have ways of their own: the same H as in a batch, inside and outside."""
    z, v = torch.randn(2, size, dtype=dtype, generator=torch.Generator().manual_seed(size))
    for number in (0.0, 1.0, 0.05 * size, 10.0 * size):
        radius = torch.tensor(number, dtype=dtype)
        one, batch = kind(radius).jacobian(z), kind(radius).jacobian(z[None])
        if one.support is not None:  # H = I
            assert torch.equal(one.support, batch.support[0])
        assert one.dimension == batch.dimension[0]
        torch.testing.assert_close(one.apply(v), batch.apply(v[None])[0])
