"""Double loops: the lower level is solved again for each x, and a step of x is accepted or rejected.

    y_k ~ y*(x_k), from y_{k-1};      h_k ~ grad F(x_k);      x_{k+1} = P_X(x_k - step_k h_k)

With step_rule="fixed" every step is accepted. With "adaptive" (after Pedregosa 2016, section 5) a trial step is
accepted if f(x, y(x)) decreases by 0.1 |dx|^2 / step, up to the error due to inexact lower levels, and the next step is
longer; otherwise the trial is rejected and the step is halved.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch

from .. import tolerances
from .._checks import Settings
from .._projected_gradient import safe_step
from ..errors import IncompatibleError
from ..hypergradients import Hypergradient
from ..linearization import Linearization
from ..lower import solve_near
from ..problem import Problem
from ..random import Seeds
from ..spaces import Vector, leaves
from .base import State, batch_of, estimate_curvature, like_x, like_y, upper_move

GROWTH, SHRINK, DECREASE = 1.5, 0.5, 0.1
LARGEST_GROWTH = 1e6
"""Adaptive steps grow to at most this multiple of the first one: at a stationary point every trial is accepted."""


@dataclass(kw_only=True, repr=False)
class DoubleLoopState(State):
    """The state of `Approx`, `Implicit` and `IGAL`."""

    gradient: Any = like_x(default=None)  # h at (x, y)
    adjoint: Any = like_y(reset="none", default=None)  # w, warm start of the linear solve
    slope: Any = like_y(reset="none", default=None)  # grad_y g(x, y), where it will be needed
    value: float = math.nan  # f(x, y)
    slack: float = math.inf  # how far value may be from F(x)
    tolerance: float = math.inf  # at which y was solved
    upper_step: float = math.nan
    curvature: float = math.nan  # L
    stats: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Arrival:
    """The lower level at one x: the linearisation at its y, the residual there, the tolerance, L and the cost."""

    lin: Linearization
    residual: float
    tolerance: float
    curvature: float
    stats: dict[str, float]

    def hidden_change(self, adjoint: Vector) -> float:
        """How far f(x, y) may be from F(x) when y is solved to `residual`: (|w| + |f_y|/L) residual, to first order.

        With T(y) = P_Y(y - grad_y g/L), y - y* = [I - T']^{-1} (y - T(y)) and |y - T(y)| <= residual/L, so that
        f_y . (y - y*) <= |u| residual/L with u = f_y + (I - G_yy/L) L w. Here |w| carries the 1/mu of an
        ill-conditioned g, exactly in the directions in which f feels it.
        """
        norm = self.lin.problem.y_space(self.lin.constraint).norm
        return (float(norm(adjoint)) + float(norm(self.lin.upper_grad_y)) * safe_step(self.curvature)) * self.residual


@dataclass(frozen=True, kw_only=True)
class DoubleLoop(Settings, ABC):
    """The loop; a method adds its settings, `arrive` and `derivative`."""

    state_class: ClassVar[type[DoubleLoopState]] = DoubleLoopState

    upper_step: float = 1.0
    step_rule: Literal["adaptive", "fixed"] = "adaptive"
    refresh: int = 100

    def init(self, problem: Problem, x: Vector, y: Vector, seeds: Seeds) -> Any:
        """The lower level solved, and the hypergradient, at the start."""
        if self.step_rule == "adaptive" and problem.sampler is not None:
            raise IncompatibleError(
                f"{type(self).__name__}(step_rule='adaptive') compares values of f from step to step, which is not "
                "possible with batches: use step_rule='fixed' with a problem that has a sampler"
            )
        state = self.state_class(x=x, y=y, seeds=seeds, upper_step=self.upper_step)
        return self.settle(state, self.arrive(problem, state, x, 0), accepted=True)

    @abstractmethod
    def arrive(self, problem: Problem, state: Any, x: Vector, k: int, *, again: bool = False) -> Any:
        """Solve the lower level at x, starting from the last y; return an `Arrival`."""

    @abstractmethod
    def was_flattered(self, state: Any, arrival: Any) -> bool:
        """Whether the old point was solved less exactly than the new one: it is then solved again and compared."""

    @abstractmethod
    def derivative(self, state: Any, arrival: Any) -> Hypergradient:
        """The hypergradient h at the new point."""

    def next_x(self, problem: Problem, state: Any) -> Vector:
        """The x of the next trial step."""
        return upper_move(problem, state.x, state.gradient, state.upper_step)

    def step(self, problem: Problem, state: Any) -> Any:
        """One trial step of x; the adaptive rule may reject it."""
        x, x_space, k = self.next_x(problem, state), problem.x_space, state.step + 1
        new = replace(state, step=k)
        there, here = self.arrive(problem, new, x, k), None
        accepted = True
        if self.step_rule == "adaptive":
            slack = state.slack + there.hidden_change(state.adjoint) + rounding(there.lin)
            moved = float(x_space.norm(x_space.add(x, state.x, -1.0)))
            value, enough = float(there.lin.upper_value), DECREASE * moved * moved / state.upper_step
            accepted = state.value - value >= enough - slack
            if not accepted and self.was_flattered(state, there):
                here = self.arrive(problem, new, state.x, k, again=True)
                accepted = float(here.lin.upper_value) - value >= enough - rounding(there.lin)
            longer = min(state.upper_step * GROWTH, LARGEST_GROWTH * self.upper_step)
            new.upper_step = longer if accepted else state.upper_step * SHRINK
        if accepted:
            return self.settle(new, there, accepted=True)
        if here is not None:
            return self.settle(new, here, accepted=False)
        new.stats = {**state.stats, "accepted": 0.0}
        return new

    def settle(self, state: Any, arrival: Any, *, accepted: bool) -> Any:
        """The state at the new point, with its hypergradient."""
        lin, found = arrival.lin, self.derivative(state, arrival)
        state.x, state.y, state.value = lin.x, lin.y, float(lin.upper_value)
        state.gradient, state.adjoint = found.gradient, found.adjoint
        state.tolerance, state.curvature = arrival.tolerance, arrival.curvature
        state.slack = arrival.hidden_change(found.adjoint)
        state.stats = {"accepted": float(accepted), **arrival.stats, **found.stats}
        return state


@dataclass(frozen=True, kw_only=True)
class ToleranceLoop(DoubleLoop):
    """Double loops that solve the lower level of step k to a tolerance eps_k; a method adds `derivative`."""

    newton: ClassVar[bool] = True
    """Whether Newton steps may be used to reach the tolerance, or projected gradients only, as published."""

    lower_step: float | Literal["auto"] = "auto"
    inner: Literal["accelerated", "plain"] = "accelerated"
    inner_steps: int = 10_000
    linear_steps: int = 1000

    @abstractmethod
    def tolerance_at(self, k: int) -> float:
        """eps_k, never below the tolerance of the dtype."""

    def arrive(self, problem: Problem, state: Any, x: Vector, k: int, *, again: bool = False) -> Arrival:
        """y*(x) to tolerance eps_k."""
        batch, y, curvature = batch_of(problem, state.streams(k)), state.y, state.curvature
        if problem.moving:
            y = problem.project(problem.constraint_at(x), y)
        if k % self.refresh == 0:
            lin = problem.linearize(x, y, batch)
            curvature = estimate_curvature(lin, state, k, self.refresh, self.lower_step)
        tol = max(self.tolerance_at(k), tolerances.lower_residual(leaves(y)[0].dtype))
        accelerated = self.inner == "accelerated"
        solved = solve_near(
            problem, x, y, curvature=curvature, tol=tol, max_steps=self.inner_steps, accelerated=accelerated,
            newton=self.newton and accelerated, batch=batch, slope=state.slope if again else None,
        )  # fmt: skip
        stats = {"inner_steps": float(solved.steps), "inner_residual": solved.residual}
        return Arrival(problem.linearize(x, solved.y, batch), solved.residual, tol, solved.curvature, stats)

    def was_flattered(self, state: Any, arrival: Arrival) -> bool:
        return arrival.tolerance < state.tolerance


def rounding(lin: Linearization) -> float:
    """The error of f due to rounding."""
    return 10.0 * torch.finfo(leaves(lin.y)[0].dtype).eps * abs(float(lin.upper_value))
