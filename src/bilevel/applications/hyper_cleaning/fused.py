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

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ... import tolerances
from ...hypergradients import LinearSolve
from ...hypergradients.krylov import LinearSolution
from ...sets.free_space import FreeSpace
from ...sets.product import ProductSet
from ...sets.simplex import L1Ball
from ...smoothing import Exact, Perturbed
from ...solvers.dmlcbo import DMLCBO, SETTLING, DMLCBOState
from .design import DenseDesign
from .losses import Logistic
from .noise import RowWeights

if TYPE_CHECKING:
    from .problem import CleaningProblem


MOST = 48
"""Larger faces are left to the general step: there the arithmetic outweighs the overhead."""
FAR = 1e6
"""So are projections from further away than so many radii, where sums of |z| lose digits."""


def fused_step(problem: CleaningProblem, solver: Any) -> FusedStep | None:
    """The step of this solver on this problem, when both are of the kind written out here."""
    estimator = getattr(solver, "hypergradient", None)
    ball = problem.constraint.sets.get("weight") if isinstance(problem.constraint, ProductSet) else None
    suits = (
        type(solver) is DMLCBO
        and solver.adaptivity == "scalar"
        and type(estimator) is LinearSolve
        and type(estimator.smoothing) in (Exact, Perturbed)
        and type(problem.loss) is Logistic
        and type(problem.noise) is RowWeights
        and type(ball) is L1Ball
        and isinstance(ball.radius, float)
        and ball.radius > 0
        and isinstance(problem.upper_constraint, FreeSpace)
        and set(problem.y0) == {"weight"}  # type: ignore[arg-type]
        and not (problem.trusted_in_lower or problem.evidence or problem.sampler)
        and all(_on_arrays(design) for design in (problem.design, problem.trusted_design))
    )
    return FusedStep(problem, solver, ball.radius) if suits else None  # type: ignore[union-attr]


def _on_arrays(design: Any) -> bool:
    return type(design) is DenseDesign and design.device.type == "cpu" and design.array.is_contiguous()


