"""The functions of `on_arrays`, compiled by numba: the same mathematics as loops, which copy nothing large.

Needs the extra `fast`. The first call on a machine compiles for some seconds; the result is kept on the disk.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from .on_arrays import DONE, DRAW, FAR, GENERAL, SMALL, SOLVED

BLOCK = 1024
"""Rows whose sums are taken together: they stay in the first cache from one column to the next."""


def compiled(function: Any) -> Any:
    """Compiled and kept; sums may be taken in another order, so that the processor adds several numbers at once."""
    return numba.njit(function, cache=True, fastmath={"reassoc", "contract"})


@compiled
def move(columns, trusted, signs, before, after, logits, upper_scale, lower_scale, average, radius):
    """See `on_arrays.move`."""
    x, s, w, s_trusted, y, v, near = before
    new_x, new_s, _, new_s_trusted, new_y, _, _ = after
    _move(y, v, -lower_scale, new_y)
    support, value = project(new_y, radius, near)
    if len(support) == 0:
        return False
    _move(y, y, -average, new_y)
    for a, j in enumerate(support):
        new_y[j] += average * value[a]
    margins(columns, s, support, value, average, new_s)
    margins(trusted, s_trusted, support, value, average, new_s_trusted)
    _move(x, w, -upper_scale, new_x)
    n = len(x)
    for i in range(n):
        logits[i] = new_x[i]
        logits[n + i] = signs[i] * new_s[i]
    for i in range(len(s_trusted)):
        logits[2 * n + i] = signs[n + i] * new_s_trusted[i]
    return True


@compiled
def pull(chances, signs, crossed):
    """See `on_arrays.pull`."""
    n = len(crossed)
    weights, p, upper = chances[:n], chances[n : 2 * n], chances[2 * n :]
    one, share, upper_share = p.dtype.type(1), p.dtype.type(1 / n), p.dtype.type(1 / len(upper))
    for i in range(n):
        weight, weighted = weights[i], share * weights[i] * p[i]
        p[i] = weighted * (one - p[i])
        weights[i] = signs[i] * weighted
        crossed[i] = (weight - one) * weights[i]
    for i in range(len(upper)):
        upper[i] *= upper_share * signs[n + i]


@compiled
def estimate(
    columns, trusted, pulled, chances, before, after, noise, reach, eta, radius, ridge, tol, limit,
    terms, weight, whole, w_average, v_average,
):  # fmt: skip
    """See `on_arrays.estimate`; a plain tuple, which is made faster."""
    d, n = columns.shape
    _, _, w, _, _, _, near = before
    _, _, crossed, _, y, _, _ = after
    outcome, gradient, face, value = look(pulled, y, near, noise, reach, eta, radius, ridge)
    if outcome != DONE:
        return outcome, 0.0, 0.0, 0.0, 0, 0, False
    curvatures = chances[n : 2 * n]
    small = terms == SOLVED and len(face) <= SMALL
    matrix = _matrix(columns, face, curvatures, ridge) if small else np.empty((0, 0))
    residual, iterations, products, indefinite = _answer(
        matrix, columns, curvatures, ridge, trusted, chances[2 * n :], face, value, gradient, before, after, eta, tol,
        limit, terms, weight, whole, v_average,
    )  # fmt: skip
    square_h = turn(columns, face, value, crossed, w, w_average)
    return DONE, float(_dot(gradient, gradient)) / d, square_h, residual, iterations, products, indefinite


@compiled
def look(pulled, y, near, noise, reach, eta, radius, ridge):
    """See `on_arrays.look`."""
    gradient, z = np.empty_like(y), np.empty_like(y)
    for j in range(len(y)):
        gradient[j] = pulled[j] + ridge * y[j]
        z[j] = y[j] - eta * gradient[j] + noise[j]
    face, value = project(z, radius, near)
    if len(face) == 0:
        return GENERAL, gradient, face, value
    return DONE if settled(z, face, value, reach) else DRAW, gradient, face, value


@compiled
def _answer(
    matrix, columns, curvatures, ridge, trusted, upper, face, value, gradient, before, after, eta, tol, limit, terms,
    weight, whole, v_average,
):  # fmt: skip
    """By the matrix where there is one, else by products with the columns; `value` becomes the adjoint."""
    _, _, _, _, _, v, near = before
    _, _, _, _, _, new_v, adjoint = after
    towards, start, b = np.empty(len(face)), np.empty(len(face)), np.empty(len(face))
    for a, j in enumerate(face):
        towards[a], start[a] = math.copysign(1.0, value[a]), near[j]
        b[a] = _dot(trusted[j], upper)
    residual, iterations, products, indefinite = 0.0, 0, terms, False
    if terms == SOLVED:
        found, residual, iterations, products, indefinite = solve(
            matrix, columns, face, towards, curvatures, ridge, b, start, tol, limit
        )
    else:
        found = series(matrix, columns, face, towards, curvatures, ridge, b, eta, terms, weight, whole)
    adjoint[:] = 0
    for a, j in enumerate(face):
        adjoint[j] = value[a] = found[a]
    for j in range(len(v)):
        new_v[j] = v[j] + v_average * (gradient[j] - v[j])
    return residual, iterations, products, indefinite


@compiled
def settled(z, face, value, reach):
    """See `on_arrays.settled`."""
    level = abs(z[face[0]]) - abs(value[0])
    nearest = level if reach > 0 else math.inf
    for i in range(len(z) if reach > 0 else 0):
        nearest = min(nearest, abs(abs(z[i]) - level))
    return nearest > 3 * reach


@compiled
def project(z, radius, near):
    """See `on_arrays.project`."""
    count, total, level, largest = 0, 0.0, -radius, 0.0
    for i in range(len(z)):
        size = float(abs(z[i]))
        total += size
        largest = max(largest, size)
        if near[i] != 0:
            level += size
            count += 1
    level = level / count if count > 0 else largest - radius

    support, kept = np.empty(len(z), np.int64), 0
    if radius < total < FAR * radius:
        for i in range(len(z)):
            if abs(z[i]) > level:
                support[kept] = i
                kept += 1
    before = kept + 1
    while 0 < kept < before:  # each time the level rises, until it leaves no one out
        before, level = kept, -radius
        for i in support[:kept]:
            level += abs(z[i])
        level, kept = level / before, 0
        for i in support[:before]:
            if abs(z[i]) - level > 0:
                support[kept] = i
                kept += 1

    support, value = support[:kept].copy(), np.empty(kept, z.dtype)
    for a, i in enumerate(support):
        value[a] = math.copysign(abs(z[i]) - level, z[i])
    return support, value


@compiled
def margins(columns, s, support, value, average, moved):
    """See `on_arrays.margins`."""
    total, average = np.empty(BLOCK, s.dtype), s.dtype.type(average)
    for first in range(0, len(s), BLOCK):
        old, new = s[first : first + BLOCK], moved[first : first + BLOCK]
        _combine(columns, first, support, value, total)
        for i in range(len(new)):
            new[i] = old[i] + average * (total[i] - old[i])


@compiled
def turn(columns, support, value, crossed, w, average):
    """See `on_arrays.turn`."""
    total, square, average = np.empty(BLOCK, w.dtype), 0.0, w.dtype.type(average)
    for first in range(0, len(w), BLOCK):
        old, new = w[first : first + BLOCK], crossed[first : first + BLOCK]
        _combine(columns, first, support, value, total)
        part = w.dtype.type(0)
        for i in range(len(new)):
            h = new[i] * total[i]
            part += h * h
            new[i] = old[i] + average * (h - old[i])
        square += part
    return square / len(w)


@compiled
def solve(matrix, columns, support, towards, curvatures, ridge, b, start, tol, limit):
    """See `on_arrays._solve`: conjugate gradients, operation by operation."""
    b, x = _along(b, towards), _along(start, towards)
    scale = _dot(b, b) ** 0.5
    if scale == 0.0 or not np.isfinite(scale):
        return _moved(b, b, scale - 1.0), scale, 0, 1, False
    residual = _moved(b, _product(matrix, columns, support, towards, curvatures, ridge, x), -1.0)
    square = _dot(residual, residual)
    if not square < scale * scale:
        x, residual, square = np.zeros_like(b), b, scale * scale
    direction, best, best_square = residual, x, square
    for k in range(limit):
        if square**0.5 <= tol * scale:
            return x, square**0.5 / scale, k, k + 1, False
        turned = _product(matrix, columns, support, towards, curvatures, ridge, direction)
        along = _dot(direction, turned)
        if not along > 0.0:
            return best, best_square**0.5 / scale, k, k + 2, True
        x = _moved(x, direction, square / along)
        residual = _moved(residual, turned, -square / along)
        previous, square = square, _dot(residual, residual)
        direction = _moved(residual, direction, square / previous)
        if square < best_square:
            best, best_square = x, square
    return best, best_square**0.5 / scale, limit, limit + 1, False


@compiled
def series(matrix, columns, support, towards, curvatures, ridge, b, eta, products, weight, whole):
    """See `on_arrays._series`."""
    term = _along(b, towards)
    total = term
    for _ in range(products):
        term = _moved(term, _product(matrix, columns, support, towards, curvatures, ridge, term), -eta)
        total = _moved(total, term, 1.0) if whole else term
    return _moved(total, total, eta * weight - 1.0)


@compiled
def _product(matrix, columns, support, towards, curvatures, ridge, v):
    """Pi (A_S^T diag(curvatures) A_S + ridge) v, by its matrix where there is one."""
    if len(matrix) > 0:
        turned = np.empty_like(v)
        for a in range(len(v)):
            turned[a] = _dot(matrix[a], v)
        return _along(turned, towards)
    return _along(_moved(product(columns, support, curvatures, v), v, ridge), towards)


@compiled
def product(columns, support, curvatures, v):
    """See `on_arrays.product`."""
    turned, value, total = np.zeros(len(v)), np.empty(len(v), columns.dtype), np.empty(BLOCK, columns.dtype)
    for a in range(len(v)):
        value[a] = v[a]
    for first in range(0, columns.shape[1], BLOCK):
        weights = curvatures[first : first + BLOCK]
        _combine(columns, first, support, value, total)
        for i in range(len(weights)):
            total[i] *= weights[i]
        for a, j in enumerate(support):
            turned[a] += _dot(columns[j][first : first + BLOCK], total)
    return turned


@compiled
def _matrix(columns, support, curvatures, ridge):
    """A_S^T diag(curvatures) A_S + ridge."""
    matrix = np.zeros((len(support), len(support)))
    bent = np.empty(BLOCK, columns.dtype)
    for first in range(0, columns.shape[1], BLOCK):
        weights = curvatures[first : first + BLOCK]
        for a, j in enumerate(support):
            column = columns[j][first : first + BLOCK]
            for i in range(len(column)):
                bent[i] = weights[i] * column[i]
            for b in range(a + 1):
                matrix[a, b] += _dot(columns[support[b]][first : first + BLOCK], bent)
    for a in range(len(support)):
        matrix[a, a] += ridge
        for b in range(a):
            matrix[b, a] = matrix[a, b]
    return matrix


@compiled
def _combine(columns, first, support, value, total):
    """total <- A_S value, for the block of rows from `first` on."""
    total[:] = 0
    for a, j in enumerate(support):
        column, factor = columns[j][first : first + BLOCK], value[a]
        for i in range(len(column)):
            total[i] += factor * column[i]


@compiled
def _dot(u, v):
    """u.v, for a v that may be longer."""
    total = u.dtype.type(0)
    for i in range(len(u)):
        total += u[i] * v[i]
    return total


@compiled
def _along(v, towards):
    """v - t (t.v)/|S|."""
    return _moved(v, towards, -_dot(towards, v) / len(towards))


@compiled
def _moved(a, b, step):
    """a + step b."""
    moved = np.empty_like(a)
    _move(a, b, step, moved)
    return moved


@compiled
def _move(a, b, step, moved):
    """moved <- a + step b, in the numbers of a."""
    step = a.dtype.type(step)
    for i in range(len(a)):
        moved[i] = a[i] + step * b[i]
