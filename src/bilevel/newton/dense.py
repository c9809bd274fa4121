"""Lower levels of up to some hundred entries: M as a matrix, factored once per point."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..linearization import Linearization
from ..sets.base import ConvexSet
from ..spaces import Vector
from .base import Evaluation, LowerLevel, LowerPoint, Solved, flat, rows
from .smoothed_set import SmoothedSet

NEWTON_STEPS, SMOOTHED_STEPS = 30, 15
"""Newton steps at most for one evaluation."""
MODEL_STEPS = 60
"""Newton steps at most on a quadratic model of g."""
SHORTEST, ARMIJO = 1e-6, 0.1
"""How far steps to the minimum of a model are shortened, and the part of its slope by which g falls."""


@dataclass
class System:
    """M = I - H + eta H G at y, factored, with what it was made of."""

    lu: Tensor
    pivots: Tensor
    jacobian: Tensor
    hessian: Tensor
    eta: float
    curvature: float
    convex: bool
    y: Tensor

    def newton(self, residual: Tensor) -> Tensor:
        """-M^{-1} R."""
        return -torch.linalg.lu_solve(self.lu, self.pivots, residual[:, None])[:, 0]

    def adjoint(self, v: Tensor) -> Tensor:
        """M^{-T} v."""
        return torch.linalg.lu_solve(self.lu, self.pivots, v[:, None], adjoint=True)[:, 0]


class DenseLevel(LowerLevel):
    """`LowerLevel` with dense linear algebra in float64, whatever the dtype of y."""

    @cached_property
    def identity(self) -> Tensor:
        return torch.eye(self.size, dtype=torch.float64, device=self.device)

    @cached_property
    def units(self) -> Vector:
        """The unit vectors, in the form of y."""
        return self.tree_y(self.identity)

    # --- the matrix ---------------------------------------------------------------------------------------------------

    def factor(self, point: LowerPoint, constraint: Any) -> System:
        """M at a point.

        eta = 1 / (geometric mean of the curvatures): M is then well balanced, and the face is seen from a distance that
        does not shrink with the stiffest coordinate.
        """
        hessian = self._hessian(point.lin)
        curvature = _largest(hessian)
        cholesky = torch.linalg.cholesky_ex(hessian)
        convex = int(cholesky.info) == 0
        if not convex:  # or only singular, up to rounding
            shifted = hessian + 1e3 * self.eps * curvature * self.identity
            self.nonconvex |= int(torch.linalg.cholesky_ex(shifted).info) != 0
        if self.smoothing is not None:
            eta = self.smoothing.eta
        elif convex:
            mean = math.exp(2.0 * float(cholesky.L.diagonal().log().mean()))
            eta = min(max(1.0 / mean, 1.0 / curvature), 1e10 / curvature)
        else:
            eta = 1.0 / curvature
        jacobian = self.jacobian(constraint, point.y - eta * point.slope)
        lu = torch.linalg.lu_factor_ex(torch.addmm(self.identity - jacobian, jacobian, hessian, alpha=eta))
        return System(lu.LU, lu.pivots, jacobian, hessian, eta, curvature, convex, point.y)

    def jacobian(self, constraint: Any, z: Tensor) -> Tensor:
        if isinstance(constraint, SmoothedSet):
            return rows(constraint.apply(self.tree_y(z), self.units))
        return rows(constraint.jacobian(self.tree_y(z)).apply(self.units))

    def _hessian(self, lin: Linearization) -> Tensor:
        self.work += 2 * self.price
        hessian = rows(lin.lower_hvps(self.units))
        return (hessian + hessian.T) / 2

    def _unconstrained(self, constraint: SmoothedSet, y: Tensor) -> bool:
        return bool((self.jacobian(constraint, y) - self.identity).abs().max() < 1e-9)

    # --- y*(x) --------------------------------------------------------------------------------------------------------

    def _solve(
        self, x: Vector, constraint: Any, start: LowerPoint, slack: float, near: Evaluation | None
    ) -> Solved | None:
        hard, point = self.hard_set_at(x), start
        if near is None:
            point, system = self._first(x, constraint, point)
        else:
            system = self._system_of(near)
        search = _NewtonSearch(self, x, constraint, hard, slack, math.nan if near is None else near.weight)
        point, system = search.run(point, system, fresh=near is None)
        if system is None or (near is None and self.smoothing is None and not point.is_below(start, self.eps)):
            return None  # a Newton step may lead to a maximum
        if system.y is not point.y:
            system = self.factor(point, constraint)
        u = system.adjoint(flat(point.lin.upper_grad_y).double())
        z = point.y - system.eta * point.slope
        residual = search.residual(point, system.eta)
        w = system.eta * (system.jacobian @ u)
        return Solved(point, z, residual, u, w, system.eta, system.curvature, system)

    def _descend_by_newton(self, x: Vector, constraint: Any, start: LowerPoint) -> LowerPoint:
        search = _NewtonSearch(self, x, constraint, constraint, math.inf, math.nan)
        return search.run(start, self.factor(start, constraint), fresh=True)[0]

    def _first(self, x: Vector, constraint: Any, point: LowerPoint) -> tuple[LowerPoint, System]:
        """Gradient steps from far away: they find the basin of y0 and most of its face."""
        system = self.factor(point, constraint)
        if self.smoothing is None:
            steps = 50 if system.convex else 2000
            y, _ = self.descend(x, point.y, system.curvature, 1e-2 * float(point.slope.norm()), steps)
            point = self.at(x, y)
            system = self.factor(point, constraint)
        return point, system

    def _system_of(self, near: Evaluation) -> System:
        """The system of an earlier evaluation, made anew where it comes from a file."""
        if near.system is None:
            level = self
            if near.smoothing != self.smoothing:
                level = DenseLevel(self.problem, self.x_like, self.y_like, near.smoothing, self.curvature_limit)
            x = self.tree_x(near.x)
            near.system = level.factor(level.at(x, near.y), level.constraint_at(x))
        return near.system


class _NewtonSearch:
    """Newton steps at one x.

    The system of a nearby x is reused while |R| falls tenfold per step: the first such step predicts y at the new x,
    kinks and moving sets included. A step is kept if it improves the record of |R| or the record of g: two records, or
    the iteration may cycle.
    """

    def __init__(
        self, level: DenseLevel, x: Vector, constraint: Any, hard: ConvexSet, slack: float, weight: float
    ) -> None:
        self.level, self.x, self.constraint, self.hard = level, x, constraint, hard
        self.slack, self.weight = slack, weight
        self.smoothed = level.smoothing is not None
        self.least, self.lowest = math.inf, None  # the records of |R| and of g
        self._known: tuple[LowerPoint | None, float, Tensor] = (None, math.nan, level.identity)

    def run(self, point: LowerPoint, system: System, *, fresh: bool) -> tuple[LowerPoint, System | None]:
        level, burst, at_floor = self.level, 20, 0
        for _ in range(SMOOTHED_STEPS if self.smoothed else NEWTON_STEPS):
            if system.curvature > level.curvature_limit or level.work > level.allowed:
                return point, None
            residual = self.residual(point, system.eta)
            size = float(residual.norm())
            floor = 4 * level.rounding(point.y, system.eta, system.curvature)
            if size <= level.tolerance(self.slack, self.weight, point, system.eta):
                return point, system
            d = system.newton(residual)
            finite = bool(torch.isfinite(d).all())
            trial = self._move(point, d if finite else -residual)
            after = float(self.residual(trial, system.eta).norm()) if trial.finite else math.inf
            if size <= floor and after > 0.1 * size:  # rounding
                return (trial if after < size else point), system
            if after <= 0.1 * size:  # contracts well: the factorisation still serves
                point, fresh = trial, False
                continue
            self._note(point, size)
            if after <= 0.5 * self.least or (fresh and system.convex and self._lower(trial)):
                point = trial
            elif fresh:
                found = self._elsewhere(point, d if finite else None, size, system)
                if found is None:
                    at_floor += size <= 250 * floor
                    if at_floor >= 2:
                        return point, system
                    found = self._burst(point, system, size, burst)
                    burst = min(4 * burst, 2000)
                point = found
            system, fresh = level.factor(point, self.constraint), True
        return point, system

    def residual(self, point: LowerPoint, eta: float) -> Tensor:
        """R = y - P(y - eta grad_y g), kept for the next question, which is mostly the same."""
        known, step, residual = self._known
        if known is not point or step != eta:
            residual = (point.y - self.level.project(self.constraint, point.y - eta * point.slope)).double()
            self._known = point, eta, residual
        return residual

    def _move(self, point: LowerPoint, d: Tensor) -> LowerPoint:
        return self.level.at(self.x, self.level.project(self.hard, point.y + d.to(point.y.dtype)))

    def _note(self, point: LowerPoint, size: float) -> None:
        self.least = min(self.least, size)
        if self.lowest is None or self._lower(point):
            self.lowest = point

    def _lower(self, trial: LowerPoint) -> bool:
        if self.smoothed:  # g is not what a smoothed lower level minimises
            return False
        return self.lowest is None or self.lowest.change_to(trial, self.level.eps) < 0

    def _elsewhere(self, point: LowerPoint, d: Tensor | None, size: float, system: System) -> LowerPoint | None:
        """A better point where the full Newton step is none: a part of it, or a point towards the model's minimum."""
        if system.convex and not self.smoothed:
            return self._towards(self._model_minimum(point, system) - point.y, point)
        found = None if d is None else self._part_of(d, point, size, system)
        if not system.convex:
            return found
        trial = self.level.at(self.x, self._model_minimum(point, system))
        nearest = size if found is None else float(self.residual(found, system.eta).norm())
        better = trial.finite and float(self.residual(trial, system.eta).norm()) < nearest
        return trial if better else found

    def _towards(self, d: Tensor, point: LowerPoint) -> LowerPoint | None:
        """A point y + t d where g is lower, t = 1 or less: d leads to another point of Y and downhill."""
        slope, part = float(point.slope.double() @ d.double()), 1.0
        while slope < 0 and part > SHORTEST:
            trial = self.level.at(self.x, point.y + part * d)
            if point.change_to(trial, self.level.eps) <= ARMIJO * part * slope:
                return trial
            part *= 0.3
        return None

    def _part_of(self, d: Tensor, point: LowerPoint, size: float, system: System) -> LowerPoint | None:
        for part in (0.5, 0.2, 0.05) if self.smoothed else (0.3, 0.1, 0.03):
            trial = self._move(point, part * d)
            if self.smoothed:
                good = float(self.residual(trial, system.eta).norm()) < (1 - 0.2 * part) * size
            else:
                good = trial.value < point.value - 1e-12 * abs(point.value)
            if good:
                return trial
        return None

    def _model_minimum(self, point: LowerPoint, system: System) -> Tensor:
        """The minimum of the quadratic model of g on the set, by damped Newton steps on Robinson's normal map.

        N(z) = m'(P(z)) + (z - P(z)) / eta is zero where P(z) is the minimum. Unlike y, z keeps its multipliers from
        step to step, so that a step that crosses faces is shortened instead of thrown away.
        """
        hessian, eta, y = system.hessian, system.eta, point.y.double()
        linear = point.slope.double() - hessian @ y
        weights = 1.0 / (hessian.diagonal().clamp_min(0.0) + 1.0 / eta)

        def at(z: Tensor) -> tuple[Tensor, Tensor, float]:
            v = self.level.project(self.constraint, z).double()
            normal = linear + hessian @ v + (z - v) / eta
            return v, normal, float(weights @ normal.square())

        z, part = y - eta * point.slope.double(), 1.0
        v, normal, size = at(z)
        goal = 1e-24 * size
        for _ in range(MODEL_STEPS):
            if size <= goal:
                break
            self.level.work += self.level.price
            jacobian = self.level.jacobian(self.constraint, z)
            matrix = hessian @ jacobian + (self.level.identity - jacobian) / eta
            d = -torch.linalg.solve_ex(matrix, normal[:, None]).result[:, 0]
            part, found = min(4.0 * part, 1.0), None
            while found is None and part > 1e-8 and bool(torch.isfinite(d).all()):
                trial = at(z + part * d)
                found = trial if trial[2] <= (1.0 - 0.2 * part) * size else None
                part = part if found else 0.5 * part
            if found is None:
                break
            z, (v, normal, size) = z + part * d, found
        return v.to(point.y.dtype)

    def _burst(self, point: LowerPoint, system: System, size: float, steps: int) -> LowerPoint:
        """Gradient steps where Newton has failed."""
        level = self.level
        if self.smoothed:
            y = level.damped(self.x, self.constraint, point.y, system.eta, system.curvature, min(steps, 10))
        else:
            y, _ = level.descend(self.x, point.y, system.curvature, 0.1 * size * system.curvature, steps)
        return level.at(self.x, y)


def _largest(hessian: Tensor) -> float:
    """The largest |eigenvalue|, a little from above: power steps from a fixed start, so that it depends on G alone."""
    norm = float(hessian.norm())
    if not 0 < norm < math.inf:
        return 1.0
    before = v = 1.0 + 0.1 * torch.arange(len(hessian), dtype=hessian.dtype, device=hessian.device) / len(hessian)
    scaled = hessian / norm
    for _ in range(20):
        before, v = v, scaled @ v
    size = float(v.norm() / before.norm())
    return 1.05 * norm * size if size > 0 else norm
