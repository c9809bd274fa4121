"""Several solvers on one problem under the same budget of time or of counted work.

Every solver runs as in `minimize`, with about `points` evaluations spread over its budget. At each
evaluation the lower level is solved, warm-started and uncounted, so that methods are compared on F(x) = f(x, y*(x)) and
not on f at their own y, which may be too optimistic. The cost of a run is

    gradients of f + gradients of g + Hessian products + cross products (+ products with h's Jacobian),

each counted as one; projections are counted and shown but not added, since they call neither f nor g (those on
h(x, y) <= 0 do call h, and their products are added).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from .._checks import Settings, check_count, check_object, check_problem, check_start, setting
from ..errors import BilevelError, InvalidInputError, InvalidTypeError, NonFiniteError
from ..hypergradients import LinearSolve
from ..lower import solve_lower, uncounted
from ..problem import Problem
from ..random import RandomStreams, Seeds
from ..solvers import Solver
from ..spaces import Vector
from .checkpoint import Outcome
from .engine import Limits, Run
from .minimize import SolverStage
from .progress import Progress
from .solution import Iterate, Plan, Record, Solution, Status
from .stopping import SOLVED, stationarity_of

ADDED = ("upper_gradients", "lower_gradients", "hessian_products", "cross_products", "inequality_products")
"""The counts that make up the cost of a run."""


@dataclass(frozen=True, kw_only=True)
class Budget(Settings):
    """The budget of each solver; the first limit reached ends its run.

    Parameters
    ----------
    seconds
        Time in its steps, without evaluations.
    cost
        Counted work: gradients of f, gradients of g, Hessian products, cross products, and products with derivatives of
        h, one each. On a problem with n rows one of them is one or two passes over the rows.

    Examples
    --------
    >>> Budget(cost=1000)
    Budget(seconds=inf, cost=1000)
    """

    seconds: float = setting(math.inf, closed="right")
    cost: float = setting(math.inf, closed="right")

    def __post_init__(self) -> None:
        super().__post_init__()
        if math.isinf(self.seconds) and math.isinf(self.cost):
            raise InvalidInputError("a budget needs a limit: Budget(seconds=10) or Budget(cost=1000)")

    def used(self, seconds: float, cost: float) -> float:
        """The fraction of the budget that is used: 1 when a limit is reached."""
        return max(seconds / self.seconds, cost / self.cost)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One evaluation of one solver.

    Parameters
    ----------
    solver
        The name of the solver.
    step, seconds, cost, projections
        The steps, time, cost and projections so far.
    value
        F(x) = f(x, y*(x)), with the lower level solved.
    converged
        Whether the lower level behind `value` was solved to its tolerance.
    hypergradient_norm
        |h|, or |x - P_X(x - h)|, at (x, y*(x)); NaN with function constraints, and when the linear system behind h
        could not be solved.
    lower_residual
        |y - P_Y(y - grad_y g)| at the solver's own y.
    """

    solver: str
    step: int
    seconds: float
    cost: float
    projections: int
    value: float
    converged: bool
    hypergradient_norm: float
    lower_residual: float


@dataclass(kw_only=True)
class Comparison:
    """The result of `compare`: a table, a plot, and the runs themselves.

    Parameters
    ----------
    rows
        Every evaluation of every solver, the start included.
    solutions
        By name: the result of `minimize`, from which a run can be resumed.
    refused
        By name: why a solver did not run.
    failed
        By name: the error that ended a run before its budget.
    budget
        The budget of each solver.

    Examples
    --------
    >>> import bilevel, torch
    >>> problem = bilevel.Problem(lambda x, y: (y - 1).square().sum(), lambda x, y: (y - x).square().sum())
    >>> start = torch.zeros(2).double()
    >>> result = bilevel.compare(
    ...     problem, [bilevel.solvers.ProjectedSOBA()], bilevel.run.Budget(cost=200), x0=start, y0=start
    ... )
    >>> [line["solver"] for line in result.table()], result.refused, result.failed
    (['ProjectedSOBA'], {}, {})
    """

    budget: Budget
    rows: list[Row] = field(default_factory=list)
    solutions: dict[str, Solution] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def of(self, name: str) -> list[Row]:
        """The evaluations of one solver."""
        return [row for row in self.rows if row.solver == name]

    def table(self) -> list[dict[str, Any]]:
        """One line per solver: its last evaluation, its status and the fraction of the budget it used, best F first;
        then the solvers that did not run.
        """
        lines = []
        for name, solution in self.solutions.items():
            last = self.of(name)[-1]
            status = f"failed: {self.failed[name]}" if name in self.failed else solution.status.name.lower()
            lines.append({**asdict(last), "status": status, "used": self.budget.used(last.seconds, last.cost)})
        lines.sort(key=lambda line: (math.isnan(line["value"]), line["value"]))
        for name, reason in self.refused.items():
            empty = {entry.name: None for entry in fields(Row)}
            lines.append({**empty, "solver": name, "status": f"did not run: {reason}", "used": 0.0})
        return lines

    def to_csv(self, path: str | Path) -> Path:
        """Write every evaluation as a row of a CSV file."""
        path = Path(path)
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [entry.name for entry in fields(Row)])
            writer.writeheader()
            writer.writerows(asdict(row) for row in self.rows)
        return path

    def plot(self, path: str | Path | None = None) -> Any:
        """F, hypergradient norm and lower residual against seconds and against cost; a matplotlib figure."""
        from .plotting import plot_runs

        measures = {"value": "F(x)", "hypergradient_norm": "|h|", "lower_residual": "|y - P(y - grad g)|"}
        against = {"seconds": "seconds", "cost": "gradients and products"}
        return plot_runs({name: self.of(name) for name in self.solutions}, measures, against, path)

    def __str__(self) -> str:
        columns = ("solver", "value", "hypergradient_norm", "lower_residual", "cost", "projections", "seconds", "step")
        heads = ("solver", "F(x)", "|h|", "residual", "cost", "projections", "seconds", "steps", "status")
        ran = [line for line in self.table() if line["solver"] in self.solutions]
        cells = [[*(_shown(line[name]) for name in columns), self._status(line)] for line in ran]
        widths = [max(len(row[i]) for row in [list(heads), *cells]) for i in range(len(heads))]
        lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
                 for row in [list(heads), *cells]]  # fmt: skip
        lines += [f"{name} failed: {reason}" for name, reason in self.failed.items()]
        lines += [f"{name} did not run: {reason}" for name, reason in self.refused.items()]
        return "\n".join(lines)

    def _status(self, line: dict[str, Any]) -> str:
        notes = ["failed" if line["solver"] in self.failed else str(line["status"])]
        if line["used"] > 1.05:
            notes.append(f"{line['used']:.3g} times the budget")
        if not line["converged"]:
            notes.append("lower level not solved at the end")
        return ", ".join(notes)


