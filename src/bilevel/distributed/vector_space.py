"""The space of vectors that are divided along their last dimension, with batches and with draws of one process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..spaces import Vector, leaves, like
from .sets import whole_length
from .spaces import ShardedSpace
from .sums import added_up

BLOCK = 1 << 20
"""So many numbers are drawn at a time."""


@dataclass(frozen=True)
class DividedSpace(ShardedSpace):
    """The `ShardedSpace` of a lower variable: one mean square per row of a batch, and the draws of one process."""

    def mean_square(self, a: Vector) -> Any:
        """The mean of a_i^2 over each factor, all ranks together, in one round."""
        parts = []
        for u, ndim in zip(leaves(a), self._event_ndims(a), strict=True):
            if ndim != 0:
                dims = tuple(range(-ndim, 0)) if ndim is not None and ndim < u.ndim else tuple(range(u.ndim))
                square = u.square().sum(dims, keepdim=ndim is not None and ndim < u.ndim)
                parts += [square, torch.full_like(square, u.numel() / max(square.numel(), 1))]
        if not parts:
            return like(a, [u.square() for u in leaves(a)])
        sums = added_up(torch.cat([part.reshape(-1) for part in parts]), self.ranks)
        found = iter(
            [s.reshape(part.shape) for s, part in zip(sums.split([p.numel() for p in parts]), parts, strict=True)]
        )
        ndims = self._event_ndims(a)
        means = [
            u.square() if ndim == 0 else next(found) / next(found) for u, ndim in zip(leaves(a), ndims, strict=True)
        ]
        return like(a, means)

    def _event_ndims(self, a: Vector) -> list[int | None]:
        if isinstance(a, dict):
            return [self.event_ndim[name] if isinstance(self.event_ndim, dict) else self.event_ndim for name in a]
        return [self.event_ndim]  # type: ignore[list-item]

    def dots(self, stack: Vector, v: Vector) -> Tensor:
        return added_up(super().dots(stack, v), self.ranks)

    def random_like(self, a: Vector, generator: torch.Generator, count: int | None = None) -> Vector:
        """This rank's part of what one process draws: every rank draws all of it, and keeps its own."""
        lead = () if count is None else (count,)
        return like(a, [self._drawn(u, lead, generator) for u in leaves(a)])

    def _drawn(self, u: Tensor, lead: tuple[int, ...], generator: torch.Generator) -> Tensor:
        first, total = whole_length(u.shape[-1], self.ranks)
        options: Any = {"generator": generator, "dtype": u.dtype, "device": u.device}
        last, shape = first + u.shape[-1], (*lead, *u.shape[:-1])
        if shape or u.device.type != "cpu" or total < 2 * BLOCK:
            return torch.randn((*shape, total), **options)[..., first:last].clone()
        drawn, kept = 0, []
        while drawn < total:  # block by block the same numbers as at once: torch draws them by sixteens
            size = BLOCK if total - drawn >= 2 * BLOCK else total - drawn
            block = torch.randn(size, **options)
            kept.append(block[max(first - drawn, 0) : max(last - drawn, 0)].clone())
            drawn += size
        return torch.cat(kept)
