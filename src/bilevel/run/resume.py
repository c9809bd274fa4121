"""The command `bilevel resume`, which continues a run from its checkpoint.

A checkpoint holds data, but a problem is code: its name comes from the command line, never from the file.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from ..errors import InvalidInputError, InvalidTypeError, escape_control_chars
from ..problem import Problem
from .checkpoint import Checkpoint, RunDocument
from .minimize import minimize
from .observers import logs_of
from .solution import Solution, Status

FINISHED, FAILED, INTERRUPTED = 0, 2, 130
"""Exit codes."""


def resume(file: Path, *, problem: str | None = None, solver: str | None = None, steps: int | None = None) -> int:
    """Continue a run up to its planned end, or for `steps` more steps; return the exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # minimize reads it again and has it said once
        earlier = _loaded(file)
    document, step = earlier.document, earlier.state.step
    is_demo = problem is None and document.about.get("command") == "demo"
    if steps is None and earlier.status.finished:
        more = "" if is_demo else "; --steps N takes N more"
        sys.stdout.write(f"{file}: this run has ended at step {step}, {earlier.status}{more}\n")
        return FINISHED
    if is_demo:
        return _resume_demo(file, document, steps)
    if problem is None:
        hint = "".join(f"\n  {name}: {value!r}" for name, value in document.about.items())
        raise InvalidInputError(
            f"{file} is step {step} of a run of {earlier.solver}: name its problem with --problem MODULE:NAME{hint}"
        )
    if solver is None and isinstance(earlier.plan.solver, str):
        shown = escape_control_chars(earlier.solver[:200])
        raise InvalidInputError(f"the file names the solver {shown}: pass it with --solver MODULE:NAME")
    solution = minimize(
        problem_named(problem),
        solver=earlier.plan.solver if solver is None else named(solver),
        steps=steps,
        callbacks=_continued_logs(earlier),
        progress=True,
        checkpoint=Checkpoint(file, every=earlier.plan.checkpoint_every),
        resume=file,
    )
    return report(solution, file)


def _loaded(file: Path) -> Solution:
    """The newest state of a run of `minimize`; for any other run, raise an error that shows how to resume it.

    The command line in the file is shown and not run: it names files to write, and the file may be untrusted.
    """
    document = Checkpoint(file).load()
    if document.kind != "minimize":
        raise InvalidInputError(
            f"{file} is a run of {document.kind}, at {document.place.lower()}. To go on, with its data at hand:\n  "
            f"{document.remedy(file)}"
        )
    return Solution.from_document(document)


def report(solution: Solution, file: Path) -> int:
    """Print how the run ended; return the exit code."""
    sys.stdout.write(f"{solution!r}\n")
    if solution.status.ok:
        sys.stdout.write(f"{solution.status}: saved in {file}\n")
        return FINISHED
    sys.stderr.write(f"bilevel: {solution.status}. {escape_control_chars(solution.message)}\n")
    return INTERRUPTED if solution.status is Status.INTERRUPTED else FAILED


def _continued_logs(earlier: Solution) -> list[Any]:
    """The CSV logs of the run that still exist."""
    found = []
    for path, log in logs_of(earlier.plan.logs, earlier.history):
        message = "is continued" if log else "does not exist or is not a log of this run, and is not changed"
        sys.stderr.write(f"bilevel: the log {escape_control_chars(path)} {message}\n")
        found += [log] if log else []
    return found


def _resume_demo(file: Path, document: RunDocument, steps: int | None) -> int:
    from .. import demo

    seed, step = document.about.get("seed", 0), document.state.step
    if steps is not None:
        raise InvalidInputError("--steps is for runs of your own: a demo is resumed to its end")
    left = max(document.plan.steps - step, 0)
    sys.stderr.write(f"bilevel: demo with seed {seed}, step {step}, {left} steps left\n")
    demo.run(seed=seed, checkpoint=file, resume=file)
    return FINISHED


# --- what the command line and the file name --------------------------------------------------------------------------


def problem_named(text: str) -> Problem:
    """The problem MODULE:NAME, or the problem that the function of that name returns."""
    found = named(text)
    made = found() if callable(found) and not isinstance(found, Problem) else found
    if not isinstance(made, Problem):
        raise InvalidTypeError(f"--problem {text}: this is a {type(made).__name__}, not a bilevel.Problem")
    return made


def named(text: str) -> Any:
    """The object MODULE:NAME; modules of the current folder are found.

    Examples
    --------
    >>> round(named("math:pi"), 2)
    3.14
    """
    module, colon, name = text.partition(":")
    if not (module and colon and name.isidentifier()):
        raise InvalidInputError(f"{text!r} must be MODULE:NAME, for example study:problem for `problem` in study.py")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise InvalidInputError(f"{text}: there is no module {module!r} here (in {os.getcwd()}) or installed") from None
    except AttributeError:
        raise InvalidInputError(f"{text}: the module {module!r} has no {name!r}") from None
