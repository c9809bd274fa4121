"""The default of `minimize` on problems with many variables, up to 42,000 of them below.

    python -m benchmarks.large [--data DIR] [CASE ...] [--methods "minimize()" "Approx()" SciPy] [--seconds 60]
                               [--out results/large.json]

| case | lower level | upper level |
| --- | --- | --- |
| pictures | two classes of MNIST, 784 weights in an l1 ball | a weight for each of 2,000 rows with wrong labels |
| classes | Fashion-MNIST, 10 x 785 weights in l1 balls | a weight for each of 5,000 rows with wrong labels |
| penalties | 5,000 nonnegative weights, 1,000 rows | a penalty per weight |
| prices | 2,000 customers divide their demand over 21 options | 20 prices |

Each method runs with its defaults for so many processor seconds on one thread. Then F is measured at points along the
way, with the lower level solved to 1e-8 of y. The gap is (F - best) / (F(x0) - best), best the lowest F of all.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

import bilevel
from bilevel import Problem, sets

from .paper_data import paper_task, ten_classes
from .zoo import NEAR, by_library, by_scipy, unflat
from .zoo_problems import Case

POINTS = 12
"""Points along a run at which F is measured."""


def pictures(data: Path) -> Case:
    """Sixes and nines of MNIST, 30 % of the labels wrong."""
    task = paper_task(data, "mnist", 0)
    A, V = (torch.as_tensor(X, dtype=torch.float64) for X in (task.X, task.trusted_X))
    given, truth = (2 * torch.as_tensor(y, dtype=torch.float64) - 1 for y in (task.given, task.trusted_y))
    problem = Problem(
        lambda x, y: softplus(-truth * (V @ y)).mean(),
        lambda x, y: (x.sigmoid() * softplus(-given * (A @ y))).mean() + 1e-3 * y.square().sum(),
        sets.L1Ball(1.0),
    )
    return Case(problem, torch.zeros(len(A), dtype=torch.float64), torch.zeros(A.shape[1], dtype=torch.float64))


def classes(data: Path) -> Case:
    """Ten classes of Fashion-MNIST, 40 % of the labels wrong."""
    task = ten_classes(data, "fashion-mnist", "uniform", 1000, 0)

    def rows(X: np.ndarray) -> Tensor:
        return torch.as_tensor(np.c_[X, np.ones(len(X))], dtype=torch.float64)

    A, V = rows(task.X), rows(task.trusted_X)
    given, truth = torch.as_tensor(task.given).long(), torch.as_tensor(task.trusted_y).long()
    problem = Problem(
        lambda x, y: cross_entropy(V @ y.T, truth),
        lambda x, y: (x.sigmoid() * cross_entropy(A @ y.T, given, reduction="none")).mean() + 1e-3 * y.square().sum(),
        sets.L1Ball(5.0),
    )
    return Case(problem, torch.zeros(5000, dtype=torch.float64), torch.zeros(10, 785, dtype=torch.float64))


def penalties(data: Path) -> Case:
    """A penalty per feature of a nonnegative regression."""
    rng = np.random.default_rng(0)
    rows, weights = rng.normal(size=(1500, 5000)), np.zeros(5000)
    weights[rng.choice(5000, 60, replace=False)] = rng.uniform(0.3, 1.0, size=60)
    wanted = rows @ weights + rng.normal(size=1500)
    A, V, b, c = (torch.as_tensor(v) for v in (rows[:1000], rows[1000:], wanted[:1000], wanted[1000:]))
    problem = Problem(
        lambda x, y: (V @ y - c).square().mean() / 2,
        lambda x, y: (A @ y - b).square().mean() / 2 + (x.exp() * y.square()).sum() / 2,
        sets.NonNegative(),
    )
    start = torch.full((5000,), -2.0, dtype=torch.float64)
    return Case(problem, start, torch.zeros(5000, dtype=torch.float64))


def prices(data: Path) -> Case:
    """Prices of 20 products for 2,000 customers who may also buy nothing."""
    rng = np.random.default_rng(0)
    quality = rng.uniform(0.5, 3.0, size=(1, 20)) + 0.7 * rng.normal(size=(2000, 20))
    value = torch.as_tensor(np.c_[quality, np.zeros(2000)])
    size = torch.as_tensor(rng.uniform(0.5, 1.5, size=2000))

    def padded(x: Tensor) -> Tensor:
        return torch.cat([x, x.new_zeros(1)])

    problem = Problem(
        lambda x, y: -(size * (y @ padded(x))).mean(),
        lambda x, y: ((padded(x) - value) * y).sum() + 0.25 * y.square().sum(),
        sets.Simplex(1.0),
        upper_constraint=sets.Box(0.0, 5.0),
    )
    share = torch.full((2000, 21), 1 / 21, dtype=torch.float64)
    return Case(problem, torch.full((20,), 0.5, dtype=torch.float64), share, (0.0, 5.0))


CASES: dict[str, Callable[[Path], Case]] = {make.__name__: make for make in (pictures, classes, penalties, prices)}


class SolvedValue:
    """F(x), each lower level started at the last one."""

    def __init__(self, case: Case) -> None:
        self.problem, self.x0, self.y = case.problem, case.x0, case.y0

    def __call__(self, u: np.ndarray) -> float:
        x = unflat(u, self.x0)
        self.y = bilevel.solve_lower(self.problem, x, self.y, max_steps=20_000).y
        return float(self.problem.linearize(x, self.y).upper_value)


def run(make: Callable[[Path], Case], data: Path, method: str, seconds: float) -> dict[str, Any]:
    """One method on one case, and F along its way."""
    case, trace = make(data), []
    trace.append((0.0, case.x0.numpy().copy().reshape(-1)))
    if method == "SciPy":
        status = by_scipy(case, seconds, trace)
    else:
        status = by_library(case, method, seconds, trace)
    value = SolvedValue(case)
    picks = sorted({0, len(trace) - 1, *(np.geomspace(1, len(trace), POINTS).astype(int) - 1)})
    values = [(trace[i][0], value(trace[i][1])) for i in picks]
    return {"case": make.__name__, "method": method, "status": status, "trace": values}


def table(runs: list[dict[str, Any]], seconds: float) -> str:
    """F at the start and at the end of each run, its gap, and the time to 1 %."""
    lines = [
        f"| {seconds:g} s each | method | F(x0) | F | gap | seconds to 1 % | status |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in dict.fromkeys(run["case"] for run in runs):
        own = [run for run in runs if run["case"] == name]
        best = min(run["trace"][-1][1] for run in own)
        for found in own:
            first, end = found["trace"][0][1], found["trace"][-1][1]
            when = next((t for t, f in found["trace"] if f - best <= NEAR * (first - best)), math.inf)
            reached = f"{when:.1f}" if math.isfinite(when) else "never"
            lines.append(
                f"| {name} | `{found['method']}` | {first:.6g} | {end:.7g} | "
                f"{100 * (end - best) / (first - best):.2f} % | {reached} | {found['status']} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--methods", nargs="+", default=["minimize()", "Approx()", "SciPy"])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path, default=Path("build/large.json"), help="runs of other cases there are kept")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    done = json.loads(arguments.out.read_text()) if arguments.out.exists() else []
    for name in arguments.cases:
        for method in arguments.methods:
            found = run(CASES[name], arguments.data, method, arguments.seconds)
            done = [old for old in done if (old["case"], old["method"]) != (name, method)] + [found]
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps(done, indent=1))
    text = table(done, arguments.seconds)
    arguments.out.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
