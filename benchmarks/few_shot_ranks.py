"""What does a step of few-shot training cost each of several processes, and what do they send?

    python -m benchmarks.few_shot_ranks
    torchrun --nproc-per-node 2 -m benchmarks.few_shot_ranks

Four 20-way 5-shot tasks of generated images per step through the default network, on one thread per process.
Processor seconds of a step and rank, rounds and bytes of a step, means over the steps after the first 5.
"""

from __future__ import annotations

import argparse
import os
import time

os.environ["OMP_NUM_THREADS"] = "1"

import torch

from bilevel.applications.few_shot.experiment import Experiment
from bilevel.distributed import Ranks, TaskParallel, connect

WARM_UP = 5


def cost(ranks: Ranks, solver: str, normalise: bool, steps: int) -> tuple[float, float, float]:
    """Processor seconds of the slowest rank, rounds and bytes of a step."""
    experiment = Experiment(dataset="generated", solver=solver, tasks_per_step=4, normalise=normalise)
    learner, source = experiment.learner(TaskParallel(ranks)), experiment.splits().train
    learner.fit(source, steps=WARM_UP, evaluate_every=10**6)
    updates, draw = learner._updates, lambda step: learner._draw(source, step)
    learner.network.train()
    rounds, sent, began = ranks.rounds, ranks.bytes, time.process_time()
    for step in range(WARM_UP + 1, WARM_UP + steps + 1):
        updates.step(draw, step)
        ranks.total(0.0, 0.0)  # time and Ctrl-C
    seconds = time.process_time() - began
    found = (ranks.rounds - rounds) / steps, (ranks.bytes - sent) / steps
    return max(ranks.gather(seconds / steps)), *found


def main() -> None:
    """Print one line per method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    with connect() as ranks:
        for solver in ("dmlcbo", "adam", "vpbgd"):
            for normalise in (False, True):
                seconds, rounds, sent = cost(ranks, solver, normalise, steps)
                if ranks.rank == 0:
                    how = "with" if normalise else "without"
                    print(
                        f"{ranks.size} ranks, {solver} {how} batch normalisation: {seconds:.3f} processor seconds, "
                        f"{rounds:.1f} rounds, {sent / 1e3:.0f} kB per step; load {os.getloadavg()[0]:.1f}"
                    )


if __name__ == "__main__":
    main()
