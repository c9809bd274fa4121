"""Matrices with given row and column sums: transport plans, doubly stochastic matrices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import EmptySetError, InvalidTypeError, NotConvergedError
from .base import (
    ConvexSet,
    ProjectionJacobian,
    can_look_at_values,
    check_batch,
    event_norm,
    tensor_parameter,
    validated,
)

ROUNDS, HALVINGS, SEARCHES = 200, 40, 20
NEAR, CUT = 1e7, 1e5
"""A matrix this many times as large as the sums is far away; entries so far below zero are cut for the next search."""


class TransportPolytope(ConvexSet):
    """{Y >= 0 : Y 1 = row_sums, Y'1 = column_sums}; P(Z) = max(Z - a 1' - 1 b', 0).

    The potentials (a, b) are found by Newton's method on the dual (Li, Sun & Toh, 2020). On the support S of
    P(Z), H V = S o (V - a(V) 1' - 1 b(V)') with potentials that make all row and column sums zero: a
    projector. At a kink an entry with Z - a 1' - 1 b' = 0 belongs to S.

    Parameters
    ----------
    row_sums, column_sums
        Non-negative tensors of shapes (m,) and (n,), or with one vector per batch element; their totals are equal.
        Derivatives are meaningful along changes of both that keep the totals equal.

    Examples
    --------
    >>> TransportPolytope(torch.tensor([1.0, 1.0]), torch.tensor([1.5, 0.5])).project(torch.zeros(2, 2))
    tensor([[0.7500, 0.2500],
            [0.7500, 0.2500]])
    """

    event_ndim = 2
    polyhedral = True
    parameters: tuple[str, ...] = ("row_sums", "column_sums")
    vectors = ("row_sums", "column_sums")

    def __init__(self, row_sums: Tensor, column_sums: Tensor) -> None:
        self.row_sums: Tensor = tensor_parameter("row_sums", row_sums, low=0.0)
        self.column_sums: Tensor = tensor_parameter("column_sums", column_sums, low=0.0)
        check_batch("row_sums", self.row_sums, self.column_sums)
        self.point_shape = (self.row_sums.shape[-1], self.column_sums.shape[-1])
        gap, allowed = self._gap()
        if can_look_at_values() and bool((gap > allowed).any()):
            worst = float(gap[gap > allowed].max())
            raise EmptySetError(f"{type(self).__name__}: rows and columns add up to totals that differ by {worst:.3g}")

    def _gap(self) -> tuple[Tensor, Tensor]:
        """By how much the totals of rows and columns differ, and by how much they may, for each batch element."""
        totals = [sums.detach().double().sum(-1) for sums in (self.row_sums, self.column_sums)]
        eps = max(torch.finfo(sums.dtype).eps for sums in (self.row_sums, self.column_sums))
        return (totals[0] - totals[1]).abs(), eps**0.75 * torch.maximum(*totals)

    def answerable(self, z: Tensor) -> Tensor:
        gap, allowed = self._gap()
        return super().answerable(z) & (gap <= allowed)

    def _sums(self) -> tuple[Tensor, Tensor]:
        """Row sums as a column and column sums as a row, in float64, scaled to one total: theirs differ by rounding."""
        rows, columns = self.row_sums.double(), self.column_sums.double()
        totals = [sums.detach().sum(-1, keepdim=True) for sums in (rows, columns)]
        total = (totals[0] + totals[1]) / 2
        rows, columns = (
            sums * torch.where(own > 0, total / own, 1.0) for sums, own in zip((rows, columns), totals, strict=True)
        )
        return rows.unsqueeze(-1), columns.unsqueeze(-2)

    def _support(self, work: Tensor) -> tuple[Tensor, Tensor]:
        """Z less its potentials, and the support; where totals differ and no error can be raised, for other sums."""
        rows, columns = (sums.detach() for sums in self._sums())
        if not can_look_at_values():
            gap, allowed = self._gap()
            equal = (gap <= allowed)[..., None, None]
            rows, columns = torch.where(equal, rows, columns.shape[-1]), torch.where(equal, columns, rows.shape[-2])
        return transport_support(work.detach(), rows, columns)

    @validated
    def project(self, z: Tensor) -> Tensor:
        work = _centred(z.double())
        rows, columns = self._sums()
        near, support = self._support(work)
        jacobian = TransportJacobian(support)
        # P is affine on the face; the large part of z that the potentials take away is gone.
        y = support * (near + (work - work.detach()))
        for _ in range(2):
            y = y - support * jacobian.potentials(y.sum(-1, keepdim=True) - rows, y.sum(-2, keepdim=True) - columns)
        return y.to(z)

    @validated
    def jacobian(self, z: Tensor) -> ProjectionJacobian:
        return TransportJacobian(self._support(_centred(z.double()))[1])

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        rows, columns = (value.detach().to(y) for value in self._sums())
        off_rows = (y.sum(-1, keepdim=True) - rows).abs().amax((-2, -1))
        off_columns = (y.sum(-2, keepdim=True) - columns).abs().amax((-2, -1))
        amount = torch.maximum(torch.maximum(off_rows, off_columns), (-y).amax((-2, -1)).clamp_min(0))
        return amount, rows.amax((-2, -1)), "entries must be >= 0 with the given row and column sums"


class BirkhoffPolytope(TransportPolytope):
    """{Y >= 0 : Y 1 = 1, Y'1 = 1}: doubly stochastic matrices, the hull of the permutation matrices.

    Parameters
    ----------
    size
        The size n of the matrices (n, n).

    References
    ----------
    Birkhoff (1946); the projection: Li, Sun & Toh (2020).

    Examples
    --------
    >>> BirkhoffPolytope(2).project(torch.tensor([[2.0, 0.0], [0.0, 0.0]]))
    tensor([[1., 0.],
            [0., 1.]])
    """

    parameters: tuple[str, ...] = ("size",)

    def __init__(self, size: int) -> None:
        if not hasattr(size, "__index__"):
            raise InvalidTypeError(f"size must be an integer, got {size!r}")
        self.size: int = int(size)
        if self.size < 1:
            raise EmptySetError(f"size must be at least 1, got {size}")
        super().__init__(torch.ones(self.size, dtype=torch.float64), torch.ones(self.size, dtype=torch.float64))


class TransportJacobian(ProjectionJacobian):
    """H V = S o (V - a 1' - 1 b'), (a, b) = L^+ (row sums, column sums of S o V), L the Laplacian of S."""

    is_projector = True

    def __init__(self, support: Tensor) -> None:
        self.support: Any = support
        laplacian = _laplacian(support)
        self._inverse = torch.linalg.pinv(laplacian, hermitian=True, rtol=1e-12)
        rank = (self._inverse * laplacian).sum((-2, -1)).round().to(torch.int64)
        self.dimension: Any = support.sum((-2, -1)) - rank

    def _solve(self, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([rows, columns.mT.expand(*rows.shape[:-2], -1, 1)], -2)
        a, b = (self._inverse @ both).split([rows.shape[-2], columns.shape[-1]], -2)
        return a, b.mT

    def potentials(self, rows: Tensor, columns: Tensor) -> Tensor:
        """a 1' + 1 b' whose part on S has these row and column sums."""
        a, b = self._solve(rows, columns)
        return a + b

    def apply(self, v: Tensor) -> Tensor:
        y = self.support * v.double()
        for _ in range(2):
            y = y - self.support * self.potentials(y.sum(-1, keepdim=True), y.sum(-2, keepdim=True))
        return y.to(v)


def _centred(z: Tensor) -> Tensor:
    """Z minus its row means and column means: P ignores them, and what is left keeps its digits."""
    for _ in range(2):  # the second round removes the rounding of large means
        for dim in (-1, -2):
            z = z - z.detach().mean(dim, keepdim=True)
    return z


def _laplacian(support: Tensor) -> Tensor:
    """[[diag(S 1), S], [S', diag(S'1)]] in float64."""
    S = support.double()
    top = torch.cat([torch.diag_embed(S.sum(-1)), S], -1)
    return torch.cat([top, torch.cat([S.mT, torch.diag_embed(S.sum(-2))], -1)], -2)


@torch.library.custom_op("bilevel::transport_support", mutates_args=())
def transport_support(z: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """z - a 1' - 1 b' and where it is not negative; entries far below zero are cut.

    Potentials are exact to the rounding of z. Where that is coarse beside the sums, they are found once more for what
    they leave of z, cut from below: entries that stay outside of the support might as well be smaller.
    """
    size = torch.maximum(rows.amax((-2, -1), keepdim=True), columns.amax((-2, -1), keepdim=True))
    near, support = _less_potentials(z, rows, columns)
    depth = CUT * size
    for _ in range(SEARCHES):
        reach = near.abs().amax((-2, -1), keepdim=True)
        far = (reach > NEAR * size) & (size > 0)
        if not bool(far.any()):
            break
        floor = torch.where(far, -torch.maximum(depth, 1e-9 * reach), -torch.inf)
        trial, inside = _less_potentials(torch.maximum(near, floor), rows, columns)
        spoiled = (inside & (near < floor)).any(-1, keepdim=True).any(-2, keepdim=True)  # the cut was not deep enough
        near, support = (torch.where(far & ~spoiled, new, old) for new, old in ((trial, near), (inside, support)))
        depth = torch.where(spoiled, 30 * depth, CUT * size)
    y = near.clamp_min(0)
    wrong = ((y.sum(-1, keepdim=True) - rows).abs() > 1e-3 * size).any(-2, keepdim=True)
    wrong = wrong | ((y.sum(-2, keepdim=True) - columns).abs() > 1e-3 * size).any(-1, keepdim=True)
    if bool((wrong & (size > 0)).any()):
        raise NotConvergedError(
            f"projection on a transport polytope: entries up to {float(z.abs().max()):.2g} are too large beside sums "
            f"up to {float(size.max()):.2g}: scale z down"
        )
    return near, support


def _less_potentials(z: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """z - a 1' - 1 b' and the support, from min |max(z - a - b, 0)|^2/2 + rows.a + columns.b.

    The dual is piecewise quadratic: regularised Newton steps with halving end on the piece of the solution.
    """
    unit = torch.maximum(event_norm(z, 2), rows.amax((-2, -1))).clamp_min(1e-300)[..., None, None]
    z, rows, columns = z / unit, rows / unit, columns / unit
    # Each column shifted to its mean and each row to its sum: the exact answer if no entry is negative.
    a = (z.sum(-1, keepdim=True) - rows) / z.shape[-1]
    b = ((z - a).sum(-2, keepdim=True) - columns) / z.shape[-2]
    m, n = z.shape[-2:]
    eye = torch.eye(m + n, dtype=z.dtype, device=z.device)

    def value(a: Tensor, b: Tensor) -> Tensor:
        linear = (rows * a).sum((-2, -1), keepdim=True) + (columns * b).sum((-2, -1), keepdim=True)
        return (z - a - b).clamp_min(0).square().sum((-2, -1), keepdim=True) / 2 + linear

    def slope(a: Tensor, b: Tensor) -> Tensor:
        x = (z - a - b).clamp_min(0)
        return torch.cat([rows - x.sum(-1, keepdim=True), (columns - x.sum(-2, keepdim=True)).mT], -2)

    for _ in range(ROUNDS):
        gradient = slope(a, b)
        size = gradient.abs().amax((-2, -1), keepdim=True)
        if not z.numel() or float(size.max()) <= 1e-15 * (m + n):
            break
        # A Laplacian is singular: the shift is far above its rounding also where nothing is left to do.
        hessian = _laplacian(z - a - b > 0) + (1e-3 * size).clamp(1e-12, 1e-3) * eye
        step = -torch.linalg.solve(hessian, gradient)
        descent = (gradient * step).sum((-2, -1), keepdim=True)
        here, length = value(a, b), torch.ones_like(size)
        for _ in range(HALVINGS):
            da, db = step[..., :m, :] * length, step[..., m:, :].mT * length
            # Near the solution the value no longer shows progress; the gradient does.
            flat = slope(a + da, b + db).abs().amax((-2, -1), keepdim=True) <= 0.5 * size
            bad = (value(a + da, b + db) > here + 1e-4 * length * descent) & ~flat
            if not bool(bad.any()):
                break
            length = torch.where(bad, length / 2, length)
        a, b = a + step[..., :m, :] * length, b + step[..., m:, :].mT * length
    left = float(slope(a, b).abs().max()) if z.numel() else 0.0
    if left > 1e-10:
        raise NotConvergedError(f"projection on a transport polytope: the sums are off by {left:.2g} of the size of z")
    return (z - a - b) * unit, z - a - b > -1e-13


@transport_support.register_fake
def _(z: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    shape = torch.broadcast_shapes(z.shape, rows.shape, columns.shape)
    return z.new_empty(shape), z.new_empty(shape, dtype=torch.bool)


@transport_support.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    moved = [t if d is None else t.movedim(d, 0) for t, d in zip(tensors, in_dims, strict=True)]
    return transport_support(*moved), (0, 0)
