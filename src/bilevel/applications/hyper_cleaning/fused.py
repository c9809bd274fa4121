"""One step of DMLCBO on the paper's hyper-cleaning problem, written out on arrays: it reads the data once.

Two classes, logistic loss, a weight per row, an l1 ball, no intercept. With signs t_i = 1 for class 0 and -1 for
class 1, margins s = A y of the noisy and s' = A' y of the trusted rows, and p = sigmoid(t s), p' = sigmoid(t' s'):

    grad_y g      = A^T (sigmoid(x) p t) / n + 2 c y            the one pass over A
    grad_y f      = A'^T (p' t') / m                            on the support S of the face
    G_yy v        = A_S^T (sigmoid(x) p (1 - p) A_S v) / n + 2 c v                  likewise
    G_xy v        = sigmoid'(x) p t A_S v / n                                       likewise
    s             <- (1 - eta_k) s + eta_k A_S yhat_S           S the support of yhat

The same mathematics as `DMLCBO` on a `CleaningLinearization`, operation by operation; what is saved is the overhead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ... import tolerances
from ...hypergradients import LinearSolve
from ...sets.free_space import FreeSpace
from ...sets.product import ProductSet
from ...sets.simplex import L1Ball
from ...smoothing import Exact, Perturbed
from ...solvers.dmlcbo import DMLCBO, SETTLING, DMLCBOState
from .design import DenseDesign
from .losses import Logistic
from .noise import RowWeights
from .on_arrays import Array, Estimated, Moved

if TYPE_CHECKING:
    from .problem import CleaningProblem

AHEAD = 8
"""The noise of so many steps is drawn together."""


def written_out(problem: CleaningProblem) -> bool:
    """Whether the step of this problem is written out here, for solvers that suit."""
    ball = problem.constraint.sets.get("weight") if isinstance(problem.constraint, ProductSet) else None
    return (
        type(problem.loss) is Logistic
        and type(problem.noise) is RowWeights
        and type(ball) is L1Ball
        and isinstance(ball.radius, float)
        and ball.radius > 0
        and isinstance(problem.upper_constraint, FreeSpace)
        and set(problem.y0) == {"weight"}  # type: ignore[arg-type]
        and not (problem.trusted_in_lower or problem.evidence or problem.sampler)
        and all(_on_arrays(design) for design in (problem.design, problem.trusted_design))
    )


def fused_step(problem: CleaningProblem, solver: Any) -> FusedStep | None:
    """The step of this solver on this problem, when both are of the kind written out here."""
    estimator = getattr(solver, "hypergradient", None)
    suits = (
        type(solver) is DMLCBO
        and solver.adaptivity == "scalar"
        and type(estimator) is LinearSolve
        and type(estimator.smoothing) in (Exact, Perturbed)
        and written_out(problem)
    )
    return FusedStep(problem, solver) if suits else None


def _on_arrays(design: Any) -> bool:
    return type(design) is DenseDesign and design.device.type == "cpu"


def arithmetic() -> Any:
    """The module with the arithmetic of a step: compiled where numba is installed (the extra `fast`)."""
    try:
        from . import compiled
    except (ImportError, RuntimeError):  # no numba, or no folder where it may keep what it compiled
        from . import on_arrays as compiled
    return compiled


class FusedStep:
    """(problem, state) -> state, or None where the projected point is not on a small face of the ball."""

    def __init__(self, problem: CleaningProblem, solver: DMLCBO) -> None:
        self._solver, self._ridge = solver, 2.0 * problem.ridges["weight"]
        self._radius = problem.constraint.sets["weight"].radius  # type: ignore[union-attr]
        self._smoothing = solver.hypergradient.smoothing  # type: ignore[attr-defined]
        self._limit = solver.hypergradient.max_iterations  # type: ignore[attr-defined]
        tol = solver.hypergradient.tol  # type: ignore[attr-defined]
        self._tol = tolerances.linear_residual(problem.design.dtype) if tol is None else tol
        self._noisy, self._trusted = (_columns(d) for d in (problem.design, problem.trusted_design))
        self._signs = _signs(torch.cat((problem.labels, problem.trusted_labels)))
        self._logits = torch.empty(len(self._signs) + len(problem.labels), dtype=problem.design.dtype)
        self._noise: tuple[Any, Array] = (None, np.zeros((AHEAD, len(self._noisy)), self._noisy.dtype))
        self._do = arithmetic()

    def __call__(self, problem: Any, state: DMLCBOState) -> DMLCBOState | None:
        if state.carried is None:
            return None
        solver, k = self._solver, state.step + 1
        average, anew = solver.averaging(k), k % solver.refresh == 0
        w, v, near = state.upper_momentum.numpy(), _array(state.lower_momentum), _array(state.adjoint)
        s, s_trusted = (state.carried[rows].numpy()[:, 0] for rows in ("noisy", "trusted"))
        logits = self._logits.numpy()

        moved = self._do.move(
            self._noisy, self._trusted, self._signs, state.x.numpy(), _array(state.y), s, s_trusted, w, v, near,  # type: ignore[union-attr]
            self._scale(state.upper_moment, state.upper_floor, average * solver.upper_step),
            self._lower_scale(state, average), average, self._radius, anew, logits,
        )  # fmt: skip
        if len(moved.x) == 0:
            return None
        self._logits.sigmoid_()  # in torch, which does several at once
        w_new = self._do.pull(logits, self._signs, len(w))
        gradient = self._noisy @ logits[: len(w)]  # the one pass over the data
        curvature = self._curvature(problem, state, moved) if anew else state.curvature
        eta = self._eta(curvature)
        found = self._do.estimate(
            self._noisy, self._trusted, gradient, logits, w_new, moved.y, w, v, near, self._perturbation(state, k),
            eta, self._radius, self._ridge, self._tol, self._limit,
            solver.upper_momentum * average, solver.lower_momentum * average,
        )  # fmt: skip
        return None if found.products == 0 else self._after(problem, state, moved, w_new, found, curvature, eta)

    def _after(
        self, problem: Any, state: DMLCBOState, moved: Moved, w: Array, found: Estimated, curvature: float, eta: float
    ) -> DMLCBOState:
        """The new state, its moments, and what it cost."""
        solver, costs, number = self._solver, problem.costs, moved.x.dtype
        costs.projections += 1
        costs.lower_gradients += 1
        costs.upper_gradients += 1
        costs.cross_products += 1
        costs.hessian_products += found.products
        squares = found.square_h, found.square_g
        moments = float(state.upper_moment), float(state.lower_moment["weight"])
        m2, m1 = (new + solver.moment_decay * (old - new) for new, old in zip(squares, moments, strict=True))
        after = DMLCBOState(
            x=torch.from_numpy(moved.x), y=_row(moved.y), step=state.step + 1, seeds=state.seeds,
            upper_momentum=torch.from_numpy(w), lower_momentum=_row(found.v),
            upper_moment=torch.from_numpy(np.array(m2, number)), lower_moment=_row(np.array([m1], number)),
            upper_floor=state.upper_floor, lower_floor=state.lower_floor, adjoint=_row(found.adjoint),
            curvature=curvature, carried=_scores(moved),
            stats={
                "eta": eta, "residual": found.residual, "iterations": float(found.iterations),
                "indefinite": float(found.indefinite),
            },
        )  # fmt: skip
        if after.step == SETTLING:
            upper, lower = (np.array(square, number) for square in squares)
            solver._set_floors(after, torch.from_numpy(upper), _row(lower[None]))
        return after

    def _curvature(self, problem: Any, state: DMLCBOState, moved: Moved) -> float:
        """As `DMLCBO` has it, at the new point."""
        lin = problem.linearize(torch.from_numpy(moved.x), _row(moved.y)).carrying(_scores(moved))
        return self._solver._curvature(lin, state, state.step + 1)

    def _scale(self, moment: Any, floor: Any, step: float) -> float:
        size = float(moment) ** 0.5 + self._solver.offset
        return step / min(max(size, float(floor)), 1.0 / self._solver.smallest_scale)

    def _lower_scale(self, state: DMLCBOState, average: float) -> float:
        if self._solver.lower_step == "auto":
            return 1.0 / (average * state.curvature) if state.curvature > 0 else 1.0
        return self._scale(state.lower_moment["weight"], state.lower_floor["weight"], float(self._solver.lower_step))

    def _eta(self, curvature: float) -> float:
        eta = self._solver.hypergradient.eta
        if eta == "auto":
            return 1.0 / curvature if curvature > 0 else 1.0
        return float(eta)

    def _perturbation(self, state: DMLCBOState, k: int) -> Array:
        """0, or radius u with the u that `Perturbed` draws at step k; drawn for some steps at once, each from its own
        seed, because after a pass over the data nothing of it is in the cache.
        """
        block, noise = (state.seeds, k // AHEAD), self._noise[1]
        if isinstance(self._smoothing, Perturbed) and self._noise[0] != block:
            for row, step in enumerate(range(k - k % AHEAD, k - k % AHEAD + AHEAD)):
                noise[row] = self._drawn(state.noise(step).generator("smoothing"))
            self._noise = block, noise
        return noise[k % AHEAD]

    def _drawn(self, generator: torch.Generator) -> Array:
        """radius u, u uniform in the unit ball."""
        d, dtype = len(self._noisy), self._noisy.dtype
        u = torch.randn((1, d), generator=generator, dtype=_TORCH[dtype.type]).numpy()[0]
        size = float(torch.rand((), generator=generator, dtype=torch.float64)) ** (1.0 / d)
        return (self._smoothing.radius * size / float(u @ u) ** 0.5) * u


def _columns(design: Any) -> Array:
    """A^T, contiguous."""
    return design.by_columns().array.T.numpy()


def _signs(labels: Tensor) -> Array:
    """t: 1 for class 0 and -1 for class 1."""
    return (1 - 2 * labels).to(torch.int8).numpy()


def _array(vector: Any) -> Array:
    return vector["weight"].numpy()[0]


def _row(y: Array) -> dict[str, Tensor]:
    return {"weight": torch.from_numpy(y[None])}


def _scores(moved: Moved) -> dict[str, Tensor]:
    return {"noisy": torch.from_numpy(moved.s[:, None]), "trusted": torch.from_numpy(moved.s_trusted[:, None])}


_TORCH = {np.float32: torch.float32, np.float64: torch.float64}
