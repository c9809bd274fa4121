"""A check whether a hypergradient is the gradient of F, with the cause if it is not."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .. import _checks, tolerances
from .._derivative_check import unit
from .._projected_gradient import LowerSolution, residual_at
from ..errors import InvalidInputError
from ..hypergradients import Estimator
from ..problem import Problem
from ..random import Seeds, plain_generator
from ..spaces import Vector, in_order, tree_map
from . import method_checks, problem_checks
from .finite_differences import SPACE, Finding, Probe, rounding_noise
from .lower_level import STEPS, curvature, face_facts
from .method_checks import DRAWS, GradientUnderTest, Path, SlopeComparison
from .report import Cause, HypergradientCheck

FALLEN = 1e-3
"""A residual that falls by less than this on the way to y*(x) is looked at for jumps of the gradient of g."""


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
    """Compare <h, d> with slope = (F(x + t d) - F(x - t d)) / 2t along random directions d; explain any difference.

    First the parts are tested by finite differences in float64: the set, f, g and their derivatives, and the curvature
    of the lower level. Then the lower level is solved accurately, and h is compared with one-sided and central
    differences of F.

    Parameters
    ----------
    problem
        f, g and the set.
    x
        The point, a tensor or a dictionary of tensors of any shape.
    y
        The lower variable that your method uses at x; by default the lower level is solved from `problem.y0`.
    method
        The estimator to check; default `LinearSolve()`. Random estimators are averaged over 200 or 1000 draws.
    gradient
        Your own hypergradient at x, of the shape of x, instead of a method.
    solver
        A solver to check as well: whether it supports the set, y stays in Y, and x moves against h. It takes ten steps
        from the solved lower level.
    directions
        The number of random directions. Each needs four lower-level solves, and four more for every shorter step.
    tol
        The relative error up to which h counts as correct; default 1e-4, and 5e-3 if f and g support only float32. The
        uncertainty due to noise must be within it too, so that random methods need a larger one.
    seed
        The seed of the directions.

    Returns
    -------
    HypergradientCheck
        The cause, its remedy and the numbers.

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
    the graph of g is cut: autograd does not see all changes of g
    """
    _checks.check_set_only("check_hypergradient", problem)
    _checks.check_method(method)
    _checks.check_solver_object(solver)
    _checks.check_count("directions", directions)
    if tol is not None:
        _checks.check_number("tol", tol, high=1.0)
    seeds = Seeds.from_seed(seed)
    probe = Probe.checked(problem, x, y if problem.y0 is None else None, warn=False)
    x = tree_map(Tensor.detach, _checks.check_vector("x", x))
    if y is not None:
        y = _checks.check_lower_start(problem, problem.constraint_at(x), y)
        _checks.check_same_shape(y, probe.as_y(probe.y))
    candidate = GradientUnderTest(x=x, y=y, method=method, gradient=_flat_gradient(gradient, probe), seeds=seeds)
    generator = plain_generator(seeds.smoothing)
    report = HypergradientCheck(cause=Cause.CORRECT)
    finding = (
        problem_checks.check_set(probe, generator)
        or problem_checks.check_functions(probe, generator)
        or problem_checks.check_motion(probe, generator)
        or _bent(probe, probe.y)
    )
    if finding is not None:
        return report.found(finding)
    solution = _solved(probe, generator)
    point = SPACE.ravel(solution.y)
    report = replace(report, lower_residual=solution.residual)
    finding = _lower_flaw(probe, solution, generator)
    if finding is not None:
        return report.found(finding)
    lin = probe.linearize(probe.x, point)
    whole = curvature(lin)
    facts, face, z = face_facts(probe, probe.x, point, whole.largest)
    on_face = curvature(lin, face)
    report = replace(report, curvature=whole, face=facts)
    finding = (
        (Finding(Cause.SINGULAR_HESSIAN, f"on the face {on_face}") if on_face.singular else None)
        or problem_checks.wrong_jacobian_at(probe, z, generator)
        or method_checks.check_solver(solver, probe, point, seeds)
        or method_checks.check_point(probe, y, feasible_only=True)
    )
    if finding is not None:
        return report.found(finding)
    tol = tolerances.hypergradient(probe.dtype) if tol is None else tol
    return _compare_with_f(probe, point, candidate, report, generator, mu=on_face.mu, directions=directions, tol=tol)


def _flat_gradient(gradient: Any, probe: Probe) -> Tensor | None:
    """The user's own gradient as one flat vector of the size of x."""
    if gradient is None:
        return None
    gradient = _checks.check_vector("gradient", gradient)
    like_x = probe.as_x(probe.x)
    if isinstance(like_x, dict) and isinstance(gradient, dict) and set(gradient) == set(like_x):
        gradient = in_order(like_x, gradient)
    flat = SPACE.ravel(gradient).detach().to(probe.dtype)
    if flat.shape != probe.x.shape:
        raise InvalidInputError(f"gradient has {flat.numel()} entries but x has {probe.x.numel()}: give one for each")
    return flat


