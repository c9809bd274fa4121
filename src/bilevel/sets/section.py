"""The face of a box cut by one hyperplane that holds a projection: its free entries, its level, its walls."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from .. import tolerances
from .base import can_look_at_values, event_norm

ROUNDS = 6
"""Searches for the level: two are enough unless z is 1/eps times as far away as the set is large."""


class Section(NamedTuple):
    """Where each entry of the projection lies: y = clip(z - level weight), the level as a sum, large parts first."""

    free: Tensor
    at_lower: Tensor
    levels: tuple[Tensor, ...]

    def near(self, z: Tensor, weight: Tensor) -> Tensor:
        """z - level weight, part by part: the digits of the answer survive beside a large z."""
        for level in self.levels:
            z = z - level * weight
        return z


@torch.no_grad()
def find_section(z: Tensor, weight: Tensor, lower: Tensor, upper: Tensor, total: Tensor) -> Section:
    """The face of {lower <= y <= upper, weight.y = total} that holds P(z) = clip(z - level weight, lower, upper).

    weight.clip(z - t weight) falls with t, and is linear between the 2n values of t at which an entry leaves one
    bound or reaches the other. A binary search over these, sorted, evaluates the sum itself, without running sums
    whose rounding would pile up. Further searches around the level found make up for large offsets of z along the
    weight, which do not change P(z), and for a z so far away that the bounds are lost in its rounding.
    """
    shape = torch.broadcast_shapes(*(part.shape for part in (z, weight, lower, upper, total)))
    z, weight, lower, upper = (part.expand(shape) for part in (z, weight, lower, upper))
    section, near = Section(z, z, ()), z
    for done in range(1, ROUNDS + 1 if can_look_at_values() else 4):
        free, at_lower, level = _search(near, weight, lower, upper, total)
        section, near = Section(free, at_lower, (*section.levels, level)), near - level * weight
        size = _clip(near, lower, upper).abs().amax(-1, keepdim=True)
        if done > 1 and can_look_at_values() and bool((level.abs() <= 8 * size).all()):
            break
    return _at_vertex(section, near, weight, lower, upper, total)


def _at_vertex(section: Section, near: Tensor, weight: Tensor, lower: Tensor, upper: Tensor, total: Tensor) -> Section:
    """The section itself; if P(z) is a vertex, to rounding, all that has a weight is held there.

    A direction of the set must move two entries that have a weight, and at a vertex both leave a bound: either P is
    constant around z, or z is at a kink and H = 0 is among the limits, unlike the H of some of these entries alone.
    """
    to_lower, to_upper = (near - lower).abs(), (upper - near).abs()
    moving = section.free & (weight != 0)
    move = torch.where(moving, weight.abs() * torch.minimum(to_lower, to_upper), 0).sum(-1, keepdim=True)
    size = (weight * _clip(near, lower, upper)).abs().sum(-1, keepdim=True) + total.abs()
    held = moving & (move <= tolerances.rounding(near.dtype) * size)
    at_lower = torch.where(held, to_lower <= to_upper, section.at_lower)
    return section._replace(free=section.free & ~held, at_lower=at_lower)


def _clip(z: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    return torch.maximum(torch.minimum(z, upper), lower)


def _search(z: Tensor, weight: Tensor, lower: Tensor, upper: Tensor, total: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The free entries, those at their lower bound, and the level; at a kink the face to the right of it."""
    flip = weight < 0  # (z, l, u, w) -> (-z, -u, -l, -w): from here on all weights are positive
    z, low, high = (
        torch.where(flip, -z, z),
        torch.where(flip, -upper, lower),
        torch.where(flip, -lower, upper),
    )
    slope = weight.abs()
    counts = slope > 0
    safe = torch.where(counts, slope, torch.ones_like(slope))
    leaves = torch.where(counts, (z - high) / safe, torch.inf)
    arrives = torch.where(counts, (z - low) / safe, torch.inf)
    breaks = torch.cat([leaves, arrives], -1).sort(-1).values
    size = breaks.shape[-1]
    left = torch.full_like(breaks[..., :1], -1, dtype=torch.int64)  # the sum is >= total there
    right = torch.full_like(left, size)
    for _ in range(math.ceil(math.log2(size + 1))):
        middle = (left + right) // 2
        t = breaks.gather(-1, middle.clamp(0, size - 1))
        sum_at = torch.where(counts, slope * torch.clamp(z - t * safe, low, high), 0).sum(-1, keepdim=True)
        more, open_ = sum_at >= total, right - left > 1
        left, right = torch.where(open_ & more, middle, left), torch.where(open_ & ~more, middle, right)
    t_left = torch.where(left >= 0, breaks.gather(-1, left.clamp_min(0)), -torch.inf)
    t_right = torch.where(right < size, breaks.gather(-1, right.clamp_max(size - 1)), torch.inf)
    # An entry of weight zero does not enter the sum: it is free between its bounds.
    free = torch.where(counts, (leaves <= t_left) & (arrives >= t_right), (low < z) & (z < high))
    below = torch.where(counts, arrives <= t_left, z <= low) & ~free
    length = event_norm(slope * free, keepdim=True)
    some = length > 0
    safe = torch.where(some, length, 1)
    held = torch.where(free, z, torch.where(below, low, high))
    over = (slope * held).sum(-1, keepdim=True) - total
    level = torch.clamp(over / safe / safe, t_left, t_right)
    # Nothing is free: on all of an interval of levels or, to rounding, at the end where the sum jumps to the total.
    anchor = torch.where(over > 0, t_right, torch.where(over < 0, t_left, t_left / 2 + t_right / 2))
    finite_end = torch.where(t_left.isfinite(), t_left, torch.where(t_right.isfinite(), t_right, 0))
    anchor = torch.where(t_left.isfinite() & t_right.isfinite(), anchor, finite_end)
    return free, torch.where(flip, ~(free | below), below), torch.where(some, level, anchor)


