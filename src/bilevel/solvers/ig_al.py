"""IG-AL: an implicit gradient through the active rows (Tsaknakis, Khanduri & Hong, ICASSP 2022).

Lower level with linear inequalities B y <= b (and equations E y = e). Where the active rows B_a are independent and
their multipliers positive, y* is differentiable, and differentiating its optimality conditions gives

    [ G_yy  B_a' ] [ w  ]   [ grad_y f ]
    [ B_a   0    ] [ mu ] = [    0     ],        h = grad_x f - G_xy w

    y_k:  projected gradient on g(x_k, .) from y_{k-1};   active rows: b - B y_k <= active_tol
    x_{k+1} = P_X( x_k - step h ),   step by an Armijo-type rule

The system is solved on the null space of the active rows by conjugate gradients: w = Pi (Pi G_yy Pi)^+ Pi grad_y f. The
face is read off y itself, where `LinearSolve` reads it off y - eta grad_y g: a row that y touches without a multiplier
counts as active here.

Differs from the paper in: 1. equations beside the inequalities; 2. a trial that is not kept costs no hypergradient, and
the decrease it is asked for makes room for what the inexact lower levels can hide (`inner.hidden_change`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from .. import tolerances
from ..errors import Incompatible
from ..hypergradients.krylov import conjugate_gradients
from ..problem import Linearization, Problem
from ..randomness import Seeds
from ..sets.affine import AffineSet, HalfSpace, Hyperplane
from ..sets.base import ConvexSet
from ..sets.box import Box
from ..sets.free_space import FreeSpace
from ..sets.polyhedron import Polyhedron
from ..sets.simplex import Simplex
from ..spaces import Vector, leaves
from .base import (
    FIXED_SET,
    LINEAR,
    PROJECTION,
    SINGLE_VECTOR,
    Need,
    State,
    batch_of,
    check_choice,
    check_count,
    check_positive,
)
from .inner import (
    StepRule,
    check_sampler,
    check_step_rule,
    estimate_curvature,
    hidden_change,
    moved_by,
    rounding,
    solve_to,
    upper_move,
)


@dataclass(kw_only=True, repr=False)
class IGALState(State):
    """The state of IG-AL."""

    gradient: Any = None  # h at (x, y)
    adjoint: Any = None  # w
    value: float = math.nan  # f(x, y)
    upper_step: float = math.nan
    curvature: float = math.nan
    slack: float = math.inf  # how far value may be from F(x)
    stats: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class IGAL:
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
    inner, inner_steps, linear_steps, refresh
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

    needs: ClassVar[tuple[Need, ...]] = (PROJECTION, FIXED_SET, LINEAR, SINGLE_VECTOR)

    upper_step: float = 1.0
    step_rule: Literal["adaptive", "fixed"] = "adaptive"
    tol: float = 1e-6
    active_tol: float = 1e-5
    inner: Literal["accelerated", "plain"] = "accelerated"
    inner_steps: int = 10_000
    linear_steps: int = 1000
    refresh: int = 100

    def __post_init__(self) -> None:
        check_step_rule(self.step_rule, self.upper_step)
        check_positive("tol", self.tol)
        check_positive("active_tol", self.active_tol)
        check_choice("inner", self.inner, ("accelerated", "plain"))
        for name in ("inner_steps", "linear_steps", "refresh"):
            check_count(name, getattr(self, name))

    def init(self, problem: Problem, x: Vector, y: Vector, seeds: Seeds) -> IGALState:
        """y*(x_0) and its hypergradient."""
        check_sampler(problem, self.step_rule, "IGAL")
        state = IGALState(x=x, y=y, seeds=seeds, upper_step=self.upper_step)
        lin = problem.linearize(x, y, batch_of(problem, state.noise(), y))
        state.curvature = estimate_curvature(lin, state, 0, self.refresh, math.nan)
        lin, state.curvature, residual = self._arrive(problem, state, x, 0)
        return self._settle(state, lin, residual, accepted=True)

    def step(self, problem: Problem, state: IGALState) -> IGALState:
        """One trial step of x, and the hypergradient at the new point when it is kept."""
        k, rule = state.step + 1, StepRule(kind=self.step_rule, first=self.upper_step)
        x = upper_move(problem, state.x, state.gradient, state.upper_step)
        lin, curvature, residual = self._arrive(problem, state, x, k)
        slack = 0.0
        if rule.kind == "adaptive":
            slack = state.slack + hidden_change(lin, state.adjoint, residual, curvature) + rounding(lin)
        drop = state.value - float(lin.upper_value)
        accepted = rule.accepts(drop, moved_by(problem, x, state.x), state.upper_step, slack)
        following = rule.following(state.upper_step, accepted)
        new = IGALState(**{**vars(state), "step": k, "upper_step": following, "curvature": curvature})
        if accepted:
            return self._settle(new, lin, residual, accepted=True)
        new.stats = {**state.stats, "accepted": 0.0}
        return new

    def _arrive(self, problem: Problem, state: IGALState, x: Vector, k: int) -> tuple[Linearization, float, float]:
        batch, y, curvature = batch_of(problem, state.noise(k), state.y), state.y, state.curvature
        if k > 0 and k % self.refresh == 0:
            curvature = estimate_curvature(problem.linearize(x, y, batch), state, k, self.refresh, curvature)
        tol = max(self.tol, tolerances.lower_residual(leaves(y)[0].dtype))
        solved = solve_to(
            problem, x, y, tol=tol, max_steps=self.inner_steps, curvature=curvature,
            accelerated=self.inner == "accelerated", batch=batch,
        )  # fmt: skip
        return problem.linearize(x, solved.y, batch), solved.curvature, solved.residual

    def _settle(self, state: IGALState, lin: Linearization, residual: float, *, accepted: bool) -> IGALState:
        space, y = lin.problem.y_space(lin.constraint), leaves(lin.y)[0]
        rows = active_rows(lin.constraint, y, self.active_tol)
        face = _null_space(rows)
        solution = conjugate_gradients(
            lambda v: face(lin.lower_hvp(v)),
            face(leaves(lin.upper_grad_y)[0]),
            None if state.adjoint is None else face(state.adjoint),
            space,
            tol=max(self.tol, tolerances.linear_residual(y.dtype)),
            max_iterations=self.linear_steps,
        )
        x_space = lin.problem.x_space
        state.x, state.y, state.value, state.adjoint = lin.x, lin.y, float(lin.upper_value), solution.value
        state.gradient = x_space.add(lin.upper_grad_x, lin.lower_cross(solution.value), -1.0)
        state.slack = hidden_change(lin, solution.value, residual, state.curvature)
        state.stats = {
            "accepted": float(accepted),
            "active_rows": float(len(rows)),
            "residual": solution.residual,
            "iterations": float(solution.iterations),
        }
        return state


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
    raise Incompatible(f"IGAL cannot use set {constraint!r}: it needs {LINEAR.what}")


def _null_space(rows: Tensor) -> Any:
    """v -> v minus its part in the span of the rows, which may be dependent."""
    if len(rows) == 0:
        return lambda v: v
    _, values, right = torch.linalg.svd(rows, full_matrices=False)
    basis = right[values > values.amax() * max(rows.shape) * torch.finfo(rows.dtype).eps]
    return lambda v: v - (v @ basis.T) @ basis
