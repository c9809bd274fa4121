"""f, g and their derivatives, judged at generic points and at the solution."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..problem import AutogradLinearization, Linearization, Problem
from .causes import Cause
from .judge import Finding, Judged, judge
from .probe import SPACE, Probe, Slope, unit


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
    cut = Cause.DETACHED_UPPER if _by_autograd(lin, "_upper_gradients") else Cause.WRONG_UPPER_GRADIENT
    f_x, f_y = probe.upper_grads(probe.x, y)
    matters = False
    for _ in range(2):
        d, e = unit(probe.x, generator), unit(y, generator)
        in_x = judge(lambda t, d=d: probe.upper(probe.x + t * d, y), float(f_x @ d), _typical(f_x), probe)
        in_y = judge(lambda t, e=e: probe.upper(probe.x, y + t * e), float(f_y @ e), _typical(f_y), probe)
        for judged, name in ((in_x, "x"), (in_y, "y")):
            if judged.wrong:
                cause = Cause.UPPER_NOT_DIFFERENTIABLE if judged.slope.kinked else cut
                return Finding(cause, judged.numbers(f"f along a direction of {name}"))
        matters = matters or in_y.slope.central != 0.0 or in_y.slope.predicted != 0.0
    return None if matters else Finding(Cause.UPPER_IGNORES_Y, "grad_y f is zero, and so are the differences of f in y")


def _lower_wrong(probe: Probe, y: Tensor, generator: torch.Generator) -> Finding | None:
    lin = probe.linearize(probe.x, y)
    auto = _by_autograd(lin, "_lower_gradient_y") and type(probe.problem).lower_grad is Problem.lower_grad
    cut = Cause.DETACHED_LOWER if auto else Cause.WRONG_LOWER_GRADIENT
    g_y = probe.lower_grad(probe.x, y)
    for _ in range(2):
        e = unit(y, generator)
        judged = judge(lambda t, e=e: probe.lower(probe.x, y + t * e), float(g_y @ e), _typical(g_y), probe)
        if judged.wrong:
            cause = Cause.LOWER_NOT_DIFFERENTIABLE if judged.slope.kinked else cut
            return Finding(cause, judged.numbers("g along a direction of y"))
    # No hypergradient needs grad_x g, but some solvers do; by autograd it is right where the mixed derivative is.
    return None if _by_autograd(lin, "_lower_gradient_x") else _lower_wrong_in_x(probe, lin, y, generator)


def _lower_wrong_in_x(probe: Probe, lin: Linearization, y: Tensor, generator: torch.Generator) -> Finding | None:
    g_x, d = SPACE.ravel(lin.lower_grad_x), unit(probe.x, generator)
    judged = judge(lambda t: probe.lower(probe.x + t * d, y), float(g_x @ d), _typical(g_x), probe)
    if not judged.wrong or judged.slope.kinked:
        return None
    return Finding(Cause.WRONG_LOWER_GRADIENT, judged.numbers("g along a direction of x"))


def _by_autograd(lin: Linearization, method: str) -> bool:
    """Whether this product comes from the graph and not from a method written by hand."""
    return isinstance(lin, AutogradLinearization) and getattr(type(lin), method) is getattr(
        AutogradLinearization, method
    )


def _second_wrong(probe: Probe, y: Tensor, generator: torch.Generator) -> Finding | None:
    lin = probe.linearize(probe.x, y)
    matters = probe.problem.moving
    for _ in range(2):
        r, d, e = unit(y, generator), unit(probe.x, generator), unit(y, generator)
        along = lambda a, b: float(r @ probe.lower_grad(a, b))  # noqa: B023, E731
        product = SPACE.ravel(lin.lower_hvp(probe.as_y(e)))
        in_y = judge(lambda t: along(probe.x, y + t * e), float(r @ product), _typical(product), probe)  # noqa: B023
        if in_y.wrong and not in_y.slope.kinked:
            cause = Cause.DETACHED_LOWER if _by_autograd(lin, "_lower_hvp") else Cause.WRONG_HESSIAN
            return Finding(cause, in_y.numbers("grad_y g along a direction of y"))
        cross = SPACE.ravel(lin.lower_cross(probe.as_y(r)))
        in_x = judge(lambda t: along(probe.x + t * d, y), float(cross @ d), _typical(cross), probe)  # noqa: B023
        if in_x.wrong and not in_x.slope.kinked:
            cause = Cause.DETACHED_LOWER if _by_autograd(lin, "_lower_cross") else Cause.WRONG_CROSS
            return Finding(cause, in_x.numbers("grad_y g along a direction of x"))
        matters = matters or in_x.slope.central != 0.0 or in_x.slope.predicted != 0.0
    return (
        None if matters else Finding(Cause.LOWER_IGNORES_X, "the mixed derivative of g is zero, and the set is fixed")
    )


def _typical(vector: Tensor) -> float:
    """The size of the slope of a random direction."""
    return float(vector.norm()) / math.sqrt(vector.numel())


WRONG_PRODUCTS = {
    Cause.WRONG_UPPER_GRADIENT, Cause.WRONG_LOWER_GRADIENT, Cause.WRONG_HESSIAN, Cause.WRONG_CROSS,
    Cause.DETACHED_UPPER, Cause.DETACHED_LOWER,
}  # fmt: skip
"""What can be told at a point where f or g may have a kink."""


def wrong_product_at(probe: Probe, y: Tensor, generator: torch.Generator) -> Finding | None:
    """A derivative that is wrong near this y, though it was right at generic points.

    At a solution itself gradients may vanish, and leave rounding to be compared with rounding.
    """
    beside = y + 1e-4 * max(1.0, float(y.norm())) * unit(y, generator)
    finding = _first_wrong(probe, beside, generator)
    return finding if finding is not None and finding.cause in WRONG_PRODUCTS else None


def kinked_function(probe: Probe, x: Tensor, y: Tensor, generator: torch.Generator) -> Finding | None:
    """Whether f, or the gradient of g in y, has a kink at (x, y) itself."""
    (f_x, f_y), lin = probe.upper_grads(x, y), probe.linearize(x, y)
    for _ in range(4):
        d, e, r = unit(x, generator), unit(y, generator), unit(y, generator)
        predicted = float(f_x @ d + f_y @ e)
        judged = judge(lambda t, d=d, e=e: probe.upper(x + t * d, y + t * e), predicted, 0.0, probe)
        if _is_kink(judged, float(f_x.norm() + f_y.norm())):
            return Finding(Cause.UPPER_NOT_DIFFERENTIABLE, _two_sides("f", judged.slope))
        function = lambda t, d=d, e=e, r=r: float(r @ probe.lower_grad(x + t * d, y + t * e))  # noqa: E731
        in_x, in_y = (SPACE.ravel(product(probe.as_y(r))) for product in (lin.lower_cross, lin.lower_hvp))
        judged = judge(function, float(in_x @ d + in_y @ e), 0.0, probe)
        if _is_kink(judged, float(in_x.norm() + in_y.norm())):
            return Finding(Cause.LOWER_NOT_DIFFERENTIABLE, _two_sides("grad_y g", judged.slope))
    return None


def _is_kink(judged: Judged, typical: float) -> bool:
    """The two slopes differ, beyond what rounding leaves where terms of a typical size cancel."""
    sides = max(abs(judged.slope.forward), abs(judged.slope.backward))
    return judged.slope.kinked and judged.slope.jump > max(1e-3 * sides, 1e-6 * typical)


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
