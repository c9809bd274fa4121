"""How long until F(x) is within 1e-3, 1e-4 and 1e-5 of the best there is, by method?

    python -m benchmarks.time_to_value --data DATA [--repetitions 5] [--budget 6] [--out results/time-to-value.json]

MNIST 6 vs 9, 2,000 noisy rows with 30 % of the labels flipped, 2,000 trusted rows, logistic loss, |y|_1 <= 1, c = 1e-3,
float64, one thread, all from x = 0, y = 0 (`paper_data.paper_task`, seed 0). F(x) is the loss of the trusted rows at
the lower level solved for x. The best there is: the minimum of that loss over the ball, which no F can fall below.

Every method runs at its best upper step of 0.01, 0.1, 1, 10 (the one that is first within 1e-4; else the one that
comes closest); then all are run in turn, several times. Times are processor seconds of the method alone, medians:
compilation and the evaluations of F are not counted. Our solvers run through `minimize`, whose clock is set to
processor time, for 1,000 steps at the most. The upper steps of methods that do not scale their hypergradients (Approx,
RMDPCD, VPBGD) are in units of n = 2,000, since f and g are means over rows; peers run both so and with Adam, and the
better one counts. jaxopt, TorchOpt and BOAT run in environments of their own, which this script makes in build/peers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import numpy as np
import torch

import bilevel
from bilevel import loop
from bilevel.applications.hyper_cleaning import CleaningProblem
from bilevel.applications.hyper_cleaning.noise import Certain

from .harness import hardware
from .paper_data import Task, paper_task

GAPS, STEPS = (1e-3, 1e-4, 1e-5), (0.01, 0.1, 1.0, 10.0)
GOAL = 1e-4
HERE, ENVIRONMENTS = Path(__file__).parent / "peers", Path("build/peers")
PEERS = {"jaxopt": ["jax==0.4.38", "jaxlib==0.4.38", "jaxopt==0.8.5"], "torchopt": ["torchopt==0.7.3"],
         "boat": ["boat-torch==1.1.1"]}  # fmt: skip
LABELS = {("jaxopt", "default"): "jaxopt, jitted", ("jaxopt", "plain"): "jaxopt, jitted, 100 plain steps",
          ("torchopt", "plain"): "TorchOpt, 100 plain steps", ("boat", "default"): "BOAT, 10 steps"}  # fmt: skip
OURS, UNSCALED, ADAM = "as it is", "times n", "Adam"
"""What an upper step stands for."""


@dataclass
class Trace:
    """Where x was after some steps, and the seconds on the clock."""

    steps: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    xs: list[Any] = field(default_factory=list)


Method = Callable[[float, float, int], Trace]
"""(upper step, seconds, steps at most) -> the path of x."""
Methods = dict[str, dict[str, Method]]
"""By name, and by what the upper step stands for."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.time_to_value", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--data", type=Path, required=True, help="folder with mnist/")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--budget", type=float, default=6.0, help="seconds on the clock while steps are chosen")
    parser.add_argument("--upper-steps", type=float, nargs="+", default=STEPS)
    parser.add_argument("--methods", nargs="+", help="only these")
    parser.add_argument("--out", type=Path, default=Path("build/time-to-value.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    task = paper_task(arguments.data, "mnist", 0)
    value, best = Value(task), lower_bound(task)
    print(f"best known F: {best:.6f}", flush=True)
    everything = methods(task)
    chosen, failed = {}, {}
    for name in arguments.methods or everything:
        try:
            chosen[name] = best_step(everything[name], value, best, arguments, name)
        except subprocess.CalledProcessError as error:
            failed[name] = f"does not run: {error.stderr.strip().splitlines()[-1] if error.stderr else error}"
            print(name, failed[name], flush=True)
    rows = timed(everything, chosen, arguments.repetitions)
    content = {"best": best, "budget": arguments.budget, "hardware": hardware(), "rows": rows, "failed": failed}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(content, indent=1) + "\n")
    table = markdown(rows, failed, arguments.budget)
    arguments.out.with_suffix(".md").write_text(table)
    print(f"{table}\n{hardware()}\nstored in {arguments.out} and {arguments.out.with_suffix('.md')}")


# --- the instance and its value -----------------------------------------------------------------------------------


def cleaning(task: Task, columns: Any = slice(None)) -> CleaningProblem:
    return CleaningProblem(
        np.ascontiguousarray(task.X[:, columns]), task.given, np.ascontiguousarray(task.trusted_X[:, columns]),
        task.trusted_y, noise="rows", loss="logistic", radius=1.0, ridge=1e-3, intercept=False,
    )  # fmt: skip


def lower_bound(task: Task) -> float:
    """The minimum of the trusted rows' loss over the ball: a convex problem."""
    X, y = task.trusted_X, task.trusted_y
    problem = CleaningProblem(X, y, X, y, noise=Certain(), loss="logistic", radius=1.0, ridge=0.0, intercept=False)
    solved = bilevel.solve_lower(problem, problem.start(), tol=1e-7)
    return float(problem.linearize(problem.start(), solved.y).upper_value)


class Value:
    """F(x): the lower level on a growing set of columns, until no column outside of it would enter."""

    def __init__(self, task: Task) -> None:
        self.task, self.problem = task, cleaning(task)
        self.columns = np.array([], int)

    def __call__(self, x: Any) -> float:
        x = torch.as_tensor(np.asarray(x))
        columns = self.columns  # of the last support
        for _ in range(50):
            y = torch.zeros_like(self.problem.y0["weight"])  # type: ignore[index,call-overload]
            if len(columns):
                y[0, columns] = bilevel.solve_lower(cleaning(self.task, columns), x, tol=1e-7).y["weight"][0]  # type: ignore[call-overload]
            self.columns = np.flatnonzero(y[0].numpy())
            gradient = self.problem.lower_grad(x, {"weight": y})["weight"][0].abs().numpy()  # type: ignore[call-overload]
            level = gradient[self.columns].max(initial=0.0) + 1e-7
            entering = [j for j in np.argsort(-gradient)[:30] if gradient[j] > level and j not in columns]
            if not entering:
                break
            columns = np.union1d(self.columns, entering)
        residual = bilevel.lower_residual(self.problem, x, {"weight": y})
        if residual > 1e-5:
            raise RuntimeError(f"the lower level is solved to {residual:.1e} only")
        return float(self.problem.linearize(x, {"weight": y}).upper_value)


# --- methods --------------------------------------------------------------------------------------------------------


def methods(task: Task) -> Methods:
    n = len(task.given)
    exact = bilevel.LinearSolve(tol=0.1, max_iterations=2, eta=0.3)
    solvers = {
        "DMLCBO": (lambda s: bilevel.DMLCBO(upper_step=s, lower_step=1.0, hypergradient=exact), 5),
        "DMLCBO, defaults": (lambda s: bilevel.DMLCBO(upper_step=s), 5),
        "Approx": (lambda s: bilevel.Approx(upper_step=s * n, inner="plain", inner_steps=100), 1),
        "RMDPCD": (lambda s: bilevel.RMDPCD(upper_step=s * n, steps=100), 1),
        "VPBGD": (lambda s: bilevel.VPBGD(upper_step=s * n, lower_steps=100, penalty_steps=100), 1),
    }
    ours: Methods = {
        name: {OURS if every > 1 else UNSCALED: through_minimize(task, make, every)}
        for name, (make, every) in solvers.items()
    }
    for (name, inner), label in LABELS.items():
        ours[label] = {unit: peer(name, task, unit, inner) for unit in (UNSCALED, ADAM)}
    return ours


def through_minimize(task: Task, solver: Callable[[float], Any], every: int) -> Method:
    def run(step: float, seconds: float, steps: int) -> Trace:
        loop.time = types.SimpleNamespace(perf_counter=time.process_time)  # type: ignore[assignment]
        problem, path = cleaning(task), Trace()

        def keep(record: Any, state: Any) -> bool:
            if not path.steps or state.step >= path.steps[-1] * 1.15 or state.step == steps:
                path.steps.append(state.step)
                path.seconds.append(record.seconds)
                path.xs.append(state.x.clone())
            return record.seconds > seconds

        try:
            bilevel.minimize(problem, problem.start(), solver=solver(step), steps=min(steps, 1000),
                             evaluate_every=every, callbacks=[keep])  # fmt: skip
        finally:
            loop.time = time
        return path

    return run


def peer(name: str, task: Task, unit: str, inner: str) -> Method:
    def run(step: float, seconds: float, steps: int) -> Trace:
        with tempfile.TemporaryDirectory() as folder:
            data, out = Path(folder) / "data.npz", Path(folder) / "out.npz"
            np.savez(data, A=task.X, a=2.0 * task.given - 1, B=task.trusted_X, b=2.0 * task.trusted_y - 1,
                     x0=np.zeros(len(task.given)))  # fmt: skip
            length, kind = (step, "adam") if unit == ADAM else (step * len(task.given), "descent")
            script = [environment(name), "-W", "ignore", HERE / f"with_{name}.py", data, out]
            command = [*script, length, seconds, steps, kind, inner]
            subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)
            found = np.load(out)
            return Trace(found["steps"].tolist(), found["seconds"].tolist(), list(found["xs"]))

    return run


