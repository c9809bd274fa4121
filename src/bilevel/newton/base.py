"""The lower level by semismooth Newton steps; F, its error and its gradient come from the same linear system.

    R(y) = y - P(y - eta grad_y g)          zero exactly at y*(x), for any eta > 0
    M = I - H + eta H G_yy                  H the Jacobian of P at y - eta grad_y g
    Newton     M d = -R
    adjoint    M' u = grad_y f,  w = eta H u
    gradient   grad F = grad_x f - G_xy w  (+ theta_x' P_theta' u where Y moves with x)
    error      f(x, y) - F(x) = u . R + O(|R|^2)

P is the projection on Y or the mean of projections at perturbed points (`SmoothedSet`), which is again a proximal map:
the smoothed lower level is a convex problem of its own, and the formulas hold for it without a change.

Qi & Sun (1993), semismooth Newton; Pedregosa (2016), inexact lower levels whose error in F is what counts.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .._projected_gradient import solve_from
from .._serializable import serializable
from ..errors import BilevelError
from ..linearization import Linearization
from ..problem import Problem
from ..sets.base import ConvexSet
from ..spaces import Vector, leaves, like
from .cached_hessian import Effort
from .single_point_sets import SinglePointSet, takes_stacks
from .smoothed_set import SmoothedSet, Smoothing

GRADIENT_ONLY = (RuntimeError, ValueError, IndexError)
"""Further errors raised by missing second derivatives and by sets whose Jacobian does not support stacks."""
FAILURES = (BilevelError, torch.linalg.LinAlgError)  # pyright: ignore[reportPrivateImportUsage]
"""Errors that make a trial point fail, so that a line search takes a shorter step."""
ROUNDING_DRAWS = 3
"""Rounding is measured at this many points where its bound is too large."""
CURVATURE_LIMIT = 1e4
"""A point counts as failed if its lower level is this many times steeper than that of the start, as with penalties of
e^28, because it could not be solved again."""


@serializable
@dataclass
class Evaluation:
    """F at one x (flat, float64): value, error bound, gradient, and where the next evaluation may start."""

    x: Tensor
    value: float = math.inf
    error: float = math.inf
    gradient: Tensor = field(default_factory=lambda: torch.empty(0))
    y: Tensor = field(default_factory=lambda: torch.empty(0))
    z: Tensor = field(default_factory=lambda: torch.empty(0))
    weight: float = math.nan  # |u|, the price of a residual in units of F
    eta: float = math.nan
    curvature: float = math.nan
    smoothing: Smoothing | None = None
    system: Any = field(default=None, compare=False, repr=False, metadata={"stored": False})  # a function of the rest

    @property
    def ok(self) -> bool:
        """Whether F could be evaluated here."""
        return self.gradient.numel() > 0


@dataclass
class Solved:
    """A solved lower level with its adjoint: R, u and w of the formulas above, in float64."""

    point: LowerPoint
    z: Tensor
    residual: Tensor
    u: Tensor
    w: Tensor
    eta: float
    curvature: float
    system: Any

    @property
    def value(self) -> float:
        """f here."""
        return float(self.point.lin.upper_value)

    @property
    def correction(self) -> float:
        """u . R, the first-order error of f here as a value of F."""
        return float(self.u @ self.residual)

    @property
    def finite(self) -> bool:
        return math.isfinite(self.value) and math.isfinite(self.correction)


@dataclass
class LowerPoint:
    """y with g, grad_y g and all else about it."""

    y: Tensor
    lin: Linearization
    value: float
    slope: Tensor

    @property
    def finite(self) -> bool:
        return math.isfinite(self.value)

    def is_below(self, other: LowerPoint, eps: float) -> bool:
        """Whether g is no higher here than there, up to rounding."""
        return self.value <= other.value + 1e4 * eps * abs(other.value)

    def change_to(self, other: LowerPoint, eps: float) -> float:
        """g there minus g here, by the trapezoidal rule where rounding hides the difference of the values."""
        if not other.finite:
            return math.inf
        if abs(other.value - self.value) > 1e4 * eps * abs(self.value):
            return other.value - self.value
        return 0.5 * float((self.slope.double() + other.slope.double()) @ (other.y.double() - self.y.double()))


class LowerLevel(ABC):
    """F(x) = f(x, y*(x)) with an error bound and its gradient; subclasses solve the linear systems.

    Parameters
    ----------
    problem
        f, g and the sets; with a sampler all the data are used.
    x, y
        Vectors with the shapes and dtypes of the variables; lower levels without a better start begin at y.
    smoothing
        None for the problem itself.
    curvature_limit
        Points with a larger curvature of g count as failed.
    """

    first_knowledge: Any = Effort()

    def __init__(
        self,
        problem: Problem,
        x: Vector,
        y: Vector,
        smoothing: Smoothing | None = None,
        curvature_limit: float = math.inf,
    ) -> None:
        self.problem, self.x_like, self.y_like = problem, x, y
        self.size, self.dtype = sum(u.numel() for u in leaves(y)), leaves(y)[0].dtype
        self.device, self.eps = leaves(y)[0].device, torch.finfo(self.dtype).eps
        self.smoothing, self.curvature_limit = smoothing, curvature_limit
        self.price = 1 if smoothing is None else max(1, smoothing.draws // 4)  # of a projection, in gradients
        self.known: Any = self.first_knowledge  # what has been learned on the way, a part of the state of a run
        self.nonconvex = False  # whether G was seen to be indefinite
        self.work = 0  # gradients, Hessian products and model steps so far, the measure of effort
        self.limit = math.inf  # what `work` may grow to; evaluations fail beyond
        self.allowed = math.inf  # the same for the present evaluation
        self.goal: tuple[float, float] | None = None  # the tolerance of `solve` and the step of its residual
        self.draws = None if smoothing is None else self._draws(smoothing.draws)
        self._takes_stacks: bool | None = None

    @abstractmethod
    def _solve(
        self, x: Vector, constraint: Any, start: LowerPoint, slack: float, near: Evaluation | None
    ) -> Solved | None:
        """y*(x) from `start` until |u| |R| <= slack, with its adjoint; None where there is no hope."""

    @abstractmethod
    def _descend_by_newton(self, x: Vector, constraint: Any, start: LowerPoint) -> LowerPoint | None:
        """y*(x) from `start`, to the tolerance, without an adjoint; None where there is no hope."""

    @abstractmethod
    def _unconstrained(self, constraint: SmoothedSet, y: Tensor) -> bool:
        """Whether no constraint is within the radius of a smoothed set around y."""

    # --- y*(x) alone --------------------------------------------------------------------------------------------------

    def solve(self, x: Vector, y: Vector, *, tol: float, step: float = 1.0, most: float = math.inf) -> Vector | None:
        """y*(x) from y to |y - P(y - step grad_y g)| <= step tol, by Newton steps; None where they find nothing better.

        f is not called. `most` bounds the gradients and Hessian products.
        """
        self.goal, self.allowed = (tol, step), self.work + most
        constraint = self.hard_set_at(x)
        try:
            with self.problem.ranks.guard("taking Newton steps"):  # they fail on all ranks or on none
                start = self.at(x, self.project(constraint, flat(y)))
                point = self._descend_by_newton(x, constraint, start)
        except (*FAILURES, *GRADIENT_ONLY):
            return None
        better = point is not None and point.finite and point.is_below(start, self.eps)
        return self.tree_y(point.y) if better else None  # type: ignore[union-attr]

    # --- F ------------------------------------------------------------------------------------------------------------

    def evaluate(
        self, x: Tensor, slack: float = math.inf, near: Evaluation | None = None, *, relative: float = 0.0
    ) -> Evaluation:
        """F at x (flat), wrong by at most about `slack` or a share of |F|; `near` is an evaluation to start from."""
        near = near if near is None or near.y.numel() else None
        before, known = self.work, self.known
        self.allowed = min(self.limit, before + self._usual_limit(near))
        try:
            point = self._evaluate(x, slack, near, relative)
        except FAILURES:
            point = None
        # a trial that fails leaves nothing behind of what it has learned
        self.known = known if point is None else self.known.after(self.work - before)
        return point or Evaluation(x, smoothing=self.smoothing)

    def _usual_limit(self, near: Evaluation | None) -> float:
        """The work of one evaluation beyond which it is given up: ten times the usual, once that is known."""
        tried = near is not None and self.known.evaluations >= 3
        return max(10 * self.known.usual_work, 300) if tried else math.inf

    def _evaluate(self, flat_x: Tensor, slack: float, near: Evaluation | None, relative: float) -> Evaluation | None:
        x = self.tree_x(flat_x)
        constraint = self.constraint_at(x)
        start = flat(self.y_like) if near is None else near.y
        point = self.at(x, self.project(self.hard_set_at(x), start))
        solved = None
        for _ in range(3):  # the price of a residual is known after a first look
            solved = self._solve(x, constraint, point, slack, near) if point.finite else None
            if solved is None or not solved.finite or solved.curvature > self.curvature_limit:
                return None
            point = solved.point
            slack = relative * abs(solved.value) if relative and math.isinf(slack) else slack
            floor = 16 * self.rounding(point.y, solved.eta, solved.curvature)
            if abs(solved.correction) <= 3 * slack or float(solved.residual.norm()) <= floor:
                break
            weight = float(solved.u.norm())
            near = Evaluation(flat_x, y=point.y, weight=weight, smoothing=self.smoothing, system=solved.system)
        assert solved is not None
        value, correction, weight = solved.value, solved.correction, float(solved.u.norm())
        floor = self.rounding(point.y, solved.eta, solved.curvature)
        rounding, known = 2 * floor * weight, abs(correction) <= 10 * slack
        if rounding > 10 * slack:
            rounding = min(rounding, self._rounding_seen(solved, x, constraint))
            known |= float(solved.residual.norm()) <= 4 * floor
        error = 8 * self.eps * abs(value) + rounding + (min(abs(correction), 10 * slack) if known else math.inf)
        if known and math.isfinite(slack):
            value -= correction
        gradient = self._gradient(solved, x, constraint)
        if not bool(torch.isfinite(gradient).all()):
            return None
        found = (solved.z, weight, solved.eta, solved.curvature, self.smoothing, solved.system)
        return Evaluation(flat_x, value, error, gradient, point.y, *found)

    def solvable(self) -> bool:
        """Whether F can be evaluated at the x of this level."""
        return self.evaluate(flat(self.x_like).double()).ok

    def _gradient(self, solved: Solved, x: Vector, constraint: Any) -> Tensor:
        gradient = flat(solved.point.lin.reduced_gradient(self.tree_y(solved.w))).double()
        if not self.problem.moving:
            return gradient
        points, cotangent = self.tree_y(solved.z), self.tree_y(solved.u)
        if isinstance(constraint, SmoothedSet):
            points, cotangent = constraint.points(points), constraint.spread(cotangent)
        through_set = self.problem.constraint_vjp(x, points, cotangent)
        assert through_set is not None
        return gradient + flat(through_set).double()

    def rounding(self, y: Tensor, eta: float, curvature: float) -> float:
        """How far the rounding of z = y - eta grad_y g may move y."""
        return self.eps * float(y.norm()) * max(1.0, 0.3 * eta * curvature)

    def _rounding_seen(self, solved: Solved, x: Vector, constraint: Any) -> float:
        """How far rounding moves f - u . R: it is constant near y* up to that, and so is seen a few roundings away."""
        y, generator, first = solved.point.y, torch.Generator().manual_seed(0), solved.value - solved.correction
        moved = 0.0
        for _ in range(ROUNDING_DRAWS):
            draw = torch.randn(self.size, generator=generator, dtype=torch.float64).to(y)
            point = self.at(x, y * (1 + 4 * self.eps * draw))
            residual = point.y - self.project(constraint, point.y - solved.eta * point.slope)
            moved = max(moved, abs(float(point.lin.upper_value) - float(solved.u @ residual.double()) - first))
        return 3 * moved

    def tolerance(self, slack: float, weight: float, point: LowerPoint, eta: float) -> float:
        """The |R| to reach: an error of F, or while its price is unknown a small part of y.

        |y - P(y - t grad_y g)| grows with t and falls relative to t, so that |R| bounds the residual of any other step.
        """
        if self.goal is not None:
            return self.goal[0] * min(eta, self.goal[1])
        if math.isfinite(slack) and weight > 0:
            return slack / weight
        return 1e-4 * (float(point.y.norm()) + 1e-3 * eta * float(point.slope.norm()))

    # --- kinks --------------------------------------------------------------------------------------------------------

    def smoothing_eta(self, here: Evaluation) -> float:
        """The eta of a smoothed problem around this point."""
        return here.eta

    def kink_distance(self, here: Evaluation) -> float:
        """How far z = y - eta grad_y g is from the kinks of the projection, roughly: the scale of a useful smoothing.

        The multipliers z - y where constraints are active. At a kink itself (active constraints without a multiplier)
        f has the only scale: the way to its minimum along -grad_y f. 0 where no constraint is near.
        """
        x = self.tree_x(here.x)
        constraint = self.hard_set_at(x)
        z = here.y + (self.smoothing_eta(here) / here.eta) * (here.z - here.y)
        multiplier = float((z - here.y).abs().max())
        outside = float((z - self.project(constraint, z)).abs().max())
        if outside > 1e-3 * multiplier and multiplier > 1e-6 * float(here.y.abs().max()):
            return multiplier
        way = self._way_of_f(x, here.y)
        if not self._unconstrained(SmoothedSet(constraint, 1e-3 * way, self._draws(16)), here.y):
            return way
        return multiplier if outside > 1e-3 * multiplier else 0.0

    def _way_of_f(self, x: Vector, y: Tensor) -> float:
        """|y' - y| to the minimum y' of f along -grad_y f, by the curvature between two gradients."""
        lin = self.at(x, y).lin
        slope = flat(lin.upper_grad_y).double()
        size = float(slope.norm())
        if not size > 0:
            return 0.0
        guess = abs(float(lin.upper_value)) / size
        guess = guess if 0 < guess < math.inf else float(y.norm()) or 1.0
        nearby = (y.double() - 1e-3 * guess / size * slope).to(y.dtype)
        change = slope - flat(self.at(x, nearby).lin.upper_grad_y).double()
        curvature = float(slope @ change) / (1e-3 * guess * size)
        return size / curvature if curvature > 1e-6 * size / guess else guess

    # --- parts --------------------------------------------------------------------------------------------------------

    def tree_x(self, values: Tensor) -> Vector:
        """A flat vector in the form of x."""
        return like_flat(values, self.x_like)

    def tree_y(self, values: Tensor) -> Vector:
        """A flat vector, or a stack of them, in the form of y."""
        return like_flat(values, self.y_like)

    def constraint_at(self, x: Vector) -> Any:
        """The set Y at x, smoothed where that is asked for."""
        constraint = self.hard_set_at(x)
        if self.smoothing is None or self.draws is None:
            return constraint
        return SmoothedSet(constraint, self.smoothing.radius, self.draws)

    def hard_set_at(self, x: Vector) -> ConvexSet:
        """The set Y at x without smoothing."""
        constraint = self.problem.constraint_at(x)
        if self._takes_stacks is None:
            self._takes_stacks = takes_stacks(constraint, self.y_like)
        return constraint if self._takes_stacks else SinglePointSet(constraint, self.y_like)

    def project(self, constraint: Any, z: Tensor) -> Tensor:
        """P(z), flat."""
        return flat(constraint.project(self.tree_y(z)))

    def descend(self, x: Vector, y: Tensor, curvature: float, tol: float, steps: int) -> tuple[Tensor, float]:
        """Accelerated projected gradient steps from y, and the curvature that they have seen."""
        steps = int(max(5, min(steps, self.allowed - self.work)))
        found = solve_from(self.problem, x, self.tree_y(y), curvature=curvature, tol=max(tol, 1e-300), max_steps=steps)
        self.work += found.steps
        return flat(found.y), max(found.curvature, 1e-300)

    def damped(self, x: Vector, constraint: Any, y: Tensor, eta: float, curvature: float, steps: int) -> Tensor:
        """Damped fixed-point steps of a smoothed lower level, for which no objective is at hand."""
        damping = min(1.0, 1.0 / (curvature * eta))
        for _ in range(steps):
            slope = self.at(x, y).slope
            y = y + damping * (self.project(constraint, y - eta * slope) - y)
        return y

    def at(self, x: Vector, y: Tensor) -> LowerPoint:
        self.work += self.price
        lin = self.problem.linearize(x, self.tree_y(y))
        return LowerPoint(y, lin, float(lin.lower_value), flat(lin.lower_grad_y))

    def _draws(self, count: int) -> Vector:
        """Antithetic standard normal vectors, always the same."""
        half = torch.randn(count // 2, self.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        return self.tree_y(torch.cat([half, -half]).to(self.device))


def flat(tree: Vector) -> Tensor:
    """All entries as one flat tensor without a graph."""
    parts = [u.detach().reshape(-1) for u in leaves(tree)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def rows(tree: Vector) -> Tensor:
    """A stack of vectors as the rows of a matrix in float64."""
    parts = [u.detach().flatten(1) for u in leaves(tree)]
    return (parts[0] if len(parts) == 1 else torch.cat(parts, 1)).double()


def like_flat(values: Tensor, template: Vector) -> Vector:
    """A flat vector, or a stack of them, in the form of a template."""
    if not isinstance(template, dict):
        return values.reshape((*values.shape[:-1], *template.shape)).to(template.dtype)
    parts = values.split([u.numel() for u in template.values()], dim=-1)
    pairs = zip(parts, leaves(template), strict=True)
    return like(template, [part.reshape((*values.shape[:-1], *u.shape)).to(u.dtype) for part, u in pairs])
