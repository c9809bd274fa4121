"""One run: from a RunSpec to its record, on one thread, through `minimize` or `MetaLearner.fit`.

A run that stops by iterations is a pure function of the spec and the data: the same bits, its timing aside, in any
process of one machine. One that a time limit stops has as many steps as the processor made in that time. The training
clock counts processor seconds of steps alone, not those of evaluations.
"""

from __future__ import annotations

import math
import os
import platform
import time
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import __version__
from ..cleaning import CleaningProblem
from ..errors import BilevelError, InvalidInputError
from ..lower import solve_lower, uncounted
from ..run.minimize import minimize
from ..run.solution import Record, Solution, Status
from .code_version import code_version, commit
from .configuration import CleaningData
from .data import Task, cleaning_problem, cleaning_task, data_hash
from .methods import make_solver
from .plan import RunSpec
from .run_folder import Curve, Outcome, RunRecord, append_row

ENDED = (Status.STEPS, Status.TIME, Status.STOPPED, Status.SERIES_DIVERGES, Status.UNSOLVED, Status.ABOVE_START)
"""Runs that came to their end, whatever they reached: the curve shows it. All others diverged or failed."""
TOLERANCE = 1e-7
"""Residual of the solved lower level."""
SETTLED = 500
"""Steps in which F must change little before a run has converged."""


def run(specs: Sequence[RunSpec], folder: Path) -> list[Outcome]:
    """Do the work that specs have in common, once: one outcome for each.

    Parameters
    ----------
    specs
        Of one `work`.
    folder
        The data folder.
    """
    check_worker(specs[0], folder)
    with one_thread():
        if specs[0].application == "few-shot":
            from .few_shot_run import run_few_shot

            return run_few_shot(specs, folder)
        outcome = run_cleaning(specs[0], folder)
        return [Outcome(copy_record(outcome.record, spec), outcome.state) for spec in specs]


def check_worker(spec: RunSpec, folder: Path) -> None:
    """Raise if this worker has another code or other data than the identity of the run says."""
    where = f"the worker on {platform.node()}"
    if spec.code != code_version():
        raise InvalidInputError(
            f"{where} has version {code_version()} of the code, and the runs were planned by {spec.code}: install the "
            "same bilevel there and start the worker again"
        )
    digest = data_hash(spec.files, folder)
    if digest != spec.data_hash:
        raise InvalidInputError(
            f"{where} has other files of {spec.files} in {folder} (SHA-256 {digest[:12]}...) than the runs were "
            f"planned with ({spec.data_hash[:12]}...): copy them there; `bilevel data verify {spec.files}` shows the "
            "hash of each file"
        )


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


def copy_record(record: RunRecord, spec: RunSpec) -> RunRecord:
    """The same run, as it stands in another table."""
    return replace(record, **describe(spec))


def describe(spec: RunSpec) -> dict[str, Any]:
    """The part of a record that its spec knows."""
    names = ("identity", "experiment", "role", "dataset", "method", "seed")
    known = {name: getattr(spec, name) for name in names}
    return known | {"settings": dict(spec.settings), "configuration": spec.document}


def make_record(spec: RunSpec, dtype: str, began: float, **ended: Any) -> RunRecord:
    """The record of a run that began at this time of `time.process_time`."""
    seconds = time.process_time() - began
    return RunRecord(**describe(spec), environment=environment(spec, dtype), processor_seconds=seconds, **ended)


def environment(spec: RunSpec, dtype: str) -> dict[str, str | int]:
    """On what the run was made; nothing in it depends on the number or the order of workers."""
    return {
        "bilevel": __version__,
        "code": spec.code,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "threads": torch.get_num_threads(),
        "dtype": dtype,
        "data": spec.data_hash,
        "work": spec.work,
        "machine": platform.machine(),
        "system": platform.system(),
        "processor": processor(),
        "cores": os.cpu_count() or 0,
        "iterations": spec.iterations,
        "limit_seconds": "" if spec.limit_seconds is None else f"{spec.limit_seconds:g}",
    }


