"""Quasi-Newton descent on F: the inverse BFGS matrix, the direction, and a weak Wolfe search that works on kinks.

Lewis & Overton (2013): BFGS with a weak Wolfe search minimises nonsmooth functions in practice. Values are compared up
to the errors of their lower levels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .._serializable import serializable
from ..newton import Evaluation, LowerLevel, flat
from ..sets.base import ConvexSet
from ..sets.free_space import FreeSpace

DENSE = 1500
"""Up to this number of entries of x the inverse BFGS matrix is dense; beyond it the last pairs are stored."""
MEMORY = 20
"""The number of stored pairs."""
TRIALS = 30
"""The maximal number of points of a line search."""
ARMIJO, WOLFE = 1e-4, 0.9


@serializable
@dataclass(frozen=True)
class Metric:
    """The inverse BFGS matrix B: dense, or by the last pairs (s, y), the newest last."""

    scale: float
    matrix: Tensor | None = None
    steps: Tensor = field(default_factory=lambda: torch.empty(0))
    changes: Tensor = field(default_factory=lambda: torch.empty(0))

    @classmethod
    def scaled(cls, scale: float, size: int) -> Metric:
        """scale times the identity."""
        if size <= DENSE:
            return cls(scale, scale * torch.eye(size, dtype=torch.float64))
        return cls(scale, None, torch.zeros(0, size, dtype=torch.float64), torch.zeros(0, size, dtype=torch.float64))

    def __matmul__(self, v: Tensor) -> Tensor:
        if self.matrix is not None:
            return self.matrix @ v
        q, weights = v.clone(), []
        pairs = list(zip(self.steps, self.changes, strict=True))
        for s, y in reversed(pairs):
            weights.append(float(s @ q) / float(s @ y))
            q -= weights[-1] * y
        q *= self.scale
        for (s, y), weight in zip(pairs, reversed(weights), strict=True):
            q += (weight - float(y @ q) / float(s @ y)) * s
        return q

    def updated(self, s: Tensor, y: Tensor) -> Metric:
        """B after a step s that changed the gradient by y, s . y > 0."""
        product = float(s @ y)
        if self.matrix is None:
            steps = torch.cat([self.steps, s[None]])[-MEMORY:]
            changes = torch.cat([self.changes, y[None]])[-MEMORY:]
            return Metric(product / float(y @ y), None, steps, changes)
        my, r = self.matrix @ y, 1.0 / product
        matrix = self.matrix - r * (torch.outer(s, my) + torch.outer(my, s))
        return Metric(self.scale, matrix.add_(torch.outer(s, s), alpha=r * r * float(y @ my) + r))


def learn(metric: Metric | None, here: Evaluation, there: Evaluation) -> Metric | None:
    """The metric after a step; the first one is scaled by the curvature along the step."""
    s, y = there.x - here.x, there.gradient - here.gradient
    product = float(s @ y)
    if product > 1e-10 * float(s.norm()) * float(y.norm()):
        metric = Metric.scaled(product / float(y @ y), s.numel()) if metric is None else metric
        return metric.updated(s, y)
    if metric is None:
        return Metric.scaled(2 * float(s.norm()) / max(float(here.gradient.norm()), 1e-300), s.numel())
    return metric


class Descent:
    """Directions and line searches for one F, on the set X."""

    def __init__(self, level: LowerLevel, constraint: ConvexSet) -> None:
        self.level, self.constraint = level, constraint
        self.free = isinstance(constraint, FreeSpace)

    def project(self, x: Tensor) -> Tensor:
        """P_X(x), in the precision of the user's x."""
        point = self.level.tree_x(x)
        return flat(point if self.free else self.constraint.project(point)).double()

    def direction(self, here: Evaluation, metric: Metric | None, predicted: float) -> Tensor:
        """-B h; on a set X quasi-Newton along its face and the projected gradient across faces.

        Without a metric the scale of x is unknown, and the step is chosen such that its predicted decrease is
        `predicted`.
        """
        h = here.gradient
        if metric is None:
            return self.project(here.x - predicted / float(h @ h) * h) - here.x
        if self.free:
            return -(metric @ h)
        step = float(h @ (metric @ h)) / float(h @ h)
        face = self.constraint.jacobian(self.level.tree_x(here.x - step * h))

        def along(v: Tensor) -> Tensor:
            return flat(face.apply(self.level.tree_x(v))).double()

        move = self.project(here.x - step * h) - here.x
        return -along(metric @ along(h)) + move - along(move)

    def search(
        self, here: Evaluation, d: Tensor, expand: float, least: float
    ) -> tuple[Evaluation | None, list[Evaluation]]:
        """A point x + t d that satisfies the weak Wolfe conditions, by doubling and bisection, and all points
        evaluated.

        None if the predicted decrease is no larger than `least` or than the error of F.
        """
        slope = float(here.gradient @ d)
        low, high, t, good, near = 0.0, math.inf, 1.0, None, here
        tried: list[Evaluation] = []
        for k in range(TRIALS):
            x = self.project(here.x + t * d)
            step = x - here.x
            if k and float(step.norm()) <= 1e-14 * float(here.x.norm()):
                break
            predicted = abs(float(here.gradient @ step))
            trial = self.level.evaluate(x, max(1e-3 * predicted, 1e-15 * abs(here.value)), near)
            tried.append(trial)
            doubt = self._doubt(here, trial, predicted)
            enough = self._decreases(here, trial, predicted, doubt)
            if enough and good is not None and trial.value > good.value + doubt and k < 8:
                enough = False  # beyond a better point: a bracket
            if enough:
                good = trial if good is None or trial.value <= good.value else good
                clipped = not self.free and float((step - t * d).norm()) > 1e-10 * float(step.norm())
                steep = float(trial.gradient @ d) < WOLFE * slope
                if not (steep and not clipped and (self.free or t < 1.0 or expand > 2.0)):
                    flat_there = low > 0 and float(trial.gradient.norm()) <= 1e-6 * float(here.gradient.norm())
                    return (self._edge(here, d, low, t, trial) if flat_there else trial), tried
                low, near = t, trial
            else:
                high = t
                if good is not None and k > 4:
                    break
                if good is None and (predicted <= least or (k > 2 and predicted <= trial.error < math.inf)):
                    break
            t = self._next(here, trial, slope, t, low, high, expand, enough)
            if high < 1e-12:
                break
        return good, tried

    def _doubt(self, here: Evaluation, trial: Evaluation, predicted: float) -> float:
        """The error of a difference of values."""
        errors = (here.error if math.isfinite(here.error) else 0.0) + (trial.error if trial.ok else 0.0)
        return min(errors, 0.5 * predicted + 1e-13 * abs(here.value))

    def _decreases(self, here: Evaluation, trial: Evaluation, predicted: float, doubt: float) -> bool:
        return (
            trial.ok
            and trial.error < 0.5 * predicted + 1e-12 * abs(here.value)
            and trial.value <= here.value - ARMIJO * predicted + doubt
        )

    def _next(
        self,
        here: Evaluation,
        trial: Evaluation,
        slope: float,
        t: float,
        low: float,
        high: float,
        expand: float,
        enough: bool,
    ) -> float:
        """The next trial: a longer step, the minimum of a parabola, or the middle of the bracket."""
        if math.isinf(high):
            return expand * t
        if not enough and trial.ok and low == 0.0:
            excess = trial.value - here.value - slope * t
            return min(max(-slope * t * t / (2 * excess) if excess > 0 else 0.5 * t, 0.1 * t), 0.5 * t)
        return low + (0.5 if trial.ok else 0.1) * (high - low)

    def _edge(self, here: Evaluation, d: Tensor, low: float, high: float, plateau: Evaluation) -> Evaluation:
        """Bisect back from a trial where F is constant (x affects no constraint) to the last point with a slope."""
        best = plateau
        slack = 1e-4 * abs(here.value - plateau.value)
        for _ in range(8):
            middle = (low + high) / 2
            trial = self.level.evaluate(self.project(here.x + middle * d), slack, plateau)
            if not trial.ok:
                break
            best = trial if trial.value < best.value else best
            low, high = (middle, high) if float(trial.gradient @ d) < 0 else (low, middle)
        return best
