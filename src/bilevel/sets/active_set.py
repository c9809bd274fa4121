"""The active inequalities at a projection on a polyhedron: the solution of Clarabel, made exact.

    min |d|^2/2  subject to  A d = gap,  G d <= slack        (rows of unit length, A of full row rank)

is solved for a set W of rows with positive multipliers, linearly independent together with A. The nearest
point is then the projection on an affine set, to rounding, whatever the accuracy of the solver. An earlier W is
the warm start: non-negative least squares over its rows and those that it violates; if that does not
settle the matter, Clarabel starts afresh.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import tolerances
from ..errors import EmptySetError, MissingExtraError, NotConvergedError

Array = NDArray[Any]

EXACT, CLEAR, ACCEPTABLE = 1e-12, 1e-9, 1e-8
"""Relative KKT residuals: exact to rounding; clearly no kink (slacks and multipliers); good enough at all."""
DEPENDENT = 1e-13
"""Singular values of unit rows below this are rounding: dropping one of the rows moves the answer by no more."""
REFINEMENTS = 6
FAR = 1e6
"""Rows further away than this times the largest violation are brought to that distance for the solver."""


@torch.library.custom_op("bilevel::active_rows", mutates_args=())
def active_rows(slack: Tensor, gap: Tensor, G: Tensor, A: Tensor, guess: Tensor, complete: bool) -> Tensor:
    """Mask (..., m) of the rows of G that hold back the nearest point, for slack = h - Gz and gap = b - Az.

    `guess` is tried first (the active rows at a previous point); then every face that a point needs is tried
    on all the points that are left, and is the warm start of the next. Points at a kink use no guess: their
    face depends on them alone, and is `complete` where the derivative is asked for (the nearest point is the same).
    """
    batch = slack.shape[:-1].numel()
    slacks, gaps = (v.detach().cpu().numpy().reshape(batch, v.shape[-1]) for v in (slack, gap))
    solver = ActiveSet(G.detach().cpu().numpy(), A.detach().cpu().numpy())
    scale = np.maximum((-slacks).max(-1, initial=0.0), np.abs(gaps).max(-1, initial=0.0))
    active = np.zeros(slacks.shape, dtype=bool)
    todo = np.flatnonzero(scale > 0)
    unit = np.where(scale > 0, scale, 1.0)[:, None]
    slacks, gaps = slacks / unit, gaps / unit
    face = guess.cpu().numpy()
    while len(todo):
        residual, clear = solver.residuals(face, slacks[todo], gaps[todo])
        settled = (residual <= EXACT) & clear
        active[todo[settled]] = face
        todo = todo[~settled]
        if len(todo):
            k, todo = todo[0], todo[1:]
            face = solver.face(slacks[k], gaps[k], face, scale[k])
            active[k] = solver.completed(face, slacks[k], gaps[k]) if complete else face
    return torch.from_numpy(active).reshape(slack.shape).to(slack.device)


@active_rows.register_fake
def _(slack: Tensor, gap: Tensor, G: Tensor, A: Tensor, guess: Tensor, complete: bool) -> Tensor:
    return torch.empty_like(slack, dtype=torch.bool)


@active_rows.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *tensors: Any) -> tuple[Tensor, int]:
    moved = [t if d is None else t.movedim(d, 0) for t, d in zip(tensors, in_dims, strict=True)]
    return active_rows(*moved), 0


class ActiveSet:
    """The problem above for one G and A and many right-hand sides."""

    def __init__(self, G: Array, A: Array) -> None:
        self.G, self.A = G, A
        self._rows = np.linalg.qr(A.T)[0].T  # orthonormal rows with the span of A's
        self._solver: Any = None

    def face(self, slack: Array, gap: Array, guess: Array, unit: float) -> Array:
        """The mask W for one right-hand side, near the `guess`; lengths are in units of `unit`."""
        warm = self._near(guess, slack, gap)
        if warm is not None:
            return warm
        residual, active = self._afresh(slack, gap)
        if residual > ACCEPTABLE:
            # Empty? Or thinner than rounding, and then as wide as rounding allows.
            least = self._least_violation(slack, gap, unit)
            residual, active = self._afresh(slack + 2 * least, gap)
        if residual > ACCEPTABLE:
            raise NotConvergedError(
                f"projection on a polyhedron: the best active set has a KKT residual of {residual:.2g} times "
                f"the violation at z; drop rows that nearly depend on others"
            )
        return active

    def completed(self, active: Array, slack: Array, gap: Array) -> Array:
        """The mask W and, at a degenerate vertex, independent rows that other multipliers would make positive."""
        step = self._steps(active, slack[None], gap[None])[0][0]
        tight = np.flatnonzero(~active & (slack - self.G @ step <= CLEAR * (1 + np.abs(step).max(initial=0.0))))
        held = np.concatenate([self.A, self.G[active]])
        active = active.copy()
        if len(tight) and len(held):  # without held rows z itself is in the set
            active[tight] = with_implicit_equations(held, self.G[tight], CLEAR)
        return active

    def _afresh(self, slack: Array, gap: Array) -> tuple[float, Array]:
        """The KKT residual and the mask of the best candidate."""
        best = (np.inf, np.zeros(len(slack), dtype=bool))
        for active in self._candidates(slack, gap):
            residual, clear = (float(v[0]) for v in self.residuals(active, slack[None], gap[None]))
            if residual <= EXACT and clear:
                return residual, active
            best = min((residual, active), best, key=lambda entry: max(entry[0], EXACT))
        return best

    def _near(self, guess: Array, slack: Array, gap: Array) -> Array | None:
        """W from the rows of the guess and those it violates; None if there are many, or at a kink."""
        active, near = guess, guess
        for _ in range(10):
            step = self._steps(active, slack[None], gap[None])[0][0]
            near = near | ~(self.G @ step - slack <= EXACT)
            if near.sum() > 2 * self.G.shape[1]:
                return None
            active = self._least_distance(near, slack, gap)
            residual, clear = self.residuals(active, slack[None], gap[None])
            if residual[0] <= EXACT:
                return active if clear[0] else None
        return None

    def _least_violation(self, slack: Array, gap: Array, unit: float) -> float:
        """In the units of the slacks; EmptySetError if no rounding explains it."""
        rows, right = np.concatenate([self.A, self.G]), np.concatenate([gap, slack])
        least, size = least_violation(rows, right, len(gap))
        if least > tolerances.feasibility(torch.float64) * size:
            raise EmptySetError(
                f"no point has Ay = b and Gy <= h: every y breaks a row by {least * unit:.3g} or more, rows scaled to "
                f"length 1"
            )
        return least

    def _candidates(self, slack: Array, gap: Array) -> Iterator[Array]:
        """The solver's active rows, then exact answers over a growing set of nearby rows."""
        answer = self._interior_point(slack, gap)
        if answer is None:
            return
        step, left, multipliers = answer
        yield multipliers > left
        near = left <= 1e-5 * (1 + np.abs(step).max(initial=0.0))
        for _ in range(20):
            active = self._least_distance(near, slack, gap)
            yield active
            violated = self.G @ self._steps(active, slack[None], gap[None])[0][0] - slack > EXACT
            if not (violated & ~near).any():
                return
            near = near | violated

    def _steps(self, active: Array, slack: Array, gap: Array) -> tuple[Array, Array]:
        """d with A d = gap and equality in the active rows, -d = A' nu + G_W' mu; nan where rows depend."""
        rows = np.concatenate([self.A, self.G[active]])
        k, n = rows.shape
        Q, R = np.linalg.qr(rows.T)
        if k > n or (k and np.abs(np.diag(R)).min() < CLEAR):
            return np.full((len(slack), n), np.nan), np.full((len(slack), k), np.nan)
        along = np.linalg.solve(R.T, np.concatenate([gap, slack[:, active]], -1).T)
        return (Q @ along).T, -np.linalg.solve(R, along).T

    def residuals(self, active: Array, slack: Array, gap: Array) -> tuple[Array, Array]:
        """For each right-hand side: largest violation or negative multiplier, relative to the step (inf for
        dependent rows), and whether all multipliers and all other slacks are clearly positive."""
        steps, multipliers = self._steps(active, slack, gap)
        size = 1 + np.abs(steps).max(-1, initial=0.0)
        left = (slack - steps @ self.G.T) / size[:, None]
        multipliers = multipliers[:, len(self.A) :] / size[:, None]
        residual = np.maximum((-left).max(-1, initial=0.0), (-multipliers).max(-1, initial=0.0))
        idle = np.where(active, np.inf, left).min(-1, initial=np.inf)
        clear = np.minimum(idle, multipliers.min(-1, initial=np.inf)) > CLEAR
        return np.where(np.isfinite(size), residual, np.inf), clear

    def _interior_point(self, slack: Array, gap: Array) -> tuple[Array, Array, Array] | None:
        """Step, slacks left and multipliers by Clarabel; None if it finds no point."""
        right = np.concatenate([gap, np.minimum(slack, FAR)])
        if self._solver is None:
            self._solver = self._clarabel(right)
        else:
            self._solver.update(b=right)
        answer = self._solver.solve()
        if "PrimalInfeasible" in str(answer.status):
            return None
        m = len(gap)
        return np.array(answer.x), np.array(answer.s)[m:], np.array(answer.z)[m:]

    def _clarabel(self, right: Array) -> Any:
        try:
            import clarabel as _clarabel
            from scipy import sparse
        except ImportError:
            raise MissingExtraError("projection on a polyhedron", "sets") from None
        clarabel: Any = _clarabel  # its names come from a compiled module
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        settings.presolve_enable = False  # so that the right-hand side may be updated
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-13
        n = self.G.shape[1]
        rows = sparse.csc_matrix(np.concatenate([self.A, self.G]))
        cones = [clarabel.ZeroConeT(len(self.A)), clarabel.NonnegativeConeT(len(self.G))]
        identity = sparse.identity(n, format="csc")
        return clarabel.DefaultSolver(identity, np.zeros(n), rows, right, cones, settings)

    def _least_distance(self, near: Array, slack: Array, gap: Array) -> Array:
        """The exact active rows among the `near` ones, by non-negative least squares.

        Lawson & Hanson (1974), chapter 23: min |x| s.t. E x <= t has the active rows u > 0 of
        min |[E'; t'] u + e_{n+1}|, u >= 0, here for x orthogonal to the rows of A.
        """
        start = np.linalg.lstsq(self.A, gap, rcond=None)[0] if len(gap) else np.zeros(self.G.shape[1])
        E = self.G[near] - self.G[near] @ self._rows.T @ self._rows
        t = slack[near] - self.G[near] @ start
        active = np.zeros(len(slack), dtype=bool)
        if len(t):
            target = np.zeros(E.shape[1] + 1)
            target[-1] = -1.0
            active[near] = independent(E, nonnegative_least_squares(np.vstack([E.T, t]), target)) > 0
        return active


