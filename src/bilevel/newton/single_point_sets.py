"""Sets of users whose projection takes one point at a time: stacks of points are projected one by one."""

from __future__ import annotations

import torch
from torch import Tensor

from ..sets.base import ConvexSet, ProjectionJacobian
from ..sets.from_projection import ProjectionSet
from ..spaces import Vector, leaves, like, tree_map

CALL_ERRORS = (RuntimeError, IndexError, ValueError, TypeError)
"""What functions written for a single point raise on a stack of them."""


def takes_stacks(constraint: ConvexSet, y: Vector) -> bool:
    """Whether two points are projected together as they are alone, also by H; sets of the library do that."""
    if not any(_is_users_own(part) for part in (constraint, *constraint.parts().values())):
        return True
    generator = torch.Generator().manual_seed(0)
    size = 1.0 + max(float(u.abs().max()) for u in leaves(y))
    draws = tree_map(lambda u: size * torch.randn(2, *u.shape, generator=generator).to(u), y)
    try:
        together = (constraint.project(draws), constraint.jacobian(draws).apply(tree_map(lambda u: u[None], draws)))
    except CALL_ERRORS:
        return False
    alone = (
        _stack([constraint.project(point) for point in _points(draws)]),
        _stack([constraint.jacobian(point).apply(point) for point in _points(draws)]),
    )
    return all(
        u.numel() == v.numel() and torch.allclose(u.reshape(v.shape), v)
        for part, other in zip(together, alone, strict=True)
        for u, v in zip(leaves(part), leaves(other), strict=True)
    )


def _is_users_own(constraint: ConvexSet) -> bool:
    return isinstance(constraint, ProjectionSet) or not type(constraint).__module__.startswith("bilevel.")


class SinglePointSet(ConvexSet):
    """A set whose projection takes single points, applied to each point of a stack."""

    parameters: tuple[str, ...] = ("inner",)

    def __init__(self, inner: ConvexSet, like_y: Vector) -> None:
        self.inner, self._ndim = inner, leaves(like_y)[0].ndim

    def project(self, z: Vector) -> Vector:
        """P(z), or P of each row of a stack."""
        if leaves(z)[0].ndim == self._ndim:
            return self.inner.project(z)
        return _stack([self.project(point) for point in _points(z)])

    def jacobian(self, z: Vector) -> ProjectionJacobian:
        """H at z, or at each row of a stack."""
        if leaves(z)[0].ndim == self._ndim:
            return SinglePointJacobian([self.inner.jacobian(z)], self._ndim)
        return SinglePointJacobian([self.inner.jacobian(point) for point in _points(z)], self._ndim + 1)

    def excess(self, y: Vector) -> tuple[Tensor, Tensor | float, str]:
        """That of the set itself."""
        return self.inner.excess(y)


class SinglePointJacobian(ProjectionJacobian):
    """H at one point, or at the points of a stack; v may have further leading dimensions."""

    def __init__(self, jacobians: list[ProjectionJacobian], ndim: int) -> None:
        self._jacobians, self._ndim = jacobians, ndim

    def apply(self, v: Vector) -> Vector:
        """H v, one vector after the other."""
        if leaves(v)[0].ndim > self._ndim:
            return _stack([self.apply(row) for row in _points(v)])
        if len(self._jacobians) == 1:
            return self._jacobians[0].apply(v)
        return _stack([jacobian.apply(row) for jacobian, row in zip(self._jacobians, _points(v), strict=True)])


def _points(stack: Vector) -> list[Vector]:
    return [tree_map(lambda u, i=i: u[i], stack) for i in range(len(leaves(stack)[0]))]


def _stack(points: list[Vector]) -> Vector:
    return like(points[0], [torch.stack(parts) for parts in zip(*map(leaves, points), strict=True)])
