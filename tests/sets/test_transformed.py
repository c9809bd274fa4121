"""Sets moved, stretched, and of vectors that hold for all entries of a matrix together."""

from __future__ import annotations

import cvxpy
import pytest
import torch

from bilevel.errors import InvalidInputError, InvalidTypeError
from bilevel.sets import Box, Flattened, L1Ball, L2Ball, NuclearNormBall, ProductSet, Scaled, Translated
from bilevel.testing import SetTestCase

F64 = {"dtype": torch.float64}


class TestTranslated(SetTestCase):
    def make_set(self, generator, dimension, scale):
        radius = torch.rand((), generator=generator, **F64) + 0.2
        return Translated(L1Ball(radius * scale), torch.randn(dimension, generator=generator, **F64) * scale)

    def oracle(self, y, Y):
        return [cvxpy.norm1(y - Y.shift.numpy()) <= Y.base.radius.item()]


class TestScaled(SetTestCase):
    def make_set(self, generator, dimension, scale):
        radius, factor = torch.rand(2, generator=generator, **F64) + 0.2
        return Scaled(L2Ball(radius, torch.randn(dimension, generator=generator, **F64)), factor * scale)

    def oracle(self, y, Y):
        factor = Y.factor.item()
        return [cvxpy.norm2(y - factor * Y.base.center.numpy()) <= factor * Y.base.radius.item()]


class TestFlattened(SetTestCase):
    dimensions = (1, 2, 3, 5, 8)
    small_dimensions = (1, 2)

    def shape(self, dimension):
        return (dimension, 2)

    def make_set(self, generator, dimension, scale):
        radius = torch.rand((), generator=generator, dtype=torch.float64) + 0.2
        return Flattened(L1Ball(radius * scale))

    def oracle(self, y, Y):
        return [cvxpy.sum(cvxpy.abs(y)) <= Y.base.radius.item()]


def test_one_ball_for_all_rows_and_not_one_per_row():
    z = torch.tensor([[3.0, 0.0], [0.0, 2.0]])
    assert L1Ball(1.0).project(z).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert Flattened(L1Ball(1.0)).project(z).tolist() == [[1.0, 0.0], [0.0, 0.0]]
    assert Flattened(L1Ball(1.0), ndim=3).project(torch.stack([z, 0 * z])).tolist() == [
        [[1, 0], [0, 0]],
        [[0, 0], [0, 0]],
    ]


def test_parameters_of_the_base_keep_their_names():
    Y = Scaled(Translated(L2Ball(torch.ones(())), torch.zeros(2)), torch.ones(()))
    assert set(Y.tensor_parameters()) == {"factor", "base.shift", "base.base.radius"}
    assert Y.replace(**{"base.base.radius": torch.tensor(3.0)}).base.base.radius == 3  # type: ignore[attr-defined]
    Y = Flattened(L1Ball(torch.ones(())))
    assert set(Y.tensor_parameters()) == {"base.radius"}
    assert Y.replace(**{"base.radius": torch.tensor(3.0)}).base.radius == 3  # type: ignore[attr-defined]
    assert Flattened(Box(0.0, 1.0)).separable
    assert repr(Flattened(L1Ball(2.0))) == "Flattened(base=L1Ball(radius=2), ndim=2)"


def test_errors_carry_the_numbers():
    with pytest.raises(InvalidInputError, match="factor must be above 0, got 0"):
        Scaled(L2Ball(), 0.0)
    with pytest.raises(InvalidTypeError, match="base must be a convex set of tensors"):
        Translated(ProductSet({"a": L2Ball()}), 1.0)
    reason = Translated(L2Ball(1.0), 5.0).contains(torch.zeros(1)).reason
    assert reason == "after taking the shift away, the norm exceeds the radius 1 (by 4)"
    with pytest.raises(InvalidTypeError, match="base must be a convex set of vectors, got NuclearNormBall"):
        Flattened(NuclearNormBall(1.0))
    with pytest.raises(InvalidInputError, match="ndim must be an integer of at least 1, got 0"):
        Flattened(L1Ball(1.0), ndim=0)
