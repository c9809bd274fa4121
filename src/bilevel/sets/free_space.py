"""R^n itself: no constraint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..spaces import tree_map
from .base import ConvexSet, ProjectionJacobian, tensor_of_points, validated
from .jacobians import Identity


class FreeSpace(ConvexSet):
    """R^n, of tensors (single numbers included) or of dictionaries of tensors: P(z) = z, H = I.

    References
    ----------
    Parikh & Boyd (2014), Proximal algorithms, section 6.

    Examples
    --------
    >>> FreeSpace().project(torch.tensor([1.0, -2.0]))
    tensor([ 1., -2.])
    """

    separable = True
    polyhedral = True

    def check_shape(self, z: Any) -> Any:
        if isinstance(z, Mapping):
            return {name: self.check_shape(entry) for name, entry in z.items()}
        return tensor_of_points("FreeSpace", z, min(1, getattr(z, "ndim", 1)))

    def checked(self, z: Any) -> Any:
        return tree_map(super().checked, self.check_shape(z))

    @validated
    def project(self, z: Any) -> Any:
        """A copy of z, so that in-place operations on the result do not change z."""
        return tree_map(torch.clone, z)

    @validated
    def jacobian(self, z: Any) -> ProjectionJacobian:
        return Identity(None if isinstance(z, dict) else z)

    def excess(self, y: Any) -> tuple[Tensor, float, str]:
        """Zero: no point is outside."""
        return torch.zeros(()), 1.0, "a point is not finite"

    def distance(self, y: Any) -> Any:
        """0; for dictionaries, that of each entry by name."""
        return tree_map(lambda u: _one_per_point(u - self.project(u)), self.checked(y))

    def random_point(
        self, generator: torch.Generator, *shape: Any, scale: float = 1.0, dtype: torch.dtype | None = None
    ) -> Any:
        """As `ConvexSet.random_point`; for dictionaries `shape` is one dictionary of shapes."""
        if len(shape) == 1 and isinstance(shape[0], Mapping):
            return {name: self.random_point(generator, *s, scale=scale, dtype=dtype) for name, s in shape[0].items()}
        return super().random_point(generator, *shape, scale=scale, dtype=dtype)

    @validated
    def margin(self, z: Any) -> Any:
        """Infinite; for dictionaries, that of each entry by name."""
        return tree_map(lambda u: torch.full_like(_one_per_point(u), torch.inf), z)


def _one_per_point(z: Tensor) -> Tensor:
    """A tensor of the shape of the batch."""
    return z.detach()[..., 0] if z.ndim else z.detach()
