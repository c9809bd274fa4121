"""The fused step of DMLCBO (see `applications.hyper_cleaning.fused`) on rows divided among ranks: one sum per step.

Each rank moves x and y, its margins, and makes its pass A_r^T r. On columns P that are likely to hold the face of this
step, it also makes

    C = A_P^T diag(sigmoid(x) p (1 - p)) A_P / n        and         M = A_P^T diag(sigmoid'(x) p t / n)^2 A_P.

One sum over ranks of A^T r, C and M gives every rank grad_y g and with it the face S; the linear system, a part of C;
and, once that is solved for w, the mean square |h|^2 / n = w' M w / n of the hypergradient h, whose entries stay where
the rows are. P is where y - eta v projects to, v the momentum of the gradient, and a few columns more.

Where the face has other columns, or so many of them or a rank so many rows that C and M take longer than a few sums,
the linear system is solved by its products, each a sum over ranks of |S| numbers, and |h|^2 is one more.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..applications.hyper_cleaning import fused, on_arrays
from ..applications.hyper_cleaning.fused import FusedStep
from ..applications.hyper_cleaning.on_arrays import DONE, SOLVED, Array, Estimated, Parts
from ..solvers.dmlcbo import DMLCBO, DMLCBOState
from ..spaces import leaves

if TYPE_CHECKING:
    from .rows import ShardedCleaningProblem

MOST = 64
"""C and M are made for up to so many columns,"""
WORTH = 1e7
"""and up to so many products of numbers, n k (k + 1) on the rank with most rows: half a millisecond, less than the
three sums take that a step by products has beside."""
SPARE = 2
"""How many columns beside the face of the last momentum are taken for likely."""


class ShardedStep(FusedStep):
    """(problem, state) -> state on every rank, or None where all of them take the general step."""

    def __init__(self, problem: ShardedCleaningProblem, solver: DMLCBO) -> None:
        self._pulse, self._ranks, self._count = problem.pulse, problem.ranks, sum(problem.counts)
        self._radius = problem.constraint.sets["weight"].radius  # type: ignore[union-attr]
        super().__init__(problem, solver)
        self._ranks.agree(
            {"the arithmetic of a step": self._do.__name__},
            'install the extra "fast" (numba) on every rank, or on none',
        )
        self._share = self._rows / self._count
        self._most = sum(k * (k + 1) * max(problem.counts) <= WORTH for k in range(1, MOST + 1))
        self._likely = np.empty(0, np.int64)
        self._summed = np.empty(0)
        self.made: DMLCBOState | None = None
        """The state that the last step made."""

    def _arithmetic(self) -> Any:
        return fused.arithmetic(self._noisy.dtype, _rehearse)

    def __call__(self, problem: Any, state: DMLCBOState) -> DMLCBOState | None:
        self.made = super().__call__(problem, state)
        return self.made

    def is_finite(self) -> bool:
        """Whether what it made is finite, on all ranks, as each of them knows: wrong entries of x make the gradient
        wrong, and those of h its mean square.
        """
        y, v, m2 = self.made.y, self.made.lower_momentum, self.made.upper_moment  # type: ignore[union-attr]
        return all(bool(torch.isfinite(u).all()) for u in (*leaves(y), *leaves(v), m2))

    def _pull(self, state: DMLCBOState, before: Parts, after: Parts) -> None:
        """The pass, C and M, and what the ranks tell each other: one sum."""
        super()._pull(state, before, after)
        self._likely = self._expected(before, after, self._eta(state.curvature))
        d, k, told = len(self._pulled), len(self._likely), self._pulse.told()
        buffer = np.empty(d + k * (k + 1) + len(told))
        np.multiply(self._pulled, self._share, out=buffer[:d])
        self._grams(self._likely, after, buffer[d : -len(told)])
        buffer[-len(told) :] = told
        self._ranks.all_sum(torch.from_numpy(buffer))
        self._pulled[:], self._summed = buffer[:d], buffer[d : -len(told)]
        self._pulse.heard(*buffer[-len(told) :].tolist())

    def _expected(self, before: Parts, after: Parts, eta: float) -> Array:
        """The columns P, in order: a function of the state alone, so that a resumed run has the same."""
        (*_, v, near), y = before, after[4]
        z = y - eta * v
        face, _ = self._do.project(z, self._radius, near)
        size, count = np.abs(z), min(len(face) + SPARE, len(z))
        likely = ((size >= np.partition(size, -count)[-count]) | (near != 0)).nonzero()[0]
        return likely if len(likely) <= self._most else likely[:0]

    def _grams(self, columns: Array, after: Parts, packed: Array) -> None:
        n = self._rows
        self._do.grams(self._noisy, columns, self._chances[n : 2 * n], after[2], self._share, packed)

    def _attempt(
        self, before: Parts, after: Parts, noise: Array, reach: float, eta: float, radius: float, ridge: float,
        terms: int, weight: float, whole: bool, w_average: float, v_average: float,
    ) -> Estimated:  # fmt: skip
        (_, _, w, _, _, _, near), (_, _, crossed, _, y, _, adjoint) = before, after
        outcome, gradient, face, value = self._do.look(self._pulled, y, near, noise, reach, eta, radius, ridge)
        if outcome != DONE:
            return Estimated(outcome, 0.0, 0.0, 0.0, 0, 0, False)
        rest = (
            self._trusted, self._chances[2 * self._rows :], face, value, gradient, before, after, eta, self._tol,
            self._limit, terms, weight, whole, v_average,
        )  # fmt: skip
        numbers: Any
        squared, known = None, self._on_face(face)
        if known is None:
            numbers = on_arrays.answer_by(lambda v: self._product(face, v) + ridge * v, *rest)
        else:
            curved, squared = known
            curved[np.diag_indices_from(curved)] += ridge
            numbers = self._do.answer(curved, *rest)
        found = adjoint[face]
        mean = self._do.turn(self._noisy, face, found * found.dtype.type(self._share), crossed, w, w_average)
        if squared is None:
            (square,) = self._ranks.total(mean * self._rows)
        else:
            wide = found.astype(np.float64)
            square = float(wide @ squared @ wide)
        return Estimated(DONE, float(gradient @ gradient) / len(gradient), square / self._count, *numbers)  # type: ignore[arg-type]

    def _product(self, face: Array, v: Array) -> Array:
        """A_S^T diag(curvatures) A_S v of all rows: one sum."""
        n = self._rows
        turned = self._share * self._do.product(self._noisy, face, self._chances[n : 2 * n], v)
        return self._ranks.all_sum(torch.from_numpy(turned)).numpy()

    def _on_face(self, face: Array) -> tuple[Array, Array] | None:
        """C and M on the columns of a face: parts of what was summed, if they are among the likely ones."""
        size, at = len(self._likely), np.searchsorted(self._likely, face)
        if at[-1] >= size or (self._likely[at] != face).any():
            return None
        here = np.ix_(at, at)
        curved, squared = (_symmetric(self._summed[first::2], size)[here] for first in (0, 1))
        return np.ascontiguousarray(curved), squared


_triangle = lru_cache(MOST)(np.tril_indices)


def _symmetric(lower: Array, size: int) -> Array:
    """The matrix whose lower triangle is given, row by row."""
    matrix = np.zeros((size, size))
    rows, columns = _triangle(size)
    matrix[rows, columns] = matrix[columns, rows] = lower
    return matrix


def _rehearse(module: Any, number: Any) -> None:
    """All functions of a step on two rows: they are compiled by now, or loaded."""
    fused.rehearse(module, number)
    columns, face, one = np.eye(2, dtype=number), np.arange(2), np.full(2, 0.5, number)
    before, after = (tuple(np.full(2, 2.0, number) for _ in range(7)) for _ in range(2))
    module.grams(columns, face, one, one, 0.5, np.empty(6))
    _, gradient, _, value = module.look(one, one, np.zeros(2, number), np.zeros(2, number), 0.0, 0.1, 0.1, 0.1)
    module.answer(
        np.eye(2), columns, one, face[:1], value[:1], gradient, before, after, 0.1, 0.1, 2, SOLVED, 1.0, False, 0.1
    )
    module.turn(columns, face, one, one.copy(), one, 0.1)
    module.project(one, 0.1, one)
    module.product(columns, face, one, np.ones(2))
