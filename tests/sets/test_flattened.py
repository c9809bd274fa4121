"""Sets of vectors that hold for all entries of a matrix together."""

from __future__ import annotations

import cvxpy
import pytest
import torch

from bilevel.errors import InvalidInput, InvalidType
from bilevel.sets import Box, Flattened, L1Ball, NuclearNormBall
from bilevel.testing import SetTestCase


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
    Y = Flattened(L1Ball(torch.ones(())))
    assert set(Y.tensor_parameters()) == {"base.radius"}
    assert Y.replace(**{"base.radius": torch.tensor(3.0)}).base.radius == 3  # type: ignore[attr-defined]
    assert Flattened(Box(0.0, 1.0)).separable
    assert repr(Flattened(L1Ball(2.0))) == "Flattened(L1Ball(radius=2))"


def test_errors_carry_the_numbers():
    with pytest.raises(InvalidType, match="base must be a convex set of vectors, got NuclearNormBall"):
        Flattened(NuclearNormBall(1.0))
    with pytest.raises(InvalidInput, match="ndim must be an integer of at least 1, got 0"):
        Flattened(L1Ball(1.0), ndim=0)
