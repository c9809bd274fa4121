"""V-PBGD: penalty-based bilevel gradient descent on the value function (Shen & Chen, ICML 2023).

    min over x and y in Y of   f(x, y) + gamma (g(x, y) - v(x)),     v(x) = min over w in Y of g(x, w)

    w_{k+1}  T projected-gradient steps on g(x_k, .) from w_k
    y_{k+1} = P_Y( y_k - (grad_y f + gamma_k grad_y g(x_k, y_k)) / (L_f + gamma_k L) )
    x_{k+1} = P_X( x_k - step (grad_x f + gamma_k (grad_x g(x_k, y_{k+1}) - grad_x g(x_k, w_{k+1}))) )

The gradient of v is grad_x g(x, y*(x)), so that w is not differentiated and no second derivative is needed. The
minimiser of the penalised problem is O(1/gamma) away from the bilevel one; gamma_k increases to gamma. Both y and w are
projected.

Differs from the paper's algorithm in: 1. y takes its steps before x instead of with it, and may take several; 2. the
step of y is 1/(L_f + gamma_k L) from estimated curvatures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from .._checks import Settings, setting
from .._projected_gradient import safe_step, solve_from
from ..errors import InvalidInputError
from ..linearization import Linearization
from ..problem import Problem
from ..random import Seeds
from ..spaces import Vector
from .base import FIXED_SET, PROJECTION, Need, State, batch_of, estimate_curvature, like_y, of_lower_level, upper_move


@dataclass(kw_only=True, repr=False)
class VPBGDState(State):
    """The state of V-PBGD."""

    auxiliary: Any = like_y(reset="y")  # w
    curvature: float = math.nan  # L of g in y
    upper_curvature: float = of_lower_level(default=math.nan)  # the largest |d grad_y f| / |dy| seen
    stats: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class VPBGD(Settings):
    """First-order penalty method for any set with a projection; its bias is O(1/gamma).

    Parameters
    ----------
    gamma
        The final penalty; a larger one has less bias and worse conditioning.
    first_gamma, ramp
        gamma_k grows linearly from first_gamma to gamma over `ramp` steps (ramp=0: gamma from the start).
    upper_step
        The step of x.
    lower_step
        The first length of a lower-level step; "auto" for 1/L. A longer step is shortened when two gradients show that
        it overshoots.
    lower_steps
        T, the number of steps of w per step of x.
    penalty_steps
        Steps of y per step of x. The paper has 1; y then lags behind x, and x needs a step of the order of 1/(gamma L).
    refresh
        The curvature of g is estimated again after this number of steps.

    Examples
    --------
    >>> VPBGD(gamma=10.0, first_gamma=1.0, ramp=9).penalty(3)
    4.0
    """

    needs: ClassVar[tuple[Need, ...]] = (PROJECTION, FIXED_SET)

    gamma: float = 10.0
    first_gamma: float = 1.0
    ramp: int = setting(100, least=0)
    upper_step: float = 0.1
    lower_step: float | Literal["auto"] = "auto"
    lower_steps: int = 5
    penalty_steps: int = 5
    refresh: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first_gamma > self.gamma:
            raise InvalidInputError(
                f"first_gamma is {self.first_gamma:g}, above gamma {self.gamma:g}: the penalty ramps up"
            )

    def penalty(self, k: int) -> float:
        """gamma_k."""
        if k >= self.ramp:
            return float(self.gamma)
        return self.first_gamma + (self.gamma - self.first_gamma) * k / self.ramp

    def init(self, problem: Problem, x: Vector, y: Vector, seeds: Seeds) -> VPBGDState:
        """w starts at y."""
        state = VPBGDState(x=x, y=y, seeds=seeds, auxiliary=y)
        lin = problem.linearize(x, y, batch_of(problem, state.streams()))
        state.curvature = estimate_curvature(lin, state, 0, self.refresh, self.lower_step)
        return state

    def step(self, problem: Problem, state: VPBGDState) -> VPBGDState:
        """w, then y, then x."""
        k = state.step + 1
        x, gamma = state.x, self.penalty(k)
        constraint = problem.constraint_at(x)
        space, x_space = problem.y_space(constraint), problem.x_space
        batch = batch_of(problem, state.streams(k))
        lin = problem.linearize(x, state.y, batch)
        curvature = estimate_curvature(lin, state, k, self.refresh, self.lower_step)
        solved = solve_from(
            problem, x, state.auxiliary, curvature=curvature, tol=None, max_steps=self.lower_steps, accelerated=False,
            batch=batch,
        )  # fmt: skip
        w, curvature = solved.y, solved.curvature

        upper_curvature = state.upper_curvature
        if math.isnan(upper_curvature):
            upper_curvature = self._probe(problem, lin, curvature)
        for _ in range(self.penalty_steps):
            total = space.add(lin.upper_grad_y, lin.lower_grad_y, gamma)
            y = problem.project(constraint, space.add(lin.y, total, -1.0 / (upper_curvature + gamma * curvature)))
            previous, lin = lin, problem.linearize(x, y, batch)
            upper_curvature = max(upper_curvature, _slope(problem, previous, lin))

        at_w = problem.linearize(x, w, batch)
        excess = x_space.add(lin.lower_grad_x, at_w.lower_grad_x, -1.0)
        h = x_space.add(lin.upper_grad_x, excess, gamma)
        return VPBGDState(
            x=upper_move(problem, x, h, self.upper_step), y=lin.y, step=k, seeds=state.seeds, auxiliary=w,
            curvature=curvature, upper_curvature=upper_curvature,
            stats={"gamma": gamma, "gap": float(lin.lower_value) - float(at_w.lower_value)},
        )  # fmt: skip

    def _probe(self, problem: Problem, lin: Linearization, curvature: float) -> float:
        """A first L_f from one projected step along -grad_y f; L when f is flat there."""
        space = problem.y_space(lin.constraint)
        y = problem.project(lin.constraint, space.add(lin.y, lin.upper_grad_y, -safe_step(curvature)))
        return _slope(problem, lin, problem.linearize(lin.x, y, lin.batch)) or curvature or 1.0


def _slope(problem: Problem, a: Linearization, b: Linearization) -> float:
    """|grad_y f(b) - grad_y f(a)| / |b - a|, 0 when the points agree."""
    space = problem.y_space(a.constraint)
    moved = float(space.norm(space.add(b.y, a.y, -1.0)))
    if moved <= 1e-8 * (1.0 + float(space.norm(a.y))):
        return 0.0
    return float(space.norm(space.add(b.upper_grad_y, a.upper_grad_y, -1.0))) / moved
