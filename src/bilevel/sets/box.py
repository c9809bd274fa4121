"""Products of intervals: boxes and the non-negative orthant."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..errors import EmptySet, InvalidInput, InvalidType
from .base import ConvexSet, Face


class Box(ConvexSet):
    """{y : lower <= y <= upper}, entry by entry; P(z) = min(max(z, lower), upper).

    H is diagonal: 1 where lower < z < upper, else 0 (also at the kinks z = lower and z = upper).

    Parameters
    ----------
    lower, upper
        Numbers or tensors that broadcast against the point; infinite values leave that side open.

    Examples
    --------
    >>> Box(0.0, 1.0).project(torch.tensor([-0.5, 0.25, 3.0]))
    tensor([0.0000, 0.2500, 1.0000])
    """

    separable = True

    parameters = ("lower", "upper")

    def __init__(self, lower: float | Tensor = -math.inf, upper: float | Tensor = math.inf) -> None:
        self.lower, self.upper = _bound("lower", lower), _bound("upper", upper)
        gap = torch.as_tensor(self.upper) - torch.as_tensor(self.lower)
        if bool((gap < 0).any()):
            raise EmptySet(f"{type(self).__name__}: lower exceeds upper by {float(-gap.min()):g}: no point is left")

    def project(self, z: Tensor) -> Tensor:
        z = self.checked(z)
        return torch.minimum(torch.maximum(z, _as(self.lower, z)), _as(self.upper, z))

    def jacobian(self, z: Tensor) -> Face:
        z = self.checked(z.detach())
        above, below = z <= _as(self.upper, z), z >= _as(self.lower, z)
        inside = (z < _as(self.upper, z)) & (z > _as(self.lower, z))
        return Coordinates(inside, {"lower": (self.lower, ~below), "upper": (self.upper, ~above)})

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        amount = torch.maximum(_as(self.lower, y) - y, y - _as(self.upper, y)).clamp_min(0)
        return amount.amax(-1), y.detach().abs().amax(-1).clamp_min(1.0), "an entry leaves its bounds"

    def __repr__(self) -> str:
        return f"{type(self).__name__}(lower={_show(self.lower)}, upper={_show(self.upper)})"


class NonNegative(Box):
    """{y : y >= 0}; P(z) = max(z, 0).

    Examples
    --------
    >>> NonNegative().project(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """

    def __init__(self) -> None:
        super().__init__(lower=0.0)

    def __repr__(self) -> str:
        return "NonNegative()"


class Coordinates(Face):
    """H = diag(mask): the face of a box."""

    is_projector = True

    def __init__(self, mask: Tensor, parameters: dict[str, tuple[float | Tensor, Tensor]]) -> None:
        self.support = mask
        self.dimension = mask.sum(-1)
        self._parameters = parameters

    def apply(self, v: Tensor) -> Tensor:
        return v * self.support

    def parameter_vjp(self, u: Tensor) -> dict[str, Tensor]:
        """A bound moves exactly the entries that sit on it."""
        return {
            name: (u * at_bound).sum_to_size(value.shape)
            for name, (value, at_bound) in self._parameters.items()
            if isinstance(value, Tensor)
        }


def _bound(name: str, value: Any) -> float | Tensor:
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            raise InvalidType(f"{name} has dtype {value.dtype}: give a floating-point tensor")
        if bool(torch.isnan(value).any()):
            raise InvalidInput(f"{name} has NaN entries: use -inf or inf for an open side")
        return value
    try:
        value = float(value)
    except (TypeError, ValueError):
        raise InvalidType(f"{name} must be a number or a tensor, got {value!r}") from None
    if math.isnan(value):
        raise InvalidInput(f"{name} is NaN: use -inf or inf for an open side")
    return value


def _as(value: float | Tensor, z: Tensor) -> Tensor:
    return torch.as_tensor(value, dtype=z.dtype, device=z.device)


def _show(value: float | Tensor) -> str:
    return f"tensor{tuple(value.shape)}" if isinstance(value, Tensor) else f"{value:g}"
