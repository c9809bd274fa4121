"""`minimize` and `iterate`: one solver on one problem, as a stage of a run."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from .._checks import check_fits, check_number, check_problem, check_set_only, check_solver_object, check_start
from .._derivative_check import warn_of_flaws
from .._fingerprint import fingerprint
from .._moving_sets import MovingSetRewrite, rewrite_moving_set
from .._projected_gradient import residual_at
from ..errors import BilevelError, IncompatibleError, InvalidInputError, NonFiniteError
from ..hypergradients import LinearSolve
from ..lower import solve_lower, uncounted
from ..problem import Problem
from ..random import Seeds
from ..solvers import DMLCBO, Solver, State
from ..solvers.base import FIXED_SET, check_compatible, needs_of
from ..spaces import Vector, leaves
from .checkpoint import Checkpoint, Outcome, RunDocument
from .default_solver import choose_solver
from .engine import Callback, Limits, Run, Stage
from .observers import check_logs, checked_callbacks, named_logs
from .problem_identity import check_same_problem, problem_identity
from .solution import Iterate, Plan, Record, Solution, Status, document_of
from .stopping import (
    SHORT,
    SOLVED,
    ends_above_start,
    falls_without_end,
    is_certified,
    lower_is_solved,
    no_descent_near,
    stationarity_of,
)

SAME_PROBLEM = 1e-3
"""A run is resumed only if f(x, y) has its former value, up to this relative change."""
SAME_ARITHMETIC = "the same arithmetic gave other bits there: use processors, libraries and threads of one kind"
NEARLY = 0.1
"""What tol is relative to is seen only where a projected step 1/L moves y by at most this fraction of |y|."""
POLISHING_STEPS = 50
"""Lower-level steps before f is compared in output="best": f at an unconverged y is too optimistic."""


def iterate(
    problem: Problem,
    x0: Vector | None = None,
    y0: Vector | None = None,
    *,
    solver: Solver | None = None,
    seed: int | Seeds = 0,
) -> Iterator[Any]:
    """Iterate over the states of an endless run, one per step, for your own training loop.

    Parameters
    ----------
    problem, x0, y0, solver, seed
        As in `minimize`.

    Yields
    ------
    State
        x, y and the other variables of the solver after each step. A solver may reuse its tensors: copy any that you
        keep.

    Examples
    --------
    >>> import bilevel, torch
    >>> problem = bilevel.Problem(upper=lambda x, y: (y - 1).square().sum(), lower=lambda x, y: (y - x).square().sum())
    >>> for state in iterate(problem, torch.zeros(2), torch.zeros(2)):
    ...     if state.step == 300:
    ...         break
    >>> bool((state.x - 1).abs().max() < 0.05)
    True
    """
    check_problem(problem)
    check_solver_object(solver, auto=False)
    stage = SolverStage(problem, Plan(solver=solver or DMLCBO()), Seeds.from_seed(seed))
    stage.start(x0, y0)
    state = stage.init()
    while True:
        state = stage.step(state)
        yield stage.view(state)


def minimize(
    problem: Problem,
    x0: Vector | None = None,
    y0: Vector | None = None,
    *,
    solver: Solver | Literal["auto"] | None = "auto",
    steps: int | None = None,
    seed: int | Seeds = 0,
    evaluate_every: int | None = None,
    seconds: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
    tol: float | None = None,
    delta: float | None = None,
    output: Literal["last", "best", "sampled"] | None = None,
    callbacks: Iterable[Callback] = (),
    progress: bool | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
    resume: Solution | State | str | Path | Checkpoint | None = None,
) -> Solution:
    """Solve min_x f(x, y*(x)) with y*(x) = argmin over y in Y of g(x, y).

    Parameters
    ----------
    problem
        f, g and the sets.
    x0, y0
        The starting point: tensors, or dictionaries of tensors, of any shape, projected (with a warning) if outside of
        X or Y. Defaults: `problem.x0` and `problem.y0`. They are not modified.
    solver
        "auto" uses `SmoothedBFGS()` if f and g are deterministic (with a sampler, if all its data can be used at once),
        `BiCGAFFA()` if there are function constraints, and `DMLCBO()` otherwise. `solution.solver` states the choice
        and the reason.
    steps
        The maximal number of steps, 10,000 by default; `SmoothedBFGS` usually ends long before. When resuming: the
        number of further steps, by default the remaining ones; a run that has ended (`Status.finished`) is returned
        unchanged unless steps, tol or delta require more.
    seed
        A number, or `Seeds(...)` to vary one source of randomness at a time. With one thread, the same seed gives the
        same bits on the same machine and torch build.
    evaluate_every
        The number of steps between evaluations (default 100). Every evaluation appends a `Record` to the history and
        calls the callbacks; the start and the end are evaluated too.
    seconds
        Stop, with an evaluation, after the step at which the time spent in steps reaches this limit.
    clock
        Measures the seconds. `time.process_time` counts processor time only, so that other programs do not shorten a
        run.
    tol
        Stop at the first evaluation where the stationarity measure is at most tol times its largest value in the run
        (or times |f_x| + |G_xy w|, the two terms of h), a projected step 1/L moves y by at most tol |y|, and a line
        search along h lowers F by at most tol times its decrease so far. No unit of f, g, x or y enters.
    delta
        With tol: stop instead at the first evaluation at which a `certificate(delta)` is valid, its eps is within tol
        and the lower level is solved to tol, both in the units of the problem. At a stationary kink the hypergradient
        itself never becomes small.
    output
        "last" (the default); "best": the evaluated point with the lowest f after 50 lower-level steps; "sampled": an
        iterate drawn uniformly from all steps, as in the theory.
    callbacks
        Functions of (record, state); a callback that returns a true value ends the run. `CSVFile` and `TensorBoard`
        are ready to use. Methods `begin(history)` and `end()` of a callback, if it has them, are called at the start
        and at the end of the run.
    progress
        Show a progress bar; by default one appears in a terminal when the run takes longer than five seconds.
    checkpoint
        A file for the state of the run, or `Checkpoint(path, every=...)`: written atomically at every evaluation and at
        the end; the previous one is kept. An existing file is an error unless it is resumed.
    resume
        A `Solution`, its state, or a checkpoint (its path or `Checkpoint`) to continue from, instead of x0 and y0.
        `evaluate_every`, `tol` and `output` are then those of the earlier run unless given. If the checkpoint is
        damaged, the previous one is used with a warning.

    Returns
    -------
    Solution
        The point (x, y), the status, the history and the cost of the run.

    References
    ----------
    Shi, Chang & Gu (2024), the paper of DMLCBO, section 2.1. docs/smoothing.md explains the default method.

    Examples
    --------
    >>> import bilevel, torch
    >>> target = torch.tensor([0.5, -0.2])
    >>> problem = bilevel.Problem(
    ...     upper=lambda x, y: (y - target).square().sum(),
    ...     lower=lambda x, y: (y - x).square().sum(),
    ...     constraint=bilevel.sets.L1Ball(radius=1.0),
    ... )
    >>> solution = minimize(problem, torch.zeros(2), torch.zeros(2))
    >>> solution.status.name, [round(v, 2) for v in solution.y.tolist()]
    ('CONVERGED', [0.5, -0.2])
    """
    check_problem(problem)
    ranks = problem.ranks
    with ranks.guard("reading the arguments of minimize"):
        check_solver_object(solver)
        callbacks = checked_callbacks(callbacks)
        if seconds is not None:
            check_number("seconds", seconds)
        if resume is not None and (x0 is not None or y0 is not None):
            raise InvalidInputError("pass either x0 and y0 (a new run) or resume=... (an existing one), not both")
        earlier, place = document_of(resume), None if checkpoint is None else Checkpoint.of(checkpoint)
        check_logs(callbacks, earlier.history if earlier else (), place.files if place else ())
        plan = Plan.settle(
            earlier and (earlier.plan, earlier.state.current), solver=solver, steps=steps, tol=tol, delta=delta,
            output=output, evaluate_every=evaluate_every, logs=named_logs(callbacks),
            checkpoint_every=place.every if place else None,
        )  # fmt: skip
        if plan.delta is not None:
            check_set_only("delta", problem)
            if ranks.size > 1:
                raise InvalidInputError(f"delta={delta!r} is for one process, and there are {ranks.size} ranks")
    ranks.agree({"the arguments of minimize": f"{plan}, seed={seed}"}, "call it alike on every rank")
    identity = earlier.identity if earlier else {}
    with Run(
        "minimize", identity=identity, ranks=ranks, checkpoint=place, resume=earlier, callbacks=callbacks,
        progress=progress,
    ) as run:  # fmt: skip
        with ranks.guard("looking at the start of the run"):
            if plan.solver is None or isinstance(plan.solver, str):
                x0, y0 = check_start(uncounted(problem), x0, y0)
                chosen, choice = choose_solver(problem, x0, y0)
                plan = replace(plan, solver=chosen, choice=choice)
            run.document.plan = plan
            stage = SolverStage(uncounted(problem), plan, Seeds.from_seed(seed))
            point = stage.start(x0, y0) if earlier is None else stage.resume(run.document)
            if place is not None and not run.document.identity:
                run.document.identity = problem_identity(problem, *point)
        goal_is_new = earlier is not None and (plan.tol, plan.delta) != (earlier.plan.tol, earlier.plan.delta)
        if goal_is_new or steps is not None or seconds is not None or not run.document.status.finished:
            run.reopen(stage.name)
        limits = Limits(plan.steps, math.inf if seconds is None else seconds, plan.evaluate_every, clock)
        return stage.solution(run, run.do(stage, limits), problem)


class SolverStage(Stage):
    """The steps of a solver; a set that moves with x is rewritten for solvers that need a fixed one.

    Parameters
    ----------
    problem
        The problem, whose costs count the operations of the steps.
    plan
        The solver, the stopping rule and the output rule.
    seeds
        As in `minimize`.
    """

    name = "minimize"
    record_start = True

    def __init__(self, problem: Problem, plan: Plan, seeds: Seeds) -> None:
        self.problem = problem
        self.plan = plan
        self.solver, self._seeds = plan.solver, seeds
        self._form: MovingSetRewrite | None = None
        self.start_point: tuple[Vector, Vector] | None = None  # of a run that this call begins
        self._terms = 0.0  # |f_x| + |G_xy w|, of which h is the difference, at the last record
        self._flawed = False  # derivatives do not agree with differences: nothing is claimed

    def start(self, x0: Vector | None, y0: Vector | None) -> tuple[Vector, Vector]:
        """Check that the point and the solver fit the problem; return the starting point."""
        x, y = check_start(uncounted(self.problem), x0, y0)
        self._rewrite(x, y)
        if self._form is not None:
            x, y = check_start(uncounted(self.problem), x, self._form.to_fixed(x, y))
        check_compatible(self.solver, self.problem, self.problem.constraint_at(x), y)
        self._flawed = warn_of_flaws(uncounted(self.problem), x, y, stacklevel=4)
        if self.problem.ranks.size > 1:
            parts = zip(leaves(x), self.problem.x_space.flags(x), strict=True)
            whole = {"x0": fingerprint([part for part, divided in parts if not divided]), "y0": fingerprint(y)}
            self.problem.ranks.agree(whole, "start from the same point on every rank")
        self.start_point = x, y
        return x, y

    def resume(self, document: RunDocument) -> tuple[Vector, Vector]:
        """Continue an earlier run; check that its state fits the problem and that f has its recorded value."""
        state = (self.divide(document.state) if document.path else document.state).current
        given = self.problem
        self._rewrite(state.x, state.y)
        if self._form is not None and not document.history:
            raise InvalidInputError(
                "this solver rewrites a set that moves: resume from the Solution, not from its state"
            )
        other = "to start a run of another problem from this point, pass x0=solution.x, y0=solution.y"
        problem = uncounted(self.problem)
        try:
            check_fits(problem, state.x, state.y)
        except BilevelError as error:
            raise IncompatibleError(f"the run to resume does not fit this problem: {error}; {other}") from error
        check_same_problem(given, state.x, state.y, document.identity)
        self._flawed = warn_of_flaws(problem, state.x, state.y, stacklevel=4)
        known = not document.identity or "f" in document.identity  # f gives the same value when it is called again
        if known and document.history and document.history[-1].step == state.step:
            was, now = document.history[-1].upper, float(problem.linearize(state.x, state.y).upper_value)
            if abs(now - was) > SAME_PROBLEM * (abs(was) + abs(now)):
                raise IncompatibleError(
                    f"f(x, y) is {now:.6g} at the point of the run to resume, where it was {was:.6g}: "
                    f"is this the same problem? {other[0].upper()}{other[1:]}"
                )
        return state.x, state.y

    def _rewrite(self, x: Vector, y: Vector) -> None:
        """For solvers that need a fixed set: use the problem in y' if its set is Translated or Scaled by x."""
        self._form = rewrite_moving_set(self.problem, x, y) if FIXED_SET in needs_of(self.solver) else None
        if self._form is not None:
            self.problem: Problem = self._form.problem

    @property
    def counts(self) -> Mapping[str, float]:  # type: ignore[override]
        """The numbers of gradients, products and projections of the steps."""
        return self.problem.costs.as_dict()

    @counts.setter
    def counts(self, counts: Mapping[str, float]) -> None:
        for name in vars(self.problem.costs):
            setattr(self.problem.costs, name, counts.get(name, 0))

    def init(self) -> Iterate:
        assert self.start_point is not None
        return Iterate(current=self.solver.init(self.problem, *self.start_point, self._seeds))

    def step(self, state: Iterate) -> Iterate:
        new = self.solver.step(self.problem, state.current)
        sampled = self._reservoir(new, state.sampled) if self.plan.output == "sampled" else None
        return Iterate(current=new, best=state.best, sampled=sampled, seen=state.seen)

    def _reservoir(self, new: State, sampled: tuple[Vector, Vector] | None) -> tuple[Vector, Vector]:
        """Keep iterate k with probability 1/k: after K steps each of them is kept with probability 1/K."""
        draw = torch.rand((), generator=new.streams().generator("output"), dtype=torch.float64)
        return (new.x, new.y) if sampled is None or float(draw) * new.step < 1.0 else sampled

    def record(self, state: Iterate, seconds: float) -> Record:
        problem, now = uncounted(self.problem), state.current
        if problem.ranks.size > 1:
            problem.ranks.agree({f"the checksum of y after {now.step} steps": fingerprint(now.y)}, SAME_ARITHMETIC)
        lin = problem.linearize(now.x, now.y)
        lower = residual_at(problem, now.x, now.y, slope=lin.lower_grad_y)
        if not math.isfinite(lower):
            raise NonFiniteError(f"the residual of the lower level is {lower}")
        stationarity = residual = math.nan  # with function constraints there is no Jacobian of a projection
        if problem.inequality is None:
            known = getattr(now, "curvature", math.nan)  # L, which decides on faces where y is not yet y*
            curvature = known if known > 0 else None
            measure = LinearSolve(tol=1e-4, max_iterations=200).estimate(lin, now.streams(), curvature=curvature)
            residual = measure.stats["residual"]
            stationarity = stationarity_of(problem, now.x, measure.gradient) if residual <= SOLVED else math.nan
            space, part = problem.x_space, lin.upper_grad_x
            self._terms = float(space.norm(part)) + float(space.norm(space.add(measure.gradient, part, -1.0)))
        contraction = getattr(getattr(self.solver, "hypergradient", None), "contraction", None)
        if self.plan.output == "best" and now.step > 0:
            state.best = self._better(problem, state)
        row = Record(
            step=now.step,
            seconds=seconds,
            upper=float(lin.upper_value),
            lower_residual=lower,
            stationarity=stationarity,
            linear_residual=residual,
            contraction=None if contraction is None else contraction(lin, now.streams()),
            costs=dict(self.counts),
        )
        if stationarity >= 0 and lower_is_solved(problem, now, NEARLY, lower):
            first, steepest = state.seen or (row.upper, 0.0)
            state.seen = first, max(steepest, stationarity)
        return row

    def _better(self, problem: Problem, state: Iterate) -> tuple[float, Vector, Vector]:
        """The lowest f so far, after a few lower-level steps, and its point."""
        now = state.current
        y = solve_lower(problem, now.x, now.y, max_steps=POLISHING_STEPS).y
        value = float(problem.linearize(now.x, y).upper_value)
        return (value, now.x, y) if state.best is None or value < state.best[0] else state.best

    def done(self, state: Iterate) -> bool:
        return bool(state.current.ended)

    def stop(self, state: Iterate, row: Record) -> Status | None:
        if state.current.ended:
            ended = Status[state.current.ended.upper()]
            return Status.STALLED if ended is Status.CONVERGED and self._is_flawed(state) else ended
        tol, delta, problem = self.plan.tol, self.plan.delta, uncounted(self.problem)
        if tol is None or self._flawed:
            return None
        if delta is not None:
            if not row.lower_residual <= tol:
                return None
            found = is_certified(problem, state.current, delta, tol)
            return Status.CERTIFIED if found and not self._is_flawed(state) else None
        first, steepest = state.seen or (row.upper, 0.0)
        size = max(steepest, self._terms)
        if not (row.linear_residual <= SOLVED and row.stationarity <= tol * size):
            return None
        found = lower_is_solved(problem, state.current, tol, row.lower_residual) and no_descent_near(
            problem, state.current, tol, size=size, start=first
        )
        return Status.STATIONARY if found and not self._is_flawed(state) else None

    def _is_flawed(self, state: Iterate) -> bool:
        """Whether derivatives are wrong at the start or here: some mistakes do not show at a start of zeros."""
        now = state.current
        if not self._flawed:
            self._flawed = warn_of_flaws(uncounted(self.problem), now.x, now.y, end=True, stacklevel=6)
        return self._flawed

    def conclude(self, state: Iterate, status: Status, history: Sequence[Record]) -> Status:
        limited = status in (Status.STEPS, Status.TIME)
        if state.current.ended or (limited and state.current.step >= SHORT):
            self._is_flawed(state)
        endless = falls_without_end(uncounted(self.problem), state.current, history)
        if (limited and state.current.falling) or (status.ok and endless):
            return Status.UNFINISHED
        if (limited or status in (Status.STATIONARY, Status.CERTIFIED)) and any(row.diverges for row in history):
            return Status.SERIES_DIVERGES
        if limited and self.problem.inequality is None and history and math.isnan(history[-1].stationarity):
            return Status.UNSOLVED
        above = limited and ends_above_start(uncounted(self.problem), self.start_point, state.current, history)
        return Status.ABOVE_START if above else status

    def describe(self, state: Iterate, row: Record | None) -> str:
        return "" if row is None else f"upper {row.upper:.5g}  lower residual {row.lower_residual:.1e}"

    def view(self, state: Iterate) -> State:
        """A copy of the solver's state with y in the user's set; a callback may modify it."""
        now = copy.deepcopy(state.current)
        return now if self._form is None else replace(now, y=self._form.from_fixed(now.x, now.y))

    def result(self, state: Iterate) -> dict[str, Vector]:
        choose = getattr(self.solver, "result", None)
        if choose is None or self.plan.output != "last":
            x, y = state.output(self.plan.output)
        else:
            x, y = choose(uncounted(self.problem), state.current)
        return {"x": x, "y": y if self._form is None else self._form.from_fixed(x, y)}

    def solution(self, run: Run, outcome: Outcome, problem: Problem) -> Solution:
        """The result of a run, with tensors of its own."""
        state, result = copy.deepcopy((outcome.state, outcome.result))
        solution = Solution(replace(run.document, state=state, result=result, path=None), problem, outcome.message)
        if not (outcome.message or solution.status.ok):
            solution.message = str(run)
        solution.message = ". ".join(filter(None, (solution.message, state.current.remark)))
        return solution

    # --- on several ranks -------------------------------------------------------------------------------------------

    def gather(self, value: Any) -> Any:
        return self._moved(value, partial(self.problem.x_space.map_divided, self.problem.ranks.concat))

    def divide(self, value: Any) -> Any:
        """Divide rows as those of `problem.x0` are divided, or evenly without one."""
        space, part, x0 = self.problem.x_space, self.problem.ranks.part, self.problem.x0
        if x0 is None:
            return self._moved(value, partial(space.map_divided, part))
        return self._moved(value, lambda x: space.map_divided(lambda whole, own: part(whole, len(own)), x, x0))

    def _moved(self, value: Any, moved: Callable[[Vector], Vector]) -> Any:
        """A state, or a result, with its divided tensors moved to rank 0 or back."""
        if isinstance(value, dict):
            return {**value, "x": moved(value["x"])}
        best = None if value.best is None else (value.best[0], moved(value.best[1]), value.best[2])
        sampled = None if value.sampled is None else (moved(value.sampled[0]), value.sampled[1])
        return Iterate(current=value.current.map_like_x(moved), best=best, sampled=sampled, seen=value.seen)
