"""How long until F(x) is within 1e-3, 1e-4 and 1e-5 of the best there is, by method?

    python -m benchmarks.time_to_value --data DATA [--repetitions 5] [--budget 4] [--out results/time-to-value.json]

MNIST 6 vs 9, 2,000 noisy rows with 30 % of the labels flipped, 2,000 trusted rows, logistic loss, |y|_1 <= 1, c = 1e-3,
float64, one thread, all from x = 0, y = 0 (`paper_data.paper_task`, seed 0). F(x) is the loss of the trusted rows at
the lower level solved for x, evaluated outside of the clock. The best there is: the minimum of that loss over the ball,
which no F can fall below. A method has arrived the first time F is that near.

`minimize()` and `DMLCBO()` run as they are. Each other method first looks for its best upper step of 0.01, 0.1, 1, 10
in each of its ways (`contestants`) on this same problem, one run each: the one that is first within 1e-4, or else comes
closest. It starts at 1, and goes on to the neighbours of the best so far. The table has what was found. A run ends
after `--budget` seconds on the clock, or after 1.2 times the best so far. Then all are run in turn, several times; the
table has medians. Times are processor seconds.
Everything is kept in FILE.part while it runs: the same command goes on from there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import torch

from .contestants import PEERS, UNTUNED, Run, Trace, contestants, label
from .harness import Row, hardware, reason_of
from .paper_data import paper_task
from .true_value import Value, lower_bound

GAPS, STEPS = ("1e-3", "1e-4", "1e-5"), (0.01, 0.1, 1.0, 10.0)
GOAL, OURS = "1e-4", "minimize()"
Found = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.time_to_value", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--data", type=Path, required=True, help="folder with mnist/")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--budget", type=float, default=4.0, help="seconds on the clock of a run")
    parser.add_argument("--methods", nargs="+", help="only these")
    parser.add_argument("--choose-only", action="store_true", help="stop when the steps are chosen")
    parser.add_argument("--out", type=Path, default=Path("build/time-to-value.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    race = Race(arguments.data, arguments.budget, arguments.out)
    race.choose(arguments.methods)
    if not arguments.choose_only:
        race.run(arguments.repetitions, arguments.methods)
        table = race.finish()
        print(f"{table}\n{hardware()}\nstored in {arguments.out} and {arguments.out.with_suffix('.md')}")


def rows() -> list[Row]:
    """For `make bench`: the fastest of the others over ours, to 1e-4."""
    if "BILEVEL_DATA" not in os.environ:
        raise RuntimeError("it needs MNIST: pass --data FOLDER, with mnist/ in it")
    race = Race(Path(os.environ["BILEVEL_DATA"]), 4.0, Path("build/time-to-value.json"))
    race.choose()
    race.run(5)
    race.finish()
    return [race.verdict()]


class Race:
    """The comparison, as far as it has come."""

    def __init__(self, data: Path, budget: float, out: Path) -> None:
        task = paper_task(data, "mnist", 0)
        self.value, self.best, self.methods = Value(task), lower_bound(task), contestants(task)
        self.out, self.part = out, out.with_suffix(".part")
        self.state: Found = {"best": self.best, "budget": budget, "chosen": {}, "failed": {}, "seconds": {}}
        say(f"best known F: {self.best:.6f}")
        if self.part.exists():
            kept = json.loads(self.part.read_text())
            if kept["budget"] == budget:
                self.state = kept
                say(f"going on from {self.part} (delete it to start anew)")

    def choose(self, names: list[str] | None = None) -> None:
        """The best setting of each method."""
        for name in names or self.methods:
            if name in self.state["chosen"] or name in self.state["failed"]:
                continue
            try:
                self.state["chosen"][name] = self._best_setting(name)
            except (subprocess.SubprocessError, OSError) as error:
                self.state["failed"][name] = reason_of(error)
                say(f"{name} does not run: {self.state['failed'][name]}")
            self._keep()

    def _best_setting(self, name: str) -> Found:
        """The ways one after the other; each climbs the grid of upper steps from the best so far, first from 1."""
        budget, best, count = self.state["budget"], None, 0
        if name in UNTUNED:
            return {**self._tried(name, "", 1.0, budget), "tried": 1}
        for way in self.methods[name]:
            at, known = STEPS.index(1.0 if best is None else best["step"]), {}
            while untried := {at - 1, at, at + 1} & set(range(len(STEPS))) - set(known):
                for k in sorted(untried, key=lambda k: abs(k - at)):
                    limit = budget if best is None else min(budget, 1.2 * arrival(best))
                    known[k] = self._tried(name, way, STEPS[k], limit)
                    best = known[k] if best is None else min(best, known[k], key=score)
                    count += 1
                at = min(known, key=lambda k: score(known[k]))
        assert best is not None
        if best["limit"] < budget and GAPS[-1] not in best["reached"]:  # it was cut short: how far does it get?
            best |= self._judged(self.methods[name][best["way"]](best["step"], budget, 10**6))
        return {**best, "tried": count}

    def _tried(self, name: str, way: str, step: float, limit: float) -> Found:
        """One run of a method, which is told."""
        found = self._judged(self.methods[name][way](step, limit, 10**6))
        shown = ", ".join(f"{gap} at step {k}, {at:.2f} s" for gap, (k, at) in found["reached"].items())
        say(f"  {name}, {way or 'as it is'}, upper step {step:g}: closest {found['closest']:.1e}; {shown}")
        return {"label": label(name, way, step), "way": way, "step": step, "limit": limit, **found}

    def _judged(self, path: Trace) -> Found:
        """How close a path comes, and the steps and seconds at which it is first within each gap."""
        closest, reached = math.inf, {}
        for k, seconds, x in zip(path.steps, path.seconds, path.xs, strict=True):
            gap = self.value(x) - self.best
            closest = min(closest, gap)
            for wanted in GAPS:
                if gap <= float(wanted):
                    reached.setdefault(wanted, (k, seconds))
            if GAPS[-1] in reached:
                break
        return {"closest": closest, "reached": reached}

    def run(self, repetitions: int, names: list[str] | None = None) -> None:
        """All methods in turn, so many times, each to the last gap that it reaches."""
        chosen = {name: best for name, best in self.state["chosen"].items() if name in (names or self.methods)}
        for repetition in range(repetitions):
            for name, best in chosen.items():
                times = self.state["seconds"].setdefault(name, [])
                if len(times) > repetition or not best["reached"]:
                    continue
                say(f"repetition {repetition + 1} of {repetitions}: {name}")
                run: Run = self.methods[name][best["way"]]
                path = run(best["step"], math.inf, max(k for k, _ in best["reached"].values()))
                at = dict(zip(path.steps, path.seconds, strict=True))
                times.append({gap: at[k] for gap, (k, _) in best["reached"].items()})
                self._keep()

    def median(self, name: str, gap: str) -> float:
        """Seconds to the gap, where there is no other of the run that chose the step; infinite if it is not reached."""
        times = [times[gap] for times in self.state["seconds"].get(name, []) if gap in times]
        found = self.state["chosen"][name]["reached"]
        return median(times) if times else found[gap][1] if gap in found else math.inf

    def mark(self, name: str) -> str:
        """Before the seconds of a single run."""
        return "" if len(self.state["seconds"].get(name, [])) > 1 else "~"

    def verdict(self) -> Row:
        """The fastest of the others over ours."""
        fastest = min(
            (name for name in self.state["chosen"] if name in PEERS), key=lambda name: self.median(name, GOAL)
        )
        slow, fast = self.median(fastest, GOAL), self.median(OURS, GOAL)
        return Row(
            f"time to {GOAL} of the best F: {fastest} / {OURS}", slow / fast, ">= 1", f"{slow:.2f} / {fast:.2f} s"
        )

    def finish(self) -> str:
        """Store the results, as JSON and as a table, which is returned."""
        table = self._table()
        self.out.write_text(json.dumps({**self.state, "hardware": hardware()}, indent=1) + "\n")
        self.out.with_suffix(".md").write_text(table)
        if not self._missing() and all(map(self.state["seconds"].get, self._arrived())):
            self.part.unlink()
        return table

    def _missing(self) -> list[str]:
        """Methods of which nothing is known yet."""
        return [name for name in self.methods if name not in {*self.state["chosen"], *self.state["failed"]}]

    def _arrived(self) -> list[str]:
        return [name for name, best in self.state["chosen"].items() if best["reached"]]

    def _table(self) -> str:
        lines = ["| what ran | " + " | ".join(f"seconds to {gap} (steps)" for gap in GAPS)
                 + f" | times {OURS}, to 1e-4 | closest |", "|" + " --- |" * 6]  # fmt: skip
        ours = self.median(OURS, GOAL) if OURS in self.state["chosen"] else math.nan
        for name in (name for name in self.methods if name in self.state["chosen"]):
            best = self.state["chosen"][name]
            cells = [
                f"{self.mark(name)}{self.median(name, gap):.2f} ({best['reached'][gap][0]})"
                if gap in best["reached"] else f"not in {self.state['budget']:g} s" for gap in GAPS
            ]  # fmt: skip
            ratio = self.median(name, GOAL) / ours
            ratio = f"{ratio:.1f}" if math.isfinite(ratio) else "-"
            lines.append(f"| {best['label']} | {' | '.join(cells)} | {ratio} | {best['closest']:.1e} |")
        lines += [f"| {name} does not run: {why} | | | | - | - |" for name, why in self.state["failed"].items()]
        lines += [f"| {name}, not measured yet | | | | - | - |" for name in self._missing()]
        return "\n".join(lines) + "\n"

    def _keep(self) -> None:
        self.part.parent.mkdir(parents=True, exist_ok=True)
        self.part.write_text(json.dumps(self.state))


def arrival(found: Found) -> float:
    """Seconds to the goal."""
    return found["reached"].get(GOAL, (0, math.inf))[1]


def score(found: Found) -> tuple[float, float]:
    """The sooner at the goal, or else the closer to it, the better."""
    return arrival(found), found["closest"]


def say(text: str) -> None:
    """What is being done, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
