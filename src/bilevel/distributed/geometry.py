"""Projections on divided balls, simplices and boxes: the formulas of `bilevel.sets` with sums over ranks.

The face is found without derivatives; on it the projection is a plain formula of z and of the parameters, in which
`sum_over_ranks` carries the derivatives, of any order. z is the part of the vectors that is here, (..., n) with n >= 0;
peak, where it is asked for, is the largest entry of the whole vectors.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..errors import InvalidInput
from ..sets.base import ConvexSet, Face, as_point, largest, per_point, rounding_scale, show, tracked
from ..sets.box import Box, bounds_excess
from ..sets.free_space import FreeSpace
from ..sets.l2_ball import L2Ball
from ..sets.simplex import L1Ball, Simplex
from .ranks import Ranks
from .sums import added_up, largest_of, sum_over_ranks
from .threshold import cut


class Excess(NamedTuple):
    """What `ConvexSet.excess` gives: the amount, its scale, and what is broken."""

    amount: Tensor
    scale: Tensor
    what: str


class Geometry(Protocol):
    """What a divided set must know."""

    def sizes(self, z: Tensor) -> list[Tensor]:
        """Numbers per row, (...), whose largest over all ranks the other methods take as `peaks`."""
        ...

    def project(self, z: Tensor, peaks: list[Tensor]) -> Tensor:
        """The part of P(z) that is here."""
        ...

    def face(self, z: Tensor, peaks: list[Tensor]) -> Face:
        """H, with products that sum over ranks."""
        ...

    def excess(self, y: Tensor) -> Excess:
        """How far y is outside, the same on every rank."""
        ...

    def margin(self, z: Tensor, peaks: list[Tensor]) -> Tensor:
        """The distance to the nearest kink, the same on every rank."""
        ...


class Thresholded:
    """Simplex and l1 ball: P(z) = max(z - theta, 0), of |z| with the signs of z for the ball.

    With S the support of P(z) and s the signs on it, H = diag(S) - s s'/|S|; inside the ball H = I.
    """

    def __init__(self, base: Simplex | L1Ball, ranks: Ranks) -> None:
        self.base, self.ranks, self.ball = base, ranks, isinstance(base, L1Ball)

    def _magnitude(self, z: Tensor) -> Tensor:
        return z.abs() if self.ball else z

    def sizes(self, z: Tensor) -> list[Tensor]:
        return [largest_entry(self._magnitude(z.detach()))]

    def _found(self, z: Tensor, peaks: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """b = z - max z, the level in its dtype, and which rows are inside the ball, (..., 1)."""
        b, radius = self._magnitude(z) - peaks[0].unsqueeze(-1), per_point(self.base.radius, z, name="radius").detach()
        batch = (*torch.broadcast_shapes(b.shape[:-1], radius.shape[:-1]), 1)
        rows = b.detach().expand(*batch[:-1], b.shape[-1]).reshape(math.prod(batch), b.shape[-1])
        size, flat = (
            u.double().expand(batch).reshape(-1, 1)
            for u in (z.detach().abs().sum(-1, True, dtype=torch.float64), radius)
        )
        found = cut(rows, size, flat, self.ranks, inside_ends=self.ball)
        _check_total(self.base, found.total, z.dtype)
        inside = (found.total <= flat) & (flat > 0) & self.ball
        return b, found.level.to(z.dtype).reshape(batch), inside.reshape(batch)

    def project(self, z: Tensor, peaks: list[Tensor]) -> Tensor:
        b, level, inside = self._found(z, peaks)
        radius = per_point(self.base.radius, z, name="radius")
        if tracked(z, radius):
            support = b.detach() > level
            count = added_up(support.sum(-1, True), self.ranks).clamp_min(1)
            level = (sum_over_ranks(torch.where(support, b, 0).sum(-1, True), self.ranks) - radius) / count
            b = torch.where(support, b, level)
        shrunk = (b - level).clamp_min(0)
        return torch.where(inside, z, z.sign() * shrunk) if self.ball else shrunk

    def face(self, z: Tensor, peaks: list[Tensor]) -> Face:
        b, level, inside = self._found(z, peaks)
        mask = (b > level) & ~inside
        signs = mask * (z.sign() if self.ball else torch.ones_like(z))
        count, full = added_up(torch.stack([mask.sum(-1, True), inside * mask.shape[-1]]), self.ranks)
        return RankOneFace(
            mask | inside, signs, signs / count.clamp_min(1), self.ranks, {"radius": self.base.radius},
            is_projector=True, support=mask | inside, dimension=(full + (count - 1).clamp_min(0)).squeeze(-1),
        )  # fmt: skip

    def excess(self, y: Tensor) -> Excess:
        radius = per_point(self.base.radius, y, name="radius", keepdim=False)
        total = sum_over_ranks(self._magnitude(y).sum(-1), self.ranks)
        if self.ball:
            return Excess(
                (total - radius).clamp_min(0), radius, f"the l1 norm exceeds the radius {show(self.base.radius)}"
            )
        below = largest_of(largest_entry(-y), self.ranks)
        amount = torch.maximum((total - radius).abs(), below)
        return Excess(amount, radius, f"entries must be >= 0 and add up to {show(self.base.radius)}")

    def margin(self, z: Tensor, peaks: list[Tensor]) -> Tensor:
        """The nearest wall of the cell of z: an entry of the support vanishes, another appears, or theta = 0."""
        b, level, inside = self._found(z, peaks)
        support = b > level
        parts = (support.sum(-1), torch.full_like(support.sum(-1), z.shape[-1]), z.abs().sum(-1))
        count, length, total = added_up(torch.stack([part.to(z.dtype) for part in parts]), self.ranks)
        share = (1 / count.clamp_min(1)).unsqueeze(-1)
        rest = torch.where(count.unsqueeze(-1) > 1, 1 - share, 0)  # the only entry of a support cannot move
        wall = (b - level).abs() / torch.where(support, rest, 1 + share).sqrt()
        wall = torch.where(wall.isnan() | (count == 0).unsqueeze(-1), torch.inf, wall)
        nearest = -largest_of(largest_entry(-wall), self.ranks)
        if not self.ball:
            return nearest
        radius = per_point(self.base.radius, z, keepdim=False).detach()
        to_ball = (level.squeeze(-1) + peaks[0]) * count.sqrt()
        margin = torch.where(inside.squeeze(-1), (radius - total) / length.sqrt(), torch.minimum(nearest, to_ball))
        return torch.where(radius > 0, margin, torch.inf)


class Round:
    """The l2 ball: P(z) = center + radius d/|d| with d = z - center, outside; there H = radius/|d| (I - d d'/|d|^2)."""

    def __init__(self, base: L2Ball, ranks: Ranks) -> None:
        self.base, self.ranks = base, ranks

    def sizes(self, z: Tensor) -> list[Tensor]:
        return [largest_entry((z - as_point(self.base.center, z, name="center")).detach().abs())]

    def _parts(self, z: Tensor, peaks: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The center, the radius, d and |d|."""
        center = as_point(self.base.center, z, name="center")
        radius = per_point(self.base.radius, z, name="radius")
        norm = norm_over_ranks(z - center, peaks[0].unsqueeze(-1), self.ranks)
        _check_total(self.base, norm.detach(), z.dtype)
        return center, radius, z - center, norm

    def project(self, z: Tensor, peaks: list[Tensor]) -> Tensor:
        center, radius, offset, norm = self._parts(z, peaks)
        outside = (norm > radius) | (radius == 0)
        return torch.where(outside, center + radius * (offset / torch.where(norm > 0, norm, 1)), z)

    def face(self, z: Tensor, peaks: list[Tensor]) -> Face:
        _, radius, offset, norm = (part.detach() for part in self._parts(z, peaks))
        outside = (norm > radius) | (radius == 0)
        norm = torch.where(norm > 0, norm, 1)
        shrink = torch.where(outside, radius / norm, 1)
        normal = torch.where(outside, offset / norm, 0)
        length = added_up(torch.full_like(norm, z.shape[-1], dtype=torch.int64), self.ranks)
        return RankOneFace(
            shrink, normal, normal, self.ranks, {"radius": self.base.radius, "center": self.base.center},
            is_projector=not bool(outside.any()), support=None,
            dimension=((length - outside.to(torch.int64)) * (shrink > 0)).squeeze(-1),
        )  # fmt: skip

    def excess(self, y: Tensor) -> Excess:
        center, radius = as_point(self.base.center, y), per_point(self.base.radius, y, keepdim=False)
        peaks = largest_of(torch.stack([*self.sizes(y), largest_entry(y.abs() + center.abs())]), self.ranks).unsqueeze(
            -1
        )
        norm, size = (
            norm_over_ranks(part, peak, self.ranks).squeeze(-1)
            for part, peak in zip((y - center, y.abs() + center.abs()), peaks, strict=True)
        )
        what = f"the norm exceeds the radius {show(self.base.radius)}"
        return Excess((norm - radius).clamp_min(0), radius + rounding_scale(size), what)

    def margin(self, z: Tensor, peaks: list[Tensor]) -> Tensor:
        _, radius, _, norm = (part.detach() for part in self._parts(z, peaks))
        return torch.where(radius > 0, (norm - radius).abs(), torch.inf).squeeze(-1)


class Separate:
    """Boxes and R^n: each entry is projected by itself, where it is; only questions about all entries meet."""

    def __init__(self, base: Box | FreeSpace, ranks: Ranks) -> None:
        self.base, self.ranks = base, ranks

    def sizes(self, z: Tensor) -> list[Tensor]:
        return []

    def _bounds(self, z: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(self.base, Box):
            return self.base._bounds(z)
        return z.new_full((), -torch.inf), z.new_full((), torch.inf)

    def project(self, z: Tensor, peaks: list[Tensor]) -> Tensor:
        lower, upper = self._bounds(z)
        # `where` rather than clamp: at a kink its derivative is 0, like that of the Jacobian.
        return torch.where(z <= lower, lower, torch.where(z >= upper, upper, z))

    def face(self, z: Tensor, peaks: list[Tensor]) -> Face:
        if isinstance(self.base, FreeSpace):
            length = added_up(torch.full(z.shape[:-1], z.shape[-1], device=z.device), self.ranks)
            return DiagonalFace(None, {}, self.ranks, length)  # type: ignore[arg-type]
        lower, upper = self._bounds(z)
        below = z <= lower
        above = (z >= upper) & ~below
        free = ~(below | above)
        rates: dict[str, tuple[float | Tensor, Tensor]] = {}
        if "radius" in self.base.parameters:
            rates = {"radius": (self.base.radius, above.to(z.dtype) - below.to(z.dtype))}  # type: ignore[union-attr]
        elif self.base.parameters:
            rates = {"lower": (self.base.lower, below.to(z.dtype)), "upper": (self.base.upper, above.to(z.dtype))}  # type: ignore[union-attr]
        return DiagonalFace(free, rates, self.ranks, added_up(free.sum(-1), self.ranks))

    def excess(self, y: Tensor) -> Excess:
        """The entry of any rank that leaves its bounds most, in units of its own scale."""
        size = largest_of(largest_entry(y.abs()), self.ranks).unsqueeze(-1)
        amount, scale = y.new_zeros(y.shape[:-1]), y.new_ones(y.shape[:-1])
        if y.shape[-1]:
            amount, scale = bounds_excess(y, *self._bounds(y), peak=size)
        ratio = torch.where(amount > 0, amount / torch.where(scale > 0, scale, amount), 0)
        worst = ratio == largest_of(ratio, self.ranks)
        found = largest_of(torch.stack([torch.where(worst, u, -torch.inf) for u in (amount, scale)]), self.ranks)
        return Excess(found[0], found[1], "an entry leaves its bounds")

    def margin(self, z: Tensor, peaks: list[Tensor]) -> Tensor:
        lower, upper = (side.detach() for side in self._bounds(z))
        gap = torch.where(lower < upper, torch.minimum((z - lower).abs(), (z - upper).abs()), torch.inf)
        return -largest_of(largest_entry(-gap), self.ranks)


class RankOneFace(Face):
    """H v = d (v - t <w, v>) with <w, v> a sum over ranks: the faces of balls and simplices."""

    def __init__(
        self, d: Tensor, t: Tensor, w: Tensor, ranks: Ranks, parameters: dict[str, float | Tensor], *,
        is_projector: bool, support: Tensor | None, dimension: Tensor,
    ) -> None:  # fmt: skip
        self._d, self._t, self._w, self._ranks, self._parameters = d, t, w, ranks, parameters
        self.is_projector, self.support, self.dimension = is_projector, support, dimension

    def _along(self, v: Tensor) -> Tensor:
        """<w, v> of each row, (..., 1)."""
        return sum_over_ranks((v * self._w.to(v.dtype)).sum(-1, True), self._ranks)

    def apply(self, v: Tensor) -> Tensor:
        return self._d.to(v.dtype) * (v - self._along(v) * self._t.to(v.dtype))

    def parameter_vjp(self, u: Tensor) -> dict[str, Tensor]:
        """dP/dradius = w, the whole derivative on every rank, and dP/dcenter = I - H."""
        products = {}
        for name, value in self._parameters.items():
            if isinstance(value, Tensor):
                if name == "radius":
                    products[name] = self._along(u).squeeze(-1).sum_to_size(value.shape)
                else:
                    products[name] = _of_parameter(u - self.apply(u), value, self._ranks)
        return products


class DiagonalFace(Face):
    """H = diag(free): the face of a box; H = I without a mask."""

    is_projector = True

    def __init__(
        self, free: Tensor | None, rates: dict[str, tuple[float | Tensor, Tensor]], ranks: Ranks, dimension: Tensor
    ) -> None:  # fmt: skip
        self.support, self.dimension, self._rates, self._ranks = free, dimension, rates, ranks

    def apply(self, v: Tensor) -> Tensor:
        return v if self.support is None else v * self.support

    def parameter_vjp(self, u: Tensor) -> dict[str, Tensor]:
        """A bound moves exactly the entries that sit on it."""
        products = {}
        for name, (value, rate) in self._rates.items():
            if isinstance(value, Tensor):
                moved = u * rate
                if name == "radius":
                    products[name] = sum_over_ranks(moved.sum(-1).sum_to_size(value.shape), self._ranks)
                else:
                    products[name] = _of_parameter(moved, value, self._ranks)
        return products


def _of_parameter(product: Tensor, value: Tensor, ranks: Ranks) -> Tensor:
    """The derivative of a number that all ranks hold is a sum over them; that of a divided tensor stays where it is."""
    part = product.sum_to_size(value.shape)
    return part if value.ndim else sum_over_ranks(part, ranks)


def _check_total(base: ConvexSet, total: Tensor, dtype: torch.dtype) -> None:
    """Refuse points whose sum overflows, on every rank."""
    if not bool((total <= largest(dtype)).all()):
        raise InvalidInput(
            f"sharded({base!r}): the entries of the point cannot be added up in {dtype}: use z.double(), or a larger "
            "unit for z and the set"
        )


def largest_entry(z: Tensor) -> Tensor:
    """The largest entry of each row, -inf without entries."""
    return z.amax(-1) if z.shape[-1] else z.new_full(z.shape[:-1], -torch.inf)


def norm_over_ranks(v: Tensor, peak: Tensor, ranks: Ranks) -> Tensor:
    """|v| over all ranks, (..., 1), for |v_i| <= peak: no overflow or underflow, derivative 0 at v = 0."""
    scale = torch.where(peak > 0, peak, 1)
    square = sum_over_ranks((v / scale).square().sum(-1, True), ranks)
    return torch.where(square == 0, 1, square).sqrt() * scale * (square != 0)