class OnSection(NamedTuple):
    """The point y of a face, its level, and z - level weight."""

    y: Tensor
    level: Tensor
    inner: Tensor


def on_section(z: Tensor, section: Section, weight: Tensor, lower: Tensor, upper: Tensor, total: Tensor) -> OnSection:
    """The point of that face as a differentiable formula: z - level weight on the free entries."""
    near = section.near(z, weight)
    bounds = torch.where(section.at_lower, lower, upper)
    held = torch.where(section.free, near, bounds)
    length = event_norm(weight * section.free, keepdim=True)
    safe = torch.where(length > 0, length, 1)
    step = ((weight * held).sum(-1, keepdim=True) - total) / safe / safe * (length > 0)
    inner = near - step * weight
    fixed = inner.detach()
    # Rounding is clipped without a derivative: at a kink that of clip is not the one of any face.
    clipped = inner + (_clip(fixed, lower.detach(), upper.detach()) - fixed)
    return OnSection(torch.where(section.free, clipped, bounds), sum(section.levels, step.detach()), inner)


def wall_distance(gap: Tensor, free: Tensor, weight: Tensor) -> Tensor:
    """Distance in z at which the first entry y_i = z_i - level w_i has moved by gap_i, with the level following.

    With n = w/|w_F| a free entry moves with the gradient e_i - n_i n_F, a fixed one with e_i - n_i n_F outside of F.
    An entry that is free alone cannot move, nor can one whose level no free entry sets: inf.
    """
    length = event_norm(weight * free, keepdim=True)
    square = (weight / torch.where(length > 0, length, 1)).square()
    rest = 1 - square
    rest = torch.where(rest > 8 * torch.finfo(gap.dtype).eps, rest, 0)
    wall = gap / torch.where(free, rest, 1 + square).sqrt()
    held = (length == 0) & (weight != 0)
    return torch.where(wall.isnan() | held, torch.inf, wall).amin(-1)


def vertex_margin(gap: Tensor, leaving: Tensor, weight: Tensor) -> Tensor:
    """Distance in z at which two entries leave a vertex together: one in `leaving`, one of the others.

    Between the levels at which the first entry leaves its bound and the last one reached the other, all are held.
    The two levels meet where gap_i/|w_i| + gap_j/|w_j| is used up, at that over the root of 1/w_i^2 + 1/w_j^2.
    """
    counts = weight != 0
    pace = 1 / torch.where(counts, weight.abs(), 1)
    room = torch.where(counts, gap * pace, torch.inf)
    first, last = (torch.where(side, room, torch.inf) for side in (leaving, ~leaving))
    pace = pace.expand_as(room)
    pairs = ((first[..., k, None] + last) / torch.hypot(pace[..., k, None], pace) for k in range(room.shape[-1]))
    return functools.reduce(torch.minimum, (pair.amin(-1) for pair in pairs))
