"""Sets moved and stretched."""

from __future__ import annotations

import cvxpy
import pytest
import torch

from bilevel.errors import InvalidInput, InvalidType
from bilevel.sets import L1Ball, L2Ball, ProductSet, Scaled, Translated
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


def test_parameters_of_the_base_keep_their_names():
    Y = Scaled(Translated(L2Ball(torch.ones(())), torch.zeros(2)), torch.ones(()))
    assert set(Y.tensor_parameters()) == {"factor", "base.shift", "base.base.radius"}
    assert Y.replace(**{"base.base.radius": torch.tensor(3.0)}).base.base.radius == 3  # type: ignore[attr-defined]


def test_errors_carry_the_numbers():
    with pytest.raises(InvalidInput, match="factor must be above 0, got 0"):
        Scaled(L2Ball(), 0.0)
    with pytest.raises(InvalidType, match="base must be a convex set of tensors"):
        Translated(ProductSet({"a": L2Ball()}), 1.0)
    reason = Translated(L2Ball(1.0), 5.0).contains(torch.zeros(1)).reason
    assert reason == "after taking the shift away, the norm exceeds the radius 1 (by 4)"
