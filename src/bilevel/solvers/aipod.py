"""AiPOD: alternating implicit projected SGD for equality constraints (Xiao, Shen, Yin & Chen, AISTATS 2023).

Lower level on the affine set Y(x) = {y : A y + H x = c}, written `constraint=lambda x: AffineSet(A, c - H @ x)` when
coupled and `AffineSet(A, c)` when not. With Pi the projector onto the null space of A and w = Pi (Pi G_yy Pi)^+ Pi f_y:

    y <- P_Y(x_k)( y - beta grad_y g(x_k, y) )        S times
    h = grad_x f - G_xy w - H' (A^+)' (grad_y f - G_yy w)
    x_{k+1} = P_X( x_k - alpha h )

w lies in the null space of A: that is the paper's V_2 (V_2' G_yy V_2)^-1 V_2' f_y without a basis V_2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from torch import zeros_like

from .._checks import Settings
from .._projected_gradient import safe_step
from ..hypergradients import Estimator, LinearSolve
from ..problem import Problem
from ..random import RandomStreams, Seeds
from ..spaces import Vector, tree_map
from .base import AFFINE, PROJECTION, Need, State, batch_of, estimate_curvature, like_x, like_y, step_or, upper_move


@dataclass(kw_only=True, repr=False)
class AiPODState(State):
    """The state of AiPOD and E-AiPOD."""

    adjoint: Any = like_y(reset="keep", default=None)  # w, warm start of the linear solve
    correction: Any = like_y(reset="keep", default=None)  # r of E-AiPOD: an estimate of the normal part of grad_y g
    upper_correction: Any = like_x(default=None)  # q of E-AiPOD: an estimate of the normal part of the hypergradient
    curvature: float = math.nan
    stats: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AiPOD(Settings):
    """Projected steps on an affine lower level, and an implicit gradient on its null space.

    Parameters
    ----------
    upper_step
        alpha.
    lower_step
        beta, or "auto" for 1/L. With noisy batches use a smaller number.
    lower_steps
        S.
    hypergradient
        How the inverse is computed: `LinearSolve` (default), or the truncated series of the paper,
        Neumann(terms=N, truncation="random", smoothing=Exact()).
    refresh
        The curvature behind "auto" is estimated again after this number of steps.

    Examples
    --------
    >>> AiPOD(lower_steps=5).lower_steps
    5
    """

    needs: ClassVar[tuple[Need, ...]] = (PROJECTION, AFFINE)

    upper_step: float = 0.1
    lower_step: float | Literal["auto"] = "auto"
    lower_steps: int = 5
    hypergradient: Estimator = LinearSolve(tol=1e-3, max_iterations=30)
    refresh: int = 100

    def init(self, problem: Problem, x: Vector, y: Vector, seeds: Seeds) -> AiPODState:
        """The first state; only the curvature is computed in advance."""
        state = AiPODState(x=x, y=y, seeds=seeds)
        lin = problem.linearize(x, y, batch_of(problem, state.streams()))
        state.curvature = estimate_curvature(lin, state, 0, self.refresh)
        state.correction, state.upper_correction = (
            problem.y_space(lin.constraint).zeros_like(y),
            tree_map(zeros_like, x),
        )
        return state

    def step(self, problem: Problem, state: AiPODState) -> AiPODState:
        """S projected steps of y, then one implicit step of x; y moves along with a coupled set."""
        k, streams = state.step + 1, state.streams(state.step + 1)
        y, correction = self._solve_lower(problem, state, streams)
        lin = problem.linearize(state.x, y, batch_of(problem, streams, self.lower_steps))
        curvature = estimate_curvature(lin, state, k, self.refresh)
        sample = self.hypergradient.estimate(lin, streams, curvature=curvature, start=state.adjoint)
        x, upper_correction = self._move(problem, state, sample.gradient)
        return replace(
            state, x=x, y=problem.project(problem.constraint_at(x), y) if problem.moving else y, step=k,
            adjoint=sample.adjoint, correction=correction, upper_correction=upper_correction, curvature=curvature,
            stats=sample.stats,
        )  # fmt: skip

    def _solve_lower(self, problem: Problem, state: AiPODState, streams: RandomStreams) -> tuple[Vector, Vector]:
        """y after its steps, and the correction r (zero here)."""
        constraint = problem.constraint_at(state.x)
        space, y, beta = problem.y_space(constraint), state.y, self._beta(state)
        for s in range(self.lower_steps):
            gradient = problem.lower_grad(state.x, y, batch_of(problem, streams, s))
            y = problem.project(constraint, space.add(y, gradient, -beta))
        return y, state.correction

    def _move(self, problem: Problem, state: AiPODState, h: Vector) -> tuple[Vector, Vector]:
        """x after its step along h, and the correction q (zero here)."""
        return upper_move(problem, state.x, h, self.upper_step), state.upper_correction

    def _beta(self, state: AiPODState) -> float:
        return step_or(self.lower_step, safe_step(state.curvature))
