"""Boxes cut by one hyperplane: the box section and the capped simplex."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from .. import tolerances
from ..errors import EmptySetError
from .base import (
    ConvexSet,
    ProjectionJacobian,
    as_point,
    can_look_at_values,
    event_norm,
    largest,
    parameter,
    per_point,
    show,
    tracked,
    validated,
)
from .box import bound, bounds_excess, check_order, in_order
from .jacobians import RankOne
from .threshold import clipped_at_level, is_short

ROUNDS = 6
"""Searches for the level: two are enough unless z is 1/eps times as far away as the set is large."""

PRODUCTS = 16_384
"""Formed at once in a search: a few points are probed at many levels in one round, many points at one level."""


class BoxSection(ConvexSet):
    """{y : lower <= y <= upper, weight.y = total}; P(z) = clip(z - level weight, lower, upper).

    With F the entries strictly between their bounds, H = diag(F) - w_F w_F'/|w_F|^2. At kinks an entry that is
    about to leave its upper bound counts as free, one that just reached its lower bound as fixed (the other way
    round for a negative weight); at a vertex, where every entry with a weight is at a bound, all are fixed.

    Parameters
    ----------
    lower, upper
        Numbers or tensors that broadcast against the point; infinite values leave that side open.
    weight
        A number or a tensor that broadcasts against the point; entries of any sign, zero included.
    total
        A number, or a tensor with one value per batch element.

    References
    ----------
    Brucker (1984); Pardalos & Kovoor (1990).

    Examples
    --------
    >>> BoxSection(0.0, 1.0, torch.tensor([1.0, 2.0]), 2.0).project(torch.tensor([2.0, 2.0]))
    tensor([1.0000, 0.5000])
    """

    polyhedral = True
    parameters = ("lower", "upper", "weight", "total")
    _sum = "weight.y"

    def __init__(
        self,
        lower: float | Tensor = 0.0,
        upper: float | Tensor = math.inf,
        weight: float | Tensor = 1.0,
        total: float | Tensor = 1.0,
    ) -> None:
        self.lower, self.upper = bound("lower", lower), bound("upper", upper)
        check_order(type(self).__name__, self.lower, self.upper)
        self.weight, self.total = parameter("weight", weight), parameter("total", total)
        if isinstance(self.weight, Tensor) and self.weight.ndim:
            self._corners(*self._parts(self.weight))

    def _parts(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """weight (its largest entry 1), lower, upper, total, and the factor taken from weight and total."""
        weight = as_point(self.weight, z, name="weight")
        size = weight.detach().abs()
        size = size.amax(-1, keepdim=True) if size.ndim else size
        size = torch.where(size > 0, size, 1)
        lower, upper = as_point(self.lower, z, name="lower"), as_point(self.upper, z, name="upper")
        total = per_point(self.total, z, name="total")
        weight = weight.expand(z.shape[-1:]) if weight.ndim == 0 else weight
        return weight / size, lower, upper, total / size, size

    def _corners(
        self, weight: Tensor, lower: Tensor, upper: Tensor, total: Tensor, size: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Whether the total is the least or the largest one between the bounds; refuse one that lies beyond."""
        (least, most), (below, above) = reach(weight, lower, upper)
        total = total.detach().double()
        if can_look_at_values() and bool(((total < least - below) | (total > most + above)).any()):
            raise EmptySetError(
                f"{type(self).__name__}: {self._sum} lies between {float((size * least).min()):g} and "
                f"{float((size * most).max()):g}, and never reaches the total {show(self.total)}"
            )
        return total <= least + below, total >= most - above

    def answerable(self, z: Tensor) -> Tensor:
        weight, lower, upper, total, _ = self._parts(z)
        (least, most), (below, above) = reach(weight, lower, upper)
        total = total.detach().double()
        reached = (total >= least - below) & (total <= most + above)
        return super().answerable(z) & in_order(lower, upper) & reached

    def _section(self, z: Tensor, parts: tuple[Tensor, ...]) -> Section:
        """The face that holds P(z); where only one corner reaches the total, all that it weighs is held there."""
        weight, lower, upper, total, _ = parts
        at_least, at_most = self._corners(*parts)
        section = find_section(z, weight, lower, upper, total)
        held = (at_least | at_most) & (weight != 0)
        at_lower = torch.where(held, torch.where(at_least, weight > 0, weight < 0), section.at_lower)
        return section._replace(free=section.free & ~held, at_lower=at_lower)

    @validated
    def project(self, z: Tensor) -> Tensor:
        parts = self._parts(z)
        return on_section(z, self._section(z, parts), *parts[:-1]).y

    @validated
    def jacobian(self, z: Tensor) -> ProjectionJacobian:
        parts = tuple(part.detach() for part in self._parts(z))
        section = self._section(z, parts)
        return RankOne(unit_normal(parts[0], section.free), mask=section.free)

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        weight, lower, upper, total, _ = self._parts(y)
        out, scale = bounds_excess(y, lower, upper)
        length = event_norm(weight)
        length = torch.where(length > 0, length, 1)
        off = ((weight * y).sum(-1, keepdim=True) - total).squeeze(-1).abs() / length
        size = ((weight * y).detach().abs().sum(-1, keepdim=True) + total.abs()).squeeze(-1) / length
        plane_is_worse = off * scale > out * size
        what = f"an entry leaves its bounds or {self._sum} is not the total {show(self.total)}"
        return torch.where(plane_is_worse, off, out), torch.where(plane_is_worse, size, scale), what

    @validated
    def margin(self, z: Tensor) -> Tensor:
        """The nearest wall of the cell of z: a free entry meets a bound, a fixed one leaves it (at a vertex two do)."""
        parts = tuple(part.detach() for part in self._parts(z))
        weight, lower, upper, *_ = parts
        section = self._section(z, parts)
        inner = on_section(z, section, *parts[:-1]).inner
        gap = torch.minimum((inner - lower).abs(), (upper - inner).abs())
        gap = torch.where(section.free, gap, torch.where(section.at_lower, lower - inner, inner - upper).abs())
        gap = torch.where(lower < upper, gap, torch.inf)
        walls = wall_distance(gap, section.free, weight)
        vertex = ~(section.free & (weight != 0)).any(-1)
        if can_look_at_values() and not bool(vertex.any()):
            return walls
        leaving = torch.where(weight > 0, ~section.at_lower, section.at_lower)
        return torch.where(vertex, torch.minimum(walls, vertex_margin(gap, leaving, weight)), walls)


