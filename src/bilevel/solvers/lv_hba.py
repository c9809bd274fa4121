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

x and y share the step alpha, because P_C is a projection of the pair. The projection on h(x, y) <= 0 is computed by
successive linearisation (`sets.inequality_set`; exact in one round when h is affine), so that every iterate is
feasible; h must be convex in (x, y) together. Without h there are no multipliers and C = X x Y.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ..problem import Problem
from ..randomness import Seeds
from ..sets.inequality_set import joint_projection
from ..spaces import Vector
from .base import FIXED_SET, Need, State, batch_of
from .bic_gaffa import envelope_step, estimate_slope, lagrangian_gradient, no_multipliers
from .inner import estimate_curvature, safe_step
from .settings import check_between, check_counts, check_positive_or_auto, check_positives, step_or


@dataclass(kw_only=True, repr=False)
class LVHBAState(State):
    """The state of LV-HBA."""

    theta: Any
    multipliers: Any  # lambda, of shape (m,)
    multiplier_centers: Any  # z, of shape (m,)
    curvature: float  # L
    slope: float  # B, the largest eigenvalue of h_y h_y'


@dataclass(frozen=True, kw_only=True)
class LVHBA:
    """First-order penalty on a proximal Lagrangian value function; takes function constraints, a set, or both.

    Parameters
    ----------
    penalty, growth
        c and p of c_k = c (1 + k)^p; p in (0, 0.5) in the theory. The bias is O(1/c_k).
    gamma, multiplier_gamma
        gamma_1 and gamma_2.
    largest_multiplier
        r; it must exceed the lower level's multipliers.
    step_size
        alpha, the step of the pair (x, y), in units of the penalised problem (f is divided by c_k); "auto" is 1/(2L),
        L the largest curvature of g in y.
    multiplier_step
        eta_z, the step of lambda; "auto" is 1/(gamma_1 B + 1/gamma_2), B the largest eigenvalue of h_y h_y'.
    center_step
        beta / gamma_2 in (0, 1]: how far z follows lambda.
    envelope_step
        eta, the step of theta; "auto" is 1/(L + 1/gamma_1).
    refresh
        L and B are computed again every so many steps (B costs one product per constraint).

    Examples
    --------
    >>> LVHBA(penalty=10.0).penalty_at(0)
    10.0
    """

    needs: ClassVar[tuple[Need, ...]] = (FIXED_SET,)
    takes_inequality: ClassVar[bool] = True

    penalty: float = 1.0
    growth: float = 0.25
    gamma: float = 1.0
    multiplier_gamma: float = 1.0
    largest_multiplier: float = 1e3
    step_size: float | Literal["auto"] = "auto"
    multiplier_step: float | Literal["auto"] = "auto"
    center_step: float = 0.5
    envelope_step: float | Literal["auto"] = "auto"
    refresh: int = 100

    def __post_init__(self) -> None:
        check_positives(
            penalty=self.penalty, gamma=self.gamma, multiplier_gamma=self.multiplier_gamma,
            largest_multiplier=self.largest_multiplier,
        )  # fmt: skip
        check_positive_or_auto(
            step_size=self.step_size, envelope_step=self.envelope_step, multiplier_step=self.multiplier_step
        )
        check_between(0, 1, growth=self.growth, center_step=self.center_step)
        check_counts(refresh=self.refresh)

    def penalty_at(self, k: int) -> float:
        """c_k."""
        return self.penalty * (1.0 + k) ** self.growth

    def init(self, problem: Problem, x: Vector, y: Vector, seeds: Seeds) -> LVHBAState:
        """theta starts at y, both multipliers at 0."""
        zero = no_multipliers(problem, x, y)
        return LVHBAState(
            x=x, y=y, theta=y, multipliers=zero, multiplier_centers=zero, seeds=seeds, curvature=math.nan, slope=0.0
        )

    def step(self, problem: Problem, state: LVHBAState) -> LVHBAState:
        """theta and lambda, then (x, y) and z."""
        k, multipliers, z = state.step, state.multipliers, state.multiplier_centers
        batch = batch_of(problem, state.noise(), state.y)
        lin = problem.linearize(state.x, state.y, batch)
        curvature = state.curvature
        if "auto" in (self.step_size, self.envelope_step):
            curvature = estimate_curvature(lin, state, k, self.refresh, curvature)
        alpha = step_or(self.step_size, 0.5 * safe_step(curvature))
        slope = estimate_slope(lin, k, self.refresh, state.slope)
        eta_z = step_or(self.multiplier_step, 1.0 / (self.gamma * slope + 1.0 / self.multiplier_gamma))
        eta = step_or(self.envelope_step, 1.0 / (max(curvature, 0.0) + 1.0 / self.gamma))
        space, x_space, weight = problem.y_space(lin.constraint), problem.x_space, 1.0 / self.penalty_at(k)

        theta = envelope_step(problem, state, lin, multipliers, eta, self.gamma)
        if problem.inequality is not None:
            slack = problem.linearize(state.x, state.theta, batch).inequality_value
            ascent = slack - (multipliers - z) / self.multiplier_gamma
            multipliers = (multipliers + eta_z * ascent).clamp(0.0, self.largest_multiplier)
        v_x, _ = lagrangian_gradient(problem.linearize(state.x, theta, batch), multipliers, only_x=True)

        d_x = x_space.add(x_space.add(lin.lower_grad_x, v_x, -1.0), lin.upper_grad_x, weight)
        d_y = space.add(lin.lower_grad_y, lin.upper_grad_y, weight)
        d_y = space.add(d_y, space.add(state.y, theta, -1.0), -1.0 / self.gamma)
        x, y = self._project(problem, x_space.add(state.x, d_x, -alpha), space.add(state.y, d_y, -alpha), batch)
        z = (z - self.center_step * (z - multipliers)).clamp(0.0, self.largest_multiplier)
        return replace(
            state, x=x, y=y, theta=theta, multipliers=multipliers, multiplier_centers=z, step=k + 1,
            curvature=curvature, slope=slope,
        )  # fmt: skip

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
