"""The simplex and the l1 ball: both soft-threshold at a level that a search finds."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from .base import ConvexSet, Face, can_look_at_values, in_float32, largest, parameter, per_point, show, tracked
from .box_section import wall_distance
from .threshold import above_level_of_short, cut_level, cut_level_of_one, is_short


def onto_simplex(z: Tensor, radius: Tensor) -> Tensor:
    """(b - theta)_+ with b = z - max z and theta = (sum_S b - radius)/|S|, S the support of the answer."""
    if not tracked(z, radius):
        return above_level(z, radius)
    b = z - z.detach().amax(-1, keepdim=True)
    support = b.detach() > cut_level(b, radius)
    return torch.where(support, b - _theta(b, support, radius), 0).clamp_min(0)


def above_level(z: Tensor, radius: Tensor) -> Tensor:
    """The same without derivatives: the level that the search ends with is theta."""
    z = z.detach()
    b = z - z.amax(-1, keepdim=True)
    return (b - cut_level(b, radius)).clamp_min_(0)


def above_level_of_one(z: Tensor, radius: float) -> Tensor:
    """The same for one vector (n,), with few operations."""
    if is_short(z):
        return above_level_of_short(z, radius)
    b = z - z.max()
    return b.sub_(cut_level_of_one(b, radius)).relu_()


def support_mask(z: Tensor, radius: float | Tensor, one: float | None) -> Tensor:
    """1.0 where the projection of z on the simplex is positive, else 0.0; `one` as of `_one_radius`."""
    if one is None:
        return above_level(z, per_point(radius, z, name="radius")).sign_()
    if is_short(z):
        return above_level_of_short(z, one).sign_()
    b = z - z.max()
    return b.gt_(cut_level_of_one(b, one))


def _count(mask: Tensor, one: float | None) -> float | Tensor:
    """The number of ones, for one vector as a number."""
    return mask.sum(-1, keepdim=True) if one is None else float(mask.sum())


def _theta(b: Tensor, support: Tensor, radius: Tensor) -> Tensor:
    count = support.sum(-1, keepdim=True).clamp_min(1)
    return (torch.where(support, b, 0).sum(-1, keepdim=True) - radius) / count


def _one_radius(z: Tensor, radius: float | Tensor) -> float | None:
    """The radius as a number, when z is one vector, in float32 or float64, of which no derivative is asked."""
    if z.ndim != 1 or z.numel() == 0 or z.dtype not in (torch.float32, torch.float64) or tracked(z):
        return None
    if z.is_meta or z.is_sparse:  # `checked` says what is wrong with them
        return None
    if isinstance(radius, Tensor) and (radius.ndim or tracked(radius)):
        return None
    number = float(radius)
    if number < 0:  # changed in place, after the constructor had looked at it
        parameter("radius", number, low=0.0)
    return number if number <= largest(z.dtype) else None


class Simplex(ConvexSet):
    """{y : y >= 0, sum y = radius}; P(z) = max(z - theta, 0).

    On the support S of P(z), H = I - 1 1'/|S|; entries at the threshold count as outside S. With radius 0 the set is
    the origin alone.

    Parameters
    ----------
    radius
        The sum, non-negative: a number, or a tensor with one value per batch element.

    References
    ----------
    Held, Wolfe & Crowder (1974); Duchi, Shalev-Shwartz, Singer & Chandra (2008).

    Examples
    --------
    >>> Simplex().project(torch.tensor([1.0, 0.5, -1.0]))
    tensor([0.7500, 0.2500, 0.0000])
    """

    polyhedral = True
    parameters = ("radius",)

    def __init__(self, radius: float | Tensor = 1.0) -> None:
        self.radius = parameter("radius", radius, low=0.0)

    @in_float32
    def project(self, z: Tensor) -> Tensor:
        z = self.checked(z)
        radius = _one_radius(z, self.radius)
        if radius is not None:
            return above_level_of_one(z, radius)
        return onto_simplex(z, per_point(self.radius, z, name="radius"))

    @in_float32
    def jacobian(self, z: Tensor) -> Face:
        z = self.checked(z).detach()
        one = _one_radius(z, _fixed(self.radius))
        mask = support_mask(z, self.radius, one)
        return SignedFace(mask, mask, _count(mask, one), None, self.radius)

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        radius = per_point(self.radius, y, name="radius", keepdim=False)
        amount = torch.maximum((y.sum(-1) - radius).abs(), -y.amin(-1))
        return amount, radius.detach(), f"entries must be >= 0 and add up to {show(self.radius)}"

    @in_float32
    def margin(self, z: Tensor) -> Tensor:
        z = self.checked(z).detach()
        b, support, theta = _cell(z, per_point(self.radius, z, name="radius").detach())
        return wall_distance((b - theta).abs(), support, torch.ones_like(b))

    def __repr__(self) -> str:
        return f"Simplex(radius={show(self.radius)})"


class L1Ball(ConvexSet):
    """{y : |y|_1 <= radius}; P(z) = sign(z) max(|z| - theta, 0).

    Inside the ball (and on its boundary) H = I. Outside, with S the support of P(z) and s = sign(z) on S,
    H = diag(S) - s s'/|S|; entries at the threshold count as outside S. With radius 0 the projection is constant and
    H = 0, as for every ball.

    Parameters
    ----------
    radius
        Non-negative: a number, or a tensor with one value per batch element.

    References
    ----------
    Duchi, Shalev-Shwartz, Singer & Chandra (2008), Efficient projections onto the l1-ball, ICML; the lower-level set of
    section 5.2 of the paper.

    Examples
    --------
    >>> L1Ball(radius=1.0).project(torch.tensor([2.0, -1.5, 0.1]))
    tensor([ 0.7500, -0.2500,  0.0000])
    """

    polyhedral = True
    parameters = ("radius",)

    def __init__(self, radius: float | Tensor = 1.0) -> None:
        self.radius = parameter("radius", radius, low=0.0)

    @in_float32
    def project(self, z: Tensor) -> Tensor:
        radius = _one_radius(z, self.radius) if isinstance(z, Tensor) else None
        if radius is not None:
            magnitude, total = self._of_one(z)
            return z.clone() if total <= radius else above_level_of_one(magnitude, radius).copysign_(z)
        z = self.checked(z)
        magnitude, radius = z.abs(), per_point(self.radius, z, name="radius")
        return torch.where(within(magnitude, radius), z, z.sign() * onto_simplex(magnitude, radius))

    def _of_one(self, z: Tensor) -> tuple[Tensor, float]:
        """|z| and its sum for one vector; a finite sum is the proof that z is finite."""
        magnitude = z.abs()
        total = float(magnitude.sum())
        if not total <= largest(z.dtype):
            self.checked(z)
        return magnitude, total

    @in_float32
    def jacobian(self, z: Tensor) -> Face:
        z = self.of_kind(z).detach()
        one = _one_radius(z, _fixed(self.radius))
        if one is not None:
            magnitude, total = self._of_one(z)
            if 0 < one >= total:
                return WholeFace(z, self.radius)
            mask = support_mask(magnitude, self.radius, one)
            return SignedFace(mask, mask.copysign(z), _count(mask, one), None, self.radius)
        magnitude, radius = self.checked(z).abs(), per_point(self.radius, z, name="radius").detach()
        inside, mask = within(magnitude, radius), support_mask(magnitude, self.radius, None)
        count = mask.sum(-1, keepdim=True)
        if can_look_at_values() and not bool(inside.any()):
            return SignedFace(mask, mask.copysign(z), count, None, self.radius)
        mask = mask * ~inside
        return SignedFace(mask, mask * z.sign(), count * ~inside, inside, self.radius)

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        radius = per_point(self.radius, y, name="radius", keepdim=False)
        amount = (y.abs().sum(-1) - radius).clamp_min(0)
        return amount, radius.detach(), f"the l1 norm exceeds the radius {show(self.radius)}"

    @in_float32
    def margin(self, z: Tensor) -> Tensor:
        """Outside, the nearest wall of the cell of z (a support entry vanishes, another appears, theta = 0)."""
        z = self.checked(z).detach()
        radius, top = per_point(self.radius, z, name="radius").detach(), z.abs().amax(-1)
        b, support, theta = _cell(z.abs(), radius)
        walls = wall_distance((b - theta).abs(), support, torch.ones_like(b))
        to_ball = (theta.squeeze(-1) + top) * support.sum(-1).to(z.dtype).sqrt()
        room = (radius - z.abs().sum(-1, keepdim=True)).squeeze(-1)
        margin = torch.where(room < 0, torch.minimum(walls, to_ball), room / z.shape[-1] ** 0.5)
        return torch.where(per_point(self.radius, z, keepdim=False).detach() > 0, margin, torch.inf)

    def __repr__(self) -> str:
        return f"L1Ball(radius={show(self.radius)})"


def within(magnitude: Tensor, radius: Tensor) -> Tensor:
    """Whether a ball holds the point, so that H = I there: a ball of radius 0 has no such point."""
    radius = radius.detach()
    return (magnitude.detach().sum(-1, keepdim=True) <= radius) & (radius > 0)


def _cell(z: Tensor, radius: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """b = z - max z, the support of the projection on the simplex, and its threshold."""
    b = z - z.amax(-1, keepdim=True)
    support = b > cut_level(b, radius)
    return b, support, _theta(b, support, radius)


def _fixed(radius: float | Tensor) -> float | Tensor:
    return radius.detach() if isinstance(radius, Tensor) else radius


class WholeFace(Face):
    """H = I, inside a ball: the radius does not matter."""

    is_projector = True

    def __init__(self, z: Tensor, radius: float | Tensor) -> None:
        self._z, self._radius = z, radius

    @cached_property
    def support(self) -> Tensor:  # type: ignore[override]
        return torch.ones_like(self._z, dtype=torch.bool)

    @cached_property
    def dimension(self) -> Tensor:  # type: ignore[override]
        return self.support.sum(-1)

    def apply(self, v: Tensor) -> Tensor:
        return v

    def parameter_vjp(self, u: Tensor) -> dict[str, Tensor]:
        return {"radius": u.new_zeros(self._radius.shape)} if isinstance(self._radius, Tensor) else {}


class SignedFace(Face):
    """H = diag(m) - s s'/|S| with m = 1 on the support S and signs s, |s| = m; I where inside a ball."""

    is_projector = True

    def __init__(
        self, mask: Tensor, signs: Tensor, count: float | Tensor, inside: Tensor | None, radius: float | Tensor
    ) -> None:
        self._mask, self._signs, self._inside, self._radius = mask, signs, inside, radius
        self._count = count.clamp_min(1) if isinstance(count, Tensor) else max(count, 1.0)

    def _mean(self, v: Tensor, signs: Tensor) -> Tensor:
        """s.v/|S|, last dimension kept."""
        if isinstance(self._count, Tensor):
            return (v * signs).sum(-1, keepdim=True) / self._count.to(v.dtype)
        return (v @ signs).unsqueeze(-1) / self._count

    @cached_property
    def support(self) -> Tensor:  # type: ignore[override]
        return self._mask != 0 if self._inside is None else (self._mask != 0) | self._inside

    @cached_property
    def dimension(self) -> Tensor:  # type: ignore[override]
        return self.support.sum(-1) - (self._signs != 0).any(-1).to(torch.int64)

    def apply(self, v: Tensor) -> Tensor:
        signs = self._signs.to(v.dtype)
        if isinstance(self._count, float) and v.ndim == 1 and not tracked(v):  # fewer operations
            return torch.sub(v, signs, alpha=float(torch.dot(v, signs)) / self._count).mul_(self._mask)
        moved = torch.addcmul(v, self._mean(v, signs), signs, value=-1).mul_(self._mask)
        return moved if self._inside is None else torch.where(self._inside, v, moved)

    def parameter_vjp(self, u: Tensor) -> dict[str, Tensor]:
        """dP/dradius = s/|S|: growing the ball moves every entry of the support outwards alike."""
        if not isinstance(self._radius, Tensor):
            return {}
        rate = self._mean(u, self._signs.to(u.dtype)).squeeze(-1)
        return {"radius": rate.sum_to_size(self._radius.shape)}

    def basis(self) -> Tensor | None:
        """Helmert's columns on the support: (s_1, ..., s_j, -j s_{j+1}, 0, ...) / sqrt(j (j + 1))."""
        if self._signs.ndim != 1 or not bool(self._signs.any()):
            return None
        signs = self._signs[self._signs != 0]
        j = torch.arange(1, len(signs), dtype=signs.dtype, device=signs.device)
        columns = torch.ones(len(signs), len(signs) - 1, dtype=signs.dtype, device=signs.device).triu()
        columns = columns - torch.diag_embed(j, -1)[:, : len(signs) - 1]
        full = signs.new_zeros(len(self._signs), len(signs) - 1)
        full[self._signs != 0] = signs[:, None] * columns / (j * (j + 1)).sqrt()
        return full
