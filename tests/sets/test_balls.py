"""The l1, l2, ... balls."""

from __future__ import annotations

import cvxpy
import torch

from bilevel.sets import L1Ball, L2Ball
from bilevel.testing import SetTestCase


def positive(generator, *shape):
    return torch.rand(shape, generator=generator, dtype=torch.float64) + 0.2


class TestL1Ball(SetTestCase):
    def make_set(self, generator, dimension, scale):
        return L1Ball(positive(generator) * scale)

    def oracle(self, y, Y):
        return [cvxpy.norm1(y) <= Y.radius.item()]


class TestL2Ball(SetTestCase):
    def make_set(self, generator, dimension, scale):
        center = torch.randn(dimension, generator=generator, dtype=torch.float64)
        return L2Ball(positive(generator) * scale, center * scale)

    def oracle(self, y, Y):
        return [cvxpy.norm2(y - Y.center.numpy()) <= Y.radius.item()]
