"""Lower levels of any size: products with vectors, and conjugate gradients on one symmetric operator.

    A = H (I - H) + eta H G H      symmetric and positive semidefinite, for every set and every smoothed projection
    Newton     A v = -H (I - eta G) R,   d = H v - R
    adjoint    A q = H grad_y f,   w = eta H q,   u = grad_y f + w / eta - G w

Rows of G on the coordinates in use are kept from point to point (`KnownHessian`): they precondition A, and they make a
quadratic model of g whose minimum over Y is found without calling g at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .._krylov import conjugate_gradients, largest_curvature
from ..errors import NotConvergedError
from ..linearization import Linearization
from ..spaces import Space, Vector, leaves, tree_map
from .base import Evaluation, LowerLevel, LowerPoint, Solved, flat, rows
from .cached_hessian import KnownHessian
from .operator_search import OperatorSearch
from .smoothed_set import SmoothedSet

SUPPORT_LIMIT = 1500
"""Rows of G are kept while no more than so many coordinates are in use."""
SMOOTHED_ROWS = 500
"""Rows that a smoothed problem may buy at once: without a preconditioner its systems take hundreds of products."""
ADJOINT_STEPS, ADJOINT_TOL = 400, 1e-5
REFRESH = 25
"""The mean curvature behind eta is measured again after so many evaluations."""
STACK_ENTRIES = 3_000_000
"""Stacks of vectors are cut to about so many numbers."""


@dataclass
class Jacobian:
    """v -> H v for flat vectors and stacks of them, in float64."""

    apply: Callable[[Tensor], Tensor]
    projector: bool
    support: Tensor | None


@dataclass
class System:
    """A = H (I - H) + eta H G H, with the inverse of an approximation where one is at hand."""

    apply: Callable[[Tensor], Tensor]
    precondition: Callable[[Tensor], Tensor] | None
    jacobian: Jacobian
    eta: float


class OperatorLevel(LowerLevel):
    """`LowerLevel` by products with G and H."""

    first_knowledge: Any = KnownHessian()
    space: Space = Space()

    def evaluate(
        self, x: Tensor, slack: float = math.inf, near: Evaluation | None = None, *, relative: float = 0.0
    ) -> Evaluation:
        """F at x; `largest` is that of `near`."""
        if near is not None:
            self.known = replace(self.known, largest=near.curvature)
        return super().evaluate(x, slack, near, relative=relative)

    def smoothing_eta(self, here: Evaluation) -> float:
        """1 / (mean curvature): seen from nearer the same draws smooth far less."""
        return 1.0 / self.known.mean

    # --- products -----------------------------------------------------------------------------------------------------

    def product(self, lin: Linearization, v: Tensor) -> Tensor:
        self.work += self.price
        self.known = replace(self.known, debt=self.known.debt + 1)
        return flat(lin.lower_hvp(self.tree_y(v))).double()

    def jacobian(self, constraint: Any, z: Tensor) -> Jacobian:
        if isinstance(constraint, SmoothedSet):
            return self._smoothed_jacobian(constraint, z)
        jacobian = constraint.jacobian(self.tree_y(z))

        def apply(v: Tensor) -> Tensor:
            applied = jacobian.apply(self.tree_y(v))
            return flat(applied).double() if v.ndim == 1 else rows(applied)

        return Jacobian(apply, bool(jacobian.is_projector), _indices(jacobian.support))

    def _smoothed_jacobian(self, constraint: SmoothedSet, z: Tensor) -> Jacobian:
        points = constraint.constraint.jacobian(constraint.points(self.tree_y(z)))
        count = constraint.count

        def apply(v: Tensor) -> Tensor:
            if v.ndim == 1:
                wide = tree_map(lambda u: u.unsqueeze(0).expand(count, *u.shape).contiguous(), self.tree_y(v))
                return flat(tree_map(lambda u: u.mean(0), points.apply(wide))).double()
            parts = []
            for part in v.split(max(1, STACK_ENTRIES // (count * self.size))):
                wide = tree_map(
                    lambda u: u.unsqueeze(1).expand(u.shape[0], count, *u.shape[1:]).contiguous(), self.tree_y(part)
                )
                parts.append(rows(tree_map(lambda u: u.mean(1), points.apply(wide))))
            return torch.cat(parts)

        support = points.support
        merged = None if support is None else _indices(tree_map(lambda u: u.any(0), support))
        return Jacobian(apply, False, merged)

    def _unconstrained(self, constraint: SmoothedSet, y: Tensor) -> bool:
        probe = torch.randn(self.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(self.device)
        applied = self._smoothed_jacobian(constraint, y).apply(probe)
        return float((applied - probe).abs().max()) < 1e-9

    # --- the operator and its preconditioner --------------------------------------------------------------------------

    def system(self, lin: Linearization, constraint: Any, z: Tensor, eta: float) -> System:
        jacobian = self.jacobian(constraint, z)
        h = jacobian.apply

        def apply(v: Tensor) -> Tensor:
            if jacobian.projector:
                return eta * h(self.product(lin, v))
            hv = h(v)
            return h(v - hv + eta * self.product(lin, hv))

        support = jacobian.support
        credit = SMOOTHED_ROWS if self.smoothing is not None else 0.0
        if support is None or not len(support) or not self.buy(lin, support, credit):
            if self.smoothing is not None:
                raise NotConvergedError("the smoothed lower level has too many coordinates in use")
            return System(apply, None, jacobian, eta)
        return System(apply, self._preconditioner(jacobian, support, eta), jacobian, eta)

    def _preconditioner(self, jacobian: Jacobian, support: Tensor, eta: float) -> Callable[[Tensor], Tensor] | None:
        """The inverse of A with the known rows of G, on the support."""
        block = self.jacobian_block(jacobian, support)
        identity = torch.eye(len(support), dtype=torch.float64, device=support.device)
        rest = identity - block if jacobian.projector else block @ (identity - block)
        matrix = eta * block @ self.known.block(support, self.size) @ block + rest
        if not jacobian.projector:
            matrix = matrix + 1e-10 * float(matrix.diagonal().mean()) * identity
        cholesky = torch.linalg.cholesky_ex((matrix + matrix.T) / 2)
        if int(cholesky.info):
            return None

        def precondition(r: Tensor) -> Tensor:
            v = torch.zeros_like(r)
            v[support] = torch.cholesky_solve(r[support][:, None], cholesky.L)[:, 0]
            return jacobian.apply(v) if jacobian.projector else v

        return precondition

    def jacobian_block(self, jacobian: Jacobian, support: Tensor) -> Tensor:
        """H on its support."""
        blocks = []
        for part in support.split(max(1, STACK_ENTRIES // self.size)):
            units = torch.zeros(len(part), self.size, dtype=torch.float64, device=self.device)
            units[torch.arange(len(part)), part] = 1.0
            blocks.append(jacobian.apply(units)[:, support])
        return torch.cat(blocks)

    def buy(self, lin: Linearization, support: Tensor, credit: float = 0.0) -> bool:
        """Whether G is known on the support: missing rows are bought once as much work was spent without them."""
        known = self.known
        if len(support) > SUPPORT_LIMIT:
            return False
        new = support[known.places(self.size)[support] < 0]
        if not len(new):
            return True
        if max(known.debt, credit) < len(new):
            return len(new) <= 0.3 * len(support)
        if len(known.index) + len(new) > 2 * SUPPORT_LIMIT:
            known = known.restricted(support, self.size)
        values = torch.stack([self._row(lin, int(i)) for i in new])
        self.known = known.extended(new, values)
        return True

    def _row(self, lin: Linearization, i: int) -> Tensor:
        unit = torch.zeros(self.size, dtype=self.dtype, device=self.device)
        unit[i] = 1.0
        self.work += 1
        return flat(lin.lower_hvp(self.tree_y(unit))).double()

    def _follow_diagonal(self, lin: Linearization) -> None:
        """Bring the known rows to this point where x moves the diagonal of G only (one penalty per entry of y).

        For v of entries +-1 the entries of v * (G v - G_old v) are then the change of the diagonal; a second v
        tests it.
        """
        known = self.known
        if not len(known.index) or known.diagonal is False:
            return
        changes = []
        for seed in (0, 1):
            generator = torch.Generator().manual_seed(2 * known.evaluations + seed)
            signs = torch.randint(0, 2, (len(known.index),), generator=generator).to(self.device).double() * 2 - 1
            v = torch.zeros(self.size, dtype=torch.float64, device=self.device)
            v[known.index] = signs
            changes.append(signs * (self.product(lin, v)[known.index] - known.rows @ signs))
        first, second = changes
        size = 1e-3 * float(first.norm()) + 1e-9 * float(known.rows.diagonal().norm())
        if float((first - second).norm()) <= size:
            self.known = replace(self.known, rows=known.rows + torch.diag((first + second) / 2), diagonal=True)
        else:
            self.known = replace(self.known, diagonal=False)

    def _eta(self, lin: Linearization) -> float:
        """1 / sqrt(mean curvature x largest): never far from the better of the two; that of a smoothing is its own."""
        known = self.known
        if math.isnan(known.largest):
            known = self.known = replace(known, largest=largest_curvature(lin) or 1.0)
        if math.isnan(known.eta) or known.evaluations % REFRESH == 0:
            signs = torch.randint(0, 2, (self.size,), generator=torch.Generator().manual_seed(1)).to(self.device)
            signs = signs.double() * 2 - 1
            mean = float(signs @ self.product(lin, signs)) / self.size
            mean = min(max(mean, 1e-4 * known.largest), known.largest)
            self.known = replace(self.known, mean=mean, eta=1.0 / math.sqrt(mean * known.largest))
        return self.known.eta if self.smoothing is None else self.smoothing.eta

    # --- y*(x) --------------------------------------------------------------------------------------------------------

    def _solve(
        self, x: Vector, constraint: Any, start: LowerPoint, slack: float, near: Evaluation | None
    ) -> Solved | None:
        hard, point = self.hard_set_at(x), start
        if near is not None:
            self._follow_diagonal(point.lin)
        eta = self._eta(point.lin)
        if near is None and self.smoothing is None:
            point = self.gradient_steps(x, point, 60, 1e-3 * float(point.slope.norm()))
        search = OperatorSearch(self, x, constraint, hard, slack, math.nan if near is None else near.weight, eta)
        found = search.run(point)
        if found is None or self.known.largest > self.curvature_limit:
            return None
        if near is None and self.smoothing is None and not found.is_below(start, self.eps):
            return None  # a Newton step may lead to a maximum
        return self._adjoint(found, constraint, eta, near)

    def _descend_by_newton(self, x: Vector, constraint: Any, start: LowerPoint) -> LowerPoint | None:
        eta = self._eta(start.lin)
        return OperatorSearch(self, x, constraint, constraint, math.inf, math.nan, eta).run(start)

    def _adjoint(self, point: LowerPoint, constraint: Any, eta: float, near: Evaluation | None) -> Solved:
        z = point.y - eta * point.slope
        system = self.system(point.lin, constraint, z, eta)
        h = system.jacobian.apply
        upper = flat(point.lin.upper_grad_y).double()
        start = None if near is None or near.system is None else near.system["adjoint"]
        if start is not None and system.jacobian.projector:
            start = h(start)
        q = self.conjugate_gradients(system, h(upper), start, ADJOINT_TOL, ADJOINT_STEPS)
        hq = q if system.jacobian.projector else h(q)
        w = eta * hq
        u = upper + hq - self.product(point.lin, w)
        residual = (point.y - self.project(constraint, z)).double()
        return Solved(point, z, residual, u, w, eta, self.known.largest, {"adjoint": q})

    def conjugate_gradients(self, system: System, b: Tensor, start: Tensor | None, tol: float, steps: int) -> Tensor:
        found = conjugate_gradients(
            system.apply, b, start, self.space, tol=tol, max_iterations=steps, precondition=system.precondition
        )
        assert isinstance(found.value, Tensor)
        return found.value

    def gradient_steps(self, x: Vector, point: LowerPoint, steps: int, tol: float) -> LowerPoint:
        before = self.work
        y, largest = self.descend(x, point.y, self.known.largest, tol, steps)
        self.known = replace(self.known, largest=largest, debt=self.known.debt + self.work - before)
        return self.at(x, y)


def _indices(support: Any) -> Tensor | None:
    """The coordinates of a support mask; None where H is not sparse."""
    if support is None or any(u is None for u in leaves(support)):
        return None
    return torch.cat([u.reshape(-1) for u in leaves(support)]).nonzero()[:, 0]
