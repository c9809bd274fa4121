"""One step of DMLCBO on hyper-cleaning, in passes over the data: how often could A' p be computed instead?

MNIST 6 vs 9 from the folder in the variable BILEVEL_DATA (without it: random rows of the same kind), 30 % of the labels
flipped, 2,000 trusted rows, |y|_1 <= 1; more noisy rows than there are images are drawn with replacement. A step is one
of 100 in a block after the first 60, with the noise of `Perturbed` and all else that `iterate` does; a pass is one of
100 NumPy products A.T @ p with the same array in the block that follows. Both in processor time; the ratio is the
median over some pairs of blocks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

import bilevel
from bilevel import sets
from bilevel.cleaning import CleaningProblem
from bilevel.problem import Linearization

from .harness import Row
from .paper_data import images

TRUSTED, COLUMNS, FIRST, BLOCK = 2000, 784, 60, 100
FACE = {"tol": 0.1, "max_iterations": 2, "eta": 0.3}
"""As in `time_to_value`: from the last solution two conjugate gradient steps are enough."""
FEW = "DMLCBO step, two conjugate gradient steps"
EXACT = bilevel.DMLCBO(upper_step=1.0, lower_step=0.1, hypergradient=bilevel.LinearSolve(**FACE))
NOISY, FAR_NOISE = (
    bilevel.DMLCBO(upper_step=1.0, lower_step=0.1, hypergradient=bilevel.LinearSolve(**FACE, smoothing=noise))
    for noise in (bilevel.hypergradients.Perturbed(), bilevel.hypergradients.Perturbed(radius=1e-3))
)
SERIES_OF_TWO_POINTS = bilevel.DMLCBO(
    upper_step=1.0,
    lower_step=0.1,
    hypergradient=bilevel.Neumann(terms=3, eta=0.3, smoothing=bilevel.hypergradients.TwoPoint()),
)


def rows() -> list[Row]:
    found = []
    for row in measured():
        print(f"    {row.name}: {row.ratio:.3g} {row.bound}", flush=True)
        found.append(row)
    return found


def measured() -> Iterator[Row]:
    for name, bound in (("float64", "<= 4.0"), ("float32", "")):
        yield Row(f"{FEW} / pass, 2000 x 784, {name}", in_passes(make(2000, name), NOISY), bound)
    problem = make(2000, "float64")
    yield Row("the same in float64 without noise", in_passes(problem, EXACT))
    yield Row(
        "the same with DMLCBO(upper_step=0.1), an estimate of the curvature every 100 steps included",
        in_passes(problem, bilevel.DMLCBO(upper_step=0.1), blocks=5),
    )
    yield Row("the same with noise of radius 1e-3, which decides on faces", in_passes(problem, FAR_NOISE, blocks=5))
    yield Row("a pass after a millisecond of other work / pass, 2000 x 784, float64", interrupted_pass(problem))
    yield two_point(problem)
    yield generic(2000)
    yield generic(25)
    for count, bound in ((20_000, "<= 1.5"), (100_000, "")):
        ratio = in_passes(make(count, "float64"), NOISY, blocks=3)
        yield Row(f"{FEW} / pass, {count} x 784, float64", ratio, bound)
    yield refresh(make(200_000, "float32"))
    for count in (2000, 100_000):
        yield vectors(count)


# --- the instance ---------------------------------------------------------------------------------------------------


def data(count: int, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Noisy rows and labels, trusted rows and labels."""
    rng, folder = np.random.default_rng(0), os.environ.get("BILEVEL_DATA")
    if folder:
        X, y, _, _ = images(Path(folder), "mnist")
        X, y = X[np.isin(y, (6, 9))].astype(dtype), (y[np.isin(y, (6, 9))] == 9).astype(int)
    else:
        X = (rng.random((12_000, COLUMNS)) * (rng.random((12_000, COLUMNS)) < 0.2)).astype(dtype)
        y = (X @ (rng.normal(size=COLUMNS) * (rng.random(COLUMNS) < 0.05)) > 0).astype(int)
    order = rng.permutation(len(y))
    chosen = order[TRUSTED : TRUSTED + count]
    if len(chosen) < count:
        chosen = rng.choice(order[TRUSTED:], count)
    given = np.where(rng.random(count) < 0.3, 1 - y[chosen], y[chosen])
    return X[chosen], given, X[order[:TRUSTED]], y[order[:TRUSTED]]