def _solved(probe: Probe, generator: torch.Generator) -> LowerSolution:
    """y*(x); the solve is not carried on where the gradient of g is seen to jump."""
    solution = probe.solve(probe.x, probe.y, max_steps=STEPS[0])
    if solution.converged or problem_checks.steep_gradient(probe, SPACE.ravel(solution.y), generator) is not None:
        return solution
    return probe.solve(probe.x, SPACE.ravel(solution.y))


def _lower_flaw(probe: Probe, solution: LowerSolution, generator: torch.Generator) -> Finding | None:
    """Negative curvature of g at y, or why the lower level was not solved."""
    y = SPACE.ravel(solution.y)
    first = residual_at(probe.problem, probe.as_x(probe.x), probe.as_y(probe.y))
    fallen = solution.converged and solution.residual <= FALLEN * first  # a jump of the gradient stays at a solution
    finding = _bent(probe, y) or (None if fallen else problem_checks.steep_gradient(probe, y, generator))
    if solution.converged or finding is not None:
        return finding
    bent = curvature(probe.linearize(probe.x, y))
    cause = Cause.SINGULAR_HESSIAN if bent.singular else Cause.UNSOLVED
    return Finding(cause, f"residual {solution.residual:.2e}, {bent}")


def _bent(probe: Probe, y: Tensor) -> Finding | None:
    """Negative curvature of g at y."""
    bent = curvature(probe.linearize(probe.x, y))
    return Finding(Cause.NOT_STRONGLY_CONVEX, str(bent)) if bent.negative else None


def _compare_with_f(
    probe: Probe,
    y: Tensor,
    candidate: GradientUnderTest,
    report: HypergradientCheck,
    generator: torch.Generator,
    *,
    mu: float,
    directions: int,
    tol: float,
) -> HypergradientCheck:
    """The report with its verdict: <h, d> against the slopes of F along random directions d."""
    path = Path(probe, y)
    h = candidate.hypergradient(probe, y, DRAWS[0])
    noise = _noise_in_f(probe, y, generator, report.lower_residual / mu)
    step = max(1.0, float(probe.x.norm())) * max(1e-4, min(0.1, (noise / (1.0 + float(h.mean.norm()))) ** (1 / 3)))
    drawn = [unit(probe.x, generator) for _ in range(directions)]
    found = method_checks.compare_slopes(path, drawn, step, noise, h, tol)
    step = found.step
    if found.worth_more_draws:
        found = SlopeComparison(path, drawn, step, noise, candidate.hypergradient(probe, y, DRAWS[1]), tol)
    worst = max(range(directions), key=lambda k: found.slopes[k].jump)
    distance = path.distance(report.face.margin if report.face else math.nan, drawn, step)
    flat = _is_flat(probe, y, found.scale, 20 * noise / step)
    report = replace(
        report,
        error=found.error,
        slopes=found.slopes,
        kink_distance=distance,
        notes=_notes(probe, report, flat, found),
        line=lambda t: path.value(drawn[worst], t),
        reach=max(10 * step, 2 * distance) if distance <= 1.0 else 10 * step,
    )
    if flat:
        return report
    finding = None
    if not math.isfinite(found.error):
        finding = Finding(Cause.NOT_FINITE, f"F is not finite at a distance of {step:.1e} from x")
    elif found.blur >= 0.1:
        finding = Finding(Cause.PRECISION, f"the noise of F is {noise:.1e}, its slope {found.scale:.1e}")
    elif found.kinked:
        kink = Finding(Cause.KINK, found.slopes[worst].sides("F"))
        finding = problem_checks.kinked_function(probe, y, generator) or kink
    elif found.undecided:
        finding = found.why_undecided()
    elif not found.correct:
        finding = _blame(probe, y, candidate, report, found, generator)
    return report.found(finding)


