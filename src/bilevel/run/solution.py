"""The arguments of a run of `minimize` and its result: the point, the status, the cost and the history."""

from __future__ import annotations

import copy
import math
import re
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .._checks import Settings, check_count
from .._fingerprint import fingerprint
from ..errors import IncompatibleError, InvalidInputError, InvalidTypeError
from ..solvers import DMLCBO, SmoothedBFGS, State
from ..solvers.smoothed_bfgs import SmoothedBFGSState
from ..spaces import Vector
from ._serialization import is_vector, serializable

if TYPE_CHECKING:
    from ..diagnostics import Certificate
    from .checkpoint import RunDocument

STEPS, EVALUATE_EVERY = 10_000, 100
"""The default number of steps of a run, and of steps between its evaluations."""


@serializable
class Status(Enum):
    """The reason why a run ended, with cause and remedy.

    Examples
    --------
    >>> print(Status.STEPS)
    all steps were taken
    """

    RUNNING = "the run is in progress, or was killed after this was written; resume continues it"
    STEPS = "all steps were taken"
    TIME = "the time limit was reached; resume continues the run with a new limit"
    STATIONARY = (
        "the hypergradient and the lower-level residual are both within tol, relative to their sizes, and F falls no "
        "further along directions that were tried"
    )
    CERTIFIED = (
        "a certificate of (delta, eps)-stationarity with eps within tol was found, with the lower level solved to tol; "
        "where several kinks meet, F itself may still decrease (erratum 11): goldstein_measure tests F"
    )
    CONVERGED = (
        "F decreases no further: no descent, exact or smoothed, and no direction that was tried lowers it by more than "
        "tol times its decrease so far"
    )
    STALLED = (
        "no descent lowers F by much any more, but the point was not verified to be stationary (F decreases in a "
        "direction that was tried, rounding hides changes of F, g is not convex in y, or a derivative is wrong); the "
        "best point is returned, and another x0 or seed may lead further"
    )
    UNFINISHED = (
        "the run ended while F was still decreasing; resume=solution with more steps or seconds continues it; where F "
        "has no minimum, as when |x| grows without end, x needs bounds"
    )
    STOPPED = "a callback ended the run"
    INTERRUPTED = "interrupted from the keyboard; the last complete step is returned, resume=solution continues it"
    SERIES_DIVERGES = (
        "the run ended, but eta is at or beyond 2/L on the face, where the Neumann series diverges and its "
        'partial sums are no hypergradient: use eta="auto", a smaller eta, or LinearSolve()'
    )
    UNSOLVED = (
        "the run ended at a point where the hypergradient is unknown (|h| = nan): its linear system was not solved, "
        "because g has too little or negative curvature in y; add for example 1e-3 * y.square().sum() to g"
    )
    ABOVE_START = (
        "F is higher at the end of the run than at its start: use smaller steps or the default solver, and check that "
        "g is strongly convex in y"
    )
    DIVERGED = (
        "the next step would not be finite; the last finite state is returned: lower upper_step or lower_step, "
        "check f and g for overflow, and that g is strongly convex in y"
    )
    FAILED = (
        "a part of the next step failed, see solution.message; the last complete step is returned, "
        "and resume=solution continues from it"
    )

    @property
    def ok(self) -> bool:
        """Whether the run ended as planned."""
        without_claim = (Status.UNFINISHED, Status.SERIES_DIVERGES, Status.UNSOLVED, Status.ABOVE_START)
        return self.finished and self not in without_claim

    @property
    def finished(self) -> bool:
        """Whether the run reached its end: resuming returns it unchanged."""
        return self not in (Status.RUNNING, Status.INTERRUPTED, Status.DIVERGED, Status.FAILED)

    def __str__(self) -> str:
        return self.value


