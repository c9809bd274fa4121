"""Is a hypergradient the gradient of F? If not, why not."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..checks import check_lower_start, check_vector
from ..errors import Incompatible, InvalidInput
from ..hypergradients import Estimator, LinearSolve
from ..problem import Problem
from ..randomness import Noise, Seeds
from ..spaces import Vector, leaves, tree_map
from .causes import Cause
from .lower_level import curvature, face_facts
from .parts import Finding, check_functions, check_motion, check_set, kinked_function, steep_gradient, wrong_jacobian_at
from .probe import SPACE, Probe, Slope, noise_of, slope, unit
from .report import HypergradientCheck
from .suspects import blame_method, check_point, check_solver

SOLVED = 1e-6
"""A lower level with a residual below this, relative to max(1, |y|), counts as solved."""
FIRST_STEPS = 500
"""After so many steps without a solution the gradient of g is looked at for jumps."""
DRAWS = 200
"""How many draws of a random estimator are averaged."""


def check_hypergradient(
    problem: Problem,
    x: Vector,
    y: Vector | None = None,
    *,
    method: Estimator | None = None,
    gradient: Vector | None = None,
    solver: Any = None,
    directions: int = 4,
    tol: float = 1e-4,
    seed: int = 0,
) -> HypergradientCheck:
    """Compare h with (F(x + t d) - F(x - t d)) / 2t along random directions d, and say why they differ.

    The parts are judged first, each by differences in float64: the set, f, g and their derivatives, the curvature of
    the lower level. Then the lower level is solved tightly, and F is looked at from both sides.

    Parameters
    ----------
    problem, x
        The problem and the point.
    y
        The lower variable your method uses at x; by default the lower level is solved from `problem.y0`.
    method
        The estimator to judge; default `LinearSolve()`. Random ones are averaged over 200 draws.
    gradient
        A hypergradient of your own at x, instead of a method.
    solver
        A solver to judge as well: whether the set suits it, whether y stays in Y, whether x moves against h. Ten
        steps are taken from the solved lower level.
    directions
        How many random directions; each takes four lower-level solves.
    tol
        The relative error up to which h counts as correct.
    seed
        Of the directions.

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
    if problem.inequality is not None:
        raise Incompatible(
            "check_hypergradient cannot use function constraints (inequality=h): hypergradients need the Jacobian of "
            "a projection. Write h as a set of bilevel.sets"
        )
    if isinstance(directions, bool) or not isinstance(directions, int) or directions < 1:
        raise InvalidInput(f"directions must be an integer of at least 1, got {directions!r}")
    if not 0 < tol < 1:
        raise InvalidInput(f"tol must lie between 0 and 1, got {tol!r}")
    x = tree_map(Tensor.detach, check_vector("x", x))
    start = check_lower_start(problem, problem.constraint_at(x), y if problem.y0 is None else None)
    given = None if y is None else check_lower_start(problem, problem.constraint_at(x), y)
    check = _Check(problem, x, start, given, method, gradient, solver, Seeds.of(seed))
    return check.run(directions, tol)