def reach(weight: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the largest weight.y between the bounds, in float64 (2, ..., 1), and the rounding of each."""
    eps = torch.finfo(weight.dtype).eps
    weight, lower, upper = (part.detach().double() for part in torch.broadcast_tensors(weight, lower, upper))
    ends = torch.where(weight == 0, 0, torch.stack([weight * lower, weight * upper]))
    ends = torch.stack([ends.amin(0), ends.amax(0)])
    rounding = 32 * eps * ends.abs().where(ends.isfinite(), 0).sum(-1, keepdim=True)
    return ends.sum(-1, keepdim=True), rounding


class CappedSimplex(BoxSection):
    """{y : 0 <= y <= cap, sum y = total}; P(z) = clip(z - level, 0, cap).

    Parameters
    ----------
    cap
        Non-negative: a number or a tensor that broadcasts against the point.
    total
        The sum, non-negative: a number, or a tensor with one value per batch element.

    References
    ----------
    Brucker (1984); Wang & Lu (2015).

    Examples
    --------
    >>> CappedSimplex(0.5, 1.0).project(torch.tensor([3.0, 0.25, 0.0]))
    tensor([0.5000, 0.3750, 0.1250])
    """

    parameters = ("cap", "total")
    _sum = "the sum"

    def __init__(self, cap: float | Tensor = 1.0, total: float | Tensor = 1.0) -> None:
        self.cap = parameter("cap", cap, low=0.0)
        super().__init__(0.0, self.cap, 1.0, parameter("total", total, low=0.0))

    @validated
    def project(self, z: Tensor) -> Tensor:
        values = self.tensor_parameters().values()
        if z.ndim == 1 and is_short(z) and not tracked(z, *values) and not any(value.ndim for value in values):
            total = float(self.total)
            cap = min(float(self.cap), total)  # no entry exceeds the sum
            if 0 < total < len(z) * cap and float(z.abs().max()) <= 1e6 * cap <= largest(z.dtype):
                return clipped_at_level(z, cap, total)  # one vector, in few operations
        return super().project(z)


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
    bound or reaches the other. The search over these, sorted, evaluates the sum itself, without running sums whose
    rounding would pile up. Further searches around the level found make up for large offsets of z along the
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
    z, low, high = (torch.where(flip, -a, b) for a, b in ((z, z), (upper, lower), (lower, upper)))
    slope = weight.abs()
    counts = slope > 0
    safe = torch.where(counts, slope, torch.ones_like(slope))
    leaves = torch.where(counts, (z - high) / safe, torch.inf)
    arrives = torch.where(counts, (z - low) / safe, torch.inf)
    breaks = torch.cat([leaves, arrives], -1).sort(-1).values
    size = breaks.shape[-1]
    left = torch.full_like(breaks[..., :1], -1, dtype=torch.int64)  # the sum is >= total there
    right = torch.full_like(left, size)
    pieces = max(2, min(PRODUCTS // max(z.numel(), 1), size + 1))
    cuts, width = torch.arange(1, pieces, device=z.device), size + 1
    each = [part.unsqueeze(-2) for part in (z, safe, low, high)]
    while width > 1:
        probes = left + (right - left) * cuts // pieces
        t = breaks.gather(-1, probes.clamp(0, size - 1)).unsqueeze(-1)
        moved = torch.clamp(each[0] - t * each[1], each[2], each[3])
        more = torch.where(counts.unsqueeze(-2), slope.unsqueeze(-2) * moved, 0).sum(-1) >= total
        lefts, rights = (
            torch.where(more & (probes < right), probes, left),
            torch.where(~more & (probes > left), probes, right),
        )
        left, right = lefts.amax(-1, keepdim=True), rights.amin(-1, keepdim=True)
        width = -(-width // pieces)
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


def unit_normal(weight: Tensor, free: Tensor) -> Tensor:
    """w_F/|w_F|: the normal of the hyperplane within the free entries; zero where none of them has a weight."""
    length = event_norm(weight * free, keepdim=True)
    return weight * free / torch.where(length > 0, length, 1)


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
