"""The linear system on a face of rows divided among ranks: products whose sums come while rows are read.

On the columns S of a face, with c = sigmoid'(x) p t / n of each row, a step needs products with

    C = A_S^T diag(sigmoid(x) p (1 - p)) A_S / n

each of them a sum over ranks of |S| numbers, and of the solution w the hypergradient h = c A_S w, whose entries stay
where their rows are. A rank sends its part of a product and reads some of its rows; by then the other parts are there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from ..applications.hyper_cleaning.on_arrays import Array
from .ranks import Ranks

PARTS, TOGETHER = 16, 8
"""The pass over the rows has so many parts at the most, each of a multiple of so many columns."""


class Solved(NamedTuple):
    """The linear system of a face."""

    adjoint: Array
    numbers: tuple[float, int, int, bool]  # residual, iterations, products, indefinite: as in `Estimated`
    square: float  # |h|^2 of the rows at hand


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

    def product(self, face: Array, v: Array, meanwhile: Callable[[], Any]) -> Array:
        """C v, for which the other ranks are waited for after `meanwhile()`."""
        mine = self.share * self.do.product(self.columns, face, self.curvatures, v)
        arrive = self.ranks.begin_sum(torch.from_numpy(mine))
        meanwhile()
        return arrive().numpy()

    def turn(self, face: Array, w: Array, slopes: Array, momentum: Array, average: float) -> float:
        """slopes <- (1 - average) momentum + average h, and |h|^2 of these rows."""
        mean = self.do.turn(self.columns, face, w * w.dtype.type(self.share), slopes, momentum, average)
        return mean * len(slopes)


class Pass:
    """out <- A^T r, part by part: the parts, and so the bits, are always the same."""

    def __init__(self, columns: Array, r: Array, out: Array) -> None:
        length = TOGETHER * -(-len(columns) // (TOGETHER * PARTS))
        self._parts = (
            np.dot(columns[first : first + length], r, out=out[first : first + length])
            for first in range(0, len(columns), length)
        )

    def some(self) -> None:
        """The next part, if there is one."""
        next(self._parts, None)

    def rest(self) -> None:
        """All that is left."""
        for _ in self._parts:
            pass


def rehearse(module: Any, number: Any) -> None:
    """Its functions on two rows: they are compiled by now, or loaded."""
    columns, face, one = np.eye(2, dtype=number), np.arange(2), np.full(2, 0.5, number)
    module.product(columns, face, one, np.ones(2))
    module.turn(columns, face, one, one.copy(), one, 0.1)
