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
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch

from bilevel.few_shot.episodes import Episodes, Tasks
from bilevel.few_shot.options import Experiment
from bilevel.ranks import Ranks, connect

WARM_UP = 5


def cost(ranks: Ranks, solver: str, normalise: bool, steps: int) -> tuple[float, float, float]:
    """Processor seconds of the slowest rank, rounds and bytes of a step."""
    method: Any = {"solver": solver, "plain": not normalise}
    experiment = Experiment(dataset="generated", tasks_per_step=4, **method)
    source = Watched(experiment.splits().train, ranks)
    experiment.learner(ranks).fit(source, steps=WARM_UP + steps + 1, evaluate_every=10**6)
    (began, *before), (ended, *after) = source.seen[-steps - 1], source.seen[-1]
    rounds, sent = ((new - old) / steps for old, new in zip(before, after, strict=True))
    return max(ranks.gather((ended - began) / steps)), rounds, sent


class Watched:
    """Tasks of others, and what had been spent each time some were drawn: once per step."""

    def __init__(self, tasks: Episodes, ranks: Ranks) -> None:
        self.tasks, self.ranks, self.ways = tasks, ranks, tasks.ways
        self.seen: list[tuple[float, int, int]] = []

    def sample(self, count: int, generator: torch.Generator) -> Tasks:
        """See `Episodes.sample`."""
        self.seen.append((time.process_time(), self.ranks.rounds, self.ranks.bytes))
        return self.tasks.sample(count, generator)


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
