"""The methods of `time_to_value`: ours through `minimize`, and libraries of others in environments of their own.

Each runs from x = 0, y = 0 on the same rows, and tells where x was after some steps with the processor seconds of its
steps alone: what is recorded, compiled or evaluated is not on the clock.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import bilevel
from bilevel.cleaning import CleaningProblem

from .environments import JAXOPT, peer_python
from .paper_data import Task

HERE = Path(__file__).parent / "peers"
INSTALLS: dict[str, list[tuple[str, ...]]] = {
    "jaxopt": [JAXOPT],
    "torchopt": [("torchopt==0.7.3",)],
    "boat": [("--no-deps", "boat-torch==1.1.1", "higher==0.2.1")],  # torchvision would bring a CUDA build of torch
    "betty": [("pip<24.1",), ("--no-deps", "betty-ml==0.1.1")],  # later ones refuse what its metadata say of torch
}
PEERS: dict[str, tuple[str, list[tuple[int, str]]]] = {
    "jaxopt, jitted": ("jaxopt", [(0, "descent"), (0, "adam")]),
    "jaxopt, jitted, plain steps": (
        "jaxopt",
        [(30, "descent"), (100, "descent"), (10, "descent"), (30, "adam")],
    ),
    "TorchOpt": ("torchopt", [(30, "descent"), (100, "descent"), (10, "descent"), (30, "adam")]),
    "BOAT, projection added": ("boat", [(10, "adam"), (10, "descent")]),
    "Betty, projection added": ("betty", [(10, "descent"), (10, "adam")]),
}
"""By name: whose it is, and the numbers of inner steps (0: its own way) and the ways to move x that are tried."""
UNTUNED = ("minimize()", "DMLCBO()")
"""Calls without settings."""


@dataclass
class Trace:
    """Where x was after some steps, and the seconds on the clock."""

    steps: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    xs: list[Any] = field(default_factory=list)


Run = Callable[[float, float, int], Trace]
"""(upper step, seconds at most, steps at most) -> the path of x."""


def cleaning(task: Task, columns: Any = slice(None)) -> CleaningProblem:
    """The problem of the paper, or that of some of its columns."""
    return CleaningProblem(
        np.ascontiguousarray(task.X[:, columns]), task.given, np.ascontiguousarray(task.trusted_X[:, columns]),
        task.trusted_y, noise="rows", loss="logistic", radius=1.0, ridge=1e-3, intercept=False,
    )  # fmt: skip


def contestants(task: Task) -> dict[str, dict[str, Run]]:
    """By name, and by the other settings of each way it runs; ours are called by `label`."""
    names = (*UNTUNED, "DMLCBO", "DMLCBO on few products", "Approx", "RMDPCD", "VPBGD", *PEERS)
    found: dict[str, dict[str, Run]] = {name: {} for name in names}
    n = len(task.given)

    def ours(name: str, solver: Callable[[float], Any], every: int = 1, steps: int = 1000, **settings: Any) -> None:
        way = ", ".join(f"{setting}={value!r}" for setting, value in settings.items())
        found[name][way] = through_minimize(task, lambda step: solver(step, **settings), every, steps)

    ours("minimize()", lambda _: "auto")
    ours("DMLCBO()", lambda _: bilevel.DMLCBO(), 10, 2000)
    ours("DMLCBO", lambda s: bilevel.DMLCBO(upper_step=s), 40, 2000)
    for eta in (0.3, 1.0, 3.0):  # it has a part in which face is looked at, and none in the solution there
        few = bilevel.LinearSolve(tol=0.1, max_iterations=2, eta=eta)
        name = "DMLCBO on few products"
        ours(name, lambda s, **b: bilevel.DMLCBO(upper_step=s, **b), 2, 200, lower_step=1.0, hypergradient=few)
    # f and g are means over rows, and these methods do not scale their hypergradients: their steps are in units of n.
    for rule in ("adaptive", "fixed"):
        plain = {"inner": "plain", "inner_steps": 100, "step_rule": rule}
        ours("Approx", lambda s, **b: bilevel.Approx(upper_step=s * n, **b), **plain)
        full = {"inner": "full", "step_rule": rule}  # coordinate steps stall on a ball
        ours("RMDPCD", lambda s, **b: bilevel.solvers.RMDPCD(upper_step=s * n, **b), **full)
    for ramp in (0, 100):
        more = {"lower_steps": 100, "penalty_steps": 100, "ramp": ramp}
        ours("VPBGD", lambda s, **b: bilevel.solvers.VPBGD(upper_step=s * n, **b), **more)
    for name, (library, ways) in PEERS.items():
        for inner, mover in ways:
            found[name][f"{inner} steps, {mover}" if inner else mover] = peer(library, task, mover, inner)
    return found


def label(name: str, way: str, step: float) -> str:
    """What ran, with all settings that differ from the defaults."""
    if name in UNTUNED:
        return name
    if name in PEERS:
        return f"{name}: step {step:g}, {way}"
    unit = "" if name.startswith("DMLCBO") else " n"
    return f"{name.partition(' ')[0]}({', '.join(filter(None, (f'upper_step={step:g}{unit}', way)))})"


def through_minimize(task: Task, solver: Callable[[float], Any], every: int, most: int) -> Run:
    """A solver of ours, looked at every so many steps, for `most` at the most.

    What precedes the first step, such as the choice of the solver and the check of derivatives, is on the clock.
    """

    def run(step: float, seconds: float, steps: int) -> Trace:
        problem, path, last = cleaning(task), Trace(), min(steps, most)
        began = time.process_time()
        first = bilevel.minimize(problem, problem.start(), solver=solver(step), steps=1, clock=time.process_time)
        before = time.process_time() - began - first.stats["seconds"]

        def keep(record: Any, state: Any) -> bool:
            due = not path.steps or state.step >= path.steps[-1] + max(1, path.steps[-1] // 8)  # as the peers do
            if due or state.step == last:
                path.steps.append(state.step)
                path.seconds.append(before + record.seconds)
                path.xs.append(state.x.clone())
            return record.seconds > seconds

        bilevel.minimize(
            problem, problem.start(), solver=solver(step), steps=last, evaluate_every=every, callbacks=[keep],
            clock=time.process_time,
        )  # fmt: skip
        return path

    return run


def peer(name: str, task: Task, mover: str, inner: int) -> Run:
    """A library of others; x moves by descent, with steps in units of n, or by Adam."""

    def run(step: float, seconds: float, steps: int) -> Trace:
        python = peer_python(name, *INSTALLS[name], shared=name != "jaxopt")
        with tempfile.TemporaryDirectory() as folder:
            data, out = Path(folder) / "data.npz", Path(folder) / "out.npz"
            np.savez(data, A=task.X, a=2.0 * task.given - 1, B=task.trusted_X, b=2.0 * task.trusted_y - 1,
                     x0=np.zeros(len(task.given)))  # fmt: skip
            length = step if mover == "adam" else step * len(task.given)
            command = [
                python,
                "-W",
                "ignore",
                HERE / f"with_{name}.py",
                data,
                out,
                length,
                seconds,
                steps,
                mover,
                inner,
            ]
            subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True, timeout=600)
            kept = np.load(out)
            return Trace(kept["steps"].tolist(), kept["seconds"].tolist(), list(kept["xs"]))

    return run
