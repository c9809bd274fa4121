"""The Euclidean ball."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import ConvexSet, Face, can_look_at_values, event_norm, parameter, per_point, show
from .box import as_point


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

    def _offset(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """z - center, its norm (1 in place of 0), and whether z is outside."""
        offset = z - as_point(self.center, z)
        norm = event_norm(offset, keepdim=True)
        return offset, torch.where(norm > 0, norm, torch.ones_like(norm)), norm > per_point(self.radius, z)

    def project(self, z: Tensor) -> Tensor:
        z = self.checked(z)
        offset, norm, outside = self._offset(z)
        return torch.where(outside, as_point(self.center, z) + per_point(self.radius, z) * (offset / norm), z)

    def jacobian(self, z: Tensor) -> Face:
        z = self.checked(z.detach())
        offset, norm, outside = (part.detach() for part in self._offset(z))
        shrink = torch.where(outside, per_point(self.radius, z).detach() / norm, torch.ones_like(norm))
        return SphereFace(torch.where(outside, offset / norm, 0.0), shrink, outside, self.radius, self.center)

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        amount = event_norm(y - as_point(self.center, y)) - per_point(self.radius, y, 0)
        scale = per_point(self.radius, y, 0).detach() + y.detach().abs().amax(-1)
        return amount.clamp_min(0), scale, f"the norm exceeds the radius {show(self.radius)}"

    def margin(self, z: Tensor) -> Tensor:
        return (event_norm(z - as_point(self.center, z)) - per_point(self.radius, z, 0)).abs()

    def __repr__(self) -> str:
        return f"L2Ball(radius={show(self.radius)}, center={show(self.center)})"


class SphereFace(Face):
    """H = shrink (I - n n') with the unit normal n and shrink = radius/|d|; the identity inside the ball."""

    def __init__(
        self, normal: Tensor, shrink: Tensor, outside: Tensor, radius: float | Tensor, center: float | Tensor
    ) -> None:
        self._normal, self._shrink, self._radius, self._center = normal, shrink, radius, center
        self.is_projector = can_look_at_values() and not bool(outside.any())
        full = normal.shape[-1]
        self.dimension = torch.where(outside, full - 1, full).squeeze(-1) * (shrink > 0).squeeze(-1)

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
