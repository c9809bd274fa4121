"""Are the parts of the problem what they claim to be? f and g, the set, and how it moves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .._derivative_check import FlatSet, slope_test, unit
from ..errors import IncompatibleError, InvalidInputError
from ..problem import AutogradLinearization, Linearization, Problem
from ..sets.from_projection import ProjectionSet
from .finite_differences import SPACE, DerivativeTest, Finding, Probe, Slope, compare_derivative
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


class Derivative(NamedTuple):
    """A derivative that is compared with differences, and what it means if they disagree."""

    part: str
    variable: str
    method: str
    detached: Cause
    by_hand: Cause
    kinked: Cause | None = None
    """What a jump between the two sides means; None: nothing, at generic points."""


OF_F = ("_upper_gradients", Cause.DETACHED_UPPER, Cause.WRONG_UPPER_GRADIENT, Cause.UPPER_NOT_DIFFERENTIABLE)
DERIVATIVES = (
    Derivative("f", "x", *OF_F),
    Derivative("f", "y", *OF_F),
    Derivative(
        "g", "y", "_lower_gradient_y", Cause.DETACHED_LOWER, Cause.WRONG_LOWER_GRADIENT, Cause.LOWER_NOT_DIFFERENTIABLE
    ),
    Derivative("g", "x", "_lower_gradient_x", Cause.DETACHED_LOWER, Cause.WRONG_LOWER_GRADIENT),
    Derivative("grad_y g", "y", "_lower_hvp", Cause.DETACHED_LOWER, Cause.WRONG_HESSIAN),
    Derivative("grad_y g", "x", "_lower_cross", Cause.DETACHED_LOWER, Cause.WRONG_CROSS),
)


def _first_wrong(probe: Probe, y: Tensor, generator: torch.Generator) -> Finding | None:
    """The first value or derivative that is wrong, or does not matter where it should."""
    finding = _values_wrong(probe, y)
    if finding is not None:
        return finding
    lin = probe.linearize(probe.x, y)
    for derivative in DERIVATIVES:
        part, variable, method, detached, by_hand, kinked = derivative
        automatic = _by_autograd(lin, method)
        if (part, variable) == ("g", "x") and automatic:
            continue  # right where the mixed derivative is; solvers alone need it
        tests = [_compare(probe, part, variable, y, generator) for _ in range(2)]
        for test in tests:
            cause = kinked if test.slope.kinked else detached if automatic else by_hand
            if test.wrong and cause is not None:
                return Finding(cause, test.numbers(f"{part} along a direction of {variable}"))
        if all(test.slope.predicted == test.slope.central == 0.0 for test in tests):
            if (part, variable) == ("f", "y"):
                return Finding(Cause.UPPER_IGNORES_Y, "grad_y f is zero, and so are the differences of f in y")
            if (part, variable) == ("grad_y g", "x") and not probe.problem.moving:
                return Finding(Cause.LOWER_IGNORES_X, "the mixed derivative of g is zero, and the set is fixed")
    return None


def _compare(
    probe: Probe, part: str, variable: str, y: Tensor, generator: torch.Generator, z: Tensor | None = None
) -> DerivativeTest:
    """A derivative at (x, y) against differences along a random direction."""
    point = probe.as_x(probe.x), probe.as_y(y)
    test = slope_test(probe.problem, part, variable, *point, generator, probe.as_y(y if z is None else z))
    return compare_derivative(test.function, test.predicted, test.typical, probe)


def _by_autograd(lin: Linearization, method: str) -> bool:
    """Whether this product comes from the graph and not from a method written by hand."""
    if method == "_lower_gradient_y" and type(lin.problem).lower_grad is not Problem.lower_grad:
        return False
    automatic = getattr(AutogradLinearization, method)
    return isinstance(lin, AutogradLinearization) and getattr(type(lin), method) is automatic


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


WRONG_PRODUCTS = {cause for derivative in DERIVATIVES for cause in (derivative.detached, derivative.by_hand)}
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
    """Whether `project` is a projection on a convex set, and H its derivative."""
    flat = FlatSet(probe.set_at(probe.x), probe.as_y(probe.y))
    try:
        points = list(_around(probe, generator))
        beside = (p + 0.3 * max(1.0, float(p.norm())) * unit(p, generator) for p in map(flat.project, 4 * points))
        near = [flat.project(p) for p in beside]
        flaw = flat.projection_flaw(points, near, 1e3 * probe.eps**0.5, 1e-5)
    except InvalidInputError as error:
        if not isinstance(flat.constraint, ProjectionSet):  # it looks at its own first answers
            raise
        flaw = str(error)
    if flaw:
        return Finding(Cause.NOT_A_PROJECTION, flaw)
    return next(filter(None, (wrong_jacobian_at(probe, z, generator) for z in points)), None)


def _around(probe: Probe, generator: torch.Generator) -> Iterator[Tensor]:
    """Points near y0 and far from it."""
    size = max(1.0, float(probe.y.norm()) / probe.y.numel() ** 0.5)
    for spread in (0.3, 1.0, 1.0, 3.0, 3.0, 10.0):
        yield probe.y + spread * size * probe.y.numel() ** 0.5 * unit(probe.y, generator)


def wrong_jacobian_at(probe: Probe, z: Tensor, generator: torch.Generator) -> Finding | None:
    """H v against differences of P, where P has no kink; and H H v = H v where that is claimed."""
    h = 10 * probe.eps**0.5 * max(1.0, float(z.norm()))
    try:
        flat = FlatSet(probe.set_at(probe.x), probe.as_y(probe.y))
        flaw = flat.jacobian_flaw(z, unit(z, generator), h, WRONG_JACOBIAN)
    except (IncompatibleError, NotImplementedError) as error:
        return Finding(Cause.INCOMPATIBLE, f"the set has no Jacobian: {error}")
    return Finding(Cause.WRONG_SET_JACOBIAN, flaw) if flaw else None


def check_motion(probe: Probe, generator: torch.Generator) -> Finding | None:
    """The derivative of P_Y(x)(z) in x, as the library sees it, against differences."""
    for z in _around(probe, generator) if probe.problem.moving else ():
        test = _compare(probe, "the projection on Y", "x", probe.y, generator, z)
        if test.wrong and not test.slope.kinked:
            return Finding(Cause.DETACHED_SET, test.numbers("<u, P(z)> along a direction of x"))
    return None