def compare(
    problem: Problem,
    solvers: Mapping[str, Solver] | Iterable[Solver],
    budget: Budget | float,
    *,
    x0: Vector | None = None,
    y0: Vector | None = None,
    points: int = 20,
    seed: int | Seeds = 0,
    lower_steps: int = 2000,
    progress: bool = False,
) -> Comparison:
    """Run solvers on one problem, from one start, under the same budget.

    A solver that does not support the problem, or that ends with an error of any kind, is listed with the reason, and
    the others still run. Ctrl-C ends the comparison and keeps the results so far.

    Parameters
    ----------
    problem
        As in `minimize`.
    solvers
        Solvers by name, or a list of them (named after their classes).
    budget
        `Budget(cost=...)`, `Budget(seconds=...)`, or a number of seconds. A run stops before a step that is expected to
        exceed the budget; only its first two steps may exceed it, and the table then says so.
    x0, y0
        As in `minimize`.
    points
        The approximate number of evaluations; these do not count towards the budget.
    seed
        As in `minimize`, the same for all solvers.
    lower_steps
        The maximal number of steps in which an evaluation solves the lower level.
    progress
        Show a progress bar.

    Returns
    -------
    Comparison
        The table, the runs, and the solvers that could not run or failed, with the reason.

    Examples
    --------
    >>> import bilevel, torch
    >>> problem = bilevel.Problem(
    ...     upper=lambda x, y: (y - 1).square().sum(),
    ...     lower=lambda x, y: (y - x).square().sum(),
    ...     constraint=bilevel.sets.L2Ball(1.0),
    ... )
    >>> result = compare(
    ...     problem,
    ...     {"soba": bilevel.solvers.ProjectedSOBA(), "sigd": bilevel.solvers.SIGD()},
    ...     bilevel.run.Budget(cost=200),
    ...     x0=torch.zeros(2).double(),
    ...     y0=torch.zeros(2).double(),
    ... )
    >>> [line["solver"] for line in result.table()]
    ['soba', 'sigd']
    >>> result.refused["sigd"].split(":")[0]
    'SIGD cannot use set L2Ball(radius=1, center=0)'
    """
    named = _named(solvers)
    budget = budget if isinstance(budget, Budget) else Budget(seconds=budget)
    check_problem(problem)
    check_count("points", points)
    x, y = check_start(uncounted(problem), x0, y0)
    result, seeds = Comparison(budget=budget), Seeds.from_seed(seed)
    with Progress(progress) as bar:
        bar.begin(0.0)
        for number, (name, solver) in enumerate(named.items()):

            def show(row: Row, before: int = number) -> None:
                done = (before + min(budget.used(row.seconds, row.cost), 1.0)) / len(named)
                text = f"{row.solver}  upper {row.value:.5g}  lower residual {row.lower_residual:.1e}"
                bar.show(done, f"{100 * done:.0f} %", text)

            stage = _BudgetedStage(problem, Plan(solver=solver), seeds, name, budget, points, lower_steps, show)
            if _add_run(result, stage, x, y) is Status.INTERRUPTED:
                waiting = list(named)[number + 1 :]
                result.refused |= dict.fromkeys(waiting, "interrupted from the keyboard before its turn")
                break
    return result


