"""The parts of a problem, judged one by one at generic points: f, g, their derivatives, the set and its Jacobian."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import Incompatible, InvalidInput
from ..problem import AutogradLinearization
from ..sets.from_projection import ProjectionSet
from .causes import Cause
from .probe import SPACE, Probe, Slope, noise_of, slope, unit

WRONG = 1e-5
"""Relative error from which a derivative counts as wrong; central differences of a right one are a thousandth of it."""
WRONG_JACOBIAN = 1e-3
"""The same for the Jacobian of a projection, which may itself come from an iteration."""


class Finding(NamedTuple):
    """What is wrong, with its numbers."""

    cause: Cause
    detail: str


def check_set(probe: Probe, generator: torch.Generator) -> Finding | None:
    """P(P z) = P z, |P z - P w| <= |z - w|, <z - P z, w - P z> <= 0 for w in Y, and H is the derivative of P."""
    try:
        points = list(_around(probe, generator))
        feet = [probe.project(z) for z in points]
        near = [probe.project(p + 0.3 * max(1.0, float(p.norm())) * unit(p, generator)) for p in feet for _ in range(4)]
        again = [probe.project(p) for p in feet]
    except InvalidInput as error:
        if isinstance(probe.set_at(probe.x), ProjectionSet):  # it looks at its own first answers
            return Finding(Cause.NOT_A_PROJECTION, str(error))
        raise
    return (
        _not_a_projection(points, feet, again, near, 1e3 * probe.eps**0.5)
        or _outside(probe, feet)
        or _wrong_jacobian(probe, points, generator)
    )


def _outside(probe: Probe, feet: list[Tensor]) -> Finding | None:
    """P(z) lies in Y by the set's own word."""
    for p in feet:
        member = probe.set_at(probe.x).contains(probe.as_y(p), tol=1e-5)
        if not member:
            return Finding(Cause.NOT_A_PROJECTION, f"P(z) is not in Y: {member.reason}")
    return None


def _around(probe: Probe, generator: torch.Generator) -> Iterator[Tensor]:
    """Points near y0 and far from it."""
    size = max(1.0, float(probe.y.norm()) / probe.y.numel() ** 0.5)
    for spread in (0.3, 1.0, 1.0, 3.0, 3.0, 10.0):
        yield probe.y + spread * size * probe.y.numel() ** 0.5 * unit(probe.y, generator)


def _not_a_projection(
    points: list[Tensor], feet: list[Tensor], again: list[Tensor], others: list[Tensor], slack: float
) -> Finding | None:
    for z, p, pp in zip(points, feet, again, strict=True):
        size = max(float(z.norm()), float(p.norm()), 1e-300)
        if float((pp - p).norm()) > slack * size:
            moved = float((pp - p).norm())
            return Finding(
                Cause.NOT_A_PROJECTION, f"not idempotent: P(P(z)) is {moved:.3g} from P(z), |z| = {size:.3g}"
            )
    for i, (z, p) in enumerate(zip(points, feet, strict=True)):
        for w, q in zip(points[:i], feet[:i], strict=True):
            asked, moved = float((z - w).norm()), float((p - q).norm())
            if moved > asked * (1 + slack):
                return Finding(
                    Cause.NOT_A_PROJECTION, f"expansive: |P(z) - P(w)| = {moved:.4g} > |z - w| = {asked:.4g}"
                )
    for z, p in zip(points, feet, strict=True):
        for q in (*feet, *others):
            angle, size = float((z - p) @ (q - p)), float((z - p).norm() * (q - p).norm())
            if angle > slack * max(size, 1e-300) and size > slack:
                near, far = float((z - p).norm()), _nearest_between(z, p, q)
                text = f"not nearest: a point of Y on the way from P(z) to P(w) is {far:.4g} from z, P(z) is {near:.4g}"
                return Finding(Cause.NOT_A_PROJECTION, text)
    return None


def _nearest_between(z: Tensor, p: Tensor, q: Tensor) -> float:
    """The distance from z to the segment [p, q], which lies in a convex Y."""
    t = float(((z - p) @ (q - p)) / (q - p).square().sum())
    return float((z - p - min(t, 1.0) * (q - p)).norm())


def _wrong_jacobian(probe: Probe, points: list[Tensor], generator: torch.Generator) -> Finding | None:
    for z in points:
        finding = wrong_jacobian_at(probe, z, generator)
        if finding is not None:
            return finding
    return None


