"""The level at which the projections on the simplex and on the l1 ball cut: sum (b - level)_+ = radius."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import can_look_at_values

SHORT = 4_000
"""Below this many entries, sorting one vector is faster than Newton's method."""
CHUNK = 64
ROUNDS = 40
"""Newton's method ends by itself (13 rounds at most in trials); beyond this cap the vector is sorted."""


@torch.no_grad()
def cut_level(b: Tensor, radius: Tensor) -> Tensor:
    """The root of sum_i (b_i - level)_+ = radius, for b (..., n) with maximum 0 and radius (..., 1), kept in shape (..., 1).

    The caller subtracts the maximum, so that only differences of the size of the answer are added up: at
    z = 1e6 + noise in float32, sums of z itself would err by a percent.

    sum (b - level)_+ is convex, falling and piecewise linear in the level, so Newton's method from the left never
    overshoots and ends when the number of positive entries stops changing (Michelot 1986). It starts at
    max((sum b - radius)/n, -radius): all entries positive, or only the largest. Short vectors are sorted
    (Held, Wolfe & Crowder 1974), as is everything under torch.compile and vmap, where values cannot steer.
    """
    b, radius = b.detach(), radius.detach()
    single = b.numel() == b.shape[-1] and radius.numel() == 1
    if not can_look_at_values() or (single and b.shape[-1] < SHORT):
        return _by_sorting(b, radius)
    start = torch.maximum((b.sum(-1, keepdim=True) - radius) / b.shape[-1], -radius)
    if single:
        few = _candidates(b.reshape(-1), start.reshape(()))
        if few is not None:
            return _by_compression(few, radius.reshape(())).reshape(start.shape)
    return _by_newton(b, radius, start)


def _by_sorting(b: Tensor, radius: Tensor) -> Tensor:
    """With b sorted downwards, the level is the largest of (b_(1) + ... + b_(j) - radius)/j."""
    excess = b.sort(-1, descending=True).values.cumsum(-1) - radius
    return (excess / torch.arange(1, b.shape[-1] + 1, dtype=b.dtype, device=b.device)).amax(-1, keepdim=True)


def _candidates(b: Tensor, level: Tensor) -> Tensor | None:
    """The entries above `level`, found by the maxima of chunks; None when they are not few."""
    whole = b.numel() - b.numel() % CHUNK
    chunks = b[:whole].view(-1, CHUNK)
    keep = (chunks.amax(-1) > level).nonzero().squeeze(-1)
    if len(keep) * CHUNK * 8 > b.numel():
        return None
    few = torch.cat([chunks[keep].reshape(-1), b[whole:]])
    return few[few > level]


def _by_compression(b: Tensor, radius: Tensor) -> Tensor:
    """Newton's method on one vector; entries at or below the level are dropped for good."""
    while True:
        level = (b.sum() - radius) / b.numel()
        above = b[b > level]
        if above.numel() in (0, b.numel()):
            return level
        b = above


def _by_newton(b: Tensor, radius: Tensor, level: Tensor) -> Tensor:
    """Newton's method on all rows at once, until no row changes its number of positive entries."""
    shape = torch.broadcast_shapes(b.shape, radius.shape)
    positive, count = b.new_empty(shape), None
    for _ in range(ROUNDS):
        torch.sub(b, level, out=positive).clamp_min_(0)
        excess = positive.sum(-1, keepdim=True) - radius
        now = positive.sign_().sum(-1, keepdim=True)  # exact below 2^24 entries: a count without integers
        if count is not None and bool((now == count).all()):
            return level
        level, count = level + excess / now.clamp_min(1), now
    return _by_sorting(b, radius)
