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

import warnings
from operator import is_
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ... import tolerances
from ...hypergradients import LinearSolve, Neumann
from ...sets.free_space import FreeSpace
from ...sets.product import ProductSet
from ...sets.simplex import L1Ball
from ...smoothing import Exact, Perturbed
from ...solvers.dmlcbo import DMLCBO, SETTLING, DMLCBOState
from . import on_arrays
from .design import DenseDesign
from .losses import Logistic
from .noise import RowWeights
from .on_arrays import DRAW, GENERAL, SOLVED, Array, Estimated, Parts

if TYPE_CHECKING:
    from .problem import CleaningProblem


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


def suits(problem: CleaningProblem, solver: Any) -> bool:
    """Whether the step of this solver on this problem is of the kind written out here."""
    estimator: Any = getattr(solver, "hypergradient", None)
    return (
        type(solver) is DMLCBO
        and solver.adaptivity == "scalar"
        and type(estimator) in (LinearSolve, Neumann)
        and type(estimator.smoothing) in (Exact, Perturbed)
        and written_out(problem)
    )


def _on_arrays(design: Any) -> bool:
    return type(design) is DenseDesign and design.device.type == "cpu"


def arithmetic(number: Any = np.float64, rehearsal: Any = None) -> Any:
    """The module with the arithmetic of a step: compiled where numba is installed (the extra `fast`) and works."""
    try:
        from . import compiled
    except (ImportError, RuntimeError):  # no numba, or no folder where it may keep what it compiled
        return on_arrays
    try:
        (rehearsal or rehearse)(compiled, number)
    except Exception as error:  # what was kept on the disk is damaged, the disk is full ...
        warnings.warn(
            f"compiled steps do not work here ({type(error).__name__}: {error}); NumPy takes them, more slowly. "
            f"If this stays, delete the files compiled.*.nb* of numba's cache beside {compiled.__file__}",
            stacklevel=2,
        )
        return on_arrays
    return compiled


def rehearse(module: Any, number: Any) -> None:
    """All functions of a step on two rows: they are compiled by now, or loaded."""
    columns, signs, chances = np.eye(2, dtype=number), np.ones(4, np.int8), np.full(6, 0.5, number)
    before, after = (tuple(np.full(2, 2.0, number) for _ in range(7)) for _ in range(2))
    module.move(columns, columns, signs, before, after, chances, 0.1, 0.1, 0.1, 1.0)
    module.pull(chances, signs, after[2])
    noise, numbers = np.zeros(2, number), (0.0, 0.1, 1.0, 0.1, 0.1, 2, SOLVED, 1.0, False, 0.1, 0.1)
    module.estimate(columns, columns, before[4], chances, before, after, noise, *numbers)


