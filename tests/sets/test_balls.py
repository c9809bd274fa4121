"""The Euclidean, weighted l1, group l1 and elastic-net balls."""

from __future__ import annotations

import cvxpy
import pytest
import torch

from bilevel.errors import EmptySetError, InvalidInputError, InvalidTypeError
from bilevel.sets import (
    ElasticNetBall,
    GroupL1Ball,
    L1Ball,
    L2Ball,
    LInfBall,
    NuclearNormBall,
    SpectralNormBall,
    WeightedL1Ball,
)
from bilevel.testing import SetTestCase

F64 = {"dtype": torch.float64}


def positive(generator, *shape):
    return torch.rand(shape, generator=generator, dtype=torch.float64) + 0.2


class TestL2Ball(SetTestCase):
    def make_set(self, generator, dimension, scale):
        center = torch.randn(dimension, generator=generator, dtype=torch.float64)
        return L2Ball(positive(generator) * scale, center * scale)

    def oracle(self, y, Y):
        return [cvxpy.norm2(y - Y.center.numpy()) <= Y.radius.item()]


class TestWeightedL1Ball(SetTestCase):
    def make_set(self, generator, dimension, scale):
        return WeightedL1Ball(positive(generator, dimension), positive(generator) * scale)

    def oracle(self, y, Y):
        return [Y.weight.numpy() @ cvxpy.abs(y) <= Y.radius.item()]


class TestGroupL1Ball(SetTestCase):
    small_dimensions = (1, 2, 4)

    def make_set(self, generator, dimension, scale):
        groups = torch.randint((dimension + 1) // 2, (dimension,), generator=generator)
        return GroupL1Ball(groups, positive(generator) * scale)

    def oracle(self, y, Y):
        labels = Y.groups.numpy()
        norms = [cvxpy.norm2(y[(labels == g).nonzero()[0]]) for g in sorted(set(labels.tolist()))]
        return [sum(norms) <= Y.radius.item()]


class TestElasticNetBall(SetTestCase):
    oracle_cases = 30  # 2,000 among the slow tests

    def make_set(self, generator, dimension, scale):
        return ElasticNetBall(positive(generator) / scale, positive(generator) * scale)

    def oracle(self, y, Y):
        return [cvxpy.norm1(y) + Y.gamma.item() / 2 * cvxpy.sum_squares(y) <= Y.radius.item()]


def normal(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_equal_weights_and_single_entries_give_the_l1_ball():
    z, expected = normal(20, 7), L1Ball(1.5).project(normal(20, 7))
    torch.testing.assert_close(WeightedL1Ball(1.0, 1.5).project(z), expected)
    torch.testing.assert_close(GroupL1Ball(1, 1.5).project(z), expected)
    torch.testing.assert_close(ElasticNetBall(0.0, 1.5).project(z), expected)


def test_one_group_gives_the_euclidean_ball():
    torch.testing.assert_close(GroupL1Ball(7, 1.5).project(normal(20, 7)), L2Ball(1.5).project(normal(20, 7)))


@pytest.mark.parametrize(
    "make",
    [
        lambda radius: L2Ball(radius, 0.5),
        lambda radius: WeightedL1Ball(torch.arange(1.0, 7.0).double(), radius),
        lambda radius: GroupL1Ball(2, radius),
        lambda radius: ElasticNetBall(0.7, radius),
    ],
)
def test_radius_per_batch_element_carries_derivatives(make):
    radius = torch.tensor([0.5, 2.0, 50.0], dtype=torch.float64, requires_grad=True)
    z, u = normal(3, 6), normal(2, 3, 6)[1]
    Y = make(radius)
    (by_autograd,) = torch.autograd.grad(Y.project(z), radius, u)
    ends = [make(radius.detach() + step).project(z) for step in (1e-6, -1e-6)]
    by_difference = ((ends[0] - ends[1]) * u).sum(-1) / 2e-6
    torch.testing.assert_close(by_autograd, by_difference, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(Y.project(z)[1], make(2.0).project(z[1]))


@pytest.mark.parametrize("Y", [L2Ball(0.0), WeightedL1Ball(2.0, 0.0), GroupL1Ball(1, 0.0), ElasticNetBall(1.0, 0.0)])
def test_a_ball_of_radius_zero_is_a_point(Y):
    assert Y.project(torch.tensor([1.0, -2.0, 0.0])).abs().max() == 0
    assert Y.project(torch.zeros(3)).abs().max() == 0


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: L2Ball(-0.5), EmptySetError, "radius must be at least 0, got -0.5"),
        (lambda: L2Ball(torch.nan), InvalidInputError, "radius must be finite, got nan"),
        (lambda: WeightedL1Ball(torch.tensor([1.0, 0.0])), InvalidInputError, "weight must be above 0, got 0"),
        (
            lambda: WeightedL1Ball(torch.ones(3)).project(torch.ones(1)),
            InvalidInputError,
            r"weight of shape \(3,\) does not fit points of shape \(1,\)",
        ),
        (lambda: GroupL1Ball(0), InvalidInputError, "at least 1 entry, got groups=0"),
        (lambda: GroupL1Ball(1.5), InvalidTypeError, "groups must be an integer"),
        (lambda: GroupL1Ball(torch.ones(2)), InvalidTypeError, "float32"),
        (
            lambda: GroupL1Ball(2).project(torch.ones(3)),
            InvalidInputError,
            "3 entries cannot be split into groups of 2",
        ),
        (
            lambda: GroupL1Ball(torch.tensor([0, 1])).project(torch.ones(3)),
            InvalidInputError,
            "2 group numbers .* 3 entries",
        ),
        (lambda: ElasticNetBall(-1.0), InvalidInputError, "gamma must be at least 0, got -1"),
    ],
)
def test_bad_parameters_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


