"""Are the parts of the problem what they claim to be? f and g, the set, and how it moves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..errors import IncompatibleError, InvalidInputError
from ..problem import AutogradLinearization, Linearization, Problem
from ..sets.from_projection import ProjectionSet
from .finite_differences import SPACE, DerivativeTest, Finding, Probe, Slope, compare_derivative, unit
from .lower_level import curvature
from .report import Cause


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
        _values_wrong(probe, y)
        or _upper_wrong(probe, y, generator)
        or _lower_wrong(probe, y, generator)
        or _second_wrong(probe, y, generator)
    )


def _values_wrong(probe: Probe, y: Tensor) -> Finding | None:
    """f and g are finite functions: with finite derivatives, and the same value when asked five times."""
    for name, function in (("f", probe.upper), ("g", probe.lower)):
        values = [function(probe.x, y) for _ in range(5)]
        if not all(map(math.isfinite, values)):
            return Finding(Cause.NOT_FINITE, f"{name} is {values[0]}")
        if len(set(values)) > 1:
            low, high = min(values), max(values)
            return Finding(Cause.NOT_DETERMINISTIC, f"{name} lies between {low:.9g} and {high:.9g} at the same point")
    lin = probe.linearize(probe.x, y)
    for name in ("upper_grad_x", "upper_grad_y", "lower_grad_y"):
        if not SPACE.is_finite(getattr(lin, name)):
            return Finding(Cause.NOT_FINITE, f"{name} has NaN or infinite entries")
    return None


def _upper_wrong(probe: Probe, y: Tensor, generator: torch.Generator) -> Finding | None:
    cause = _cause(probe.linearize(probe.x, y), "_upper_gradients", Cause.DETACHED_UPPER, Cause.WRONG_UPPER_GRADIENT)
    f_x, f_y = probe.upper_grads(probe.x, y)
    matters = False
    for _ in range(2):
        d, e = unit(probe.x, generator), unit(y, generator)
        in_x = _compare(lambda t, d=d: probe.upper(probe.x + t * d, y), f_x, d, probe)
        in_y = _compare(lambda t, e=e: probe.upper(probe.x, y + t * e), f_y, e, probe)
        for test, name in ((in_x, "x"), (in_y, "y")):
            if test.wrong:
                kind = Cause.UPPER_NOT_DIFFERENTIABLE if test.slope.kinked else cause
                return Finding(kind, test.numbers(f"f along a direction of {name}"))
        matters = matters or not in_y.slope.is_zero
    return None if matters else Finding(Cause.UPPER_IGNORES_Y, "grad_y f is zero, and so are the differences of f in y")


def _lower_wrong(probe: Probe, y: Tensor, generator: torch.Generator) -> Finding | None:
    lin, g_y = probe.linearize(probe.x, y), probe.lower_grad(probe.x, y)
    cause = _cause(lin, "_lower_gradient_y", Cause.DETACHED_LOWER, Cause.WRONG_LOWER_GRADIENT)
    if type(probe.problem).lower_grad is not Problem.lower_grad:
        cause = Cause.WRONG_LOWER_GRADIENT
    for _ in range(2):
        e = unit(y, generator)
        test = _compare(lambda t, e=e: probe.lower(probe.x, y + t * e), g_y, e, probe)
        if test.wrong:
            kind = Cause.LOWER_NOT_DIFFERENTIABLE if test.slope.kinked else cause
            return Finding(kind, test.numbers("g along a direction of y"))
    # No hypergradient needs grad_x g, but some solvers do; by autograd it is right where the mixed derivative is.
    if not _by_autograd(lin, "_lower_gradient_x"):
        g_x, d = SPACE.ravel(lin.lower_grad_x), unit(probe.x, generator)
        test = _compare(lambda t: probe.lower(probe.x + t * d, y), g_x, d, probe)
        if test.wrong and not test.slope.kinked:
            return Finding(Cause.WRONG_LOWER_GRADIENT, test.numbers("g along a direction of x"))
    return None


def _second_wrong(probe: Probe, y: Tensor, generator: torch.Generator) -> Finding | None:
    lin = probe.linearize(probe.x, y)
    matters = probe.problem.moving
    for _ in range(2):
        r, d, e = unit(y, generator), unit(probe.x, generator), unit(y, generator)
        product, cross = SPACE.ravel(lin.lower_hvp(probe.as_y(e))), SPACE.ravel(lin.lower_cross(probe.as_y(r)))
        in_y = _compare(lambda t, r=r, e=e: float(r @ probe.lower_grad(probe.x, y + t * e)), product, r, probe)
        if in_y.wrong and not in_y.slope.kinked:
            cause = _cause(lin, "_lower_hvp", Cause.DETACHED_LOWER, Cause.WRONG_HESSIAN)
            return Finding(cause, in_y.numbers("grad_y g along a direction of y"))
        in_x = _compare(lambda t, r=r, d=d: float(r @ probe.lower_grad(probe.x + t * d, y)), cross, d, probe)
        if in_x.wrong and not in_x.slope.kinked:
            cause = _cause(lin, "_lower_cross", Cause.DETACHED_LOWER, Cause.WRONG_CROSS)
            return Finding(cause, in_x.numbers("grad_y g along a direction of x"))
        matters = matters or not in_x.slope.is_zero
    text = "the mixed derivative of g is zero, and the set is fixed"
    return None if matters else Finding(Cause.LOWER_IGNORES_X, text)


def _compare(function: Callable[[float], float], vector: Tensor, direction: Tensor, probe: Probe) -> DerivativeTest:
    """<vector, direction> against differences; beside the slope of a random direction, |vector| / sqrt(n)."""
    typical = float(vector.norm()) / math.sqrt(vector.numel())
    return compare_derivative(function, float(vector @ direction), typical, probe)


def _by_autograd(lin: Linearization, method: str) -> bool:
    """Whether this product comes from the graph and not from a method written by hand."""
    automatic = getattr(AutogradLinearization, method)
    return isinstance(lin, AutogradLinearization) and getattr(type(lin), method) is automatic


def _cause(lin: Linearization, method: str, detached: Cause, by_hand: Cause) -> Cause:
    return detached if _by_autograd(lin, method) else by_hand


BY_HAND = {Cause.WRONG_UPPER_GRADIENT, Cause.WRONG_LOWER_GRADIENT, Cause.WRONG_HESSIAN, Cause.WRONG_CROSS}
WRONG_PRODUCTS = {*BY_HAND, Cause.DETACHED_UPPER, Cause.DETACHED_LOWER}
"""What can be told at a point where f or g may have a kink."""


def wrong_product_at(probe: Probe, y: Tensor, generator: torch.Generator) -> Finding | None:
    """A derivative that is wrong near this y, though it was right at generic points.

    At a solution itself gradients may vanish, and leave rounding to be compared with rounding.
    """
    beside = y + 1e-4 * max(1.0, float(y.norm())) * unit(y, generator)
    finding = _first_wrong(probe, beside, generator)
    return finding if finding is not None and finding.cause in WRONG_PRODUCTS else None


def kinked_function(probe: Probe, y: Tensor, generator: torch.Generator) -> Finding | None:
    """Whether f, or the gradient of g in y, has a kink at (x, y) itself."""
    x, lin = probe.x, probe.linearize(probe.x, y)
    (f_x, f_y) = probe.upper_grads(x, y)
    for _ in range(4):
        d, e, r = unit(x, generator), unit(y, generator), unit(y, generator)
        test = compare_derivative(
            lambda t, d=d, e=e: probe.upper(x + t * d, y + t * e), float(f_x @ d + f_y @ e), 0.0, probe
        )
        if _is_kink(test.slope, float(f_x.norm() + f_y.norm())):
            return Finding(Cause.UPPER_NOT_DIFFERENTIABLE, test.slope.sides("f"))
        function = lambda t, d=d, e=e, r=r: float(r @ probe.lower_grad(x + t * d, y + t * e))  # noqa: E731
        in_x, in_y = (SPACE.ravel(product(probe.as_y(r))) for product in (lin.lower_cross, lin.lower_hvp))
        test = compare_derivative(function, float(in_x @ d + in_y @ e), 0.0, probe)
        if _is_kink(test.slope, float(in_x.norm() + in_y.norm())):
            return Finding(Cause.LOWER_NOT_DIFFERENTIABLE, test.slope.sides("grad_y g"))
    return None


def _is_kink(found: Slope, typical: float) -> bool:
    """The two slopes differ, beyond what rounding leaves where terms of a typical size cancel."""
    sides = max(abs(found.forward), abs(found.backward))
    return found.kinked and found.jump > max(1e-3 * sides, 1e-6 * typical)


def steep_gradient(probe: Probe, y: Tensor, generator: torch.Generator) -> Finding | None:
    """grad_y g jumps near y: it changes far faster than its own derivative says."""
    x, largest = probe.x, curvature(probe.linearize(probe.x, y)).largest
    for step in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6):
        e = unit(y, generator)
        h = step * max(1.0, float(y.norm()))
        seen = float((probe.lower_grad(x, y + h * e) - probe.lower_grad(x, y - h * e)).norm()) / (2 * h)
        if seen > 1e2 * max(largest, probe.eps):
            text = f"grad_y g jumps near y*: over a distance of {2 * h:.1e} it changes by {2 * h * seen:.3g}"
            return Finding(Cause.LOWER_NOT_DIFFERENTIABLE, f"{text}, its second derivative says {2 * h * largest:.1e}")
    return None


WRONG_JACOBIAN = 1e-3
"""An error of H v from which a Jacobian counts as wrong, for |v| = 1; the projection may come from an iteration."""


def check_set(probe: Probe, generator: torch.Generator) -> Finding | None:
    """P(P z) = P z, |P z - P w| <= |z - w|, <z - P z, w - P z> <= 0 for w in Y, and H is the derivative of P."""
    try:
        points = list(_around(probe, generator))
        feet = [probe.project(z) for z in points]
        near = [probe.project(p + 0.3 * max(1.0, float(p.norm())) * unit(p, generator)) for p in feet for _ in range(4)]
        again = [probe.project(p) for p in feet]
    except InvalidInputError as error:
        if isinstance(probe.set_at(probe.x), ProjectionSet):  # it looks at its own first answers
            return Finding(Cause.NOT_A_PROJECTION, str(error))
        raise
    flaw = _projection_flaw(points, feet, again, near, 1e3 * probe.eps**0.5) or _outside(probe, feet)
    if flaw is not None:
        return Finding(Cause.NOT_A_PROJECTION, flaw)
    return next(filter(None, (wrong_jacobian_at(probe, z, generator) for z in points)), None)


def _outside(probe: Probe, feet: list[Tensor]) -> str | None:
    """Where P(z) does not lie in Y by the set's own word."""
    members = (probe.set_at(probe.x).contains(probe.as_y(p), tol=1e-5) for p in feet)
    return next((f"P(z) is not in Y: {member.reason}" for member in members if not member), None)


