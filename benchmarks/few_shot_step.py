"""Where does a step of few-shot training spend its time?

    python -m benchmarks.few_shot_step [--data DATA] [--out results/few-shot-step.json]

Steps of DMLCBO at the defaults of `Experiment` for problems of 5 and 10 ways, on Omniglot from DATA, or on generated
images without. (Tasks of training have `train_ways` classes, the same for both.) Processor seconds of each part alone,
what it calls in other parts not included, means over the steps after the first 10.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"

import torch

from bilevel.few_shot.episodes import Episodes
from bilevel.few_shot.networks import ConvNet
from bilevel.few_shot.options import Experiment
from bilevel.few_shot.problem import FewShotProblem
from bilevel.few_shot.svm_dual import Dual
from bilevel.few_shot.training import MetaTraining
from bilevel.hypergradients import LinearSolve
from bilevel.solvers import DMLCBO

from .harness import Row, hardware

WARM_UP, STEPS = 10, 60
NETWORK = ("network, forward", "network, backward")
REST = "the rest: copies, checks, loss and accuracy"
PARTS: dict[tuple[Any, str], str] = {
    (Episodes, "sample"): "drawing tasks",
    (ConvNet, "forward"): NETWORK[0],
    (Dual, "solve"): "dual solve",
    (LinearSolve, "estimate"): "hypergradient on the face",
    (FewShotProblem, "pull_back"): NETWORK[1],
    (DMLCBO, "step"): "the solver's update",
    (MetaTraining, "step"): REST,
}
"""The function of each part."""


class Stopwatch:
    """Processor seconds by part: the clock of a part stands still while another one runs within it."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._stack: list[str] = []
        self._since = time.process_time()

    def _charge(self) -> None:
        now = time.process_time()
        if self._stack:
            self.seconds[self._stack[-1]] += now - self._since  # type: ignore[assignment]
        self._since = now

    def timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        """The function, with its time charged to the part."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self._charge()
            self._stack.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                self._charge()
                self._stack.pop()

        return wrapped

    @contextmanager
    def watching(self) -> Iterator[None]:
        """The functions of all parts are timed."""
        with ExitStack() as stack:
            for (owner, name), part in PARTS.items():
                stack.enter_context(mock.patch.object(owner, name, self.timed(getattr(owner, name), part)))
            yield


def seconds_by_part(ways: int, data: Path | None, steps: int = STEPS) -> dict[str, float]:
    """Of one step, by part; the network first."""
    experiment = Experiment(dataset="omniglot" if data else "generated", ways=ways)
    tasks, learner, watch = experiment.splits(data).train, experiment.learner(), Stopwatch()
    learner.fit(tasks, steps=WARM_UP, evaluate_every=WARM_UP + steps)
    with watch.watching():
        learner.fit(tasks, steps=WARM_UP + steps, evaluate_every=WARM_UP + steps)
    order = [*NETWORK, *(part for part in PARTS.values() if part not in NETWORK)]
    return {part: watch.seconds[part] / steps for part in order}


def over_network(seconds: dict[str, float]) -> float:
    """The whole step over what the network takes of it."""
    return sum(seconds.values()) / sum(seconds[part] for part in NETWORK)


def rows() -> list[Row]:
    """For `make bench`: a step over the network's part of it."""
    data = os.environ.get("BILEVEL_DATA")
    found = []
    for ways in (5, 10):
        seconds = seconds_by_part(ways, Path(data) if data else None, steps=30)
        shares = ", ".join(f"{part} {s * 1e3:.1f} ms" for part, s in seconds.items())
        name = f"few-shot step / network in it, {ways}-way, {'Omniglot' if data else 'generated images'}"
        found.append(Row(name, over_network(seconds), "", shares))
    return found


def markdown(found: dict[int, dict[str, float]]) -> str:
    """Milliseconds and shares."""
    lines = ["| part | " + " | ".join(f"{ways}-way, ms | share" for ways in found) + " |"]
    lines.append("|" + " --- |" * (1 + 2 * len(found)))
    for part in next(iter(found.values())):
        cells = [f"{s[part] * 1e3:.1f} | {s[part] / sum(s.values()):.1%}" for s in found.values()]
        lines.append(f"| {part} | " + " | ".join(cells) + " |")
    lines.append("| together | " + " | ".join(f"{sum(s.values()) * 1e3:.1f} | 100 %" for s in found.values()) + " |")
    return "\n".join(lines).replace("%", " %").replace("  %", " %") + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.few_shot_step", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--data", type=Path, help="folder with omniglot/; generated images without")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=Path("build/few-shot-step.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {ways: seconds_by_part(ways, arguments.data, arguments.steps) for ways in (5, 10)}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    content = {"hardware": hardware(), "steps": arguments.steps, "seconds": found}
    arguments.out.write_text(json.dumps(content, indent=1) + "\n")
    arguments.out.with_suffix(".md").write_text(markdown(found))
    print(f"{markdown(found)}\n{hardware()}\nstored in {arguments.out}")


if __name__ == "__main__":
    main()