@serializable
@dataclass(frozen=True, kw_only=True)
class Plan(Settings):
    """The arguments of a run of `minimize` that are needed to resume it, in addition to its state.

    Parameters
    ----------
    steps
        The last step of the run.
    evaluate_every, tol, delta, output
        As in `minimize`.
    solver
        The solver; in a file, its text if it is not one of the library and cannot be stored.
    choice
        Why solver="auto" chose this solver.
    logs
        The log files of the run, each with its kind: see `named_logs`.
    checkpoint_every
        As in `Checkpoint`.
    """

    steps: int = STEPS
    evaluate_every: int = EVALUATE_EVERY
    tol: float | None = None
    delta: float | None = None
    output: Literal["last", "best", "sampled"] = "last"
    solver: Any = field(default=None, metadata={"or_text": True})
    choice: str = ""
    logs: dict[str, str] = field(default_factory=dict)
    checkpoint_every: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delta is not None and self.tol is None:
            raise InvalidInputError(
                f"delta={self.delta!r} needs tol: the run stops when the certificate's eps is within tol"
            )

    @classmethod
    def settle(cls, earlier: tuple[Plan, State] | None, **arguments: Any) -> Plan:
        """Replace the arguments of the earlier run, from whose state this one continues, by those that are not None."""
        arguments = {name: value for name, value in arguments.items() if value is not None}
        if earlier is None:
            return cls(**arguments)
        old, state = earlier
        if "steps" in arguments:
            arguments["steps"] = check_count("steps", arguments["steps"]) + state.step
        arguments["logs"] = {**old.logs, **arguments["logs"]}
        new = replace(old, **{"steps": max(old.steps, state.step), **arguments})
        if new.output != old.output and "sampled" in (new.output, old.output):
            raise InvalidInputError(
                f'output="sampled" cannot resume a run with output="{old.output}": its iterates were not stored'
            )
        return replace(new, solver=_same_solver(old.solver, arguments.get("solver"), state))

    def __str__(self) -> str:
        """The arguments in which all ranks must agree."""
        return _without_addresses(repr(self))


def _same_solver(old: Any, solver: Any, state: State) -> Any:
    """The solver of the run to resume, or an equal one."""
    if solver is None or isinstance(solver, str):
        if isinstance(old, str):
            raise InvalidInputError(f"the run to resume used {old}: pass it as solver=...")
        default = SmoothedBFGS() if isinstance(state, SmoothedBFGSState) else DMLCBO()
        return default if old is None else old
    was, now = str(old).partition("(")[0], type(solver).__name__
    if old is not None and was != now:
        raise IncompatibleError(
            f"a run of {was} cannot be continued by {now}, whose state differs: "
            "start a new run with x0=solution.x, y0=solution.y"
        )
    if old is not None and (other := _other_setting(old, solver)):
        raise IncompatibleError(
            f"the run to resume used other settings of {was}: {other}; pass the same solver=..., or start a new run "
            "from its point with x0=solution.x, y0=solution.y"
        )
    return solver


def _other_setting(old: Any, solver: Any) -> str:
    """Describe the first setting that differs from the solver of the run (which is a text if it was not stored)."""
    if isinstance(old, str) or not is_dataclass(old):
        was, now = (_without_addresses(each) for each in (old, solver))
        return "" if was == now else f"{was} then, {now} now"
    pairs = [(part.name, getattr(old, part.name), getattr(solver, part.name, None)) for part in fields(old)]
    return next((f"{name} was {a!r} and is {b!r}" for name, a, b in pairs if fingerprint(a) != fingerprint(b)), "")


def _without_addresses(value: Any) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


