"""The one loop: evaluation, history, early stopping, output rules. Solvers only know how to take a step."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import torch

from .checkpoints import Checkpoint, CheckpointFiles, start_checkpoints
from .checks import check_fits, check_positive, check_problem, check_set_only, check_solver_object, check_start
from .diagnostics import certificate
from .errors import BilevelError, EmptySet, Incompatible, InvalidInput, InvalidType, NotConverged, NotFinite
from .fixed_form import FixedForm, fixed_form
from .hypergradients import LinearSolve
from .lower import lower_residual, solve_lower, uncounted
from .observers import check_logs, named_logs
from .problem import Problem
from .randomness import Seeds
from .solution import OUTPUTS, Record, Solution, Status
from .solvers import DMLCBO, Solver, State
from .solvers.base import FIXED_SET, check_compatible, needs_of
from .spaces import Vector

Callback = Callable[[Record, Any], Any]
Output = Literal["last", "best", "sampled"]

SOLVED = 1e-2
"""A stationarity measure counts only if its linear system was solved to this relative residual."""
SAME_PROBLEM = 1e-3
"""A run is resumed only where f(x, y) is what it was, up to this relative change."""
CERTIFICATE_SAMPLES = 50
"""How many Jacobians a certificate looks at when it decides whether to stop: its eps is a bound with any number."""
STEPS, EVALUATE_EVERY = 10_000, 100
"""The length of a run, and the steps between its evaluations, when nothing else is said."""
POLISHING_STEPS = 50
"""Lower-level steps before f is compared in output="best": f at an unconverged y flatters."""


def iterate(
    problem: Problem,
    x0: Vector | None = None,
    y0: Vector | None = None,
    *,
    solver: Solver | None = None,
    seed: int | Seeds = 0,
) -> Iterator[Any]:
    """The states of a run, one per step and without end, for people who own their training loop.

    Parameters
    ----------
    problem, x0, y0, solver, seed
        As in `minimize`.

    Yields
    ------
    State
        x, y and what the solver carries along, after each step. A solver may reuse its tensors: copy what you keep.

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
    check_solver_object(solver)
    solver = DMLCBO() if solver is None else solver
    x, y = check_start(problem, x0, y0)
    form = _fixed_form(problem, solver, x, y)
    if form is not None:
        for state in iterate(form.problem, x, form.into(x, y), solver=solver, seed=seed):
            yield dataclasses.replace(state, y=form.back(state.x, state.y))
    check_compatible(solver, problem, problem.constraint_at(x), y)
    state = solver.init(problem, x, y, Seeds.of(seed))
    del x, y  # the state has them
    while True:
        state = solver.step(problem, state)
        yield state