def nonnegative_least_squares(matrix: Array, target: Array) -> Array:
    """argmin |matrix u - target| over u >= 0, or the best that was found."""
    from scipy.optimize import lsq_linear, nnls

    with contextlib.suppress(RuntimeError):  # too many rounds
        u = nnls(matrix, target)[0]
        slope = matrix.T @ (matrix @ u - target)
        if max(float(-slope.min()), float(np.abs(slope[u > 0]).max(initial=0.0))) <= CLEAR * np.abs(matrix).max():
            return u
    # Repeated columns may lead nnls astray.
    return lsq_linear(matrix, target, (0, np.inf), method="bvls", tol=EXACT).x.clip(0)


def independent(rows: Array, multipliers: Array) -> Array:
    """Multipliers u >= 0 with the same rows'u, positive on independent rows only (Caratheodory's theorem).

    At a degenerate vertex rounding hides that rows depend on each other. Rows that are only nearly dependent stay:
    dropping one of them could move the nearest point far along the others.
    """
    u = multipliers.copy()
    held = np.flatnonzero(u > 0)
    while len(held):
        left, values, _ = np.linalg.svd(rows[held])
        if len(held) <= rows.shape[1] and values[-1] > DEPENDENT:
            break
        null = left[:, -1] * (1 if left[:, -1].max() > 0 else -1)
        steps = np.divide(u[held], null, out=np.full(len(held), np.inf), where=null > CLEAR)
        first = int(steps.argmin())
        u[held] = (u[held] - steps[first] * null).clip(0)
        u[held[first]] = 0
        held = np.flatnonzero(u > 0)
    return u


