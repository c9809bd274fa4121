"""The weighted l1 ball."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InvalidInput
from .base import HALF, ConvexSet, Face, event_norm, parameter, per_point, show
from .box import as_point
from .box_section import Section, find_section, on_section, wall_distance


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
    parameters = ("weight", "radius")

    def __init__(self, weight: float | Tensor, radius: float | Tensor = 1.0) -> None:
        self.weight = parameter("weight", weight, low=0.0, strict=True)
        self.radius = parameter("radius", radius, low=0.0)

    def _parts(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Section, tuple[Tensor, ...]]:
        """|z|, weight, whether inside, and |z| as a point of {y >= 0, weight.y = radius}."""
        weight, radius = as_point(self.weight, z), per_point(self.radius, z)
        if torch.broadcast_shapes(z.shape, weight.shape)[-1] != z.shape[-1]:
            raise InvalidInput(f"WeightedL1Ball: {weight.shape[-1]} weights for a point of {z.shape[-1]} entries")
        magnitude = z.abs()
        inside = (weight * magnitude).detach().sum(-1, keepdim=True) <= radius.detach()
        limits = (weight, torch.zeros_like(weight), torch.full_like(weight, torch.inf), radius)
        return magnitude, weight, inside, find_section(magnitude, *limits), limits

    def project(self, z: Tensor) -> Tensor:
        z = self.checked(z)
        if z.dtype in HALF:
            return self.project(z.float()).to(z.dtype)
        magnitude, _, inside, section, limits = self._parts(z)
        return torch.where(inside, z, z.sign() * on_section(magnitude, section, *limits)[0])

    def jacobian(self, z: Tensor) -> Face:
        z = self.checked(z.detach())
        magnitude, weight, inside, section, limits = self._parts(z)
        y, level = on_section(magnitude, section, *(limit.detach() for limit in limits))
        return WeightedFace(self, z.sign(), weight.detach(), section.free & ~inside, inside, y, level)

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        radius = per_point(self.radius, y, 0)
        amount = ((as_point(self.weight, y) * y.abs()).sum(-1) - radius).clamp_min(0)
        return amount, radius.detach(), f"the weighted l1 norm exceeds the radius {show(self.radius)}"

    def margin(self, z: Tensor) -> Tensor:
        """As for the l1 ball: a support entry vanishes, another appears, or z meets the ball."""
        magnitude, weight, inside, section, limits = self._parts(z)
        level = on_section(magnitude, section, *limits)[1]
        walls = wall_distance((magnitude - level * weight).abs(), section.free, weight.expand_as(z))
        to_ball = level.squeeze(-1) * event_norm(weight * section.free)
        room = (limits[-1] - (weight * magnitude).sum(-1, keepdim=True)).squeeze(-1)
        walls = torch.where(walls.isnan(), to_ball, torch.minimum(walls, to_ball))
        return torch.where(inside.squeeze(-1), room / event_norm(weight.expand_as(z)), walls)

    def __repr__(self) -> str:
        return f"WeightedL1Ball(weight={show(self.weight)}, radius={show(self.radius)})"


class WeightedFace(Face):
    """H = diag(S) - s s'/|s|^2 with s = sign(z) weight on the support S; I where inside the ball."""

    is_projector = True

    def __init__(
        self,
        owner: WeightedL1Ball,
        signs: Tensor,
        weight: Tensor,
        free: Tensor,
        inside: Tensor,
        y: Tensor,
        level: Tensor,
    ) -> None:
        self._owner, self._signs, self._y, self._level = owner, signs, y * free, level
        self._inside = inside
        self._active = signs * weight * free
        square = self._active.square().sum(-1, keepdim=True)
        self._per_square = self._active / torch.where(square > 0, square, 1)
        self.support = free | inside
        self.dimension = self.support.sum(-1) - (square.squeeze(-1) > 0).to(torch.int64)

    def apply(self, v: Tensor) -> Tensor:
        return v * self.support - (v * self._per_square).sum(-1, keepdim=True) * self._active

    def parameter_vjp(self, u: Tensor) -> dict[str, Tensor]:
        """With q = s.u/|s|^2: radius q; weight -theta sign(z) (H u) - q |y| (zero inside)."""
        q = (u * self._per_square).sum(-1, keepdim=True)
        weight = (-self._level * self._signs * self.apply(u) - q * self._y) * ~self._inside
        rates = {"radius": q.squeeze(-1), "weight": weight}
        return {name: rates[name].sum_to_size(value.shape) for name, value in self._owner.tensor_parameters().items()}
