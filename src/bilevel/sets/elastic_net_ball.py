"""The elastic-net ball."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InvalidInputError
from .base import (
    ConvexSet,
    ProjectionJacobian,
    can_look_at_values,
    constant_on_a_point,
    event_norm,
    largest,
    parameter,
    show,
    validated,
)
from .jacobians import RankOne


class ElasticNetBall(ConvexSet):
    """{y : |y|_1 + (gamma/2) |y|_2^2 <= radius}; P(z) = sign(z) max(|z| - t, 0) / (1 + gamma t).

    On the support S (k entries) t is the positive root of gamma m t^2 + 2 m t = e with m = gamma radius + k/2 and
    e = |z_S|_1 + (gamma/2) |z_S|^2 - radius:  t = (e/m) / (1 + sqrt(1 + gamma e/m)). Inside the ball (and on its
    boundary) H = I; outside H = (diag(S) - a a'/(a.a)) / (1 + gamma t) with a = s + gamma y, the gradient of
    the constraint, s = sign(z) on S. Entries at the threshold count as outside S.

    All of this is done in float64 on z/c, with gamma c and radius/c for a number c of the size of z and the set, so
    that squares neither overflow nor vanish.

    Parameters
    ----------
    gamma
        Weight of the square, non-negative: a number, or a tensor with one value per batch element.
    radius
        Non-negative: a number, or a tensor with one value per batch element.

    References
    ----------
    Zou & Hastie (2005), for the norm; Mairal, Bach, Ponce & Sapiro (2010), for the projection.

    Examples
    --------
    >>> ElasticNetBall(gamma=2.0, radius=2.0).project(torch.tensor([3.0, 0.1]))
    tensor([1., 0.])
    """

    parameters: tuple[str, ...] = ("gamma", "radius")

    def __init__(self, gamma: float | Tensor = 1.0, radius: float | Tensor = 1.0) -> None:
        self.gamma: float | Tensor = parameter("gamma", gamma, low=0.0, error=InvalidInputError)
        self.radius: float | Tensor = parameter("radius", radius, low=0.0)

    def _scaled(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """z/c, gamma c, radius/c and c, in float64: y/c lies in the ball of these exactly when y lies in ours."""
        z = z.double()
        gamma, radius = self.per_point("gamma", z), self.per_point("radius", z)
        c = torch.maximum(z.detach().abs().amax(-1, keepdim=True), radius.detach())
        c = torch.where(c > 0, c, 1)
        if can_look_at_values() and not bool((gamma.detach() * c <= largest(z.dtype) ** 0.5 / z.shape[-1]).all()):
            raise InvalidInputError(
                f"ElasticNetBall: gamma = {show(self.gamma)} is too large for a point or a radius of size "
                f"{float(c.max()):.3g}: measure both in a larger unit"
            )
        return z / c, gamma * c, radius / c, c

    @validated
    def project(self, z: Tensor) -> Tensor:
        u, gamma, radius, c = self._scaled(z)
        outside = c * z.sign() * _outside(constant_on_a_point(u, radius).abs(), gamma, radius)[0]
        return torch.where(_is_inside(u, gamma, radius), z, outside.to(z.dtype))

    @validated
    def jacobian(self, z: Tensor) -> ProjectionJacobian:
        u, gamma, radius, _ = (part.detach() for part in self._scaled(z))
        y, support, t = _outside(u.abs(), gamma, radius)
        inside = _is_inside(u, gamma, radius)
        normal = u.sign() * support * (1 + gamma * y)
        length = event_norm(normal, keepdim=True)
        # With radius 0 the answer is one point, and no direction is left.
        return RankOne(
            torch.where(inside, 0.0, normal / torch.where(length > 0, length, 1)),
            mask=((u.sign() * support != 0) & (y > 0).any(-1, keepdim=True)) | inside,
            shrink=torch.where(inside, 1.0, 1 / (1 + gamma * t)),
        )

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        u, gamma, radius, c = self._scaled(y)
        amount = (c * (_value(u, gamma) - radius)).clamp_min(0).squeeze(-1)
        what = f"|y|_1 + (gamma/2) |y|^2 exceeds the radius {show(self.radius)}"
        return amount, (c * radius).expand(*amount.shape, 1).squeeze(-1), what


def _value(y: Tensor, gamma: Tensor) -> Tensor:
    return y.abs().sum(-1, keepdim=True) + gamma / 2 * y.square().sum(-1, keepdim=True)


def _is_inside(z: Tensor, gamma: Tensor, radius: Tensor) -> Tensor:
    """Whether H = I at z; a ball of radius 0 has no such point."""
    radius = radius.detach()
    return (_value(z.detach(), gamma.detach()) <= radius) & (radius > 0)


def _outside(magnitude: Tensor, gamma: Tensor, radius: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The projection of |z| as if z were outside (differentiable), its support, and the threshold t."""
    support, first = _find_support(magnitude.detach(), gamma.detach(), radius.detach())
    # P(z) = P(a) with a = (|z| - t0)/(1 + gamma t0), for any t0 up to t: near the root all numbers are of the
    # size of the answer, and the rounding of a far z does not enter.
    a = torch.where(support, magnitude - first, 0) / (1 + gamma * first)
    step = _root(a, support, gamma, radius)
    y = torch.where(support, a - step, 0).clamp_min(0) / (1 + gamma * step)
    return y, support, (first + step * (1 + gamma * first)).detach()


def _root(a: Tensor, support: Tensor, gamma: Tensor, radius: Tensor) -> Tensor:
    """t with |y|_1 + (gamma/2)|y|^2 = radius for y = (a - t)/(1 + gamma t) on the support; may be negative."""
    kept = torch.where(support, a, 0)
    e = kept.sum(-1, keepdim=True) + gamma / 2 * kept.square().sum(-1, keepdim=True) - radius
    m = gamma * radius + support.sum(-1, keepdim=True).clamp_min(1).to(a.dtype) / 2
    return e / m / (1 + (1 + gamma * e / m).clamp_min(0).sqrt())


@torch.no_grad()
def _find_support(magnitude: Tensor, gamma: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """The support and the threshold: the largest root over the sets of the j largest entries, by running sums.

    Then Newton-like rounds from the left (support from the threshold, threshold from the support) remove what the
    running sums rounded.
    """
    ordered = magnitude.sort(-1, descending=True).values
    rank = torch.arange(1, magnitude.shape[-1] + 1, dtype=magnitude.dtype, device=magnitude.device)
    e = ordered.cumsum(-1) + gamma / 2 * ordered.square().cumsum(-1) - radius
    m = gamma * radius + rank / 2
    t = (e / m / (1 + (1 + gamma * e / m).clamp_min(0).sqrt())).amax(-1, keepdim=True).clamp_min(0)
    top = magnitude.amax(-1, keepdim=True)
    support = magnitude > torch.minimum(t, top * (1 - torch.finfo(t.dtype).eps))
    t = torch.minimum(t, top)
    for _ in range(2):
        t = t + _root((magnitude - t) / (1 + gamma * t), support, gamma, radius) * (1 + gamma * t)
        t = torch.minimum(t.clamp_min(0), top)
        support = (magnitude > t) | (magnitude == top)
    return support, t
