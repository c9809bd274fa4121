"""What the double loops share: warm-started lower levels, and upper steps that are accepted or taken back.

    plain         y <- P_Y(y - grad_y g(x, y) / L)
    accelerated   the same with the momentum of Beck & Teboulle (2009) and the restart of O'Donoghue & Candes (2015)

One gradient and one projection per step; L comes from the state of the run, where it is estimated once in a while.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..curvature import largest_curvature
from ..errors import Incompatible
from ..problem import Linearization, Problem
from ..spaces import Space, Vector, leaves
from .base import State, check_choice, check_positive


class InnerSolution(NamedTuple):
    """y, an upper bound on |y - P_Y(y - grad_y g)| there, the steps taken, and the curvature that was safe."""

    y: Vector
    residual: float
    steps: int
    curvature: float


def estimate_curvature(
    lin: Linearization, state: State, k: int, refresh: int, current: float, lower_step: float | str = "auto"
) -> float:
    """L, or 1 over a given step; estimated again at fixed step numbers so that a resumed run has the same bits."""
    if k % refresh:
        return current
    return largest_curvature(lin, noise=state.noise(k)) if isinstance(lower_step, str) else 1.0 / lower_step


def safe_step(curvature: float) -> float:
    """1/L, or 1 where g has no curvature."""
    return 1.0 / curvature if curvature > 0 else 1.0


def projected_steps(
    problem: Problem, x: Vector, y: Vector, *, count: int, curvature: float, batch: Any = None
) -> tuple[Vector, float]:
    """`count` plain projected-gradient steps of length 1/L on g(x, .), and L, grown when the gradients show more."""
    constraint = problem.constraint_at(x)
    space, eps = problem.y_space(constraint), torch.finfo(leaves(y)[0].dtype).eps
    previous = None
    for _ in range(count):
        gradient = problem.lower_grad(x, y, batch)
        if previous is not None:
            curvature = max(curvature, _curvature_between(space, y, gradient, *previous, eps))
        previous = (y, gradient)
        y = problem.project(constraint, space.add(y, gradient, -safe_step(curvature)))
    return y, curvature


def solve_to(
    problem: Problem,
    x: Vector,
    y: Vector,
    *,
    tol: float,
    max_steps: int,
    curvature: float,
    accelerated: bool = True,
    batch: Any = None,
    slope: Vector | None = None,
) -> InnerSolution:
    """Steps from the feasible point y until the gradient mapping |z - P_Y(z - grad/L)| L is within tol.

    L grows whenever two successive gradients show a larger curvature; a start that is good enough costs one
    gradient and one projection. `slope` is grad_y g at the start, when it is known.
    """
    constraint = problem.constraint_at(x)
    space = problem.y_space(constraint)
    eps = torch.finfo(leaves(y)[0].dtype).eps
    z, t, previous, residual = y, 1.0, None, math.inf
    for k in range(1, max_steps + 1):
        gradient, slope = problem.lower_grad(x, z, batch) if slope is None else slope, None
        if previous is not None:
            curvature = max(curvature, _curvature_between(space, z, gradient, *previous, eps))
        previous = (z, gradient)
        step = safe_step(curvature)
        y_next = problem.project(constraint, space.add(z, gradient, -step))
        jump = space.add(z, y_next, -1.0)
        residual = float(space.norm(jump)) / step
        # Below the rounding of y the residual cannot fall.
        if residual <= max(tol, 4.0 * eps * float(space.norm(y_next)) / step):
            return InnerSolution(y_next, residual, k, curvature)
        move = space.add(y_next, y, -1.0)
        if not accelerated or float(space.dot(jump, move)) > 0:  # the momentum points uphill: restart
            z, t = y_next, 1.0
        else:
            t_next = (1.0 + (1.0 + 4.0 * t * t) ** 0.5) / 2.0
            z, t = space.add(y_next, move, (t - 1.0) / t_next), t_next
        y = y_next
    return InnerSolution(y, residual, max_steps, curvature)


def _curvature_between(
    space: Space, z: Vector, gradient: Vector, z_old: Vector, gradient_old: Vector, eps: float
) -> float:
    """|dgrad| / |dz|, a lower bound on L; 0 when rounding hides it."""
    change = float(space.norm(space.add(gradient, gradient_old, -1.0)))
    moved = float(space.norm(space.add(z, z_old, -1.0)))
    # At a point that is solved already, z moves in its last digits, and the quotient would be one of rounding errors.
    if moved <= 1e2 * eps * float(space.norm(z)) or change <= 1e3 * eps * float(space.norm(gradient)):
        return 0.0
    return change / moved


LARGEST_GROWTH = 1e6
"""Adaptive steps stop growing at so many times the first one: at a stationary point every trial is accepted."""


@dataclass(frozen=True, kw_only=True)
class StepRule:
    """How far x moves along -h.

    "fixed": always `first`. "adaptive" (after Pedregosa 2016, section 5): a trial that does not lower
    f(x, y(x)) by `decrease` |dx|^2 / step, up to what the inexact lower levels can hide, is taken back and the step
    shrinks; otherwise it grows.
    """

    kind: str
    first: float
    growth: float = 1.5
    shrink: float = 0.5
    decrease: float = 0.1

    def accepts(self, drop: float, moved: float, step: float, slack: float) -> bool:
        """Whether a trial is kept."""
        return self.kind == "fixed" or drop >= self.decrease * moved * moved / step - slack

    def following(self, step: float, accepted: bool) -> float:
        """The step after this one."""
        if self.kind == "fixed":
            return step
        return min(step * self.growth, LARGEST_GROWTH * self.first) if accepted else step * self.shrink


def check_step_rule(kind: Any, step: Any) -> None:
    """The settings of a `StepRule`."""
    check_choice("step_rule", kind, ("adaptive", "fixed"))
    check_positive("upper_step", step)


def check_sampler(problem: Problem, kind: str, name: str) -> None:
    """Values of f on different batches cannot be compared."""
    if kind == "adaptive" and problem.sampler is not None:
        raise Incompatible(
            f"{name}(step_rule='adaptive') compares values of f from step to step, which batches do not allow: "
            "use step_rule='fixed' with a problem that has a sampler"
        )


def rounding(lin: Linearization) -> float:
    """How far rounding may move f."""
    return 10.0 * torch.finfo(leaves(lin.y)[0].dtype).eps * abs(float(lin.upper_value))


def hidden_change(lin: Linearization, adjoint: Vector, residual: float, curvature: float) -> float:
    """How far f(x, y) may be from F(x) when y is solved to `residual`: (|w| + |f_y|/L) residual, to first order.

    With T(y) = P_Y(y - grad_y g/L), y - y* = [I - T']^{-1} (y - T(y)) and |y - T(y)| <= residual/L, so that
    f_y . (y - y*) <= |u| residual/L with u = f_y + (I - G_yy/L) L w. Here |w| carries the 1/mu of an
    ill-conditioned g, exactly in the directions in which f feels it.
    """
    space = lin.problem.y_space(lin.constraint)
    return (float(space.norm(adjoint)) + float(space.norm(lin.upper_grad_y)) * safe_step(curvature)) * residual


def upper_move(problem: Problem, x: Vector, h: Vector, step: float) -> Vector:
    """P_X(x - step h)."""
    return problem.upper_constraint.project(problem.x_space.add(x, h, -step))


def moved_by(problem: Problem, a: Vector, b: Vector) -> float:
    """|a - b| in x."""
    return float(problem.x_space.norm(problem.x_space.add(a, b, -1.0)))
