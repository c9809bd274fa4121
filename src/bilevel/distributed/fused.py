"""The fused step of DMLCBO (see `applications.hyper_cleaning.fused`) on rows divided among ranks.

Each rank moves x and y, its margins, and makes its pass A_r^T r. The sum over ranks is grad_y g, and gives every rank
the face S. What the linear system of the face needs from all rows is in `on_face`: it begins with the sum of the pass,
on the face that y - eta v projects to, v the momentum of the gradient. Where that is the face, a step has one sum or
two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..applications.hyper_cleaning import fused, on_arrays
from ..applications.hyper_cleaning.fused import FusedStep
from ..applications.hyper_cleaning.on_arrays import DONE, Array, Estimated, Parts
from ..hypergradients import LinearSolve
from ..solvers.dmlcbo import DMLCBO, DMLCBOState
from ..spaces import leaves
from . import on_face
from .on_face import MOST, Matrices, Products, Rows

if TYPE_CHECKING:
    from .rows import ShardedCleaningProblem

WORTH = {4: 1e7, 8: 1e8}
"""Matrices are made up to so many products of numbers, n k (k + 1) on the rank with most rows, by a number's bytes: two
milliseconds in float32, whose linear systems take an iteration or two, and ten times as many in float64, whose linear
systems take about ten."""
SPARE = 2
"""How many columns beside the face of the last momentum matrices have."""


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
        curvatures = self._chances[self._rows : 2 * self._rows]
        self._divided = Rows(self._do, problem.ranks, self._noisy, self._rows / self._count, curvatures)
        most = WORTH[self._noisy.itemsize] / max(problem.counts)
        self._most = sum(k * (k + 1) <= most for k in range(1, MOST + 1))
        self.made: DMLCBOState | None = None
        """The state that the last step made."""

    def _arithmetic(self) -> Any:
        return fused.arithmetic(self._noisy.dtype, _rehearse)

    def __call__(self, problem: Any, state: DMLCBOState) -> DMLCBOState | None:
        self.made = super().__call__(problem, state)
        return self.made

    def is_finite(self) -> bool:
        """Whether what it made is finite, on all ranks, as each of them knows: entries of x are counted with the
        gradient, and those of h make its mean square wrong.
        """
        y, v, m2 = self.made.y, self.made.lower_momentum, self.made.upper_moment  # type: ignore[union-attr]
        return self._wrong == 0 and all(bool(torch.isfinite(u).all()) for u in (*leaves(y), *leaves(v), m2))

    def _to_chances(self) -> None:
        """Trusted rows by themselves: the last bit of torch's sigmoid depends on where in a tensor a number is, and
        they come after the rows of the rank. All ranks must have the same bits.
        """
        for part in self._logits.split([2 * self._rows, self._trusted_rows]):
            part.sigmoid_()

    def _pull(self, state: DMLCBOState, before: Parts, after: Parts) -> None:
        """The pass, what can be begun on the face, and what the ranks tell each other: one sum."""
        super()._pull(state, before, after)
        self._begun, rows = self._begin(before, after, self._eta(state.curvature)), self._divided
        wrong = float(np.count_nonzero(~np.isfinite(after[0])))
        pulled, told = rows.share * self._pulled, np.array([wrong, *self._pulse.told()])
        gradient, *summed, told = rows.sums(pulled, *self._begun.mine, told)
        self._pulled[:] = gradient
        if summed:
            self._begun.keep(*summed)
        self._wrong, *heard = told.tolist()
        self._pulse.heard(*heard)

    def _begin(self, before: Parts, after: Parts, eta: float) -> Matrices | Products:
        """On the face that is foreseen: by the state alone, so that a resumed run does the same."""
        (*_, v, near), y, slopes = before, after[4], after[2]
        z = y - eta * v
        face, value = self._do.project(z, self._radius, near)
        likely = _largest(z, near, len(face) + SPARE)
        if len(likely) <= self._most:
            return Matrices(self._divided, likely, slopes)
        solved = len(face) > 0 and isinstance(self._solver.hypergradient, LinearSolve)
        return Products(self._divided, face, slopes, on_arrays.start_on(near, face, value) if solved else None)

    def _attempt(
        self, before: Parts, after: Parts, noise: Array, reach: float, eta: float, radius: float, ridge: float,
        terms: int, weight: float, whole: bool, w_average: float, v_average: float,
    ) -> Estimated:  # fmt: skip
        (_, _, w, _, _, _, near), (_, _, crossed, _, y, _, adjoint) = before, after
        outcome, gradient, face, value = self._do.look(self._pulled, y, near, noise, reach, eta, radius, ridge)
        if outcome != DONE:
            return Estimated(outcome, 0.0, 0.0, 0.0, 0, 0, False)
        known = self._begun.on(face) or Products(self._divided, face, crossed)
        numbers = on_arrays.answer(
            lambda v: known.product(v) + ridge * v, self._trusted, self._chances[2 * self._rows :], face, value,
            gradient, before, after, eta, self._tol, self._limit, terms, weight, whole, v_average,
        )  # fmt: skip
        square_h = known.turn(adjoint[face], w, w_average) / self._count
        return Estimated(DONE, float(gradient @ gradient) / len(gradient), square_h, *numbers)  # type: ignore[arg-type]


def _largest(z: Array, near: Array, count: int) -> Array:
    """The columns with the `count` largest |z|, and those of the last face, in order."""
    size, count = np.abs(z), min(count, len(z))
    return ((size >= np.partition(size, -count)[-count]) | (near != 0)).nonzero()[0]


def _rehearse(module: Any, number: Any) -> None:
    """All functions of a step on two rows: they are compiled by now, or loaded."""
    fused.rehearse(module, number)
    on_face.rehearse(module, number)
    one = np.full(2, 0.5, number)
    module.look(one, one, np.zeros(2, number), np.zeros(2, number), 0.0, 0.1, 0.1, 0.1)
    module.project(one, 0.1, one)
