"""What a run returns: the point, why it stopped, what it cost and how it went."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import InvalidInput
from .spaces import Vector

if TYPE_CHECKING:
    from .diagnostics import Certificate

OUTPUTS = ("last", "best", "sampled")
"""Which iterate a run returns: see `minimize`."""


class Status(Enum):
    """Why a run ended, with cause and remedy.

    Examples
    --------
    >>> print(Status.STEPS)
    all steps were taken
    """

    RUNNING = "the run goes on, or was killed after this was written; resume continues it"
    STEPS = "all steps were taken"
    TIME = "the time limit was reached; resume continues the run when it is given more"
    STATIONARY = "the hypergradient and the lower-level residual are both within tol"
    CERTIFIED = (
        "a certificate of (delta, eps)-stationarity with eps within tol was found, with the lower level solved to tol; "
        "where several kinks meet, F itself may still descend (erratum 11): goldstein_measure asks F"
    )
    STOPPED = "a callback asked to stop"
    INTERRUPTED = "interrupted from the keyboard; the last complete step is returned, resume=solution continues it"
    SERIES_DIVERGES = (
        "the run ended, but eta is at or beyond 2/L on the face, where the Neumann series diverges and its "
        'partial sums are no hypergradient: use eta="auto", a smaller eta, or LinearSolve()'
    )
    DIVERGED = (
        "the next step would not be finite; the last finite state is returned: lower upper_step or lower_step, "
        "check f and g for overflow, and that g is strongly convex in y"
    )
    FAILED = (
        "a part of the next step failed, and solution.message says which; the last complete step is returned, "
        "and resume=solution goes on from it"
    )

    @property
    def ok(self) -> bool:
        """Whether the run ended as planned."""
        return self in (Status.STEPS, Status.TIME, Status.STATIONARY, Status.CERTIFIED, Status.STOPPED)

    @property
    def finished(self) -> bool:
        """Whether the run came to its end: resuming returns it as it is."""
        return self.ok or self is Status.SERIES_DIVERGES

    def __str__(self) -> str:
        return self.value


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
        How well the linear system behind `stationarity` was solved, relative to its right-hand side.
    contraction
        For Neumann series: the factor by which its terms grow (1 and beyond: diverges); None for other estimators.
    costs
        Gradients, products and projections so far.

    Examples
    --------
    >>> import bilevel, torch
    >>> problem = bilevel.Problem(lambda x, y: (y - 1).square().sum(), lambda x, y: (y - x).square().sum())
    >>> solution = bilevel.minimize(problem, torch.zeros(2), torch.zeros(2), steps=300)
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
    costs: dict[str, int] = field(default_factory=dict)


@dataclass(kw_only=True, eq=False)
class Solution:
    """The result of `minimize`.

    Parameters
    ----------
    x, y
        The point, of the shapes of x0 and y0, chosen by the output rule ("last", "best" or "sampled").
    status
        Why the run ended; `str(status)` explains.
    history
        One `Record` per evaluation, the first of the start.
    stats
        Counts of gradients, Hessian and cross products and projections; seconds; steps; `series_diverged`: at how many
        evaluations the Neumann series diverged.
    state
        The last state, from which `minimize(problem, resume=solution, ...)` continues.
    output
        The output rule that chose x and y.
    solver
        The solver and its settings, as text.
    message
        What the part that failed had to say (`Status.FAILED`), and where the last good state is on the disk when the
        run kept checkpoints and did not end as planned; empty otherwise.
    problem
        The problem that was solved, for `certificate`; not saved, so None after `load`.
    plan
        What resuming needs beside the state: up to which step the run was to go (`steps`), `evaluate_every`, `tol`,
        and the facts given with `Checkpoint(about=...)`.

    Examples
    --------
    >>> import bilevel, torch
    >>> problem = bilevel.Problem(lambda x, y: (y - 1).square().sum(), lambda x, y: (y - x).square().sum())
    >>> solution = bilevel.minimize(problem, torch.zeros(2), torch.zeros(2), steps=300)
    >>> solution.status.name, solution.stats["steps"], [record.step for record in solution.history]
    ('STEPS', 300, [0, 100, 200, 300])
    """

    x: Vector
    y: Vector
    status: Status
    history: list[Record]
    stats: dict[str, float]
    state: Any
    output: str = "last"
    solver: str = ""
    message: str = ""
    problem: Any = None
    plan: dict[str, Any] = field(default_factory=dict)

    def rows(self) -> list[dict[str, float | None]]:
        """The history as flat rows, ready for a data frame or a CSV writer."""
        rows = []
        for record in self.history:
            row = asdict(record)
            row.update(row.pop("costs"))
            rows.append(row)
        return rows

    def certificate(self, delta: float, *, problem: Any = None, **settings: Any) -> Certificate:
        """(delta, eps)-stationarity of x: see `bilevel.certificate`; a loaded solution needs the problem again."""
        from .diagnostics import certificate

        problem = self.problem if problem is None else problem
        if problem is None:
            raise InvalidInput("a solution from a file does not hold its problem: pass certificate(..., problem=...)")
        return certificate(problem, self.x, delta, self.y, **settings)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write everything to one safetensors file, atomically; `Solution.load` reads it back."""
        from .storage import save_solution

        return save_solution(self, Path(path), overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path) -> Solution:
        """Read a solution that `save` wrote; nothing is unpickled."""
        from .storage import load_solution

        return load_solution(Path(path))

    def plot(self, path: str | Path | None = None) -> Any:
        """Upper value, stationarity and lower residual against steps; a matplotlib figure, also saved to `path`."""
        from .plotting import plot_history

        return plot_history(self.history, path)

    def __getstate__(self) -> dict[str, Any]:
        """Pickles and copies go without the problem: its functions are often lambdas."""
        return {**self.__dict__, "problem": None}

    def __repr__(self) -> str:
        last = ""
        if self.history:
            record = self.history[-1]
            last = (
                f", upper={record.upper:.6g}, |h|={record.stationarity:.2g}, lower residual={record.lower_residual:.2g}"
            )
        return f"Solution(status={self.status.name}, steps={self.stats.get('steps', 0):g}{last})"
