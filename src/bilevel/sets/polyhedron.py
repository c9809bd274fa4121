"""Polyhedra given by equations and inequalities."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import tolerances
from ..errors import EmptySet, InvalidInput
from .active_set import active_rows, least_violation
from .base import ConvexSet, Face, can_look_at_values, check_batch, event_norm, got, parameter, tracked, with_value
from .held_rows import HeldRows, adjoint, product

FAR = 1e4
"""A point is far away when it is so many times as large as its projection and the right-hand sides."""


class Polyhedron(ConvexSet):
    """{y : Ay = b, Gy <= h}; P(z) = z - B^+ (Bz - c) with B, c the rows of A and the active rows of G.

    H = I - B^+ B, the projector on the null space of the active rows: those that some choice of the multipliers makes
    positive, chosen independent. At a kink a row whose multiplier can only be 0 counts as inactive, so that on the
    boundary H is that of the inside. The active rows of the last call are the warm start; where they do not lead to
    the new ones, Clarabel (extra `sets`) finds them, and its answer is made exact (`active_set`).

    Parameters
    ----------
    G, h
        Tensors of shapes (m, n) and (m,), or (..., m) with one right-hand side per batch element.
    A, b
        The same, (k, n) and (k,), for the equations; rows that depend on earlier ones must agree with them, and their b
        carries no derivative.

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
    parameters = ("G", "h", "A", "b")

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
            raise InvalidInput(f"Polyhedron needs G, A or both, with as many columns, got shapes {shapes}")
        if self.h is not None and self.b is not None:
            check_batch("h", self.h, self.b)
        self.size = given[0].shape[-1]
        self.independent = _independent(self.A)
        self._last = torch.zeros(0 if self.G is None else len(self.G), dtype=torch.bool)
        if can_look_at_values():
            self._check_equations()
            # A set that follows x is rebuilt at every step: then a projection notices if inequalities leave nothing.
            if not any(value.requires_grad for value in self.tensor_parameters().values()):
                if not bool(torch.isfinite(self.system()[1]).all()):
                    raise InvalidInput("Polyhedron: a row of G or A is so short that dividing by its length overflows")
                self._check_inequalities()

    def of_kind(self, z: Any) -> Any:
        z = super().of_kind(z)
        if z.shape[-1] != self.size:
            raise InvalidInput(f"points have {z.shape[-1]} entries, the polyhedron lives in dimension {self.size}")
        for name, side in (("h", self.h), ("b", self.b)):
            if side is not None:
                check_batch(name, side, z)
        return z

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

    def _held(self, z: Tensor, complete: bool = True) -> tuple[HeldRows, Tensor, Tensor]:
        """The active rows at z (`complete` for the derivative), and all rows and right-hand sides."""
        rows, side = self.system()
        return HeldRows(rows.detach(), self._active(z, rows, side, complete)), rows, side

    def project(self, z: Tensor) -> Tensor:
        z = self.checked(z)
        y = self._nearest(z.double())
        if can_look_at_values() and self._is_far(z.detach(), y.detach()):
            # The rounding of z may hide some rows. P(y) lies in the set, and no further from P(z) than y does.
            with torch.no_grad():
                near = self._nearest(self._nearest(z.double()))
            y = with_value(near, y)
        return y.to(z)

    def _nearest(self, z: Tensor) -> Tensor:
        follow = tracked(z, *self.tensor_parameters().values())
        held, rows, side = self._held(z, follow)
        c = held.take(side)
        y, multipliers = held.nearest(z.detach(), c.detach())
        if follow:
            B = held.take_rows(rows)
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

    def jacobian(self, z: Tensor) -> Face:
        z = self.checked(z).detach()
        held, rows, side = self._held(z)
        return PolyhedronFace(self, held, z.double(), rows.detach(), side.detach())

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        rows, side = (value.detach() for value in self.system())
        over, m = y.double() @ rows.mT - side, len(self.independent)
        amount = torch.cat([over[..., :m].abs(), over[..., m:].clamp_min(0)], -1).amax(-1)
        scale = torch.maximum(y.detach().double().abs().amax(-1), side.abs().amax(-1))
        return amount.to(y), scale, "Ay = b or Gy <= h fails, rows scaled to length 1"

    def margin(self, z: Tensor) -> Tensor:
        z = self.checked(z).detach()
        held, rows, side = self._held(z)
        return PolyhedronFace(self, held, z.double(), rows.detach(), side.detach()).margin().to(z)

    def _check_equations(self) -> None:
        """EmptySet if Ay = b has no solution: a projection looks at the independent rows only."""
        if self.A is None or self.b is None:
            return
        A, b = self.A.detach().double(), self.b.detach().double().reshape(-1, len(self.A)).mT
        length = torch.where((A != 0).any(-1), event_norm(A), 1.0)[:, None]
        A, b = A / length, b / length
        best = torch.linalg.pinv(A) @ b
        gap = (A @ best - b).abs()
        if bool((gap > 1e-12 * (b.abs() + best.norm(dim=0))).any()):
            raise EmptySet(f"Ay = b has no solution: the best y leaves a gap of {float(gap.max()):.3g}")

    def _check_inequalities(self) -> None:
        """EmptySet with the least violation that some y reaches."""
        rows, side = (value.detach() for value in self.system())
        m = len(self.independent)
        for right in side.reshape(-1, side.shape[-1]):
            start = torch.linalg.pinv(rows[:m]) @ right[:m]
            if bool((rows[m:] @ start <= right[m:]).all()):
                continue
            least, size = least_violation(rows.cpu().numpy(), right.cpu().numpy(), m)
            if least > tolerances.feasibility(torch.float64) * size:
                raise EmptySet(
                    f"Ay = b and Gy <= h have no common point: every y breaks a row by {least:.3g} or more, "
                    f"rows scaled to length 1"
                )

    def __repr__(self) -> str:
        shapes = [f"{name}=tensor{tuple(value.shape)}" for name, value in self.tensor_parameters().items()]
        return f"{type(self).__name__}({', '.join(shapes)})"