@lru_cache(maxsize=1)
def processor() -> str:
    """The name of the processor, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def failure_reason(error: Exception) -> str:
    """Why a run failed; lack of memory is a fact about the machine and not about the run, and is raised again."""
    text = str(error) or type(error).__name__
    if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in text or "not enough memory" in text:
        raise MemoryError(text.splitlines()[0]) from error
    return text


def count_gradients(costs: Mapping[str, float]) -> float:
    """Gradients of f and g, and products with second derivatives of g, so far."""
    names = ("upper_gradients", "lower_gradients", "hessian_products", "cross_products")
    return sum(costs.get(name, 0) for name in names)


# --- hyper-cleaning ---------------------------------------------------------------------------------------------------


def run_cleaning(spec: RunSpec, folder: Path) -> Outcome:
    """One method on one hyper-cleaning problem."""
    began = time.process_time()
    data: Any = CleaningData(**spec.data)
    task = _cached_task(data, spec.dataset, folder, spec.seed, spec.data_hash)
    problem = cleaning_problem(data, task)
    curve = CleaningCurve(task, problem, every=spec.role == "final", converged=spec.converged)
    solution, status, reason = None, "failed", ""
    try:
        solver = make_solver(spec.solver, spec.fixed | spec.settings, rows=data.rows)
        curve.add(0, 0.0, problem.start(), problem.y0, {})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the status tells of a series that diverges
            solution = minimize(
                problem,
                problem.start(),
                solver=solver,
                steps=spec.iterations,
                seed=spec.seed,
                callbacks=[curve],
                evaluate_every=spec.evaluate_every,
                seconds=spec.limit_seconds,
                clock=time.thread_time,
            )
        status, reason = final_status(solution.status, solution.message, solution.stats["steps"], spec.iterations)
        curve.add_end(solution)
    except (BilevelError, ArithmeticError, RuntimeError) as error:
        reason = failure_reason(error)
    stats = {} if solution is None else dict(solution.stats)
    point: Any = solution  # x is a tensor, y a dictionary
    state = {} if point is None else {"x": point.x.numpy(), "y": point.y["weight"].numpy()}
    seconds, counts = float(stats.pop("seconds", 0.0)), {name: int(value) for name, value in stats.items()}
    ended = {"status": status, "reason": reason, "training_seconds": seconds, "counts": counts}
    return Outcome(make_record(spec, "float64", began, **ended, curve=curve.columns), state)


@lru_cache(maxsize=1)
def _cached_task(data: CleaningData, name: str, folder: Path, seed: int, digest: str) -> Task:
    """Workers are given runs of one dataset and seed after the other."""
    return cleaning_task(data, name, folder, seed)


def final_status(status: Status, message: str, steps: float, iterations: int) -> tuple[str, str]:
    """How the run ended, and why; a run that reached its end although its series diverged says so in its reason."""
    if status is Status.INTERRUPTED:  # Ctrl-C is for the sweep: a run that was cut short is no result
        raise KeyboardInterrupt
    if status in ENDED:
        reason = str(status) if status is Status.SERIES_DIVERGES else ""
        short = "converged" if status is Status.STOPPED else "time limit"
        return "iterations" if steps >= iterations else short, reason
    kind = "diverged" if status is Status.DIVERGED else "failed"
    return kind, f"{status} ({message})" if message else str(status)


class CleaningCurve:
    """A callback of `minimize`: collects the numbers of the curve, at the run's own y and at the solved lower level.

    Parameters
    ----------
    task, problem
        What is solved.
    every
        Whether each evaluation is a row of the curve; otherwise the start and the end are.
    converged
        End the run when F has changed by less than this, relatively, in `SETTLED` steps.
    """

    def __init__(self, task: Task, problem: CleaningProblem, *, every: bool, converged: float | None = None) -> None:
        self._problem, self._task, self._every, self._converged = uncounted(problem), task, every, converged
        self.columns: Curve = {}

    def __call__(self, record: Record, state: Any) -> bool:
        if self._every:
            self.add(record.step, record.seconds, state.x, state.y, record.costs)
        return self._every and self._converged is not None and self._change() < self._converged

    def _change(self) -> float:
        """By how much F has changed, relatively, in the last `SETTLED` steps."""
        steps, values = self.columns["step"], self.columns["solved_upper_value"]
        earlier = bisect_right(steps, steps[-1] - SETTLED) - 1
        return math.inf if earlier < 0 else abs(values[-1] - values[earlier]) / abs(values[-1])

    def add_end(self, solution: Solution) -> None:
        """The last point, unless it was evaluated."""
        if self.columns["step"][-1] != solution.stats["steps"]:
            stats: Mapping[str, Any] = solution.stats
            self.add(int(stats["steps"]), float(stats["seconds"]), solution.x, solution.y, stats)

    def add(self, step: int, seconds: float, x: Any, y: Any, costs: Mapping[str, float]) -> None:
        """One row."""
        found = solve_lower(self._problem, x, tol=TOLERANCE)
        solved: Any = found.y
        accuracy, zeros = self._on_test_rows(y["weight"])
        solved_accuracy, solved_zeros = self._on_test_rows(solved["weight"])
        row = {
            "step": step,
            "training_seconds": seconds,
            "data_passes": costs.get("data_passes", 0),
            "gradients": count_gradients(costs),
            "upper_value": self._upper(x, y),
            "accuracy": accuracy,
            "solved_upper_value": self._upper(x, solved),
            "solved_accuracy": solved_accuracy,
            "zero_share": solved_zeros,
            "own_zero_share": zeros,
            "nonzeros": int((solved["weight"] != 0).sum()),
            "own_nonzeros": int((y["weight"] != 0).sum()),
            "solved_residual": found.residual,
        }
        append_row(self.columns, row)

    def _upper(self, x: Any, y: Any) -> float:
        return float(self._problem.linearize(x, y).upper_value)

    def _on_test_rows(self, weight: Tensor) -> tuple[float, float]:
        """Accuracy, a score of exactly zero counting half, and the share of such scores."""
        support = np.flatnonzero(weight[0].numpy())
        scores = self._task.test_X[:, support] @ weight[0].numpy()[support]
        right = np.where(scores == 0, 0.5, (scores > 0) == (self._task.test_y == 1))
        return float(right.mean()), float((scores == 0).mean())
