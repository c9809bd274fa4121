"""The second-order cone and the cone of monotone vectors."""

from __future__ import annotations

import cvxpy
import pytest
import torch

from bilevel.sets import MonotoneCone, SecondOrderCone
from bilevel.testing import SetTestCase


class TestSecondOrderCone(SetTestCase):
    def make_set(self, generator, dimension, scale):
        return SecondOrderCone()

    def oracle(self, y, Y):
        return [cvxpy.SOC(y[0], y[1:])] if y.shape[0] > 1 else [y >= 0]


class TestMonotoneCone(SetTestCase):
    def make_set(self, generator, dimension, scale):
        return MonotoneCone(increasing=bool(torch.rand((), generator=generator) < 0.5))

    def oracle(self, y, Y):
        if y.shape[0] == 1:
            return []
        return [cvxpy.diff(y) >= 0 if Y.increasing else cvxpy.diff(y) <= 0]


def test_long_vectors_by_the_minimax_formula():
    """y_i = max over j <= i of min over k >= i of mean(z_j..z_k), in every dtype."""
    z = torch.randn(300, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).cumsum(0)
    sums = torch.cat([z.new_zeros(1), z.cumsum(0)])
    mean = (sums[None, 1:] - sums[:-1, None]) / (torch.arange(300)[None] - torch.arange(300)[:, None] + 1)
    later = torch.where(torch.ones(300, 300).triu() > 0, mean, torch.inf)
    best = later.flip(1).cummin(1).values.flip(1)  # best[j, i] = min over k >= i
    expected = torch.where(torch.ones(300, 300).triu() > 0, best, -torch.inf).max(0).values
    torch.testing.assert_close(MonotoneCone().project(z), expected)


@pytest.mark.parametrize("kind", ["noise", "one value at the end pulls all down"])
def test_a_hundred_thousand_entries(kind):
    z = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    if kind != "noise":
        z = torch.cat([torch.arange(99_999.0), torch.tensor([-1e9])])
    y = MonotoneCone().project(z)
    assert MonotoneCone().contains(y)
    assert abs(float((y - z).double().sum())) <= 1e-6 * float(z.double().abs().sum())


def test_reasons():
    assert MonotoneCone().contains(torch.tensor([1.0, 0.5])).reason == (
        "an entry is smaller than the one before it (by 0.5)"
    )
    assert SecondOrderCone().contains(torch.tensor([1.0, 3.0])).reason == "|x| exceeds t, the first entry (by 2)"