class _Check:
    """The moving parts of one call."""

    def __init__(
        self, problem: Problem, x: Any, start: Any, given: Any, method: Any, gradient: Any, solver: Any, seeds: Seeds
    ) -> None:
        self.narrow_x, self.given, self.solver, self.seeds = x, given, solver, seeds
        self.method, self.own = method, gradient
        self.generator = torch.Generator().manual_seed(seeds.smoothing)
        self.probe = Probe(problem, x, start)
        self.narrow = leaves(x)[0].dtype

    def run(self, directions: int, tol: float) -> HypergradientCheck:
        probe, generator = self.probe, self.generator
        finding = (
            check_set(probe, generator)
            or check_functions(probe, generator)
            or check_motion(probe, generator)
            or self._bent(probe.y)
        )
        if finding is not None:
            return _verdict(finding)
        solved = probe.solve(probe.x, probe.y, max_steps=FIRST_STEPS)
        if not self._unsolved(SPACE.ravel(solved.y), solved.residual, only_steep=True):
            solved = probe.solve(probe.x, SPACE.ravel(solved.y))
        y = SPACE.ravel(solved.y)
        finding = self._unsolved(y, solved.residual) or self._bent(y)
        if finding is not None:
            return _verdict(finding, lower_residual=solved.residual)
        facts, face, z = face_facts(probe, probe.x, y, curvature(probe.linearize(probe.x, y)).largest)
        on_face, whole = (curvature(probe.linearize(probe.x, y), f) for f in (face, None))
        report = HypergradientCheck(cause=Cause.CORRECT, curvature=whole, face=facts, lower_residual=solved.residual)
        if on_face.singular:
            return _verdict(Finding(Cause.SINGULAR_HESSIAN, f"on the face {on_face}"), report)
        finding = wrong_jacobian_at(probe, z, generator) or check_solver(self.solver, probe, y, self.seeds)
        if finding is None and self.given is not None:
            finding = check_point(probe, SPACE.ravel(self.given).to(probe.dtype), feasible_only=True)
        if finding is not None:
            return _verdict(finding, report)
        return self._compare(report, y, on_face.mu, directions, tol)

    def _bent(self, y: Tensor) -> Finding | None:
        """Negative curvature of g at y."""
        bent = curvature(self.probe.linearize(self.probe.x, y))
        return Finding(Cause.NOT_STRONGLY_CONVEX, str(bent)) if bent.negative else None

    def _unsolved(self, y: Tensor, residual: float, *, only_steep: bool = False) -> Finding | None:
        if residual <= SOLVED * max(1.0, float(y.norm())):
            return None
        bent = curvature(self.probe.linearize(self.probe.x, y))
        if bent.negative:
            return Finding(Cause.NOT_STRONGLY_CONVEX, str(bent))
        steep = steep_gradient(self.probe, self.probe.x, y, self.generator, bent.largest)
        if steep is not None or only_steep:
            return steep
        return Finding(Cause.SINGULAR_HESSIAN if bent.singular else Cause.UNSOLVED, f"residual {residual:.2e}, {bent}")

    def _compare(
        self, report: HypergradientCheck, y: Tensor, mu: float, directions: int, tol: float
    ) -> HypergradientCheck:
        """h against F from both sides, along random directions."""
        probe = self.probe
        path = _Path(probe, y)
        h, spread = self._hypergradient(y)
        f_y = float(probe.upper_grads(probe.x, y)[1].norm())
        joint = unit(probe.x, self.generator), unit(y, self.generator)
        noise = noise_of(lambda t: probe.upper(probe.x + t * joint[0], y + t * joint[1]))
        noise = max(noise, probe.eps * abs(probe.upper(probe.x, y))) + f_y * report.lower_residual / mu
        step = max(1.0, float(probe.x.norm())) * max(1e-4, min(0.1, (noise / (1.0 + float(h.norm()))) ** (1 / 3)))
        drawn = [unit(probe.x, self.generator) for _ in range(directions)]
        slopes = tuple(slope(lambda t, d=d: path.value(d, t), float(h @ d), step, noise) for d in drawn)
        scale = max(max(abs(s.predicted), abs(s.central), abs(s.forward), abs(s.backward)) for s in slopes)
        error = max(s.error for s in slopes) / scale if scale > 0 else 0.0
        worst = max(range(directions), key=lambda k: slopes[k].jump)
        distance = path.distance(report.face.margin if report.face else math.nan, drawn, step)
        report = replace(
            report,
            error=error,
            slopes=slopes,
            kink_distance=distance,
            notes=self._notes(report, scale, noise / step),
            line=lambda t: path.value(drawn[worst], t),
            reach=max(10 * step, 2 * distance) if distance <= 1.0 else 10 * step,
        )
        blur = 10 * noise / step / scale if scale > 0 else 0.0
        allowed = max(tol, blur) + 5 * spread / max(scale, 1e-300)
        kinked = any(s.kinked and s.jump > 1e-3 * scale for s in slopes)
        if kinked and blur < 0.1:
            return _verdict(self._kink(report, y), report)
        if error <= allowed and blur < 0.1:
            return report
        if blur >= 0.1:
            return _verdict(Finding(Cause.PRECISION, f"the noise of F is {noise:.1e}, its slope {scale:.1e}"), report)
        return _verdict(self._blame(report, y, h, slopes, drawn, allowed * scale), report)

    def _kink(self, report: HypergradientCheck, y: Tensor) -> Finding:
        return kinked_function(self.probe, self.probe.x, y, self.generator) or Finding(Cause.KINK, _jump(report.slopes))

    def _hypergradient(self, y: Tensor) -> tuple[Tensor, float]:
        """The hypergradient to be judged, flat, and the standard error of its mean when it is random."""
        if self.own is not None:
            return SPACE.ravel(check_vector("gradient", self.own)).to(self.probe.dtype), 0.0
        method = LinearSolve() if self.method is None else self.method
        x = tree_map(lambda u: u.to(self.narrow), self.narrow_x)
        point = self.probe.as_y(y) if self.given is None else self.given
        lin = self.probe.problem.linearize(x, tree_map(lambda u: u.to(self.narrow), point))
        return averaged(method, lin, self.seeds, self.probe.dtype)

    def _blame(
        self, report: HypergradientCheck, y: Tensor, h: Tensor, slopes: Any, drawn: list[Tensor], allowed: float
    ) -> Finding:
        """The parts are right, F is smooth as far as one can see, and h is not its gradient."""
        probe = self.probe
        lin = probe.linearize(probe.x, y)
        truth = SPACE.ravel(LinearSolve().estimate(lin, Noise()).gradient)
        miss = max(abs(float(truth @ d) - s.central) for s, d in zip(slopes, drawn, strict=True))
        if not miss <= allowed:
            margin = report.face.margin if report.face is not None else math.nan
            if margin <= 1e-3 * max(1.0, float(y.norm())):
                return Finding(Cause.KINK, _jump(slopes))
            return self._kinked_or_unexplained(y, miss)
        if self.given is not None:
            point = SPACE.ravel(self.given).to(probe.dtype)
            unsolved = check_point(probe, point, feasible_only=False)
            if unsolved is not None:
                return unsolved
        if self.narrow != probe.dtype and self.own is None:
            wide, spread = averaged(self.method or LinearSolve(), lin, self.seeds, probe.dtype)
            if float((wide - truth).norm()) <= allowed + 5 * spread:
                text = f"relative error {report.error:.1e} in {self.narrow}, none in {probe.dtype}"
                return Finding(Cause.PRECISION, text)
        return blame_method(self.method, lin, h, truth, allowed, self.seeds)

    def _kinked_or_unexplained(self, y: Tensor, miss: float) -> Finding:
        found = kinked_function(self.probe, self.probe.x, y, self.generator)
        return found or Finding(Cause.UNEXPLAINED, f"the linear solve is off by {miss:.2e} as well")

    def _notes(self, report: HypergradientCheck, scale: float, blur: float) -> tuple[str, ...]:
        notes = []
        if not self.probe.widened:
            notes.append(f"f or g cannot take float64: the differences themselves are in {self.probe.dtype}")
        if report.face is not None and report.face.dimension == 0:
            notes.append("y* is a vertex: it does not move with x here unless the set does")
        if report.curvature is not None and report.curvature.singular:
            notes.append("g is flat in some direction of the whole space, though not on the face")
        if scale <= blur:
            notes.append("F is flat here: every slope is zero up to rounding (errata, item 9)")
        return tuple(notes)


