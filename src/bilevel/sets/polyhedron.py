"""Polyhedra given by equations and inequalities."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import tolerances
from ..errors import EmptySetError, InvalidInputError
from .active_set import active_rows, least_violation
from .base import (
    ConvexSet,
    ProjectionJacobian,
    can_look_at_values,
    check_batch,
    event_norm,
    got,
    tensor_parameter,
    tracked,
    validated,
    with_value,
)

FAR = 1e4
"""A point is far away when it is so many times as large as its projection and the right-hand sides."""


class Polyhedron(ConvexSet):
    """{y : Ay = b, Gy <= h}; P(z) = z - B^+ (Bz - c) with B, c the rows of A and the active rows of G.

    H = I - B^+ B, the projector onto the null space of the active rows: linearly independent rows that have a positive
    multiplier for some choice of the multipliers. At a kink a row whose multiplier can only be 0 counts as inactive, so
    that on the boundary H is that of the interior. The active rows of the last call are the warm start; if they do not
    lead to the new ones, Clarabel (extra `sets`) computes them, and its solution is made exact (`active_set`).

    Parameters
    ----------
    G, h
        Tensors of shapes (m, n) and (m,), or (..., m) with one right-hand side per batch element.
    A, b
        The same, (k, n) and (k,), for the equations. Rows that depend on earlier ones must be consistent with them;
        their b has no derivative.

    References
    ----------
    Nocedal & Wright (2006), chapter 16: active sets; Goulart & Chen (2024): Clarabel.

    Examples
    --------
    >>> Y = Polyhedron(torch.tensor([[1.0, 1.0], [1.0, 0.0]]), torch.tensor([1.0, 0.25]))
    >>> Y.project(torch.tensor([2.0, 1.5]))
    tensor([0.2500, 0.7500])
    """

    polyhedral = True
    parameters: tuple[str, ...] = ("G", "h", "A", "b")
    vectors = ("h", "b")

    def __init__(
        self,
        G: Tensor | None = None,
        h: Tensor | None = None,
        A: Tensor | None = None,
        b: Tensor | None = None,
    ) -> None:
        self.G, self.h = _checked_rows("G", G, "h", h)
        self.A, self.b = _checked_rows("A", A, "b", b)
        given = [matrix for matrix in (self.A, self.G) if matrix is not None]
        if not given or len({matrix.shape[-1] for matrix in given}) > 1:
            shapes = [tuple(matrix.shape) for matrix in given]
            raise InvalidInputError(f"Polyhedron needs G, A or both, with as many columns, got shapes {shapes}")
        if self.h is not None and self.b is not None:
            check_batch("h", self.h, self.b)
        self.point_shape = given[0].shape[-1:]
        self.independent: Tensor = _independent(self.A)
        self._last = torch.zeros(0 if self.G is None else len(self.G), dtype=torch.bool)
        if can_look_at_values():
            self._check_equations()
            # A set that follows x is rebuilt at every step: then a projection notices if inequalities leave nothing.
            if not any(value.requires_grad for value in self.tensor_parameters().values()):
                if not bool(torch.isfinite(self.system()[1]).all()):
                    raise InvalidInputError(
                        "Polyhedron: a row of G or A is so short that dividing by its length overflows"
                    )
                self._check_inequalities()

    def system(self) -> tuple[Tensor, Tensor]:
        """All rows with unit length, the independent equations first, and right-hand sides (..., M)."""
        matrices, sides = [], []
        if self.A is not None and self.b is not None:
            matrices.append(self.A.double()[self.independent])
            sides.append(self.b.double()[..., self.independent])
        if self.G is not None and self.h is not None:
            matrices.append(self.G.double())
            sides.append(self.h.double())
        batch = torch.broadcast_shapes(*(side.shape[:-1] for side in sides))
        rows = torch.cat(matrices)
        side = torch.cat([side.expand(*batch, side.shape[-1]) for side in sides], -1)
        length = torch.where((rows != 0).any(-1), event_norm(rows), 1.0)
        return rows / length[:, None], side / length

    def _active(self, z: Tensor, rows: Tensor, side: Tensor, complete: bool) -> Tensor:
        """Mask (..., M) of the rows that hold P(z) back, the equations included."""
        fixed, m = rows.detach(), len(self.independent)
        left = side.detach() - z.detach().double() @ fixed.mT
        rounding = side.detach().abs() + event_norm(z.detach().double(), keepdim=True)
        left = torch.where(left.abs() <= 4 * torch.finfo(left.dtype).eps * rounding, 0.0, left)
        active = active_rows(left[..., m:], left[..., :m], fixed[m:], fixed[:m], self._last, complete)
        if can_look_at_values() and active.numel():
            self._last = active.reshape(-1, active.shape[-1])[-1]
        return torch.cat([torch.ones_like(left[..., :m], dtype=torch.bool), active], -1)

    def _active_rows(self, z: Tensor, complete: bool = True) -> tuple[ActiveRows, Tensor, Tensor]:
        """The active rows at z (`complete` for the derivative), and all rows and right-hand sides."""
        rows, side = self.system()
        return ActiveRows(rows.detach(), self._active(z, rows, side, complete)), rows, side

    @validated
    def project(self, z: Tensor) -> Tensor:
        y = self._nearest(z.double())
        if can_look_at_values() and self._is_far(z.detach(), y.detach()):
            # The rounding of z may hide some rows. P(y) lies in the set, and no further from P(z) than y does.
            with torch.no_grad():
                near = self._nearest(self._nearest(z.double()))
            y = with_value(near, y)
        return y.to(z)

    def _nearest(self, z: Tensor) -> Tensor:
        follow = tracked(z, *self.tensor_parameters().values())
        held, rows, side = self._active_rows(z, follow)
        c = held.take(side)
        y, multipliers = held.nearest(z.detach(), c.detach())
        if follow:
            B = held.select_rows(rows)
            for _ in range(2):  # each step makes one more derivative of z = y + B'm, By = c exact
                y, multipliers = held.newton(y, multipliers, z - y - adjoint(B, multipliers), c - product(B, y))
        return y

    def _is_far(self, z: Tensor, y: Tensor) -> bool:
        """Whether some point is."""
        size = y.abs().amax(-1)
        for side in (self.h, self.b):
            if side is not None and side.shape[-1]:
                size = torch.maximum(size, side.detach().to(y).abs().amax(-1))
        return bool((z.abs().amax(-1) > FAR * size).any())

    @validated
    def jacobian(self, z: Tensor) -> ProjectionJacobian:
        return NullSpaceJacobian(self._active_rows(z)[0])

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        rows, side = (value.detach() for value in self.system())
        over, m = y.double() @ rows.mT - side, len(self.independent)
        amount = torch.cat([over[..., :m].abs(), over[..., m:].clamp_min(0)], -1).amax(-1)
        scale = torch.maximum(y.detach().double().abs().amax(-1), side.abs().amax(-1))
        return amount.to(y), scale, "Ay = b or Gy <= h fails, rows scaled to length 1"

    @validated
    def margin(self, z: Tensor) -> Tensor:
        """Distance to the z at which an idle row is touched or a multiplier vanishes.

        Where the tight rows depend on each other (a degenerate vertex) another choice of the multipliers may last
        longer: there it is a lower bound.
        """
        held, rows, side = self._active_rows(z)
        rows, side = rows.detach(), side.detach()
        y, multipliers = held.nearest(z.double(), held.take(side))
        slack = (side - y @ rows.mT).clamp_min(0)
        speed = torch.stack([held.tangent(row.expand_as(y)).norm(dim=-1) for row in rows], -1)
        touch = torch.where(~held.mask & (speed > 1e-9), slack / speed.clamp_min(1e-300), torch.inf)
        # The multiplier of a row changes by the length of its column of B^+ per unit of z.
        units = torch.eye(y.shape[-1]).to(slack)
        columns = torch.stack([held.spread(held.along(unit.expand_as(y))) for unit in units], -1)
        vanish = held.spread(multipliers).clamp_min(0) / columns.norm(dim=-1).clamp_min(1e-300)
        equation = torch.arange(len(rows), device=slack.device) < len(self.independent)
        return torch.where(held.mask & ~equation, vanish, touch).amin(-1).to(z)

    def _check_equations(self) -> None:
        """EmptySetError if Ay = b has no solution: a projection looks at the independent rows only."""
        if self.A is None or self.b is None:
            return
        A, b = self.A.detach().double(), self.b.detach().double().reshape(-1, len(self.A)).mT
        length = torch.where((A != 0).any(-1), event_norm(A), 1.0)[:, None]
        A, b = A / length, b / length
        best = torch.linalg.pinv(A) @ b
        gap = (A @ best - b).abs()
        if bool((gap > 1e-12 * (b.abs() + best.norm(dim=0))).any()):
            raise EmptySetError(f"Ay = b has no solution: the best y leaves a gap of {float(gap.max()):.3g}")

    def _check_inequalities(self) -> None:
        """EmptySetError with the least violation that some y reaches."""
        rows, side = (value.detach() for value in self.system())
        m = len(self.independent)
        for right in side.reshape(-1, side.shape[-1]):
            start = torch.linalg.pinv(rows[:m]) @ right[:m]
            if bool((rows[m:] @ start <= right[m:]).all()):
                continue
            least, size = least_violation(rows.cpu().numpy(), right.cpu().numpy(), m)
            if least > tolerances.feasibility(torch.float64) * size:
                raise EmptySetError(
                    f"Ay = b and Gy <= h have no common point: every y breaks a row by {least:.3g} or more, "
                    f"rows scaled to length 1"
                )


class NullSpaceJacobian(ProjectionJacobian):
    """H = I - B^+ B with B the active rows."""

    is_projector = True

    def __init__(self, held: ActiveRows) -> None:
        self._active_rows = held
        self.dimension: Any = held.B.shape[-1] - held.mask.sum(-1)

    def apply(self, v: Tensor) -> Tensor:
        return self._active_rows.tangent(v.double()).to(v)


def _checked_rows(
    name: str, matrix: Tensor | None, side_name: str, side: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    if matrix is None and side is None:
        return None, None
    rows = tensor_parameter(name, matrix, "(m, n)")
    if not isinstance(side, Tensor) or side.ndim == 0 or side.shape[-1] != len(rows):
        raise InvalidInputError(f"{side_name} must have {len(rows)} entries, one per row of {name}, {got(side)}")
    return rows, tensor_parameter(side_name, side)


def _independent(matrix: Tensor | None) -> Tensor:
    """Indices of independent rows that span all of them: Gram-Schmidt in order."""
    if matrix is None:
        return torch.zeros(0, dtype=torch.int64)
    rows = matrix.detach().double()
    rows = rows / rows.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    kept, basis = [], rows[:0]
    for k, row in enumerate(rows):
        rest = row - (row @ basis.mT) @ basis
        rest = rest - (rest @ basis.mT) @ basis
        if float(rest.norm()) > 1e-9:
            kept.append(k)
            basis = torch.cat([basis, (rest / rest.norm())[None]])
    return torch.tensor(kept, dtype=torch.int64)


class ActiveRows:
    """The active rows B (..., k, n) of each point, B' = QR; zero rows fill up where a point has fewer than others.

    Not B B', which would square the angles between the rows.
    """

    def __init__(self, rows: Tensor, mask: Tensor) -> None:
        self.mask = mask
        most = min(rows.shape)
        if can_look_at_values():
            most = min(most, int(mask.sum(-1).max()) if mask.numel() else 0)
        self.index: Tensor = mask.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[..., :most]
        self.used: Tensor = mask.gather(-1, self.index)
        self.B = self.select_rows(rows)
        Q, R = torch.linalg.qr(self.B.mT)
        self._Q = Q * self.used.unsqueeze(-2)
        self._R = R + torch.diag_embed((~self.used).to(R)) * (1 - R.diagonal(dim1=-2, dim2=-1)).unsqueeze(-1)

    def take(self, side: Tensor) -> Tensor:
        """The entries (..., k) of the active rows."""
        return side.expand(self.mask.shape).gather(-1, self.index) * self.used

    def select_rows(self, rows: Tensor) -> Tensor:
        return rows[self.index] * self.used.unsqueeze(-1)

    def tangent(self, v: Tensor) -> Tensor:
        """(I - B^+ B) v."""
        for _ in range(2):
            v = v - product(self._Q, adjoint(self._Q, v))
        return v

    def pseudo(self, f: Tensor) -> Tensor:
        """B^+ f."""
        return product(self._Q, torch.linalg.solve_triangular(self._R.mT, f.unsqueeze(-1), upper=False).squeeze(-1))

    def along(self, v: Tensor) -> Tensor:
        """(B^+)' v, shape (..., k)."""
        inner = adjoint(self._Q, v).unsqueeze(-1)
        return torch.linalg.solve_triangular(self._R, inner, upper=True).squeeze(-1) * self.used

    def spread(self, entries: Tensor) -> Tensor:
        """Entries (..., k) of the active rows in the places of all rows, zero elsewhere."""
        index = self.index.expand(entries.shape)
        empty = entries.new_zeros(*entries.shape[:-1], self.mask.shape[-1])
        return empty.scatter(-1, index, entries * self.used)

    def nearest(self, z: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """y = z - B^+ (Bz - c) and the multipliers m, z - y = B'm."""
        y = z
        for _ in range(3):  # the second and third rounds remove the rounding of the first
            y = y - self.pseudo(product(self.B, y) - c)
        return y, self.along(z - y)

    def newton(self, y: Tensor, multipliers: Tensor, off: Tensor, gap: Tensor) -> tuple[Tensor, Tensor]:
        """One Newton step for z = y + B'm, c = By, with what is missing in the two equations."""
        dy = self.tangent(off) + self.pseudo(gap)
        return y + dy, multipliers + self.along(off - dy)


def product(matrix: Tensor, v: Tensor) -> Tensor:
    return (matrix @ v.unsqueeze(-1)).squeeze(-1)


def adjoint(matrix: Tensor, v: Tensor) -> Tensor:
    return (matrix.mT @ v.unsqueeze(-1)).squeeze(-1)
