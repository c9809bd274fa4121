"""Half-spaces, hyperplanes and affine sets."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import EmptySetError, InvalidInputError
from .base import (
    ConvexSet,
    ProjectionJacobian,
    can_look_at_values,
    event_norm,
    got,
    parameter,
    show,
    tensor_parameter,
    tracked,
    validated,
)
from .jacobians import RankOne


class HalfSpace(ConvexSet):
    """{y : normal . y <= offset}; P(z) = z - multiplier normal, multiplier = (normal.z - offset)_+ / |normal|^2.

    Inside (and on the boundary) H = I; outside H = I - n n' with n = normal/|normal|.

    Parameters
    ----------
    normal
        Tensor of shape (n,), or (..., n) with one normal per batch element; not zero.
    offset
        A number, or a tensor with one value per batch element.

    References
    ----------
    Parikh & Boyd (2014), Proximal algorithms, section 6.

    Examples
    --------
    >>> HalfSpace(torch.tensor([1.0, 1.0]), 1.0).project(torch.tensor([1.0, 2.0]))
    tensor([0., 1.])
    """

    polyhedral = True
    parameters: tuple[str, ...] = ("normal", "offset")

    def __init__(self, normal: Tensor, offset: float | Tensor = 0.0) -> None:
        checked = tensor_parameter("normal", normal)
        some = (checked.detach() != 0).any(-1, keepdim=True)
        if can_look_at_values() and not bool(some.all()):
            raise InvalidInputError("normal is zero: the set would be everything or nothing")
        self.normal: Tensor = checked if can_look_at_values() else torch.where(some, checked, torch.nan)
        self.offset: float | Tensor = parameter("offset", offset)

    def _step(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """t (last dimension kept; positive outside) and n with z - t n on the boundary; n's largest entry is 1."""
        normal = self.per_entry("normal", z)
        scale = normal.detach().abs().amax(-1, keepdim=True)
        n = normal / scale
        level = self.per_point("offset", z) / scale
        if can_look_at_values() and not bool(torch.isfinite(level).all()):
            raise InvalidInputError(
                f"{type(self).__name__}: the normal is so small that offset / |normal| overflows in {z.dtype}: "
                "use a smaller unit for both, or z.double()"
            )
        gap = (z * n).sum(-1, keepdim=True) - level
        return gap / n.square().sum(-1, keepdim=True), n

    def _slack(self, z: Tensor) -> Tensor:
        """Signed distance to the boundary, positive outside."""
        step, n = self._step(z)
        return step.squeeze(-1) * event_norm(n)

    def _active(self, step: Tensor) -> Tensor:
        """Whether the constraint holds the point back."""
        return step.detach() > 0

    @validated
    def project(self, z: Tensor) -> Tensor:
        step, n = self._step(z)
        active = self._active(step)
        y = z - step * active * n
        # A second step removes the rounding of a far z: the error is then that of y.
        return y - self._step(y)[0] * active * n

    @validated
    def jacobian(self, z: Tensor) -> ProjectionJacobian:
        step, n = (part.detach() for part in self._step(z))
        return RankOne(n / event_norm(n, keepdim=True) * self._active(step))

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        amount = self._slack(y).clamp_min(0)
        return amount, self._scale(y), f"normal . y exceeds the offset {show(self.offset)}"

    def _scale(self, y: Tensor) -> Tensor:
        """The size of y, or the distance of the boundary from the origin when larger."""
        length = event_norm(self.normal.detach().to(y))
        return event_norm(y.detach()) + self.per_point("offset", y, keepdim=False).detach().abs() / length

    @validated
    def margin(self, z: Tensor) -> Tensor:
        return self._slack(z).abs()


class Hyperplane(HalfSpace):
    """{y : normal . y = offset}; P(z) = z - (normal.z - offset)/|normal|^2 normal, H = I - n n'.

    There are no kinks.

    Parameters
    ----------
    normal
        Tensor of shape (n,), or (..., n) with one normal per batch element; not zero.
    offset
        A number, or a tensor with one value per batch element.

    References
    ----------
    Parikh & Boyd (2014), Proximal algorithms, section 6.

    Examples
    --------
    >>> Hyperplane(torch.tensor([1.0, 1.0]), 1.0).project(torch.tensor([0.0, 0.0]))
    tensor([0.5000, 0.5000])
    """

    def _active(self, step: Tensor) -> Tensor:
        return torch.ones_like(step, dtype=torch.bool)

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        amount = self._slack(y).abs()
        return amount, self._scale(y), f"normal . y differs from the offset {show(self.offset)}"

    @validated
    def margin(self, z: Tensor) -> Tensor:
        return torch.full_like(self._slack(z), torch.inf)


