"""The Euclidean ball."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import (
    ConvexSet,
    Face,
    as_point,
    can_look_at_values,
    event_norm,
    in_float32,
    parameter,
    per_point,
    rounding_scale,
    show,
)


class L2Ball(ConvexSet):
    """{y : |y - center|_2 <= radius}; P(z) = center + radius d/|d| with d = z - center, outside.

    Inside the ball (and on its boundary) H = I; outside H = radius/|d| (I - d d'/|d|^2), not a projector. With radius 0
    the projection is constant and H = 0.

    Parameters
    ----------
    radius
        Non-negative: a number, or a tensor with one value per batch element.
    center
        A number or a tensor that broadcasts against the point.

    References
    ----------
    Parikh & Boyd (2014), Proximal algorithms, section 6.

    Examples
    --------
    >>> L2Ball(radius=1.0).project(torch.tensor([3.0, 4.0]))
    tensor([0.6000, 0.8000])
    """

    parameters = ("radius", "center")

    def __init__(self, radius: float | Tensor = 1.0, center: float | Tensor = 0.0) -> None:
        self.radius = parameter("radius", radius, low=0.0)
        self.center = parameter("center", center)

    def _parts(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The center, the radius, z - center, and |z - center|."""
        center, radius = as_point(self.center, z, name="center"), per_point(self.radius, z, name="radius")
        return center, radius, z - center, event_norm(z - center, keepdim=True)

    @in_float32
    def project(self, z: Tensor) -> Tensor:
        z = self.checked(z)
        center, radius, offset, norm = self._parts(z)
        outside = (norm > radius) | (radius == 0)
        return torch.where(outside, center + radius * (offset / torch.where(norm > 0, norm, 1)), z)

    @in_float32
    def jacobian(self, z: Tensor) -> Face:
        z = self.checked(z).detach()
        _, radius, offset, norm = (part.detach() for part in self._parts(z))
        outside = (norm > radius) | (radius == 0)
        norm = torch.where(norm > 0, norm, 1)
        shrink = torch.where(outside, radius / norm, 1)
        return SphereFace(torch.where(outside, offset / norm, 0.0), shrink, outside, self.radius, self.center)

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        center, radius, _, norm = self._parts(y)
        # Near a far center the rounding of y itself is all that is forgiven besides the tolerance of the radius.
        scale = radius + rounding_scale(event_norm(y.abs() + center.abs(), keepdim=True))
        amount = (norm - radius).clamp_min(0)
        return amount.squeeze(-1), scale.squeeze(-1), f"the norm exceeds the radius {show(self.radius)}"

    @in_float32
    def margin(self, z: Tensor) -> Tensor:
        z = self.checked(z).detach()
        _, radius, _, norm = (part.detach() for part in self._parts(z))
        return torch.where(radius > 0, (norm - radius).abs(), torch.inf).squeeze(-1)

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
