"""Krylov methods that need only products with a matrix and a `Space`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .spaces import Space, Vector, leaves

Operator = Callable[[Any], Any]  # of vectors


class LinearSolution(NamedTuple):
    """The solution, |b - A x| / |b|, the products with A, and whether A was seen not to be positive definite."""

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


def gmres(
    operator: Operator,
    b: Vector,
    start: Vector | None,
    space: Space,
    *,
    tol: float,
    max_iterations: int,
    restart: int = 50,
) -> LinearSolution:
    """Solve A x = b for any A by restarted GMRES (Saad & Schultz 1986)."""
    scale = float(space.norm(b))
    if not 0.0 < scale < math.inf:  # infinity and NaN must reach the caller, not look like a solution
        return LinearSolution(space.scaled(b, scale), scale, 0)
    x = space.zeros_like(b) if start is None else start
    iterations = 0
    while True:
        residual = space.add(b, operator(x), -1.0)
        length = float(space.norm(residual))
        if not length > tol * scale or iterations >= max_iterations:
            return LinearSolution(x, length / scale, iterations)
        steps = min(restart, max_iterations - iterations)
        correction, used = _arnoldi_cycle(operator, residual, length, space, tol * scale, steps)
        x, iterations = space.add(x, correction), iterations + used


def _arnoldi_cycle(
    operator: Operator, residual: Vector, length: float, space: Space, target: float, steps: int
) -> tuple[Vector, int]:
    """The best correction in the Krylov space of `residual`: minimise |length e_1 - Hess c| over c."""
    basis = [space.scaled(residual, 1.0 / length)]
    hessenberg = torch.zeros(steps + 1, steps, dtype=torch.float64)
    right = torch.zeros(steps + 1, 1, dtype=torch.float64)
    right[0] = length
    for j in range(steps):
        v = operator(basis[j])
        size = float(space.norm(v))
        for _ in range(2):  # modified Gram-Schmidt, twice: orthogonal to rounding
            for i, q in enumerate(basis):
                overlap = float(space.dot(q, v))
                hessenberg[i, j] += overlap
                v = space.add(v, q, -overlap)
        norm = float(space.norm(v))
        if not math.isfinite(norm):  # an infinite product must reach the caller, not LAPACK
            return space.scaled(residual, math.nan), j + 1
        hessenberg[j + 1, j] = norm
        small, rhs = hessenberg[: j + 2, : j + 1], right[: j + 2]
        coefficients = torch.linalg.lstsq(small, rhs, driver="gelsd").solution
        left = float((rhs - small @ coefficients).norm())
        if left <= target or norm <= 1e-14 * size or j == steps - 1:
            break
        basis.append(space.scaled(v, 1.0 / norm))
    correction = space.zeros_like(residual)
    for c, q in zip(coefficients[:, 0].tolist(), basis, strict=False):
        correction = space.add(correction, q, c)
    return correction, j + 1