def _around(probe: Probe, generator: torch.Generator) -> Iterator[Tensor]:
    """Points near y0 and far from it."""
    size = max(1.0, float(probe.y.norm()) / probe.y.numel() ** 0.5)
    for spread in (0.3, 1.0, 1.0, 3.0, 3.0, 10.0):
        yield probe.y + spread * size * probe.y.numel() ** 0.5 * unit(probe.y, generator)


def _projection_flaw(
    points: list[Tensor], feet: list[Tensor], again: list[Tensor], others: list[Tensor], slack: float
) -> str | None:
    """Which of the three properties fails, with its numbers."""
    for z, p, pp in zip(points, feet, again, strict=True):
        size, moved = max(float(z.norm()), float(p.norm()), 1e-300), float((pp - p).norm())
        if moved > slack * size:
            return f"not idempotent: P(P(z)) is {moved:.3g} from P(z), |z| = {size:.3g}"
    for (w, q), (z, p) in itertools.combinations(zip(points, feet, strict=True), 2):
        apart, moved = float((z - w).norm()), float((p - q).norm())
        if moved > apart * (1 + slack):
            return f"expansive: |P(z) - P(w)| = {moved:.4g} > |z - w| = {apart:.4g}"
    for z, p in zip(points, feet, strict=True):
        for q in (*feet, *others):
            angle, size = float((z - p) @ (q - p)), float((z - p).norm() * (q - p).norm())
            if angle > slack * max(size, 1e-300) and size > slack:
                near, far = float((z - p).norm()), _nearest_between(z, p, q)
                return f"not nearest: a point of Y on the way from P(z) to P(w) is {far:.4g} from z, P(z) is {near:.4g}"
    return None


