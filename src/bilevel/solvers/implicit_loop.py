"""The double loop of `Approx` and `Implicit`; they differ in how exactly each level is solved.

1. y_k ~ y*(x_k), to tolerance eps_k, from y_{k-1}
2. w_k: [I - (I - eta G_yy) H] q = H f_y to relative tolerance eps_k, w = eta q, from w_{k-1}    (`LinearSolve`)
3. x_{k+1} = P_X(x_k - step (grad_x f - G_xy w_k))
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ..hypergradients import LinearSolve
from ..problem import Linearization, Problem
from ..randomness import Seeds
from ..spaces import Vector
from .base import State, batch_of
from .inner import (
    StepRule,
    check_sampler,
    estimate_curvature,
    hidden_change,
    moved_by,
    rounding,
    solve_to,
    upper_move,
)


class Settings(Protocol):
    """What the loop reads of a solver."""

    @property
    def upper_step(self) -> float: ...
    @property
    def step_rule(self) -> str: ...
    @property
    def lower_step(self) -> float | str: ...
    @property
    def inner(self) -> str: ...
    @property
    def inner_steps(self) -> int: ...
    @property
    def linear_steps(self) -> int: ...
    @property
    def refresh(self) -> int: ...
    def tolerance_at(self, k: int, y: Vector) -> float:
        """eps_k."""
        ...


@dataclass(kw_only=True, repr=False)
class ImplicitState(State):
    """The state of `Approx` and `Implicit`."""

    gradient: Any = None  # h at (x, y)
    adjoint: Any = None  # w, warm start of the linear solve
    slope: Any = None  # grad_y g(x, y)
    value: float = math.nan  # f(x, y)
    tolerance: float = math.inf  # eps at which y was solved
    slack: float = math.inf  # how far value may be from F(x)
    upper_step: float = math.nan
    curvature: float = math.nan
    stats: dict[str, float] = field(default_factory=dict)

    def _begun_anew(self, y: Vector) -> dict[str, Any]:
        return {"adjoint": None, "slope": None}


class _Arrival(NamedTuple):
    lin: Linearization
    curvature: float
    steps: int
    residual: float
    tolerance: float


def init_loop(solver: Settings, problem: Problem, x: Vector, y: Vector, seeds: Seeds) -> ImplicitState:
    """The lower level solved, and the hypergradient, at the start."""
    check_sampler(problem, solver.step_rule, type(solver).__name__)
    state = ImplicitState(x=x, y=y, seeds=seeds, upper_step=solver.upper_step)
    lin = problem.linearize(x, y, batch_of(problem, state.noise(), y))
    state.curvature = estimate_curvature(lin, state, 0, solver.refresh, math.nan, solver.lower_step)
    return _settle(solver, state, _arrive(solver, problem, state, x, 0), accepted=True)


def next_x(problem: Problem, state: Any) -> Vector:
    """Where the next trial step leads."""
    return upper_move(problem, state.x, state.gradient, state.upper_step)


def step_loop(solver: Settings, problem: Problem, state: ImplicitState) -> ImplicitState:
    """One trial step of x; with the adaptive rule it may be taken back."""
    k = state.step + 1
    rule = StepRule(kind=solver.step_rule, first=solver.upper_step)
    x = next_x(problem, state)
    arrival = _arrive(solver, problem, state, x, k)
    lin, slack = arrival.lin, 0.0
    if rule.kind == "adaptive":
        hidden = hidden_change(lin, state.adjoint, arrival.residual, arrival.curvature)
        slack = state.slack + hidden + rounding(lin)
    moved, again = moved_by(problem, x, state.x), None
    accepted = rule.accepts(state.value - float(lin.upper_value), moved, state.upper_step, slack)
    if not accepted and arrival.tolerance < state.tolerance:
        # The old point was solved less exactly, and may have been flattered: solve it as exactly, and compare again.
        again = _arrive(solver, problem, state, state.x, k, slope=state.slope)
        drop = float(again.lin.upper_value) - float(lin.upper_value)
        accepted = rule.accepts(drop, moved, state.upper_step, rounding(lin))
    new = ImplicitState(**{**vars(state), "step": k, "upper_step": rule.following(state.upper_step, accepted)})
    if accepted:
        return _settle(solver, new, arrival, accepted=True)
    if again is not None:
        return _settle(solver, new, again, accepted=False)
    new.stats = {**state.stats, "accepted": 0.0}
    return new


def _arrive(
    solver: Settings, problem: Problem, state: ImplicitState, x: Vector, k: int, slope: Vector | None = None
) -> _Arrival:
    """y*(x) to tolerance eps_k from the last y, and everything about f and g there."""
    batch, y = batch_of(problem, state.noise(k), state.y), state.y
    tol = solver.tolerance_at(k, y)
    if problem.moving:
        y = problem.project(problem.constraint_at(x), y)
    curvature = state.curvature
    if k > 0 and k % solver.refresh == 0:
        lin = problem.linearize(x, y, batch)
        curvature = estimate_curvature(lin, state, k, solver.refresh, curvature, solver.lower_step)
    solved = solve_to(
        problem, x, y, tol=tol, max_steps=solver.inner_steps, curvature=curvature,
        accelerated=solver.inner == "accelerated", batch=batch, slope=slope,
    )  # fmt: skip
    lin = problem.linearize(x, solved.y, batch)
    return _Arrival(lin, solved.curvature, solved.steps, solved.residual, tol)


def _settle(solver: Settings, state: ImplicitState, arrival: _Arrival, *, accepted: bool) -> ImplicitState:
    """The state at the point arrived at, with its hypergradient."""
    method = LinearSolve(tol=min(arrival.tolerance, 0.1), max_iterations=solver.linear_steps)
    sample = method.estimate(arrival.lin, state.noise(), curvature=arrival.curvature, start=state.adjoint)
    state.x, state.y = arrival.lin.x, arrival.lin.y
    state.gradient, state.adjoint, state.slope = sample.gradient, sample.adjoint, arrival.lin.lower_grad_y
    state.slack = hidden_change(arrival.lin, state.adjoint, arrival.residual, arrival.curvature)
    state.value, state.tolerance, state.curvature = (
        float(arrival.lin.upper_value), arrival.tolerance, arrival.curvature,
    )  # fmt: skip
    state.stats = {
        "accepted": float(accepted),
        "inner_steps": float(arrival.steps),
        "inner_residual": arrival.residual,
        **sample.stats,
    }
    return state