def least_violation(rows: Array, right: Array, equations: int) -> tuple[float, float]:
    """A lower bound on t such that some y satisfies the equations (first rows) and breaks no inequality by more than t.

    Also the size of the numbers involved: |y| or the right-hand sides of the broken rows. The linear programme for
    the least t is solved again around its own answer, in units of the violation left (Gleixner, Steffy & Wolter,
    2016), since HiGHS stops at 1e-7. Its multipliers m, of sum 1 over the inequalities, prove the bound
    t >= m.(rows y - right) - |rows' m| R for all points within R = 1,000 sizes of y.
    """
    try:
        from scipy.optimize import linprog
    except ImportError:
        raise MissingExtraError("the check that a polyhedron is not empty", "sets") from None
    wide = np.pad(rows, ((0, 0), (0, 1)), constant_values=-1.0)
    wide[:equations, -1] = 0.0
    bounds = [(None, None)] * rows.shape[1] + [(0.0, None)]
    cost = np.eye(wide.shape[1])[-1]
    y, least, proven, size = np.zeros(rows.shape[1]), np.inf, 0.0, 0.0
    for _ in range(REFINEMENTS):
        left = right - rows @ y
        broken = np.concatenate([np.abs(left[:equations]), -left[equations:]]).clip(0)
        worst = float(broken.max(initial=0.0))
        if worst == 0:
            return 0.0, size
        if worst > 0.9 * least:
            break
        least = worst
        size = max(float(np.linalg.norm(y)), float(np.abs(right[broken >= 0.5 * worst]).max(initial=0.0)))
        scaled = np.minimum(left / worst, 1e3 * FAR)
        equal = (wide[:equations], scaled[:equations]) if equations else (None, None)
        answer = linprog(cost, wide[equations:], scaled[equations:], *equal, bounds=bounds)
        if answer.status != 0:
            break
        m = -np.concatenate([answer.eqlin.marginals, answer.ineqlin.marginals])
        proven = float(-m @ left - 1e3 * size * np.linalg.norm(m @ rows))
        y = y + worst * answer.x[:-1]
    return max(min(proven, least), 0.0), size


