"""A hypergradient against F itself: slopes from both sides along random directions, and who is to blame."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import EmptySet, NotFinite
from ..hypergradients import Estimator, LinearSolve
from ..problem import Linearization
from ..randomness import Noise, Seeds
from ..spaces import leaves, tree_map
from .causes import Cause
from .function_parts import kinked_function, wrong_product_at
from .judge import Finding
from .lower_level import curvature
from .probe import SPACE, Probe, Slope, noise_of, slope, unit
from .report import HypergradientCheck
from .suspects import blame_method, check_point

DRAWS = (200, 1000)
"""How many draws of a random estimator are averaged; the second number when the first does not decide."""
STEPS = 5
"""How many steps of differences are tried, each a tenth of the one before."""
SURE = 5.0
"""So many standard errors are what noise leaves open."""


class Averaged(NamedTuple):
    """A hypergradient as the mean of independent draws, (size,) and (draws, size)."""

    mean: Tensor
    draws: Tensor

    @property
    def random(self) -> bool:
        """Whether the draws differ."""
        return len(self.draws) > 1

    def doubt(self, directions: list[Tensor]) -> float:
        """The largest of SURE standard errors of <mean, d> over the directions d."""
        if not self.random:
            return 0.0
        spread = (self.draws @ torch.stack(directions, -1)).std(0) / math.sqrt(len(self.draws))
        return SURE * float(spread.max())

    @property
    def noise(self) -> float:
        """What noise may leave of |mean - expectation|."""
        return 2 * float(self.draws.var(0).sum().sqrt()) / math.sqrt(len(self.draws)) if self.random else 0.0


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is to be judged: a gradient of the user's own, or that of a method at the user's x and y, in their dtype."""

    x: Any
    y: Any
    method: Estimator | None
    gradient: Tensor | None
    seeds: Seeds

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the user works in."""
        return leaves(self.x)[0].dtype

    def flat_y(self, probe: Probe) -> Tensor:
        """The user's y, flat."""
        return SPACE.ravel(self.y).to(probe.dtype)

    def hypergradient(self, probe: Probe, y: Tensor, draws: int) -> Averaged:
        """The hypergradient to be judged, flat."""
        if self.gradient is not None:
            return Averaged(self.gradient, self.gradient[None])
        point = probe.as_y(y) if self.y is None else self.y
        lin = probe.problem.linearize(self.x, tree_map(lambda u: u.to(self.dtype), point))
        return self.averaged(lin, probe, draws)

    def averaged(self, lin: Linearization, probe: Probe, draws: int) -> Averaged:
        """The mean of the method's draws; one draw when they are all the same."""
        method = LinearSolve() if self.method is None else self.method
        draw = lambda k: SPACE.ravel(method.estimate(lin, Noise(self.seeds, k)).gradient).to(probe.dtype)  # noqa: E731
        drawn = [draw(k) for k in range(4)]
        if all(torch.equal(drawn[0], other) for other in drawn[1:]):
            return Averaged(drawn[0], drawn[0][None])
        stack = torch.stack([*drawn, *(draw(k) for k in range(4, draws))])
        return Averaged(stack.mean(0), stack)


