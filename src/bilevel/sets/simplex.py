"""The simplex and the l1 ball: both soft-threshold at a level that `threshold` finds."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import (
    ProjectionJacobian,
    SetWithRadius,
    can_look_at_values,
    largest,
    parameter,
    per_point,
    show,
    tracked,
    validated,
)
from .box_section import wall_distance
from .jacobians import Identity, RankOne
from .threshold import above_level, cut_level


def onto_simplex(z: Tensor, radius: float | Tensor) -> Tensor:
    """(b - theta)_+ with b = z - max z and theta = (sum_S b - radius)/|S|, S the support of the answer."""
    if not isinstance(radius, Tensor) or not tracked(z, radius):
        return above_level(z, radius)  # the level that the search ends with is theta
    b, support, theta = _cell(z, radius)
    return torch.where(support, b - theta, 0).clamp_min(0)


def within(magnitude: Tensor, radius: Tensor) -> Tensor:
    """Whether a ball holds the point, so that H = I there: a ball of radius 0 has no such point."""
    radius = radius.detach()
    return (magnitude.detach().sum(-1, keepdim=True) <= radius) & (radius > 0)


def _cell(z: Tensor, radius: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """b = z - max z, the support of the projection on the simplex, and its threshold theta."""
    b = z - z.detach().amax(-1, keepdim=True)
    support = b.detach() > cut_level(b, radius)
    count = support.sum(-1, keepdim=True).clamp_min(1)
    return b, support, (torch.where(support, b, 0).sum(-1, keepdim=True) - radius) / count


def _radius(value: float | Tensor, z: Tensor) -> float | Tensor:
    """The radius for the points z: a number if z is one vector of which no derivative is asked, for few operations."""
    one = z.ndim == 1 or z.numel() == z.shape[-1]
    if not one or tracked(z) or (isinstance(value, Tensor) and (value.ndim or tracked(value))):
        return per_point(value, z, name="radius")
    if not 0 <= float(value) <= largest(z.dtype):
        parameter("radius", value, low=0.0)  # changed in place, after the constructor had looked at it
        return per_point(value, z, name="radius")
    return float(value)


def _fixed(value: float | Tensor) -> float | Tensor:
    return value.detach() if isinstance(value, Tensor) else value


class Simplex(SetWithRadius):
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

    @validated
    def project(self, z: Tensor) -> Tensor:
        return onto_simplex(z, _radius(self.radius, z))

    @validated
    def jacobian(self, z: Tensor) -> ProjectionJacobian:
        mask = above_level(z, _radius(_fixed(self.radius), z)).sign_()
        return RankOne(mask, _count(mask), mask=mask)

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        radius = self.per_point("radius", y, keepdim=False)
        amount = torch.maximum((y.sum(-1) - radius).abs(), -y.amin(-1))
        return amount, radius.detach(), f"entries must be >= 0 and add up to {show(self.radius)}"

    @validated
    def margin(self, z: Tensor) -> Tensor:
        b, support, theta = _cell(z, self.per_point("radius", z).detach())
        return wall_distance((b - theta).abs(), support, torch.ones_like(b))


class L1Ball(SetWithRadius):
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

    @validated
    def project(self, z: Tensor) -> Tensor:
        magnitude, radius = z.abs(), _radius(self.radius, z)
        if not isinstance(radius, Tensor):
            return z.clone() if float(magnitude.sum()) <= radius else above_level(magnitude, radius).copysign_(z)
        return torch.where(within(magnitude, radius), z, z.sign() * onto_simplex(magnitude, radius))

    @validated
    def jacobian(self, z: Tensor) -> ProjectionJacobian:
        magnitude, radius = z.abs(), _radius(_fixed(self.radius), z)
        if not isinstance(radius, Tensor):
            if 0 < radius >= float(magnitude.sum()):
                return Identity(z)
            mask = above_level(magnitude, radius).sign_()
            return RankOne(mask.copysign(z), max(float(mask.sum()), 1.0), mask=mask)
        inside = within(magnitude, radius)
        mask = above_level(magnitude, radius).sign_() * ~inside
        return RankOne(mask * z.sign(), _count(mask), mask=mask + inside)

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        radius = self.per_point("radius", y, keepdim=False)
        amount = (y.abs().sum(-1) - radius).clamp_min(0)
        return amount, radius.detach(), f"the l1 norm exceeds the radius {show(self.radius)}"

    @validated
    def margin(self, z: Tensor) -> Tensor:
        """Outside, the nearest wall of the cell of z (a support entry vanishes, another appears, theta = 0)."""
        radius, top = self.per_point("radius", z).detach(), z.abs().amax(-1)
        b, support, theta = _cell(z.abs(), radius)
        walls = wall_distance((b - theta).abs(), support, torch.ones_like(b))
        to_ball = (theta.squeeze(-1) + top) * support.sum(-1).to(z.dtype).sqrt()
        room = (radius - z.abs().sum(-1, keepdim=True)).squeeze(-1)
        margin = torch.where(room < 0, torch.minimum(walls, to_ball), room / z.shape[-1] ** 0.5)
        return torch.where(self.per_point("radius", z, keepdim=False).detach() > 0, margin, torch.inf)


def _count(mask: Tensor) -> float | Tensor:
    """The number of ones, at least 1; of one vector as a number."""
    if mask.numel() == mask.shape[-1] and can_look_at_values():
        return max(float(mask.sum()), 1.0)
    return mask.sum(-1, keepdim=True).clamp_min(1)
