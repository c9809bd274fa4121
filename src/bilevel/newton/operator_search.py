"""Steps of a large lower level at one x: model, Newton and gradient steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..linearization import Linearization
from ..sets.base import ConvexSet
from ..spaces import Vector
from .base import LowerPoint
from .quadratic_model import QuadraticModel

if TYPE_CHECKING:
    from .operator import OperatorLevel, System

NEWTON_STEPS, CG_STEPS = 60, 200


class OperatorSearch:
    """Steps at one x: the minimum of the model over Y, Newton steps, gradient steps, in this order of preference."""

    def __init__(
        self, level: OperatorLevel, x: Vector, constraint: Any, hard: ConvexSet, slack: float, weight: float, eta: float
    ) -> None:
        self.level, self.x, self.constraint, self.hard = level, x, constraint, hard
        self.slack, self.weight, self.eta = slack, weight, eta
        self.smoothed = level.smoothing is not None
        self.least, self.lowest = math.inf, math.inf  # the records of |R| and of g

    def run(self, point: LowerPoint) -> LowerPoint | None:
        level, eta = self.level, self.eta
        burst, refused, model = 20, 0.0, not self.smoothed
        for _ in range(NEWTON_STEPS):
            residual = self._residual(point)
            size = float(residual.norm())
            floor = 4 * level.rounding(point.y, eta, level.known.largest)
            tol = level.tolerance(self.slack, self.weight, point, eta)
            if size <= max(tol, floor):
                return point
            if level.work > level.allowed:  # ten times the usual work: the step was too long
                return None
            trial = self._model_step(point, size, tol, burst) if model else None
            if trial is not None:
                self._learn(point, trial)
                model = float(self._residual(trial).norm()) <= 0.8 * size
                point = trial
                continue
            trial = self._newton_step(point, residual, size, tol, floor)
            if trial is not None:
                self._learn(point, trial)
                point = trial
                continue
            if not model and not self.smoothed and refused == 0:  # once more by the model
                model, refused = True, 0.5
                continue
            refused += size <= 100 * floor
            if refused >= 2:
                return point
            point = self._burst(point, size, burst)
            burst, model = min(2 * burst, 2000), not self.smoothed
        return point

    def _residual(self, point: LowerPoint) -> Tensor:
        return (point.y - self.level.project(self.constraint, point.y - self.eta * point.slope)).double()

    def _learn(self, point: LowerPoint, trial: LowerPoint) -> None:
        level = self.level
        step, change = trial.y - point.y, trial.slope - point.slope
        level.known = level.known.learned(step, change, point.slope, level.eps)

    def _newton_step(
        self, point: LowerPoint, residual: Tensor, size: float, tol: float, floor: float
    ) -> LowerPoint | None:
        level, eta = self.level, self.eta
        system = level.system(point.lin, self.constraint, point.y - eta * point.slope, eta)
        d = self._newton_direction(system, point.lin, residual, min(0.1, max(0.2 * tol / size, 1e-8)))
        if not bool(torch.isfinite(d).all()):
            return None
        self.least, self.lowest = min(self.least, size), min(self.lowest, point.value)
        for part in (1.0, 0.3):
            trial = level.at(self.x, level.project(self.hard, point.y + (part * d).to(point.y.dtype)))
            if not trial.finite:
                continue
            after = float(self._residual(trial).norm())
            if after <= 0.5 * self.least or self._decreases(point, trial) or self._contracts(after, size, part):
                return trial
            if part == 1.0 and after < 10 * floor:
                return trial if after < size else None
        return None

    def _decreases(self, point: LowerPoint, trial: LowerPoint) -> bool:
        if self.smoothed:  # g is not what a smoothed lower level minimises
            return False
        predicted = min(float(point.slope.double() @ (trial.y - point.y).double()), 0.0)
        rounding = 1e4 * self.level.eps * abs(point.value)
        return point.change_to(trial, self.level.eps) < 0.1 * predicted and trial.value <= self.lowest + rounding

    def _contracts(self, after: float, size: float, part: float) -> bool:
        return self.smoothed and after < (1 - 0.2 * part) * size

    def _newton_direction(self, system: System, lin: Linearization, residual: Tensor, tol: float) -> Tensor:
        level, h, eta = self.level, system.jacobian.apply, self.eta
        if not system.jacobian.projector:
            b = -h(residual - eta * level.product(lin, residual))
            return h(level.conjugate_gradients(system, b, None, tol, CG_STEPS)) - residual
        along = h(residual)
        across = residual - along
        b = -along
        if float(across.norm()) > 1e-14 * float(residual.norm()):
            b = b + eta * h(level.product(lin, across))
        return level.conjugate_gradients(system, b, None, tol, CG_STEPS) - across

    def _model_step(self, point: LowerPoint, size: float, tol: float, credit: float) -> LowerPoint | None:
        """Towards the minimum over Y of the quadratic model, as far along the segment as g agrees."""
        level = self.level
        support = level.jacobian(self.constraint, point.y - self.eta * point.slope).support
        if support is None or not len(support) or not level.buy(point.lin, support, 2 * credit):
            return None
        goal = QuadraticModel(level, self.hard, point, self.eta).minimum(0.1 * max(tol, 0.03 * size))
        d = (goal - point.y.double()).to(point.y.dtype)
        slope = float(point.slope @ d)
        part = 1.0
        while slope < 0 and part > 0.2:
            trial = level.at(self.x, point.y + part * d)
            if trial.finite and point.change_to(trial, level.eps) <= 0.1 * part * slope:
                return trial
            part *= 0.5
        return None

    def _burst(self, point: LowerPoint, size: float, steps: int) -> LowerPoint:
        level = self.level
        if self.smoothed:
            y = level.damped(self.x, self.constraint, point.y, self.eta, level.known.largest, min(steps, 20))
            return level.at(self.x, y)
        tol = 0.03 * size / max(self.eta, 1.0 / level.known.largest)
        return level.gradient_steps(self.x, point, steps, tol)