def compare_with_f(
    probe: Probe,
    y: Tensor,
    asked: Asked,
    report: HypergradientCheck,
    generator: torch.Generator,
    *,
    mu: float,
    directions: int,
    tol: float,
) -> HypergradientCheck:
    """The report with its verdict: <h, d> against the slopes of F along random directions d."""
    path = _Path(probe, y)
    h = asked.hypergradient(probe, y, DRAWS[0])
    noise = _noise_of_f(probe, y, generator, report.lower_residual / mu)
    step = max(1.0, float(probe.x.norm())) * max(1e-4, min(0.1, (noise / (1.0 + float(h.mean.norm()))) ** (1 / 3)))
    drawn = [unit(probe.x, generator) for _ in range(directions)]
    found = _with_the_best_step(path, drawn, step, noise, h, tol)
    step = found.step
    if found.worth_more_draws:
        found = _Compared(path, drawn, step, noise, asked.hypergradient(probe, y, DRAWS[1]), tol)
    worst = drawn[max(range(directions), key=lambda k: found.slopes[k].jump)]
    distance = path.distance(report.face.margin if report.face else math.nan, drawn, step)
    flat = _is_flat(probe, y, found.scale, 20 * noise / step)
    report = replace(
        report,
        error=found.error,
        slopes=found.slopes,
        kink_distance=distance,
        notes=_notes(probe, report, flat, found),
        line=lambda t: path.value(worst, t),
        reach=max(10 * step, 2 * distance) if distance <= 1.0 else 10 * step,
    )
    if flat:
        return report
    if not math.isfinite(found.error):
        finding = Finding(Cause.NOT_FINITE, f"F is not finite at a distance of {step:.1e} from x")
    elif found.blur >= 0.1:
        finding = Finding(Cause.PRECISION, f"the noise of F is {noise:.1e}, its slope {found.scale:.1e}")
    elif found.kinked:
        finding = kinked_function(probe, probe.x, y, generator) or Finding(Cause.KINK, _jump(found.slopes))
    elif found.correct:
        return report
    elif found.undecided:
        finding = found.why_undecided()
    else:
        finding = _blame(probe, y, asked, report, found, generator)
    return replace(report, cause=finding.cause, detail=finding.detail)


def _with_the_best_step(
    path: _Path, drawn: list[Tensor], step: float, noise: float, h: Averaged, tol: float
) -> _Compared:
    """The first step that agrees; F may bend on a shorter scale than that of x, or end nearby. Else the first finite."""
    tried = [_Compared(path, drawn, step, noise, h, tol)]
    while not (tried[-1].correct or tried[-1].kinked or tried[-1].undecided) and len(tried) < STEPS:
        shorter = _Compared(path, drawn, tried[-1].step / 10, noise, h, tol)
        if shorter.blur > tol:
            break
        tried.append(shorter)
    return next((t for t in reversed(tried) if t.correct), None) or next(
        (t for t in tried if math.isfinite(t.error)), tried[0]
    )


class _Compared:
    """<h, d> beside the slopes of F along each d; all errors are relative to `scale`, the largest of these numbers."""

    def __init__(self, path: _Path, drawn: list[Tensor], step: float, noise: float, h: Averaged, tol: float) -> None:
        self.drawn, self.step, self.h, self.tol = drawn, step, h, tol
        self.slopes = tuple(slope(lambda t, d=d: path.value(d, t), float(h.mean @ d), step, noise) for d in drawn)
        numbers = torch.tensor([(s.predicted, s.central, s.forward, s.backward) for s in self.slopes]).double()
        self.scale = float(numbers.abs().max())  # NaN if one of them is
        size = self.scale if self.scale > 0 else 1.0
        self.error = max(s.error for s in self.slopes) / size if math.isfinite(self.scale) else math.nan
        self.blur = 10 * noise / step / size  # of the differences
        self.spread = h.doubt(drawn) / size  # of the draws

    @property
    def doubt(self) -> float:
        """What noise leaves open."""
        return self.blur + self.spread

    @property
    def correct(self) -> bool:
        return self.error <= self.tol and self.doubt <= self.tol

    @property
    def kinked(self) -> bool:
        """F has different slopes on the two sides."""
        return any(s.kinked and s.jump > 1e-3 * self.scale for s in self.slopes)

    @property
    def undecided(self) -> bool:
        """The true error may lie on either side of tol."""
        return not self.correct and self.error <= self.tol + self.doubt

    @property
    def worth_more_draws(self) -> bool:
        """With more draws the spread would fall below tol, or below the error."""
        spread = self.spread * math.sqrt(DRAWS[0] / DRAWS[1])
        would_decide = self.blur + spread <= self.tol or self.error > self.tol + self.blur + spread
        return self.h.random and self.undecided and would_decide

    def why_undecided(self) -> Finding:
        if self.blur >= self.spread:
            return Finding(Cause.PRECISION, f"the differences of F are known to {self.blur:.1e}, tol is {self.tol:g}")
        known = f"the mean of {len(self.h.draws)} draws is known to {self.spread:.1e}"
        return Finding(Cause.UNDECIDED, f"{known}, its error is {self.error:.1e}, tol is {self.tol:g}")


