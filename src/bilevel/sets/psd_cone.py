"""The cone of positive semidefinite matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InvalidInput
from .base import ConvexSet, Face, can_look_at_values, event_norm, in_float32, tracked, widened
from .spectral import divided_differences, positive_part, symmetric, without_rounding


class PSDCone(ConvexSet):
    """{Y : Y = Y', Y >= 0}; P(Z) = V max(diag(l), 0) V' with V diag(l) V' = (Z + Z')/2.

    H D = V (G o V' D_s V) V' with D_s = (D + D')/2 and G_ij = (max(l_i, 0) - max(l_j, 0))/(l_i - l_j), which
    is 1 for two positive and 0 for two non-positive eigenvalues (Lewis & Sendov, 2001). The kinks are the
    singular Z; a zero eigenvalue counts as negative. bfloat16 is decomposed in float32 and rounded once.

    Examples
    --------
    >>> PSDCone().project(torch.tensor([[1.0, 0.0], [0.0, -1.0]]))
    tensor([[1., 0.],
            [0., 0.]])
    """

    event_ndim = 2

    @in_float32
    def project(self, z: Tensor) -> Tensor:
        z = self._square(z)
        work = symmetric(z)
        values, vectors = _eigen(work.detach())
        change = vectors.mT @ (work - work.detach()) @ vectors if tracked(z) else None
        return symmetric(vectors @ positive_part(values, change) @ vectors.mT)

    @in_float32
    def jacobian(self, z: Tensor) -> Face:
        return EigenFace(*_eigen(symmetric(self._square(z).detach())))

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        y, dtype = widened(self._square(y).detach()), y.dtype
        lowest = torch.linalg.eigvalsh(symmetric(y))[..., 0]
        amount = torch.maximum(-lowest, (y - y.mT).abs().amax((-2, -1))).clamp_min(0)
        return amount.to(dtype), event_norm(y, 2), "the matrix is not symmetric with eigenvalues >= 0"

    @in_float32
    def margin(self, z: Tensor) -> Tensor:
        return torch.linalg.eigvalsh(symmetric(self._square(z).detach())).abs().amin(-1)

    def _square(self, z: Tensor) -> Tensor:
        z = self.checked(z)
        if z.shape[-1] != z.shape[-2]:
            raise InvalidInput(f"PSDCone takes square matrices, got shape {tuple(z.shape)}")
        return z

    def __repr__(self) -> str:
        return "PSDCone()"


class EigenFace(Face):
    """H D = V (G o V' D_s V) V' with the divided differences G of the positive part."""

    def __init__(self, values: Tensor, vectors: Tensor) -> None:
        self._vectors, self._gain = vectors, divided_differences(values)
        top = (values > 0).sum(-1)
        self.dimension = top * (2 * values.shape[-1] - top + 1) // 2
        if can_look_at_values():
            self.is_projector = bool(((top == 0) | (top == values.shape[-1])).all())

    def apply(self, v: Tensor) -> Tensor:
        inner = self._gain * (self._vectors.mT @ symmetric(v.to(self._vectors)) @ self._vectors)
        return (self._vectors @ inner @ self._vectors.mT).to(v)


def _eigen(z: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, those within rounding of zero set to zero, and eigenvectors."""
    values, vectors = torch.linalg.eigh(z)
    return without_rounding(values, values), vectors
