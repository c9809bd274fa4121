"""Accelerated projected gradients on the lower level."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from . import tolerances
from ._krylov import largest_curvature
from .problem import Problem
from .spaces import Space, Vector, leaves


@dataclass(frozen=True)
class LowerSolution:
    """y*(x), its residual, the number of steps, and the largest curvature of g that the steps have shown."""

    y: Vector
    residual: float
    steps: int
    converged: bool
    curvature: float = math.nan


def descend(
    problem: Problem,
    x: Vector,
    y: Vector,
    *,
    tol: float | None,
    max_steps: int,
    scale: float = 0.0,
    length: float | None = None,
) -> LowerSolution:
    """Take careful steps from the feasible point y until the residual at a unit step is within tol.

    `length` is 1/L at y, when it is known.

    Without tol: until a step 1/L moves y by less than the fraction t = `tolerances.solved` of its length. If y* is 0,
    that may never happen; then a step shorter than t^2 `scale`, with `scale` a length of steps far from y*, is enough.
    """
    rule = _CarefulSteps(problem, x, y, tol, scale, length)
    if not rule.best.converged:
        _accelerated(problem, x, y, rule, max_steps)
    return rule.best


def solve_from(
    problem: Problem,
    x: Vector,
    y: Vector,
    *,
    curvature: float,
    tol: float | None,
    max_steps: int,
    accelerated: bool = True,
    batch: Any = None,
    slope: Vector | None = None,
) -> LowerSolution:
    """Take steps 1/L from the feasible point y until the gradient mapping |z - P_Y(z - grad/L)| L is within tol.

    `curvature` is L; it grows whenever two successive gradients show a larger one. A start that is good enough costs
    one gradient and one projection; `slope` is grad_y g at the start, if it is known. Without a tolerance `max_steps`
    steps are taken. For double loops, which know L and solve a sequence of similar lower levels.
    """
    rule = _WarmSteps(problem.y_space(problem.constraint_at(x)), y, curvature, tol)
    _accelerated(problem, x, y, rule, max_steps, momentum=accelerated, batch=batch, slope=slope)
    return rule.last


def _accelerated(
    problem: Problem,
    x: Vector,
    y: Vector,
    rule: _CarefulSteps | _WarmSteps,
    max_steps: int,
    *,
    momentum: bool = True,
    batch: Any = None,
    slope: Vector | None = None,
) -> None:
    """y <- P_Y(z - step grad_y g(x, z)), z <- y + momentum; the rule chooses steps, and says when to stop or restart.

    Beck & Teboulle (2009) with the gradient restart of O'Donoghue & Candes (2015).
    """
    constraint = problem.feasible_set(x)
    space = problem.y_space(constraint)
    z, t, safe, previous = y, 1.0, y, None  # z: the extrapolated point; safe: the last point that was no overshoot
    for k in range(1, max_steps + 1):
        gradient, slope = problem.lower_grad(x, z, batch) if slope is None else slope, None
        step = rule.step(z, gradient, previous)
        if step is None:  # far steeper here than the last step assumed: go back
            y = z = safe
            t, previous = 1.0, None
            continue
        previous, safe = (z, gradient), y
        y_next = problem.project(constraint, space.add(z, gradient, -step))
        jump = space.add(z, y_next, -1.0)
        verdict = rule.after_step(y_next, float(space.norm(jump)) / step, k, k == max_steps)
        if verdict == "stop":
            return
        move = space.add(y_next, y, -1.0)
        if verdict == "restart" or not momentum or float(space.dot(jump, move)) > 0:  # the momentum points uphill
            z, t = y_next, 1.0
        else:
            t_next = (1.0 + (1.0 + 4.0 * t * t) ** 0.5) / 2.0
            z, t = space.add(y_next, move, (t - 1.0) / t_next), t_next
        y = y_next


class _WarmSteps:
    """Steps 1/L, L the largest curvature seen; stop at the first point whose gradient mapping is within tol."""

    def __init__(self, space: Space, y: Vector, curvature: float, tol: float | None) -> None:
        self.space, self.curvature, self.tol, self.eps = space, curvature, tol, _eps(y)
        self.last = LowerSolution(y, math.inf, 0, False, curvature)

    def step(self, z: Vector, gradient: Vector, previous: tuple[Vector, Vector] | None) -> float:
        if previous is not None:
            space, (z_old, gradient_old) = self.space, previous
            change = float(space.norm(space.add(gradient, gradient_old, -1.0)))
            moved = float(space.norm(space.add(z, z_old, -1.0)))
            if change > self.curvature * moved and not self._is_rounding(z, gradient, moved, change):
                self.curvature = change / moved  # a lower bound on L
        return safe_step(self.curvature)

    def _is_rounding(self, z: Vector, gradient: Vector, moved: float, change: float) -> bool:
        """Whether z moved in its last digits only, as at a solved point, or its gradient did."""
        norm, eps = self.space.norm, self.eps
        return moved <= 1e2 * eps * float(norm(z)) or change <= 1e3 * eps * float(norm(gradient))

    def after_step(self, y: Vector, residual: float, k: int, last: bool) -> str:
        done = self.tol is not None and (residual <= self.tol or residual <= self._rounding(y))
        self.last = LowerSolution(y, residual, k, done, self.curvature)
        return "stop" if done else "go on"

    def _rounding(self, y: Vector) -> float:
        """The residual that rounding of y leaves."""
        return 4.0 * self.eps * float(self.space.norm(y)) / safe_step(self.curvature)


class _CarefulSteps:
    """Steps 1/L from Lanczos, undone where they overshoot; they stop when the residual is within its tolerance."""

    def __init__(
        self, problem: Problem, x: Vector, y: Vector, tol: float | None, scale: float, length: float | None
    ) -> None:
        self.problem, self.x, self.tol, self.eps, self.stalls = problem, x, tol, _eps(y), 0
        self.share, self.scale = tolerances.solved(leaves(y)[0].dtype), scale
        self.space = problem.y_space(problem.feasible_set(x))
        self.length = self._first(y) if length is None else length
        self.best = self._look_at(y, 0)

    def _look_at(self, y: Vector, k: int) -> LowerSolution:
        residual = residual_at(self.problem, self.x, y)
        moved = residual if self.tol is not None else residual_at(self.problem, self.x, y, self.length)
        return LowerSolution(y, residual, k, moved <= self._allowed(y, self.share), 1.0 / self.length)

    def _allowed(self, y: Vector, share: float) -> float:
        """The largest residual that counts as solved: at a unit step, or without a tolerance at a step 1/L."""
        return self.tol if self.tol is not None else self.share * max(float(self.space.norm(y)), share * self.scale)

    def _first(self, y: Vector) -> float:
        return safe_step(largest_curvature(self.problem.linearize(self.x, y)))

    def step(self, z: Vector, gradient: Vector, previous: tuple[Vector, Vector] | None) -> float | None:
        seen = self.length if previous is None else self._seen(z, gradient, *previous)
        if not self.space.is_finite(gradient) or seen < 0.5 * self.length:
            self.length = max(seen, 0.1 * self.length) if seen > 0 else 0.1 * self.length
            return None
        self.length = min(self.length, seen)
        return self.length

    def _seen(self, z: Vector, gradient: Vector, z_old: Vector, gradient_old: Vector) -> float:
        """|dz| / |dgrad|, an upper bound on 1/L from two gradients; infinite if rounding hides it."""
        space = self.space
        dz, dg = space.add(z, z_old, -1.0), space.add(gradient, gradient_old, -1.0)
        change = float(space.norm(dg))
        if not change < math.inf:
            return 0.0
        # Below the rounding error of a gradient the quotient says nothing.
        if change <= 1e3 * self.eps * float(space.norm(gradient)):
            return math.inf
        return float(space.norm(dz)) / change

    def after_step(self, y: Vector, mapping: float, k: int, last: bool) -> str:
        floor = 8.0 * self.eps * float(self.space.norm(y))
        moved = mapping if self.tol is not None else mapping * self.length
        if not (moved <= self._allowed(y, self.share) or mapping * self.length <= floor or last):
            return "go on"
        found = self._look_at(y, k)
        self.stalls = 0 if found.residual < 0.5 * self.best.residual else self.stalls + 1
        self.best = found if found.residual < self.best.residual else self.best
        if found.converged or self.stalls == 3 or last:
            return "stop"
        self.length = self._first(y)
        return "restart"


def safe_step(curvature: float) -> float:
    """1/L, or 1 where g has no curvature."""
    return 1.0 / curvature if curvature > 0 else 1.0


def _eps(y: Vector) -> float:
    return torch.finfo(leaves(y)[0].dtype).eps


def residual_at(problem: Problem, x: Vector, y: Vector, step: float = 1.0, slope: Vector | None = None) -> float:
    """|y - P_Y(y - step grad_y g)|; `slope` is grad_y g, when it is known."""
    constraint = problem.feasible_set(x)
    space = problem.y_space(constraint)
    slope = problem.lower_grad(x, y) if slope is None else slope
    moved = problem.project(constraint, space.add(y, slope, -step))
    return float(space.norm(space.add(y, moved, -1.0)))
