"""The lower level solved: y*(x) by accelerated projected gradients and Newton steps, and F(x) = f(x, y*(x))."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import replace
from typing import Any

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
from ._krylov import largest_curvature
from ._projected_gradient import LowerSolution, descend, residual_at, safe_step, solve_from
from .errors import LowerLevelWarning, NonFiniteError
from .linearization import Costs
from .newton import lower_level
from .problem import Problem
from .spaces import Vector, leaves, tree_map

GRADIENT_STEPS = 60
"""Accelerated gradient steps before the first Newton step: most well-conditioned lower levels are solved by then."""
NEWTON_WORK = 300
"""Gradients and Hessian products of a first round of Newton steps: enough for most lower levels."""
PROBE = 0.01
"""To measure rounding of the gradient, y is changed by this fraction of itself, or of the next step if it is longer."""


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
    residual = residual_at(problem, x, y)
    if not math.isfinite(residual):
        raise NonFiniteError(f"the residual at y of size {_size(y):.3g} is {residual}: check g, or use a wider dtype")
    return residual


def solve_lower(
    problem: Problem,
    x: Vector,
    y0: Vector | None = None,
    *,
    tol: float | None = None,
    max_steps: int = 20_000,
) -> LowerSolution:
    """y*(x) = argmin over y in Y of g(x, y), by accelerated projected gradients and semismooth Newton steps.

    The iteration begins with accelerated steps (Beck & Teboulle 2009) with the gradient restart of O'Donoghue & Candes
    (2015). The step length is 1/L, estimated by Lanczos steps; if two successive gradients show a far larger curvature,
    the last step is undone and shortened. If these steps do not reach the tolerance soon, Newton steps follow (Qi & Sun
    1993), which work at any condition number. Gradient steps continue where Newton steps are not possible: without
    second derivatives and with function constraints.

    Parameters
    ----------
    problem
        f, g and the set.
    x
        The upper variable, a tensor or a dictionary of tensors of any shape.
    y0
        The starting point, of the shape of y; default `problem.y0`.
    tol
        The tolerance on the residual |y - P_Y(y - grad_y g)|. The default does not depend on the units of y and g: the
        iteration stops when a step of length 1/L moves y by less than 2e-12 of its length in float64, 6e-6 in float32.
    max_steps
        The maximal number of gradient steps, Hessian products included; the result says whether the tolerance was met.

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
    if tol is not None:
        check_number("tol", tol)
    check_count("max_steps", max_steps)
    call_function(uncounted(problem).linearize(x, y), "lower", "x, y0")
    warn_of_flaws(uncounted(problem), x, y, upper=False)
    start = problem.project(constraint, y)
    length = safe_step(largest_curvature(problem.linearize(x, start)))
    scale = residual_at(problem, x, start, length)
    first = min(max_steps, GRADIENT_STEPS)
    found = descend(problem, x, start, tol=tol, max_steps=first, scale=scale, length=length)
    left, share = max_steps - found.steps, tolerances.solved(leaves(y)[0].dtype)
    if tol is None and not found.converged and is_rounding(problem, x, found):
        return replace(found, converged=True)
    if found.converged or left <= 0:
        return found
    step = safe_step(found.curvature)
    goal = (tol, 1.0) if tol is not None else (share * max(_size(found.y), share * scale) / step, step)
    y, steps = found.y, 0
    for most in (min(left, NEWTON_WORK), left):  # whether only rounding is left is asked after the first round
        y, work = _newton_steps(problem, x, y, *goal, most - steps)
        steps += work
        improved = replace(found, y=y, residual=residual_at(problem, x, y))
        if tol is None and is_rounding(problem, x, improved):
            return replace(improved, steps=found.steps + steps, converged=True)
        if steps < most:
            break
    further = descend(problem, x, y, tol=tol, max_steps=max(left - steps, 1), scale=scale)
    best = further if further.residual <= found.residual else found
    return replace(best, steps=found.steps + steps + further.steps)


def solve_tightly(problem: Problem, x: Vector, y: Vector, share: float, max_steps: int) -> LowerSolution:
    """As `solve_lower` without a tolerance; then Newton steps until a step 1/L moves y by that share of its length."""
    found = solve_lower(problem, x, y, max_steps=max_steps)
    step = safe_step(found.curvature)
    y, _ = _newton_steps(problem, x, found.y, share * _size(found.y) / step, step, NEWTON_WORK)
    return replace(found, y=y, residual=residual_at(problem, x, y))


def is_rounding(problem: Problem, x: Vector, found: LowerSolution) -> bool:
    """Whether y is 0 up to rounding: small steps change the gradient by rounding and not as the Hessian predicts."""
    constraint, lin = problem.constraint_at(x), problem.linearize(x, found.y)
    space, y = problem.y_space(constraint), found.y
    trial = problem.project(constraint, space.add(y, lin.lower_grad_y, -safe_step(found.curvature)))
    step = space.scaled(max(y, space.add(trial, y, -1.0), key=_size), PROBE)
    expected = lin.lower_hvp(step)
    change = space.add(problem.linearize(x, space.add(y, step)).lower_grad_y, lin.lower_grad_y, -1.0)
    noise, signal = float(space.norm(space.add(change, expected, -1.0))), float(space.norm(expected))
    return noise >= signal / 2 and found.residual <= noise / PROBE


def solve_near(
    problem: Problem,
    x: Vector,
    y: Vector,
    *,
    curvature: float,
    tol: float,
    max_steps: int,
    newton: bool = True,
    accelerated: bool = True,
    batch: Any = None,
    slope: Vector | None = None,
    first: int = GRADIENT_STEPS,
) -> LowerSolution:
    """As `solve_from`; with `newton`, Newton steps where the first gradient steps do not reach the tolerance.

    With mini-batches only gradient steps are taken.
    """
    first = min(max_steps, first) if newton and batch is None else max_steps
    found = solve_from(
        problem, x, y, curvature=curvature, tol=tol, max_steps=first, accelerated=accelerated, batch=batch, slope=slope
    )
    left = max_steps - found.steps
    if found.converged or left <= 0:
        return found
    y, steps = _newton_steps(problem, x, found.y, tol, safe_step(found.curvature), left)
    further = solve_from(problem, x, y, curvature=found.curvature, tol=tol, max_steps=max(left - steps, 1))
    return replace(further, steps=found.steps + steps + further.steps)


def _newton_steps(problem: Problem, x: Vector, y: Vector, tol: float, step: float, most: int) -> tuple[Vector, int]:
    """A better y by Newton steps (y itself if they fail), and the number of gradients and Hessian products used."""
    if problem.inequality is not None:
        return y, 0
    level = lower_level(problem, x, y)
    better = level.solve(x, y, tol=tol, step=step, most=most)
    return y if better is None else better, level.work


def _size(y: Vector) -> float:
    return max(float(u.abs().max()) for u in leaves(y))


def upper_value(
    problem: Problem, x: Vector, y0: Vector | None = None, *, tol: float | None = None, max_steps: int = 20_000
) -> Tensor:
    """F(x) = f(x, y*(x)), with the lower level solved to `tol`; warns if the tolerance was not reached.

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
    problem, x = uncounted(problem), check_vector("x", x)
    solution = solve_lower(problem, x, y0, tol=tol, max_steps=max_steps)
    warn_if_unsolved(solution)
    return check_finite(call_function(problem.linearize(x, solution.y), "upper", "x, y"))


def warn_if_unsolved(solution: LowerSolution) -> None:
    """Warn if a lower level is not solved to its tolerance."""
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
