"""The largest curvature of g in y, on the whole space or on one face, by a few Lanczos steps."""

from __future__ import annotations

import torch

from .problem import Linearization
from .randomness import Noise
from .sets.base import Face
from .spaces import leaves


def largest_curvature(
    lin: Linearization, *, face: Face | None = None, steps: int = 20, noise: Noise | None = None
) -> float:
    """The largest eigenvalue of H G_yy H (H = I without a face), from below, by `steps` Hessian products.

    Lanczos (1950) from a random start: the same products as power iteration, a far sharper bound. Without
    reorthogonalisation only copies of converged eigenvalues appear, which do not disturb the largest one.
    Zero when the face is a single point or g is linear in y.
    """
    space = lin.problem.y_space(lin.constraint)
    generator = (noise or Noise()).generator("curvature", device=leaves(lin.y)[0].device)
    v = space.random_like(lin.y, generator)
    v = v if face is None else face.apply(v)
    diagonal: list[float] = []
    beside: list[float] = []
    length, previous = float(space.norm(v)), None
    for _ in range(min(steps, space.size(lin.y))):
        if not length > 1e-12 * max(map(abs, diagonal), default=0.0):  # an invariant subspace (or nothing) is reached
            break
        if previous is not None:
            beside.append(length)
        v = space.scaled(v, 1.0 / length)
        product = lin.lower_hvp(v)
        product = product if face is None else face.apply(product)
        diagonal.append(float(space.dot(v, product)))
        residual = space.add(product, v, -diagonal[-1])
        if previous is not None:
            residual = space.add(residual, previous, -length)
        previous, v = v, residual
        length = float(space.norm(v))
    if not diagonal:
        return 0.0
    matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    off = torch.tensor(beside, dtype=torch.float64)
    matrix = matrix + torch.diag(off, 1) + torch.diag(off, -1)
    if not bool(torch.isfinite(matrix).all()):
        return float("nan")
    return float(torch.linalg.eigvalsh(matrix)[-1])
