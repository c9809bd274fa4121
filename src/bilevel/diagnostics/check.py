"""Is a hypergradient the gradient of F? If not, why not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .. import tolerances
from ..checks import (
    check_calls,
    check_count,
    check_fraction,
    check_lower_start,
    check_method,
    check_same_shape,
    check_set_only,
    check_solver_object,
    check_vector,
)  # fmt: skip
from ..errors import InvalidInput
from ..hypergradients import Estimator
from ..problem import Problem
from ..randomness import Seeds, plain_generator
from ..spaces import Vector, tree_map
from .against_f import compare_with_f
from .asked import Asked
from .causes import Cause
from .function_parts import check_functions, steep_gradient
from .judge import Finding
from .lower_level import STEPS, curvature, face_facts
from .probe import SPACE, Probe
from .report import HypergradientCheck
from .set_parts import check_motion, check_set, wrong_jacobian_at
from .suspects import check_point, check_solver

SOLVED = 1e-6
"""A lower level with a residual below this, relative to max(1, |y|), counts as solved."""


def check_hypergradient(
    problem: Problem,
    x: Vector,
    y: Vector | None = None,
    *,
    method: Estimator | None = None,
    gradient: Vector | None = None,
    solver: Any = None,
    directions: int = 4,
    tol: float | None = None,
    seed: int = 0,
) -> HypergradientCheck:
    """Compare <h, d> with slope = (F(x + t d) - F(x - t d)) / 2t along random directions d; say why they differ.

    The parts are judged first, each by differences in float64: the set, f, g and their derivatives, the curvature of
    the lower level. Then the lower level is solved tightly, and F is looked at from both sides.

    Parameters
    ----------
    problem
        f, g and the set.
    x
        The point, a tensor or a dictionary of tensors of any shape.
    y
        The lower variable, of the shape of y, your method uses at x; by default the lower level is solved from
        `problem.y0`.
    method
        The estimator to judge; default `LinearSolve()`. Random ones are averaged over 200 draws, or 1000.
    gradient
        A hypergradient of your own at x, of the shape of x, instead of a method.
    solver
        A solver to judge as well: whether the set suits it, whether y stays in Y, whether x moves against h. Ten
        steps are taken from the solved lower level.
    directions
        How many random directions; each takes four lower-level solves, and four for every shorter step that is tried.
    tol
        The relative error up to which h counts as correct; default 1e-4, and 5e-3 where f and g can take float32
        only. What noise leaves open must be within it too: random methods ask for a larger one.
    seed
        Of the directions.

    Returns
    -------
    HypergradientCheck
        The verdict with its cause, its remedy and the numbers.

    References
    ----------
    Differences and their rounding: Nocedal & Wright (2006), section 8.1; kinks: erratum 11 of the paper.

    Examples
    --------
    >>> import bilevel, torch
    >>> problem = bilevel.Problem(
    ...     upper=lambda x, y: (y - 1).square().sum(),
    ...     lower=lambda x, y: (y - x.detach()).square().sum(),
    ...     constraint=bilevel.sets.NonNegative(),
    ...     y0=torch.zeros(2).double(),
    ... )
    >>> print(check_hypergradient(problem, torch.tensor([0.5, -1.0]).double()).cause)
    the graph of g is cut: g changes in a way that autograd does not see
    """
    check_set_only("check_hypergradient", problem)
    check_method(method)
    check_solver_object(solver)
    check_count("directions", directions)
    if tol is not None:
        check_fraction("tol", tol)
    x = tree_map(Tensor.detach, check_vector("x", x))
    constraint, seeds = problem.constraint_at(x), Seeds.of(seed)
    start = check_lower_start(problem, constraint, y if problem.y0 is None else None)
    given = None if y is None else check_lower_start(problem, constraint, y)
    probe = Probe(problem, x, start)
    check_calls(probe.problem, x, start)
    if given is not None:
        check_same_shape(given, start)
    asked = Asked(x=x, y=given, method=method, gradient=_flat_gradient(gradient, probe), seeds=seeds)
    generator = plain_generator(seeds.smoothing)
    finding = _wrong_part(probe, generator)
    if finding is not None:
        return HypergradientCheck(cause=finding.cause, detail=finding.detail)
    point, residual = _solved(probe, generator)
    finding = _unsolved(probe, point, residual, generator) or _bent(probe, point)
    if finding is not None:
        return HypergradientCheck(cause=finding.cause, detail=finding.detail, lower_residual=residual)
    lin = probe.linearize(probe.x, point)
    whole = curvature(lin)
    facts, face, z = face_facts(probe, probe.x, point, whole.largest)
    on_face = curvature(lin, face)
    report = HypergradientCheck(cause=Cause.CORRECT, curvature=whole, face=facts, lower_residual=residual)
    finding = Finding(Cause.SINGULAR_HESSIAN, f"on the face {on_face}") if on_face.singular else None
    finding = finding or wrong_jacobian_at(probe, z, generator) or check_solver(solver, probe, point, seeds)
    if finding is None and asked.y is not None:
        finding = check_point(probe, asked.flat_y(probe), feasible_only=True)
    if finding is not None:
        return replace(report, cause=finding.cause, detail=finding.detail)
    tol = tolerances.hypergradient(probe.dtype) if tol is None else tol
    return compare_with_f(probe, point, asked, report, generator, mu=on_face.mu, directions=directions, tol=tol)


def _flat_gradient(gradient: Any, probe: Probe) -> Tensor | None:
    """The user's own gradient as one flat vector of the size of x."""
    if gradient is None:
        return None
    flat = SPACE.ravel(check_vector("gradient", gradient)).detach().to(probe.dtype)
    if flat.shape != probe.x.shape:
        raise InvalidInput(f"gradient has {flat.numel()} entries but x has {probe.x.numel()}: give one for each")
    return flat


def _wrong_part(probe: Probe, generator: torch.Generator) -> Finding | None:
    """The set, the functions, how the set moves, the curvature at the start."""
    return (
        check_set(probe, generator)
        or check_functions(probe, generator)
        or check_motion(probe, generator)
        or _bent(probe, probe.y)
    )


def _solved(probe: Probe, generator: torch.Generator) -> tuple[Tensor, float]:
    """y*(x) and its residual; the solve is not carried on where the gradient of g is seen to jump."""
    first = probe.solve(probe.x, probe.y, max_steps=STEPS[0])
    y = SPACE.ravel(first.y)
    if not _is_solved(y, first.residual):
        largest = curvature(probe.linearize(probe.x, y)).largest
        if steep_gradient(probe, probe.x, y, generator, largest) is not None:
            return y, first.residual
    solution = probe.solve(probe.x, y)
    return SPACE.ravel(solution.y), solution.residual


def _is_solved(y: Tensor, residual: float) -> bool:
    return residual <= SOLVED * max(1.0, float(y.norm()))


def _bent(probe: Probe, y: Tensor) -> Finding | None:
    """Negative curvature of g at y."""
    bent = curvature(probe.linearize(probe.x, y))
    return Finding(Cause.NOT_STRONGLY_CONVEX, str(bent)) if bent.negative else None


def _unsolved(probe: Probe, y: Tensor, residual: float, generator: torch.Generator) -> Finding | None:
    """Why the lower level was not solved."""
    if _is_solved(y, residual):
        return None
    bent = curvature(probe.linearize(probe.x, y))
    return (
        _bent(probe, y)
        or steep_gradient(probe, probe.x, y, generator, bent.largest)
        or Finding(Cause.SINGULAR_HESSIAN if bent.singular else Cause.UNSOLVED, f"residual {residual:.2e}, {bent}")
    )
