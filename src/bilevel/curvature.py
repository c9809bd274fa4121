"""The largest curvature of g in y, on the whole space or on one face, by a few Lanczos steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from .linearization import Linearization
from .random import RandomStreams
from .sets.base import ProjectionJacobian
from .spaces import Space, Vector, leaves

RESIDUAL = 1e-7
"""An eigenvector with this relative residual ends the steps: its eigenvalue is right to about the square of it."""


def largest_curvature(
    lin: Linearization, *, face: ProjectionJacobian | None = None, steps: int = 20, streams: RandomStreams | None = None
) -> float:
    """The largest eigenvalue of H G_yy H (H = I without a face), from below, by at most `steps` Hessian products.

    Lanczos (1950) from a random start: the same products as power iteration, a far sharper bound. Without
    reorthogonalisation only copies of converged eigenvalues appear, which do not disturb the largest one.
    Zero when the face is a single point or g is linear in y.
    """
    space = lin.problem.y_space(lin.constraint)
    if face is None:
        return largest_eigenvalue(lin.lower_hvp, lin.y, space, steps=steps, streams=streams)
    return largest_eigenvalue(
        lambda v: face.apply(lin.lower_hvp(v)), lin.y, space, start=face.apply, steps=steps, streams=streams
    )


def largest_eigenvalue(
    operator: Callable[[Vector], Vector],
    template: Vector,
    space: Space,
    *,
    start: Callable[[Vector], Vector] = lambda v: v,
    steps: int = 20,
    streams: RandomStreams | None = None,
) -> float:
    """The largest eigenvalue of a symmetric operator on vectors like `template`, from below.

    `start` moves the random first vector into the subspace of interest.
    """
    generator = (streams or RandomStreams()).generator("curvature", device=leaves(template)[0].device)
    v = start(space.random_like(template, generator))
    diagonal: list[float] = []
    beside: list[float] = []
    value, length, previous = 0.0, float(space.norm(v)), None
    for _ in range(min(steps, space.size(template))):
        if not length > 1e-12 * max(map(abs, diagonal), default=0.0):  # an invariant subspace (or nothing) is reached
            break
        if previous is not None:
            beside.append(length)
        v = space.scaled(v, 1.0 / length)
        product = operator(v)
        diagonal.append(float(space.dot(v, product)))
        residual = space.add(product, v, -diagonal[-1])
        if previous is not None:
            residual = space.add(residual, previous, -length)
        previous, v = v, residual
        length = float(space.norm(v))
        value, last = _largest_pair(diagonal, beside)
        if not length * abs(last) > RESIDUAL * abs(value):
            break
    return value


def _largest_pair(diagonal: Sequence[float], beside: Sequence[float]) -> tuple[float, float]:
    """The largest eigenvalue of a tridiagonal matrix, and the last entry of its eigenvector; NaN if it has NaNs."""
    if not all(map(math.isfinite, (*diagonal, *beside))):
        return math.nan, math.nan
    off = torch.tensor(beside, dtype=torch.float64)
    matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64)) + torch.diag(off, 1) + torch.diag(off, -1)
    values, vectors = torch.linalg.eigh(matrix)
    return float(values[-1]), float(vectors[-1, -1])
