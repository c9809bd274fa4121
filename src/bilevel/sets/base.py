"""The contract of a convex set: nearest point, derivative of the nearest point, membership."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import tolerances
from ..errors import EmptySet, InvalidInput, InvalidType


@dataclass(frozen=True)
class Membership:
    """The answer of `ConvexSet.contains`: true or false, with the number and the reason.

    Examples
    --------
    >>> Membership(False, 0.5, "the l1 norm is 1.5 > radius 1")
    Membership(inside=False, violation=0.5, reason='the l1 norm is 1.5 > radius 1')
    """

    inside: bool
    violation: float
    reason: str

    def __bool__(self) -> bool:
        return self.inside


class Face(ABC):
    """One element H of the generalised Jacobian of P_Y at a point, as the linear map v -> H v.

    P_Y is the gradient of a convex function, so H is symmetric with eigenvalues in [0, 1], and one product serves
    forward and reverse. For a polyhedral set H is the orthogonal projector on the directions of a face.

    Attributes
    ----------
    is_projector : bool
        Whether H H = H.
    support : Tensor or None
        Boolean mask (shape of the point) outside of which H v is zero and v is ignored; None when not sparse.
    dimension : Tensor or None
        The rank of H for each batch element, when cheap.
    """

    is_projector: bool = False
    support: Any = None
    dimension: Any = None

    @abstractmethod
    def apply(self, v: Any) -> Any:
        """H v, for v of the shape of the point (leading dimensions may be added)."""

    def parameter_vjp(self, u: Any) -> dict[str, Tensor]:
        """P_theta' u for each parameter theta of the set, by name; empty when the set has none."""
        return {}


class ConvexSet(ABC):
    """A closed convex set Y in R^n.

    The last `event_ndim` dimensions of a tensor are one point; the dimensions in front are a batch, and each
    element of the batch is projected on its own. Device and dtype are those of the point.
    """

    event_ndim: ClassVar[int | dict[str, int]] = 1
    separable: ClassVar[bool] = False
    """Whether Y is a product of intervals, so that a different step per coordinate keeps the fixed points."""

    @abstractmethod
    def project(self, z: Any) -> Any:
        """P_Y(z), the nearest point of Y; differentiable by autograd where P_Y is."""

    @abstractmethod
    def jacobian(self, z: Any) -> Face:
        """An element of the generalised Jacobian of P_Y at z."""

    @abstractmethod
    def excess(self, y: Any) -> tuple[Tensor, Tensor | float, str]:
        """How far y breaks the constraint: amount >= 0 per batch element, the scale to judge it by, what is broken."""

    def contains(self, y: Any, *, tol: float | None = None) -> Membership:
        """Whether y lies in Y up to `tol` times the scale of the set (default: the tolerance of the dtype)."""
        amount, scale, what = self.excess(y)
        if tol is None:
            tol = tolerances.feasibility(amount.dtype)
        worst = float(amount.max()) if amount.numel() else 0.0
        if math.isnan(worst):
            return Membership(False, math.inf, "the point has NaN entries")
        inside = bool((amount <= tol * torch.as_tensor(scale, device=amount.device).clamp_min(1e-300)).all())
        return Membership(inside, worst, "inside" if inside else f"{what} (by {worst:.3g})")

    def checked(self, z: Tensor) -> Tensor:
        """z itself, once it is known to be a finite floating-point tensor with at least `event_ndim` dimensions."""
        name = type(self).__name__
        if not isinstance(z, Tensor):
            raise InvalidType(f"{name} takes a tensor, got {type(z).__name__}; for dictionaries use ProductSet")
        if not z.is_floating_point():
            raise InvalidType(f"{name} takes floating-point tensors, got {z.dtype}: use z.double()")
        if z.ndim < int(self.event_ndim):  # type: ignore[arg-type]
            raise InvalidInput(
                f"{name} takes points of {self.event_ndim} dimension(s), got shape {tuple(z.shape)}"
            )
        if _can_look_at_values() and not bool(torch.isfinite(z).all()):
            bad = int((~torch.isfinite(z)).sum())
            raise InvalidInput(f"{name}: {bad} of {z.numel()} entries of the point are NaN or infinite")
        return z

    def distance(self, y: Tensor) -> Tensor:
        """|y - P_Y(y)| for each batch element."""
        dims = tuple(range(-int(self.event_ndim), 0))  # type: ignore[arg-type]
        return (y - self.project(y)).square().sum(dims).sqrt()


def parameter(name: str, value: Any, *, low: float = -math.inf, strict: bool = False) -> float | Tensor:
    """A checked scalar or tensor parameter of a set: finite and at least (strictly above) `low`."""
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            raise InvalidType(f"{name} has dtype {value.dtype}: give a floating-point tensor")
        if value.numel() == 0:
            raise InvalidInput(f"{name} is an empty tensor of shape {tuple(value.shape)}: give a value")
        smallest, finite = float(value.detach().min()), bool(torch.isfinite(value.detach()).all())
    else:
        try:
            value = float(value)
        except (TypeError, ValueError):
            raise InvalidType(f"{name} must be a number or a tensor, got {value!r}") from None
        smallest, finite = value, math.isfinite(value)
    if not finite:
        raise InvalidInput(f"{name} must be finite, got {value}")
    if smallest < low or (strict and smallest <= low):
        raise EmptySet(f"{name} must be {'above' if strict else 'at least'} {low:g}, got {smallest:g}")
    return value


def per_point(value: float | Tensor, z: Tensor, event_ndim: int = 1) -> float | Tensor:
    """A per-batch-element parameter in a shape that broadcasts against z: one value, or shape (...batch)."""
    if not isinstance(value, Tensor) or value.ndim == 0:
        return value
    return value.reshape(*value.shape, *(1,) * event_ndim)


def _can_look_at_values() -> bool:
    """Whether a tensor's values may steer Python: not under torch.compile or a torch.func transform."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is None
