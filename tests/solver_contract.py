"""What every solver must do, as functions to call from a test."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from bilevel import Problem, Seeds, Solution, Status, minimize, upper_value
from bilevel.linearization import Costs
from bilevel.spaces import Vector
from bilevel.testing import KnownProblem


@dataclass(frozen=True)
class KnownRun:
    """A run on a known problem; `gap` is (F(x) - F*) / (F(x0) - F*), F at the solved lower level."""

    solution: Solution
    gap: float


def run_known(known: KnownProblem, solver: Any, steps: int) -> KnownRun:
    """Run a solver on a problem with F* = 0; it must take all steps or converge, and end at a feasible y."""
    solution = minimize(known.problem, known.x0, known.y0, solver=solver, steps=steps, evaluate_every=steps)
    assert solution.status in (Status.STEPS, Status.CONVERGED), solution.status
    member = known.problem.constraint_at(solution.x).contains(solution.y)
    assert member, member.reason
    start, end = (float(upper_value(known.problem, x)) for x in (known.x0, solution.x))
    return KnownRun(solution, end / start)


def assert_reproducible(problem: Problem, x0: Vector, y0: Vector, solver: Any, steps: int = 12) -> None:
    """The same seed gives the same bits and costs, and so does a run that was interrupted and resumed."""
    once, again = (minimize(problem, x0, y0, solver=solver, steps=steps, seed=3, evaluate_every=steps) for _ in "ab")
    half = minimize(problem, x0, y0, solver=solver, steps=steps // 2, seed=3, evaluate_every=steps)
    resumed = minimize(problem, resume=half, solver=solver, steps=steps - steps // 2, evaluate_every=steps)
    for other in (again, resumed):
        assert _same(once.state, other.state)
        for name in Costs().as_dict():
            assert once.stats[name] == other.stats[name], name


def assert_feasible_path(problem: Problem, x0: Vector, y0: Vector, solver: Any, steps: int = 20) -> None:
    """y lies in its set after every step."""
    state = solver.init(problem, x0, y0, Seeds())
    for _ in range(steps):
        state = solver.step(problem, state)
        member = problem.constraint_at(state.x).contains(state.y)
        assert member, (state.step, member.reason)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if is_dataclass(a):
        return all(_same(getattr(a, part.name), getattr(b, part.name)) for part in fields(a) if part.compare)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return a == b or (a != a and b != b)
