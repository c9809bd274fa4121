"""BiC-GAFFA: a gap function for lower-level constraints (Yao, Yin, Zeng & Zhang, NeurIPS 2024).

"Overcoming lower-level constraints in bilevel optimization: a novel approach with regularized gap functions". For a
lower level min g(x, y) over y in Y with h(x, y) <= 0, and its Lagrangian L(x, y, z) = g + z . h, the doubly
regularised gap function

    G(x, y, z) = max over theta in Y, lambda >= 0 of
                 L(x, y, lambda) - L(x, theta, z) - |theta - y|^2 / (2 gamma_1) - |lambda - z|^2 / (2 gamma_2)

is non-negative and vanishes exactly at the saddle points (y*, z*). The penalty f / c_k + G with c_k = c (1 + k)^p is
minimised over x in X, y in Y and z in [0, r]^m by one step on each variable (their Algorithm 1):

    theta+  = P_Y( theta - eta ( g_y(x, theta) + h_y(x, theta)' z + (theta - y) / gamma_1 ) )
    lambda+ = ( z + gamma_2 h(x, y) )_+                                   (the maximum over lambda, exactly)
    d_x = f_x / c_k + g_x(x, y) + h_x(x, y)' lambda+ - g_x(x, theta+) - h_x(x, theta+)' z
    d_y = f_y / c_k + g_y(x, y) + h_y(x, y)' lambda+ - (y - theta+) / gamma_1
    d_z = -h(x, theta+) - (z - lambda+) / gamma_2
    x+ = P_X(x - alpha d_x),   y+ = P_Y(y - beta d_y),   z+ = clip(z - beta_z d_z, 0, r)

y lies in Y at every step and satisfies h(x, y) <= 0 in the limit of growing c. Without h the multipliers disappear and
G is g minus its Moreau envelope. First-order only.

As in the paper and the authors' code, all directions are taken at the old point, lambda+ in closed form. Differs in:
1. steps of their own for x, y and z, where the experiments of the paper give x and y one step; 2. "auto" steps from
curvatures, where the paper tunes; 3. c_k grows without the cap of 10 of the authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from .._projected_gradient import safe_step
from ..problem import Problem
from ..random import Seeds
from ..spaces import Vector
from ._lagrangian import LagrangianPenalty, LagrangianState, lagrangian_gradient, no_multipliers
from .base import batch_of, step_or, upper_move


@dataclass(frozen=True, kw_only=True)
class BiCGAFFA(LagrangianPenalty):
    """First-order penalty on a gap function; takes function constraints h(x, y) <= 0, a set, or both.

    min f / c_k + G over x, y and multipliers, G the gap function of the lower level, by one step on each.

    Parameters
    ----------
    penalty, growth
        c and p of c_k = c (1 + k)^p; p in (0, 0.5) in the theory. The bias is O(1/c_k).
    gamma, multiplier_gamma
        gamma_1 and gamma_2, the widths of the regularisation of y and of the multipliers.
    largest_multiplier
        r; it must exceed the lower level's multipliers.
    upper_step
        alpha, the step of x, in units of the penalised problem (f is divided by c_k).
    lower_step
        beta, the step of y; "auto" is 1/(2 (L + K max lambda + gamma_2 B)), with L the largest curvature of g in y, K
        that of sum_i h_i, and B the largest eigenvalue of h_y h_y'.
    multiplier_step
        beta_z; "auto" is 1/(gamma_1 B + 1/gamma_2).
    envelope_step
        eta, the step of theta; "auto" is 1/(L + K max z + 1/gamma_1).
    refresh
        L, K and B are estimated again after this number of steps (B costs one product per constraint).

    References
    ----------
    Yao, Yin, Zeng & Zhang (2024), Overcoming lower-level constraints in bilevel optimization: a novel approach with
    regularized gap functions, NeurIPS, algorithm 1.

    Examples
    --------
    >>> BiCGAFFA(penalty=10.0).penalty_at(0)
    10.0
    """

    upper_step: float = 0.3
    lower_step: float | Literal["auto"] = "auto"

    def init(self, problem: Problem, x: Vector, y: Vector, seeds: Seeds) -> LagrangianState:
        """theta starts at y, the multipliers at 0."""
        return LagrangianState(x=x, y=y, theta=y, multipliers=no_multipliers(problem, x, y), seeds=seeds)

    def step(self, problem: Problem, state: LagrangianState) -> LagrangianState:
        """theta and lambda, then x, y and z."""
        k, z = state.step, state.multipliers
        batch = batch_of(problem, state.streams())
        lin = problem.linearize(state.x, state.y, batch)
        state = self.measured(lin, state, self.lower_step)
        response = z  # lambda+
        if problem.inequality is not None:
            response = (z + self.multiplier_gamma * lin.inequality_value).clamp_min(0.0)
        bound = state.curvature_with(response) + self.multiplier_gamma * state.slope
        beta = step_or(self.lower_step, 0.5 * safe_step(bound))
        space, x_space, weight = problem.y_space(lin.constraint), problem.x_space, 1.0 / self.penalty_at(k)

        state = self.with_theta(problem.linearize(state.x, state.theta, batch), state)
        at_theta = problem.linearize(state.x, state.theta, batch)
        g_x, g_y = lagrangian_gradient(lin, response)
        v_x, _ = lagrangian_gradient(at_theta, z, only_x=True)

        d_x = x_space.add(x_space.add(g_x, v_x, -1.0), lin.upper_grad_x, weight)
        d_y = space.add(
            space.add(g_y, lin.upper_grad_y, weight), space.add(state.y, state.theta, -1.0), -1.0 / self.gamma
        )
        x = upper_move(problem, state.x, d_x, self.upper_step)
        y = problem.project(lin.constraint, space.add(state.y, d_y, -beta))
        if problem.inequality is not None:
            d_z = -at_theta.inequality_value - (z - response) / self.multiplier_gamma
            z = (z - self.multiplier_step_at(state) * d_z).clamp(0.0, self.largest_multiplier)
        return replace(state, x=x, y=y, multipliers=z, step=k + 1)
