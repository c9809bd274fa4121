"""When a run of `minimize` may stop, and how its last point is judged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .._krylov import largest_curvature
from .._projected_gradient import residual_at, safe_step
from ..errors import BilevelError
from ..lower import LowerSolution, is_rounding, solve_lower
from ..newton import Evaluation, LowerLevel, Smoothing, find_descent, flat, lower_level
from ..newton.descent_test import PARTS
from ..problem import Problem
from ..sets import FreeSpace
from ..sets.base import ConvexSet
from ..solvers import SmoothedBFGS, State
from ..solvers.base import unmet
from ..solvers.smoothed_bfgs import ENDLESS
from ..spaces import Vector, leaves
from ..tolerances import lower_residual as lower_tolerance
from ..tolerances import rounding
from .solution import Record

SOLVED = 1e-2
"""A stationarity measure counts only if its linear system was solved to this relative residual."""
PROBE = 1e-3
"""Before a point counts as stationary, F is evaluated at this distance from x, relative to |x| and to max(|x|, 1)."""
LONGER_STEPS = 20
"""The steps, each four times as long as the last, of a line search that tests whether F still falls."""
CERTIFICATE_SAMPLES = 50
"""The number of Jacobians of a certificate that decides whether to stop: eps is a bound with any number of them."""
SHORT, SOLVING_STEPS, HIGHER = 20, 500, 1e-3
"""A run of at least this many steps ends above its start if F, computed with at most this many lower-level steps, is
higher by this fraction."""


def stationarity_of(problem: Problem, x: Vector, h: Vector) -> float:
    """|x - P_X(x - h)|, which is |h| when x is free."""
    space = problem.x_space
    if isinstance(problem.upper_constraint, FreeSpace):
        return float(space.norm(h))  # also where x is so large that x - h is x
    moved = problem.project_x(space.add(x, h, -1.0))
    return float(space.norm(space.add(x, moved, -1.0)))


def falls_without_end(problem: Problem, state: State, history: Sequence[Record]) -> bool:
    """Whether |x|, or the decrease of f, is so large that F seems to be unbounded below."""
    first, last = (history[0].upper, history[-1].upper) if history else (0.0, 0.0)
    return float(problem.x_space.norm(state.x)) > ENDLESS or first - last > ENDLESS * (1.0 + abs(first))


def lower_is_solved(problem: Problem, state: State, tol: float, residual: float) -> bool:
    """Whether a projected step 1/L moves y by at most tol |y|; as y* may be 0, y = 0 up to rounding is enough."""
    x, y, space = state.x, state.y, problem.y_space(problem.constraint_at(state.x))
    lin, known = problem.linearize(x, y), getattr(state, "curvature", 0.0)
    curvature = known if known > 0 else largest_curvature(lin)
    if residual_at(problem, x, y, safe_step(curvature), lin.lower_grad_y) <= tol * float(space.norm(y)):
        return True
    return is_rounding(problem, x, LowerSolution(y, residual, 0, False, curvature))


def no_descent_near(
    problem: Problem,
    state: State,
    tol: float,
    delta: float | None = None,
    *,
    size: float = 1.0,
    start: float | None = None,
) -> bool:
    """Whether one-sided differences of F confirm that x is stationary: at a kink, h = 0 is not sufficient.

    Not where g is nonconvex in y: F may then be lower at another solution of the lower level. With delta, the
    differences are taken at that distance: closer to a minimum at a kink, F still decreases. `size` is what slopes of F
    are compared with; with F at the start, no line search along the hypergradient may lower F by more than tol of the
    decrease since then.
    """
    x = flat(state.x).double()
    if unmet(SmoothedBFGS, problem, problem.constraint_at(state.x), state.y):
        return True  # F cannot be evaluated by Newton steps

    def level(smoothing: Smoothing | None) -> LowerLevel:
        return lower_level(problem, state.x, state.y, smoothing)

    exact, constraint, far = level(None), problem.upper_constraint, float(x.norm())
    here = exact.evaluate(x, relative=1e-10)
    if exact.nonconvex or not here.ok:
        return False
    lengths = {delta} if delta else {PROBE * (far or 1.0), PROBE * max(far, 1.0)}  # near 0, |x| says little
    if start is not None and _falls(exact, constraint, here, tol * abs(start - here.value), min(lengths)):
        return False
    for length in sorted(lengths):
        how: dict[str, Any] = {"length": length, "gain": tol * size * length, "parts": (1.0,) if delta else PARTS}
        if find_descent(level, constraint, here, **how) is not None:
            return False
    return True


def _falls(exact: LowerLevel, constraint: ConvexSet, here: Evaluation, allowed: float, length: float) -> bool:
    """Whether F falls by more than `allowed` along minus its gradient; the first step predicts twice as much.

    The prediction is by the slope of the projected path over `length`: X may hold back most of the gradient.
    """

    def at(step: float) -> Tensor:
        return flat(constraint.project(exact.tree_x(here.x - step * here.gradient))).double()

    size = float(here.gradient.norm())
    short = length / size if size > 0 else math.inf
    slope = float(here.gradient @ (here.x - at(short))) / short if short < math.inf else 0.0
    allowed += 2 * max(here.error, rounding(here.x.dtype) * abs(here.value))
    step = 2 * allowed / slope if slope > 0 else math.inf
    for _ in range(LONGER_STEPS if step < math.inf else 0):
        there = exact.evaluate(at(step), 0.1 * allowed, here)
        if not there.ok or there.value >= here.value:
            return False
        if there.value + there.error < here.value - allowed:
            return True
        step *= 4
    return False


def is_certified(problem: Problem, state: State, delta: float, tol: float) -> bool:
    """Whether a certificate and the error of its lower level are within tol, and F does not decrease at delta."""
    from ..diagnostics import certificate

    found = certificate(problem, state.x, delta, state.y, samples=CERTIFICATE_SAMPLES)
    return found.valid and max(found.eps, found.lower_error) <= tol and no_descent_near(problem, state, tol, delta)


def ends_above_start(
    problem: Problem, start: tuple[Vector, Vector] | None, state: State, history: Sequence[Record]
) -> bool:
    """Whether F, after a few lower-level steps, is higher than at the start; False for short or resumed runs.

    With a sampler, whose steps are cheaper than evaluations of all the data, this is computed only if f is higher.
    """
    if start is None or state.step < SHORT or problem.inequality is not None:
        return False
    first, values = history[0], []
    if problem.sampler is not None and history[-1].upper <= first.upper:
        return False
    tol = max(1e-3 * first.lower_residual, lower_tolerance(leaves(state.y)[0].dtype))
    for x, y in (start, (state.x, state.y)):
        try:
            solved = solve_lower(problem, x, y, tol=tol, max_steps=min(SOLVING_STEPS, max(SHORT, state.step // 4)))
        except BilevelError:
            return False
        if not solved.converged:
            return False
        values.append(float(problem.linearize(x, solved.y).upper_value))
    return values[1] > values[0] + HIGHER * max(abs(values[0]), abs(first.upper)) + 1e-12