class FusedStep:
    """(problem, state) -> state, or None where the projected point is not on a small face of the ball.

    x and y of a new state are arrays of their own, because they are kept; its other vectors are parts of one array.
    """

    def __init__(self, problem: CleaningProblem, solver: DMLCBO) -> None:
        self._solver = solver
        self._smoothing = solver.hypergradient.smoothing  # type: ignore[attr-defined]
        self._limit = getattr(solver.hypergradient, "max_iterations", 0)
        tol = getattr(solver.hypergradient, "tol", None)
        self._dtype = problem.design.dtype
        self._tol = tolerances.linear_residual(self._dtype) if tol is None else tol
        self._noisy, self._trusted = (_columns(d) for d in (problem.design, problem.trusted_design))
        self._signs = _signs(problem.labels, problem.trusted_labels)
        (d, self._rows), self._trusted_rows = self._noisy.shape, self._trusted.shape[1]
        self._chances = np.empty(2 * self._rows + self._trusted_rows, self._noisy.dtype)
        with torch.inference_mode(False):
            self._logits = torch.from_numpy(self._chances)
        self._pulled = np.empty(d, self._noisy.dtype)
        self._nothing = np.zeros_like(self._pulled)
        self._last: tuple[list[Any], Any, Any] = [None], None, None  # the last state: vectors, where they lie, arrays
        self._do = self._arithmetic()

    def _arithmetic(self) -> Any:
        return arithmetic(self._noisy.dtype)

    def __call__(self, problem: Any, state: DMLCBOState) -> DMLCBOState | None:
        if state.carried is None or state.adjoint is None or state.x.dtype != self._dtype:  # type: ignore[union-attr]
            return None
        solver, k = self._solver, state.step + 1
        average, anew = solver.averaging(k), k % solver.refresh == 0
        radius, ridge = problem.constraint.sets["weight"].radius, 2.0 * problem.ridges["weight"]
        before, moments = self._arrays(state)
        after, new_moments = self._parts()
        moved = self._do.move(
            self._noisy, self._trusted, self._signs, before, after, self._chances,
            self._scale(moments[0], state.upper_floor, average * solver.upper_step),
            self._lower_scale(moments[1], state, average), average, radius,
        )  # fmt: skip
        if not moved:
            return None
        if anew:
            self._renew_margins(after)
        self._to_chances()
        self._do.pull(self._chances, self._signs, after[2])
        self._pull(state, before, after)
        vectors = _vectors(after, new_moments)
        curvature = self._curvature(problem, state, vectors) if anew else state.curvature
        found = self._estimate(state, before, after, average, self._eta(curvature), radius, ridge)
        if found.outcome == GENERAL:
            return None
        new_moments[:] = self._moments(moments, found)
        self._last = vectors, _place(vectors), (after, new_moments)
        return self._made(problem, state, vectors, found, curvature)

    def _to_chances(self) -> None:
        """The sigmoid of all logits, in torch, which does several at once."""
        self._logits.sigmoid_()

    def _pull(self, state: DMLCBOState, before: Parts, after: Parts) -> None:
        """A^T (sigmoid(x) p t) / n: the one pass over the data."""
        np.dot(self._noisy, self._chances[: self._rows], out=self._pulled)

    def _arrays(self, state: DMLCBOState) -> tuple[Parts, Array]:
        """The vectors of a state, and its two moments."""
        w, m2, lower, m1 = state.upper_momentum, state.upper_moment, state.lower_momentum, state.lower_moment
        s, near = state.carried, state.adjoint
        y: Any = state.y
        vectors = [
            state.x, s["noisy"], w, s["trusted"], y["weight"], lower["weight"], near["weight"], m2, m1["weight"]
        ]  # fmt: skip
        last, place, known = self._last
        if all(map(is_, vectors, last)) and _place(vectors) == place:
            return known
        *arrays, m2, m1 = (v.reshape(-1).numpy() for v in vectors)
        return tuple(arrays), np.concatenate((m2, m1))  # type: ignore[return-value]

    def _parts(self) -> tuple[Parts, Array]:
        """Room for the vectors of a state, and for its two moments."""
        n, m, (d, _), number = self._rows, self._trusted_rows, self._noisy.shape, self._noisy.dtype
        x, y, rest = np.empty(n, number), np.empty(d, number), np.empty(2 * n + m + 2 * d + 2, number)
        rows = 2 * n + m
        return (x, rest[:n], rest[n : 2 * n], rest[2 * n : rows], y, rest[rows:-2][:d], rest[rows:-2][d:]), rest[-2:]

    def _renew_margins(self, parts: Parts) -> None:
        """s = A y and s' = A' y, and the logits t s and t' s'."""
        n, (_, s, _, s_trusted, y, _, _) = self._rows, parts
        np.matmul(y, self._noisy, out=s)
        np.matmul(y, self._trusted, out=s_trusted)
        np.multiply(self._signs[:n], s, out=self._chances[n : 2 * n])
        np.multiply(self._signs[n:], s_trusted, out=self._chances[2 * n :])

    def _estimate(
        self, state: DMLCBOState, before: Parts, after: Parts, average: float, eta: float, radius: float, ridge: float
    ) -> Estimated:
        """Noise is drawn only where it decides on the face: elsewhere every draw gives the same estimate.

        Where it does, the factors of a series have faces of their own, which is left to the general step.
        """
        solver, found = self._solver, Estimated(DRAW, 0.0, 0.0, 0.0, 0, 0, False)
        reach, noise = getattr(self._smoothing, "radius", 0.0), self._nothing
        terms, weight, whole = self._terms(state)
        averages = solver.upper_momentum * average, solver.lower_momentum * average
        while found.outcome == DRAW:
            found = self._attempt(before, after, noise, reach, eta, radius, ridge, terms, weight, whole, *averages)
            if found.outcome == DRAW and terms != SOLVED:
                return found._replace(outcome=GENERAL)
            if found.outcome == DRAW:
                reach, noise = 0.0, self._drawn(state.noise(state.step + 1).generator("smoothing"))
        return found

    def _attempt(
        self, before: Parts, after: Parts, noise: Array, reach: float, eta: float, radius: float, ridge: float,
        terms: int, weight: float, whole: bool, w_average: float, v_average: float,
    ) -> Estimated:  # fmt: skip
        """The estimate with this noise."""
        return Estimated(*self._do.estimate(
            self._noisy, self._trusted, self._pulled, self._chances, before, after, noise, reach, eta, radius, ridge,
            self._tol, self._limit, terms, weight, whole, w_average, v_average,
        ))  # fmt: skip

    def _terms(self, state: DMLCBOState) -> tuple[int, float, bool]:
        """Of a Neumann series: the products, the weight of the result, and whether its terms are summed."""
        estimator = self._solver.hypergradient
        if not isinstance(estimator, Neumann):
            return SOLVED, 1.0, False
        return *estimator.length(state.noise(state.step + 1)), estimator.truncation == "full"

    def _moments(self, before: Array, found: Estimated) -> tuple[float, float]:
        """m2 and m1."""
        decay, m2, m1 = self._solver.moment_decay, float(before[0]), float(before[1])
        return found.square_h + decay * (m2 - found.square_h), found.square_g + decay * (m1 - found.square_g)

    def _made(
        self, problem: Any, state: DMLCBOState, vectors: list[Tensor], found: Estimated, curvature: float
    ) -> DMLCBOState:
        """The new state, and what it cost."""
        costs = problem.costs
        costs.projections += 1
        costs.lower_gradients += 1
        costs.upper_gradients += 1
        costs.cross_products += 1
        costs.hessian_products += found.products
        x, s, w, s_trusted, y, v, adjoint, m2, m1 = vectors
        after = DMLCBOState(
            x=x, y={"weight": y}, step=state.step + 1, seeds=state.seeds,
            upper_momentum=w, lower_momentum={"weight": v}, upper_moment=m2, lower_moment={"weight": m1},
            upper_floor=state.upper_floor, lower_floor=state.lower_floor, adjoint={"weight": adjoint},
            curvature=curvature, carried={"noisy": s, "trusted": s_trusted},
            stats={"eta": self._eta(curvature)} | self._told(found),
        )  # fmt: skip
        if after.step == SETTLING:
            self._solver._set_floors(
                after, m2.new_tensor(found.square_h), {"weight": m1.new_full(m1.shape, found.square_g)}
            )
        return after

    def _told(self, found: Estimated) -> dict[str, float]:
        if isinstance(self._solver.hypergradient, Neumann):
            return {"terms": float(found.products + 1)}
        return {
            "residual": found.residual,
            "iterations": float(found.iterations),
            "indefinite": float(found.indefinite),
        }

    def _curvature(self, problem: Any, state: DMLCBOState, vectors: list[Tensor]) -> float:
        """As `DMLCBO` has it, at the new point."""
        x, s, _, s_trusted, y, *_ = vectors
        lin = problem.linearize(x, {"weight": y}).carrying({"noisy": s, "trusted": s_trusted})
        return self._solver._curvature(lin, state, state.step + 1)

    def _scale(self, moment: Any, floor: Any, step: float) -> float:
        size = float(moment) ** 0.5 + self._solver.offset
        return step / min(max(size, float(floor)), 1.0 / self._solver.smallest_scale)

    def _lower_scale(self, moment: Any, state: DMLCBOState, average: float) -> float:
        if self._solver.lower_step == "auto":
            return 1.0 / (average * state.curvature) if state.curvature > 0 else 1.0
        return self._scale(moment, state.lower_floor["weight"], float(self._solver.lower_step))

    def _eta(self, curvature: float) -> float:
        eta = self._solver.hypergradient.eta
        if eta == "auto":
            return 1.0 / curvature if curvature > 0 else 1.0
        return float(eta)

    def _drawn(self, generator: torch.Generator) -> Array:
        """radius u, u uniform in the unit ball: what `Perturbed` draws."""
        d = len(self._noisy)
        u = torch.randn((1, d), generator=generator, dtype=self._dtype).numpy()[0]
        size = float(torch.rand((), generator=generator, dtype=torch.float64)) ** (1.0 / d)
        return (self._smoothing.radius * size / float(u @ u) ** 0.5) * u


def _columns(design: Any) -> Array:
    """A^T, contiguous."""
    return design.by_columns().array.T.numpy()


def _signs(*labels: Tensor) -> Array:
    """t: 1 for class 0 and -1 for class 1."""
    return (1 - 2 * torch.cat([part.to(torch.int8) for part in labels])).numpy()


def _place(vectors: list[Tensor]) -> tuple[int, int]:
    """Where x and y lie: a user may give a tensor other data."""
    return vectors[0].data_ptr(), vectors[4].data_ptr()


def _vectors(parts: Parts, moments: Array) -> list[Tensor]:
    """As tensors in their shapes: scores are (n, 1), y is (1, d)."""
    x, s, w, s_trusted, y, v, adjoint = parts
    arrays = (
        x,
        s[:, None],
        w,
        s_trusted[:, None],
        y[None],
        v[None],
        adjoint[None],
        moments[:1].reshape(()),
        moments[1:].reshape(1, 1),
    )
    return list(map(torch.from_numpy, arrays))
