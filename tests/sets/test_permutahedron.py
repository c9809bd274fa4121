"""The permutahedron."""

from __future__ import annotations

import itertools

import cvxpy
import pytest
import torch

from bilevel.errors import InvalidInputError
from bilevel.sets import Permutahedron
from bilevel.testing import SetTestCase


class TestPermutahedron(SetTestCase):
    def make_set(self, generator, dimension, scale):
        return Permutahedron(torch.randn(dimension, generator=generator, dtype=torch.float64) * scale)

    def oracle(self, y, Y):
        """y = S vertex with a doubly stochastic matrix S (Hardy, Littlewood & Polya, 1929)."""
        S = cvxpy.Variable((len(Y.vertex), len(Y.vertex)), nonneg=True)
        return [y == S @ Y.vertex.numpy(), cvxpy.sum(S, 0) == 1, cvxpy.sum(S, 1) == 1]


def test_it_is_the_hull_of_the_permutations():
    vertex = torch.tensor([1.0, 4.0, -2.0, 0.5], dtype=torch.float64)
    corners = torch.stack([vertex[list(p)] for p in itertools.permutations(range(4))])
    Y = Permutahedron(vertex)
    torch.testing.assert_close(Y.project(corners), corners)
    z = torch.randn(50, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    p = Y.project(z)
    assert float(((z - p) @ corners.T - ((z - p) * p).sum(-1, keepdim=True)).max()) <= 1e-12


def test_a_large_common_offset_is_harmless():
    vertex, noise = torch.arange(5.0, 0.0, -1.0), torch.tensor([0.25, 1.5, 0.5, -1.0, 2.0])
    torch.testing.assert_close(Permutahedron(vertex).project(noise + 2.0**20), Permutahedron(vertex).project(noise))


def test_errors_carry_the_numbers():
    with pytest.raises(InvalidInputError, match=r"Permutahedron takes points of shape \(3,\), .*, got \(2,\)"):
        Permutahedron(torch.zeros(3)).project(torch.zeros(2))
    with pytest.raises(InvalidInputError, match="vertex must be a tensor"):
        Permutahedron(1.0)  # type: ignore[arg-type]