class _Path:
    """F and z along lines through x, each lower level started from y*(x)."""

    def __init__(self, probe: Probe, y: Tensor) -> None:
        self.probe, self.y, self._solved = probe, y, {}

    def solution(self, d: Tensor, t: float) -> Tensor:
        if t == 0.0:
            return self.y
        key = (id(d), t)
        if key not in self._solved:
            self._solved[key] = SPACE.ravel(self.probe.solve(self.probe.x + t * d, self.y).y)
        return self._solved[key]

    def value(self, d: Tensor, t: float) -> float:
        """F(x + t d)."""
        return self.probe.upper(self.probe.x + t * d, self.solution(d, t))

    def distance(self, margin: float, drawn: list[Tensor], step: float) -> float:
        """margin / (the speed of z): how far x can move before z meets a kink, to first order."""
        if math.isnan(margin) or math.isinf(margin):
            return margin
        eta = 1.0 / max(curvature(self.probe.linearize(self.probe.x, self.y)).largest, 1e-300)
        speeds = [self._speed(d, step, eta) for d in drawn]
        return margin / max(speeds) if max(speeds) > 0 else math.inf

    def _speed(self, d: Tensor, step: float, eta: float) -> float:
        ends = []
        for t in (step, -step):
            x, y = self.probe.x + t * d, self.solution(d, t)
            ends.append(y - eta * self.probe.lower_grad(x, y))
        return float((ends[0] - ends[1]).norm()) / (2 * step)


def averaged(method: Estimator, lin: Any, seeds: Seeds, dtype: torch.dtype) -> tuple[Tensor, float]:
    """The mean of an estimator's draws and its standard error; one draw when they are all the same."""
    draws = [SPACE.ravel(method.estimate(lin, Noise(seeds, k)).gradient) for k in range(4)]
    if all(torch.equal(draws[0], other) for other in draws[1:]):
        return draws[0].to(dtype), 0.0
    draws += [SPACE.ravel(method.estimate(lin, Noise(seeds, k)).gradient) for k in range(4, DRAWS)]
    stack = torch.stack(draws).to(dtype)
    return stack.mean(0), float(stack.var(0).sum().sqrt()) / math.sqrt(DRAWS)


def _jump(slopes: tuple[Slope, ...]) -> str:
    found = max(slopes, key=lambda s: s.jump)
    return f"the slope of F along a line is {found.backward:.6g} on one side and {found.forward:.6g} on the other"


def _verdict(finding: Finding, report: HypergradientCheck | None = None, **facts: Any) -> HypergradientCheck:
    if report is None:
        return HypergradientCheck(cause=finding.cause, detail=finding.detail, **facts)
    return replace(report, cause=finding.cause, detail=finding.detail)
