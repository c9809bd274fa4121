"""The lower level solved: y*(x) by accelerated projected gradient, and F(x) = f(x, y*(x))."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import tolerances
from ._checks import (
    call_function,
    check_count,
    check_finite,
    check_lower_start,
    check_number,
    check_problem,
    check_vector,
)
from ._derivative_check import warn_of_flaws
from .curvature import largest_curvature
from .errors import LowerLevelWarning, NonFiniteError
from .linearization import Costs
from .problem import Problem
from .spaces import Space, Vector, leaves, tree_map


@dataclass(frozen=True)
class LowerSolution:
    """y*(x), the residual it was solved to, the steps it took, and the largest curvature of g that they have shown."""

    y: Vector
    residual: float
    steps: int
    converged: bool
    curvature: float = math.nan


def lower_residual(problem: Problem, x: Vector, y: Vector) -> float:
    """|y - P_Y(y - grad_y g(x, y))|: zero exactly at y*(x).

    Parameters
    ----------
    problem
        f, g and the set.
    x, y
        The point: tensors, or dictionaries of tensors, of any shape.

    Returns
    -------
    float
        The Euclidean norm over all entries of y.

    References
    ----------
    Shi, Chang & Gu (2024), the paper of DMLCBO, section 2.3: y*(x) is the fixed point of the projected gradient step.

    Examples
    --------
    >>> import bilevel, torch
    >>> problem = bilevel.Problem(lambda x, y: y.sum() + x, lambda x, y: (y - x).square().sum() / 2)
    >>> lower_residual(problem, torch.tensor(1.0), torch.zeros(4))
    2.0
    """
    check_problem(problem)
    x, y = (tree_map(Tensor.detach, check_vector(name, point)) for name, point in (("x", x), ("y", y)))
    call_function(uncounted(problem).linearize(x, y), "lower", "x, y")
    residual = _residual(problem, x, y)
    if not math.isfinite(residual):
        raise NonFiniteError(f"the residual at y of size {_size(y):.3g} is {residual}: check g, or use a wider dtype")
    return residual


def _residual(problem: Problem, x: Vector, y: Vector) -> float:
    constraint = problem.feasible_set(x)
    space = problem.y_space(constraint)
    moved = problem.project(constraint, space.add(y, problem.lower_grad(x, y), -1.0))
    return float(space.norm(space.add(y, moved, -1.0)))


def solve_lower(
    problem: Problem,
    x: Vector,
    y0: Vector | None = None,
    *,
    tol: float | None = None,
    max_steps: int = 20_000,
) -> LowerSolution:
    """y*(x) = argmin over y in Y of g(x, y), by accelerated projected gradient with restarts.

    Beck & Teboulle (2009) with the gradient restart of O'Donoghue & Candes (2015). The step is 1/L from
    Lanczos steps; if two successive gradients show a far larger curvature, the last step is undone and shortened.

    Parameters
    ----------
    problem
        f, g and the set.
    x
        The upper variable, a tensor or a dictionary of tensors of any shape.
    y0
        The starting point, of the shape of y; default `problem.y0`.
    tol
        The tolerance on the residual |y - P_Y(y - grad_y g)|; default 1e-10 in float64, 2e-5 in float32.
    max_steps
        The maximal number of gradient steps; the result says whether the tolerance was met.

    Returns
    -------
    LowerSolution
        `y`, of the shape of y0, with its `residual`, the `steps` taken and whether it `converged`.

    Examples
    --------
    >>> import bilevel, torch
    >>> problem = bilevel.Problem(
    ...     upper=lambda x, y: y.sum(),
    ...     lower=lambda x, y: (y - x).square().sum(),
    ...     constraint=bilevel.sets.NonNegative(),
    ...     y0=torch.zeros(2),
    ... )
    >>> solve_lower(problem, torch.tensor([1.0, -1.0])).y
    tensor([1., 0.])
    """
    check_problem(problem)
    x = tree_map(Tensor.detach, check_vector("x", x))
    constraint = problem.feasible_set(x)
    y = check_lower_start(problem, problem.constraint_at(x), y0)
    dtype = leaves(y)[0].dtype
    tol = tolerances.lower_residual(dtype) if tol is None else tol
    check_number("tol", tol)
    check_count("max_steps", max_steps)
    call_function(uncounted(problem).linearize(x, y), "lower", "x, y0")
    warn_of_flaws(uncounted(problem), x, y, upper=False)
    rule = _CarefulSteps(problem, x, problem.project(constraint, y), tol)
    if rule.best.converged:
        return rule.best
    _accelerated(problem, x, rule.best.y, rule, max_steps)
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
    """Steps of length 1/L from the feasible point y, until the gradient mapping |z - P_Y(z - grad/L)| L is within tol.

    `curvature` is L; it grows whenever two successive gradients show more. A start that is good enough costs one
    gradient and one projection; `slope` is grad_y g at the start, when it is known. Without a tolerance `max_steps`
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
        verdict = rule.judge(y_next, float(space.norm(jump)) / step, k, k == max_steps)
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
            self.curvature = max(self.curvature, self._seen(z, gradient, *previous))
        return safe_step(self.curvature)

    def _seen(self, z: Vector, gradient: Vector, z_old: Vector, gradient_old: Vector) -> float:
        """|dgrad| / |dz|, a lower bound on L; 0 when rounding hides it."""
        space, eps = self.space, self.eps
        change = float(space.norm(space.add(gradient, gradient_old, -1.0)))
        moved = float(space.norm(space.add(z, z_old, -1.0)))
        # At a solved point z moves in its last digits, and the quotient would be one of rounding errors.
        if moved <= 1e2 * eps * float(space.norm(z)) or change <= 1e3 * eps * float(space.norm(gradient)):
            return 0.0
        return change / moved

    def judge(self, y: Vector, residual: float, k: int, last: bool) -> str:
        if self.tol is None:
            done = False
        else:  # below the rounding of y the residual cannot fall
            done = residual <= max(self.tol, 4.0 * self.eps * float(self.space.norm(y)) / safe_step(self.curvature))
        self.last = LowerSolution(y, residual, k, done, self.curvature)
        return "stop" if done else "go on"


