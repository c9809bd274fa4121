"""A set moved or stretched: solvers rewrite both as a fixed set by y = factor y' + shift."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from ..errors import InvalidInput, InvalidType
from .base import (
    ConvexSet,
    Face,
    as_point,
    can_look_at_values,
    in_float32,
    parameter,
    per_point,
    rounding_scale,
    show,
)


class _OfBase(ConvexSet):
    """What both share: a base set, whose parameters are named `base.radius` and the like."""

    def __init__(self, base: ConvexSet) -> None:
        if not isinstance(base, ConvexSet) or not isinstance(base.event_ndim, int):
            raise InvalidType(f"base must be a convex set of tensors, got {base!r}")
        self.base = base
        self.event_ndim = base.event_ndim  # type: ignore[misc]
        self.separable = base.separable  # type: ignore[misc]
        self.polyhedral = base.polyhedral  # type: ignore[misc]

    def tensor_parameters(self) -> dict[str, Tensor]:
        inner = {f"base.{name}": value for name, value in self.base.tensor_parameters().items()}
        return {**super().tensor_parameters(), **inner}

    def replace(self, **values: Any) -> Self:
        inner = {name[5:]: values.pop(name) for name in list(values) if name.startswith("base.")}
        return super().replace(**({"base": self.base.replace(**inner)} if inner else {}), **values)


class Translated(_OfBase):
    """{y : y - shift in base}; P(z) = shift + P_base(z - shift), H = H_base at z - shift.

    Parameters
    ----------
    base
        A convex set.
    shift
        A number or a tensor that broadcasts against the point.

    References
    ----------
    Parikh & Boyd (2014), Proximal algorithms, section 6.

    Examples
    --------
    >>> from bilevel.sets import L2Ball
    >>> Translated(L2Ball(1.0), torch.tensor([2.0, 0.0])).project(torch.tensor([5.0, 0.0]))
    tensor([3., 0.])
    """

    parameters = ("base", "shift")

    def __init__(self, base: ConvexSet, shift: float | Tensor) -> None:
        super().__init__(base)
        self.shift = parameter("shift", shift)

    def _shift(self, z: Tensor) -> Tensor:
        return as_point(self.shift, z, int(self.event_ndim), name="shift")  # type: ignore[arg-type]

    @in_float32
    def project(self, z: Tensor) -> Tensor:
        self._shift(self.checked(z))  # refuses a shift that does not fit the dtype of z
        wide = z.double()  # in float32, z - shift would round a far z by more than the size of the set
        shift = self._shift(wide)
        return (shift + self.base.project(wide - shift)).to(z.dtype)

    @in_float32
    def jacobian(self, z: Tensor) -> Face:
        z = self.checked(z).detach()
        return TranslatedFace(self.base.jacobian(z - self._shift(z).detach()), self.shift)

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor | float, str]:
        shift = self._shift(y).detach()
        amount, scale, what = self.base.excess(y - shift)
        # y - shift carries the rounding of both.
        rounded = (y.abs() + shift.abs()).sum(tuple(range(-int(self.event_ndim), 0)))  # type: ignore[arg-type]
        return (
            amount,
            torch.as_tensor(scale).to(y) + rounding_scale(rounded),
            f"after taking the shift away, {what}",
        )

    @in_float32
    def margin(self, z: Tensor) -> Tensor | None:
        z = self.checked(z).detach()
        return self.base.margin(z - self._shift(z).detach())

    def __repr__(self) -> str:
        return f"Translated({self.base}, shift={show(self.shift)})"


class TranslatedFace(Face):
    """H of the base at z - shift."""

    def __init__(self, face: Face, shift: float | Tensor) -> None:
        self._face, self._shift = face, shift
        self.is_projector, self.support, self.dimension = face.is_projector, face.support, face.dimension

    def apply(self, v: Tensor) -> Tensor:
        return self._face.apply(v)

    def basis(self) -> Tensor | None:
        return self._face.basis()

    def parameter_vjp(self, u: Tensor) -> dict[str, Tensor]:
        """dP/dshift = I - H."""
        products = {f"base.{name}": value for name, value in self._face.parameter_vjp(u).items()}
        if isinstance(self._shift, Tensor):
            products["shift"] = (u - self.apply(u)).sum_to_size(self._shift.shape)
        return products


class Scaled(_OfBase):
    """{y : y/factor in base}; P(z) = factor P_base(z/factor), H = H_base at z/factor.

    Parameters
    ----------
    base
        A convex set.
    factor
        Positive: a number, or a tensor with one value per batch element.

    References
    ----------
    Parikh & Boyd (2014), Proximal algorithms, section 6.

    Examples
    --------
    >>> from bilevel.sets import L2Ball
    >>> Scaled(L2Ball(1.0), 2.0).project(torch.tensor([5.0, 0.0]))
    tensor([2., 0.])
    """

    parameters = ("base", "factor")

    def __init__(self, base: ConvexSet, factor: float | Tensor) -> None:
        super().__init__(base)
        self.factor = parameter("factor", factor, low=0.0, strict=True, error=InvalidInput)

    def _factor(self, z: Tensor, *, keepdim: bool = True) -> Tensor:
        return per_point(self.factor, z, int(self.event_ndim), name="factor", keepdim=keepdim)  # type: ignore[arg-type]

    def _divided(self, z: Tensor, factor: Tensor) -> Tensor:
        scaled = z / factor
        if can_look_at_values() and not bool(torch.isfinite(scaled.detach()).all()):
            raise InvalidInput(
                f"Scaled: a point of size {float(z.detach().abs().max()):.3g} divided by the factor "
                f"{show(self.factor)} overflows {z.dtype}: use z.double(), or a base of another size"
            )
        return scaled

    @in_float32
    def project(self, z: Tensor) -> Tensor:
        self._factor(self.checked(z))  # refuses a factor that does not fit the dtype of z
        wide = z.double()  # in float32, z / factor would round a far z by more than the size of the set
        factor = self._factor(wide)
        return (factor * self.base.project(self._divided(wide, factor))).to(z.dtype)

    @in_float32
    def jacobian(self, z: Tensor) -> Face:
        z = self.checked(z).detach()
        factor = self._factor(z).detach()
        scaled = self._divided(z, factor)
        return ScaledFace(self.base.jacobian(scaled), scaled, self.base.project(scaled).detach(), factor, self)

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor | float, str]:
        factor = self._factor(y).detach()
        amount, scale, what = self.base.excess(self._divided(y, factor))
        per_batch = self._factor(y, keepdim=False).detach()
        return amount * per_batch, scale * per_batch, f"divided by the factor, {what}"

    @in_float32
    def margin(self, z: Tensor) -> Tensor | None:
        z = self.checked(z).detach()
        factor, per_batch = self._factor(z).detach(), self._factor(z, keepdim=False).detach()
        margin = self.base.margin(self._divided(z, factor))
        return None if margin is None else margin * per_batch

    def __repr__(self) -> str:
        return f"Scaled({self.base}, factor={show(self.factor)})"


class ScaledFace(Face):
    """H of the base at z/factor."""

    def __init__(self, face: Face, z: Tensor, y: Tensor, factor: Tensor, owner: Scaled) -> None:
        self._face, self._z, self._y, self._factor, self._owner = face, z, y, factor, owner
        self.is_projector, self.support, self.dimension = face.is_projector, face.support, face.dimension

    def apply(self, v: Tensor) -> Tensor:
        return self._face.apply(v)

    def basis(self) -> Tensor | None:
        return self._face.basis()

    def parameter_vjp(self, u: Tensor) -> dict[str, Tensor]:
        """dP/dfactor = P_base - H z/factor; a parameter of the base gains the factor."""
        products = {f"base.{name}": value for name, value in self._face.parameter_vjp(u * self._factor).items()}
        if isinstance(self._owner.factor, Tensor):
            dims = tuple(range(-int(self._owner.event_ndim), 0))  # type: ignore[arg-type]
            change = (u * self._y - self.apply(u) * self._z).sum(dims)
            products["factor"] = change.sum_to_size(self._owner.factor.shape)
        return products
