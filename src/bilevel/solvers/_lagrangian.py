"""Common parts of `BiCGAFFA` and `LVHBA`: penalties on the Lagrangian L(x, y, z) = g + z . h of a lower level.

Steps called "auto" follow the curvature of the Lagrangian. With L the largest curvature of g in y, K that of
sum_i h_i (each h_i is convex, so z . h'' <= max_i z_i K), and B the largest eigenvalue of h_y h_y',

    theta, a minimiser over y:       1 / ( L + K max z + 1/gamma_1 )
    a multiplier:                    1 / ( gamma_1 B + 1/gamma_2 )

L, K and B are estimated at fixed step numbers, and B grows when a step shows more; z enters with its value of the step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from .._checks import Settings, setting
from .._krylov import largest_curvature, largest_eigenvalue
from ..linearization import Linearization
from ..problem import Problem
from ..spaces import Vector, leaves
from .base import FIXED_SET, PROJECTION, Need, State, like_y, step_or


@dataclass(kw_only=True, repr=False)
class LagrangianState(State):
    """The state of `BiCGAFFA`, whose multipliers are z, and the fields that `LVHBA` shares."""

    theta: Any = like_y(reset="keep")
    multipliers: Any  # of shape (m,)
    curvature: float = math.nan  # L
    bend: float = 0.0  # K
    slope: float = 0.0  # B

    def curvature_with(self, multipliers: Tensor) -> float:
        """L + K max z, the largest curvature of g + z . h in y."""
        largest = float(multipliers.max()) if multipliers.numel() else 0.0
        return max(self.curvature, 0.0) + self.bend * largest


@dataclass(frozen=True, kw_only=True)
class LagrangianPenalty(Settings):
    """The settings of both methods.

    Parameters
    ----------
    penalty, growth
        c and p of c_k = c (1 + k)^p; p in (0, 0.5) in the theory. The bias is O(1/c_k).
    gamma, multiplier_gamma
        gamma_1 and gamma_2, the widths of the regularisation of y and of the multipliers.
    largest_multiplier
        r; it must exceed the lower level's multipliers.
    multiplier_step, envelope_step
        The steps of the multipliers and of theta, or "auto".
    refresh
        The curvatures behind "auto" are estimated again after this number of steps (B costs one product per
        constraint).
    """

    needs: ClassVar[tuple[Need, ...]] = (PROJECTION, FIXED_SET)
    takes_inequality: ClassVar[bool] = True

    penalty: float = 1.0
    growth: float = setting(0.25, high=1.0, closed="both")
    gamma: float = 1.0
    multiplier_gamma: float = 1.0
    largest_multiplier: float = 1e3
    multiplier_step: float | Literal["auto"] = "auto"
    envelope_step: float | Literal["auto"] = "auto"
    refresh: int = 100

    def penalty_at(self, k: int) -> float:
        """c_k."""
        return self.penalty * (1.0 + k) ** self.growth

    def measured(self, lin: Linearization, state: Any, own_step: float | str) -> Any:
        """The state with L, K and B of this step, if an "auto" step needs them; `own_step` is the setting of the
        method.
        """
        found, with_h = {}, lin.problem.inequality is not None
        if state.step % self.refresh == 0:
            if "auto" in (own_step, self.envelope_step):
                found["curvature"] = largest_curvature(lin, streams=state.streams())
                found["bend"] = _bend(lin, state) if with_h else 0.0
            if with_h and "auto" in (own_step, self.multiplier_step):
                found["slope"] = _slope(lin)
        return replace(state, **found)

    def with_theta(self, before: Linearization, state: Any) -> Any:
        """theta+ = P_Y( theta - eta ( g_y(x, theta) + h_y(x, theta)' z + (theta - y) / gamma_1 ) ) from the old theta.

        The new state has a B of at least |h_y' z|^2 / |z|^2, which the step shows.
        """
        problem, theta, z, slope = before.problem, before.y, state.multipliers, state.slope
        space = problem.y_space(before.constraint)
        eta = step_or(self.envelope_step, 1.0 / (state.curvature_with(z) + 1.0 / self.gamma))
        gradient = problem.lower_grad(before.x, theta, before.batch)
        if problem.inequality is not None:
            pull, length = before.inequality_vjp(z)[1], float(z.norm())
            gradient = space.add(gradient, pull)
            slope = max(slope, (float(space.norm(pull)) / length) ** 2 if length > 0 else 0.0)
        gradient = space.add(gradient, space.add(theta, state.y, -1.0), 1.0 / self.gamma)
        return replace(state, theta=problem.project(before.constraint, space.add(theta, gradient, -eta)), slope=slope)

    def multiplier_step_at(self, state: LagrangianState) -> float:
        """eta_z, or beta_z."""
        return step_or(self.multiplier_step, 1.0 / (self.gamma * state.slope + 1.0 / self.multiplier_gamma))


def no_multipliers(problem: Problem, x: Vector, y: Vector) -> Tensor:
    """Zero for each function constraint; an empty vector without them."""
    if problem.inequality is None:
        return leaves(y)[0].new_zeros(0)
    return torch.zeros_like(problem.linearize(x, y).inequality_value)


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


def _bend(lin: Linearization, state: State) -> float:
    """K, the largest eigenvalue of sum_i h_i'' in y."""
    ones = torch.ones_like(lin.inequality_value)
    space = lin.problem.y_space(lin.constraint)
    value = largest_eigenvalue(lambda v: lin.inequality_hvp(ones, v), lin.y, space, streams=state.streams())
    return max(value, 0.0)


def _slope(lin: Linearization) -> float:
    """B, the largest eigenvalue of h_y h_y'."""
    space = lin.problem.y_space(lin.constraint)
    units = torch.eye(len(lin.inequality_value)).to(lin.inequality_value)
    rows = torch.stack([space.ravel(lin.inequality_vjp(unit)[1]) for unit in units])
    return float(torch.linalg.matrix_norm(rows, 2)) ** 2
