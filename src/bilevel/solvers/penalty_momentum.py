"""The penalty method with momentum of Kwon, Kwon, Wright & Nowak (ICLR 2024), single loop.

"On penalty methods for nonconvex bilevel optimization and first-order stochastic approximation". With
sigma = 1/lambda, F is replaced by the penalty function (their psi_sigma)

    psi_sigma(x) = ( min over y in Y of sigma f + g  -  min over z in Y of g ) / sigma,
    grad psi_sigma = f_x(x, y_sigma) + ( g_x(x, y_sigma) - g_x(x, z*) ) / sigma,

whose value and gradient differ from those of F by O(sigma). Their single-loop algorithm moves all three at once:

    z_{k+1} = P_Y( z_k - gamma d_z )                     d_z estimates g_y(x, z)
    y_{k+1} = P_Y( y_k - gamma (sigma d_fy + d_gy) )     d_fy, d_gy estimate f_y and g_y at (x, y)
    x_{k+1} = P_X( x_k - alpha (d_fx + (d_gxy - d_gxz) / sigma) )

and each d is a recursive momentum estimate over batches (STORM, Cutkosky & Orabona 2019),

    d^k = grad(point_k; batch_k) + (1 - eta) ( d^{k-1} - grad(point_{k-1}; batch_k) ).

Without batches d is the gradient itself, and the second evaluation is left out. First-order only: no Hessian product.

Differs from the paper in: 1. y and z take plain projected steps, since g is strongly convex here; the paper, whose
lower levels need not be convex, follows proximal points of g and sigma f + g (a Moreau envelope) instead; 2. all six
estimates share one momentum weight, and steps are constant; 3. lambda may grow as a power of k.
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

Directions = dict[str, Vector]


@dataclass(kw_only=True, repr=False)
class PenaltyMomentumState(State):
    """The state of PenaltyMomentum; y is y_sigma's iterate, z that of the plain lower level."""

    z: Any = like_y(reset="keep")
    previous: Any = None  # {"x", "y", "z"} of the step before, with batches only
    directions: Any = None  # the six estimates d by name, with batches only
    curvature: float


@dataclass(frozen=True, kw_only=True)
class PenaltyMomentum(Settings):
    """First-order penalty method, single loop, with recursive momentum for batches.

    grad F ~ f_x(x, y) + lambda (g_x(x, y) - g_x(x, z)), y -> argmin f/lambda + g, z -> argmin g over Y.

    Parameters
    ----------
    penalty
        lambda = 1/sigma. The bias of the answer is O(1/lambda); a larger lambda amplifies noise and lag by lambda.
    growth
        lambda_k = penalty (1 + k)^growth.
    upper_step
        alpha, the step of x.
    lower_step
        gamma, the step of y and z; "auto" is 1/(2L), which leaves room for the curvature of sigma f.
    momentum
        eta in (0, 1]: the weight of a new batch; 1 is plain stochastic gradients.
    refresh
        L, the largest curvature of g in y, is estimated again after this number of steps.

    References
    ----------
    Kwon, Kwon, Wright & Nowak (2024), On penalty methods for nonconvex bilevel optimization and first-order stochastic
    approximation, ICLR.

    Examples
    --------
    >>> PenaltyMomentum(penalty=100.0).momentum
    0.1
    """

    needs: ClassVar[tuple[Need, ...]] = (PROJECTION, FIXED_SET)

    penalty: float = 20.0
    growth: float = setting(0.0, high=1.0, closed="both")
    upper_step: float = 0.1
    lower_step: float | Literal["auto"] = "auto"
    momentum: float = setting(0.1, high=1.0, closed="right")
    refresh: int = 100

    def init(self, problem: Problem, x: Vector, y: Vector, seeds: Seeds) -> PenaltyMomentumState:
        """y and z start together."""
        return PenaltyMomentumState(x=x, y=y, z=y, seeds=seeds, previous=None, directions=None, curvature=math.nan)

    def step(self, problem: Problem, state: PenaltyMomentumState) -> PenaltyMomentumState:
        """One step of z, y and x."""
        k = state.step
        batch = batch_of(problem, state.streams())
        point = {"x": state.x, "y": state.y, "z": state.z}
        curvature = state.curvature
        if self.lower_step == "auto":
            lin = problem.linearize(state.x, state.y, batch)
            curvature = estimate_curvature(lin, state, k, self.refresh)
        gamma = step_or(self.lower_step, 0.5 * safe_step(curvature))
        constraint = problem.constraint_at(state.x)
        space, x_space = problem.y_space(constraint), problem.x_space
        sigma = 1.0 / (self.penalty * (1.0 + k) ** self.growth)

        d = self._estimates(problem, state, point, batch)
        z = problem.project(constraint, space.add(state.z, d["g_z"], -gamma))
        y = problem.project(constraint, space.add(state.y, space.add(d["g_y"], d["f_y"], sigma), -gamma))
        h = x_space.add(d["f_x"], x_space.add(d["g_xy"], d["g_xz"], -1.0), 1.0 / sigma)
        x = upper_move(problem, state.x, h, self.upper_step)
        kept = problem.sampler is not None
        return replace(
            state, x=x, y=y, z=z, step=k + 1, curvature=curvature,
            previous=point if kept else None, directions=d if kept else None,
        )  # fmt: skip

    def _estimates(self, problem: Problem, state: PenaltyMomentumState, point: Any, batch: Any) -> Directions:
        new = _gradients(problem, point, batch)
        if state.previous is None or self.momentum == 1.0:
            return new
        old = _gradients(problem, state.previous, batch)
        add = problem.x_space.add  # the same arithmetic in both spaces
        return {name: add(new[name], add(state.directions[name], old[name], -1.0), 1.0 - self.momentum) for name in new}


def _gradients(problem: Problem, point: dict[str, Vector], batch: Any) -> Directions:
    """f_x, f_y, g_x and g_y at (x, y); g_x and g_y at (x, z)."""
    at_y = problem.linearize(point["x"], point["y"], batch)
    at_z = problem.linearize(point["x"], point["z"], batch)
    return {
        "f_x": at_y.upper_grad_x, "f_y": at_y.upper_grad_y, "g_xy": at_y.lower_grad_x, "g_y": at_y.lower_grad_y,
        "g_xz": at_z.lower_grad_x, "g_z": at_z.lower_grad_y,
    }  # fmt: skip
