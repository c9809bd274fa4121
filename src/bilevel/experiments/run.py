"""One run: from a RunSpec to its record, on one thread, through `minimize` or `MetaLearner.fit`.

A run that stops by iterations is a pure function of the spec and the data: the same bits, its timing aside, in any
process of one machine. One that a time limit stops has as many steps as the processor made in that time. The training
clock counts processor seconds of steps alone; evaluations and compilation are not on it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import __version__
from ..errors import BilevelError, InvalidInput
from ..loop import minimize
from ..lower import uncounted
from ..machine import processor
from ..solution import Record, Solution, Status
from .cleaning_data import Task, cleaning_problem, cleaning_task, data_hash, files_of
from .code_version import code_version
from .configuration import CleaningData
from .methods import solver_of
from .plan import RunSpec
from .record import Curve, RunRecord
from .solved_level import SolvedLevel

STATUS = {Status.STEPS: "iterations", Status.TIME: "time limit"}
"""How runs that came to their end are called in the tables; all others diverged or failed."""


@dataclass(frozen=True)
class Outcome:
    """A record, and the tensors of the final state as arrays."""

    record: RunRecord
    state: dict[str, np.ndarray] = field(default_factory=dict)


def run(specs: Sequence[RunSpec], folder: Path) -> list[Outcome]:
    """Do the common work of specs that share it, once: one outcome for each.

    Parameters
    ----------
    specs
        Of one `work`.
    folder
        The data folder.
    """
    _check(specs[0], folder)
    with one_thread():
        return _run(specs, folder)


def _check(spec: RunSpec, folder: Path) -> None:
    """Refuse to make a run by another code or from other data than its identity says: no run here would be right."""
    where = f"the worker on {platform.node()}"
    if spec.code != code_version():
        raise InvalidInput(
            f"{where} has version {code_version()} of the code, and the runs were planned by {spec.code}: install the "
            "same bilevel there and start the worker again"
        )
    found = "" if spec.files == "generated" else data_hash(files_of(spec.files, folder))
    if found != spec.data_hash:
        raise InvalidInput(
            f"{where} has other files of {spec.files} in {folder} (SHA-256 {found[:12]}...) than the runs were planned "
            f"with ({spec.data_hash[:12]}...): copy them there; `bilevel data verify {spec.files}` shows the hash of "
            "each file"
        )


def _run(specs: Sequence[RunSpec], folder: Path) -> list[Outcome]:
    if specs[0].application == "few-shot":
        from .few_shot_run import run_few_shot

        return run_few_shot(specs, folder)
    outcome = run_cleaning(specs[0], folder)
    return [Outcome(copied(outcome.record, spec), outcome.state) for spec in specs]


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch and the linear algebra behind NumPy on one thread, whatever the environment says: bits repeat with one."""
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(limits=1):
            yield
    finally:
        torch.set_num_threads(before)


def copied(record: RunRecord, spec: RunSpec) -> RunRecord:
    """The same run, as it stands in another table."""
    names = ("identity", "experiment", "method", "settings")
    return replace(record, configuration=spec.document, **{name: getattr(spec, name) for name in names})