def _nearest_between(z: Tensor, p: Tensor, q: Tensor) -> float:
    """The distance from z to the segment [p, q], which lies in a convex Y."""
    t = float(((z - p) @ (q - p)) / (q - p).square().sum())
    return float((z - p - min(t, 1.0) * (q - p)).norm())


def wrong_jacobian_at(probe: Probe, z: Tensor, generator: torch.Generator) -> Finding | None:
    """H v against differences of P, where P has no kink; and H H v = H v where that is claimed."""
    v, h = unit(z, generator), 10 * probe.eps**0.5 * max(1.0, float(z.norm()))
    try:
        face = probe.set_at(probe.x).jacobian(probe.as_y(z))
        product = SPACE.ravel(face.apply(probe.as_y(v)))
    except (IncompatibleError, NotImplementedError) as error:
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
            text = f"is_projector is claimed, but |H H v - H v| = {miss:.3g} for |v| = 1"
            return Finding(Cause.WRONG_SET_JACOBIAN, text)
    return None


def check_motion(probe: Probe, generator: torch.Generator) -> Finding | None:
    """The derivative of P_Y(x)(z) in x, as the library sees it, against differences."""
    for z in _around(probe, generator) if probe.problem.moving else ():
        u, d = unit(probe.y, generator), unit(probe.x, generator)
        through = probe.problem.constraint_vjp(probe.as_x(probe.x), probe.as_y(z), probe.as_y(u))
        predicted = 0.0 if through is None else float(SPACE.ravel(through) @ d)
        moved = lambda t, z=z, u=u, d=d: float(u @ probe.project(z, probe.x + t * d))  # noqa: E731
        test = compare_derivative(moved, predicted, 0.0, probe)
        if test.wrong and not test.slope.kinked:
            return Finding(Cause.DETACHED_SET, test.numbers("<u, P(z)> along a direction of x"))
    return None
