"""The arithmetic of a fused step (see `fused`) in NumPy: `move` and `pull` come before the pass, `estimate` after it.

The matrix comes as its columns, an array (d, n) whose rows are contiguous: those of a face are used where they lie.
`compiled` has the same three functions, compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .linearization import FEW

FAR = 1e6
"""Projections from further away than so many radii are left to the general step: sums of |z| lose digits."""
SMALL = 16
"""On faces of up to so many columns the matrix of the linear system is made; on larger ones its products are."""

Array = np.ndarray


class Moved(NamedTuple):
    """The point after a step with its margins; x is empty where the general step is asked for."""

    x: Array
    y: Array
    s: Array
    s_trusted: Array


class Estimated(NamedTuple):
    """The new momenta and adjoint, mean squares of the estimates; products is 0 where the general step is asked for."""

    v: Array
    adjoint: Array
    square_g: float  # of grad_y g
    square_h: float  # of the hypergradient; its momentum w has taken the place of `crossed`
    residual: float  # of the linear system
    iterations: int
    products: int
    indefinite: bool


def move(
    columns: Array, trusted: Array, signs: Array, x: Array, y: Array, s: Array, s_trusted: Array, w: Array, v: Array,
    near: Array, upper_scale: float, lower_scale: float, average: float, radius: float, anew: bool, logits: Array,
) -> Moved:  # fmt: skip
    """x - upper_scale w and y + average (P(y - lower_scale v) - y) with their margins, carried along or made anew.

    `logits` becomes x, t s and t' s', one after the other; `signs` are t and t'.
    """
    support, value = project(y - lower_scale * v, radius, near)
    if len(support) == 0:
        return Moved(*(z[:0] for z in (x, y, s, s_trusted)))
    y = y - average * y
    y[support] += average * value
    if anew:
        s, s_trusted = y @ columns, y @ trusted
    else:
        s = margins(columns, s, support, value, average)
        s_trusted = margins(trusted, s_trusted, support, value, average)
    n = len(x)
    x = x - upper_scale * w
    logits[:n] = x
    np.multiply(signs[:n], s, out=logits[n : 2 * n])
    np.multiply(signs[n:], s_trusted, out=logits[2 * n :])
    return Moved(x, y, s, s_trusted)


def pull(chances: Array, signs: Array, n: int) -> Array:
    """What rows are multiplied with, from `chances` = sigmoid(logits), which are overwritten:

    chances[:n]   <- sigmoid(x) p t / n                      for grad_y g
    chances[n:2n] <- sigmoid(x) p (1 - p) / n                for G_yy
    chances[2n:]  <- p' t' / m                               for grad_y f
    the answer is    sigmoid(x) (sigmoid(x) - 1) p t / n     for -G_xy
    """
    weights, p, upper = chances[:n], chances[n : 2 * n], chances[2 * n :]
    upper *= signs[n:]
    upper /= len(upper)
    crossed = weights - 1.0
    weights *= p
    weights /= n
    np.subtract(1.0, p, out=p)
    p *= weights
    weights *= signs[:n]
    crossed *= weights
    return crossed


def estimate(
    columns: Array, trusted: Array, gradient: Array, chances: Array, crossed: Array, y: Array, w: Array, v: Array,
    near: Array, noise: Array, eta: float, radius: float, ridge: float, tol: float, limit: int,
    w_average: float, v_average: float,
) -> Estimated:  # fmt: skip
    """The hypergradient on the face of y - eta grad_y g + noise, and the new momenta.

    `gradient` comes as A^T chances[:n]; `crossed`, the answer of `pull`, is overwritten with the new w.
    """
    gradient += ridge * y
    face, value = project(y - eta * gradient + noise, radius, near)
    if len(face) == 0:
        return Estimated(v, near, 0.0, 0.0, 0.0, 0, 0, False)
    towards = np.copysign(1.0, value.astype(np.float64))
    n, start = len(w), near[face].astype(np.float64)
    curvatures, upper = chances[n : 2 * n], np.array([trusted[j] @ chances[2 * n :] for j in face], np.float64)
    found, residual, iterations, products, indefinite = solve(
        columns, face, towards, curvatures, ridge, upper, start, tol, limit
    )
    adjoint = np.zeros_like(y)
    adjoint[face] = found
    square_h = turn(columns, face, adjoint[face], crossed, w, w_average)
    square_g = float(gradient @ gradient) / len(gradient)
    return Estimated(
        v + v_average * (gradient - v), adjoint, square_g, square_h, residual, iterations, products, indefinite
    )


def project(z: Array, radius: float, near: Array) -> tuple[Array, Array]:
    """The support of P(z) on the l1 ball, and P(z) there; an empty support where the general step is asked for.

    Newton's method for the level, from the support of a nearby point: no support has a level above the right one
    (Michelot 1986). Whatever does not exceed the level of that support is sorted out at once.
    """
    size, guess = np.abs(z), near.nonzero()[0]
    nothing = guess[:0], z[:0]
    if not radius < np.add.reduce(size) < FAR * radius:
        return nothing
    few = size[guess] if len(guess) else size.max(keepdims=True)
    support = (size > (np.add.reduce(few, dtype=np.float64) - radius) / len(few)).nonzero()[0]
    while 0 < len(support) <= FEW * len(z):
        few = size[support]
        few = few - (np.add.reduce(few, dtype=np.float64) - radius) / len(few)
        if few.min() > 0:
            return support, np.copysign(few, z[support]).astype(z.dtype)
        support = support[few > 0]
    return nothing


def margins(columns: Array, s: Array, support: Array, value: Array, average: float) -> Array:
    """(1 - average) s + average A_S value."""
    moved = _combined(columns, support, value)
    moved -= s
    moved *= average
    moved += s
    return moved


def solve(
    columns: Array, support: Array, towards: Array, curvatures: Array, ridge: float, b: Array, start: Array,
    tol: float, limit: int,
) -> tuple[Array, float, int, int, bool]:  # fmt: skip
    """Pi (A_S^T diag(curvatures) A_S + ridge) Pi w = Pi b with Pi v = v - t (t.v)/|S|, t the signs, from a nearby w.

    w, |residual| / |Pi b|, the iterations, the products, and whether the matrix was seen not to be positive definite.
    """
    product = _product(columns, support, curvatures, ridge)
    return _conjugate_gradients(
        lambda v: _along(product(v), towards), _along(b, towards), _along(start, towards), tol, limit
    )


def turn(columns: Array, support: Array, value: Array, crossed: Array, w: Array, average: float) -> float:
    """crossed <- (1 - average) w + average h with h = crossed A_S value; the mean square of h."""
    crossed *= _combined(columns, support, value)
    square = float(crossed @ crossed) / len(crossed)
    crossed -= w
    crossed *= average
    crossed += w
    return square


def _combined(columns: Array, support: Array, value: Array) -> Array:
    """A_S value."""
    factors = value.tolist()  # numbers of Python: they leave float32 as it is
    total = factors[0] * columns[support[0]]
    for j, factor in zip(support[1:], factors[1:], strict=True):
        total += factor * columns[j]
    return total


def _product(columns: Array, support: Array, curvatures: Array, ridge: float) -> Callable[[Array], Array]:
    """v -> A_S^T (curvatures A_S v) + ridge v."""
    if len(support) <= SMALL:
        matrix = np.empty((len(support), len(support)))
        for a, j in enumerate(support):
            weighted = curvatures * columns[j]
            for b, i in enumerate(support[: a + 1]):
                matrix[a, b] = matrix[b, a] = weighted @ columns[i]
            matrix[a, a] += ridge
        return matrix.__matmul__

    def product(v: Array) -> Array:
        bent = _combined(columns, support, v)
        bent *= curvatures
        return np.array([columns[j] @ bent for j in support], np.float64) + ridge * v

    return product


def _conjugate_gradients(
    product: Callable[[Array], Array], b: Array, start: Array, tol: float, limit: int
) -> tuple[Array, float, int, int, bool]:
    """`bilevel.hypergradients.krylov.conjugate_gradients` on arrays, and how many products it took (1 for b = 0)."""
    scale = float(b @ b) ** 0.5
    if scale == 0.0 or not np.isfinite(scale):
        return b * scale, scale, 0, 1, False
    x: Any
    x, residual = start, b - product(start)
    square = float(residual @ residual)
    if not square < scale * scale:
        x, residual, square = np.zeros_like(b), b, scale * scale
    best: Any
    direction, best, best_square = residual, x, square
    for k in range(limit):
        if square**0.5 <= tol * scale:
            return x, square**0.5 / scale, k, k + 1, False
        turned = product(direction)
        along = float(direction @ turned)
        if not along > 0.0:
            return best, best_square**0.5 / scale, k, k + 2, True
        x = x + (square / along) * direction
        residual = residual - (square / along) * turned
        previous, square = square, float(residual @ residual)
        direction = residual + (square / previous) * direction
        if square < best_square:
            best, best_square = x, square
    return best, best_square**0.5 / scale, limit, limit + 1, False


def _along(v: Array, towards: Array) -> Array:
    """The part of v along the face: v - t (t.v)/|S|."""
    return v - (float(towards @ v) / len(towards)) * towards
