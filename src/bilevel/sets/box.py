"""Products of intervals: boxes, the non-negative orthant and the l-infinity ball."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..errors import EmptySetError, InvalidInputError, InvalidTypeError
from .base import (
    ConvexSet,
    ProjectionJacobian,
    can_look_at_values,
    check_holds_values,
    number,
    parameter,
    rounding_scale,
    validated,
)
from .jacobians import Diagonal


class Box(ConvexSet):
    """{y : lower <= y <= upper}, entry by entry; P(z) = min(max(z, lower), upper).

    H is diagonal: 1 where lower < z < upper, else 0 (also at the kinks z = lower and z = upper).

    Parameters
    ----------
    lower, upper
        Numbers or tensors that broadcast against the point; infinite values mean no bound.

    References
    ----------
    Parikh & Boyd (2014), Proximal algorithms, section 6.

    Examples
    --------
    >>> Box(0.0, 1.0).project(torch.tensor([-0.5, 0.25, 3.0]))
    tensor([0.0000, 0.2500, 1.0000])
    """

    separable = True
    polyhedral = True
    parameters: tuple[str, ...] = ("lower", "upper")

    def __init__(self, lower: float | Tensor = -math.inf, upper: float | Tensor = math.inf) -> None:
        self.lower: float | Tensor = bound("lower", lower)
        self.upper: float | Tensor = bound("upper", upper)
        check_order(type(self).__name__, self.lower, self.upper)

    def _bounds(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return self.per_entry("lower", z), self.per_entry("upper", z)

    def answerable(self, z: Tensor) -> Tensor:
        return super().answerable(z) & in_order(*self._bounds(z))

    @validated
    def project(self, z: Tensor) -> Tensor:
        lower, upper = self._bounds(z)
        # `where` rather than clamp: at a kink its derivative is 0, like that of the Jacobian.
        return torch.where(z <= lower, lower, torch.where(z >= upper, upper, z))

    @validated
    def jacobian(self, z: Tensor) -> ProjectionJacobian:
        lower, upper = self._bounds(z)
        return Diagonal(~((z <= lower) | (z >= upper)))

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        return *bounds_excess(y, *self._bounds(y)), "an entry leaves its bounds"

    @validated
    def margin(self, z: Tensor) -> Tensor:
        return self.gaps(z).amin(-1)

    def gaps(self, z: Tensor) -> Tensor:
        """Distance from each entry of z to the nearest of its two bounds, where its diagonal entry of H changes."""
        z = self.checked(z).detach()
        lower, upper = (side.detach() for side in self._bounds(z))
        gap = torch.minimum((z - lower).abs(), (z - upper).abs())
        return torch.where(lower < upper, gap, torch.inf)


class NonNegative(Box):
    """{y : y >= 0}; P(z) = max(z, 0).

    References
    ----------
    Parikh & Boyd (2014), Proximal algorithms, section 6.

    Examples
    --------
    >>> NonNegative().project(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """

    parameters: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__(lower=0.0)


class LInfBall(Box):
    """{y : |y_i| <= radius for all i}; P(z) = min(max(z, -radius), radius).

    H is diagonal: 1 where |z| < radius, else 0.

    Parameters
    ----------
    radius
        Non-negative: a number, or a tensor with one value per batch element.

    References
    ----------
    Parikh & Boyd (2014), Proximal algorithms, section 6.

    Examples
    --------
    >>> LInfBall(0.5).project(torch.tensor([-2.0, 0.25]))
    tensor([-0.5000,  0.2500])
    """

    parameters: tuple[str, ...] = ("radius",)

    def __init__(self, radius: float | Tensor = 1.0) -> None:
        self.radius: float | Tensor = parameter("radius", radius, low=0.0)

    def _bounds(self, z: Tensor) -> tuple[Tensor, Tensor]:
        radius = self.per_point("radius", z)
        return -radius, radius


def bound(name: str, value: Any) -> float | Tensor:
    """A checked bound: numbers, infinite ones included, but no NaN."""
    if isinstance(value, Tensor):
        check_holds_values(name, value)
        if not value.is_floating_point():
            raise InvalidTypeError(f"{name} has dtype {value.dtype}: give a floating-point tensor")
        if can_look_at_values() and bool(torch.isnan(value).any()):
            raise InvalidInputError(
                f"{name} has {int(torch.isnan(value).sum())} NaN entries: use -inf or inf for an open side"
            )
        return value
    value = number(name, value)
    if math.isnan(value):
        raise InvalidInputError(f"{name} is NaN: use -inf or inf for an open side")
    return value


def check_order(name: str, lower: float | Tensor, upper: float | Tensor) -> None:
    """Raise for lower > upper, and for infinite bounds that leave no point."""
    if not can_look_at_values():
        return
    low, high = torch.as_tensor(lower).detach(), torch.as_tensor(upper).detach()
    try:
        torch.broadcast_shapes(low.shape, high.shape)
    except RuntimeError:
        raise InvalidInputError(
            f"{name}: lower of shape {tuple(low.shape)} and upper of shape {tuple(high.shape)} do not fit each other"
        ) from None
    if bool((low > high).any()):
        gap = float((low - high).max())
        raise EmptySetError(f"{name}: lower exceeds upper by {gap:g}: no point is left")
    if bool((low == math.inf).any()) or bool((high == -math.inf).any()):
        raise EmptySetError(f"{name}: a lower bound of inf or an upper bound of -inf leaves no point")


def in_order(lower: Tensor, upper: Tensor) -> Tensor:
    """Whether the set is not empty, (..., 1) or (): the condition of `check_order`, for torch transforms."""
    some = (lower.detach() <= upper.detach()) & (lower.detach() < math.inf) & (upper.detach() > -math.inf)
    return some.all(-1, keepdim=True) if some.ndim else some


def bounds_excess(y: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """The largest violation of a bound, and its scale.

    The scale is the size of the entry and of its own finite bounds. A large entry elsewhere allows only for its
    rounding, which arithmetic that mixes entries adds to all of them.
    """
    lower, upper = (side.detach().expand(torch.broadcast_shapes(side.shape, y.shape)) for side in (lower, upper))
    size = y.detach().abs()
    amount = torch.maximum(lower - y, y - upper).clamp_min(0)
    own = torch.stack(torch.broadcast_tensors(lower, upper)).abs()
    own = torch.maximum(own.where(own.isfinite(), 0).amax(0), size)
    scale = torch.maximum(own, rounding_scale(size.amax(-1, keepdim=True)))
    worst = (amount / torch.where(scale > 0, scale, 1)).argmax(-1, keepdim=True)
    return amount.gather(-1, worst).squeeze(-1), scale.expand_as(amount).gather(-1, worst).squeeze(-1)