def make(count: int, dtype: str) -> CleaningProblem:
    return CleaningProblem(*data(count, dtype), loss="logistic", radius=1.0, ridge=1e-3, intercept=False)


# --- measurements ---------------------------------------------------------------------------------------------------


def block(function: Callable[[], object], count: int) -> float:
    """Processor seconds of one call, over a block of calls after two that warm the caches."""
    function(), function()
    began = time.thread_time()
    for _ in range(count):
        function()
    return (time.thread_time() - began) / count


def in_passes(problem: CleaningProblem, solver: Any, *, blocks: int = 9) -> float:
    """One step in units of A.T @ p."""
    states = stepping(problem, solver)
    A = problem.design.array.numpy()  # type: ignore[attr-defined]
    p = np.random.default_rng(1).random(len(A)).astype(A.dtype)
    return median(block(lambda: next(states), BLOCK) / block(lambda: A.T @ p, BLOCK) for _ in range(blocks))


def interrupted_pass(problem: CleaningProblem) -> float:
    """What a pass costs where other work of this program or of others has taken its rows out of the caches."""
    A = problem.design.array.numpy()  # type: ignore[attr-defined]
    p, ratios = np.random.default_rng(1).random(len(A)), []
    for _ in range(5):
        taken = 0.0
        for _ in range(BLOCK):
            until = time.thread_time() + 1e-3
            while time.thread_time() < until:
                pass
            began = time.thread_time()
            A.T @ p
            taken += time.thread_time() - began
        ratios.append(taken / BLOCK / block(lambda: A.T @ p, BLOCK))
    return median(ratios)


def stepping(problem: Any, solver: Any, first: int = FIRST) -> Any:
    """A run, after its first steps."""
    states = bilevel.iterate(problem, torch.zeros_like(problem.start()), solver=solver)
    for _ in range(first):
        next(states)
    return states


def refresh(problem: CleaningProblem) -> Row:
    """Every hundredth step, with a new estimate of the curvature, against the twenty steps before it."""
    states, ratios = stepping(problem, bilevel.DMLCBO(upper_step=0.1), 79), []
    for _ in range(3):
        usual = median(seconds_of(states) for _ in range(20))
        ratios.append(seconds_of(states) / usual)
        for _ in range(79):
            next(states)
    return Row(f"a step that estimates the curvature / the steps before it, {len(problem.labels)} x 784, float32",
               median(ratios), note=f"{usual:.3f} s")  # fmt: skip


def seconds_of(states: Any) -> float:
    """Processor seconds of the next step."""
    began = time.thread_time()
    next(states)
    return time.thread_time() - began


def two_point(problem: CleaningProblem) -> Row:
    ours, published = stepping(problem, NOISY), stepping(problem, SERIES_OF_TWO_POINTS, 3)
    ratio = median(block(lambda: next(published), 2) / block(lambda: next(ours), 30) for _ in range(3))
    return Row(f"the same with Neumann(terms=3, TwoPoint()), 2000 x 784 / {FEW}", ratio)


MEMORY = """
import ctypes, gc, json, sys
from benchmarks.dmlcbo_step import NOISY, make, stepping
from benchmarks.cleaning_memory import PEAK
exec(PEAK)
count = int(sys.argv[1])
stepping(make(count, "float64"), NOISY, 100)  # code and libraries are loaded, and their working memory is there
problem = make(count, "float64")
problem.design.array.sum(), problem.trusted_design.array.sum()
gc.collect()
ctypes.CDLL(None).malloc_trim(0)  # or the run would be served from what was freed before it, unseen
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak counts from here
before = peak()
stepping(problem, NOISY, 100)
print(json.dumps(peak() - before))
"""


