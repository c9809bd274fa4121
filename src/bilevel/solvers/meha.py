"""MEHA: Moreau envelope based, single loop, Hessian free (Liu, Liu, Yao, Zeng & Zhang, ICML 2024), proximal form.

With the Moreau envelope of the lower level

    v_gamma(x, y) = min over theta in Y of g(x, theta) + |theta - y|^2 / (2 gamma)      ( <= g(x, y) for y in Y )

the bilevel problem is min f(x, y) subject to g(x, y) <= v_gamma(x, y), and is solved through the penalty
f / c_k + g - v_gamma with c_k = c (1 + k)^p (their Algorithm 1, with the indicator of Y as the nonsmooth part, whose
proximal map is P_Y):

    theta_{k+1} = P_Y( theta_k - eta ( g_y(x_k, theta_k) + (theta_k - y_k) / gamma ) )
    x_{k+1}     = P_X( x_k - alpha ( f_x(x_k, y_k) / c_k + g_x(x_k, y_k) - g_x(x_k, theta_{k+1}) ) )
    y_{k+1}     = P_Y( y_k - beta ( f_y(x_{k+1}, y_k) / c_k + g_y(x_{k+1}, y_k) - (y_k - theta_{k+1}) / gamma ) )

The gradient of v_gamma is g_x(x, theta*) in x and (y - theta*)/gamma in y. A finite c biases the answer by O(1/c).

As in the paper and the authors' code, theta moves first, then x, then y at the new x. Differs in: 1. "auto" steps of y
and theta from the curvature of g, where the paper tunes; 2. the nonsmooth part is the indicator of Y alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from .._checks import Settings, setting
from .._projected_gradient import safe_step
from ..problem import Problem
from ..random import Seeds
from ..spaces import Vector
from .base import FIXED_SET, PROJECTION, Need, State, batch_of, estimate_curvature, like_y, step_or, upper_move


@dataclass(kw_only=True, repr=False)
class MEHAState(State):
    """The state of MEHA."""

    theta: Any = like_y(reset="keep")
    curvature: float


@dataclass(frozen=True, kw_only=True)
class MEHA(Settings):
    """First-order penalty on the Moreau envelope of the lower level, single loop.

    min f / c_k + g - v over x and y, v(x, y) = min over theta in Y of g(x, theta) + |theta - y|^2 / (2 gamma).

    Parameters
    ----------
    penalty, growth
        c and p of c_k = c (1 + k)^p; p in [0, 0.5) in the theory. The bias is O(1/c_k).
    gamma
        The width of the envelope; the lower level may be weakly convex with modulus below 1/(2 gamma).
    upper_step
        alpha, the step of x, in units of the penalised problem (f is divided by c_k).
    lower_step
        beta, the step of y; "auto" is 1/(2L), L the largest curvature of g in y.
    envelope_step
        eta, the step of theta; "auto" is 1/(L + 1/gamma).
    refresh
        L is estimated again after this number of steps.

    References
    ----------
    Liu, Liu, Yao, Zeng & Zhang (2024), Moreau envelope for nonconvex bi-level optimization: a single-loop and Hessian-
    free solution strategy, ICML, algorithm 1.

    Examples
    --------
    >>> MEHA(penalty=10.0).penalty_at(0)
    10.0
    """

    needs: ClassVar[tuple[Need, ...]] = (PROJECTION, FIXED_SET)

    penalty: float = 1.0
    growth: float = setting(0.25, high=1.0, closed="both")
    gamma: float = 10.0
    upper_step: float = 0.3
    lower_step: float | Literal["auto"] = "auto"
    envelope_step: float | Literal["auto"] = "auto"
    refresh: int = 100

    def penalty_at(self, k: int) -> float:
        """c_k."""
        return self.penalty * (1.0 + k) ** self.growth

    def init(self, problem: Problem, x: Vector, y: Vector, seeds: Seeds) -> MEHAState:
        """theta and y start together."""
        return MEHAState(x=x, y=y, theta=y, seeds=seeds, curvature=math.nan)

    def step(self, problem: Problem, state: MEHAState) -> MEHAState:
        """theta, then x, then y at the new x."""
        k = state.step
        batch = batch_of(problem, state.streams())
        lin = problem.linearize(state.x, state.y, batch)
        curvature = state.curvature
        if "auto" in (self.lower_step, self.envelope_step):
            curvature = estimate_curvature(lin, state, k, self.refresh)
        beta = step_or(self.lower_step, 0.5 * safe_step(curvature))
        eta = step_or(self.envelope_step, 1.0 / (max(curvature, 0.0) + 1.0 / self.gamma))
        space, x_space, weight = problem.y_space(lin.constraint), problem.x_space, 1.0 / self.penalty_at(k)

        pull = space.scaled(space.add(state.theta, state.y, -1.0), 1.0 / self.gamma)
        slope = space.add(problem.lower_grad(state.x, state.theta, batch), pull)
        theta = problem.project(lin.constraint, space.add(state.theta, slope, -eta))

        at_theta = problem.linearize(state.x, theta, batch)
        d_x = x_space.add(lin.lower_grad_x, at_theta.lower_grad_x, -1.0)
        d_x = x_space.add(d_x, lin.upper_grad_x, weight)
        x = upper_move(problem, state.x, d_x, self.upper_step)

        ahead = problem.linearize(x, state.y, batch)
        d_y = space.add(ahead.lower_grad_y, ahead.upper_grad_y, weight)
        d_y = space.add(d_y, space.add(state.y, theta, -1.0), -1.0 / self.gamma)
        y = problem.project(lin.constraint, space.add(state.y, d_y, -beta))
        return replace(state, x=x, y=y, theta=theta, step=k + 1, curvature=curvature)
