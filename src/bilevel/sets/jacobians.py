"""Projection Jacobians that several sets share: the identity, a diagonal, a rank-one change of it, a matrix."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .base import ProjectionJacobian, can_look_at_values


class Identity(ProjectionJacobian):
    """H = I, for points like z; None for points that are dictionaries."""

    is_projector = True

    def __init__(self, z: Tensor | None) -> None:
        self._shape = None if z is None or z.ndim == 0 else z.shape

    @cached_property
    def dimension(self) -> Tensor | None:
        return None if self._shape is None else torch.full(self._shape[:-1], self._shape[-1])

    def apply(self, v: Any) -> Any:
        return v


class Diagonal(ProjectionJacobian):
    """H = diag(mask * gain), with gain = 1 for a projector.

    Parameters
    ----------
    mask
        Boolean (..., n): which entries move.
    gain
        By how much they do, between 0 and 1; broadcasts against the mask.
    """

    def __init__(self, mask: Tensor, gain: Tensor | None = None) -> None:
        self.support = mask
        self.is_projector: bool = gain is None
        self._diagonal = mask if gain is None else mask * gain

    @cached_property
    def dimension(self) -> Tensor:
        return self.support.sum(-1)

    def apply(self, v: Tensor) -> Tensor:
        return (v * self._diagonal).to(v.dtype)


class RankOne(ProjectionJacobian):
    """H = shrink (S - n n'/square) with S = diag(mask), for a normal n that is zero outside of the mask.

    Parameters
    ----------
    normal
        n, shape (..., n); zero where H = shrink S.
    square
        |n|^2 with the last dimension kept, or a number for a single vector; without it n has length 1 or 0.
    mask
        1 or True for the entries that move; all of them without it.
    shrink
        Between 0 and 1, last dimension kept; 1 without it, and H is a projector.
    """

    def __init__(
        self,
        normal: Tensor,
        square: float | Tensor | None = None,
        *,
        mask: Tensor | None = None,
        shrink: Tensor | None = None,
    ) -> None:
        self._normal, self._square, self._mask, self._shrink = normal, square, mask, shrink
        self._coefficient: float = -1.0 / square if isinstance(square, float) and normal.ndim == 1 else 0.0
        self.is_projector: bool = shrink is None or (can_look_at_values() and bool((shrink == 1).all()))

    @cached_property
    def support(self) -> Tensor | None:
        return None if self._mask is None else self._mask != 0

    @cached_property
    def dimension(self) -> Tensor:
        free = self._normal.shape[-1] if self._mask is None else (self._mask != 0).sum(-1)
        rank = (free - (self._normal != 0).any(-1).to(torch.int64)).clamp_min(0)
        return rank if self._shrink is None else rank * (self._shrink > 0).squeeze(-1)

    def _along(self, v: Tensor) -> Tensor:
        """n.v/square, last dimension kept."""
        if isinstance(self._square, float):
            return (v @ self._normal.reshape(-1).to(v.dtype)).unsqueeze(-1) / self._square
        along = (v * self._normal).sum(-1, keepdim=True)
        return along if self._square is None else along / self._square

    def apply(self, v: Tensor) -> Tensor:
        normal = self._normal
        if self._coefficient and v.ndim == 1 and v.dtype == normal.dtype:  # in few operations
            moved = torch.addcmul(v, torch.dot(v, normal), normal, value=self._coefficient)
        else:
            moved = v - self._along(v) * normal
        if self._mask is not None:
            moved = moved * self._mask
        moved = moved if self._shrink is None else self._shrink * moved
        return moved if moved.dtype == v.dtype else moved.to(v.dtype)


class Matrix(ProjectionJacobian):
    """H as a matrix (..., n, n), for points of `event_ndim` dimensions with n entries in all."""

    def __init__(self, matrix: Tensor, event_ndim: int, dimension: Any = None, is_projector: bool = False) -> None:
        self._matrix, self._event_ndim = matrix, event_ndim
        self.dimension = dimension
        self.is_projector = is_projector

    def apply(self, v: Tensor) -> Tensor:
        flat = v.to(self._matrix).flatten(v.ndim - self._event_ndim)
        return (self._matrix @ flat.unsqueeze(-1)).reshape(v.shape).to(v)
