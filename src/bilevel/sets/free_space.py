"""R^n itself: no constraint."""

from __future__ import annotations

from collections.abc import Mapping
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
    polyhedral = True

    def project(self, z: Any) -> Any:
        if isinstance(z, Mapping):
            return {name: self.project(entry) for name, entry in z.items()}
        self.checked(z.reshape(1) if isinstance(z, Tensor) and z.ndim == 0 else z)
        return z

    def jacobian(self, z: Any) -> Face:
        self.project(z)
        return Identity(None if isinstance(z, Mapping) else z)

    def excess(self, y: Any) -> tuple[Tensor, float, str]:
        finite = all(bool(torch.isfinite(u).all()) for u in leaves(y))
        return leaves(y)[0].new_tensor(0.0 if finite else float("nan")), 1.0, "a point is not finite"

    def margin(self, z: Any) -> Tensor:
        return torch.full_like(leaves(z)[0][..., 0].detach(), torch.inf)

    def __repr__(self) -> str:
        return "FreeSpace()"


class Identity(Face):
    """H = I."""

    is_projector = True

    def __init__(self, z: Tensor | None) -> None:
        if z is not None and z.ndim > 0:
            self.dimension = torch.full(z.shape[:-1], z.shape[-1])

    def apply(self, v: Any) -> Any:
        return v