@serializable
@dataclass(frozen=True, kw_only=True)
class Record:
    """One evaluation of a run.

    Parameters
    ----------
    step
        Steps taken so far.
    seconds
        Time spent in steps so far; evaluations are not counted.
    upper
        f(x, y) at the current, possibly unconverged y (compare `upper_value` for F).
    lower_residual
        |y - P_Y(y - grad_y g)|.
    stationarity
        |h| by a linear solve at (x, y), or |x - P_X(x - h)| when x has a set; NaN with
        function constraints, and when the linear system could not be solved.
    linear_residual
        The relative residual of the linear system of `stationarity`.
    contraction
        For Neumann series: the factor by which its terms grow (at least 1: the series diverges); otherwise None.
    costs
        Gradients, products and projections so far.

    Examples
    --------
    >>> import bilevel, torch
    >>> problem = bilevel.Problem(lambda x, y: (y - 1).square().sum(), lambda x, y: (y - x).square().sum())
    >>> solution = bilevel.minimize(problem, torch.zeros(2), torch.zeros(2), solver=bilevel.DMLCBO(), steps=300)
    >>> last = solution.history[-1]
    >>> last.step, last.upper < solution.history[0].upper, last.costs["upper_gradients"] >= 300
    (300, True, True)
    """

    step: int
    seconds: float
    upper: float
    lower_residual: float
    stationarity: float
    linear_residual: float = math.nan
    contraction: float | None = None
    costs: dict[str, Any] = field(default_factory=dict)

    @property
    def diverges(self) -> bool:
        """Whether the Neumann series of the method diverged here."""
        return self.step > 0 and self.contraction is not None and self.contraction >= 1.0 - 1e-9


@serializable
@dataclass(kw_only=True)
class Iterate:
    """The state of a run of `minimize`: the state of its solver, and the iterates that the output rule stores."""

    current: State
    best: tuple[float, Vector, Vector] | None = None  # f after polishing, x, y
    sampled: tuple[Vector, Vector] | None = None
    seen: tuple[float, float] | None = field(default=None, metadata={"later": True})
    # the first f and the largest |h| where the lower level was solved

    @property
    def step(self) -> int:
        return self.current.step

    def is_finite(self) -> bool:
        return self.current.is_finite()

    def output(self, rule: str) -> tuple[Vector, Vector]:
        """The point chosen by the output rule."""
        if rule == "best" and self.best is not None:
            return self.best[1:]
        return self.sampled if rule == "sampled" and self.sampled is not None else (self.current.x, self.current.y)