class FusedStep:
    """(problem, state) -> state, or None where the face is not sparse or something is due for a refresh."""

    def __init__(self, problem: CleaningProblem, solver: DMLCBO, radius: float) -> None:
        self._solver, self._radius, self._ridge = solver, radius, 2.0 * problem.ridges["weight"]
        self._smoothing = solver.hypergradient.smoothing  # type: ignore[attr-defined]
        self._limit = solver.hypergradient.max_iterations  # type: ignore[attr-defined]
        tol = solver.hypergradient.tol  # type: ignore[attr-defined]
        self._tol = tolerances.linear_residual(problem.design.dtype) if tol is None else tol
        self._noisy = _Rows(problem.design, problem.labels)
        self._trusted = _Rows(problem.trusted_design, problem.trusted_labels)
        self._ones = np.ones(MOST, self._noisy.array.dtype)

    def __call__(self, problem: Any, state: DMLCBOState) -> DMLCBOState | None:
        solver, k = self._solver, state.step + 1
        if state.carried is None or k == SETTLING or k % solver.refresh == 0:
            return None
        noisy, trusted, average = self._noisy, self._trusted, solver.averaging(k)
        old_y, old_adjoint = state.y["weight"].numpy()[0], state.adjoint["weight"].numpy()[0]  # type: ignore[call-overload]
        guess = old_adjoint.nonzero()[0]

        # yhat and y
        hat = self._projected(
            old_y - self._lower_scale(state, average) * state.lower_momentum["weight"].numpy()[0], guess
        )
        if hat is None:
            return None
        y = _lerp(old_y, 0.0, average)
        y[hat[0]] += average * hat[1]
        s = noisy.margins(state.carried["noisy"].numpy()[:, 0], hat, average)
        s_trusted = trusted.margins(state.carried["trusted"].numpy()[:, 0], hat, average)

        # x, and the gradient of g: the one pass over the data
        w, m2 = state.upper_momentum.numpy(), float(state.upper_moment)
        x = state.x.numpy() - self._scale(m2, float(state.upper_floor), average * solver.upper_step) * w  # type: ignore[union-attr]
        weights, p = noisy.sigmoid(x, "weights"), noisy.slopes(s)
        slopes = p * noisy.signs_by_count
        pulled = weights * slopes
        gradient = noisy.array.T @ pulled
        gradient += self._ridge * y

        # the face, the linear system on it, the hypergradient
        eta = self._eta(state)
        face = self._projected(self._perturbed(y - eta * gradient, state, k), guess)
        if face is None:
            return None
        support, _, signs = face
        columns, curvatures = noisy.face_columns.take(support), pulled * (noisy.signs - noisy.signs * p)
        upper = trusted.face_columns.take(support) @ (trusted.slopes(s_trusted) * trusted.signs_by_count)

        def product(v: np.ndarray) -> np.ndarray:
            return _along(columns @ (curvatures * (v @ columns)) + self._ridge * v, signs)

        start = _along(old_adjoint[support], signs)
        solution, products = _conjugate_gradients(product, _along(upper, signs), start, self._tol, self._limit)
        adjoint = np.zeros_like(y)
        adjoint[support] = solution.value
        h = solution.value @ columns
        h *= pulled
        h *= weights - 1.0

        costs = problem.costs
        costs.projections += 1
        costs.lower_gradients += 1
        costs.upper_gradients += 1
        costs.cross_products += 1
        costs.hessian_products += products
        return self._after(state, k, average, (x, y, h, gradient, adjoint, s, s_trusted), eta, solution)

    def _after(
        self, state: DMLCBOState, k: int, average: float, found: tuple[np.ndarray, ...], eta: float, solution: Any
    ) -> DMLCBOState:
        """Momenta and moments."""
        x, y, h, gradient, adjoint, s, s_trusted = found
        solver = self._solver
        w = _lerp(state.upper_momentum.numpy(), h, solver.upper_momentum * average)
        v = _lerp(state.lower_momentum["weight"].numpy()[0], gradient, solver.lower_momentum * average)
        m2, m1 = float(h @ h) / len(h), float(gradient @ gradient) / len(gradient)
        m2 += solver.moment_decay * (float(state.upper_moment) - m2)
        m1 += solver.moment_decay * (float(state.lower_moment["weight"]) - m1)
        return DMLCBOState(
            x=torch.from_numpy(x), y=_row(y), step=k, seeds=state.seeds,
            upper_momentum=torch.from_numpy(w), lower_momentum=_row(v),
            upper_moment=torch.from_numpy(np.array(m2, x.dtype)),
            lower_moment={"weight": torch.from_numpy(np.array([[m1]], x.dtype))},
            upper_floor=state.upper_floor, lower_floor=state.lower_floor, adjoint=_row(adjoint),
            curvature=state.curvature,
            carried={"noisy": torch.from_numpy(s[:, None]), "trusted": torch.from_numpy(s_trusted[:, None])},
            stats={
                "eta": eta, "residual": solution.residual, "iterations": float(solution.iterations),
                "indefinite": float(solution.indefinite),
            },
        )  # fmt: skip

    def _scale(self, moment: float, floor: float, step: float) -> float:
        return step / min(max(moment**0.5 + self._solver.offset, floor), 1.0 / self._solver.smallest_scale)

    def _lower_scale(self, state: DMLCBOState, average: float) -> float:
        if self._solver.lower_step == "auto":
            return 1.0 / (average * state.curvature) if state.curvature > 0 else 1.0
        floor = float(state.lower_floor["weight"])
        return self._scale(float(state.lower_moment["weight"]), floor, float(self._solver.lower_step))

    def _eta(self, state: DMLCBOState) -> float:
        eta = self._solver.hypergradient.eta
        if eta == "auto":
            return 1.0 / state.curvature if state.curvature > 0 else 1.0
        return float(eta)

    def _perturbed(self, z: np.ndarray, state: DMLCBOState, k: int) -> np.ndarray:
        """z, or z + radius u with the u that `Perturbed` draws."""
        if isinstance(self._smoothing, Exact):
            return z
        generator = state.noise(k).generator("smoothing")
        u = torch.randn((1, len(z)), generator=generator, dtype=_TORCH[z.dtype.type]).numpy()[0]
        size = float(torch.rand((), generator=generator, dtype=torch.float64)) ** (1.0 / len(z))
        return z + (self._smoothing.radius * size / float(u @ u) ** 0.5) * u

    def _projected(self, z: np.ndarray, guess: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """The support of P(z), P(z) there and its signs; None where that is not sparse, or for the general step.

        Newton's method for the level, from the support of a nearby point: no support has a level above the right one
        (Michelot 1986).
        """
        size, radius = np.abs(z), self._radius
        if not radius < np.add.reduce(size) < FAR * radius:
            return None
        few = size[guess] if len(guess) else size.max(keepdims=True)
        support = (size > (np.add.reduce(few, dtype=np.float64) - radius) / len(few)).nonzero()[0]
        while 0 < len(support) <= MOST:
            few = size[support]
            few = few - (np.add.reduce(few, dtype=np.float64) - radius) / len(few)
            if few.min() > 0:
                signs = np.copysign(self._ones[: len(few)], z[support])
                return support, (few * signs).astype(z.dtype), signs
            support = support[few > 0]
        return None


class _Rows:
    """The noisy or the trusted rows, as arrays."""

    def __init__(self, design: DenseDesign | Any, labels: Tensor) -> None:
        self.array = design.array.numpy()
        self.signs = (1 - 2 * labels).numpy().astype(self.array.dtype)
        self.signs_by_count = self.signs / len(self.signs)
        self._margin_columns, self.face_columns = ColumnStore(self.array), ColumnStore(self.array)
        scratch = {name: torch.empty(len(labels), dtype=design.dtype) for name in ("weights", "slopes")}
        self._scratch = {name: (tensor, tensor.numpy()) for name, tensor in scratch.items()}

    def margins(self, s: np.ndarray, hat: tuple[np.ndarray, ...], average: float) -> np.ndarray:
        """A y after the step to y_hat."""
        return _lerp(s, hat[1] @ self._margin_columns.take(hat[0]), average)

    def slopes(self, s: np.ndarray) -> np.ndarray:
        """sigmoid(t s)."""
        return self.sigmoid(self.signs * s, "slopes")

    def sigmoid(self, values: np.ndarray, name: str) -> np.ndarray:
        """In torch, which does it in one pass; the array is overwritten at the next call of this name."""
        tensor, array = self._scratch[name]
        torch.sigmoid(torch.from_numpy(values), out=tensor)
        return array


class ColumnStore:
    """Columns of a matrix A (n, d) as rows of one array; those that stay in the support are not read from A again.

    Examples
    --------
    >>> store = ColumnStore(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    >>> store.take(np.array([0, 2]))
    array([[1., 4.],
           [3., 6.]])
    """

    def __init__(self, array: np.ndarray) -> None:
        self._array, self._index = array, np.empty(0, np.intp)
        self._rows, self._place = np.empty((0, len(array)), array.dtype), np.full(array.shape[1], -1)

    def take(self, index: np.ndarray) -> np.ndarray:
        """The columns `index`, shape (len(index), n); not to be written to."""
        if index.tobytes() != self._index.tobytes():
            rows, place = np.empty((len(index), len(self._array)), self._array.dtype), self._place[index]
            for new, old in enumerate(place):
                rows[new] = self._rows[old] if old >= 0 else self._array[:, index[new]]
            self._place[self._index] = -1
            self._place[index] = np.arange(len(index))
            self._rows, self._index = rows, index
        return self._rows


def _conjugate_gradients(
    product: Callable[[np.ndarray], np.ndarray], b: np.ndarray, start: np.ndarray, tol: float, limit: int
) -> tuple[LinearSolution, int]:
    """`bilevel.hypergradients.krylov.conjugate_gradients` on arrays, and how many products it took."""
    scale = float(b @ b) ** 0.5
    if scale == 0.0 or not np.isfinite(scale):
        return LinearSolution(b * scale, scale, 0), 0
    x: Any
    x, residual = start, b - product(start)
    square = float(residual @ residual)
    if not square < scale * scale:
        x, residual, square = np.zeros_like(b), b, scale * scale
    best: Any
    direction, best, best_square = residual, x, square
    for k in range(limit):
        if square**0.5 <= tol * scale:
            return LinearSolution(x, square**0.5 / scale, k), k + 1
        turned = product(direction)
        along = float(direction @ turned)
        if not along > 0.0:
            return LinearSolution(best, best_square**0.5 / scale, k, indefinite=True), k + 2
        x = x + (square / along) * direction
        residual = residual - (square / along) * turned
        previous, square = square, float(residual @ residual)
        direction = residual + (square / previous) * direction
        if square < best_square:
            best, best_square = x, square
    return LinearSolution(best, best_square**0.5 / scale, limit), limit + 1


def _along(v: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """The part of v along the face: v - s (s.v)/|S|."""
    return v - (float(signs @ v) / len(signs)) * signs


def _lerp(a: np.ndarray, b: Any, weight: float) -> np.ndarray:
    """(1 - weight) a + weight b, exactly b at weight 1, in an array of its own."""
    if weight == 1.0:
        return np.broadcast_to(b, a.shape).astype(a.dtype)
    moved = b - a
    moved *= weight
    moved += a
    return moved


def _row(y: np.ndarray) -> dict[str, Tensor]:
    return {"weight": torch.from_numpy(y[None])}


_TORCH = {np.float32: torch.float32, np.float64: torch.float64}