def minimize(
    problem: Problem,
    x0: Vector | None = None,
    y0: Vector | None = None,
    *,
    solver: Solver | None = None,
    steps: int | None = None,
    seed: int | Seeds = 0,
    evaluate_every: int | None = None,
    seconds: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
    tol: float | None = None,
    delta: float | None = None,
    output: Output | None = None,
    callbacks: Iterable[Callback] = (),
    progress: bool = False,
    checkpoint: str | Path | Checkpoint | None = None,
    resume: Solution | State | str | Path | Checkpoint | None = None,
) -> Solution:
    """min_x f(x, y*(x)) with y*(x) = argmin over y in Y of g(x, y).

    Parameters
    ----------
    problem
        f, g and the sets.
    x0, y0
        Where to start: tensors, or dictionaries of tensors, of any shape; y0 must lie in Y (defaults `problem.x0` and
        `problem.y0`). They are not changed.
    solver
        Default `DMLCBO()`.
    steps
        How many steps to take, 10,000 by default. When resuming: how many more, by default those that are left; a run
        that has ended (`Status.finished`) is returned as it is, unless steps, tol or delta ask for more.
    seed
        A number, or `Seeds(...)` to vary one source of randomness alone. The same seed gives the same bits on one
        thread of the same machine and torch build.
    evaluate_every
        A `Record` is made, and callbacks are called, every so many steps (100) and at the end; the start is recorded
        too.
    seconds
        Stop, with an evaluation, after the step at which the time spent in steps reaches this limit.
    clock
        Measures the seconds. `time.process_time` counts those of the processor alone, so that a busy machine does not
        shorten a run.
    tol
        Stop at the first evaluation where stationarity and lower residual are both within tol.
    delta
        With tol: stop at the first evaluation with a valid `certificate(delta)` whose eps is within tol, and so is the
        lower level, instead. At a stationary kink the hypergradient itself never becomes small.
    output
        "last" (the default); "best": lowest f after 50 lower-level steps among the evaluations; "sampled": an iterate
        drawn uniformly from all steps, as in the theory.
    callbacks
        Functions of (record, state); one that returns something true ends the run. `CSVFile`, `JSONLines` and
        `TensorBoard` are ready to use; those with `begin` and `end` (see `Observer`) are told of both.
    progress
        Show a progress bar.
    checkpoint
        A file for the state of the run, or `Checkpoint(path, every=...)`: written at every evaluation and at the end,
        complete or not at all; the one before it is kept. An existing file is refused unless it is resumed.
    resume
        A `Solution`, its state, or a checkpoint (its path or `Checkpoint`) to continue from, instead of x0 and y0.
        `evaluate_every`, `tol` and `output` are then those of the earlier run unless given. A damaged checkpoint is
        noticed, and the one before it is used with a warning.

    Returns
    -------
    Solution
        The point (x, y), why the run ended, its history and what it cost.

    References
    ----------
    Shi, Chang & Gu (2024), the paper of DMLCBO, section 2.1 (the problem) and algorithm 1 (the default solver).

    Examples
    --------
    >>> import bilevel, torch
    >>> target = torch.tensor([0.5, -0.2])
    >>> problem = bilevel.Problem(
    ...     upper=lambda x, y: (y - target).square().sum(),
    ...     lower=lambda x, y: (y - x).square().sum(),
    ...     constraint=bilevel.sets.L1Ball(radius=1.0),
    ... )
    >>> solution = minimize(problem, torch.zeros(2), torch.zeros(2), steps=1000)
    >>> solution.status, [round(v, 2) for v in solution.y.tolist()]
    (<Status.STEPS: 'all steps were taken'>, [0.5, -0.2])
    """
    earlier = Checkpoint.of(resume).load() if isinstance(resume, str | Path | Checkpoint) else resume
    plan = earlier.plan if isinstance(earlier, Solution) else {}
    evaluate_every = plan.get("evaluate_every", EVALUATE_EVERY) if evaluate_every is None else evaluate_every
    tol = plan.get("tol") if tol is None else tol
    delta = plan.get("delta") if delta is None else delta
    rule = (earlier.output if isinstance(earlier, Solution) else "last") if output is None else output
    _check_settings(problem, solver, STEPS if steps is None else steps, evaluate_every, tol, rule)
    _check_delta(problem, delta, tol)
    if seconds is not None:
        check_positive("seconds", seconds)
    callbacks = observers = _checked_callbacks(callbacks)
    if not isinstance(earlier, Solution | State | None):
        raise InvalidType(
            f"resume must be a Solution, a solver's State or the path of a file, got {type(earlier).__name__}"
        )
    if resume is not None and (x0 is not None or y0 is not None):
        raise InvalidInput("x0 and y0 go with a new run, resume=... with an old one: pass either")
    if solver is None and isinstance(earlier, Solution) and earlier.solver not in ("", repr(DMLCBO())):
        raise InvalidInput(f"the run to resume used {earlier.solver}: pass it as solver=...")
    solver = DMLCBO() if solver is None else solver
    form = None
    if problem.moving:
        state = earlier.state if isinstance(earlier, Solution) else earlier
        x, y = check_start(uncounted(problem), x0, y0) if state is None else (state.x, state.y)
        form = _fixed_form(problem, solver, x, y)
        if form is not None:
            if isinstance(earlier, State):
                raise InvalidInput(
                    "this solver rewrites a set that moves: resume from the Solution, not from its state"
                )
            callbacks = [_in_terms_of_y(callback, form) for callback in callbacks]
            if earlier is None:
                x0, y0 = x, form.into(x, y)
    places = () if checkpoint is None else Checkpoint.of(checkpoint).files
    check_logs(observers, earlier.history if isinstance(earlier, Solution) else (), places)
    files = start_checkpoints(checkpoint, resume)
    run = _Run(problem, solver, tol, delta, rule, form)
    run.limit, run.clock = math.inf if seconds is None else seconds, clock
    if earlier is None:
        run.start(x0, y0, Seeds.of(seed))
    else:
        run.resume(earlier)
    asked = steps is not None or seconds is not None or tol != plan.get("tol") or delta != plan.get("delta")
    if isinstance(earlier, Solution) and earlier.status.finished and not asked:
        run.ended = earlier.status
    first = run.state.step
    known = plan.get("steps", first if run.ended else first + STEPS)
    last = max(known, first) if steps is None else first + steps
    run.plan = {**plan, "steps": last, "evaluate_every": evaluate_every, "tol": tol, "delta": delta}
    logs = {**plan.get("logs", {}), **named_logs(observers)}
    run.keep(files, logs)
    with _progress_bar(progress, last - first, first) as show:
        try:
            return run.loop([*callbacks, show])
        finally:
            _tell(callbacks, "end")


