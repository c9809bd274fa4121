"""LV-HBA: the proximal Lagrangian value function approach (Yao, Yu, Zeng & Zhang, ICLR 2024).

"Constrained bi-level optimization: proximal Lagrangian value function approach and Hessian-free algorithm". With the
proximal Lagrangian value function of a lower level min g(x, y) over y in Y with h(x, y) <= 0,

    v(x, y, z) = min over theta in Y, max over lambda in [0, r]^m of
                 g(x, theta) + lambda . h(x, theta) + |theta - y|^2 / (2 gamma_1) - |lambda - z|^2 / (2 gamma_2)

the bilevel problem is min f over (x, y) in C = {x in X, y in Y, h(x, y) <= 0}, z in [0, r]^m, subject to g <= v. The
penalty f / c_k + g - v with c_k = c (1 + k)^p is followed by one step on each variable (their Algorithm 1):

    theta+  = P_Y( theta - eta ( g_y(x, theta) + h_y(x, theta)' lambda + (theta - y) / gamma_1 ) )
    lambda+ = clip( lambda + eta_z ( h(x, theta) - (lambda - z) / gamma_2 ), 0, r )
    d_x = f_x / c_k + g_x(x, y) - g_x(x, theta+) - h_x(x, theta+)' lambda+
    d_y = f_y / c_k + g_y(x, y) - (y - theta+) / gamma_1
    (x+, y+) = P_C( (x, y) - (alpha d_x, alpha d_y) ),    z+ = clip( z - beta ( z - lambda+ ) / gamma_2, 0, r )

x and y share the step alpha, because P_C is a projection of the pair. The projection on h(x, y) <= 0 is computed to
rounding by the method of multipliers (`sets.inequality_set`), so that every iterate is feasible; h must be convex in
(x, y) together. Its products with derivatives of h are counted. Without h there are no multipliers and C = X x Y.

As in the paper and the authors' code, theta and lambda move together from the old pair, then x, y and z from the new
one. Differs in: 1. a step of its own for lambda, where the paper gives theta and lambda one; 2. "auto" steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from .._checks import setting
from .._projected_gradient import safe_step
from ..problem import Problem
from ..random import Seeds
from ..sets.inequality_set import joint_projection
from ..spaces import Vector
from ._lagrangian import LagrangianPenalty, LagrangianState, lagrangian_gradient, no_multipliers
from .base import batch_of, step_or


@dataclass(kw_only=True, repr=False)
class LVHBAState(LagrangianState):
    """The state of LV-HBA; the multipliers are lambda."""

    multiplier_centers: Any  # z, of shape (m,)


@dataclass(frozen=True, kw_only=True)
class LVHBA(LagrangianPenalty):
    """First-order penalty on a proximal Lagrangian value function; takes function constraints, a set, or both.

    min f / c_k + g - v over (x, y) with h(x, y) <= 0, v the proximal Lagrangian value function.

    Parameters
    ----------
    penalty, growth
        c and p of c_k = c (1 + k)^p; p in (0, 0.5) in the theory. The bias is O(1/c_k).
    gamma, multiplier_gamma
        gamma_1 and gamma_2.
    largest_multiplier
        r; it must exceed the lower level's multipliers.
    step_size
        alpha, the step of the pair (x, y), in units of the penalised problem (f is divided by c_k); "auto" is
        1/(2 (L + K max lambda)), with L the largest curvature of g in y and K that of sum_i h_i.
    multiplier_step
        eta_z, the step of lambda; "auto" is 1/(gamma_1 B + 1/gamma_2), B the largest eigenvalue of h_y h_y'.
    center_step
        beta / gamma_2 in (0, 1]: how far z follows lambda.
    envelope_step
        eta, the step of theta; "auto" is 1/(L + K max lambda + 1/gamma_1).
    refresh
        L, K and B are estimated again after this number of steps (B costs one product per constraint).

    References
    ----------
    Yao, Yu, Zeng & Zhang (2024), Constrained bi-level optimization: proximal Lagrangian value function approach and
    Hessian-free algorithm, ICLR, algorithm 1.

    Examples
    --------
    >>> LVHBA(penalty=10.0).penalty_at(0)
    10.0
    """

    step_size: float | Literal["auto"] = "auto"
    center_step: float = setting(0.5, high=1.0, closed="right")

    def init(self, problem: Problem, x: Vector, y: Vector, seeds: Seeds) -> LVHBAState:
        """theta starts at y, both multipliers at 0."""
        zero = no_multipliers(problem, x, y)
        return LVHBAState(x=x, y=y, theta=y, multipliers=zero, multiplier_centers=zero, seeds=seeds)

    def step(self, problem: Problem, state: LVHBAState) -> LVHBAState:
        """theta and lambda, then (x, y) and z."""
        k, multipliers, z = state.step, state.multipliers, state.multiplier_centers
        batch = batch_of(problem, state.streams())
        lin = problem.linearize(state.x, state.y, batch)
        state = self.measured(lin, state, self.step_size)
        alpha = step_or(self.step_size, 0.5 * safe_step(state.curvature_with(multipliers)))
        space, x_space, weight = problem.y_space(lin.constraint), problem.x_space, 1.0 / self.penalty_at(k)

        before = problem.linearize(state.x, state.theta, batch)
        state = self.with_theta(before, state)
        if problem.inequality is not None:
            ascent = before.inequality_value - (multipliers - z) / self.multiplier_gamma
            multipliers = (multipliers + self.multiplier_step_at(state) * ascent).clamp(0.0, self.largest_multiplier)
        v_x, _ = lagrangian_gradient(problem.linearize(state.x, state.theta, batch), multipliers, only_x=True)

        d_x = x_space.add(x_space.add(lin.lower_grad_x, v_x, -1.0), lin.upper_grad_x, weight)
        d_y = space.add(lin.lower_grad_y, lin.upper_grad_y, weight)
        d_y = space.add(d_y, space.add(state.y, state.theta, -1.0), -1.0 / self.gamma)
        x, y = self._project(problem, x_space.add(state.x, d_x, -alpha), space.add(state.y, d_y, -alpha), batch)
        z = (z - self.center_step * (z - multipliers)).clamp(0.0, self.largest_multiplier)
        return replace(state, x=x, y=y, multipliers=multipliers, multiplier_centers=z, step=k + 1)

    def _project(self, problem: Problem, x: Vector, y: Vector, batch: Any) -> tuple[Vector, Vector]:
        """P_C."""
        constraint = problem.constraint_at(x)
        if problem.inequality is None:
            return problem.upper_constraint.project(x), problem.project(constraint, y)
        problem.costs.projections += 1
        parts, products = joint_projection(
            [x, y], lambda u, v: problem.call_inequality(u, v, batch), [problem.upper_constraint, constraint]
        )
        problem.costs.inequality_products += products
        return parts[0], parts[1]
