"""A set defined by its projection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidInputError, InvalidTypeError
from .base import ConvexSet, ProjectionJacobian, can_look_at_values, event_norm, validated


def from_projection(function: Callable[[Tensor], Tensor], *, event_ndim: int = 1, name: str | None = None) -> ConvexSet:
    """{y : function(y) = y}, for your own projection written in torch; H by autograd.

    Parameters
    ----------
    function
        A function from points (..., event) to the nearest points of a convex set, separately for each element of the
        batch, and differentiable by autograd (custom backward functions included). At the first point that it moves,
        the library checks that it does not move the result again; it does not check that the result is the nearest
        point. Solvers cannot differentiate with respect to its parameters: for a set that moves with x use another set
        of `bilevel.sets`, or write your own.
    event_ndim
        1 for vectors, 2 for matrices.
    name
        The name of the set in messages; default the name of the function.

    References
    ----------
    Moreau (1965): a map is a projection on a convex set only if it is a non-expansive gradient.

    Examples
    --------
    >>> from_projection(torch.relu).project(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """
    if not callable(function):
        raise InvalidTypeError(f"from_projection takes a function of a tensor, got {function!r}")
    return ProjectionSet(function, event_ndim, name or getattr(function, "__name__", "function"))


class ProjectionSet(ConvexSet):
    """{y : function(y) = y}; made by `from_projection`."""

    parameters: tuple[str, ...] = ("function", "event_ndim", "name")

    def __init__(self, function: Callable[[Tensor], Tensor], event_ndim: int, name: str) -> None:
        self.function = function
        self.name = name
        self.event_ndim: Any = event_ndim
        self._seen_to_project = False

    @validated
    def project(self, z: Tensor) -> Tensor:
        y = self.function(z)
        if not isinstance(y, Tensor) or y.shape != z.shape:
            got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
            raise InvalidTypeError(f"{self}: points of shape {tuple(z.shape)} must give as many, got {got}")
        if not self._seen_to_project and can_look_at_values():
            self._check_once(z.detach(), y.detach())
        if can_look_at_values() and torch.is_grad_enabled() and z.requires_grad and not y.requires_grad:
            raise InvalidInputError(
                f"{self}: {self.name} returns a tensor without a graph, so that its derivative is lost: write it with "
                "torch functions of z, or as a class with its own jacobian (a single point is L2Ball(0.0, point))"
            )
        return y.clone() if y is z else y

    @torch.no_grad()
    def _check_once(self, z: Tensor, y: Tensor) -> None:
        """P(P(z)) = P(z): asked at the first point that moves."""
        if bool((y == z).all()):
            return
        moved = event_norm(self.function(y) - y, self.event_ndim)
        size = torch.maximum(event_norm(z, self.event_ndim), event_norm(y, self.event_ndim))
        if not bool((moved <= torch.finfo(z.dtype).eps ** 0.5 * size).all()):
            raise InvalidInputError(
                f"{self}: {self.name} is no projection: applied to its own result it moves the point by "
                f"{float(moved.max()):.3g}; it must return the nearest point of one fixed convex set"
            )
        self._seen_to_project = True

    @validated
    def jacobian(self, z: Tensor) -> ProjectionJacobian:
        with torch.enable_grad():
            z = z.clone().requires_grad_()
            return AutogradJacobian(z, self.project(z))

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        return self.distance(y), event_norm(y, self.event_ndim), f"{self.name} moves the point"


class AutogradJacobian(ProjectionJacobian):
    """H v by one backward pass: H is symmetric."""

    def __init__(self, z: Tensor, y: Tensor) -> None:
        self._z, self._y = z, y

    def apply(self, v: Tensor) -> Tensor:
        if not self._z.numel():  # an empty batch
            return torch.zeros_like(v)
        flat = v.reshape(-1, *self._z.shape)
        products = [torch.autograd.grad(self._y, self._z, w, retain_graph=True, allow_unused=True)[0] for w in flat]
        return torch.stack([torch.zeros_like(self._z) if p is None else p for p in products]).reshape(v.shape)
