"""The cone of positive semidefinite matrices and the second-order (Lorentz, ice-cream) cone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidInputError
from .base import ConvexSet, ProjectionJacobian, can_look_at_values, event_norm, tracked, validated
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

    @validated
    def project(self, z: Tensor) -> Tensor:
        z = self._square(z)
        work = symmetric(z)
        values, vectors = _eigen(work.detach())
        change = vectors.mT @ (work - work.detach()) @ vectors if tracked(z) else None
        return symmetric(vectors @ positive_part(values, change) @ vectors.mT)

    @validated
    def jacobian(self, z: Tensor) -> ProjectionJacobian:
        return EigenJacobian(*_eigen(symmetric(self._square(z).detach())))

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        y = self._square(y).detach()
        lowest = torch.linalg.eigvalsh(symmetric(y))[..., 0]
        amount = torch.maximum(-lowest, (y - y.mT).abs().amax((-2, -1))).clamp_min(0)
        return amount, event_norm(y, 2), "the matrix is not symmetric with eigenvalues >= 0"

    @validated
    def margin(self, z: Tensor) -> Tensor:
        return torch.linalg.eigvalsh(symmetric(self._square(z).detach())).abs().amin(-1)

    def _square(self, z: Tensor) -> Tensor:
        z = self.checked(z)
        if z.shape[-1] != z.shape[-2]:
            raise InvalidInputError(f"PSDCone takes square matrices, got shape {tuple(z.shape)}")
        return z


class EigenJacobian(ProjectionJacobian):
    """H D = V (G o V' D_s V) V' with the divided differences G of the positive part."""

    def __init__(self, values: Tensor, vectors: Tensor) -> None:
        self._vectors, self._gain = vectors, divided_differences(values)
        top = (values > 0).sum(-1)
        self.dimension: Any = top * (2 * values.shape[-1] - top + 1) // 2
        if can_look_at_values():
            self.is_projector: bool = bool(((top == 0) | (top == values.shape[-1])).all())

    def apply(self, v: Tensor) -> Tensor:
        inner = self._gain * (self._vectors.mT @ symmetric(v.to(self._vectors)) @ self._vectors)
        return (self._vectors @ inner @ self._vectors.mT).to(v)


def _eigen(z: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, those within rounding of zero set to zero, and eigenvectors."""
    values, vectors = torch.linalg.eigh(z)
    return without_rounding(values, values), vectors


class SecondOrderCone(ConvexSet):
    """{(t, x) : |x|_2 <= t}, t the first entry; P(t, x) = (t + |x|)/2 (1, x/|x|) outside.

    In the cone (and on its boundary) H = I; in the polar cone |x| <= -t both P and H are 0; between them
    H = 1/2 [[1, n'], [n, (1 + t/|x|) I - t/|x| n n']] with n = x/|x|. The kinks are the
    boundaries of the two cones.

    References
    ----------
    Parikh & Boyd (2014), Proximal algorithms, section 6; the Jacobian: Fukushima, Luo & Tseng (2002).

    Examples
    --------
    >>> SecondOrderCone().project(torch.tensor([0.0, 3.0, 4.0]))
    tensor([2.5000, 1.5000, 2.0000])
    """

    @validated
    def project(self, z: Tensor) -> Tensor:
        inside, polar, norm = _regions(z)
        height, tail = z[..., :1], z[..., 1:]
        between = ~inside & ~polar
        safe = torch.where(between, norm, torch.ones_like(norm))
        half = (height + norm) / 2
        edge = torch.cat([half, half * (tail / safe)], -1)
        return torch.where(inside, z, torch.where(between, edge, torch.zeros_like(z)))

    @validated
    def jacobian(self, z: Tensor) -> ProjectionJacobian:
        return SecondOrderConeJacobian(z)

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        amount = _regions(y)[2].squeeze(-1) - y[..., 0]
        return amount.clamp_min(0), event_norm(y), "|x| exceeds t, the first entry"

    @validated
    def margin(self, z: Tensor) -> Tensor:
        """The distance to the boundary of the cone or of its polar, | |t| - |x| |/sqrt 2."""
        gap = (z[..., 0].abs() - _regions(z)[2].squeeze(-1)).abs()
        return gap / 2**0.5 if z.shape[-1] > 1 else gap


class SecondOrderConeJacobian(ProjectionJacobian):
    """H = 1/2 [[1, n'], [n, (1 + r) I - r n n']] with n = x/|x|, r = t/|x|; I in the cone, 0 in its polar."""

    def __init__(self, z: Tensor) -> None:
        self._inside, self._polar, norm = _regions(z)
        between = ~self._inside & ~self._polar
        safe = torch.where(between, norm, torch.ones_like(norm))
        self._normal, self._ratio = z[..., 1:] / safe, z[..., :1] / safe
        size = z.shape[-1]
        self.dimension: Any = (size * self._inside + (size - 1) * between).squeeze(-1)
        if can_look_at_values():
            self.is_projector: bool = not bool(between.any())

    def apply(self, v: Tensor) -> Tensor:
        head, tail = v[..., :1], v[..., 1:]
        along = (self._normal * tail).sum(-1, keepdim=True)
        lower = self._normal * (head - self._ratio * along) + (1 + self._ratio) * tail
        edge = torch.cat([head + along, lower], -1) / 2
        return torch.where(self._inside, v, torch.where(self._polar, torch.zeros_like(v), edge))


def _regions(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Whether z lies in the cone, whether in the polar cone (the apex counts as cone), and |x|."""
    height = z[..., :1].detach()
    norm = event_norm(z[..., 1:], keepdim=True) if z.shape[-1] > 1 else torch.zeros_like(height)
    inside = norm.detach() <= height
    return inside, (norm.detach() <= -height) & ~inside, norm