@dataclass(eq=False)
class Solution:
    """The result of `minimize`.

    Parameters
    ----------
    document
        The run, as stored in a file.
    problem
        The problem that was solved, for `certificate`; not saved, so None after `load`.
    message
        The message of the error (`Status.FAILED`), and the file with the last good state if the run has a checkpoint
        and did not end as planned; empty otherwise.

    Examples
    --------
    >>> import bilevel, torch
    >>> problem = bilevel.Problem(lambda x, y: (y - 1).square().sum(), lambda x, y: (y - x).square().sum())
    >>> solution = bilevel.minimize(problem, torch.zeros(2), torch.zeros(2))
    >>> solution.status.name, solution.status.ok, solution.history[-1].upper < 1e-6
    ('CONVERGED', True, True)
    """

    document: RunDocument
    problem: Any = None
    message: str = ""

    @property
    def x(self) -> Vector:
        """The point, of the shape of x0, chosen by the output rule ("last", "best" or "sampled")."""
        return self.document.result["x"]

    @property
    def y(self) -> Vector:
        """The lower variable there, of the shape of y0."""
        return self.document.result["y"]

    @property
    def state(self) -> Any:
        """The last state of the solver, from which `minimize(problem, resume=solution, ...)` continues."""
        return self.document.state.current

    @property
    def history(self) -> list[Record]:
        """One `Record` per evaluation; the first one belongs to the start."""
        return self.document.history

    @property
    def plan(self) -> Plan:
        """The arguments of the run."""
        return self.document.plan

    @property
    def status(self) -> Status:
        """Why the run ended; `str(status)` explains."""
        return self.document.status

    @property
    def stats(self) -> dict[str, float]:
        """Counts of gradients, products and projections; seconds; steps; `series_diverged`: at how many evaluations
        the Neumann series diverged.
        """
        return {
            "steps": self.document.state.step,
            "seconds": self.document.seconds,
            "series_diverged": sum(record.diverges for record in self.history),
            **self.document.counts,
        }

    @property
    def output(self) -> str:
        """The output rule that chose x and y."""
        return self.plan.output

    @property
    def solver(self) -> str:
        """The solver and its settings as text, with the reason if the solver was chosen automatically."""
        return f"{self.plan.solver}{self.plan.choice and f', chosen since {self.plan.choice}'}"

    def rows(self) -> list[dict[str, float | None]]:
        """The history as flat rows, ready for a data frame or a CSV writer."""
        return [record_values(record) for record in self.history]

    def certificate(self, delta: float, *, problem: Any = None, **settings: Any) -> Certificate:
        """(delta, eps)-stationarity of x: see `bilevel.certificate`; a loaded solution needs the problem again."""
        from ..diagnostics import certificate

        problem = self.problem if problem is None else problem
        if problem is None:
            raise InvalidInputError(
                "a solution from a file does not hold its problem: pass certificate(..., problem=...)"
            )
        return certificate(problem, self.x, delta, self.y, **settings)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write everything to one safetensors file, atomically; `Solution.load` reads it back."""
        return self.identified().save(path, overwrite=overwrite)

    def identified(self) -> RunDocument:
        """The run with values that identify its problem, so that no other problem can resume it."""
        from .problem_identity import problem_identity

        if self.document.identity or self.problem is None:
            return self.document
        document = copy.copy(self.document)
        document.identity = problem_identity(self.problem, self.state.x, self.state.y)
        return document

    @classmethod
    def load(cls, path: str | Path) -> Solution:
        """Read a solution written by `save`, or the checkpoint of a run; nothing is unpickled."""
        from .checkpoint import RunDocument

        return cls.from_document(RunDocument.load(path))

    @classmethod
    def from_document(cls, document: RunDocument) -> Solution:
        """The solution in a file, which must be one of `minimize`."""
        if document.kind != "minimize":
            raise InvalidInputError(f"{document.path} is a run of {document.kind}, which resumes it, not of minimize")
        point = document.result if isinstance(document.result, dict) else {}
        parts = isinstance(document.plan, Plan) and isinstance(document.state, Iterate)
        rows = all(isinstance(record, Record) for record in document.history)
        if not (parts and rows and set(point) == {"x", "y"} and all(map(is_vector, point.values()))):
            raise InvalidInputError(f"{document.path} holds no solution: x, y, a state, a plan and records")
        return cls(document, message=document.message)

    def plot(self, path: str | Path | None = None) -> Any:
        """Upper value, stationarity and lower residual against steps; a matplotlib figure, also saved to `path`."""
        from .plotting import plot_runs

        measures = {"upper": "f(x, y)", "stationarity": "|h|", "lower_residual": "|y - P(y - grad g)|"}
        return plot_runs({"": self.history}, measures, {"step": "step"}, path)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the problem in pickles and copies, because its functions are often lambdas."""
        return {**self.__dict__, "problem": None}

    def __repr__(self) -> str:
        last = ""
        if self.history:
            record = self.history[-1]
            last = (
                f", upper={record.upper:.6g}, |h|={record.stationarity:.2g}, lower residual={record.lower_residual:.2g}"
            )
        return f"Solution(status={self.status.name}, steps={self.stats.get('steps', 0):g}{last})"

    def __str__(self) -> str:
        """The result in one line, then the message of the run, or else what its status means."""
        return f"{self!r}\n{self.message or self.status}"


def record_values(record: Record) -> dict[str, Any]:
    """The numbers of a record by name, those of `costs` among them."""
    values = asdict(record)
    values.update(values.pop("costs"))
    return values


def document_of(resume: Any) -> RunDocument | None:
    """The run to continue, from a `Solution`, a state of a solver or a file."""
    from .checkpoint import Checkpoint, RunDocument

    if resume is None:
        return None
    if isinstance(resume, State):
        state, plan = Iterate(current=resume), Plan(steps=resume.step + STEPS)
        return RunDocument(kind="minimize", plan=plan, stage="minimize", state=state, recorded=resume.step)
    if isinstance(resume, str | Path | Checkpoint):
        return Solution.from_document(Checkpoint.of(resume).load()).document
    if not isinstance(resume, Solution):
        raise InvalidTypeError(
            f"resume must be a Solution, a solver's State or the path of a file, got {type(resume).__name__}"
        )
    return resume.identified()
