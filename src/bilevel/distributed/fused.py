"""The fused step of DMLCBO (see `applications.hyper_cleaning.fused`) on rows divided among ranks.

Each rank moves x and y, its margins, and makes its pass A_r^T r. The sum over ranks is grad_y g, and gives every rank
the face S, which is nearly always that of y - eta v, v the momentum of the gradient before. On that face the linear
system is solved while the pass is made (see `on_face`), and the size of the hypergradient goes with the gradient: ranks
wait for each other once. Where the face was another one, the system is solved anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..applications.hyper_cleaning import fused, on_arrays
from ..applications.hyper_cleaning.fused import FusedStep
from ..applications.hyper_cleaning.on_arrays import DONE, SOLVED, Array, Estimated, Parts
from ..solvers.dmlcbo import DMLCBO, DMLCBOState
from ..spaces import leaves
from . import on_face
from .on_face import Pass, Rows, Solved

if TYPE_CHECKING:
    from .rows import ShardedCleaningProblem


class ShardedStep(FusedStep):
    """(problem, state) -> state on every rank, or None where all of them take the general step."""

    def __init__(self, problem: ShardedCleaningProblem, solver: DMLCBO) -> None:
        self._pulse, self._ranks, self._count = problem.pulse, problem.ranks, sum(problem.counts)
        self._radius = problem.constraint.sets["weight"].radius  # type: ignore[union-attr]
        self._ridge = 2.0 * problem.ridges["weight"]
        super().__init__(problem, solver)
        self._ranks.agree(
            {"the arithmetic of a step": self._do.__name__},
            'install the extra "fast" (numba) on every rank, or on none',
        )
        curvatures = self._chances[self._rows : 2 * self._rows]
        self._divided = Rows(self._do, problem.ranks, self._noisy, self._rows / self._count, curvatures)
        self._slopes = np.empty_like(curvatures)
        self._foresees = True  # the face of the last step was foreseen: so that of the next one will be, most likely
        self._likely = b"", b"", 0.0
        self._solved: Solved | None = None
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
        """The pass, the linear system of the face that is foreseen, and what the ranks tell each other: one sum."""
        reading, rows = Pass(self._noisy, self._chances[: self._rows], self._pulled), self._divided
        self._solved = self._foresee(state, before, after, reading.some)
        reading.rest()
        square = 0.0 if self._solved is None else self._solved.square
        wrong = float(np.count_nonzero(~np.isfinite(after[0])))
        self._pulled[:], (self._square, self._wrong, *heard) = self._sums(
            rows.share * self._pulled, square, wrong, *self._pulse.told()
        )
        self._pulse.heard(*heard)

    def _sums(self, gradient: Array, *numbers: float) -> tuple[Array, list[float]]:
        """Sums over ranks of a gradient and a few numbers, in one round."""
        packed = np.concatenate([gradient, numbers], dtype=np.float64)
        self._ranks.all_sum(torch.from_numpy(packed))
        return packed[: len(gradient)], packed[len(gradient) :].tolist()

    def _foresee(self, state: DMLCBOState, before: Parts, after: Parts, meanwhile: Callable[[], None]) -> Solved | None:
        """The linear system of the face of y - eta v, unless such a face was wrong in the step before."""
        (*_, v, near), y, eta = before, after[4], self._eta(state.curvature)
        face, value = self._do.project(y - eta * v, self._radius, near)
        series = self._terms(state)
        self._likely = _mark(face, value, eta, series[0])
        if not (self._foresees and len(face)):
            return None
        self._slopes[:] = after[2]
        average = self._solver.upper_momentum * self._solver.averaging(state.step + 1)
        return self._solve(before, after, face, value, eta, *series, average, meanwhile)

    def _attempt(
        self, before: Parts, after: Parts, noise: Array, reach: float, eta: float, radius: float, ridge: float,
        terms: int, weight: float, whole: bool, w_average: float, v_average: float,
    ) -> Estimated:  # fmt: skip
        near, crossed, y = before[6], after[2], after[4]
        outcome, gradient, face, value = self._do.look(self._pulled, y, near, noise, reach, eta, radius, ridge)
        if outcome != DONE:
            return Estimated(outcome, 0.0, 0.0, 0.0, 0, 0, False)
        self._foresees = self._likely == _mark(face, value, eta, terms)
        if not self._foresees and self._solved is not None:
            crossed[:], self._solved = self._slopes, None
        if self._solved is None:
            self._solved = self._solve(before, after, face, value, eta, terms, weight, whole, w_average)
            # As many numbers, and at the same place: so they are added in the same order, and have the same bits.
            _, (self._square, *_) = self._sums(np.zeros_like(gradient), self._solved.square, 0.0, 0.0, 0.0)
        square_g = on_arrays.keep(gradient, face, self._solved.adjoint, before, after, v_average)
        return Estimated(DONE, square_g, self._square / self._count, *self._solved.numbers)

    def _solve(
        self, before: Parts, after: Parts, face: Array, value: Array, eta: float, terms: int, weight: float,
        whole: bool, w_average: float, meanwhile: Callable[[], Any] = lambda: None,
    ) -> Solved:  # fmt: skip
        """The linear system of a face, and with it w of `after`, from its slopes."""
        w, near, rows = before[2], before[6], self._divided
        adjoint, numbers = on_arrays.answer(
            lambda v: rows.product(face, v, meanwhile) + self._ridge * v, self._trusted,
            self._chances[2 * self._rows :], face, value, near, eta, self._tol, self._limit, terms, weight, whole,
        )  # fmt: skip
        return Solved(adjoint, numbers, rows.turn(face, adjoint.astype(w.dtype), after[2], w, w_average))


def _mark(face: Array, value: Array, eta: float, terms: int) -> tuple[bytes, bytes, float]:
    """The same for the same linear system: of a face, of signs and, where it is a series, of eta."""
    return face.tobytes(), np.signbit(value).tobytes(), 0.0 if terms == SOLVED else eta


def _rehearse(module: Any, number: Any) -> None:
    """All functions of a step on two rows: they are compiled by now, or loaded."""
    fused.rehearse(module, number)
    on_face.rehearse(module, number)
    one = np.full(2, 0.5, number)
    module.look(one, one, np.zeros(2, number), np.zeros(2, number), 0.0, 0.1, 0.1, 0.1)
    module.project(one, 0.1, one)