def environment(name: str) -> Path:
    """The Python of a peer, made when it is first asked for; torch is pinned so that no CUDA build comes."""
    folder = ENVIRONMENTS / name
    python = (folder / "bin" / "python").absolute()
    if not python.exists():
        print(f"Making an environment for {name}, once.", flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pins = ENVIRONMENTS / "torch.txt"
        pins.write_text(f"torch=={torch.__version__.split('+')[0]}\n")
        subprocess.run([python, "-m", "pip", "install", "-q", "-c", pins, "numpy", *PEERS[name]], check=True)
    return python


# --- the comparison -------------------------------------------------------------------------------------------------


def best_step(ways: dict[str, Method], value: Value, best: float, settings: Any, name: str) -> dict[str, Any]:
    """The upper step that reaches the goal first, or else comes closest; and the steps at which each gap is reached."""
    tried = []
    for unit, step in itertools.product(ways, settings.upper_steps):
        path, closest, reached = ways[unit](step, settings.budget, 10**6), math.inf, {}
        for k, seconds, x in zip(path.steps, path.seconds, path.xs, strict=True):
            gap = value(x) - best if np.isfinite(np.asarray(x)).all() else math.inf
            closest = min(closest, gap)
            for wanted in GAPS:
                if gap <= wanted:
                    reached.setdefault(wanted, (k, seconds))
            if GAPS[-1] in reached:
                break
        tried.append({"step": step, "unit": unit, "closest": closest, "reached": reached})
        shown = ", ".join(f"{gap:g}: step {k}, {seconds:.2f} s" for gap, (k, seconds) in reached.items())
        print(f"  {name}, upper step {step:g} {unit}: closest {closest:.1e}; {shown}", flush=True)
    return min(tried, key=lambda t: (t["reached"].get(GOAL, (0, math.inf))[1], t["closest"]))


def timed(everything: Methods, chosen: dict[str, Any], repetitions: int) -> list[dict[str, Any]]:
    """Run all methods in turn; the medians of the seconds to each gap."""
    seconds: dict[str, dict[float, list[float]]] = {name: {} for name in chosen}
    for _ in range(repetitions):
        for name, best in chosen.items():
            if best["reached"]:
                last = max(k for k, _ in best["reached"].values())
                path = everything[name][best["unit"]](best["step"], math.inf, last)
                for gap, (k, _) in best["reached"].items():
                    seconds[name].setdefault(gap, []).append(path.seconds[path.steps.index(k)])
    return [
        {
            "method": name, "upper_step": best["step"], "unit": best["unit"], "closest": best["closest"],
            "seconds": {f"{gap:g}": times for gap, times in seconds[name].items()},
            "median": {f"{gap:g}": median(times) for gap, times in seconds[name].items()},
            "steps": {f"{gap:g}": k for gap, (k, _) in best["reached"].items()},
        }
        for name, best in chosen.items()
    ]  # fmt: skip


def markdown(rows: list[dict[str, Any]], failed: dict[str, str], budget: float) -> str:
    lines = ["| method | upper step | " + " | ".join(f"seconds to {gap:g} (steps)" for gap in GAPS)
             + " | times slower to 1e-4 | closest |", "|" + " --- |" * 7]  # fmt: skip
    ours = rows[0]["median"].get("0.0001", math.nan)
    for row in rows:
        cells = [
            f"{row['median'][key]:.2f} ({row['steps'][key]})" if key in row["median"] else f"not in {budget:g}"
            for key in (f"{gap:g}" for gap in GAPS)
        ]
        slower = f"{row['median']['0.0001'] / ours:.1f}" if "0.0001" in row["median"] else "-"
        step = f"{row['upper_step']:g}" + ("" if row["unit"] == OURS else f" {row['unit']}")
        lines.append(f"| {row['method']} | {step} | {' | '.join(cells)} | {slower} | {row['closest']:.1e} |")
    lines += [f"| {name} | - | {reason} | | | - | - |" for name, reason in failed.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