class _CarefulSteps:
    """Steps 1/L from Lanczos, taken back where they overshoot; stop when the residual at a unit step confirms it."""

    def __init__(self, problem: Problem, x: Vector, y: Vector, tol: float) -> None:
        self.problem, self.x, self.tol, self.eps, self.stalls = problem, x, tol, _eps(y), 0
        self.space = problem.y_space(problem.feasible_set(x))
        self.length, residual = self._first(y), _residual(problem, x, y)
        self.best = LowerSolution(y, residual, 0, residual <= tol, 1.0 / self.length)

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
        """|dz| / |dgrad|, an upper bound on 1/L from two gradients; infinite when they do not tell."""
        space = self.space
        dz, dg = space.add(z, z_old, -1.0), space.add(gradient, gradient_old, -1.0)
        change = float(space.norm(dg))
        if not change < math.inf:
            return 0.0
        # Below the rounding error of a gradient the quotient says nothing.
        if change <= 1e3 * self.eps * float(space.norm(gradient)):
            return math.inf
        return float(space.norm(dz)) / change

    def judge(self, y: Vector, mapping: float, k: int, last: bool) -> str:
        floor = 8.0 * self.eps * float(self.space.norm(y)) / self.length
        if not (mapping <= max(self.tol, floor) or last):
            return "go on"
        residual = _residual(self.problem, self.x, y)
        self.stalls = 0 if residual < 0.5 * self.best.residual else self.stalls + 1
        if residual < self.best.residual:
            self.best = LowerSolution(y, residual, k, residual <= self.tol, 1.0 / self.length)
        if residual <= self.tol or self.stalls == 3:
            return "stop"
        self.length = self._first(y)
        return "restart"


def safe_step(curvature: float) -> float:
    """1/L, or 1 where g has no curvature."""
    return 1.0 / curvature if curvature > 0 else 1.0


def _size(y: Vector) -> float:
    return max(float(u.abs().max()) for u in leaves(y))


def _eps(y: Vector) -> float:
    return torch.finfo(leaves(y)[0].dtype).eps


def upper_value(
    problem: Problem, x: Vector, y0: Vector | None = None, *, tol: float | None = None, max_steps: int = 20_000
) -> Tensor:
    """F(x) = f(x, y*(x)) with the lower level solved to `tol`; warns if it could not be.

    Parameters
    ----------
    problem
        f, g and the set.
    x
        The upper variable, a tensor or a dictionary of tensors of any shape.
    y0, tol, max_steps
        As in `solve_lower`.

    Returns
    -------
    Tensor
        F(x), a scalar without a graph.

    References
    ----------
    Shi, Chang & Gu (2024), the paper of DMLCBO, section 2.1.

    Examples
    --------
    >>> import bilevel, torch
    >>> problem = bilevel.Problem(
    ...     upper=lambda x, y: y.sum(),
    ...     lower=lambda x, y: (y - x).square().sum(),
    ...     constraint=bilevel.sets.NonNegative(),
    ...     y0=torch.zeros(2),
    ... )
    >>> upper_value(problem, torch.tensor([1.0, -1.0]))
    tensor(1.)
    """
    check_problem(problem)
    problem = uncounted(problem)
    solution = solve_lower(problem, x, y0, tol=tol, max_steps=max_steps)
    warn_if_unsolved(solution)
    return check_finite(call_function(problem.linearize(x, solution.y), "upper", "x, y"))


def warn_if_unsolved(solution: LowerSolution) -> None:
    """Say so when a lower level is not solved to its tolerance."""
    if not solution.converged:
        warnings.warn(
            f"the lower level stopped at residual {solution.residual:.2e} after {solution.steps} steps; "
            "raise max_steps or tol, or give g more curvature",
            LowerLevelWarning,
            stacklevel=3,
        )


def uncounted(problem: Problem) -> Problem:
    """The same problem with a cost counter of its own, for evaluations that are not part of a method."""
    twin = copy.copy(problem)
    twin.costs = Costs()
    return twin
