"""The largest curvature of g in y, on the whole space or on one face, by power iteration."""

from __future__ import annotations

from .problem import Linearization
from .randomness import Noise
from .sets.base import Face
from .spaces import leaves


def largest_curvature(
    lin: Linearization, *, face: Face | None = None, steps: int = 20, noise: Noise | None = None
) -> float:
    """The largest eigenvalue of H G_yy H (H = I without a face), from below, by `steps` power iterations.

    Zero when the face is a single point or g is linear in y.
    """
    space = lin.problem.y_space(lin.constraint)
    generator = (noise or Noise()).generator("curvature", device=leaves(lin.y)[0].device)
    v = space.random_like(lin.y, generator)
    value = 0.0
    for _ in range(steps):
        v = v if face is None else face.apply(v)
        length = float(space.norm(v))
        if length == 0.0:
            return value
        v = space.scaled(v, 1.0 / length)
        product = lin.lower_hvp(v)
        value = float(space.dot(v, product))
        v = product
    return value
