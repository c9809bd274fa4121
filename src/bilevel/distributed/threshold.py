"""The level at which projections on a divided simplex or l1 ball cut: sum over ranks of sum (b - level)_+ = radius.

As in `bilevel.sets.threshold`, b = z - max z. For any set S of entries, (sum_S b - radius)/|S| is at most the level,
and it is the level when S holds the entries above it. So each round asks all ranks for the number and the sum of the
entries above 1,024 values between two bounds. The best of these quotients is the next lower bound: no worse than a step
of Newton's method (Michelot 1986). The chord over the bin where sum (b - t)_+ passes the radius gives the next upper
bound: no worse than 1,024-fold bisection. It ends when the entries above the lower bound are those it was made of,
which is exact; after six rounds the bounds are a rounding error of float64 apart, whatever the data.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .ranks import Ranks
from .sums import added_up

BINS = 1024
"""Values that are tried in one round, for one vector."""
NUMBERS = 1 << 16
"""A batch of vectors tries fewer for each, so that a round is about this many numbers; at least `FEWEST`."""
FEWEST = 16


class Cut(NamedTuple):
    """The level of each row, and the sum of all its |z|: both of shape (..., 1), float64."""

    level: Tensor
    total: Tensor


@torch.no_grad()
def cut(b: Tensor, size: Tensor, radius: Tensor, ranks: Ranks, *, inside_ends: bool) -> Cut:
    """The level of each row of the whole vector, of which this rank holds a part.

    Parameters
    ----------
    b
        z - max z over all ranks, (rows, n) with n >= 0 entries here.
    size
        The sum of this rank's |z|, (rows, 1): it is added up in the first round.
    radius
        (rows, 1), float64.
    ranks
        Who holds the parts.
    inside_ends
        Whether rows with a total of at most the radius need no level: the l1 ball leaves them where they are.
    """
    b = b.double()
    low, high, total = -radius, torch.zeros_like(radius), size
    made_of = torch.ones_like(radius)  # low is the quotient of so many entries: of the largest one
    bins = max(FEWEST, min(BINS, NUMBERS // max(len(b), 1)))
    steps = torch.arange(bins + 1, dtype=b.dtype, device=b.device) / bins
    first, done = True, torch.zeros_like(radius, dtype=torch.bool)
    while True:
        edges = torch.lerp(low, high, steps)
        message = torch.cat([_in_bins(b, edges), size.double()], -1) if first else _in_bins(b, edges)
        message = added_up(message, ranks)
        if first:
            message, total, first = message[:, :-1], message[:, -1:], False
            done = done | (inside_ends & (total <= radius))
        count, phi = _at_edges(message, edges, radius)
        where = torch.where(count > 0, edges + phi / count.clamp_min(1), -torch.inf).argmax(-1, keepdim=True)
        best = _quotient(message, edges, radius, where)
        done = done | (count[:, :1] == made_of) | (best <= low)  # low is made of the entries above it
        low = torch.where(done, low, best)
        made_of = torch.where(done, made_of, count.gather(-1, where))
        high = torch.maximum(low, torch.where(done, high, _chord(edges, phi)))
        done = done | _is_settled(edges, count, low, made_of) | (high - low <= _ROUNDING * radius)
        if bool(done.all()):
            return Cut(low, total)
        if len(b) == 1:
            b = b[b > low].unsqueeze(0)  # what lies below has no part in what follows


_ROUNDING = 2 * torch.finfo(torch.float64).eps


def _in_bins(b: Tensor, edges: Tensor) -> Tensor:
    """How many entries lie in (edge_j, edge_j+1], the last bin without end, and by how much they exceed edge_j."""
    place = torch.searchsorted(edges, b.contiguous())  # the number of edges below an entry
    counts = torch.zeros(len(b), edges.shape[-1] + 1, dtype=b.dtype, device=b.device)
    sums, beyond = counts.clone(), place == edges.shape[-1]
    counts.scatter_add_(-1, place, torch.ones_like(b))
    offset = b - edges.gather(-1, (place - 1).clamp_min(0))
    sums.scatter_add_(-1, place, torch.where((place == 0) | beyond, 0, offset))
    sums[:, -1] = torch.where(beyond, offset, 0).sum(-1)  # there may be many: `sum` rounds less
    return torch.cat([counts[:, 1:], sums[:, 1:]], -1)


def _at_edges(message: Tensor, edges: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """The number of entries above each edge, and phi(edge) = sum (b - edge)_+ - radius; only like signs are added."""
    counts, sums = message.chunk(2, -1)
    count = _from_above(counts)
    width = torch.diff(edges, dim=-1)
    sums = torch.cat([sums[:, :-1] + count[:, 1:] * width, sums[:, -1:]], -1)
    return count, _from_above(sums) - radius


def _quotient(message: Tensor, edges: Tensor, radius: Tensor, where: Tensor) -> Tensor:
    """(sum_S b - radius)/|S| for the entries S above one edge: `phi` there without the rounding of a running sum."""
    edge = edges.gather(-1, where)
    counts, sums = torch.where(edges >= edge, message.unflatten(-1, (2, -1)).transpose(0, 1), 0)
    excess = (sums + counts * (edges - edge)).sum(-1, keepdim=True) - radius
    count = counts.sum(-1, keepdim=True)
    return torch.where(count > 0, edge + excess / count.clamp_min(1), -torch.inf)


def _from_above(values: Tensor) -> Tensor:
    return values.flip(-1).cumsum(-1).flip(-1)


def _chord(edges: Tensor, phi: Tensor) -> Tensor:
    """Where the chord of phi over the bin in which it turns negative is 0: phi is convex, its zero is to the left."""
    turned = phi <= 0
    index = turned.to(torch.int8).argmax(-1, keepdim=True)  # the first of them
    before = (index - 1).clamp_min(0)
    left, right = edges.gather(-1, before), edges.gather(-1, index)
    rise, fall = phi.gather(-1, before), phi.gather(-1, index)
    crossing = left + (right - left) * (rise / torch.where(rise > fall, rise - fall, 1)).clamp(0, 1)
    return torch.where(turned.any(-1, keepdim=True), crossing, edges[:, -1:])


def _is_settled(edges: Tensor, count: Tensor, low: Tensor, made_of: Tensor) -> Tensor:
    """Whether `low` lies in a bin without entries, and was made of the entries above that bin: it is the level."""
    index = torch.searchsorted(edges, low.contiguous(), right=True) - 1
    last = edges.shape[-1] - 1
    here, above = count.gather(-1, index.clamp(0, last)), count.gather(-1, (index + 1).clamp(0, last))
    return (here == above) & (here == made_of) & (index < last)