def _noise_of_f(probe: Probe, y: Tensor, generator: torch.Generator, lower_error: float) -> float:
    """The noise of F: rounding in f, and |f_y| times the error of y*."""
    d, e = unit(probe.x, generator), unit(y, generator)
    rounding = noise_of(lambda t: probe.upper(probe.x + t * d, y + t * e))
    slope_in_y = float(probe.upper_grads(probe.x, y)[1].norm())
    return max(rounding, probe.eps * abs(probe.upper(probe.x, y))) + slope_in_y * lower_error


def _is_flat(probe: Probe, y: Tensor, scale: float, blur: float) -> bool:
    """Every slope is zero up to rounding, and rounding is small beside the derivatives of f."""
    return scale <= blur <= 1e-3 * sum(float(part.norm()) for part in probe.upper_grads(probe.x, y)) or scale == 0.0


def _blame(
    probe: Probe, y: Tensor, asked: Asked, report: HypergradientCheck, found: _Compared, generator: torch.Generator
) -> Finding:
    """The parts are right, F is smooth as far as one can see, and h is not its gradient."""
    lin = probe.linearize(probe.x, y)
    truth = SPACE.ravel(LinearSolve().estimate(lin, Noise()).gradient)
    allowed = (found.tol + found.blur) * found.scale
    miss = max(abs(float(truth @ d) - s.central) for s, d in zip(found.slopes, found.drawn, strict=True))
    if not miss <= allowed:
        return _kink_or_unexplained(probe, y, report, miss, generator)
    if asked.y is not None:
        unsolved = check_point(probe, asked.flat_y(probe), feasible_only=False)
        if unsolved is not None:
            return unsolved
    if asked.dtype != probe.dtype and asked.gradient is None:
        wide = asked.averaged(lin, probe, DRAWS[0])
        off = max(abs(float((wide.mean - truth) @ d)) for d in found.drawn)
        if off <= allowed + wide.doubt(found.drawn):
            return Finding(
                Cause.PRECISION, f"relative error {report.error:.1e} in {asked.dtype}, none in {probe.dtype}"
            )
    return blame_method(asked.method, lin, found.h.mean, truth, found.h.noise, asked.seeds)


def _kink_or_unexplained(
    probe: Probe, y: Tensor, report: HypergradientCheck, miss: float, generator: torch.Generator
) -> Finding:
    """Several kinks may cancel in F, and still make h one element of a set (erratum 11)."""
    wrong = wrong_product_at(probe, y, generator)
    if wrong is not None:
        return wrong
    margin = report.face.margin if report.face is not None else math.nan
    if margin <= 1e-3 * max(1.0, float(y.norm())):
        return Finding(Cause.KINK, _jump(report.slopes))
    found = kinked_function(probe, probe.x, y, generator)
    return found or Finding(Cause.UNEXPLAINED, f"the linear solve is off by {miss:.2e} as well")


def _notes(probe: Probe, report: HypergradientCheck, flat: bool, found: _Compared) -> tuple[str, ...]:
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


class _Path:
    """F and z along lines through x, each lower level started from y*(x)."""

    def __init__(self, probe: Probe, y: Tensor) -> None:
        self.probe, self.y, self._solved = probe, y, {}

    def solution(self, d: Tensor, t: float) -> Tensor:
        if t == 0.0:
            return self.y
        key = (id(d), t)
        if key not in self._solved:
            self._solved[key] = self._solve(self.probe.x + t * d)
        return self._solved[key]

    def _solve(self, x: Tensor) -> Tensor:
        try:
            return SPACE.ravel(self.probe.solve(x, self.y).y)
        except (NotFinite, EmptySet):  # beyond the domain of g or of the set
            return torch.full_like(self.y, math.nan)

    def value(self, d: Tensor, t: float) -> float:
        """F(x + t d), NaN where it is not defined."""
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


def _jump(slopes: tuple[Slope, ...]) -> str:
    found = max(slopes, key=lambda s: s.jump)
    return f"the slope of F along a line is {found.backward:.6g} on one side and {found.forward:.6g} on the other"
