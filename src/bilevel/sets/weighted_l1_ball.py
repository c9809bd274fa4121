"""The weighted l1 ball."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InvalidInputError
from .base import ConvexSet, ProjectionJacobian, can_look_at_values, event_norm, parameter, show, validated
from .box_section import (
    OnSection,
    Section,
    find_section,
    on_section,
    on_short_section,
    plain,
    unit_normal,
    wall_distance,
)
from .jacobians import RankOne
from .simplex import within


class WeightedL1Ball(ConvexSet):
    """{y : sum_i weight_i |y_i| <= radius}; P(z) = sign(z) max(|z| - theta weight, 0).

    Inside the ball (and on its boundary) H = I. Outside, with S the support of P(z) and s = sign(z) weight on S,
    H = diag(S) - s s'/|s|^2; entries at the threshold count as outside S.

    Parameters
    ----------
    weight
        Positive: a number or a tensor that broadcasts against the point.
    radius
        Non-negative: a number, or a tensor with one value per batch element.

    Examples
    --------
    >>> WeightedL1Ball(torch.tensor([1.0, 2.0]), 2.0).project(torch.tensor([3.0, 3.0]))
    tensor([1.6000, 0.2000])
    """

    polyhedral = True
    parameters: tuple[str, ...] = ("weight", "radius")

    def __init__(self, weight: float | Tensor, radius: float | Tensor = 1.0) -> None:
        self.weight: float | Tensor = parameter("weight", weight, low=0.0, strict=True, error=InvalidInputError)
        self.radius: float | Tensor = parameter("radius", radius, low=0.0)

    def _parts(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """|z|, weight (its largest entry 1), radius, and the factor taken from weight and radius."""
        weight, radius = self.per_entry("weight", z), self.per_point("radius", z)
        weight = weight.expand(z.shape[-1:]) if weight.ndim == 0 else weight
        size = weight.detach().amax(-1, keepdim=True)
        return z.abs(), weight / size, radius / size, size

    def _section(self, magnitude: Tensor, weight: Tensor, radius: Tensor) -> tuple[Section, OnSection]:
        """The face of {y >= 0, weight.y = radius} that holds the projection of |z|, and that projection."""
        limits = (weight, torch.zeros_like(weight), torch.full_like(weight, torch.inf), radius)
        section = find_section(*plain(magnitude, *limits))
        return section, on_section(magnitude, section, *limits)

    @validated
    def project(self, z: Tensor) -> Tensor:
        magnitude, weight, radius, _ = self._parts(z)
        inside = within(weight * magnitude, radius)
        if inside.numel() == 1 and can_look_at_values() and not inside:
            y = on_short_section(magnitude, 0.0, torch.inf, weight, radius.squeeze())
            if y is not None:
                return z.sign() * y
        return torch.where(inside, z, z.sign() * self._section(magnitude, weight, radius)[1].y)

    @validated
    def jacobian(self, z: Tensor) -> ProjectionJacobian:
        magnitude, weight, radius, _ = (part.detach() for part in self._parts(z))
        inside = within(weight * magnitude, radius)
        free = self._section(magnitude, weight, radius)[0].tensors().free & ~inside
        return RankOne(z.sign() * unit_normal(weight, free), mask=free | inside)

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        magnitude, weight, radius, size = self._parts(y)
        amount = ((weight * magnitude).sum(-1, keepdim=True) - radius).clamp_min(0) * size
        what = f"the weighted l1 norm exceeds the radius {show(self.radius)}"
        return amount.squeeze(-1), (radius * size).expand_as(amount).squeeze(-1), what

    @validated
    def margin(self, z: Tensor) -> Tensor:
        """As for the l1 ball: a support entry vanishes, another appears, or z meets the ball."""
        magnitude, weight, radius, _ = (part.detach() for part in self._parts(z))
        section, point = self._section(magnitude, weight, radius)
        free = section.tensors().free
        walls = wall_distance(point.inner.abs(), free, weight)
        to_ball = point.level.squeeze(-1) * event_norm(weight * free)
        room = (radius - (weight * magnitude).sum(-1, keepdim=True)).squeeze(-1)
        margin = torch.where(room < 0, torch.minimum(walls, to_ball), room / event_norm(weight))
        return torch.where((radius > 0).squeeze(-1), margin, torch.inf)
