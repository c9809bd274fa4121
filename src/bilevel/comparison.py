"""Several solvers on one problem under the same budget of time or of counted work.

Every solver runs through `minimize`, in pieces sized so that about `points` evaluations fall within the budget. At each
evaluation the lower level is solved, warm-started and uncounted, so that methods are compared on F(x) = f(x, y*(x)) and
not on f at their own y, which may flatter. The cost of a run is

    gradients of f + gradients of g + Hessian products + cross products (+ products with h's Jacobian),

each counted as one; projections are counted and shown but not added, since they call neither f nor g (those on
h(x, y) <= 0 do call h, and their products are added).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from .checks import check_start
from .errors import BilevelError, InvalidInput, InvalidType, NotFinite
from .hypergradients import LinearSolve
from .loop import SOLVED, minimize, stationarity_of
from .lower import lower_residual, solve_lower, uncounted
from .problem import Problem
from .randomness import Noise, Seeds
from .solution import Record, Solution, Status
from .solvers import Solver
from .spaces import Vector

ADDED = ("upper_gradients", "lower_gradients", "hessian_products", "cross_products", "inequality_products")
"""The counts that make up the cost of a run."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What each solver may spend; the first limit reached ends its run.

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

    seconds: float = math.inf
    cost: float = math.inf

    def __post_init__(self) -> None:
        for name in ("seconds", "cost"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise InvalidInput(f"{name} must be a positive number, got {value!r}")
        if math.isinf(self.seconds) and math.isinf(self.cost):
            raise InvalidInput("a budget needs a limit: Budget(seconds=10) or Budget(cost=1000)")

    def used(self, seconds: float, cost: float) -> float:
        """The part that is spent: 1 when a limit is reached."""
        return max(seconds / self.seconds, cost / self.cost)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One evaluation of one solver.

    Parameters
    ----------
    solver
        Its name.
    step, seconds, cost, projections
        What it had taken by then.
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
    """What `compare` returns: a table, a picture, and the runs themselves.

    Parameters
    ----------
    rows
        Every evaluation of every solver, the start included.
    solutions
        By name: the result of `minimize`, from which a run can go on.
    refused
        By name: why a solver did not run.
    failed
        By name: the error that ended a run before its budget.
    budget
        What each solver could spend.

    Examples
    --------
    >>> import bilevel, torch
    >>> problem = bilevel.Problem(lambda x, y: (y - 1).square().sum(), lambda x, y: (y - x).square().sum())
    >>> start = torch.zeros(2).double()
    >>> result = bilevel.compare(problem, [bilevel.ProjectedSOBA()], bilevel.Budget(cost=200), x0=start, y0=start)
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
        """One line per solver: its last evaluation, its status and the part of the budget it used, best F first; then
        those that did not run.
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
        from .plotting import plot_comparison

        return plot_comparison({name: self.of(name) for name in self.solutions}, path)

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

    A solver that cannot take the problem is listed with the reason, and so is one that ends with an error, whatever its
    kind: the others run on. Ctrl-C ends the comparison and keeps what there is.

    Parameters
    ----------
    problem
        As in `minimize`.
    solvers
        Solvers by name, or a list of them (named after their classes).
    budget
        `Budget(cost=...)`, `Budget(seconds=...)`, or a number of seconds. A run stops before the step that is expected
        to pass its budget; only its first two steps may be dearer than that, and the table then says so.
    x0, y0
        As in `minimize`.
    points
        About how many evaluations to spread over the budget; they cost nothing of it.
    seed
        As in `minimize`, the same for all.
    lower_steps
        How many steps an evaluation may take to solve the lower level.
    progress
        Show a progress bar.

    Returns
    -------
    Comparison
        The table, the runs, and who could not run or failed, with the reason.

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
    ...     {"soba": bilevel.ProjectedSOBA(), "sigd": bilevel.SIGD()},
    ...     bilevel.Budget(cost=200),
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
    if isinstance(points, bool) or not isinstance(points, int) or points < 1:
        raise InvalidInput(f"points must be an integer of at least 1, got {points!r}")
    if not isinstance(problem, Problem):
        raise InvalidType(f"problem must be a bilevel.Problem, got {type(problem).__name__}")
    x, y = check_start(uncounted(problem), x0, y0)
    result = Comparison(budget=budget)
    evaluate = _Evaluation(problem, lower_steps)
    with _Progress(progress, list(named), budget) as show:
        waiting = dict(named)
        try:
            for name, solver in named.items():
                runner = _Runner(problem, solver, name, budget, points, evaluate)
                del waiting[name]
                try:
                    runner.run(x, y, seed, result, show)
                except Exception as error:  # of any kind: what the others have done is kept
                    shown = str(error) if isinstance(error, BilevelError) else f"{type(error).__name__}: {error}"
                    if runner.solution is None:
                        result.refused[name] = shown
                    else:
                        result.failed[name] = f"after {int(runner.solution.stats['steps'])} steps, {shown}"
                if runner.interrupted:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            for name in waiting:
                result.refused[name] = "interrupted from the keyboard before its turn"
    return result


class _Evaluation:
    """F(x), whether it is one, and the hypergradient norm, at the solved lower level."""

    def __init__(self, problem: Problem, lower_steps: int) -> None:
        self.problem, self.lower_steps = uncounted(problem), lower_steps

    def __call__(self, x: Vector, y: Vector) -> tuple[float, bool, float]:
        problem = self.problem
        try:
            solved = solve_lower(problem, x, y, max_steps=self.lower_steps)
        except NotFinite:
            return math.inf, False, math.inf
        lin = problem.linearize(x, solved.y)
        value = float(lin.upper_value)
        if problem.inequality is not None:
            return value, solved.converged, math.nan
        sample = LinearSolve(tol=1e-6, max_iterations=500).estimate(lin, Noise())
        if not sample.stats["residual"] <= SOLVED:
            return value, solved.converged, math.nan
        return value, solved.converged, stationarity_of(problem, x, sample.gradient)


class _Runner:
    """One solver, in pieces of `minimize` that end with an evaluation."""

    def __init__(
        self, problem: Problem, solver: Solver, name: str, budget: Budget, points: int, evaluate: _Evaluation
    ) -> None:
        self.problem, self.solver, self.name = problem, solver, name
        self.budget, self.points, self.evaluate = budget, points, evaluate
        self.solution: Solution | None = None
        self.interrupted = False

    def run(self, x: Vector, y: Vector, seed: int | Seeds, result: Comparison, show: Callable[[Row], None]) -> None:
        steps, used = 1, 0.0
        while steps > 0 and not self.interrupted:
            before = used
            start: dict[str, Any] = (
                {"x0": x, "y0": y, "seed": seed} if self.solution is None else {"resume": self.solution}
            )
            solution = minimize(self.problem, solver=self.solver, steps=steps, evaluate_every=steps, **start)
            if self.solution is None:
                residual = lower_residual(self.evaluate.problem, x, y)
                result.rows.append(self._row(0, {}, 0.0, x, y, residual))
            self.solution = result.solutions[self.name] = solution
            self.interrupted = solution.status is Status.INTERRUPTED
            if solution.status is Status.FAILED:
                result.failed[self.name] = f"after {int(solution.stats['steps'])} steps, {solution.message}"
            if not solution.history or solution.history[-1].step == result.rows[-1].step:  # ended before an evaluation
                return
            record = solution.history[-1]
            row = self._row(record.step, record.costs, record.seconds, solution.x, solution.y, record.lower_residual)
            result.rows.append(row)
            used = self.budget.used(row.seconds, row.cost)
            show(row)
            if not solution.status.ok and solution.status is not Status.SERIES_DIVERGES:
                return
            steps = self._next(steps, used - before, used)

    def _next(self, steps: int, spent: float, used: float) -> int:
        """As many steps as fill one of the `points` pieces of the budget, and not more than what is left of it."""
        taken = steps + 1 if used == spent else steps  # the start of a run often costs as much as a step
        each = max(spent / taken, 1e-9)
        left = math.floor((1.0 - used) / each + 1e-9)
        return min(left, max(1, round(1.0 / (self.points * each))), 10 * steps)

    def _row(self, step: int, costs: dict[str, int], seconds: float, x: Vector, y: Vector, residual: float) -> Row:
        value, converged, norm = self.evaluate(x, y)
        return Row(
            solver=self.name, step=step, seconds=seconds, cost=sum(costs.get(name, 0) for name in ADDED),
            projections=costs.get("projections", 0), value=value, converged=converged, hypergradient_norm=norm,
            lower_residual=residual,
        )  # fmt: skip


def _named(solvers: Any) -> dict[str, Solver]:
    if isinstance(solvers, Mapping):
        named = dict(solvers)
        keys = [repr(name) for name in named]
    elif isinstance(solvers, Iterable):
        named = {}
        for solver in solvers:
            name = type(solver).__name__
            number = sum(1 for key in named if key == name or key.startswith(f"{name} "))
            named[name if number == 0 else f"{name} {number + 1}"] = solver
        keys = [str(i) for i in range(len(named))]
    else:
        raise InvalidType(f"solvers must be a dictionary of solvers by name, or a list of them, got {solvers!r}")
    if not named:
        raise InvalidInput("solvers is empty: give at least one, for example {'DMLCBO': bilevel.DMLCBO()}")
    for key, solver in zip(keys, named.values(), strict=True):
        if isinstance(solver, type) or not (hasattr(solver, "init") and hasattr(solver, "step")):
            raise InvalidType(f"solvers[{key}] must be an object such as bilevel.DMLCBO(), got {solver!r}")
    return named


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)


class _Progress:
    """The bar of `minimize`, in hundredths of each solver's budget."""

    def __init__(self, wanted: bool, names: list[str], budget: Budget) -> None:
        from .progress import ProgressBar, Silent

        self._names, self._budget = names, budget
        self._bar = ProgressBar(100 * len(names)) if wanted else Silent()

    def __enter__(self) -> Callable[[Row], None]:
        self._bar.__enter__()
        return self._show

    def __exit__(self, *error: Any) -> None:
        self._bar.__exit__(*error)

    def _show(self, row: Row) -> None:
        part = min(1.0, self._budget.used(row.seconds, row.cost))
        done = 100 * self._names.index(row.solver) + max(1, math.floor(100 * part))
        record = Record(
            step=done, seconds=row.seconds, upper=row.value, lower_residual=row.lower_residual,
            stationarity=row.hypergradient_norm,
        )  # fmt: skip
        self._bar(record, None)
