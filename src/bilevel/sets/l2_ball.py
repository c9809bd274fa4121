"""The Euclidean ball."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import ConvexSet, ProjectionJacobian, event_norm, parameter, rounding_scale, show, validated
from .jacobians import RankOne


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

    parameters: tuple[str, ...] = ("radius", "center")

    def __init__(self, radius: float | Tensor = 1.0, center: float | Tensor = 0.0) -> None:
        self.radius: float | Tensor = parameter("radius", radius, low=0.0)
        self.center: float | Tensor = parameter("center", center)

    def _parts(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The center, the radius, z - center, and |z - center|."""
        center, radius = self.per_entry("center", z), self.per_point("radius", z)
        return center, radius, z - center, event_norm(z - center, keepdim=True)

    @validated
    def project(self, z: Tensor) -> Tensor:
        center, radius, offset, norm = self._parts(z)
        outside = (norm > radius) | (radius == 0)
        return torch.where(outside, center + radius * (offset / torch.where(norm > 0, norm, 1)), z)

    @validated
    def jacobian(self, z: Tensor) -> ProjectionJacobian:
        _, radius, offset, norm = (part.detach() for part in self._parts(z))
        outside = (norm > radius) | (radius == 0)
        norm = torch.where(norm > 0, norm, 1)
        shrink = torch.where(outside, radius / norm, 1)
        return RankOne(torch.where(outside, offset / norm, 0.0), shrink=shrink)

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        center, radius, _, norm = self._parts(y)
        # Near a far center the rounding of y itself is all that is forgiven besides the tolerance of the radius.
        scale = radius + rounding_scale(event_norm(y.abs() + center.abs(), keepdim=True))
        amount = (norm - radius).clamp_min(0)
        return amount.squeeze(-1), scale.squeeze(-1), f"the norm exceeds the radius {show(self.radius)}"

    @validated
    def margin(self, z: Tensor) -> Tensor:
        _, radius, _, norm = (part.detach() for part in self._parts(z))
        return torch.where(radius > 0, (norm - radius).abs(), torch.inf).squeeze(-1)
