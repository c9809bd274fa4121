"""R^n itself: no constraint."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..spaces import leaves
from .base import ConvexSet, Face


class FreeSpace(ConvexSet):
    """R^n, of tensors or of dictionaries of tensors: P(z) = z, H = I.

    Examples
    --------
    >>> FreeSpace().project(torch.tensor([1.0, -2.0]))
    tensor([ 1., -2.])
    """

    separable = True

    def project(self, z: Any) -> Any:
        return z

    def jacobian(self, z: Any) -> Face:
        return Identity()

    def excess(self, y: Any) -> tuple[Tensor, float, str]:
        finite = all(bool(torch.isfinite(u).all()) for u in leaves(y))
        return leaves(y)[0].new_tensor(0.0 if finite else float("nan")), 1.0, "a point is not finite"

    def __repr__(self) -> str:
        return "FreeSpace()"


class Identity(Face):
    """H = I."""

    is_projector = True

    def apply(self, v: Any) -> Any:
        return v