class _Run:
    """The moving parts of one call of `minimize`."""

    def __init__(
        self,
        problem: Problem,
        solver: Solver,
        tol: float | None,
        delta: float | None,
        output: str,
        form: FixedForm | None = None,
    ) -> None:
        self.given = problem  # as the user wrote it
        self.problem = uncounted(problem if form is None else form.problem)
        self.solver, self.tol, self.delta, self.output, self.form = solver, tol, delta, output, form
        self.files: CheckpointFiles | None = None
        self.plan: dict[str, Any] = {}
        self.history: list[Record] = []
        self.seconds, self.limit, self.clock = 0.0, math.inf, time.perf_counter
        self.series_diverged = 0
        self.best: tuple[float, Vector, Vector] | None = None
        self.sampled: tuple[Vector, Vector] | None = None
        self.state: Any = None
        self.first = 0  # the step of the state that this call was given
        self.ended: Status | None = None  # what an evaluation decided, in this call or before
        self.message = ""

    def start(self, x0: Any, y0: Any, seeds: Seeds) -> None:
        x, y = check_start(uncounted(self.problem), x0, y0)
        check_compatible(self.solver, self.problem, self.problem.constraint_at(x), y)
        began = self.clock()
        self.state = self.solver.init(self.problem, x, y, seeds)
        self.seconds += self.clock() - began

    def resume(self, earlier: Solution | State) -> None:
        if isinstance(earlier, Solution):
            old, new = earlier.solver.split("(")[0], type(self.solver).__name__
            if old not in ("", new):
                raise Incompatible(
                    f"a run of {old} cannot be continued by {new}, whose state differs: "
                    "start it anew with x0=solution.x, y0=solution.y"
                )
            self.history = list(earlier.history)
            self.seconds = float(earlier.stats.get("seconds", 0.0))
            self.series_diverged = int(earlier.stats.get("series_diverged", 0))
            self._set_counts(earlier.stats)
            self._carry_over(earlier)
            earlier = earlier.state
        elif self.output == "sampled":
            raise InvalidInput("resume=state has no sampled iterate to go on from: resume from the Solution instead")
        if earlier is None:
            raise InvalidInput("the solution to resume holds no state: start a run with x0=solution.x, y0=solution.y")
        self.state = earlier
        self._check_same_problem()

    def keep(self, files: CheckpointFiles | None, logs: dict[str, str]) -> None:
        """Write checkpoints to these files, and the names of the logs into them."""
        if files is not None:
            self.plan = {**self.plan, "logs": logs} if logs else self.plan
            about = {**self.plan.get("about", {}), **files.settings.about}
            self.files, self.plan = files, {**self.plan, "checkpoint_every": files.settings.every, "about": about}
            files.step = self.state.step if files.resumed else None

    def _check_same_problem(self) -> None:
        """The state fits the functions and the set, and f has the value that was recorded there."""
        x, y = self.state.x, self.state.y
        other = "to start a run of another problem from this point, pass x0=solution.x, y0=solution.y"
        try:
            check_fits(uncounted(self.problem), x, y)
        except BilevelError as error:
            raise Incompatible(f"the run to resume does not fit this problem: {error}; {other}") from error
        if self.history and self.history[-1].step == self.state.step:
            was, now = self.history[-1].upper, float(uncounted(self.problem).linearize(x, y).upper_value)
            if abs(now - was) > SAME_PROBLEM * (abs(was) + abs(now)):
                raise Incompatible(
                    f"f(x, y) is {now:.6g} at the point of the run to resume, where it was {was:.6g}: "
                    f"is this the same problem? {other[0].upper()}{other[1:]}"
                )

    def _carry_over(self, earlier: Solution) -> None:
        """The best or sampled iterate so far, so that a resumed run ends as an uninterrupted one."""
        x, y = earlier.x, earlier.y
        if self.form is not None:
            y = earlier.plan["inner_y"] if "inner_y" in earlier.plan else self.form.into(x, y)
        if self.output == "sampled":
            if earlier.output != "sampled":
                raise InvalidInput(
                    f'output="sampled" cannot resume a run with output="{earlier.output}": its iterates are gone'
                )
            self.sampled = (x, y)
        if self.output == "best" and earlier.output == "best" and any(record.step > 0 for record in self.history):
            self.best = (float(uncounted(self.problem).linearize(x, y).upper_value), x, y)

    def loop(self, callbacks: list[Callback]) -> Solution:
        self.first, last = self.state.step, self.plan["steps"]
        status = Status.STEPS
        try:
            if self.first == 0 and not self.history:
                self.history.append(self._record())
            _tell(callbacks, "begin", self.history)
            if self.files is not None and self.files.step is None:
                self.files.write(self._snapshot(Status.RUNNING))  # what no file can hold is known before the first step
            if self._evaluation_was_cut_short():
                self._evaluate(callbacks)
            while self.state.step < last and self.ended is None:
                if not self._advance():
                    status = Status.DIVERGED
                    break
                late = self.seconds >= self.limit
                if self._due(self.plan["evaluate_every"]) or late:
                    self._evaluate(callbacks)
                if late and self.ended is None and self.state.step < last:
                    self.ended = Status.TIME
                going_on = self.ended is None and self.state.step < last
                if self.files is not None and going_on and self._due(self.files.settings.every):
                    self.files.write(self._snapshot(Status.RUNNING))
            status = self.ended or status
        except NotFinite:  # a set was handed such a point within a step or an evaluation
            status = Status.DIVERGED
        except (NotConverged, EmptySet) as error:  # a projection, or a set that x moved until nothing was left of it
            if self.state.step == self.first:
                raise  # nothing is lost
            status, self.message = Status.FAILED, str(error)
        except KeyboardInterrupt:
            status = self.ended or Status.INTERRUPTED
        except BaseException as error:  # f, g or a callback failed, or memory ran out: not ours to judge
            self._rescue(error)
            raise
        if status in (Status.STEPS, Status.TIME, Status.STATIONARY, Status.CERTIFIED) and self.series_diverged:
            status = Status.SERIES_DIVERGES
        return self._end(status)

    def _due(self, every: int | None) -> bool:
        """Whether this step ends a period of so many steps (default `evaluate_every`) or the run."""
        return self.state.step % (every or self.plan["evaluate_every"]) == 0 or self.state.step == self.plan["steps"]

    def _evaluation_was_cut_short(self) -> bool:
        """The run that is resumed was stopped between a step and the evaluation that follows it."""
        due = self.ended is None and self._due(self.plan["evaluate_every"])
        return due and bool(self.history) and self.history[-1].step < self.state.step

    def _end(self, status: Status) -> Solution:
        """The solution, which is also the last checkpoint; a run that did not end as planned says where it is."""
        solution = self._snapshot(status)
        if self.files is not None:
            self.files.write(solution)
            if not status.ok:
                solution.message = ". ".join(part for part in (self.message, str(self.files)) if part)
        solution.x, solution.y, solution.state = copy.deepcopy((solution.x, solution.y, solution.state))
        return solution

    def _rescue(self, error: BaseException) -> None:
        """Write the last complete step before an error of others ends the run, and say where it is."""
        if self.files is None or (self.files.step is None and self.state.step == self.first):
            return  # nothing was written, and nothing is lost
        if not self.files.holds(self.state.step):
            self.files.write(self._snapshot(Status.FAILED))
        error.add_note(str(self.files))

    def _advance(self) -> bool:
        """Take one step; the old state and its counts are kept when the new one is not finite or does not come."""
        began, counts, complete = self.clock(), self.problem.costs.as_dict(), False
        try:
            new = self.solver.step(self.problem, self.state)
            finite = self.problem.is_finite(new)
            self.seconds += self.clock() - began
            if finite:
                sampled = self._reservoir(new) if self.output == "sampled" else None
                self.state, self.sampled, complete = new, sampled, True
        finally:
            if not complete:
                self._set_counts(counts)
        return complete

    def _set_counts(self, counts: Mapping[str, float]) -> None:
        for name in self.problem.costs.as_dict():
            setattr(self.problem.costs, name, int(counts.get(name, 0)))

    def _reservoir(self, new: State) -> tuple[Vector, Vector]:
        """Keep iterate k with probability 1/k: after K steps each of them is kept with probability 1/K."""
        draw = torch.rand((), generator=new.noise().generator("output"), dtype=torch.float64)
        return (new.x, new.y) if self.sampled is None or float(draw) * new.step < 1.0 else self.sampled

    def _evaluate(self, callbacks: list[Callback]) -> None:
        """Make a record, judge it, then keep both: an evaluation that is cut short is made again on resuming."""
        record = self._record()
        if self.output == "best":
            self._keep_best()
        stop = self._judged(record, callbacks)
        if record.contraction is not None and record.contraction >= 1.0 - 1e-9:
            self.series_diverged += 1
        self.history.append(record)
        self.ended = stop

    def _judged(self, record: Record, callbacks: list[Callback]) -> Status | None:
        """Whether the run ends here: a callback says so, or the stopping rule."""
        asked = [callback(record, self.state) for callback in callbacks]
        if any(answer is not None and bool(answer) for answer in asked):
            return Status.STOPPED
        if self.tol is not None and self.delta is not None:
            return Status.CERTIFIED if record.lower_residual <= self.tol and self._certified() else None
        solved = record.linear_residual <= SOLVED
        if self.tol is not None and solved and max(record.stationarity, record.lower_residual) <= self.tol:
            return Status.STATIONARY
        return None

    def _certified(self) -> bool:
        """eps and the error of the lower level behind it are within tol."""
        found = certificate(self.problem, self.state.x, self.delta, self.state.y, samples=CERTIFICATE_SAMPLES)  # type: ignore[arg-type]
        return found.valid and max(found.eps, found.lower_error) <= self.tol  # type: ignore[operator]

    def _record(self) -> Record:
        problem, state = uncounted(self.problem), self.state
        lin = problem.linearize(state.x, state.y)
        stationarity = residual = (
            math.nan
        )  # the linear solve needs the Jacobian of a projection: not with function constraints
        if problem.inequality is None:
            measure = LinearSolve(tol=1e-4, max_iterations=200).estimate(lin, state.noise())
            stationarity = stationarity_of(problem, state.x, measure.gradient)
            residual = measure.stats["residual"]
            stationarity = stationarity if residual <= SOLVED else math.nan
        contraction = getattr(getattr(self.solver, "hypergradient", None), "contraction", None)
        return Record(
            step=state.step,
            seconds=self.seconds,
            upper=float(lin.upper_value),
            lower_residual=lower_residual(problem, state.x, state.y),
            stationarity=stationarity,
            linear_residual=residual,
            contraction=None if contraction is None else contraction(lin, state.noise()),
            costs=self.problem.costs.as_dict(),
        )

    def _keep_best(self) -> None:
        problem, state = uncounted(self.problem), self.state
        y = solve_lower(problem, state.x, state.y, max_steps=POLISHING_STEPS).y
        value = float(problem.linearize(state.x, y).upper_value)
        if self.best is None or value < self.best[0]:
            self.best = (value, state.x, y)

    def _snapshot(self, status: Status) -> Solution:
        """The run as it stands; its tensors are those of the run, not copies."""
        x, y, plan = self.state.x, self.state.y, dict(self.plan)
        if self.output == "best" and self.best is not None:
            _, x, y = self.best
        if self.output == "sampled" and self.sampled is not None:
            x, y = self.sampled
        if self.form is not None:
            plan["inner_y"], y = y, self.form.back(x, y)
        stats: dict[str, float] = {
            "steps": self.state.step,
            "seconds": self.seconds,
            "series_diverged": self.series_diverged,
            **self.problem.costs.as_dict(),
        }
        return Solution(
            x=x,
            y=y,
            status=status,
            history=self.history,
            stats=stats,
            state=self.state,
            output=self.output,
            solver=repr(self.solver),
            message=self.message,
            problem=self.given,
            plan=plan,
        )


