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
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..problem import Linearization, Problem
from ..randomness import Seeds
from ..spaces import Vector, leaves
from .base import FIXED_SET, Need, State, batch_of
from .inner import estimate_curvature, safe_step
from .settings import check_between, check_counts, check_positive_or_auto, check_positives, step_or


@dataclass(kw_only=True, repr=False)
class BiCGAFFAState(State):
    """The state of BiC-GAFFA."""

    theta: Any
    multipliers: Any  # z, of shape (m,)
    curvature: float  # L
    slope: float  # B, the largest eigenvalue of h_y h_y'


@dataclass(frozen=True, kw_only=True)
class BiCGAFFA:
    """First-order penalty on a gap function; takes function constraints h(x, y) <= 0, a set, or both.

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
        beta, the step of y; "auto" is 1/(2 (L + gamma_2 B)), L the largest curvature of g in y and B that of h_y' h_y.
    multiplier_step
        beta_z; "auto" is 1/(gamma_1 B + 1/gamma_2).
    envelope_step
        eta, the step of theta; "auto" is 1/(L + 1/gamma_1).
    refresh
        L and B are computed again every so many steps (B costs one product per constraint).

    Examples
    --------
    >>> BiCGAFFA(penalty=10.0).penalty_at(0)
    10.0
    """

    needs: ClassVar[tuple[Need, ...]] = (FIXED_SET,)
    takes_inequality: ClassVar[bool] = True

    penalty: float = 1.0
    growth: float = 0.25
    gamma: float = 1.0
    multiplier_gamma: float = 1.0
    largest_multiplier: float = 1e3
    upper_step: float = 0.3
    lower_step: float | Literal["auto"] = "auto"
    multiplier_step: float | Literal["auto"] = "auto"
    envelope_step: float | Literal["auto"] = "auto"
    refresh: int = 100

    def __post_init__(self) -> None:
        check_positives(
            penalty=self.penalty, gamma=self.gamma, multiplier_gamma=self.multiplier_gamma,
            largest_multiplier=self.largest_multiplier, upper_step=self.upper_step,
        )  # fmt: skip
        check_positive_or_auto(
            lower_step=self.lower_step, envelope_step=self.envelope_step, multiplier_step=self.multiplier_step
        )
        check_between(0, 1, growth=self.growth)
        check_counts(refresh=self.refresh)

    def penalty_at(self, k: int) -> float:
        """c_k."""
        return self.penalty * (1.0 + k) ** self.growth

    def init(self, problem: Problem, x: Vector, y: Vector, seeds: Seeds) -> BiCGAFFAState:
        """theta starts at y, the multipliers at 0."""
        return BiCGAFFAState(
            x=x, y=y, theta=y, multipliers=no_multipliers(problem, x, y), seeds=seeds, curvature=math.nan, slope=0.0
        )

    def step(self, problem: Problem, state: BiCGAFFAState) -> BiCGAFFAState:
        """theta and lambda, then x, y and z."""
        k, z = state.step, state.multipliers
        batch = batch_of(problem, state.noise(), state.y)
        lin = problem.linearize(state.x, state.y, batch)
        curvature = state.curvature
        if "auto" in (self.lower_step, self.envelope_step):
            curvature = estimate_curvature(lin, state, k, self.refresh, curvature)
        slope = estimate_slope(lin, k, self.refresh, state.slope)
        beta = step_or(self.lower_step, 0.5 * safe_step(curvature + self.multiplier_gamma * slope))
        beta_z = step_or(self.multiplier_step, 1.0 / (self.gamma * slope + 1.0 / self.multiplier_gamma))
        eta = step_or(self.envelope_step, 1.0 / (max(curvature, 0.0) + 1.0 / self.gamma))
        space, x_space, weight = problem.y_space(lin.constraint), problem.x_space, 1.0 / self.penalty_at(k)

        theta = envelope_step(problem, state, lin, z, eta, self.gamma)
        at_theta = problem.linearize(state.x, theta, batch)
        g_x, g_y = lagrangian_gradient(lin, self._best_response(lin, z))
        v_x, _ = lagrangian_gradient(at_theta, z, only_x=True)

        d_x = x_space.add(x_space.add(g_x, v_x, -1.0), lin.upper_grad_x, weight)
        d_y = space.add(space.add(g_y, lin.upper_grad_y, weight), space.add(state.y, theta, -1.0), -1.0 / self.gamma)
        x = problem.upper_constraint.project(x_space.add(state.x, d_x, -self.upper_step))
        y = problem.project(lin.constraint, space.add(state.y, d_y, -beta))
        if problem.inequality is not None:
            d_z = -at_theta.inequality_value - (z - self._best_response(lin, z)) / self.multiplier_gamma
            z = (z - beta_z * d_z).clamp(0.0, self.largest_multiplier)
        return replace(state, x=x, y=y, theta=theta, multipliers=z, step=k + 1, curvature=curvature, slope=slope)

    def _best_response(self, lin: Linearization, z: Tensor) -> Tensor:
        """lambda+."""
        if lin.problem.inequality is None:
            return z
        return (z + self.multiplier_gamma * lin.inequality_value).clamp_min(0.0)


def no_multipliers(problem: Problem, x: Vector, y: Vector) -> Tensor:
    """Zero for each function constraint; an empty vector without them."""
    if problem.inequality is None:
        return leaves(y)[0].new_zeros(0)
    return torch.zeros_like(problem.linearize(x, y).inequality_value)


def estimate_slope(lin: Linearization, k: int, refresh: int, current: float) -> float:
    """B, the largest eigenvalue of h_y h_y', computed again at fixed step numbers; 0 without function constraints."""
    if lin.problem.inequality is None or k % refresh != 0:
        return current
    space = lin.problem.y_space(lin.constraint)
    rows = torch.stack(
        [
            space.ravel(lin.inequality_vjp(unit)[1])
            for unit in torch.eye(len(lin.inequality_value)).to(lin.inequality_value)
        ]
    )
    return float(torch.linalg.matrix_norm(rows, 2)) ** 2


def lagrangian_gradient(lin: Linearization, multipliers: Tensor, *, only_x: bool = False) -> tuple[Vector, Any]:
    """The gradients in x and y of g + multipliers . h; y's is left out when it is not needed."""
    problem = lin.problem
    g_x = lin.lower_grad_x
    g_y = None if only_x else lin.lower_grad_y
    if problem.inequality is None:
        return g_x, g_y
    h_x, h_y = lin.inequality_vjp(multipliers)
    g_x = problem.x_space.add(g_x, h_x)
    return g_x, None if g_y is None else problem.y_space(lin.constraint).add(g_y, h_y)


def envelope_step(
    problem: Problem, state: Any, lin: Linearization, multipliers: Tensor, eta: float, gamma: float
) -> Vector:
    """theta+ = P_Y( theta - eta ( g_y(x, theta) + h_y(x, theta)' multipliers + (theta - y) / gamma ) )."""
    space = problem.y_space(lin.constraint)
    slope = problem.lower_grad(state.x, state.theta, lin.batch)
    if problem.inequality is not None:
        slope = space.add(slope, problem.linearize(state.x, state.theta, lin.batch).inequality_vjp(multipliers)[1])
    slope = space.add(slope, space.add(state.theta, state.y, -1.0), 1.0 / gamma)
    return problem.project(lin.constraint, space.add(state.theta, slope, -eta))
