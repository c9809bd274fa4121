"""The Euclidean ball."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import ConvexSet, Face, parameter, per_point


class L2Ball(ConvexSet):
    """{y : |y - center|_2 <= radius}; P(z) = center + radius d/|d| with d = z - center, outside.

    Inside the ball (and on its boundary) H = I; outside H = radius/|d| (I - d d'/|d|^2), not a projector.

    Parameters
    ----------
    radius
        Non-negative: a number, or a tensor with one value per batch element.
    center
        A number or a tensor that broadcasts against the point.

    Examples
    --------
    >>> L2Ball(radius=1.0).project(torch.tensor([3.0, 4.0]))
    tensor([0.6000, 0.8000])
    """

    parameters = ("radius", "center")

    def __init__(self, radius: float | Tensor = 1.0, center: float | Tensor = 0.0) -> None:
        self.radius = parameter("radius", radius, low=0.0)
        self.center = parameter("center", center)

    def project(self, z: Tensor) -> Tensor:
        z = self.checked(z)
        radius = per_point(self.radius, z)
        offset = z - self.center
        norm = _norm(offset)
        outside = norm > radius
        return torch.where(outside, self.center + radius * (offset / norm), z)

    def jacobian(self, z: Tensor) -> Face:
        offset = self.checked(z.detach()) - self.center
        return SphereFace(offset, self.radius, self.center)

    def excess(self, y: Tensor) -> tuple[Tensor, float | Tensor, str]:
        norm = _norm(y - self.center).squeeze(-1)
        return (norm - self.radius).clamp_min(0), self.radius, f"the norm exceeds the radius {self.radius}"

    def __repr__(self) -> str:
        return f"L2Ball(radius={self.radius}, center={self.center})"


class SphereFace(Face):
    """H = shrink (I - n n') with the unit normal n and shrink = radius/|d|; the identity inside the ball."""

    def __init__(self, offset: Tensor, radius: float | Tensor, center: float | Tensor) -> None:
        norm = _norm(offset)
        self._outside = norm > per_point(radius, offset)
        self._normal = torch.where(self._outside, offset / norm, torch.zeros_like(offset))
        self._shrink = torch.where(self._outside, per_point(radius, offset) / norm, torch.ones_like(norm))
        self._radius, self._center = radius, center
        self.is_projector = not bool(self._outside.any())
        self.dimension = offset.shape[-1] - self._outside.squeeze(-1).to(torch.int64)

    def apply(self, v: Tensor) -> Tensor:
        return self._shrink * (v - (v * self._normal).sum(-1, keepdim=True) * self._normal)

    def parameter_vjp(self, u: Tensor) -> dict[str, Tensor]:
        """dP/dradius = n, and dP/dcenter = I - H."""
        products = {}
        if isinstance(self._radius, Tensor):
            products["radius"] = (u * self._normal).sum(-1).sum_to_size(self._radius.shape)
        if isinstance(self._center, Tensor):
            products["center"] = (u - self.apply(u)).sum_to_size(self._center.shape)
        return products


def _norm(v: Tensor) -> Tensor:
    """|v| over the last dimension, kept; safe against overflow, and with derivative 0 at v = 0."""
    scale = v.detach().abs().amax(-1, keepdim=True)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    square = (v / scale).square().sum(-1, keepdim=True)
    return torch.where(square > 0, square, torch.ones_like(square)).sqrt() * scale * (square > 0)