def _fixed_form(problem: Problem, solver: Solver, x: Vector, y: Vector) -> FixedForm | None:
    """For solvers that need a fixed set: the problem in y' when its set is Translated or Scaled by x; else None."""
    return fixed_form(problem, x, y) if FIXED_SET in needs_of(solver) else None


def _in_terms_of_y(callback: Callback, form: FixedForm) -> Callback:
    """The callback of a run in y', shown y."""

    def translated(record: Record, state: Any) -> Any:
        return callback(record, dataclasses.replace(state, y=form.back(state.x, state.y)))

    for name in ("begin", "end"):
        if hasattr(callback, name):
            setattr(translated, name, getattr(callback, name))
    return translated


def _tell(callbacks: Iterable[Callback], name: str, *arguments: Any) -> None:
    """Call `begin` or `end` of the observers that have it."""
    for callback in callbacks:
        getattr(callback, name, lambda *_: None)(*arguments)


def stationarity_of(problem: Problem, x: Vector, h: Vector) -> float:
    """|x - P_X(x - h)|, which is |h| when x is free."""
    space = problem.x_space
    moved = problem.upper_constraint.project(space.add(x, h, -1.0))
    return float(space.norm(space.add(x, moved, -1.0)))


def _check_settings(problem: Any, solver: Any, steps: Any, evaluate_every: Any, tol: Any, output: Any) -> None:
    check_problem(problem)
    check_solver_object(solver)
    for name, value in (("steps", steps), ("evaluate_every", evaluate_every)):
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise InvalidInput(f"{name} must be an integer of at least 1, got {value!r}")
    if tol is not None:
        check_positive("tol", tol)
    if output not in OUTPUTS:
        raise InvalidInput(f'output must be "last", "best" or "sampled", got {output!r}')


def _check_delta(problem: Problem, delta: Any, tol: Any) -> None:
    if delta is None:
        return
    if tol is None:
        raise InvalidInput(f"delta={delta!r} goes with tol: the run stops when the certificate's eps is within tol")
    check_positive("delta", delta)
    check_set_only("delta", problem)


def _checked_callbacks(callbacks: Any) -> list[Callback]:
    """A list of functions of (record, state)."""
    found = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
    if callable(callbacks) or not all(callable(callback) for callback in found):
        raise InvalidType(f"callbacks must be a list of functions of (record, state), got {callbacks!r}")
    return found


def _progress_bar(wanted: bool, steps: int, start: int) -> Any:
    from .progress import ProgressBar, Silent

    return ProgressBar(max(steps, 1), start) if wanted else Silent()