def wrong_jacobian_at(probe: Probe, z: Tensor, generator: torch.Generator) -> Finding | None:
    """H v against differences of P, where P has no kink; and H H v = H v where that is claimed."""
    v, h = unit(z, generator), 10 * probe.eps**0.5 * max(1.0, float(z.norm()))
    try:
        face = probe.set_at(probe.x).jacobian(probe.as_y(z))
        product = SPACE.ravel(face.apply(probe.as_y(v)))
    except (Incompatible, NotImplementedError) as error:
        return Finding(Cause.INCOMPATIBLE, f"the set has no Jacobian: {error}")
    here = probe.project(z)
    ahead, behind = (probe.project(z + t * v) for t in (h, -h))
    if float((ahead - 2 * here + behind).norm()) > 1e-2 * WRONG_JACOBIAN * h:  # a kink, or noise
        return None
    miss = float((product - (ahead - behind) / (2 * h)).norm())
    if miss > WRONG_JACOBIAN:
        return Finding(Cause.WRONG_SET_JACOBIAN, f"|H v - differences of P| = {miss:.3g} for |v| = 1")
    if face.is_projector:
        miss = float((SPACE.ravel(face.apply(probe.as_y(product))) - product).norm())
        if miss > WRONG_JACOBIAN:
            return Finding(
                Cause.WRONG_SET_JACOBIAN, f"is_projector is claimed, but |H H v - H v| = {miss:.3g} for |v| = 1"
            )
    return None


def check_motion(probe: Probe, generator: torch.Generator) -> Finding | None:
    """The derivative of P_Y(x)(z) in x, as the library sees it, against differences."""
    for z in _around(probe, generator) if probe.problem.moving else ():
        u, d = unit(probe.y, generator), unit(probe.x, generator)
        through = probe.problem.constraint_vjp(probe.as_x(probe.x), probe.as_y(z), probe.as_y(u))
        predicted = 0.0 if through is None else float(SPACE.ravel(through) @ d)
        judged = _judge(lambda t, z=z, u=u, d=d: float(u @ probe.project(z, probe.x + t * d)), predicted, 0.0, probe)
        if judged.wrong and not judged.slope.kinked:
            return Finding(Cause.DETACHED_SET, judged.numbers("<u, P(z)> along a direction of x"))
    return None


class _Judged(NamedTuple):
    slope: Slope
    wrong: bool

    def numbers(self, what: str) -> str:
        return f"{what}: derivative {self.slope.predicted:.6g}, differences {self.slope.central:.6g}"


def _judge(function: Callable[[float], float], predicted: float, size: float, probe: Probe) -> _Judged:
    """A predicted slope against differences, in view of the rounding noise of the function."""
    length = max(1.0, float(probe.x.norm()))
    value = abs(function(0.0))
    noise = max(noise_of(function), probe.eps * value)
    step = length * max(1e-4, min(0.1, (noise / max(value, size, 1e-300)) ** (1 / 3)))
    found = slope(function, predicted, step, noise)
    scale = max(abs(predicted), abs(found.central), size)
    wrong = not found.error <= WRONG * scale + 10 * noise / step
    return _Judged(found, wrong)


def check_functions(probe: Probe, generator: torch.Generator) -> Finding | None:
    """f, g and their derivatives at three generic points; what is found at all three counts."""
    spread = max(1.0, float(probe.y.norm()) / probe.y.numel() ** 0.5) * probe.y.numel() ** 0.5
    findings = []
    for _ in range(3):
        drawn = [probe.project(probe.y + spread * unit(probe.y, generator)) for _ in range(3)]
        finding = _first_wrong(probe, (probe.y + sum(drawn)) / 4, generator)
        if finding is None or finding.cause in (Cause.NOT_FINITE, Cause.NOT_DETERMINISTIC):
            return finding
        findings.append(finding)
    return findings[0]


def _first_wrong(probe: Probe, y: Tensor, generator: torch.Generator) -> Finding | None:
    return (
        values_wrong(probe, probe.x, y)
        or _upper_wrong(probe, y, generator)
        or _lower_wrong(probe, y, generator)
        or _second_wrong(probe, y, generator)
    )


def values_wrong(probe: Probe, x: Tensor, y: Tensor) -> Finding | None:
    """f and g are finite functions: with finite derivatives, and the same value when asked five times."""
    for name, function in (("f", probe.upper), ("g", probe.lower)):
        values = [function(x, y) for _ in range(5)]
        if not all(map(math.isfinite, values)):
            return Finding(Cause.NOT_FINITE, f"{name} is {values[0]}")
        if len(set(values)) > 1:
            low, high = min(values), max(values)
            return Finding(Cause.NOT_DETERMINISTIC, f"{name} lies between {low:.9g} and {high:.9g} at the same point")
    lin = probe.linearize(x, y)
    for name in ("upper_grad_x", "upper_grad_y", "lower_grad_y"):
        if not SPACE.is_finite(getattr(lin, name)):
            return Finding(Cause.NOT_FINITE, f"{name} has NaN or infinite entries")
    return None


def _upper_wrong(probe: Probe, y: Tensor, generator: torch.Generator) -> Finding | None:
    lin = probe.linearize(probe.x, y)
    cut = Cause.DETACHED_UPPER if isinstance(lin, AutogradLinearization) else Cause.WRONG_UPPER_GRADIENT
    f_x, f_y = probe.upper_grads(probe.x, y)
    matters = False
    for _ in range(2):
        d, e = unit(probe.x, generator), unit(y, generator)
        in_x = _judge(lambda t, d=d: probe.upper(probe.x + t * d, y), float(f_x @ d), _typical(f_x), probe)
        in_y = _judge(lambda t, e=e: probe.upper(probe.x, y + t * e), float(f_y @ e), _typical(f_y), probe)
        for judged, name in ((in_x, "x"), (in_y, "y")):
            if judged.wrong:
                cause = Cause.UPPER_NOT_DIFFERENTIABLE if judged.slope.kinked else cut
                return Finding(cause, judged.numbers(f"f along a direction of {name}"))
        matters = matters or in_y.slope.central != 0.0 or in_y.slope.predicted != 0.0
    return None if matters else Finding(Cause.UPPER_IGNORES_Y, "grad_y f is zero, and so are the differences of f in y")