def _noise_in_f(probe: Probe, y: Tensor, generator: torch.Generator, lower_error: float) -> float:
    """The noise of F: rounding in f, and |f_y| times the error of y*."""
    d, e = unit(probe.x, generator), unit(y, generator)
    rounding = rounding_noise(lambda t: probe.upper(probe.x + t * d, y + t * e))
    slope_in_y = float(probe.upper_grads(probe.x, y)[1].norm())
    return max(rounding, probe.eps * abs(probe.upper(probe.x, y))) + slope_in_y * lower_error


def _is_flat(probe: Probe, y: Tensor, scale: float, blur: float) -> bool:
    """Every slope is zero up to rounding, and rounding is small beside the derivatives of f."""
    return scale <= blur <= 1e-3 * sum(float(part.norm()) for part in probe.upper_grads(probe.x, y)) or scale == 0.0


def _blame(
    probe: Probe,
    y: Tensor,
    candidate: GradientUnderTest,
    report: HypergradientCheck,
    found: SlopeComparison,
    generator: torch.Generator,
) -> Finding:
    """The parts are right, F is smooth as far as one can see, and h is not its gradient."""
    truth = probe.hypergradient(probe.x, y)[0]
    allowed = (found.tol + found.blur) * found.scale
    miss = max(abs(float(truth @ d) - s.central) for s, d in zip(found.slopes, found.drawn, strict=True))
    if not miss <= allowed:
        return _kink_or_unexplained(probe, y, report, miss, generator)
    unsolved = method_checks.check_point(probe, candidate.y, feasible_only=False)
    if unsolved is not None:
        return unsolved
    lin = probe.linearize(probe.x, y)
    if candidate.dtype != probe.dtype and candidate.gradient is None:
        wide = candidate.averaged(lin, probe, DRAWS[0])
        off = max(abs(float((wide.mean - truth) @ d)) for d in found.drawn)
        if off <= allowed + wide.doubt(found.drawn):
            text = f"relative error {report.error:.1e} in {candidate.dtype}, none in {probe.dtype}"
            return Finding(Cause.PRECISION, text)
    return method_checks.blame_method(candidate.method, lin, found.h.mean, truth, found.h.noise, candidate.seeds)


def _kink_or_unexplained(
    probe: Probe, y: Tensor, report: HypergradientCheck, miss: float, generator: torch.Generator
) -> Finding:
    """Several kinks may cancel in F, and still make h one element of a set (erratum 11)."""
    wrong = problem_checks.wrong_product_at(probe, y, generator)
    if wrong is not None:
        return wrong
    if report.face is not None and report.face.margin <= 1e-3 * max(1.0, float(y.norm())):
        return Finding(Cause.KINK, max(report.slopes, key=lambda s: s.jump).sides("F"))
    found = problem_checks.kinked_function(probe, y, generator)
    return found or Finding(Cause.UNEXPLAINED, f"the linear solve is off by {miss:.2e} as well")


def _notes(probe: Probe, report: HypergradientCheck, flat: bool, found: SlopeComparison) -> tuple[str, ...]:
    notes = []
    if not probe.widened:
        notes.append(f"f or g cannot take float64: the differences themselves are in {probe.dtype}")
    if report.face is not None and report.face.dimension == 0:
        notes.append("y* is a vertex: it does not move with x here unless the set does")
    if report.curvature is not None and report.curvature.singular:
        notes.append("g is flat in some direction of the whole space, though not on the face")
    if flat:
        notes.append("F is flat here: every slope is zero up to rounding (errata, item 9)")
    if found.h.random:
        draws = len(found.h.draws)
        notes.append(f"the method is random: the mean of {draws} draws is known to {found.spread:.1e} only")
    return tuple(notes)
