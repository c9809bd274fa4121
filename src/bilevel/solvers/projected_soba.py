"""ProjectedSOBA: one step per iteration on y, on the linear system and on x; an extension of SOBA to sets.

SOBA (Dagreou, Ablin, Vaiter & Moreau, NeurIPS 2022) moves y, the solution of the linear system and x
together along unbiased directions, without a set. With a set, at z = y - eta grad_y g and H in the Jacobian of P_Y
at z, all directions taken at (x_k, y_k, w_k):

    y_{k+1} = P_Y(z)
    w_{k+1} = H ( w_k - eta (G_yy w_k - f_y) )
    x_{k+1} = P_X( x_k - alpha_k (f_x - G_xy w_{k+1}) ),      alpha_k = alpha / (1 + k)^decay

The fixed point of the second line is w = eta H [I - (I - eta G_yy) H]^{-1} f_y, the adjoint of the hypergradient
(`hypergradients.base`): exact, with no truncation. The map is a contraction for 0 < eta < 2/L because |H| <= 1. On a
polyhedral set H is the projector onto a face, and the line is a gradient step for the linear system on that face. A set
that moves with x adds the term of `hypergradients.base.assemble`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from .._checks import Settings, setting
from .._projected_gradient import safe_step
from ..hypergradients.base import assemble
from ..problem import Problem
from ..random import Seeds
from ..spaces import Vector
from .base import JACOBIAN, PROJECTION, Need, State, batch_of, estimate_curvature, like_y, step_or, upper_move


@dataclass(kw_only=True, repr=False)
class ProjectedSOBAState(State):
    """The state of ProjectedSOBA."""

    adjoint: Any = like_y(reset="keep")  # w_k
    curvature: float  # L, refreshed at fixed step numbers


@dataclass(frozen=True, kw_only=True)
class ProjectedSOBA(Settings):
    """Single loop without inner iterations: one gradient of f, one of g, one Hessian and one cross product per step.

    y <- P_Y(z),  w <- H (w - eta (G_yy w - f_y)),  x <- P_X(x - alpha (f_x - G_xy w)),  z = y - eta grad_y g.

    Parameters
    ----------
    upper_step
        alpha, the step of x.
    lower_step
        eta, the step of y and of the linear system; "auto" is 1/L, L the largest curvature of g in y.
    decay
        alpha_k = alpha / (1 + k)^decay; 0 without noise, 0.5 with batches.
    refresh
        L is estimated again after this number of steps.

    References
    ----------
    An extension to sets of Dagreou, Ablin, Vaiter & Moreau (2022), A framework for bilevel optimization that enables
    stochastic and global variance reduction algorithms, NeurIPS.

    Examples
    --------
    >>> ProjectedSOBA(upper_step=0.3).lower_step
    'auto'
    """

    needs: ClassVar[tuple[Need, ...]] = (PROJECTION, JACOBIAN)

    upper_step: float = 0.1
    lower_step: float | Literal["auto"] = "auto"
    decay: float = setting(0.0, high=1.0, closed="both")
    refresh: int = 100

    def init(self, problem: Problem, x: Vector, y: Vector, seeds: Seeds) -> ProjectedSOBAState:
        """w_0 = 0."""
        space = problem.y_space(problem.constraint_at(x))
        return ProjectedSOBAState(x=x, y=y, seeds=seeds, adjoint=space.zeros_like(y), curvature=math.nan)

    def step(self, problem: Problem, state: ProjectedSOBAState) -> ProjectedSOBAState:
        """One step of y, w and x."""
        lin = problem.linearize(state.x, state.y, batch_of(problem, state.streams()))
        auto = self.lower_step == "auto"
        curvature = estimate_curvature(lin, state, state.step, self.refresh) if auto else state.curvature
        eta = step_or(self.lower_step, safe_step(curvature))
        space = problem.y_space(lin.constraint)

        z = space.add(state.y, lin.lower_grad_y, -eta)
        face = lin.constraint.jacobian(z)
        residual = space.add(lin.lower_hvp(state.adjoint), lin.upper_grad_y, -1.0)
        w = face.apply(space.add(state.adjoint, residual, -eta))
        u = space.add(space.scaled(w, 1.0 / eta), residual, -1.0)  # with the product at hand: that of the old w
        h = assemble(lin, w, z, eta, u=u)

        alpha = self.upper_step / (1.0 + state.step) ** self.decay
        x = upper_move(problem, state.x, h, alpha)
        y = problem.project(lin.constraint, z)
        if problem.moving:
            y = problem.project(problem.constraint_at(x), y)
        return replace(state, x=x, y=y, step=state.step + 1, adjoint=w, curvature=curvature)
