"""Jacobians of the projection sampled around a point, and the hull of the different ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidInput
from ..problem import Linearization
from ..randomness import Noise, Seeds
from ..sets.free_space import FreeSpace
from ..spaces import tree_map
from .jacobian_hull import JacobianHull
from .probe import SPACE, Probe

BATCHES = 10
"""The samples are split into so many batches for the interval."""
LARGEST = 1000
"""The largest number of entries of y that the sampled faces may touch together."""


def draws(probe: Probe, z: Tensor, delta: float, samples: int, seeds: Seeds) -> list[Tensor]:
    """z itself, then points in the ball and on the sphere in turn: all lie within delta."""
    noise, like = Noise(seeds), probe.as_y(z)
    points = [z]
    for k in range(samples):
        generator = noise.generator("smoothing", k)
        draw: Any = SPACE.ball(like, generator) if k % 2 else SPACE.sphere(like, generator)
        points.append(z + delta * SPACE.ravel(draw))
    return points


def distinct_faces(
    probe: Probe, lin: Linearization, points: list[Tensor], eta: float
) -> tuple[JacobianHull, list[list[int]]]:
    """The hull of the different Jacobians (that of z first), and which of them each batch met."""
    marks = [SPACE.random_like(lin.y, torch.Generator().manual_seed(k)) for k in range(2)]
    known: list[Any] = []
    signatures: list[Tensor] = []
    met: list[int] = []
    for point in points:
        face = lin.constraint.jacobian(probe.as_y(point))
        signature = torch.cat([SPACE.ravel(face.apply(mark)) for mark in marks])
        close = (i for i, s in enumerate(signatures) if float((s - signature).norm()) <= 1e-9 * (1 + float(s.norm())))
        same = next(close, None)
        if same is None:
            same = len(known)
            known.append((face, point))
            signatures.append(signature)
        met.append(same)
    # The Jacobian of z itself is in no batch: one that all share would make their minima agree by itself.
    batches = [sorted(set(met[1 + b :: BATCHES])) for b in range(BATCHES)]
    return _hull(probe, lin, known, eta), batches


def _hull(probe: Probe, lin: Linearization, known: list[Any], eta: float) -> JacobianHull:
    """Dense parts, on the entries of y that some face touches."""
    size, moving = SPACE.size(lin.y), lin.problem.moving
    touched = torch.arange(size) if moving else _touched([face for face, _ in known], size)
    if len(touched) > LARGEST:
        raise InvalidInput(
            f"the faces within delta touch {len(touched)} entries of y, more than {LARGEST}: take a smaller delta, or "
            "look at |h| alone (bilevel.hypergradient)"
        )
    units = [SPACE.unravel(e, lin.y) for e in torch.eye(size, dtype=probe.dtype)[touched]]
    inside = len(touched)
    faces = [_matrix([SPACE.ravel(face.apply(e))[touched] for e in units], inside, probe) for face, _ in known]
    return JacobianHull(
        faces=torch.stack(faces),
        upper_x=SPACE.ravel(lin.upper_grad_x),
        upper_y=SPACE.ravel(lin.upper_grad_y)[touched],
        hessian=_matrix([SPACE.ravel(lin.lower_hvp(e))[touched] for e in units], inside, probe),
        cross=_matrix([SPACE.ravel(lin.lower_cross(e)) for e in units], len(probe.x), probe),
        eta=eta,
        motions=torch.stack([_motion(probe, point, units) for _, point in known]) if moving else None,
        residual=_residual(probe),
    )


def _matrix(columns: list[Tensor], rows: int, probe: Probe) -> Tensor:
    """The columns side by side; (rows, 0) when there are none."""
    return torch.stack(columns, -1) if columns else torch.zeros(rows, 0, dtype=probe.dtype)


def _touched(faces: list[Any], size: int) -> Tensor:
    """The entries of y outside of which every H is zero."""
    mask = torch.zeros(size, dtype=torch.bool)
    for face in faces:
        support = face.support
        if not isinstance(support, Tensor) or support.numel() != size:
            return torch.arange(size)
        mask |= support.reshape(-1)
    return mask.nonzero()[:, 0]


def _motion(probe: Probe, point: Tensor, units: list[Any]) -> Tensor:
    """V: u -> theta_x' P_theta(z)' u as a matrix (n, d)."""
    columns = []
    for e in units:
        column = probe.problem.constraint_vjp(probe.as_x(probe.x), probe.as_y(point), e)
        if column is None:
            raise InvalidInput("constraint_vjp returned None for a set that moves with x: return a vector like x")
        columns.append(SPACE.ravel(column))
    return _matrix(columns, len(probe.x), probe)


def _residual(probe: Probe) -> Any:
    """h itself, or x - P_X(x - h) with its derivative."""
    constraint = probe.problem.upper_constraint
    if isinstance(constraint, FreeSpace):
        return lambda h: (h, lambda slope: slope)

    def measure(h: Tensor) -> Any:
        moved = probe.as_x(probe.x - h)
        face = constraint.jacobian(moved)
        value = probe.x - SPACE.ravel(tree_map(Tensor.detach, constraint.project(moved)))
        return value, lambda slope: torch.stack([SPACE.ravel(face.apply(probe.as_x(s))) for s in slope.T], -1)

    return measure
