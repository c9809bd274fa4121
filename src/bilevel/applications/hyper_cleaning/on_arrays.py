"""The arithmetic of a fused step (see `fused`) in NumPy: `move` and `pull` come before the pass, `estimate` after it.

The matrix comes as its columns, an array (d, n) whose rows are contiguous: those of a face are used where they lie.
`compiled` has the same three functions, compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .design import FEW

FAR = 1e6
"""Projections from further away than so many radii are left to the general step: sums of |z| lose digits."""
SMALL = 16
"""On faces of up to so many columns the matrix of the linear system is made; on larger ones its products are."""

# (numba keeps what it compiled until compiled.py itself changes: touch it when these numbers do.)

Array = np.ndarray


SOLVED = -1
"""In place of a number of products of the Neumann series: the linear system is solved."""
DONE, GENERAL, DRAW = 1, 0, -1
"""How an estimate ended: it is there; it takes the general step; the noise decides on the face and must be drawn."""


class Estimated(NamedTuple):
    """What an estimate tells beside the momenta and the adjoint, which it writes."""

    outcome: int
    square_g: float  # the mean square of grad_y g
    square_h: float  # that of the hypergradient
    residual: float  # of the linear system
    iterations: int
    products: int
    indefinite: bool


Parts = tuple[Array, Array, Array, Array, Array, Array, Array]
"""The vectors of a state: x, the margins s = A y, w; the margins s' = A' y; y, v and the adjoint."""


def move(
    columns: Array, trusted: Array, signs: Array, before: Parts, after: Parts, logits: Array,
    upper_scale: float, lower_scale: float, average: float, radius: float,
) -> bool:  # fmt: skip
    """x - upper_scale w and y + average (P(y - lower_scale v) - y) with their margins, carried along.

    `logits` becomes x, t s and t' s', one after the other; `signs` are t and t'. False asks for the general step.
    """
    x, s, w, s_trusted, y, v, near = before
    new_x, new_s, _, new_s_trusted, new_y, _, _ = after
    support, value = project(y - lower_scale * v, radius, near)
    if len(support) == 0:
        return False
    np.subtract(y, average * y, out=new_y)
    new_y[support] += average * value
    margins(columns, s, support, value, average, new_s)
    margins(trusted, s_trusted, support, value, average, new_s_trusted)
    n = len(x)
    np.subtract(x, upper_scale * w, out=new_x)
    logits[:n] = new_x
    np.multiply(signs[:n], new_s, out=logits[n : 2 * n])
    np.multiply(signs[n:], new_s_trusted, out=logits[2 * n :])
    return True


def pull(chances: Array, signs: Array, crossed: Array) -> None:
    """What rows are multiplied with, from `chances` = sigmoid(logits), which are overwritten:

    chances[:n]   <- sigmoid(x) p t / n                      for grad_y g
    chances[n:2n] <- sigmoid(x) p (1 - p) / n                for G_yy
    chances[2n:]  <- p' t' / m                               for grad_y f
    crossed       <- sigmoid(x) (sigmoid(x) - 1) p t / n     for -G_xy
    """
    n = len(crossed)
    weights, p, upper = chances[:n], chances[n : 2 * n], chances[2 * n :]
    upper *= signs[n:]
    upper /= len(upper)
    np.subtract(weights, 1.0, out=crossed)
    weights *= p
    weights /= n
    np.subtract(1.0, p, out=p)
    p *= weights
    weights *= signs[:n]
    crossed *= weights


def estimate(
    columns: Array, trusted: Array, pulled: Array, chances: Array, before: Parts, after: Parts,
    noise: Array, reach: float, eta: float, radius: float, ridge: float, tol: float, limit: int,
    terms: int, weight: float, whole: bool, w_average: float, v_average: float,
) -> Estimated:  # fmt: skip
    """The hypergradient on the face of y - eta grad_y g + noise, and with it w, v and the adjoint of `after`.

    `pulled` is A^T chances[:n], and w of `after` comes from `pull`. `reach` is how far noise not yet drawn may go.
    The linear system is solved (`terms` = SOLVED, to `tol` within `limit` iterations), or its inverse is the Neumann
    series (see `_series`).
    """
    n = columns.shape[1]
    _, _, w, _, _, _, near = before
    _, _, crossed, _, y, _, _ = after
    outcome, gradient, face, value = look(pulled, y, near, noise, reach, eta, radius, ridge)
    if outcome != DONE:
        return Estimated(outcome, 0.0, 0.0, 0.0, 0, 0, False)
    by_matrix = terms == SOLVED and len(face) <= SMALL
    found, numbers = answer(
        _product(columns, face, chances[n : 2 * n], ridge, by_matrix=by_matrix), trusted, chances[2 * n :], face, value,
        near, eta, tol, limit, terms, weight, whole,
    )  # fmt: skip
    square_g = keep(gradient, face, found, before, after, v_average)
    square_h = turn(columns, face, found.astype(w.dtype), crossed, w, w_average)
    return Estimated(DONE, square_g, square_h, *numbers)


def look(
    pulled: Array, y: Array, near: Array, noise: Array, reach: float, eta: float, radius: float, ridge: float
) -> tuple[int, Array, Array, Array]:
    """How it stands, grad_y g = pulled + ridge y, the face of y - eta grad_y g + noise and the projection on it."""
    gradient = pulled + ridge * y
    z = y - eta * gradient + noise
    face, value = project(z, radius, near)
    if len(face) == 0:
        return GENERAL, gradient, face, value
    return DONE if settled(z, face, value, reach) else DRAW, gradient, face, value


def answer(
    product: Callable[[Array], Array], trusted: Array, upper: Array, face: Array, value: Array, near: Array,
    eta: float, tol: float, limit: int, terms: int, weight: float, whole: bool,
) -> tuple[Array, tuple[float, int, int, bool]]:  # fmt: skip
    """The adjoint on a face, by products with the matrix A_S^T diag(curvatures) A_S + ridge, from the last one, `near`.

    `upper` is p' t' / m. Also the residual, the iterations, the products, and whether the matrix is indefinite.
    """
    towards = signs_on(value)
    b = np.array([trusted[j] @ upper for j in face], np.float64)
    if terms != SOLVED:
        return _series(product, towards, b, eta, terms, weight, whole), (0.0, 0, terms, False)
    start = _along(near[face].astype(np.float64), towards)
    found, *numbers = _solve(product, towards, b, start, tol, limit)
    return found, tuple(numbers)  # type: ignore[return-value]


def keep(gradient: Array, face: Array, found: Array, before: Parts, after: Parts, v_average: float) -> float:
    """v and the adjoint of `after`; the mean square of the gradient."""
    (*_, v, _), (*_, new_v, adjoint) = before, after
    np.add(v, v_average * (gradient - v), out=new_v)
    adjoint[:] = 0.0
    adjoint[face] = found
    return float(gradient @ gradient) / len(gradient)


def signs_on(value: Array) -> Array:
    """t: the signs of a projection on its face."""
    return np.copysign(1.0, value.astype(np.float64))


def settled(z: Array, face: Array, value: Array, reach: float) -> bool:
    """Whether P has this face and these signs at all points within `reach` of z.

    On the way there no |z_i| changes by more than `reach`, hence the level, which is monotone in them, does not either:
    nothing crosses it from further away than twice that. (Three times, for rounding.)
    """
    level = abs(z[face[0]]) - abs(value[0])
    return reach == 0.0 or bool(level > 3 * reach and (np.abs(np.abs(z) - level) > 3 * reach).all())


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


def margins(columns: Array, s: Array, support: Array, value: Array, average: float, moved: Array) -> None:
    """moved <- (1 - average) s + average A_S value."""
    np.subtract(_combined(columns, support, value), s, out=moved)
    moved *= average
    moved += s


def _solve(
    product: Callable[[Array], Array], towards: Array, b: Array, start: Array, tol: float, limit: int
) -> tuple[Array, float, int, int, bool]:
    """Pi (A_S^T diag(curvatures) A_S + ridge) Pi w = Pi b with Pi v = v - t (t.v)/|S|, t the signs, from a nearby w.

    w, |residual| / |Pi b|, the iterations, the products, and whether the matrix was seen not to be positive definite.
    """
    return _conjugate_gradients(lambda v: _along(product(v), towards), _along(b, towards), start, tol, limit)


def _series(
    product: Callable[[Array], Array], towards: Array, b: Array, eta: float, products: int, weight: float, whole: bool
) -> Array:
    """eta weight [Pi (I - eta G)]^q Pi b for q = products, or summed up to it if `whole`; Pi and G as in `_solve`."""
    term = total = _along(b, towards)
    for _ in range(products):
        term = term - eta * _along(product(term), towards)
        total = total + term if whole else term
    return eta * weight * total


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


def _product(
    columns: Array, support: Array, curvatures: Array, ridge: float, *, by_matrix: bool
) -> Callable[[Array], Array]:
    """v -> A_S^T (curvatures A_S v) + ridge v."""
    if by_matrix:
        matrix = np.empty((len(support), len(support)))
        for a, j in enumerate(support):
            weighted = curvatures * columns[j]
            for b, i in enumerate(support[: a + 1]):
                matrix[a, b] = matrix[b, a] = weighted @ columns[i]
            matrix[a, a] += ridge
        return matrix.__matmul__

    return lambda v: product(columns, support, curvatures, v) + ridge * v


def product(columns: Array, support: Array, curvatures: Array, v: Array) -> Array:
    """A_S^T (curvatures A_S v)."""
    bent = _combined(columns, support, v)
    bent *= curvatures
    return np.array([columns[j] @ bent for j in support], np.float64)


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