class AffineSet(ConvexSet):
    """{y : matrix y = offset}; P(z) = z - matrix^+ (matrix z - offset), H = I - matrix^+ matrix.

    The rows may be dependent, as long as the equations have a solution.

    Parameters
    ----------
    matrix
        Tensor of shape (m, n). Use torch.func.vmap for a batch of matrices; equations without a solution then give NaN.
    offset
        Tensor of shape (m,), or (..., m) with one right-hand side per batch element; default zero.

    References
    ----------
    Parikh & Boyd (2014), Proximal algorithms, section 6.

    Examples
    --------
    >>> AffineSet(torch.tensor([[0.0, 2.0]]), torch.tensor([1.0])).project(torch.tensor([2.0, 1.0]))
    tensor([2.0000, 0.5000])
    """

    polyhedral = True
    parameters: tuple[str, ...] = ("matrix", "offset")
    vectors = ("offset",)

    def __init__(self, matrix: Tensor, offset: Tensor | None = None) -> None:
        self.matrix: Tensor = tensor_parameter("matrix", matrix, "(m, n)")
        offset = matrix.new_zeros(matrix.shape[0]) if offset is None else offset
        if not isinstance(offset, Tensor) or offset.shape[-1:] != matrix.shape[:1]:
            raise InvalidInputError(f"offset must have {matrix.shape[0]} entries, one per row of matrix, {got(offset)}")
        self.offset: Tensor = tensor_parameter("offset", offset)
        self.point_shape = matrix.shape[1:]
        self._factor()

    def _factor(self) -> None:
        """D matrix = U diag(s) V' without its null part, D giving every row length 1 (a small equation is no less an
        equation than a large one); P(z) = z - V (V'z - s^-1 U'D offset). The null part is kept as zeros.
        """
        matrix, target = self.matrix.detach().double().nan_to_num(), self.offset.detach().double()
        length = event_norm(matrix)
        self._scale = torch.where(length > 0, length, 1.0).reciprocal()
        matrix, target = matrix * self._scale[:, None], target * self._scale
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        self._cut = max(matrix.shape) * torch.finfo(self.matrix.dtype).eps
        keep = values > values.amax() * self._cut
        inverse = torch.where(keep, 1 / values, 0.0)
        self._rows, self._solve = right * keep[:, None], self._scale[:, None] * left * inverse
        self._rank = keep.sum()
        best = target / self._scale @ self._solve @ self._rows
        gap = (target - best @ matrix.T).abs()
        allowed = 10 * self._cut * (target.abs() + event_norm(best)[..., None])
        self._solvable = (gap <= allowed).all()
        if can_look_at_values() and not bool(self._solvable):
            raise EmptySetError(
                f"matrix y = offset has no solution: the best y leaves a gap of {float(gap.amax()):.3g} "
                f"(rank {int(self._rank)}, {matrix.shape[0]} equations); drop or correct the contradicting rows"
            )

    def answerable(self, z: Tensor) -> Tensor:
        return super().answerable(z) & self._solvable

    def _gap(self, y: Tensor) -> Tensor:
        """V'y - s^-1 U'offset: how far y is from the set, in an orthonormal basis of the normals."""
        return y @ self._rows.to(y).T - self.offset.to(y) @ self._solve.to(y)

    @validated
    def project(self, z: Tensor) -> Tensor:
        if tracked(self.matrix):  # the same formula, differentiable in the matrix
            matrix = self.matrix.double().nan_to_num() * self._scale[:, None]
            target = self.offset.double() * self._scale
            pseudo, y = torch.linalg.pinv(matrix, rtol=self._cut), z.double()
            for _ in range(2):
                y = y - (y @ matrix.T - target) @ pseudo.T
            return y.to(z.dtype)
        rows = self._rows.to(z)
        y = z - self._gap(z) @ rows
        rounding = torch.finfo(z.dtype).eps * z.detach().abs()
        for _ in range(20):  # each step leaves the rounding of the one before: once is enough unless z is very far
            y = y - self._gap(y) @ rows
            if not can_look_at_values() or bool((rounding.amax(-1) <= y.detach().abs().amax(-1)).all()):
                break
            rounding = torch.finfo(z.dtype).eps * rounding
        return y

    @validated
    def jacobian(self, z: Tensor) -> ProjectionJacobian:
        return AffineJacobian(self._rows.to(z), (z.shape[-1] - self._rank).expand(z.shape[:-1]))

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        nearest = (self.offset.to(y) @ self._solve.to(y)).detach()
        scale = event_norm(y.detach()) + event_norm(nearest)
        return event_norm(self._gap(y)), scale, "matrix y = offset does not hold"

    @validated
    def margin(self, z: Tensor) -> Tensor:
        return torch.full_like(self._gap(z).sum(-1), torch.inf)


class AffineJacobian(ProjectionJacobian):
    """H = I - V V' with orthonormal columns V spanning the row space."""

    is_projector = True

    def __init__(self, rows: Tensor, dimension: Tensor) -> None:
        self.dimension = dimension
        self._rows = rows

    def apply(self, v: Tensor) -> Tensor:
        return v - (v @ self._rows.T) @ self._rows
