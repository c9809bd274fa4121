"""The bits of runs: a line NAME DIGEST for each solver on each of the known problems that it takes.

    python bits.py STEPS [STOP]

With STOP the run is stopped at that step, saved, loaded and resumed.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

import bilevel
from bilevel.solvers.base import solver_classes
from bilevel.testing.known_problems import known_problems


def digest(solution: bilevel.Solution) -> str:
    """Every tensor and number of the state, the output, the counts and the history, but for the seconds."""
    total = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            total.update(
                str(value.dtype).encode() + value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            )
        elif isinstance(value, dict):
            for key, entry in value.items():
                total.update(key.encode())
                add(entry)
        elif isinstance(value, list | tuple):
            for entry in value:
                add(entry)
        else:
            total.update(repr(value).encode())

    state = {field.name: getattr(solution.state, field.name) for field in fields(solution.state)}
    rows = [{**row, "seconds": 0} for row in solution.rows()]
    add([solution.x, solution.y, state, rows, {**solution.stats, "seconds": 0}])
    return total.hexdigest()


def solvers() -> dict[str, Any]:
    """Every solver, and the random estimators of the first."""
    noisy = bilevel.Neumann(terms=4, truncation="random", smoothing=bilevel.hypergradients.Perturbed(radius=0.05))
    two_point = bilevel.Neumann(terms=3, eta=0.3, smoothing=bilevel.hypergradients.TwoPoint(radius=1e-3))
    drawn = {"random truncation": noisy, "two points": two_point, "unrolled": bilevel.Unrolled(steps=3)}
    made = {name: bilevel.DMLCBO(upper_step=0.1, hypergradient=estimator) for name, estimator in drawn.items()}
    return {**made, **{cls.__name__: cls() for cls in solver_classes()}}


def run(known: Any, solver: Any, steps: int, stop: int | None) -> bilevel.Solution:
    """A run of so many steps; with `stop`, through a file at that step."""
    options = {"solver": solver, "seed": 11, "evaluate_every": 5, "output": "sampled"}
    if stop is None:
        return bilevel.minimize(known.problem, known.x0, known.y0, steps=steps, **options)

    def interrupt(record: Any, state: Any) -> None:
        if state.step == stop:
            raise KeyboardInterrupt

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.safetensors"
        checkpoint = bilevel.Checkpoint(path, every=3)
        start = (known.problem, known.x0, known.y0)
        bilevel.minimize(*start, steps=steps, callbacks=[interrupt], checkpoint=checkpoint, **options)
        return bilevel.minimize(known.problem, resume=path, checkpoint=checkpoint, solver=solver)


def digests(
    steps: int, stop: int | None = None, *, names: set[str] | None = None, problems: int | None = None
) -> Iterator[tuple[str, str]]:
    """The digest of each run, by solver and problem; of the first few problems and some solvers if asked."""
    for known in list(known_problems())[:problems]:
        for name, solver in solvers().items():
            if names is None or name in names:
                try:
                    yield f"{name} / {known.name}", digest(run(known, solver, steps, stop))
                except bilevel.IncompatibleError:
                    continue


if __name__ == "__main__":
    torch.set_num_threads(1)
    for label, value in digests(*map(int, sys.argv[1:])):
        print(f"{value} {label}", flush=True)  # noqa: T201
