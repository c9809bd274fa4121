"""Krylov methods, which need only products with a matrix and a `Space`: conjugate gradients, and Lanczos steps.

The latter estimate the largest curvature of g in y, on the whole space or on one face.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .random import RandomStreams
from .spaces import Space, Vector, leaves

if TYPE_CHECKING:
    from .linearization import Linearization
    from .sets.base import ProjectionJacobian

Operator = Callable[[Any], Any]  # of vectors
RESIDUAL = 1e-7
"""An eigenvector with this relative residual ends the steps: its eigenvalue is right to about the square of it."""
WARM_RESIDUAL = 1e-2
"""The same for an estimate that follows another one: a step of 1/L needs L to a few parts in a thousand."""


class LinearSolution(NamedTuple):
    """The solution, |b - A x| / |b|, the number of products with A, and whether A proved to be indefinite."""

    value: Vector
    residual: float
    iterations: int
    indefinite: bool = False


def conjugate_gradients(
    operator: Operator,
    b: Vector,
    start: Vector | None,
    space: Space,
    *,
    tol: float,
    max_iterations: int,
    precondition: Operator | None = None,
) -> LinearSolution:
    """Solve A x = b for symmetric positive semi-definite A (Hestenes & Stiefel 1952), b in the range of A.

    `precondition` applies the inverse of a positive definite approximation of A.
    """
    square = float(space.dot(b, b))
    scale = square**0.5
    if not 0.0 < scale < math.inf:
        unit = max(float(u.abs().max()) for u in leaves(b))
        if not 0.0 < unit < math.inf:  # infinity and NaN must reach the caller, not look like a solution
            return LinearSolution(space.scaled(b, scale), scale, 0)
        # Entries that are finite, whose squares are not: solved in their own unit.
        small = space.scaled(b, 1.0 / unit)
        options = {"tol": tol, "max_iterations": max_iterations, "precondition": precondition}
        found = conjugate_gradients(operator, small, None, space, **options)  # type: ignore[arg-type]
        return found._replace(value=space.scaled(found.value, unit))
    x, residual = None, b
    if start is not None:
        near = space.add(b, operator(start), -1.0)
        near_square = float(space.dot(near, near))
        if near_square < square:  # a stale start is worse than none
            x, residual, square = start, near, near_square
    x = space.zeros_like(b) if x is None else x
    direction = residual if precondition is None else precondition(residual)
    inner = square if precondition is None else float(space.dot(residual, direction))
    best, best_square = x, square
    for k in range(max_iterations):
        if square**0.5 <= tol * scale:
            return LinearSolution(x, square**0.5 / scale, k)
        product = operator(direction)
        along = float(space.dot(direction, product))
        if not along > 0.0:  # no curvature along this direction, or less than none, or not finite
            return LinearSolution(best, best_square**0.5 / scale, k, indefinite=True)
        x = space.add(x, direction, inner / along)
        residual = space.add(residual, product, -inner / along)
        square = float(space.dot(residual, residual))
        refined = residual if precondition is None else precondition(residual)
        previous, inner = inner, square if precondition is None else float(space.dot(residual, refined))
        direction = space.add(refined, direction, inner / previous)
        if square < best_square:
            best, best_square = x, square
    return LinearSolution(best, best_square**0.5 / scale, max_iterations)


class Eigenpair(NamedTuple):
    """The largest eigenvalue, from below, and its vector of length 1 (None where nothing was multiplied)."""

    value: float
    vector: Vector | None


def largest_curvature(
    lin: Linearization, *, face: ProjectionJacobian | None = None, steps: int = 20, streams: RandomStreams | None = None
) -> float:
    """The largest eigenvalue of H G_yy H (H = I without a face), from below, by at most `steps` Hessian products.

    Zero when the face is a single point or g is linear in y.
    """
    space = lin.problem.y_space(lin.constraint)
    if face is None:
        return largest_eigenvalue(lin.lower_hvp, lin.y, space, steps=steps, streams=streams)
    return largest_eigenvalue(
        lambda v: face.apply(lin.lower_hvp(v)), lin.y, space, start=face.apply, steps=steps, streams=streams
    )


def update_curvature(lin: Linearization, streams: RandomStreams, near: Vector | None, *, steps: int = 20) -> Eigenpair:
    """The largest curvature and its direction, starting from the direction `near` of a nearby point if there is one."""
    space = lin.problem.y_space(lin.constraint)
    if near is None:
        return _lanczos(lin.lower_hvp, _random_start(lin.y, space, streams), space, steps, RESIDUAL)
    return _lanczos(lin.lower_hvp, near, space, steps, WARM_RESIDUAL)


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
    first = start(_random_start(template, space, streams or RandomStreams()))
    return _lanczos(operator, first, space, steps, RESIDUAL).value


def _random_start(template: Vector, space: Space, streams: RandomStreams) -> Vector:
    return space.random_like(template, streams.generator("curvature", device=leaves(template)[0].device))


def _lanczos(
    operator: Callable[[Vector], Vector], v: Vector, space: Space, steps: int, residual_bound: float
) -> Eigenpair:
    """Lanczos (1950) from v: the same products as power iteration, a far sharper bound.

    Without reorthogonalisation only copies of converged eigenvalues appear, which do not disturb the largest one.
    """
    diagonal: list[float] = []
    beside: list[float] = []
    basis: list[Vector] = []
    value, weights, length = 0.0, [], float(space.norm(v))
    for _ in range(min(steps, space.size(v))):
        if not length > 1e-12 * max(map(abs, diagonal), default=0.0):  # an invariant subspace (or nothing) is reached
            break
        if basis:
            beside.append(length)
        basis.append(space.scaled(v, 1.0 / length))
        product = operator(basis[-1])
        diagonal.append(float(space.dot(basis[-1], product)))
        v = space.add(product, basis[-1], -diagonal[-1])
        if len(basis) > 1:
            v = space.add(v, basis[-2], -length)
        length = float(space.norm(v))
        value, weights = _largest_pair(diagonal, beside)
        if not length * abs(weights[-1]) > residual_bound * abs(value):
            break
    return Eigenpair(value, _combine(basis, weights, space))


def _combine(basis: Sequence[Vector], weights: Sequence[float], space: Space) -> Vector | None:
    """The sum of weights times vectors, of length 1."""
    if not basis:
        return None
    total = space.scaled(basis[0], weights[0])
    for weight, vector in zip(weights[1:], basis[1:], strict=True):
        total = space.add(total, vector, weight)
    return space.scaled(total, 1.0 / float(space.norm(total)))


def _largest_pair(diagonal: Sequence[float], beside: Sequence[float]) -> tuple[float, list[float]]:
    """The largest eigenvalue of a tridiagonal matrix, and its eigenvector; NaN if it has NaNs."""
    if not all(map(math.isfinite, (*diagonal, *beside))):
        return math.nan, [math.nan] * len(diagonal)
    values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(beside, -1))  # which reads the lower half
    return float(values[-1]), vectors[:, -1].tolist()
