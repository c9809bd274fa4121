"""Translated, scaled and flattened sets; solvers rewrite the first two as a fixed set by y = factor y' + shift."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidInputError, InvalidTypeError
from .base import ConvexSet, ProjectionJacobian, can_look_at_values, parameter, rounding_scale, show, validated


class _TransformedSet(ConvexSet):
    """What they share: a base set, whose parameters are named `base.radius` and the like."""

    def __init__(self, base: ConvexSet) -> None:
        if not isinstance(base, ConvexSet) or not isinstance(base.event_ndim, int):
            raise InvalidTypeError(f"base must be a convex set of tensors, got {base!r}")
        self.base = base
        self.event_ndim, self.separable, self.polyhedral = base.event_ndim, base.separable, base.polyhedral


class Translated(_TransformedSet):
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

    parameters: tuple[str, ...] = ("base", "shift")

    def __init__(self, base: ConvexSet, shift: float | Tensor) -> None:
        super().__init__(base)
        self.shift: float | Tensor = parameter("shift", shift)

    @validated
    def project(self, z: Tensor) -> Tensor:
        self.per_entry("shift", z)  # refuses a shift that does not fit the dtype of z
        wide = z.double()  # in float32, z - shift would round a far z by more than the size of the set
        shift = self.per_entry("shift", wide)
        return (shift + self.base.project(wide - shift)).to(z.dtype)

    @validated
    def jacobian(self, z: Tensor) -> ProjectionJacobian:
        return self.base.jacobian(z - self.per_entry("shift", z).detach())

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor | float, str]:
        shift = self.per_entry("shift", y).detach()
        amount, scale, what = self.base.excess(y - shift)
        # y - shift carries the rounding of both.
        rounded = (y.abs() + shift.abs()).sum(tuple(range(-self.event_ndim, 0)))
        scale = torch.as_tensor(scale).to(y) + rounding_scale(rounded)
        return amount, scale, f"after taking the shift away, {what}"

    @validated
    def margin(self, z: Tensor) -> Tensor | None:
        return self.base.margin(z - self.per_entry("shift", z).detach())


class Scaled(_TransformedSet):
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

    parameters: tuple[str, ...] = ("base", "factor")

    def __init__(self, base: ConvexSet, factor: float | Tensor) -> None:
        super().__init__(base)
        self.factor: float | Tensor = parameter("factor", factor, low=0.0, strict=True, error=InvalidInputError)

    def _divided(self, z: Tensor, factor: Tensor) -> Tensor:
        scaled = z / factor
        if can_look_at_values() and not bool(torch.isfinite(scaled.detach()).all()):
            raise InvalidInputError(
                f"Scaled: a point of size {float(z.detach().abs().max()):.3g} divided by the factor "
                f"{show(self.factor)} overflows {z.dtype}: use z.double(), or a base of another size"
            )
        return scaled

    @validated
    def project(self, z: Tensor) -> Tensor:
        self.per_point("factor", z)  # refuses a factor that does not fit the dtype of z
        wide = z.double()  # in float32, z / factor would round a far z by more than the size of the set
        factor = self.per_point("factor", wide)
        return (factor * self.base.project(self._divided(wide, factor))).to(z.dtype)

    @validated
    def jacobian(self, z: Tensor) -> ProjectionJacobian:
        return self.base.jacobian(self._divided(z, self.per_point("factor", z).detach()))

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor | float, str]:
        factor = self.per_point("factor", y).detach()
        amount, scale, what = self.base.excess(self._divided(y, factor))
        per_batch = self.per_point("factor", y, keepdim=False).detach()
        return amount * per_batch, scale * per_batch, f"divided by the factor, {what}"

    @validated
    def margin(self, z: Tensor) -> Tensor | None:
        factor, per_batch = self.per_point("factor", z).detach(), self.per_point("factor", z, keepdim=False).detach()
        margin = self.base.margin(self._divided(z, factor))
        return None if margin is None else margin * per_batch


class Flattened(_TransformedSet):
    """{Y : vec(Y) in base}, all entries of Y taken as one vector; P(Z) = P_base(vec(Z)), and H likewise.

    A set of vectors constrains each row of a matrix separately; `Flattened(base)` constrains all entries together.

    Parameters
    ----------
    base
        A convex set of vectors.
    ndim
        The number of trailing dimensions that form one vector.

    References
    ----------
    Parikh & Boyd (2014), Proximal algorithms, section 6.

    Examples
    --------
    >>> from bilevel.sets import L1Ball
    >>> Flattened(L1Ball(1.0)).project(torch.eye(2))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]])
    """

    parameters: tuple[str, ...] = ("base", "ndim")

    def __init__(self, base: ConvexSet, ndim: int = 2) -> None:
        super().__init__(base)
        if base.event_ndim != 1:
            raise InvalidTypeError(f"base must be a convex set of vectors, got {base!r}")
        if isinstance(ndim, bool) or not isinstance(ndim, int) or ndim < 1:
            raise InvalidInputError(f"ndim must be an integer of at least 1, got {ndim!r}")
        self.ndim = self.event_ndim = ndim

    @validated
    def project(self, z: Tensor) -> Tensor:
        return self.base.project(z.flatten(-self.ndim)).unflatten(-1, z.shape[-self.ndim :])

    @validated
    def jacobian(self, z: Tensor) -> ProjectionJacobian:
        return FlattenedJacobian(self.base.jacobian(z.flatten(-self.ndim)), z.shape[-self.ndim :])

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor | float, str]:
        return self.base.excess(y.flatten(-self.ndim))

    @validated
    def margin(self, z: Tensor) -> Tensor | None:
        return self.base.margin(z.flatten(-self.ndim))


class FlattenedJacobian(ProjectionJacobian):
    """H of the base, between matrices."""

    def __init__(self, inner: ProjectionJacobian, shape: tuple[int, ...]) -> None:
        self._inner, self._shape = inner, shape
        self.is_projector: bool = inner.is_projector
        self.dimension: Any = inner.dimension
        self.support: Any = None if inner.support is None else inner.support.unflatten(-1, shape)

    def apply(self, v: Tensor) -> Tensor:
        return self._inner.apply(v.flatten(-len(self._shape))).unflatten(-1, self._shape)
