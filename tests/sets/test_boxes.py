"""Free space, boxes, the non-negative orthant, the l-infinity ball."""

from __future__ import annotations

import cvxpy
import pytest
import torch

from bilevel.errors import EmptySetError, InvalidInputError, InvalidTypeError
from bilevel.sets import Box, FreeSpace, LInfBall, NonNegative
from bilevel.testing import SetTestCase


def uniform(generator, *shape):
    return torch.rand(shape, generator=generator, dtype=torch.float64)


class TestFreeSpace(SetTestCase):
    takes_numbers = True

    def make_set(self, generator, dimension, scale):
        return FreeSpace()

    def oracle(self, y, Y):
        return []


class TestNonNegative(SetTestCase):
    def make_set(self, generator, dimension, scale):
        return NonNegative()

    def oracle(self, y, Y):
        return [y >= 0]


class TestBox(SetTestCase):
    def make_set(self, generator, dimension, scale):
        lower = -uniform(generator, dimension)
        return Box(lower * scale, (lower + 2 * uniform(generator, dimension)) * scale)

    def oracle(self, y, Y):
        return [y >= Y.lower.numpy(), y <= Y.upper.numpy()]


class TestLInfBall(SetTestCase):
    def make_set(self, generator, dimension, scale):
        return LInfBall((uniform(generator) + 0.2) * scale)

    def oracle(self, y, Y):
        return [cvxpy.norm_inf(y) <= Y.radius.item()]


def test_open_sides_and_fixed_entries():
    Y = Box(torch.tensor([-torch.inf, 0.0, 1.0]), torch.tensor([0.0, torch.inf, 1.0]))
    z = torch.tensor([5.0, -5.0, 7.0])
    assert Y.project(z).tolist() == [0.0, 0.0, 1.0]
    assert Y.jacobian(z).dimension == 0


def test_radius_per_batch_element():
    radius = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)
    z = torch.tensor([[1.0, -3.0], [1.0, -3.0]], dtype=torch.float64)
    Y = LInfBall(radius)
    assert Y.project(z).tolist() == [[0.5, -0.5], [1.0, -2.0]]
    u = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    (by_autograd,) = torch.autograd.grad(Y.project(z), radius, u)
    assert by_autograd.tolist() == [-1.0, -4.0]


def test_free_space_takes_dictionaries_and_numbers():
    z = {"a": torch.ones(2), "b": torch.tensor(1.0)}
    assert FreeSpace().project(z).keys() == z.keys()
    with pytest.raises(InvalidInputError, match="1 of 1 entries"):
        FreeSpace().project(torch.tensor(torch.nan))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Box(1.0, 0.5), EmptySetError, "lower exceeds upper by 0.5"),
        (lambda: Box(torch.inf), EmptySetError, "leaves no point"),
        (lambda: Box(torch.nan), InvalidInputError, "lower is NaN"),
        (lambda: Box(upper=torch.tensor([1.0, torch.nan])), InvalidInputError, "1 NaN entries"),
        (lambda: Box("a"), InvalidTypeError, "lower must be a number"),
        (lambda: Box(torch.tensor([1])), InvalidTypeError, "int64"),
        (lambda: LInfBall(-1.0), EmptySetError, "radius must be at least 0, got -1"),
    ],
)
def test_bad_bounds_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()
