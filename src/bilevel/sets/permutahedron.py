"""The permutahedron: all averages of the rearrangements of a vector."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import tolerances
from .base import ConvexSet, ProjectionJacobian, tensor_parameter, validated
from .monotone_cone import block_first, block_margin, block_mean, block_sum, isotonic_blocks


class Permutahedron(ConvexSet):
    """conv{rearrangements of vertex}; P(z) = z - v with v the decreasing isotonic regression of z - vertex.

    Both z and vertex are sorted downwards first (Blondel et al., 2020, proposition 3). H subtracts the mean
    over each block of the regression: dimension n minus the number of blocks. At a kink the blocks are as small as
    the sums of P(z) allow: H belongs to the smallest face that holds P(z).

    Parameters
    ----------
    vertex
        Tensor of shape (n,), or (..., n) with one vertex per batch element; n, n - 1, ..., 1 for ranks.

    Examples
    --------
    >>> Permutahedron(torch.tensor([3.0, 2.0, 1.0])).project(torch.tensor([0.2, 9.0, 0.0]))
    tensor([1.6000, 3.0000, 1.4000])
    """

    polyhedral = True
    parameters: tuple[str, ...] = ("vertex",)
    vectors = ("vertex",)

    def __init__(self, vertex: Tensor) -> None:
        self.vertex: Tensor = tensor_parameter("vertex", vertex)
        self.point_shape = self.vertex.shape[-1:]

    def _sorted(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """z and vertex downwards, the order of z, and the blocks of the regression."""
        z, vertex = torch.broadcast_tensors(z, self.vertex.to(z))
        order = z.detach().argsort(dim=-1, descending=True, stable=True)
        ranking = vertex.detach().argsort(dim=-1, descending=True, stable=True)
        z, vertex = z.gather(-1, order), vertex.gather(-1, ranking)
        return z, vertex, order, smallest_blocks(z.detach(), vertex.detach())

    @validated
    def project(self, z: Tensor) -> Tensor:
        z, vertex, order, blocks = self._sorted(z)
        # The differences within a block are small and exact, however large z is.
        inner, level = z - block_first(z.detach(), blocks), block_mean(vertex.detach(), blocks)
        y = inner - block_mean(inner, blocks) + (level + block_mean(vertex - level, blocks))
        return y.gather(-1, order.argsort(-1))

    @validated
    def jacobian(self, z: Tensor) -> ProjectionJacobian:
        _, _, order, blocks = self._sorted(z)
        return SortedBlocksJacobian(order, blocks)

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        """Majorisation: the k largest entries of y add up to at most those of vertex, all n to as much."""
        vertex = self.vertex.detach().to(y).sort(-1, descending=True).values
        surplus = (y.detach().sort(-1, descending=True).values - vertex).cumsum(-1)
        amount = torch.maximum(surplus.amax(-1), surplus[..., -1].abs()).clamp_min(0)
        what = "the largest entries add up to more than those of the vertex, or all to another sum"
        return amount, vertex.abs().sum(-1), what

    @validated
    def margin(self, z: Tensor) -> Tensor:
        z, vertex, _, blocks = self._sorted(z)
        idle = vertex[..., 1:] == vertex[..., :-1]  # equal entries of the vertex in any order are the same point
        count = block_sum(torch.ones_like(z), blocks)
        idle = idle & (count[..., 1:] == 1) & (count[..., :-1] == 1)
        return block_margin(vertex - (z - z[..., :1]), blocks, idle)


def smallest_blocks(z: Tensor, vertex: Tensor) -> Tensor:
    """The blocks of the regression of z - vertex, both downwards, cut wherever P(z) and vertex have equal sums."""
    z, vertex = z.double(), vertex.double()
    # A gap in z wider than the vertex always parts two blocks: cut to twice that, it leaves the digits of the others.
    width = 2 * (vertex[..., :1] - vertex[..., -1:])
    lowered = torch.cat([torch.zeros_like(z[..., :1]), torch.minimum(-z.diff(dim=-1), width)], -1).cumsum(-1)
    blocks = isotonic_blocks(vertex + lowered)
    inner = (vertex - block_first(vertex, blocks)) - (z - block_first(z, blocks))
    surplus = (inner - block_mean(inner, blocks)).cumsum(-1)  # of vertex over P(z), never negative
    tight = surplus <= tolerances.rounding(z.dtype) * inner.abs().cumsum(-1)
    ends = (blocks.diff(dim=-1) > 0) | tight[..., :-1]
    return torch.cat([torch.zeros_like(blocks[..., :1]), ends.to(blocks)], -1).cumsum(-1)


class SortedBlocksJacobian(ProjectionJacobian):
    """H v = v minus its mean over each block, the blocks being of the entries in sorted order."""

    is_projector = True

    def __init__(self, order: Tensor, blocks: Tensor) -> None:
        self._order, self._blocks = order, blocks
        self.dimension: Any = blocks.shape[-1] - 1 - blocks[..., -1]

    def apply(self, v: Tensor) -> Tensor:
        means = block_mean(v.gather(-1, self._order.expand_as(v)), self._blocks)
        return v - means.gather(-1, self._order.argsort(-1).expand_as(v))
