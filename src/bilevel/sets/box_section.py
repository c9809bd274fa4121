"""Boxes cut by one hyperplane: the box section and the capped simplex."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import EmptySetError
from .base import (
    ConvexSet,
    ProjectionJacobian,
    can_look_at_values,
    event_norm,
    largest,
    parameter,
    show,
    tracked,
    validated,
    with_value,
)
from .box import bound, bounds_excess, check_order, in_order
from .jacobians import RankOne
from .threshold import clipped_at_level, is_short

ROUNDS = 6
"""Searches for the level: one or two are enough unless z is 1/eps times as far away as the set is large."""

Array = Any
"""A tensor, or an array of NumPy: the formulas below are written for both."""


class BoxSection(ConvexSet):
    """{y : lower <= y <= upper, weight.y = total}; P(z) = clip(z - level weight, lower, upper).

    With F the entries strictly between their bounds, H = diag(F) - w_F w_F'/|w_F|^2. At kinks an entry that is
    about to leave its upper bound counts as free, one that just reached its lower bound as fixed (the other way
    round for a negative weight); at a vertex, where every entry with a weight is at a bound, all are fixed.

    Parameters
    ----------
    lower, upper
        Numbers or tensors that broadcast against the point; infinite values mean no bound.
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
    parameters: tuple[str, ...] = ("lower", "upper", "weight", "total")
    _sum = "weight.y"

    def __init__(
        self,
        lower: float | Tensor = 0.0,
        upper: float | Tensor = math.inf,
        weight: float | Tensor = 1.0,
        total: float | Tensor = 1.0,
    ) -> None:
        self.lower: float | Tensor = bound("lower", lower)
        self.upper: float | Tensor = bound("upper", upper)
        check_order(type(self).__name__, self.lower, self.upper)
        self.weight: float | Tensor = parameter("weight", weight)
        self.total: float | Tensor = parameter("total", total)
        if isinstance(self.weight, Tensor) and self.weight.ndim:
            self._corners(*plain(*self._parts(self.weight)))

    def _parts(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """weight (its largest entry 1), lower, upper, total, and the factor taken from weight and total."""
        weight = self.per_entry("weight", z)
        size = weight.detach().abs()
        size = size.amax(-1, keepdim=True) if size.ndim else size
        size = torch.where(size > 0, size, 1)
        lower, upper = self.per_entry("lower", z), self.per_entry("upper", z)
        total = self.per_point("total", z)
        weight = weight.expand(z.shape[-1:]) if weight.ndim == 0 else weight
        return weight / size, lower, upper, total / size, size

    def _corners(self, weight: Array, lower: Array, upper: Array, total: Array, size: Array) -> tuple[Array, Array]:
        """Whether the total is the least or the largest one between the bounds; refuse one that lies beyond."""
        (least, most), (below, above) = reach(weight, lower, upper)
        if can_look_at_values() and bool(((total < least - below) | (total > most + above)).any()):
            raise EmptySetError(
                f"{type(self).__name__}: {self._sum} lies between {float((size * least).min()):g} and "
                f"{float((size * most).max()):g}, and never reaches the total {show(self.total)}"
            )
        return total <= least + below, total >= most - above

    def answerable(self, z: Tensor) -> Tensor:
        weight, lower, upper, total, _ = self._parts(z)
        (least, most), (below, above) = reach(weight.detach(), lower.detach(), upper.detach())
        total = total.detach()
        reached = (total >= least - below) & (total <= most + above)
        return super().answerable(z) & in_order(lower, upper) & reached

    def _section(self, z: Array, weight: Array, lower: Array, upper: Array, total: Array, size: Array) -> Section:
        """The face that holds P(z); where only one corner reaches the total, all that it weighs is held there."""
        at_least, at_most = self._corners(weight, lower, upper, total, size)
        section = find_section(z, weight, lower, upper, total)
        held = (at_least | at_most) & (weight != 0)
        where = array_module(z).where
        at_lower = where(held, where(at_least, weight > 0, weight < 0), section.at_lower)
        return section._replace(free=section.free & ~held, at_lower=at_lower)

    @validated
    def project(self, z: Tensor) -> Tensor:
        y = on_short_section(z, self.lower, self.upper, self.weight, self.total)
        if y is not None:
            return y
        parts = self._parts(z)
        return on_section(z, self._section(*plain(z, *parts)), *parts[:-1]).y

    @validated
    def jacobian(self, z: Tensor) -> ProjectionJacobian:
        values = plain(z, *self._parts(z))
        free = self._section(*values).free
        return RankOne(torch.as_tensor(unit_normal(values[1], free)), mask=torch.as_tensor(free))

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
        section = self._section(*plain(z, *parts))
        inner, section = on_section(z, section, *parts[:-1]).inner, section.tensors()
        gap = torch.minimum((inner - lower).abs(), (upper - inner).abs())
        gap = torch.where(section.free, gap, torch.where(section.at_lower, lower - inner, inner - upper).abs())
        gap = torch.where(lower < upper, gap, torch.inf)
        walls = wall_distance(gap, section.free, weight)
        vertex = ~(section.free & (weight != 0)).any(-1)
        if can_look_at_values() and not bool(vertex.any()):
            return walls
        leaving = torch.where(weight > 0, ~section.at_lower, section.at_lower)
        return torch.where(vertex, torch.minimum(walls, vertex_margin(gap, leaving, weight)), walls)


def on_short_section(
    z: Tensor, lower: float | Tensor, upper: float | Tensor, weight: float | Tensor, total: float | Tensor
) -> Tensor | None:
    """The projection of one short vector, in few operations; None where it takes more care.

    That is where derivatives may be wanted, a weight is not positive, a bound infinite, the section a corner or nearly
    so, or z far outside.
    """
    values = [value for value in (lower, upper, weight, total) if isinstance(value, Tensor)]
    if z.ndim != 1 or not is_short(z) or tracked(z, *values) or (isinstance(total, Tensor) and total.ndim):
        return None
    if any(value.ndim and value.shape != z.shape for value in values):
        return None
    array, goal = z.detach().numpy().astype(np.float64), float(total)
    ones = np.ones_like(array)
    low, high, w = (ones * (v.detach().numpy() if isinstance(v, Tensor) else v) for v in (lower, upper, weight))
    if not low.any() and goal > 0 and w.min() > 0:
        high = np.minimum(high, goal / w)  # no entry exceeds the sum
    width = (high - low).min()
    if not (np.isfinite(high - low).all() and width > 0 and 1e-3 * w.max() <= w.min()):
        return None
    room = 1e-6 * float(w @ (high - low))
    if not (w @ low + room < goal < w @ high - room and np.abs(array).max() <= 1e6 * width <= largest(z.dtype)):
        return None
    return torch.from_numpy(clipped_at_level(array, low, high, w, goal)).to(z.dtype)


def plain(*tensors: Tensor) -> tuple[Array, ...]:
    """Without a graph; as NumPy arrays on the CPU, where a torch operation on a few entries is mostly overhead."""
    if tensors[0].device.type == "cpu" and can_look_at_values():
        return tuple(tensor.detach().numpy() for tensor in tensors)
    return tuple(tensor.detach() for tensor in tensors)


def array_module(a: Array) -> ModuleType:
    """torch or numpy, whose functions have the same names here."""
    return torch if isinstance(a, Tensor) else np


def ignoring_overflow(formula: Callable[..., Any]) -> Callable[..., Any]:
    """Let NumPy compute with infinite bounds in silence, as torch does."""

    @functools.wraps(formula)
    def wrapped(first: Array, *others: Array) -> Any:
        if isinstance(first, Tensor):
            return formula(first, *others)
        with np.errstate(all="ignore"):
            return formula(first, *others)

    return wrapped


@ignoring_overflow
def reach(weight: Array, lower: Array, upper: Array) -> tuple[Array, Array]:
    """The least and the largest weight.y between the bounds, in float64 (2, ..., 1), and the rounding of each."""
    xp = array_module(weight)
    lower, upper = (xp.asarray(xp.where(weight == 0, 0.0, side), dtype=xp.float64) for side in (lower, upper))
    ends = xp.stack([xp.minimum(weight * lower, weight * upper), xp.maximum(weight * lower, weight * upper)])
    size = xp.where(xp.isfinite(ends), abs(ends), 0.0)
    return ends.sum(-1, keepdims=True), 32 * _eps(weight) * size.sum(-1, keepdims=True)


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

    parameters: tuple[str, ...] = ("cap", "total")
    _sum = "the sum"

    def __init__(self, cap: float | Tensor = 1.0, total: float | Tensor = 1.0) -> None:
        self.cap: float | Tensor = parameter("cap", cap, low=0.0)
        super().__init__(0.0, self.cap, 1.0, parameter("total", total, low=0.0))


class Section(NamedTuple):
    """Where each entry of the projection lies: y = clip(z - level weight), the level as a sum, large parts first."""

    free: Array
    at_lower: Array
    levels: tuple[Array, ...]

    def near(self, z: Array, weight: Array) -> Array:
        """z - level weight, part by part: the digits of the answer survive beside a large z."""
        for level in self.levels:
            z = z - level * weight
        return z

    def tensors(self) -> Section:
        """The section in tensors."""
        free, at_lower, *levels = map(torch.as_tensor, (self.free, self.at_lower, *self.levels))
        return Section(free, at_lower, tuple(levels))


@ignoring_overflow
def find_section(z: Array, weight: Array, lower: Array, upper: Array, total: Array) -> Section:
    """The face of {lower <= y <= upper, weight.y = total} that holds P(z) = clip(z - level weight, lower, upper).

    weight.clip(z - t weight) falls with t, and is linear between the 2n values of t at which an entry leaves one
    bound or reaches the other. The bisection over these, sorted, evaluates the sum itself, without running sums whose
    rounding would pile up. Further searches around the level found make up for large offsets of z along the
    weight, which do not change P(z), and for a z so far away that the bounds are lost in its rounding.
    """
    xp, levels, steer = array_module(z), (), can_look_at_values()
    near = xp.broadcast_to(z, np.broadcast_shapes(*(part.shape for part in (z, weight, lower, upper, total))))
    for _ in range(ROUNDS if steer else 3):
        free, at_lower, level = _search(near, weight, lower, upper, total)
        levels, near = (*levels, level), near - level * weight
        size = xp.amax(abs(_clip(near, lower, upper)), -1, keepdims=True)
        if steer and bool((abs(level) <= 8 * size).all()):
            break
    return _at_vertex(Section(free, at_lower, levels), near, weight, lower, upper, total)


def _at_vertex(section: Section, near: Array, weight: Array, lower: Array, upper: Array, total: Array) -> Section:
    """The section itself; if P(z) is a vertex, to rounding, all that has a weight is held there.

    A direction of the set must move two entries that have a weight, and at a vertex both leave a bound: either P is
    constant around z, or z is at a kink and H = 0 is among the limits, unlike the H of some of these entries alone.
    """
    xp = array_module(near)
    to_lower, to_upper = abs(near - lower), abs(upper - near)
    moving = section.free & (weight != 0)
    move = xp.where(moving, abs(weight) * xp.minimum(to_lower, to_upper), 0.0).sum(-1, keepdims=True)
    size = abs(weight * _clip(near, lower, upper)).sum(-1, keepdims=True) + abs(total)
    held = moving & (move <= 8 * _eps(near) * size)
    at_lower = xp.where(held, to_lower <= to_upper, section.at_lower)
    return section._replace(free=section.free & ~held, at_lower=at_lower)


def _eps(a: Array) -> float:
    return float(array_module(a).finfo(a.dtype).eps)


def _clip(z: Array, lower: Array, upper: Array) -> Array:
    xp = array_module(z)
    return xp.maximum(xp.minimum(z, upper), lower)


def _search(z: Array, weight: Array, lower: Array, upper: Array, total: Array) -> tuple[Array, Array, Array]:
    """The free entries, those at their lower bound, and the level; at a kink the face to the right of it."""
    xp = array_module(z)
    flip, slope = weight < 0, abs(weight)  # (z, l, u, w) -> (-z, -u, -l, -w): from here on all weights are positive
    z, low, high = (xp.where(flip, -a, b) for a, b in ((z, z), (upper, lower), (lower, upper)))
    counts = slope > 0
    safe = xp.where(counts, slope, 1.0)
    leaves = xp.where(counts, (z - high) / safe, math.inf)
    arrives = xp.where(counts, (z - low) / safe, math.inf)
    ends = xp.full_like(leaves[..., :1], math.inf)
    breaks = _sorted(xp.concatenate([-ends, leaves, arrives, ends], -1))
    t_left, t_right = _bracket(breaks, z, safe, xp.where(counts, low, 0.0), xp.where(counts, high, 0.0), slope, total)
    # An entry of weight zero does not enter the sum: it is free between its bounds.
    free = xp.where(counts, (leaves <= t_left) & (arrives >= t_right), (low < z) & (z < high))
    below = xp.where(counts, arrives <= t_left, z <= low) & ~free
    length = _length(slope * free)
    some = length > 0
    safe = xp.where(some, length, 1.0)
    held = xp.where(free, z, xp.where(below, low, high))
    over = xp.where(counts, slope * held, 0.0).sum(-1, keepdims=True) - total
    level = _clip(over / safe / safe, t_left, t_right)
    # Nothing is free: on all of an interval of levels or, to rounding, at the end where the sum jumps to the total.
    anchor = xp.where(over > 0, t_right, xp.where(over < 0, t_left, t_left / 2 + t_right / 2))
    left_finite, right_finite = xp.isfinite(t_left), xp.isfinite(t_right)
    finite_end = xp.where(left_finite, t_left, xp.where(right_finite, t_right, 0.0))
    anchor = xp.where(left_finite & right_finite, anchor, finite_end)
    return free, xp.where(flip, ~(free | below), below), xp.where(some, level, anchor)


def _bracket(
    breaks: Array, z: Array, safe: Array, low: Array, high: Array, slope: Array, total: Array
) -> tuple[Array, Array]:
    """The neighbouring breaks between which slope.clip(z - t slope, low, high) passes the total, by bisection."""
    xp, size = array_module(z), breaks.shape[-1]
    left = xp.zeros_like(breaks[..., :1], dtype=xp.int64)  # the sum is >= total there
    right = left + (size - 1)
    for _ in range((size - 2).bit_length()):
        middle = (left + right) // 2
        t = _picked(breaks, middle)
        more = (slope * _clip(z - t * safe, low, high)).sum(-1, keepdims=True) >= total
        left, right = xp.where(more, middle, left), xp.where(more | (middle == left), right, middle)
    return _picked(breaks, left), _picked(breaks, right)


def _sorted(a: Array) -> Array:
    return a.sort(-1).values if isinstance(a, Tensor) else np.sort(a, -1)


def _picked(a: Array, index: Array) -> Array:
    if isinstance(a, Tensor):
        return torch.take_along_dim(a, index, -1)
    return a[index] if a.ndim == 1 else np.take_along_axis(a, index, -1)


def _length(v: Array) -> Array:
    """|v| without overflow or underflow, last dimension kept."""
    if isinstance(v, Tensor):
        return event_norm(v, keepdim=True)
    scale = np.amax(abs(v), -1, keepdims=True)
    return scale * np.linalg.norm(v / np.where(scale > 0, scale, 1.0), axis=-1, keepdims=True)


class OnSection(NamedTuple):
    """The point y of a face, its level, and z - level weight."""

    y: Tensor
    level: Tensor
    inner: Tensor


def on_section(z: Tensor, section: Section, weight: Tensor, lower: Tensor, upper: Tensor, total: Tensor) -> OnSection:
    """The point of that face as a differentiable formula: z - level weight on the free entries."""
    parts = (z, weight, lower, upper, total)
    if tracked(*parts):
        return OnSection(*_on_section(z, section.tensors(), *parts[1:]))
    first, *others = plain(*parts)
    return OnSection(*map(torch.as_tensor, _on_section(first, section, *others)))


@ignoring_overflow
def _on_section(
    z: Array, section: Section, weight: Array, lower: Array, upper: Array, total: Array
) -> tuple[Array, ...]:
    xp, near = array_module(z), section.near(z, weight)
    bounds = xp.where(section.at_lower, lower, upper)
    length = _length(weight * section.free)
    safe = xp.where(length > 0, length, 1.0)
    held = xp.where(weight != 0, weight * xp.where(section.free, near, bounds), 0.0)
    step = (held.sum(-1, keepdims=True) - total) / safe / safe * (length > 0)
    inner = near - step * weight
    # Rounding is clipped without a derivative: at a kink that of clip is not the one of any face.
    clipped = _clip(inner, lower, upper)
    if isinstance(z, Tensor):
        clipped, step = with_value(clipped, inner), step.detach()
    return xp.where(section.free, clipped, bounds), sum(section.levels, step), inner


def unit_normal(weight: Array, free: Array) -> Array:
    """w_F/|w_F|: the normal of the hyperplane within the free entries; zero where none of them has a weight."""
    length = _length(weight * free)
    return weight * free / array_module(weight).where(length > 0, length, 1.0)


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