class PolyhedronFace(Face):
    """H = I - B^+ B with B the active rows."""

    is_projector = True

    def __init__(self, polyhedron: Polyhedron, held: HeldRows, z: Tensor, rows: Tensor, side: Tensor) -> None:
        self._polyhedron, self._held, self._rows, self._side = polyhedron, held, rows, side
        self._y, multipliers = held.nearest(z, held.take(side))
        self._multipliers = held.spread(multipliers)
        self.dimension = z.shape[-1] - held.mask.sum(-1)

    def _along(self, v: Tensor) -> Tensor:
        """(B^+)' v, zero in the idle rows."""
        return self._held.spread(self._held.along(v))

    def apply(self, v: Tensor) -> Tensor:
        return self._held.tangent(v.double()).to(v)

    def basis(self) -> Tensor | None:
        if self._held.mask.ndim > 1:
            return None
        return torch.linalg.qr(self._held.B.mT, mode="complete")[0][:, len(self._held.B) :]

    def margin(self) -> Tensor:
        """Distance to the z at which an idle row is touched or a multiplier vanishes.

        Where the tight rows depend on each other (a degenerate vertex) another choice of the multipliers may last
        longer: there it is a lower bound.
        """
        slack = (self._side - self._y @ self._rows.mT).clamp_min(0)
        speed = torch.stack([self.apply(row.expand_as(self._y)).norm(dim=-1) for row in self._rows], -1)
        mask = self._held.mask
        touch = torch.where(~mask & (speed > 1e-9), slack / speed.clamp_min(1e-300), torch.inf)
        # The multiplier of a row changes by the length of its column of B^+ per unit of z.
        columns = torch.stack(
            [self._along(unit.expand_as(self._y)) for unit in torch.eye(self._y.shape[-1]).to(slack)], -1
        )
        vanish = self._multipliers.clamp_min(0) / columns.norm(dim=-1).clamp_min(1e-300)
        equation = torch.arange(len(self._rows), device=slack.device) < len(self._polyhedron.independent)
        return torch.where(mask & ~equation, vanish, touch).amin(-1)

    def parameter_vjp(self, u: Tensor) -> dict[str, Tensor]:
        """For row g, side c, multiplier m and l = (B^+)'u: dc gives l and dg gives -m Hu - l y."""
        side = self._along(u.double())
        turn = -self._multipliers.unsqueeze(-1) * self.apply(u.double()).unsqueeze(-2)
        turn = turn - side.unsqueeze(-1) * self._y.unsqueeze(-2)
        Y, products = self._polyhedron, {}
        parts = (("A", Y.A, "b", Y.b, Y.independent, 0), ("G", Y.G, "h", Y.h, None, len(Y.independent)))
        for name, matrix, side_name, right, index, first in parts:
            if matrix is None or right is None:
                continue
            index = torch.arange(len(matrix)) if index is None else index
            part = slice(first, first + len(index))
            length = matrix.detach().double()[index].norm(dim=-1).clamp_min(1e-300)
            sides = side.new_zeros(*side.shape[:-1], len(matrix))
            sides[..., index] = side[..., part] / length
            turns = turn.new_zeros(*turn.shape[:-2], *matrix.shape)
            turns[..., index, :] = turn[..., part, :] / length[:, None]
            products[name] = turns.sum_to_size(matrix.shape).to(matrix)
            products[side_name] = sides.sum_to_size(right.shape).to(right)
        return products


def _checked_rows(
    name: str, matrix: Tensor | None, side_name: str, side: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    if matrix is None and side is None:
        return None, None
    if not isinstance(matrix, Tensor) or matrix.ndim != 2:
        raise InvalidInput(f"{name} must be a tensor of shape (m, n) to go with {side_name}, {got(matrix)}")
    if not isinstance(side, Tensor) or side.ndim == 0 or side.shape[-1] != len(matrix):
        raise InvalidInput(f"{side_name} must have {len(matrix)} entries, one per row of {name}, {got(side)}")
    return parameter(name, matrix), parameter(side_name, side)  # type: ignore[return-value]


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
