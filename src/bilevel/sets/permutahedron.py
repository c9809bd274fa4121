"""The permutahedron: all averages of the rearrangements of a vector."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import tolerances
from ..errors import InvalidInput
from .base import ConvexSet, Face, check_batch, got, in_float32, parameter
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
    parameters = ("vertex",)

    def __init__(self, vertex: Tensor) -> None:
        self.vertex: Tensor = parameter("vertex", vertex)  # type: ignore[assignment]
        if not isinstance(self.vertex, Tensor) or self.vertex.ndim == 0:
            raise InvalidInput(f"vertex must be a tensor of shape (..., n), {got(vertex)}")

    def of_kind(self, z: Any) -> Any:
        z = super().of_kind(z)
        if z.shape[-1] != self.vertex.shape[-1]:
            raise InvalidInput(f"points have {z.shape[-1]} entries, the vertex has {self.vertex.shape[-1]}")
        check_batch("vertex", self.vertex, z)
        return z

    def _sorted(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """z and vertex downwards, their orders, and the blocks of the regression."""
        z, vertex = self.checked(z), self.vertex.to(z)
        z, vertex = torch.broadcast_tensors(z, vertex)
        order = z.detach().argsort(dim=-1, descending=True, stable=True)
        ranking = vertex.detach().argsort(dim=-1, descending=True, stable=True)
        z, vertex = z.gather(-1, order), vertex.gather(-1, ranking)
        return z, vertex, order, ranking, smallest_blocks(z.detach(), vertex.detach())

    @in_float32
    def project(self, z: Tensor) -> Tensor:
        z, vertex, order, _, blocks = self._sorted(z)
        # The differences within a block are small and exact, however large z is.
        inner, level = z - block_first(z.detach(), blocks), block_mean(vertex.detach(), blocks)
        y = inner - block_mean(inner, blocks) + (level + block_mean(vertex - level, blocks))
        return y.gather(-1, order.argsort(-1))

    @in_float32
    def jacobian(self, z: Tensor) -> Face:
        _, _, order, ranking, blocks = self._sorted(self.checked(z).detach())
        return RankFace(order, ranking, blocks, self.vertex.shape)  # type: ignore[union-attr]

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        """Majorisation: the k largest entries of y add up to at most those of vertex, all n to as much."""
        vertex = self.vertex.detach().to(y).sort(-1, descending=True).values  # type: ignore[union-attr]
        surplus = (y.detach().sort(-1, descending=True).values - vertex).cumsum(-1)
        amount = torch.maximum(surplus.amax(-1), surplus[..., -1].abs()).clamp_min(0)
        what = "the largest entries add up to more than those of the vertex, or all to another sum"
        return amount, vertex.abs().sum(-1), what

    @in_float32
    def margin(self, z: Tensor) -> Tensor:
        z, vertex, _, _, blocks = self._sorted(self.checked(z).detach())
        idle = vertex[..., 1:] == vertex[..., :-1]  # equal entries of the vertex in any order are the same point
        count = block_sum(torch.ones_like(z), blocks)
        idle = idle & (count[..., 1:] == 1) & (count[..., :-1] == 1)
        return block_margin(vertex - (z - z[..., :1]), blocks, idle)

    def __repr__(self) -> str:
        return f"Permutahedron(vertex=tensor{tuple(self.vertex.shape)})"  # type: ignore[union-attr]


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


class RankFace(Face):
    """H v = v minus its mean over each block, the blocks being of the entries in sorted order."""

    is_projector = True

    def __init__(self, order: Tensor, ranking: Tensor, blocks: Tensor, shape: torch.Size) -> None:
        self._order, self._ranking, self._blocks, self._shape = order, ranking, blocks, shape
        self.dimension = blocks.shape[-1] - 1 - blocks[..., -1]

    def _mean(self, v: Tensor, order: Tensor) -> Tensor:
        """The block means of v, placed by the inverse of `order`."""
        means = block_mean(v.gather(-1, self._order.expand_as(v)), self._blocks)
        return means.gather(-1, order.argsort(-1).expand_as(v))

    def apply(self, v: Tensor) -> Tensor:
        return v - self._mean(v, self._order)

    def parameter_vjp(self, u: Tensor) -> dict[str, Tensor]:
        """A vertex entry moves all entries of its block alike."""
        return {"vertex": self._mean(u, self._ranking).sum_to_size(self._shape)}
