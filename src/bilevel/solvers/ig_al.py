"""IG-AL: an implicit gradient through the active rows (Tsaknakis, Khanduri & Hong, ICASSP 2022).

Lower level with linear inequalities B y <= b (and equations E y = e). Where the active rows B_a are independent and
their multipliers positive, y* is differentiable, and differentiating its optimality conditions gives

    [ G_yy  B_a' ] [ w  ]   [ grad_y f ]
    [ B_a   0    ] [ mu ] = [    0     ],        h = grad_x f - G_xy w

    y_k:  projected gradient on g(x_k, .) from y_{k-1};   active rows: b - B y_k <= active_tol
    x_{k+1} = P_X( x_k - step h ),   step by an Armijo-type rule

The system is solved on the null space of the active rows by conjugate gradients: w = Pi (Pi G_yy Pi)^+ Pi grad_y f. The
face is determined at y itself, where `LinearSolve` determines it at y - eta grad_y g: a row that holds with equality at
y but has no multiplier counts as active here.

Differs from the paper in: 1. equations in addition to inequalities; 2. a rejected trial costs no hypergradient, and the
required decrease allows for the error of inexact lower levels (`Arrival.hidden_change`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import tolerances
from .._krylov import conjugate_gradients
from ..errors import IncompatibleError
from ..hypergradients import Hypergradient
from ..sets.affine import AffineSet, HalfSpace, Hyperplane
from ..sets.base import ConvexSet
from ..sets.box import Box
from ..sets.free_space import FreeSpace
from ..sets.polyhedron import Polyhedron
from ..sets.simplex import Simplex
from ..spaces import leaves
from ._double_loop import Arrival, DoubleLoopState, ToleranceLoop
from .base import FIXED_SET, LINEAR, PROJECTION, SINGLE_VECTOR, Need


@dataclass(frozen=True, kw_only=True)
class IGAL(ToleranceLoop):
    """Linear inequalities in the lower level, active rows in the hypergradient.

    h = grad_x f - G_xy w with G_yy w + B_a' mu = grad_y f and B_a w = 0, B_a the rows of the set that are active at y.

    Parameters
    ----------
    upper_step, step_rule
        As in `Approx`; "adaptive" is the Armijo-type rule.
    tol
        Residual of the lower level, and relative residual of the linear system.
    active_tol
        A row within this of equality (rows of unit length) is active.
    inner
        "accelerated" or "plain" projected gradients, without the Newton steps of `Approx`.
    lower_step, inner_steps, linear_steps, refresh
        As in `Approx`.

    References
    ----------
    Tsaknakis, Khanduri & Hong (2022), An implicit gradient-type method for linearly constrained bilevel problems,
    ICASSP.

    Examples
    --------
    >>> IGAL(active_tol=1e-4).active_tol
    0.0001
    """

    newton: ClassVar[bool] = False
    needs: ClassVar[tuple[Need, ...]] = (PROJECTION, FIXED_SET, LINEAR, SINGLE_VECTOR)

    tol: float = 1e-6
    active_tol: float = 1e-5

    def tolerance_at(self, k: int) -> float:
        return self.tol

    def derivative(self, state: DoubleLoopState, arrival: Arrival) -> Hypergradient:
        """w on the null space of the active rows."""
        lin, y = arrival.lin, leaves(arrival.lin.y)[0]
        rows = active_rows(lin.constraint, y, self.active_tol)
        face = _null_space(rows)
        solution = conjugate_gradients(
            lambda v: face(lin.lower_hvp(v)),
            face(leaves(lin.upper_grad_y)[0]),
            None if state.adjoint is None else face(state.adjoint),
            lin.problem.y_space(lin.constraint),
            tol=max(self.tol, tolerances.linear_residual(y.dtype)),
            max_iterations=self.linear_steps,
        )
        stats = {
            "active_rows": float(len(rows)),
            "residual": solution.residual,
            "iterations": float(solution.iterations),
        }
        return Hypergradient(lin.reduced_gradient(solution.value), solution.value, stats)


def active_rows(constraint: ConvexSet, y: Tensor, tol: float) -> Tensor:
    """The equations, and the inequalities that hold with equality at y (within tol), as rows (m, n)."""
    n, eye = y.shape[-1], torch.eye(y.shape[-1], dtype=y.dtype, device=y.device)
    none = eye[:0]
    if isinstance(constraint, FreeSpace):
        return none
    if isinstance(constraint, Box):
        low, high = (torch.as_tensor(v).to(y).expand(n) for v in (constraint.lower, constraint.upper))
        return eye[(y - low <= tol) | (high - y <= tol)]
    if isinstance(constraint, Simplex):
        return torch.cat([torch.full_like(eye[:1], n**-0.5), eye[y <= tol]])
    if isinstance(constraint, HalfSpace):  # and Hyperplane
        length = constraint.normal.norm()
        unit = (constraint.normal / length).to(y)
        touches = isinstance(constraint, Hyperplane) or float(constraint.offset / length - unit @ y) <= tol
        return unit[None] if touches else none
    if isinstance(constraint, AffineSet):
        return constraint.matrix.to(y)
    if isinstance(constraint, Polyhedron):
        rows, side = constraint.system()
        equations = len(constraint.independent)
        held = (side.to(y) - y @ rows.to(y).T) <= tol
        held[:equations] = True
        return rows.to(y)[held]
    raise IncompatibleError(f"IGAL cannot use set {constraint!r}: it needs {LINEAR.what}")


def _null_space(rows: Tensor) -> Any:
    """v -> v minus its part in the span of the rows, which may be dependent."""
    if len(rows) == 0:
        return lambda v: v
    _, values, right = torch.linalg.svd(rows, full_matrices=False)
    basis = right[values > values.amax() * max(rows.shape) * torch.finfo(rows.dtype).eps]
    return lambda v: v - (v @ basis.T) @ basis
