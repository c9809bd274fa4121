"""The set of the lower level: is its projection one, and is its Jacobian the derivative of it?"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..errors import Incompatible, InvalidInput
from ..sets.from_projection import ProjectionSet
from .causes import Cause
from .judge import Finding, judge
from .probe import SPACE, Probe, unit

WRONG_JACOBIAN = 1e-3
"""An error of H v from which a Jacobian counts as wrong, for |v| = 1; the projection may come from an iteration."""


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
        judged = judge(lambda t, z=z, u=u, d=d: float(u @ probe.project(z, probe.x + t * d)), predicted, 0.0, probe)
        if judged.wrong and not judged.slope.kinked:
            return Finding(Cause.DETACHED_SET, judged.numbers("<u, P(z)> along a direction of x"))
    return None
