"""The lower level solved: y*(x) by accelerated projected gradient, and F(x) = f(x, y*(x))."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from . import tolerances
from .checks import call_function, check_count, check_lower_start, check_positive, check_problem, check_vector
from .curvature import largest_curvature
from .errors import NotFinite
from .problem import Costs, Problem
from .spaces import Space, Vector, leaves, tree_map


class LowerLevelWarning(UserWarning):
    """The lower level was not solved to the tolerance asked for.

    Examples
    --------
    >>> import bilevel, torch, warnings
    >>> problem = bilevel.Problem(
    ...     lambda x, y: y.sum(), lambda x, y: (torch.tensor([1.0, 100.0]) * (y - x).square()).sum()
    ... )
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     value = bilevel.upper_value(problem, torch.ones(2), torch.zeros(2), max_steps=1)
    >>> caught[0].category.__name__
    'LowerLevelWarning'
    """


@dataclass(frozen=True)
class LowerSolution:
    """y*(x), the residual |y - P_Y(y - grad_y g)| it was solved to, and the steps it took."""

    y: Vector
    residual: float
    steps: int
    converged: bool


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
        raise NotFinite(f"the residual at y of size {_size(y):.3g} is {residual}: check g, or use a wider dtype")
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
    Lanczos steps; when two successive gradients show a far larger curvature, the last step is taken back and shortened.

    Parameters
    ----------
    problem
        f, g and the set.
    x
        The upper variable, a tensor or a dictionary of tensors of any shape.
    y0
        Where to start, of the shape of y; default `problem.y0`.
    tol
        The residual |y - P_Y(y - grad_y g)| to reach; default 1e-10 in float64, 2e-5 in float32.
    max_steps
        Gradient steps at most; the result says whether the tolerance was met.

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
    check_positive("tol", tol)
    check_count("max_steps", max_steps)
    call_function(uncounted(problem).linearize(x, y), "lower", "x, y0")
    return _accelerated(problem, x, problem.project(constraint, y), tol, max_steps)


def _accelerated(problem: Problem, x: Vector, y: Vector, tol: float, max_steps: int) -> LowerSolution:
    constraint = problem.feasible_set(x)
    space = problem.y_space(constraint)
    step = _first_step(problem, x, y)
    best = LowerSolution(y, _residual(problem, x, y), 0, False)
    if best.residual <= tol:
        return LowerSolution(y, best.residual, 0, True)
    z, t, stalls = y, 1.0, 0  # z: the extrapolated point
    safe, previous = y, None  # the last point that was not an overshoot; the last (z, gradient)
    for k in range(1, max_steps + 1):
        gradient = problem.lower_grad(x, z)
        seen = step if previous is None else _safe_step(space, z, gradient, *previous)
        if not space.is_finite(gradient) or seen < 0.5 * step:  # far steeper here than the last step assumed: go back
            step = max(seen, 0.1 * step) if seen > 0 else 0.1 * step
            y = z = safe
            t, previous = 1.0, None
            continue
        step, previous, safe = min(step, seen), (z, gradient), y
        y_next = problem.project(constraint, space.add(z, gradient, -step))
        move, jump = space.add(y_next, y, -1.0), space.add(z, y_next, -1.0)
        mapping = float(space.norm(jump)) / step
        floor = 8.0 * _eps(y) * float(space.norm(y_next)) / step
        if mapping <= max(tol, floor) or k == max_steps:
            residual = _residual(problem, x, y_next)
            stalls = 0 if residual < 0.5 * best.residual else stalls + 1
            if residual < best.residual:
                best = LowerSolution(y_next, residual, k, residual <= tol)
            if residual <= tol or stalls == 3:
                break
            z, t, step = y_next, 1.0, _first_step(problem, x, y_next)
        elif float(space.dot(jump, move)) > 0:  # the momentum points uphill: restart from here
            z, t = y_next, 1.0
        else:
            t_next = (1.0 + (1.0 + 4.0 * t * t) ** 0.5) / 2.0
            z, t = space.add(y_next, move, (t - 1.0) / t_next), t_next
        y = y_next
    return best


def _first_step(problem: Problem, x: Vector, y: Vector) -> float:
    """1/L with L the largest curvature of g at y."""
    curvature = largest_curvature(problem.linearize(x, y))
    return 1.0 / curvature if curvature > 0 else 1.0


def _safe_step(space: Space, z: Vector, gradient: Vector, z_old: Vector, gradient_old: Vector) -> float:
    """|dz| / |dgrad|, an upper bound on 1/L from two gradients; infinite when they do not tell."""
    dz, dg = space.add(z, z_old, -1.0), space.add(gradient, gradient_old, -1.0)
    change = float(space.norm(dg))
    if not change < float("inf"):
        return 0.0
    # Below the rounding error of a gradient the quotient says nothing.
    if change <= 1e3 * _eps(z) * float(space.norm(gradient)):
        return float("inf")
    return float(space.norm(dz)) / change


def _size(y: Vector) -> float:
    return max(float(u.abs().max()) for u in leaves(y))


def _eps(y: Vector) -> float:
    return torch.finfo(leaves(y)[0].dtype).eps


def upper_value(
    problem: Problem, x: Vector, y0: Vector | None = None, *, tol: float | None = None, max_steps: int = 20_000
) -> Tensor:
    """F(x) = f(x, y*(x)) with the lower level solved to `tol`; warns when it could not be.

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
    return call_function(problem.linearize(x, solution.y), "upper", "x, y")


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
