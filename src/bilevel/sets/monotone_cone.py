"""The cone of monotone vectors (isotonic regression)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import MissingExtraError
from .base import ConvexSet, ProjectionJacobian, validated


class MonotoneCone(ConvexSet):
    """{y : y_1 <= y_2 <= ... <= y_n} (or >=); P(z) replaces each block of pooled entries by its mean.

    H averages over the blocks that pool-adjacent-violators finds: the projector onto the vectors that are
    constant on each block. At a kink (equal neighbouring blocks) the blocks are pooled.

    Parameters
    ----------
    increasing
        False for y_1 >= ... >= y_n.

    References
    ----------
    Barlow, Bartholomew, Bremner & Brunk (1972): pool adjacent violators.

    Examples
    --------
    >>> MonotoneCone().project(torch.tensor([1.0, 3.0, 2.0]))
    tensor([1.0000, 2.5000, 2.5000])
    """

    polyhedral = True
    parameters: tuple[str, ...] = ("increasing",)

    def __init__(self, increasing: bool = True) -> None:
        self.increasing: bool = bool(increasing)

    def _blocks(self, z: Tensor) -> Tensor:
        return isotonic_blocks(z if self.increasing else -z)

    @validated
    def project(self, z: Tensor) -> Tensor:
        blocks = self._blocks(z.detach())
        center = block_mean(z.detach(), blocks)  # only small differences are added up in the second pass
        return center + block_mean(z - center, blocks)

    @validated
    def jacobian(self, z: Tensor) -> ProjectionJacobian:
        return BlockMeanJacobian(self._blocks(z))

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        step = y.diff(dim=-1) if self.increasing else -y.diff(dim=-1)
        amount = torch.cat([-step, torch.zeros_like(y[..., :1])], -1).amax(-1).clamp_min(0)
        word = "smaller" if self.increasing else "larger"
        return amount, y.detach().abs().amax(-1), f"an entry is {word} than the one before it"

    @validated
    def margin(self, z: Tensor) -> Tensor:
        return block_margin(z if self.increasing else -z, self._blocks(z))


class BlockMeanJacobian(ProjectionJacobian):
    """H v = the mean of v over each block."""

    is_projector = True

    def __init__(self, blocks: Tensor) -> None:
        self._blocks = blocks
        self.dimension: Any = blocks[..., -1] + 1

    def apply(self, v: Tensor) -> Tensor:
        return block_mean(v, self._blocks)


@torch.library.custom_op("bilevel::isotonic_blocks", mutates_args=())
def isotonic_blocks(z: Tensor) -> Tensor:
    """The blocks of the increasing isotonic regression of z, numbered 0, 1, ... along the last dimension."""
    try:
        from scipy.optimize import isotonic_regression
    except ImportError:
        raise MissingExtraError("isotonic regression (MonotoneCone, Permutahedron)", "sets") from None
    import numpy

    rows = z.detach().reshape(-1, z.shape[-1]).to("cpu", torch.float64).numpy()
    blocks = numpy.zeros(rows.shape, dtype=numpy.int64)
    for row, block in zip(rows, blocks, strict=True):
        block[isotonic_regression(row).blocks[1:-1]] = 1
    return torch.from_numpy(blocks.cumsum(-1)).reshape(z.shape).to(z.device)


@isotonic_blocks.register_fake
def _(z: Tensor) -> Tensor:
    return torch.empty_like(z, dtype=torch.int64)


@isotonic_blocks.register_vmap
def _(info: object, in_dims: tuple[int], z: Tensor) -> tuple[Tensor, int]:
    return isotonic_blocks(z.movedim(in_dims[0], 0)), 0


def block_mean(v: Tensor, blocks: Tensor) -> Tensor:
    """The mean of v over each block, in the place of each entry of the block."""
    return block_sum(v, blocks) / block_sum(torch.ones_like(v), blocks)


def block_sum(v: Tensor, blocks: Tensor) -> Tensor:
    """The sum of v over each block, in the place of each entry of the block."""
    blocks = blocks.expand_as(v)
    return torch.zeros_like(v).scatter_add(-1, blocks, v).gather(-1, blocks)


def block_first(v: Tensor, blocks: Tensor) -> Tensor:
    """The first entry of v in each block, in the place of each entry of the block."""
    count = torch.zeros_like(blocks).scatter_add(-1, blocks, torch.ones_like(blocks))
    return v.gather(-1, (count.cumsum(-1) - count).gather(-1, blocks))


def block_margin(z: Tensor, blocks: Tensor, idle: Tensor | None = None) -> Tensor:
    """The distance from z to the points where two blocks merge or one block splits; inf for a single entry.

    `idle` (..., n - 1) marks neighbours whose blocks may merge or split without a kink.

    Blocks of k and l entries merge when their means meet, at distance |difference of means|/sqrt(1/k + 1/l);
    a block splits after its first k of k + l entries when their mean meets the mean of the rest.
    """
    position = torch.arange(1, z.shape[-1] + 1, device=z.device).expand(z.shape)
    count = torch.zeros_like(blocks).scatter_add(-1, blocks, torch.ones_like(blocks))
    before = (count.cumsum(-1) - count).gather(-1, blocks)
    count = count.gather(-1, blocks)
    mean = block_mean(z, blocks)
    same = blocks[..., 1:] == blocks[..., :-1]
    first = torch.where(same, (position - before)[..., :-1], count[..., :-1])
    second = torch.where(same, (count - position + before)[..., :-1], count[..., 1:])
    surplus = (z - mean).cumsum(-1)[..., :-1] * (1 / first + 1 / second)
    gap = torch.where(same, surplus, mean.diff(dim=-1)).clamp_min(0)
    distance = gap / (1 / first + 1 / second).sqrt()
    distance = distance if idle is None else torch.where(idle, torch.inf, distance)
    return torch.cat([distance, torch.full_like(z[..., :1], torch.inf)], -1).amin(-1)