def _add_run(result: Comparison, stage: _BudgetedStage, x: Vector, y: Vector) -> Status:
    """Run one solver and add its result to the comparison."""
    name = stage.solver_name
    with Run("minimize") as run:
        try:
            stage.start(x, y)
            run.document.plan = stage.plan
            outcome = run.do(stage, Limits(record_every=1))
        except Exception as error:  # of any kind: what the others have done is kept
            text = str(error) if isinstance(error, BilevelError) else f"{type(error).__name__}: {error}"
            if len(stage.rows) < 2:
                result.refused[name] = text
                return Status.FAILED
            state = run.document.state
            outcome = Outcome(stage.result(state), Status.FAILED, text, state)
            run.document.status, run.document.counts = Status.FAILED, dict(stage.counts)
        if not stage.rows:
            result.refused[name] = outcome.message or str(outcome.status)
            return outcome.status
        if outcome.status is Status.FAILED:
            result.failed[name] = f"after {outcome.state.step} steps, {outcome.message}"
        run.document.plan = replace(stage.plan, steps=max(outcome.state.step, 1))
        result.rows += stage.rows
        result.solutions[name] = stage.solution(run, outcome, stage.original)
        return outcome.status


def _evaluated(problem: Problem, x: Vector, y: Vector, lower_steps: int) -> tuple[float, bool, float]:
    """F(x), whether its lower level was solved, and the norm of the hypergradient there."""
    try:
        solved = solve_lower(problem, x, y, max_steps=lower_steps)
    except NonFiniteError:
        return math.inf, False, math.inf
    lin, norm = problem.linearize(x, solved.y), math.nan
    if problem.inequality is None:
        sample = LinearSolve(tol=1e-6, max_iterations=500).estimate(lin, RandomStreams())
        norm = stationarity_of(problem, x, sample.gradient) if sample.stats["residual"] <= SOLVED else math.nan
    return float(lin.upper_value), solved.converged, norm


class _BudgetedStage(SolverStage):
    """The steps of a solver within its budget, with evaluations spread over the budget."""

    def __init__(
        self,
        problem: Problem,
        plan: Plan,
        seeds: Seeds,
        name: str,
        budget: Budget,
        points: int,
        lower_steps: int,
        show: Callable[[Row], None],
    ) -> None:
        super().__init__(uncounted(problem), plan, seeds)
        self.original, self.solver_name, self.rows = problem, name, list[Row]()
        self._budget, self._points, self._lower_steps, self._show = budget, points, lower_steps, show
        self._piece, self._due, self._used = 1, 1, 0.0  # steps between evaluations; the next one; what is spent

    def record(self, state: Iterate, seconds: float) -> Record | None:
        """A record where one is due."""
        if state.step not in (0, self._due):
            return None
        record = super().record(state, seconds)
        now = self.view(state)
        value, converged, norm = _evaluated(uncounted(self.original), now.x, now.y, self._lower_steps)
        costs, seconds = (record.costs, seconds) if state.step else ({}, 0.0)
        row = Row(
            solver=self.solver_name, step=state.step, seconds=seconds, cost=sum(costs.get(name, 0) for name in ADDED),
            projections=costs.get("projections", 0), value=value, converged=converged, hypergradient_norm=norm,
            lower_residual=record.lower_residual,
        )  # fmt: skip
        self.rows.append(row)
        if state.step:
            self._show(row)
        return record

    def stop(self, state: Iterate, row: Record | None) -> Status | None:
        """Stop at the end of the budget; the next evaluation is due after one more part of `points` is used."""
        if row is None:
            return None
        last = self.rows[-1]
        used = self._budget.used(last.seconds, last.cost)
        taken = self._piece + 1 if self._used == 0.0 else self._piece  # the start often costs as much as a step
        each = max((used - self._used) / taken, 1e-9)
        left = math.floor((1.0 - used) / each + 1e-9)
        self._piece = min(left, max(1, round(1.0 / (self._points * each))), 10 * self._piece)
        self._due, self._used = state.step + self._piece, used
        return Status.STEPS if self._piece <= 0 else None


def _named(solvers: Any) -> dict[str, Solver]:
    """Solvers by name; those of a list get the names of their classes, numbered if a class occurs several times."""
    if not isinstance(solvers, Iterable):
        raise InvalidTypeError(f"solvers must be a dictionary of solvers by name, or a list of them, got {solvers!r}")
    pairs = list(solvers.items() if isinstance(solvers, Mapping) else enumerate(solvers))
    if not pairs:
        raise InvalidInputError("solvers is empty: give at least one, for example {'DMLCBO': bilevel.DMLCBO()}")
    for key, solver in pairs:
        check_object(f"solvers[{key!r}]", solver, "bilevel.DMLCBO()", "init", "step")
    if isinstance(solvers, Mapping):
        return dict(solvers)
    kinds = [type(solver).__name__ for _, solver in pairs]
    counts = [kinds[: i + 1].count(kind) for i, kind in enumerate(kinds)]
    names = [kind if count == 1 else f"{kind} {count}" for kind, count in zip(kinds, counts, strict=True)]
    return {name: solver for name, (_, solver) in zip(names, pairs, strict=True)}


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)
