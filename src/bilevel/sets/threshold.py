"""The level at which the projections on the simplex and on the l1 ball cut: sum (b - level)_+ = radius.

Everything here takes b = z - max z, so that only differences of the size of the answer are added up: at
z = 1e6 + noise in float32, sums of z itself would err by a percent.

sum (b - level)_+ is convex, falling and piecewise linear in the level. So Newton's method from the left never
overshoots, and ends when the number of positive entries stops changing (Michelot 1986). It starts at
max((sum b - radius)/n, -radius): all entries positive, or only the largest. Short vectors are sorted (Held, Wolfe &
Crowder 1974), as is everything under torch.compile and vmap, where values cannot steer.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .base import HALF, can_look_at_values

SHORT = 4_000
"""Below this many entries, sorting one vector is faster than Newton's method."""
SHORT_ROW = 200
"""The same for each row of a stack with fewer than SHORT entries in all."""
CHUNK = 64
"""Entries per chunk, when the maxima of chunks tell where the few large entries are."""
ROUNDS = 40
"""Newton's method ends by itself (13 rounds at most in trials); beyond this cap the rows are sorted."""


@torch.no_grad()
def cut_level(b: Tensor, radius: Tensor) -> Tensor:
    """The level of each row, shape (..., 1), for b of shape (..., n) with maximum 0 and radius (..., 1)."""
    b, radius = b.detach(), radius.detach()
    if b.dtype in HALF:  # a count of entries needs more digits
        return cut_level(b.float(), radius.float()).to(b.dtype)
    if not can_look_at_values():
        return _by_sorting(b, radius)
    if b.numel() == b.shape[-1] and radius.numel() == 1:
        level = torch.full_like(b[..., :1], cut_level_of_vector(b.reshape(-1), float(radius)))
        return torch.broadcast_tensors(level, radius)[0]
    return _by_sorting(b, radius) if b.numel() < SHORT and b.shape[-1] < SHORT_ROW else _by_newton(b, radius)


def cut_level_of_vector(b: Tensor, radius: float) -> float:
    """The level of one vector b of shape (n,) that is part of no graph."""
    if is_short(b):
        return _by_sorting_array(b.numpy(), radius)
    start = max((float(b.sum()) - radius) / b.numel(), -radius)
    few = _candidates(b, start)
    if few is None:
        return float(_by_newton(b, torch.full_like(b[:1], radius)))
    while True:  # Newton's method; entries at or below the level are dropped for good
        level = (float(few.sum()) - radius) / max(few.numel(), 1)
        above = few[few > level]
        if above.numel() in (0, few.numel()):
            return level
        few = above


def is_short(z: Tensor) -> bool:
    """Whether NumPy does it faster: a torch operation on so few entries is mostly overhead."""
    return z.numel() < SHORT and z.device.type == "cpu" and z.dtype in (torch.float32, torch.float64)


def above_level(z: Tensor, radius: float | Tensor) -> Tensor:
    """(z - max z - level)_+ without derivatives; the radius has shape (..., 1), or is a number for one vector z."""
    if not isinstance(radius, Tensor) and is_short(z):
        array = z.detach().numpy()
        b = array - np.maximum.reduce(array, axis=None)
        b -= b.dtype.type(_by_sorting_array(b, radius))
        return torch.from_numpy(np.maximum(b, 0, out=b))
    z = z.detach()
    b = z - z.amax(-1, keepdim=True)
    level = cut_level(b, radius) if isinstance(radius, Tensor) else cut_level_of_vector(b.reshape(-1), radius)
    return (b - level).clamp_min_(0)


def clipped_at_level(
    z: np.ndarray, lower: np.ndarray, upper: np.ndarray, weight: np.ndarray, total: float
) -> np.ndarray:
    """clip(z - level weight, lower, upper) with weight.y = total: one vector in float64, weights from 1e-3 w to w > 0.

    weight.y falls with the level, and is linear between the sorted levels at which an entry leaves its upper bound and
    those at which it reaches the lower one. Newton steps from the level that running sums give remove their rounding.
    """
    square = weight * weight
    breaks = np.concatenate([(z - upper) / weight, (z - lower) / weight])
    order = breaks.argsort(kind="stable")
    breaks = breaks[order]
    slopes = np.concatenate([square, -square])[order].cumsum()  # to the right of each break
    sums = weight @ upper - np.concatenate([[0.0], (slopes[:-1] * np.diff(breaks)).cumsum()])
    k = max(np.count_nonzero(sums >= total) - 1, 0)
    near = z - weight * (breaks[k] + ((sums[k] - total) / slopes[k] if slopes[k] > 1e-7 * square.max() else 0.0))
    for _ in range(3):
        y = np.minimum(np.maximum(near, lower), upper)
        free = float(square @ ((near > lower) & (near < upper)))
        miss = float(weight @ y) - total
        if free == 0.0 or abs(miss) <= 1e-15 * float(weight @ abs(y)):
            break
        near = near - weight * (miss / free)
    return np.minimum(np.maximum(near, lower), upper)


_RANKS = np.arange(1.0, SHORT + 1)


def _by_sorting_array(b: np.ndarray, radius: float) -> float:
    """`_by_sorting` in NumPy, the sums in float64, over the entries that the level -radius leaves in play."""
    few = -b[b >= -radius]
    few.sort()
    excess = -few.cumsum(dtype=np.float64)
    excess -= radius
    excess /= _RANKS[: excess.size]
    return float(np.maximum.reduce(excess))


def _candidates(b: Tensor, level: float) -> Tensor | None:
    """The entries above `level`, found by the maxima of chunks; None when they are not few."""
    whole = b.numel() - b.numel() % CHUNK
    chunks = b[:whole].view(-1, CHUNK)
    keep = (chunks.amax(-1) >= level).nonzero().squeeze(-1)
    if len(keep) * CHUNK * 8 > b.numel():
        return None
    few = torch.cat([chunks[keep].reshape(-1), b[whole:]])
    return few[few >= level]


def _by_sorting(b: Tensor, radius: Tensor) -> Tensor:
    """With b sorted downwards, the level is the largest of (b_(1) + ... + b_(j) - radius)/j."""
    excess = b.sort(-1, descending=True).values.cumsum(-1) - radius
    return (excess / torch.arange(1, b.shape[-1] + 1, dtype=b.dtype, device=b.device)).amax(-1, keepdim=True)


def _by_newton(b: Tensor, radius: Tensor) -> Tensor:
    """Newton's method on all rows at once, until no row changes its number of positive entries."""
    level = torch.maximum((b.sum(-1, keepdim=True) - radius) / b.shape[-1], -radius)
    positive, count = b - level, None
    for _ in range(ROUNDS):
        torch.sub(b, level, out=positive).clamp_min_(0)
        excess = positive.sum(-1, keepdim=True) - radius
        now = positive.sign_().sum(-1, keepdim=True)  # exact below 2^24 entries: a count without integers
        if count is not None and bool((now == count).all()):
            return level
        level, count = level + excess / now.clamp_min(1), now
    return _by_sorting(b, radius)
