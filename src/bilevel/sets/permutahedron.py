"""The permutahedron: all averages of the rearrangements of a vector."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidInput
from .base import ConvexSet, Face, check_batch, got, in_float32, parameter
from .monotone_cone import block_margin, block_mean, isotonic_blocks


class Permutahedron(ConvexSet):
    """conv{rearrangements of vertex}; P(z) = z - v with v the decreasing isotonic regression of z - vertex.

    Both z and vertex are sorted downwards first (Blondel et al., 2020, proposition 3). H subtracts the mean
    over each block of the regression: dimension n minus the number of blocks. At a kink blocks are pooled.

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
        # Only differences matter: without the maximum the digits of the vertex survive beside a large z.
        blocks = isotonic_blocks((vertex - (z - z[..., :1])).detach())
        return z, vertex, order, ranking, blocks

    @in_float32
    def project(self, z: Tensor) -> Tensor:
        z, vertex, order, _, blocks = self._sorted(z)
        center, level = block_mean(z.detach(), blocks), block_mean(vertex.detach(), blocks)
        y = (z - center) - block_mean(z - center, blocks) + (level + block_mean(vertex - level, blocks))
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
        return block_margin((vertex - (z - z[..., :1])).detach(), blocks)

    def __repr__(self) -> str:
        return f"Permutahedron(vertex=tensor{tuple(self.vertex.shape)})"  # type: ignore[union-attr]


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
