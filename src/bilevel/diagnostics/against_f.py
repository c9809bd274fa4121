"""A hypergradient against F itself: slopes from both sides along random directions, and who is to blame."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ..hypergradients import LinearSolve
from ..randomness import Noise
from .asked import DRAWS, Asked
from .causes import Cause
from .compared import Compared, Path, with_the_best_step
from .function_parts import kinked_function, wrong_product_at
from .judge import Finding
from .probe import SPACE, Probe, Slope, noise_of, unit
from .report import HypergradientCheck
from .suspects import blame_method, check_point


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
    path = Path(probe, y)
    h = asked.hypergradient(probe, y, DRAWS[0])
    noise = _noise_of_f(probe, y, generator, report.lower_residual / mu)
    step = max(1.0, float(probe.x.norm())) * max(1e-4, min(0.1, (noise / (1.0 + float(h.mean.norm()))) ** (1 / 3)))
    drawn = [unit(probe.x, generator) for _ in range(directions)]
    found = with_the_best_step(path, drawn, step, noise, h, tol)
    step = found.step
    if found.worth_more_draws:
        found = Compared(path, drawn, step, noise, asked.hypergradient(probe, y, DRAWS[1]), tol)
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
    probe: Probe, y: Tensor, asked: Asked, report: HypergradientCheck, found: Compared, generator: torch.Generator
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


def _notes(probe: Probe, report: HypergradientCheck, flat: bool, found: Compared) -> tuple[str, ...]:
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


def _jump(slopes: tuple[Slope, ...]) -> str:
    found = max(slopes, key=lambda s: s.jump)
    return f"the slope of F along a line is {found.backward:.6g} on one side and {found.forward:.6g} on the other"