def run_cleaning(spec: RunSpec, folder: Path) -> Outcome:
    """One method on one hyper-cleaning problem."""
    began = time.perf_counter()
    data = CleaningData(**spec.data)
    task = _task(data, spec.dataset, folder, spec.seed, spec.data_hash)  # type: ignore[arg-type]
    problem = cleaning_problem(data, task)
    look = Look(data, task, problem, every=spec.role == "final")
    solution, status, reason, fused = None, "failed", "", False
    try:
        solver = solver_of(spec.solver, spec.fixed | spec.settings, rows=data.rows)
        fused = problem.fused_step(solver) is not None
        if fused:  # compiled where numba is there, not on the clock
            _uninterrupted(minimize(uncounted(problem), problem.start(), solver=solver, steps=2))
        look.at(0, 0.0, problem.start(), problem.y0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a series that diverges the status tells
            solution = minimize(
                problem, problem.start(), solver=solver, steps=spec.iterations, seed=spec.seed, callbacks=[look],
                evaluate_every=spec.evaluate_every, seconds=spec.limit_seconds, clock=time.thread_time,
            )  # fmt: skip
        look.at_end(_uninterrupted(solution))
        status, reason = _ended(solution, spec.iterations)
    except (BilevelError, ArithmeticError, RuntimeError) as error:
        reason = reason_of(error)
    counts = {} if solution is None else {k: int(v) for k, v in solution.stats.items() if k != "seconds"}
    state = {} if solution is None else {"x": solution.x.numpy(), "y": solution.y["weight"].numpy()}  # type: ignore[union-attr, call-overload]
    record = RunRecord(
        **about(spec), status=status, reason=reason, wall_seconds=time.perf_counter() - began,
        training_seconds=0.0 if solution is None else float(solution.stats["seconds"]), counts=counts,
        environment=environment(spec, "float64", fused=fused), curve=look.curve,
    )  # fmt: skip
    return Outcome(record, state)


class Look:
    """A callback of `minimize`: the numbers of the curve, at the run's own y and at the solved lower level.

    Parameters
    ----------
    data, task, problem
        What is solved.
    every
        Whether each evaluation is a row of the curve; otherwise the start and the end are.
    """

    def __init__(self, data: CleaningData, task: Task, problem: Any, *, every: bool) -> None:
        self._problem, self._task, self._every = uncounted(problem), task, every
        self._solve = SolvedLevel(data, task, problem)
        self.curve: Curve = {}

    def __call__(self, record: Record, state: Any) -> None:
        if self._every:
            self.at(record.step, record.seconds, state.x, state.y)

    def at_end(self, solution: Solution) -> None:
        """The last point, unless it has been looked at."""
        if self.curve["step"][-1] != solution.stats["steps"]:
            self.at(int(solution.stats["steps"]), float(solution.stats["seconds"]), solution.x, solution.y)

    def at(self, step: int, seconds: float, x: Any, y: Any) -> None:
        """One row."""
        solved, residual = self._solve(x)
        accuracy, zeros = self._on_test_rows(y["weight"])
        solved_accuracy, solved_zeros = self._on_test_rows(solved)
        row = {
            "step": step,
            "training_seconds": seconds,
            "upper_value": self._upper(x, y),
            "accuracy": accuracy,
            "solved_upper_value": self._upper(x, {"weight": solved}),
            "solved_accuracy": solved_accuracy,
            "zero_share": solved_zeros,
            "own_zero_share": zeros,
            "nonzeros": int((solved != 0).sum()),
            "own_nonzeros": int((y["weight"] != 0).sum()),
            "solved_residual": residual,
        }
        for name, value in row.items():
            self.curve.setdefault(name, []).append(value)

    def _upper(self, x: Any, y: Any) -> float:
        return float(self._problem.linearize(x, y).upper_value)

    def _on_test_rows(self, weight: torch.Tensor) -> tuple[float, float]:
        """Accuracy, a score of exactly zero counting half, and the share of such scores."""
        support = np.flatnonzero(weight[0].numpy())
        scores = self._task.test_X[:, support] @ weight[0].numpy()[support]
        right = np.where(scores == 0, 0.5, (scores > 0) == (self._task.test_y == 1))
        return float(right.mean()), float((scores == 0).mean())


def reason_of(error: Exception) -> str:
    """Why a run failed; memory that ran out tells of the machine and not of the run, and is raised again."""
    text = str(error) or type(error).__name__
    if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in text or "not enough memory" in text:
        raise MemoryError(text.splitlines()[0]) from error
    return text


def about(spec: RunSpec) -> dict[str, Any]:
    """The part of a record that its spec knows."""
    names = ("identity", "experiment", "role", "dataset", "method", "seed")
    known = {name: getattr(spec, name) for name in names}
    return known | {"settings": dict(spec.settings), "configuration": spec.document}


def environment(spec: RunSpec, dtype: str, *, fused: bool = False) -> dict[str, str | int]:
    """On what the run was made; nothing in it depends on the number or the order of workers.

    `fused` is whether the step was written out for this problem; with `numba` it was compiled as well.
    """
    return {
        "bilevel": __version__, "code": spec.code, "source": source_hash(), "python": platform.python_version(),
        "torch": torch.__version__, "numpy": np.__version__, "numba": numba_version(), "fused": fused,
        "threads": torch.get_num_threads(), "dtype": dtype,
        "data": spec.data_hash, "work": spec.work, "machine": platform.machine(), "system": platform.system(),
        "processor": processor(), "cores": os.cpu_count() or 0, "iterations": spec.iterations,
        "limit_seconds": "" if spec.limit_seconds is None else f"{spec.limit_seconds:g}",
    }  # fmt: skip


@lru_cache(maxsize=1)
def numba_version() -> str:
    """Of the extra `fast`; "" without it."""
    try:
        return version("numba")
    except PackageNotFoundError:
        return ""


@lru_cache(maxsize=1)
def source_hash() -> str:
    """SHA-256 over the Python files of the package, 12 digits: tells which code made a run."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


@lru_cache(maxsize=1)
def _task(data: CleaningData, name: str, folder: Path, seed: int, digest: str) -> Task:
    """Workers are given runs of one dataset and seed after the other."""
    return cleaning_task(data, name, folder, seed)


def _uninterrupted(solution: Solution) -> Solution:
    """Ctrl-C is for the sweep: a run that was cut short is no result."""
    if solution.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    return solution


def _ended(solution: Solution, iterations: int) -> tuple[str, str]:
    """How the run ended, and why; of a series that diverged a run that came to its end tells in its reason."""
    if solution.status is Status.SERIES_DIVERGES:
        ended = Status.STEPS if solution.stats["steps"] >= iterations else Status.TIME
        return STATUS[ended], str(solution.status)
    if solution.status in STATUS:
        return STATUS[solution.status], ""
    kind = "diverged" if solution.status is Status.DIVERGED else "failed"
    return kind, solution.message or str(solution.status)