def vectors(count: int) -> Row:
    """What 100 steps, the first included, take beside the data; in vectors of one number per row and column.

    The largest resident memory of a process of its own, above that at the start of the run, after a first run on a
    problem of the same size. What is freed goes back to the system at once: the peak is what is in use together.
    """
    settings = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "4096"}
    answer = subprocess.run(
        [sys.executable, "-c", MEMORY, str(count)], env=settings, capture_output=True, text=True, check=True
    )
    taken = json.loads(answer.stdout) / (8 * (count + TRUSTED + COLUMNS))
    return Row(f"memory beside the data, {count} x 784, in vectors per row and column", taken)


# --- the generic path ------------------------------------------------------------------------------------------------


class ClosedForm(Linearization):
    """The dense closed form of logistic hyper-cleaning in plain torch, without tricks."""

    def __init__(self, problem: Any, x: Any, y: Any, batch: Any = None) -> None:
        super().__init__(problem, x, y, batch)
        p, self._weights = torch.sigmoid(-problem.a * (problem.A @ y)), x.sigmoid()
        self._slopes = -problem.a * p / len(problem.a)
        self._curvatures = self._weights * p * (1 - p) / len(problem.a)

    def _upper_value(self) -> Any:
        return self.problem.upper(self.x, self.y)

    def _lower_value(self) -> Any:
        return self.problem.lower(self.x, self.y)

    def _upper_gradients(self) -> Any:
        problem: Any = self.problem
        pulled = -problem.b * torch.sigmoid(-problem.b * (problem.B @ self.y)) / len(problem.b)
        return torch.zeros_like(self.x), problem.B.T @ pulled  # type: ignore[arg-type]

    def _lower_gradient_x(self) -> Any:
        raise NotImplementedError

    def _lower_gradient_y(self) -> Any:
        return self.problem.A.T @ (self._weights * self._slopes) + 2e-3 * self.y  # type: ignore[attr-defined,operator]

    def _lower_hvp(self, v: Any) -> Any:
        return self.problem.A.T @ (self._curvatures * (self.problem.A @ v)) + 2e-3 * v  # type: ignore[attr-defined]

    def _lower_cross(self, v: Any) -> Any:
        return self._weights * (1 - self._weights) * self._slopes * (self.problem.A @ v)  # type: ignore[attr-defined]


class Plain(bilevel.Problem):
    """Logistic hyper-cleaning as two formulas."""

    def __init__(self, count: int) -> None:
        A, a, B, b = data(count, "float64")
        self.A, self.a, self.B, self.b = map(torch.from_numpy, (A, 2.0 * a - 1, B[:count], 2.0 * b[:count] - 1))
        softplus = torch.nn.functional.softplus
        super().__init__(
            lambda x, y: softplus(-self.b * (self.B @ y)).mean(),
            lambda x, y: (x.sigmoid() * softplus(-self.a * (self.A @ y))).mean() + 1e-3 * (y * y).sum(),
            sets.L1Ball(1.0),
            y0=torch.zeros(COLUMNS, dtype=torch.float64),
        )

    def start(self) -> Any:
        return torch.zeros_like(self.a)


class Dense(Plain):
    """The same with its closed form."""

    def linearize(self, x: Any, y: Any, batch: Any = None) -> Linearization:
        return ClosedForm(self, x, y, batch)


def generic(count: int) -> Row:
    """A step with three terms of the series: the same products on both sides."""
    solver = bilevel.DMLCBO(
        upper_step=0.1, lower_step=0.1, hypergradient=bilevel.Neumann(terms=3, eta=0.3, truncation="full")
    )
    generic, dense = stepping(Plain(count), solver), stepping(Dense(count), solver)
    size = 10 if count > 100 else 50
    ratio = median(block(lambda: next(generic), size) / block(lambda: next(dense), size) for _ in range(7))
    return Row(f"DMLCBO step, Q = 3, {count} x 784: autograd / dense closed form", ratio)
