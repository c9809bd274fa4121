"""Krylov methods that need only products with a matrix and a `Space`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from .spaces import Space, Vector, leaves

Operator = Callable[[Any], Any]  # of vectors


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