def _lower_wrong(probe: Probe, y: Tensor, generator: torch.Generator) -> Finding | None:
    lin = probe.linearize(probe.x, y)
    cut = Cause.DETACHED_LOWER if isinstance(lin, AutogradLinearization) else Cause.WRONG_LOWER_GRADIENT
    g_y = probe.lower_grad(probe.x, y)
    for _ in range(2):
        e = unit(y, generator)
        judged = _judge(lambda t, e=e: probe.lower(probe.x, y + t * e), float(g_y @ e), _typical(g_y), probe)
        if judged.wrong:
            cause = Cause.LOWER_NOT_DIFFERENTIABLE if judged.slope.kinked else cut
            return Finding(cause, judged.numbers("g along a direction of y"))
    return None


def _second_wrong(probe: Probe, y: Tensor, generator: torch.Generator) -> Finding | None:
    lin = probe.linearize(probe.x, y)
    auto = isinstance(lin, AutogradLinearization)
    matters = probe.problem.moving
    for _ in range(2):
        r, d, e = unit(y, generator), unit(probe.x, generator), unit(y, generator)
        along = lambda a, b: float(r @ probe.lower_grad(a, b))  # noqa: B023, E731
        product = SPACE.ravel(lin.lower_hvp(probe.as_y(e)))
        in_y = _judge(lambda t: along(probe.x, y + t * e), float(r @ product), _typical(product), probe)  # noqa: B023
        if in_y.wrong and not in_y.slope.kinked:
            cause = Cause.DETACHED_LOWER if auto else Cause.WRONG_HESSIAN
            return Finding(cause, in_y.numbers("grad_y g along a direction of y"))
        cross = SPACE.ravel(lin.lower_cross(probe.as_y(r)))
        in_x = _judge(lambda t: along(probe.x + t * d, y), float(cross @ d), _typical(cross), probe)  # noqa: B023
        if in_x.wrong and not in_x.slope.kinked:
            cause = Cause.DETACHED_LOWER if auto else Cause.WRONG_CROSS
            return Finding(cause, in_x.numbers("grad_y g along a direction of x"))
        matters = matters or in_x.slope.central != 0.0 or in_x.slope.predicted != 0.0
    return (
        None if matters else Finding(Cause.LOWER_IGNORES_X, "the mixed derivative of g is zero, and the set is fixed")
    )


def _typical(vector: Tensor) -> float:
    """The size of the slope of a random direction."""
    return float(vector.norm()) / math.sqrt(vector.numel())


def kinked_function(probe: Probe, x: Tensor, y: Tensor, generator: torch.Generator) -> Finding | None:
    """Whether f, or the gradient of g in y, has a kink at (x, y) itself."""
    f_x, f_y = probe.upper_grads(x, y)
    for _ in range(4):
        d, e, r = unit(x, generator), unit(y, generator), unit(y, generator)
        predicted = float(f_x @ d + f_y @ e)
        judged = _judge(lambda t, d=d, e=e: probe.upper(x + t * d, y + t * e), predicted, 0.0, probe)
        if _is_kink(judged):
            return Finding(Cause.UPPER_NOT_DIFFERENTIABLE, _two_sides("f", judged.slope))
        function = lambda t, d=d, e=e, r=r: float(r @ probe.lower_grad(x + t * d, y + t * e))  # noqa: E731
        judged = _judge(function, 0.0, 0.0, probe)
        if _is_kink(judged):
            return Finding(Cause.LOWER_NOT_DIFFERENTIABLE, _two_sides("grad_y g", judged.slope))
    return None


def _is_kink(judged: _Judged) -> bool:
    sides = max(abs(judged.slope.forward), abs(judged.slope.backward))
    return judged.slope.kinked and judged.slope.jump > 1e-3 * sides


def _two_sides(name: str, found: Slope) -> str:
    return f"the slope of {name} along a line is {found.backward:.6g} on one side and {found.forward:.6g} on the other"


def steep_gradient(probe: Probe, x: Tensor, y: Tensor, generator: torch.Generator, largest: float) -> Finding | None:
    """grad_y g jumps near y: it changes far faster than its own derivative says."""
    for step in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6):
        e = unit(y, generator)
        h = step * max(1.0, float(y.norm()))
        seen = float((probe.lower_grad(x, y + h * e) - probe.lower_grad(x, y - h * e)).norm()) / (2 * h)
        if seen > 1e2 * max(largest, probe.eps):
            text = f"grad_y g jumps near y*: over a distance of {2 * h:.1e} it changes by {2 * h * seen:.3g}"
            return Finding(Cause.LOWER_NOT_DIFFERENTIABLE, f"{text}, its second derivative says {2 * h * largest:.1e}")
    return None
