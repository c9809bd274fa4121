"""The linear system on a face of rows divided among ranks, with as few sums as it can have.

On the columns S of a face, with c = sigmoid'(x) p t / n of each row, a step needs products with

    C = A_S^T diag(sigmoid(x) p (1 - p)) A_S / n

and, of the solution w, the hypergradient h = c A_S w, whose entries stay where their rows are, but whose size |h|^2 all
ranks must know. Both kinds begin on columns that are likely to be the face, with numbers that go with the sum of the
pass over the rows:

`Matrices` are C and M = A_S^T diag(c^2) A_S, for which |h|^2 = w' M w. No further sum is needed, and the columns may be
some more than the face.

`Products` begin with C w0, w0 the adjoint of the last step, and have one sum of |S| numbers for each further product.
After one iteration w = w0 + a p, hence

    |h|^2 = |h0|^2 + 2 a h0.h1 + a^2 |h1|^2            with h0 = c A_S w0 and h1 = c A_S p,

and these three numbers go with the products; after more of them |h|^2 has a sum of its own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ..applications.hyper_cleaning.on_arrays import Array
from .ranks import Ranks

MOST = 64
"""Matrices are made for up to so many columns."""


class Rows:
    """The rows at hand, for sums over the rows of all ranks.

    Parameters
    ----------
    do
        The module with the arithmetic.
    columns
        A^T, (d, n).
    share
        The share of these rows among all.
    curvatures
        sigmoid(x) p (1 - p) / n of these rows: an array that every step fills.
    """

    def __init__(self, do: Any, ranks: Ranks, columns: Array, share: float, curvatures: Array) -> None:
        self.do, self.ranks, self.columns, self.share, self.curvatures = do, ranks, columns, share, curvatures
        self.turned = np.empty((2, columns.shape[1]), columns.dtype)
        """h0 and h1 of `Products`."""

    def sums(self, *parts: Array) -> list[Array]:
        """Sums over ranks, all of them in one round."""
        packed = np.concatenate(parts, dtype=np.float64)
        self.ranks.all_sum(torch.from_numpy(packed))
        return np.split(packed, np.cumsum([len(part) for part in parts[:-1]]))

    def turn(self, face: Array, w: Array, slopes: Array, momentum: Array, average: float) -> float:
        """slopes <- (1 - average) momentum + average h, and |h|^2 of these rows."""
        mean = self.do.turn(self.columns, face, w * w.dtype.type(self.share), slopes, momentum, average)
        return mean * len(slopes)


class Matrices:
    """C and M on columns, in order, among which the face may be."""

    def __init__(self, rows: Rows, columns: Array, slopes: Array) -> None:
        self._rows, self._columns, self._slopes = rows, columns, slopes
        size = len(columns)
        packed = np.empty(size * (size + 1))
        rows.do.grams(rows.columns, columns, rows.curvatures, slopes, rows.share, packed)
        self.mine = [packed]
        """What is to be summed over ranks."""

    def keep(self, packed: Array) -> None:
        self._packed = packed

    def on(self, face: Array) -> Matrices | None:
        """For this face; None where it has other columns."""
        size, at = len(self._columns), np.searchsorted(self._columns, face)
        if at[-1] >= size or (self._columns[at] != face).any():
            return None
        self._face, here = face, np.ix_(at, at)
        self._curved, self._squared = (_symmetric(self._packed[first::2], size)[here] for first in (0, 1))
        return self

    def product(self, v: Array) -> Array:
        """C v."""
        return self._curved @ v

    def turn(self, w: Array, momentum: Array, average: float) -> float:
        """slopes <- (1 - average) momentum + average h, and |h|^2 of all rows."""
        here = self._rows.turn(self._face, w, self._slopes, momentum, average)
        products = np.multiply.outer(w, w) * self._squared
        return float(products.sum()) if _keeps_digits(products, w) else self._rows.ranks.total(here)[0]


class Products:
    """Vectors v on a face with C v, and |h0|^2, h0.h1, |h1|^2 of the first two; it begins with w0, or with none."""

    def __init__(self, rows: Rows, face: Array, slopes: Array, start: Array | None = None) -> None:
        self._rows, self._face, self._slopes = rows, face, slopes
        self._vectors: list[Array] = []
        self._products: list[Array] = []
        self._squares: list[float] = []
        self.mine = [] if start is None else self._multiply(start)
        """What is to be summed over ranks."""

    def keep(self, product: Array, squares: Array) -> None:
        self._products.append(product)
        self._squares.extend(squares.tolist())

    def on(self, face: Array) -> Products | None:
        """For this face; None where it has other columns."""
        return self if np.array_equal(self._face, face) else None

    def product(self, v: Array) -> Array:
        """C v: one sum, unless it is known."""
        if not (self._vectors and np.array_equal(self._vectors[-1], v)):
            self.keep(*self._rows.sums(*self._multiply(v)))
        return self._products[-1]

    def turn(self, w: Array, momentum: Array, average: float) -> float:
        """slopes <- (1 - average) momentum + average h, and |h|^2 of all rows."""
        a, slopes, number = self._step_to(w), self._slopes, w.dtype.type
        parts = None if a is None else np.multiply(self._squares, (1.0, 2 * a, a * a)[: len(self._squares)])
        if a is None or parts is None or not _keeps_digits(parts, w):
            return self._rows.ranks.total(self._rows.turn(self._face, w, slopes, momentum, average))[0]
        h0, h1 = self._rows.turned
        np.subtract(h0, momentum, out=slopes)
        if a != 0.0:
            slopes += number(a) * h1
        slopes *= number(average)
        slopes += momentum
        return float(parts.sum())

    def _multiply(self, v: Array) -> list[Array]:
        """C v, and products of its h with those before: of the rows at hand."""
        rows, at = self._rows, len(self._vectors)
        turned = rows.turned[min(at, 1)]
        product = rows.do.scored(rows.columns, self._face, rows.curvatures, self._slopes, v, turned)
        turned *= turned.dtype.type(rows.share)
        self._vectors.append(v)
        squares = [float(turned @ other) for other in rows.turned[: at + 1]] if at < 2 else []
        return [rows.share * product, np.array(squares)]

    def _step_to(self, w: Array) -> float | None:
        """The number a with w = w0 + a p, w0 and p the first two vectors; 0 where w = w0, None where there is none."""
        if not 1 <= len(self._vectors) <= 2:
            return None
        w0, *further = self._vectors
        missing, a = w - w0, 0.0
        for p in further:
            a = float(p @ missing) / float(p @ p)
            missing = missing - a * p
        return a if np.abs(missing).max() <= 4 * np.finfo(w.dtype).eps * np.abs(w).max() else None


def _keeps_digits(parts: Array, w: Array) -> bool:
    """Whether parts of |h|^2, made in the numbers of w, can be added up: where columns are nearly the same, they
    cancel. All ranks have the same parts, and decide alike.
    """
    return bool(parts.sum() > np.finfo(w.dtype).eps ** 0.25 * np.abs(parts).sum())


_triangle = lru_cache(MOST)(np.tril_indices)


def _symmetric(lower: Array, size: int) -> Array:
    """The matrix whose lower triangle is given, row by row."""
    matrix = np.zeros((size, size))
    rows, columns = _triangle(size)
    matrix[rows, columns] = matrix[columns, rows] = lower
    return matrix


def rehearse(module: Any, number: Any) -> None:
    """Its functions on two rows: they are compiled by now, or loaded."""
    columns, face, one = np.eye(2, dtype=number), np.arange(2), np.full(2, 0.5, number)
    module.grams(columns, face, one, one, 0.5, np.empty(6))
    module.scored(columns, face, one, one, np.ones(2), one.copy())
    module.turn(columns, face, one, one.copy(), one, 0.1)
