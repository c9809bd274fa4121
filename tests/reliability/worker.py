"""Runs that are killed: reads lines SECONDS PATH, and for each starts a run that it kills then.

Every run is a process of its own, forked from this one, which has imported everything that a run needs. 0 seconds
mean that it may live. When the run has ended, one way or the other, the seconds it lasted are printed. All seconds are
those of the processor: on a busy machine the clock says little about how far a run is.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import bilevel

STEPS, EVERY = 40, 4


def problem() -> bilevel.Problem:
    """Weighted least squares in batches over an l1 ball: data, truncation and smoothing are all random."""
    generator = torch.Generator().manual_seed(0)
    rows, labels = torch.randn(60, 8, generator=generator).double(), torch.randn(60, generator=generator).double()

    def upper(x: Any, y: Any, batch: Any) -> torch.Tensor:
        return (rows[:20] @ y["weight"] + y["bias"] - labels[:20]).square().mean()

    def lower(x: Any, y: Any, batch: Any) -> torch.Tensor:
        index = torch.arange(40) if batch is None else batch
        errors = (rows[20:][index] @ y["weight"] + y["bias"] - labels[20:][index]).square()
        return (x[index].sigmoid() * errors).mean() + 0.1 * (y["weight"].square().sum() + y["bias"].square().sum())

    return bilevel.Problem(
        upper,
        lower,
        bilevel.sets.ProductSet({"weight": bilevel.sets.L1Ball(1.0), "bias": bilevel.sets.FreeSpace()}),
        sampler=lambda generator: torch.randint(40, (10,), generator=generator),
        x0=torch.zeros(40).double(),
        y0={"weight": torch.zeros(8).double(), "bias": torch.zeros(1).double()},
    )


def settings() -> dict[str, Any]:
    """What the undisturbed run, the killed one and the resumed one share."""
    estimator = bilevel.Neumann(
        terms=4, eta=0.2, truncation="random", smoothing=bilevel.hypergradients.Perturbed(radius=0.1)
    )
    return {
        "solver": bilevel.DMLCBO(upper_step=0.1, hypergradient=estimator),
        "output": "sampled",
        "evaluate_every": 10,
    }


def run(path: str | None = None) -> bilevel.Solution:
    """From the start to the end, unless somebody intervenes."""
    checkpoint = None if path is None else bilevel.Checkpoint(path, every=EVERY)
    return bilevel.minimize(problem(), steps=STEPS, seed=7, checkpoint=checkpoint, **settings())


def resume(path: Path) -> bilevel.Solution:
    """What a user does after a crash: go on if there is a checkpoint, else begin."""
    if not (path.exists() or bilevel.Checkpoint(path).previous.exists()):
        return run(str(path))
    return bilevel.minimize(problem(), resume=path, checkpoint=bilevel.Checkpoint(path, every=EVERY), **settings())


def lasted(child: int, delay: float) -> float:
    """Kill the child when it has used so many seconds (0: never); how many it used until its end."""
    clock = (~child << 3) | 2  # the processor time of a process: what clock_getcpuclockid(3) gives on Linux
    while delay and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.clock_gettime(clock) >= delay:
            os.kill(child, signal.SIGKILL)  # nobody has waited for it yet: the number is still its own
            break
        time.sleep(1e-3)
    usage = os.wait4(child, 0)[2]
    return usage.ru_utime + usage.ru_stime


def import_everything() -> None:
    """Much is imported when first used; in a run that is killed it would take most of the time."""
    with tempfile.TemporaryDirectory() as folder:
        run(str(Path(folder) / "run.safetensors"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    import_everything()
    for line in sys.stdin:
        delay, _, path = line.strip().partition(" ")
        child = os.fork()
        if child == 0:
            run(path)
            os._exit(0)
        print(lasted(child, float(delay)), flush=True)  # noqa: T201