def with_implicit_equations(held: Array, tight: Array, smallest: float) -> Array:
    """Mask of the `tight` rows t, independent of the `held` rows B and of each other, that span what is fixed on

        {d : B d = 0, t d <= 0 for all tight rows}        (rows of unit length).

    By duality a row is fixed there exactly if some choice of the multipliers makes its own positive. Directions of
    length below `smallest` count as 0.
    """
    chosen = np.zeros(len(tight), dtype=bool)
    basis = np.linalg.qr(held.T)[0]
    rest = _orthogonal(tight, basis)
    length = np.linalg.norm(rest, axis=-1)
    open_ = np.flatnonzero(length > smallest)
    fixed = open_[_always_zero(rest[open_] / length[open_, None])] if len(open_) else open_
    for k in fixed:
        row = _orthogonal(tight[k], basis)
        if np.linalg.norm(row) > smallest:
            chosen[k] = True
            basis = np.column_stack([basis, row / np.linalg.norm(row)])
    return chosen


def _orthogonal(rows: Array, basis: Array) -> Array:
    for _ in range(2):  # the second round removes the rounding of the first
        rows = rows - rows @ basis @ basis.T
    return rows


def _always_zero(rows: Array) -> Array:
    """Which rows r have r d = 0 for all d with rows d <= 0: max sum s, rows d + s <= 0, 0 <= s <= 1 leaves s = 0."""
    try:
        from scipy.optimize import linprog
    except ImportError:
        raise MissingExtraError("the derivative of a projection on a polyhedron", "sets") from None
    m, n = rows.shape
    cost = np.concatenate([np.zeros(n), -np.ones(m)])
    bounds = [(-1e4, 1e4)] * n + [(0.0, 1.0)] * m
    answer = linprog(cost, np.hstack([rows, np.eye(m)]), np.zeros(m), bounds=bounds)
    return answer.x[n:] < 0.5 if answer.status == 0 else np.zeros(m, dtype=bool)
