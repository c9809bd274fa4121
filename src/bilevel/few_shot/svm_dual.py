"""Hundreds of small support vector machine duals at once: projected Newton steps, and an interior point for the rest.

    min over y in the set of  1/2 <y, G y> - <b, y>       for each task: G (n, n) with its ridge, y and b (n, p)

One round of projected Newton steps (Bertsekas 1982), with L a bound on the curvature:

    F   an epsilon-active set: entry i is held at a bound that y_i - gradient_i / sqrt(L G_ii) does not leave
    d   from y with the held entries at their bounds to the minimum on F: one small linear system per task
    y <- the best of P(y + t d) for t = 1, 1/2, 1/4, ..., of the step to the first bound, and of a gradient step

All trials are one batched product; the gradient step lowers the objective, so that no round can cycle as a plain
primal-dual active-set iteration does on correlated features at small C. On the right face t = 1 is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import NonFiniteError, NotConvergedError
from ..sets.threshold import above_level
from .interior_point import InteriorPoint
from .label_coding import Coded

STEP_LENGTHS = tuple(0.5**k for k in range(9))
NEARLY_CENTRAL = 1e-4
"""From this part of its first complementarity on, an interior point may tell which entries are at a bound."""


class DualSolution(NamedTuple):
    """The dual variables (t, n, p), the residual of each task (t,), and the rounds."""

    y: Tensor
    residual: Tensor
    rounds: int


@dataclass(frozen=True)
class Dual:
    """The duals of a batch of tasks.

    Parameters
    ----------
    coded
        Labels and bounds.
    quadratic
        G with its ridge, symmetric positive definite, shape (t, n, n).
    newton_rounds, interior_steps, last_rounds
        How many projected Newton steps are tried first; tasks that need more are stiff, and are handed to an interior
        point, after which come the last rounds.
    """

    coded: Coded
    quadratic: Tensor
    newton_rounds: int = 8
    interior_steps: int = 30
    last_rounds: int = 30

    def take(self, tasks: Tensor | slice) -> Dual:
        """Some of the tasks."""
        return replace(self, coded=self.coded.take(tasks), quadratic=self.quadratic[tasks])

    def value(self, y: Tensor) -> Tensor:
        """The sum over tasks of 1/2 <y, G y> - <b, y>."""
        return (y * (0.5 * (self.quadratic @ y) - self.coded.indicator)).sum()

    def gradient(self, y: Tensor) -> Tensor:
        """G y - b."""
        return self.quadratic @ y - self.coded.indicator

    def project(self, z: Tensor) -> Tensor:
        """The nearest point of the set; leading dimensions beyond those of the tasks are a batch."""
        upper = self.coded.upper
        if not self.coded.balanced:
            return torch.minimum(z.clamp_min(0.0), upper)
        # y = upper - beta, beta_i in a simplex of size sum_c upper_ic
        return upper - above_level(upper - z, upper.sum(-1, keepdim=True))

    def free(self, z: Tensor) -> Tensor:
        """Which entries of P(z) are at no bound, booleans (t, n, p)."""
        y = self.project(z)
        below = y < self.coded.upper
        return below if self.coded.balanced else below & (y > 0)

    def residual(self, y: Tensor) -> Tensor:
        """L max |y - P(y - gradient / L)| for each task: zero exactly at the solution.

        In units of the gradient G y - b, which features, ridge and 1/C of another scale leave as it is.
        """
        return self._residual(y, self.gradient(y))

    def _residual(self, y: Tensor, gradient: Tensor) -> Tensor:
        return (self.bound * (y - self.project(y - gradient / self.bound))).abs().amax((-2, -1))

    @torch.no_grad()
    def solve(self, *, tol: float, start: Tensor | None = None) -> DualSolution:
        """The solution of every task; an error tells of those that were not solved to `tol`."""
        solution = self.approach(rounds=self.newton_rounds, tol=tol, start=start)
        stiff = (solution.residual > tol).nonzero().squeeze(-1)
        if len(stiff):
            rest = self.take(stiff)._through_the_interior(tol)
            better = rest.residual < solution.residual[stiff]
            solution.y[stiff[better]] = rest.y[better]
            solution.residual[stiff[better]] = rest.residual[better]
            solution = solution._replace(rounds=solution.rounds + rest.rounds)
        self._check(solution, tol)
        return solution

    def _check(self, solution: DualSolution, tol: float) -> None:
        rounding = 100 * torch.finfo(solution.y.dtype).eps * (self.quadratic.abs() @ solution.y.abs()).amax((-2, -1))
        unsolved, tasks = ~(solution.residual <= tol + rounding), len(solution.residual)
        if not bool(torch.isfinite(solution.residual).all()):
            raise NonFiniteError(f"{int(unsolved.sum())} of {tasks} tasks overflow: scale the features down")
        if bool(unsolved.any()):
            raise NotConvergedError(
                f"{int(unsolved.sum())} of {tasks} tasks were left at a KKT residual of up to "
                f"{float(solution.residual.max()):.1e} (tol = {tol:g}) after {solution.rounds} rounds: raise ridge or "
                "tol, lower C, or scale the features down"
            )

    @torch.no_grad()
    def approach(self, *, rounds: int, tol: float, start: Tensor | None = None) -> DualSolution:
        """At most so many rounds of projected Newton steps, from `start` (default 0)."""
        y = torch.zeros_like(self.coded.indicator) if start is None else self.project(start)
        residual, k = self.residual(y), 0
        while k < rounds and bool((residual > tol).any()):
            y = torch.where((residual > tol)[:, None, None], self._round(y), y)
            residual, k = self.residual(y), k + 1
        return DualSolution(y, residual, k)

    def _round(self, y: Tensor) -> Tensor:
        gradient, bound = self.gradient(y), self.bound
        z = y - gradient / self._scaling
        free = self.free(z)
        held = torch.where(free, y, self.project(z))
        newton = self.on_face(free, -self.gradient(held))
        lengths = y.new_tensor(STEP_LENGTHS).reshape(-1, 1, 1, 1)
        move = held + newton - y
        others = torch.stack([y + self._reach(y, move) * move, y - gradient / bound])
        return self._best(self.project(torch.cat([held + lengths * newton, others])))

    @cached_property
    def bound(self) -> Tensor:
        """L, at least the largest eigenvalue of G; (t, 1, 1)."""
        return self.quadratic.abs().sum(-1).amax(-1)[:, None, None]

    @cached_property
    def _scaling(self) -> Tensor:
        """sqrt(L G_ii), (t, n, 1)."""
        return (self.bound * self.quadratic.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)).sqrt()

    def _reach(self, y: Tensor, move: Tensor) -> Tensor:
        """How far, at most 1, y may go along `move` until it meets a bound; shape (t, 1, 1)."""
        length = torch.where(move > 0, (self.coded.upper - y) / move, torch.inf)
        if not self.coded.balanced:
            length = torch.where(move < 0, -y / move, length)
        return length.amin((-2, -1), keepdim=True).clamp_max(1.0)

    def _best(self, trials: Tensor) -> Tensor:
        """The trial with the lowest objective of each task; among those equal up to rounding, the nearest to solved."""
        count, tasks, n, p = trials.shape
        beside = trials.permute(1, 2, 0, 3).reshape(tasks, n, count * p)
        product = (self.quadratic @ beside).reshape(tasks, n, count, p).permute(2, 0, 1, 3)
        terms = trials * (0.5 * product - self.coded.indicator)
        value, size = terms.sum((-2, -1)), terms.abs().sum((-2, -1))
        lowest = value <= value.amin(0) + 4 * torch.finfo(trials.dtype).eps * size.amax(0)
        residual = self._residual(trials, product - self.coded.indicator)
        best = torch.where(lowest, residual, torch.inf).argmin(0)
        return trials[best, torch.arange(tasks, device=trials.device)]

    def _through_the_interior(self, tol: float) -> DualSolution:
        """Steps of the interior point, and from each that is nearly central a solve on the face it points to."""
        path = self._interior()
        y = torch.zeros_like(self.coded.indicator)
        residual, k = self.residual(y), 0
        while k < self.interior_steps and bool((residual > tol).any()):
            path.advance(residual > tol)
            k += 1
            near = ((residual > tol) & (path.progress() < NEARLY_CENTRAL)).nonzero().squeeze(-1)
            if len(near):
                some = self.take(near)
                trial = some._snapped(*(part[near] for part in path.bounds()))
                found = some.residual(trial)
                better = found < residual[near]
                y[near[better]], residual[near[better]] = trial[better], found[better]
        last = self.approach(rounds=self.last_rounds, tol=tol, start=y)
        return last._replace(rounds=k + last.rounds)

    def _interior(self) -> InteriorPoint:
        """The same problem in variables >= 0: y itself, or upper - y. Absent examples get room, and are projected."""
        upper, b = self.coded.upper, self.coded.indicator
        if not self.coded.balanced:
            return InteriorPoint(self.quadratic, b, upper=torch.where(upper > 0, upper, 1.0))
        total = upper.sum(-1, keepdim=True)
        return InteriorPoint(self.quadratic, self.quadratic @ upper - b, total=torch.where(total > 0, total, 1.0))

    def _snapped(self, y: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """The minimum on the face where entries are held at 0 (`low`) or `upper` (`high`); from an interior point y."""
        upper = self.coded.upper
        if self.coded.balanced:
            y, high = upper - y, low
            held = torch.where(high, upper, y)
            pivot = (upper - held).argmax(-1, keepdim=True)
            held = held.scatter_add(-1, pivot, -held.sum(-1, keepdim=True))
        else:
            held = torch.where(high, upper, torch.where(low, 0.0, y))
        return self.project(held + self.on_face(~(low | high), -self.gradient(held)))

    def on_face(self, free: Tensor, v: Tensor) -> Tensor:
        """Pi (Pi G Pi)^+ Pi v with Pi the projector onto the face of the free entries; v and the result (t, n, p)."""
        if self.coded.balanced:
            return self._on_sections(free, v)
        kept = free.to(v.dtype)
        matrix = self.quadratic * (kept * kept.mT)  # rows and columns of held entries become those of the identity
        matrix.diagonal(dim1=-2, dim2=-1).add_(1.0 - kept.squeeze(-1))
        return _positive_solve(matrix, kept * v)

    def _on_sections(self, free: Tensor, v: Tensor) -> Tensor:
        """In the coordinates of the free entries but one of each example, its pivot, which pays for the others.

        With c(a) the class and i(a) the example of such an entry, the e_c(a) - e_pivot(a) span the face, and in this
        basis the matrix is G_i(a)i(b) ([c(a) = c(b)] - [c(a) = pivot(b)] - [pivot(a) = c(b)] + [pivot(a) = pivot(b)]).
        """
        tasks, _, p = free.shape
        pivot = free.to(torch.uint8).argmax(-1, keepdim=True)
        moving = (free & ~torch.zeros_like(free).scatter(-1, pivot, True)).flatten(1)
        size = int(moving.sum(-1).max())
        if size == 0:
            return torch.zeros_like(v)
        entry = moving.to(torch.uint8).sort(dim=-1, descending=True, stable=True).indices[:, :size]
        kept = moving.gather(-1, entry).to(v.dtype)
        example, own = entry // p, entry % p
        other = pivot.squeeze(-1).gather(-1, example)
        task = torch.arange(tasks, device=v.device)[:, None, None]
        matrix = self.quadratic[task, example[:, :, None], example[:, None, :]]
        matrix = matrix * (_same(own, own) - _same(own, other) - _same(other, own) + _same(other, other))
        matrix = matrix * (kept[:, :, None] * kept[:, None, :])
        matrix.diagonal(dim1=-2, dim2=-1).add_(1.0 - kept)
        flat, other = v.flatten(1), example * p + other
        right = kept * (flat.gather(-1, entry) - flat.gather(-1, other))
        move = kept * _positive_solve(matrix, right.unsqueeze(-1)).squeeze(-1)
        return torch.zeros_like(flat).scatter_add(-1, entry, move).scatter_add(-1, other, -move).reshape(v.shape)


def with_ridge(matrix: Tensor, ridge: float) -> Tensor:
    """G + ridge I."""
    return matrix + ridge * torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def _same(a: Tensor, b: Tensor) -> Tensor:
    return (a[:, :, None] == b[:, None, :]).to(torch.int8)


def _positive_solve(matrix: Tensor, right: Tensor) -> Tensor:
    """By Cholesky factors; where rounding has made a matrix indefinite, by least squares."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    solution = torch.cholesky_solve(right, factor)
    if bool(failed.any()):
        bad = failed > 0
        solution[bad] = torch.linalg.lstsq(matrix[bad], right[bad], driver="gelsd").solution
    return solution
