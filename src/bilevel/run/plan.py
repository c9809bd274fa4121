"""The arguments of a run of `minimize`, merged with those of the run that it resumes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal

from .._checks import Settings, check_count
from .._fingerprint import fingerprint
from .._serializable import serializable
from ..errors import IncompatibleError, InvalidInputError
from ..solvers import DMLCBO, SmoothedBFGS, State
from ..solvers.smoothed_bfgs import SmoothedBFGSState

STEPS, EVALUATE_EVERY = 10_000, 100
"""The default number of steps of a run, and of steps between its evaluations."""


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
    def settle(cls, earlier: tuple[Plan, State] | None, **asked: Any) -> Plan:
        """Replace the arguments of the earlier run, from whose state this one continues, by those that are not None."""
        asked = {name: value for name, value in asked.items() if value is not None}
        if earlier is None:
            return cls(**asked)
        old, state = earlier
        if "steps" in asked:
            asked["steps"] = check_count("steps", asked["steps"]) + state.step
        asked["logs"] = {**old.logs, **asked["logs"]}
        new = replace(old, **{"steps": max(old.steps, state.step), **asked})
        if new.output != old.output and "sampled" in (new.output, old.output):
            raise InvalidInputError(
                f'output="sampled" cannot resume a run with output="{old.output}": its iterates were not stored'
            )
        return replace(new, solver=_same_solver(old.solver, asked.get("solver"), state))

    def __str__(self) -> str:
        """The arguments in which all ranks must agree."""
        return _without_addresses(repr(self))


def _same_solver(old: Any, asked: Any, state: State) -> Any:
    """The solver of the run to resume, or an equal one."""
    if asked is None or isinstance(asked, str):
        if isinstance(old, str):
            raise InvalidInputError(f"the run to resume used {old}: pass it as solver=...")
        default = SmoothedBFGS() if isinstance(state, SmoothedBFGSState) else DMLCBO()
        return default if old is None else old
    was, now = str(old).partition("(")[0], type(asked).__name__
    if old is not None and was != now:
        raise IncompatibleError(
            f"a run of {was} cannot be continued by {now}, whose state differs: "
            "start a new run with x0=solution.x, y0=solution.y"
        )
    if old is not None and (other := _other_setting(old, asked)):
        raise IncompatibleError(
            f"the run to resume used other settings of {was}: {other}; pass the same solver=..., or start a new run "
            "from its point with x0=solution.x, y0=solution.y"
        )
    return asked


def _other_setting(old: Any, solver: Any) -> str:
    """Describe the first setting that differs from the solver of the run (which is a text if it was not stored)."""
    if isinstance(old, str) or not is_dataclass(old):
        was, now = (_without_addresses(each) for each in (old, solver))
        return "" if was == now else f"{was} then, {now} now"
    pairs = [(part.name, getattr(old, part.name), getattr(solver, part.name, None)) for part in fields(old)]
    return next((f"{name} was {a!r} and is {b!r}" for name, a, b in pairs if fingerprint(a) != fingerprint(b)), "")


def _without_addresses(value: Any) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))
