"""Boxes cut by one hyperplane: the box section and the capped simplex."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import EmptySet
from .base import ConvexSet, Face, as_point, can_look_at_values, event_norm, in_float32, parameter, per_point, show
from .box import bound, bounds_excess, check_order, in_order
from .section import Section, find_section, on_section, vertex_margin, wall_distance


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
            raise EmptySet(
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

    @in_float32
    def project(self, z: Tensor) -> Tensor:
        z = self.checked(z)
        parts = self._parts(z)
        return on_section(z, self._section(z, parts), *parts[:-1]).y

    @in_float32
    def jacobian(self, z: Tensor) -> Face:
        z = self.checked(z).detach()
        parts = tuple(part.detach() for part in self._parts(z))
        section = self._section(z, parts)
        y, level, _ = on_section(z, section, *parts[:-1])
        values = {name: getattr(self, name) for name in self.parameters}
        return SectionFace(section, parts[0], y, level, parts[-1], values)

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

    @in_float32
    def margin(self, z: Tensor) -> Tensor:
        """The nearest wall of the cell of z: a free entry meets a bound, a fixed one leaves it (at a vertex two do)."""
        z = self.checked(z).detach()
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

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={show(getattr(self, name))}" for name in self.parameters)
        return f"{type(self).__name__}({shown})"


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


class SectionFace(Face):
    """H = diag(F) - w_F w_F'/|w_F|^2 on the free entries F; `size` is the factor taken from the weight."""

    is_projector = True

    def __init__(
        self,
        section: Section,
        weight: Tensor,
        y: Tensor,
        level: Tensor,
        size: Tensor,
        values: dict[str, float | Tensor],
    ) -> None:
        self.support = free = section.free
        self._at_lower, self._at_upper = section.at_lower, ~(free | section.at_lower)
        self._y, self._level, self._size, self._values = y, level, size, values
        self._length = event_norm(weight * free, keepdim=True)
        self._safe = torch.where(self._length > 0, self._length, 1)
        self._normal, self._weight = weight * free / self._safe, weight
        self.dimension = free.sum(-1) - (self._length.squeeze(-1) > 0).to(torch.int64)

    def apply(self, v: Tensor) -> Tensor:
        return v * self.support - (v * self._normal).sum(-1, keepdim=True) * self._normal

    def parameter_vjp(self, u: Tensor) -> dict[str, Tensor]:
        """With q = w_F.u_F/|w_F|^2: total q; a bound u - q w where it holds; weight -level (H u) - q y."""
        q = (u * self._normal).sum(-1, keepdim=True) / self._safe
        held = u - q * self._weight
        rates = {
            "total": (q / self._size).squeeze(-1),
            "lower": held * self._at_lower,
            "upper": held * self._at_upper,
            "cap": held * self._at_upper,
            "weight": (-self._level * self.apply(u) - q * self._y) / self._size,
        }
        return {
            name: rates[name].sum_to_size(value.shape)
            for name, value in self._values.items()
            if isinstance(value, Tensor)
        }
