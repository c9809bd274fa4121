"""What `bilevel resume` does: from the checkpoint of a run to its end.

A checkpoint holds data, and a problem is code: its name comes from the command line, never from the file.
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import bilevel

from .checkpoints import Checkpoint, load_checkpoint
from .errors import BilevelError, InvalidInput, InvalidType, shown
from .journal import load_journal, place_of, remedy
from .loop import minimize
from .observers import logs_of
from .problem import Problem
from .solution import Solution, Status

FINISHED, FAILED, INTERRUPTED = 0, 2, 130
"""Exit codes."""


def resume(file: Path, *, problem: str | None = None, solver: str | None = None, steps: int | None = None) -> int:
    """Go on with a run up to its planned end, or for `steps` more; returns the exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # minimize reads it again and has it said once
        earlier = _loaded(file)
    is_demo = problem is None and about(earlier).get("command") == "demo"
    if steps is None and earlier.status.finished:
        more = "" if is_demo else "; --steps N takes more"
        sys.stdout.write(f"{file}: this run has ended at step {earlier.state.step}, {earlier.status}{more}\n")
        return FINISHED
    if is_demo:
        return _resume_demo(file, earlier, steps)
    if problem is None:
        hint = "".join(f"\n  {name}: {value!r}" for name, value in about(earlier).items())
        raise InvalidInput(
            f"{file} is step {earlier.state.step} of a run of {earlier.solver}: name its problem with --problem "
            f"MODULE:NAME{hint}"
        )
    solution = minimize(
        problem_named(problem),
        solver=named(solver) if solver is not None else solver_of(earlier.solver),
        steps=steps,
        callbacks=_continued_logs(earlier),
        progress=True,
        checkpoint=Checkpoint(file, every=earlier.plan.get("checkpoint_every")),
        resume=file,
    )
    return report(solution, file)


def _loaded(file: Path) -> Solution:
    """The newest state of a run; the file of `bilevel clean` or `HyperCleaner.fit` goes on elsewhere, and says where.

    Its command line is shown and not run: it names files to write, and the file may come from a stranger.
    """
    try:
        return load_checkpoint(file)
    except InvalidInput as error:
        try:
            work = load_journal(file)
        except BilevelError:
            raise error from None
    how = remedy(work["about"], file, "HyperCleaner.fit")
    raise InvalidInput(
        f"{file} is work in stages, at {place_of(work['stage'])}. To go on, with its tables at hand:\n  {how}"
    )


def about(solution: Solution) -> dict[str, Any]:
    """The facts kept with a run."""
    return solution.plan.get("about", {})


def report(solution: Solution, file: Path) -> int:
    """Say how the run ended; returns the exit code."""
    sys.stdout.write(f"{solution!r}\n")
    if solution.status.ok:
        sys.stdout.write(f"{solution.status}: it is in {file}\n")
        return FINISHED
    sys.stderr.write(f"bilevel: {solution.status}. {shown(solution.message)}\n")
    return INTERRUPTED if solution.status is Status.INTERRUPTED else FAILED


def _continued_logs(earlier: Solution) -> list[Any]:
    """The CSV and JSON logs of the run that are still there."""
    found = []
    for path, log in logs_of(earlier.plan.get("logs", {}), earlier.history):
        told = "goes on" if log else "is not there, or not a log of this run: it is left as it is"
        sys.stderr.write(f"bilevel: the log {shown(path)} {told}\n")
        found += [log] if log else []
    return found


def _resume_demo(file: Path, earlier: Solution, steps: int | None) -> int:
    from . import demo

    seed = about(earlier).get("seed", 0)
    if steps is not None:
        raise InvalidInput("--steps goes with a run of your own: a demo is resumed to its end")
    left = max(earlier.plan.get("steps", 0) - earlier.state.step, 0)
    sys.stderr.write(f"bilevel: demo with seed {seed}, step {earlier.state.step}, {left} steps left\n")
    demo.run(seed=seed, checkpoint=file, resume=file)
    return FINISHED


# --- what the command line names --------------------------------------------------------------------------------------


def problem_named(text: str) -> Problem:
    """The problem MODULE:NAME, or what the function of that name makes."""
    found = named(text)
    made = found() if callable(found) and not isinstance(found, Problem) else found
    if not isinstance(made, Problem):
        raise InvalidType(f"--problem {text}: this is a {type(made).__name__}, not a bilevel.Problem")
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
        raise InvalidInput(f"{text!r} must be MODULE:NAME, for example study:problem for `problem` in study.py")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise InvalidInput(f"{text}: there is no module {module!r} here (in {os.getcwd()}) or installed") from None
    except AttributeError:
        raise InvalidInput(f"{text}: the module {module!r} has no {name!r}") from None


# --- the solver, from the text in the file ----------------------------------------------------------------------------


def solver_of(text: str) -> Any:
    """The solver that a file names by its `repr`: classes of the library with plain settings, nothing else.

    Examples
    --------
    >>> from bilevel import DMLCBO
    >>> solver_of(repr(DMLCBO(upper_step=0.3))) == DMLCBO(upper_step=0.3)
    True
    >>> solver_of("open('f')")
    Traceback (most recent call last):
    bilevel.errors.InvalidInput: the file names the solver open('f'): pass it with --solver MODULE:NAME
    """
    try:
        return _built(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        shown = text if len(text) <= 200 else f"{text[:200]}..."
        raise InvalidInput(f"the file names the solver {shown}: pass it with --solver MODULE:NAME") from None


def _built(node: ast.expr) -> Any:
    """A literal, an infinity, or a call of a solver, hypergradient or smoothing of the library with named settings."""
    if isinstance(node, ast.Name) and node.id in ("inf", "nan"):
        return float(node.id)
    if not isinstance(node, ast.Call):
        return ast.literal_eval(node)
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if node.args or bilevel._HOME.get(name) not in ("solvers", "hypergradients", "smoothing"):
        raise ValueError(name)
    return getattr(bilevel, name)(**{str(keyword.arg): _built(keyword.value) for keyword in node.keywords})
