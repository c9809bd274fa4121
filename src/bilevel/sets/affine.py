"""Half-spaces and affine sets."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import EmptySet, InvalidInput
from .base import ConvexSet, Face, parameter, per_point


class HalfSpace(ConvexSet):
    """{y : normal . y <= offset}; P(z) = z - (normal.z - offset)_+ normal/|normal|^2.

    Inside (and on the boundary) H = I; outside H = I - n n' with n = normal/|normal|.

    Parameters
    ----------
    normal
        Tensor of shape (n,), not zero.
    offset
        A number, or a tensor with one value per batch element.

    Examples
    --------
    >>> HalfSpace(torch.tensor([1.0, 1.0]), 1.0).project(torch.tensor([1.0, 2.0]))
    tensor([0., 1.])
    """

    parameters = ("normal", "offset")

    def __init__(self, normal: Tensor, offset: float | Tensor = 0.0) -> None:
        self.normal = parameter("normal", normal)
        if not isinstance(self.normal, Tensor) or self.normal.ndim != 1:
            raise InvalidInput(f"normal must be a tensor of shape (n,), got {normal!r}")
        if not bool((self.normal != 0).any()):
            raise InvalidInput("normal is zero: the set would be everything or nothing")
        self.offset = parameter("offset", offset)

    def _slack(self, z: Tensor) -> Tensor:
        """(normal . z - offset)/|normal|: signed distance to the boundary, positive outside; last dimension kept."""
        normal = self.normal.to(z)  # type: ignore[union-attr]
        return ((z * normal).sum(-1, keepdim=True) - per_point(self.offset, z)) / normal.norm()

    def project(self, z: Tensor) -> Tensor:
        z = self.checked(z)
        normal = self.normal.to(z)  # type: ignore[union-attr]
        return z - self._slack(z).clamp_min(0) * (normal / normal.norm())

    def jacobian(self, z: Tensor) -> Face:
        z = self.checked(z.detach())
        normal = self.normal.detach().to(z)  # type: ignore[union-attr]
        return NormalFace(normal, self._slack(z).detach() > 0, self.offset)

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        scale = y.detach().abs().amax(-1).clamp_min(1.0)
        return self._slack(y).squeeze(-1).clamp_min(0), scale, "normal . y exceeds the offset"

    def __repr__(self) -> str:
        return f"HalfSpace(normal=tensor{tuple(self.normal.shape)}, offset={self.offset})"  # type: ignore[union-attr]


class NormalFace(Face):
    """H = I - n n' for the batch elements outside a half-space, I for the others."""

    is_projector = True

    def __init__(self, normal: Tensor, outside: Tensor, offset: float | Tensor) -> None:
        self._length = normal.norm()
        self._normal = normal / self._length * outside
        self._offset = offset
        self.dimension = normal.shape[-1] - outside.squeeze(-1).to(torch.int64)

    def apply(self, v: Tensor) -> Tensor:
        return v - (v * self._normal).sum(-1, keepdim=True) * self._normal

    def parameter_vjp(self, u: Tensor) -> dict[str, Tensor]:
        """dP/doffset = normal/|normal|^2 outside, 0 inside."""
        if not isinstance(self._offset, Tensor):
            return {}
        return {"offset": ((u * self._normal).sum(-1) / self._length).sum_to_size(self._offset.shape)}


class AffineSet(ConvexSet):
    """{y : matrix y = offset}; P(z) = z - matrix^+ (matrix z - offset), H = I - matrix^+ matrix.

    The rows may be dependent, as long as the equations have a solution.

    Parameters
    ----------
    matrix
        Tensor of shape (m, n).
    offset
        Tensor of shape (m,), or (..., m) with one right-hand side per batch element; default zero.

    Examples
    --------
    >>> AffineSet(torch.tensor([[1.0, 1.0]]), torch.tensor([1.0])).project(torch.tensor([2.0, 1.0]))
    tensor([1., 0.])
    """

    parameters = ("matrix", "offset")

    def __init__(self, matrix: Tensor, offset: Tensor | None = None) -> None:
        self.matrix = parameter("matrix", matrix)
        if not isinstance(self.matrix, Tensor) or self.matrix.ndim != 2:
            raise InvalidInput(f"matrix must be a tensor of shape (m, n), got {matrix!r}")
        if offset is None:
            offset = torch.zeros(self.matrix.shape[0], dtype=self.matrix.dtype, device=self.matrix.device)
        self.offset = parameter("offset", offset)
        if not isinstance(self.offset, Tensor) or self.offset.shape[-1:] != self.matrix.shape[:1]:
            raise InvalidInput(f"offset must have {self.matrix.shape[0]} entries, one per row of matrix, got {offset!r}")
        self._factor()

    def _factor(self) -> None:
        """matrix = U diag(s) V' without its null part; P(z) = z - V (V'z - s^-1 U'offset)."""
        left, values, right = torch.linalg.svd(self.matrix.detach().double(), full_matrices=False)
        scale = values.max() if values.numel() else values.new_zeros(())
        keep = values > scale * max(self.matrix.shape) * torch.finfo(self.matrix.dtype).eps
        self._rows = right[keep]
        self._solve = left[:, keep] / values[keep]
        target = self.offset.detach().double()  # type: ignore[union-attr]
        reached = (target @ self._solve) @ self._rows @ self.matrix.detach().double().T
        gap = float((reached - target).abs().max())
        if gap > 1e3 * torch.finfo(self.matrix.dtype).eps * max(1.0, float(target.abs().max())):
            raise EmptySet(f"matrix y = offset has no solution: the best y leaves a gap of {gap:.3g}")

    def project(self, z: Tensor) -> Tensor:
        z = self.checked(z)
        rows, solve = self._rows.to(z), self._solve.to(z)
        return z - (z @ rows.T - self.offset.to(z) @ solve) @ rows  # type: ignore[union-attr]

    def jacobian(self, z: Tensor) -> Face:
        return AffineFace(self._rows.to(z), self._solve.to(z), self.offset.shape)  # type: ignore[union-attr]

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        rows, solve = self._rows.to(y), self._solve.to(y)
        gap = y @ rows.T - self.offset.to(y) @ solve  # type: ignore[union-attr]
        scale = y.detach().abs().amax(-1).clamp_min(1.0)
        return gap.square().sum(-1).sqrt(), scale, "matrix y = offset does not hold"

    def __repr__(self) -> str:
        return f"AffineSet(matrix=tensor{tuple(self.matrix.shape)})"  # type: ignore[union-attr]


class AffineFace(Face):
    """H = I - V V' with orthonormal columns V spanning the row space."""

    is_projector = True

    def __init__(self, rows: Tensor, solve: Tensor, offset_shape: torch.Size) -> None:
        self._rows, self._solve, self._offset_shape = rows, solve, offset_shape
        self.dimension = torch.tensor(rows.shape[-1] - rows.shape[0])

    def apply(self, v: Tensor) -> Tensor:
        return v - (v @ self._rows.T) @ self._rows

    def parameter_vjp(self, u: Tensor) -> dict[str, Tensor]:
        """dP/doffset = matrix^+."""
        return {"offset": (u @ self._rows.T @ self._solve.T).sum_to_size(self._offset_shape)}
