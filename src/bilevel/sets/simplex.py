"""The simplex and the l1 ball: both soft-threshold at a level that a search finds."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import ConvexSet, Face, parameter, per_point


def simplex_support(z: Tensor, radius: float | Tensor) -> Tensor:
    """Mask of the positive entries of the projection of z on {y >= 0, sum y = radius}, shape of z.

    Held, Wolfe & Crowder (1974): with z sorted downwards, entry j stays while j z_(j) > sum_{i<=j} z_(i) - radius. The
    maximum is subtracted first, so that only differences of the size of the answer are added up.
    """
    with torch.no_grad():
        shifted = z - z.amax(-1, keepdim=True)
        ordered = shifted.sort(-1, descending=True).values
        rank = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
        excess = ordered.cumsum(-1) - radius
        count = (rank * ordered > excess).sum(-1, keepdim=True).clamp_min(1)
        level = excess.gather(-1, count - 1) / count
        return shifted > level


def _threshold(z: Tensor, support: Tensor, radius: float | Tensor) -> Tensor:
    """max(z - theta, 0) with theta such that the entries of `support` add up to `radius`."""
    top = z.detach().amax(-1, keepdim=True)
    count = support.sum(-1, keepdim=True).clamp_min(1)
    theta = ((z - top) * support).sum(-1, keepdim=True) / count - radius / count
    return torch.where(support, z - top - theta, torch.zeros_like(z)).clamp_min(0)


class Simplex(ConvexSet):
    """{y : y >= 0, sum y = radius}; P(z) = max(z - theta, 0).

    On the support S of P(z), H = I - 1 1'/|S|; entries at the threshold count as outside S.

    Parameters
    ----------
    radius
        The sum, positive: a number, or a tensor with one value per batch element.

    Examples
    --------
    >>> Simplex().project(torch.tensor([1.0, 0.5, -1.0]))
    tensor([0.7500, 0.2500, 0.0000])
    """

    parameters = ("radius",)

    def __init__(self, radius: float | Tensor = 1.0) -> None:
        self.radius = parameter("radius", radius, low=0.0, strict=True)

    def project(self, z: Tensor) -> Tensor:
        z = self.checked(z)
        radius = per_point(self.radius, z)
        return _threshold(z, simplex_support(z, radius), radius)

    def jacobian(self, z: Tensor) -> Face:
        z = self.checked(z.detach())
        return SignedFace(simplex_support(z, per_point(self.radius, z)), None, self.radius)

    def excess(self, y: Tensor) -> tuple[Tensor, float | Tensor, str]:
        off = (y.sum(-1) - self.radius).abs()
        amount = torch.maximum(off, (-y).amax(-1).clamp_min(0))
        return amount, self.radius, f"entries must be >= 0 and add up to {self.radius}"

    def __repr__(self) -> str:
        return f"Simplex(radius={self.radius})"


class L1Ball(ConvexSet):
    """{y : |y|_1 <= radius}; P(z) = sign(z) max(|z| - theta, 0).

    Inside the ball (and on its boundary) H = I. Outside, with S the support of P(z) and s = sign(z) on S,
    H = diag(S) - s s'/|S|; entries at the threshold count as outside S.

    Parameters
    ----------
    radius
        Non-negative: a number, or a tensor with one value per batch element.

    Examples
    --------
    >>> L1Ball(radius=1.0).project(torch.tensor([2.0, -1.5, 0.1]))
    tensor([ 0.7500, -0.2500,  0.0000])
    """

    parameters = ("radius",)

    def __init__(self, radius: float | Tensor = 1.0) -> None:
        self.radius = parameter("radius", radius, low=0.0)

    def project(self, z: Tensor) -> Tensor:
        z = self.checked(z)
        radius = per_point(self.radius, z)
        magnitude = z.abs()
        outside = magnitude.sum(-1, keepdim=True) > radius
        shrunk = _threshold(magnitude, simplex_support(magnitude, radius), radius)
        return torch.where(outside, z.sign() * shrunk, z)

    def jacobian(self, z: Tensor) -> Face:
        z = self.checked(z.detach())
        radius = per_point(self.radius, z)
        magnitude = z.abs()
        outside = magnitude.sum(-1, keepdim=True) > radius
        support = simplex_support(magnitude, radius) | ~outside
        signs = z.sign() * (support & outside)
        return SignedFace(support, signs, self.radius)

    def excess(self, y: Tensor) -> tuple[Tensor, float | Tensor, str]:
        norm = y.abs().sum(-1)
        return (norm - self.radius).clamp_min(0), self.radius, f"the l1 norm exceeds the radius {self.radius}"

    def __repr__(self) -> str:
        return f"L1Ball(radius={self.radius})"


class SignedFace(Face):
    """H = diag(S) - s s'/|s|^2 for a sign vector s on the support S (s = 1 on S for the simplex, 0 inside a ball)."""

    is_projector = True

    def __init__(self, support: Tensor, signs: Tensor | None, radius: float | Tensor) -> None:
        self.support = support
        self._radius = radius
        self._signs = support.to(torch.get_default_dtype()) if signs is None else signs
        self._count = self._signs.abs().sum(-1, keepdim=True)
        self.dimension = support.sum(-1) - (self._count.squeeze(-1) > 0).to(torch.int64)

    def apply(self, v: Tensor) -> Tensor:
        signs = self._signs.to(v.dtype)
        along = (v * signs).sum(-1, keepdim=True) / self._count.to(v.dtype).clamp_min(1)
        return torch.where(self.support, v - along * signs, torch.zeros_like(v))

    def parameter_vjp(self, u: Tensor) -> dict[str, Tensor]:
        """dP/dradius = s/|S|: growing the ball moves every entry of the support outwards alike."""
        if not isinstance(self._radius, Tensor):
            return {}
        signs, count = self._signs.to(u.dtype), self._count.to(u.dtype).clamp_min(1)
        return {"radius": ((u * signs).sum(-1) / count.squeeze(-1)).sum_to_size(self._radius.shape)}