RADIUS_0 = {
    "L1Ball": L1Ball,
    "L2Ball": L2Ball,
    "LInfBall": LInfBall,
    "WeightedL1Ball": lambda radius: WeightedL1Ball(torch.tensor([1.0, 2.0, 1.0, 0.5], **F64), radius),
    "GroupL1Ball": lambda radius: GroupL1Ball(2, radius),
    "ElasticNetBall": lambda radius: ElasticNetBall(2.0, radius),
    "SpectralNormBall": SpectralNormBall,
    "NuclearNormBall": NuclearNormBall,
}


@pytest.mark.parametrize("name", RADIUS_0)
@pytest.mark.parametrize("entries", [(0, 0, 0, 0), (1, 0, 0, 0), (3, 3, -3, 1), (1, 2, 3, 4), (2, 0, 0, 2)])
def test_the_projection_on_a_point_is_constant(name, entries):
    """With radius 0, H = 0 everywhere, by the closed form and by autograd; in a batch only where the radius is 0."""
    matrix = name in ("SpectralNormBall", "NuclearNormBall")
    z = torch.tensor(entries, **F64).reshape((2, 2) if matrix else (4,))
    v = torch.arange(1.0, 5.0, **F64).reshape(z.shape)
    for Y in (RADIUS_0[name](0.0), RADIUS_0[name](torch.zeros((), **F64))):
        leaf = z.clone().requires_grad_()
        (by_autograd,) = torch.autograd.grad(Y.project(leaf), leaf, v)
        assert not Y.project(z).any()
        assert not by_autograd.any()
        assert not Y.jacobian(z).apply(v).any()
    if name == "LInfBall":
        return  # its radius may differ between entries, not between points
    batch, leaf = RADIUS_0[name](torch.tensor([0.0, 50.0], **F64)), torch.stack([z, z]).requires_grad_()
    directions = torch.stack([v, v])
    (by_autograd,) = torch.autograd.grad(batch.project(leaf), leaf, directions)
    expected = torch.stack([torch.zeros_like(v), v])
    torch.testing.assert_close(by_autograd, expected)
    torch.testing.assert_close(batch.jacobian(leaf).apply(directions), expected)
