"""Rows divided among ranks: one rank against two, one thread each, on this machine.

    python -m benchmarks.sharded_rows [--rows 200000] [--steps 10] [--pairs 5] [--seconds 60] [--patience 300]

Three processes hold the same generated rows, one all of them and two a half each. They work in turns, a block of steps
by the one and a block by the two, so that a busy machine disturbs both; every figure is a median over such pairs.

A step reads the rows, and what memory gives to two processes at once depends on who else uses it. Between the pairs of
blocks of steps are pairs of blocks of the pass over the rows alone, `np.dot` without sums. The machine was quiet for a
pair of steps if in the pairs before and after it the one and the two each passed over their rows nearly as fast as they
ever did in this run. The first `--pairs` such pairs are judged; the table has the medians of all pairs beside them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np

from .harness import Row, report

COLUMNS, TRUSTED, CHUNK, SUMMED = 784, 1000, 10_000, 784
QUIET = 1.1
"""How much longer than at best a pass over the rows may take on a quiet machine."""
REFRESH = 100
"""Every so many steps margins and curvature are computed anew: these are measured by themselves."""
EARLY, LATE = 20, 250
"""The first steps that are measured: while y still has many entries, and when the face has settled."""
OUT = Path("results/sharded-rows.json")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharded_rows", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--steps", type=int, default=10, help="in a block")
    parser.add_argument("--pairs", type=int, default=5, help="of blocks on a quiet machine, and early in the run")
    parser.add_argument("--seconds", type=float, default=60.0, help="in turns at the least, to know what is quiet")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds in which the machine may become quiet")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not 0 < given.steps * given.pairs <= REFRESH - EARLY:
        parser.error(f"--steps x --pairs must be 1 to {REFRESH - EARLY}: early steps end before step {REFRESH}")
    if given.rank:
        serve(given.rows, given.steps)
    else:
        report(list(rows(given.rows, given.steps, given.pairs, (given.seconds, given.patience))), given.out)


# --- one rank -------------------------------------------------------------------------------------------------------


def generated(first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows first ... last - 1 by columns, and their labels, 30 % wrong: the same whoever makes them."""
    direction = np.random.default_rng(0).normal(size=COLUMNS) * (np.random.default_rng(1).random(COLUMNS) < 0.05)
    columns, labels = np.empty((COLUMNS, last - first), np.float32), np.empty(last - first, np.int64)
    for start in range(first // CHUNK * CHUNK, last, CHUNK):
        rng = np.random.default_rng([2, start])
        X = rng.random((CHUNK, COLUMNS), np.float32)
        X *= rng.random((CHUNK, COLUMNS), np.float32) < 0.2
        right = X @ direction.astype(np.float32) > 0
        given = np.where(rng.random(CHUNK) < 0.3, ~right, right)
        here = slice(max(first, start) - start, min(last, start + CHUNK) - start)
        there = slice(max(first, start) - first, min(last, start + CHUNK) - first)
        columns[:, there], labels[there] = X[here].T, given[here]
    return columns, labels


def serve(rows: int, steps: int) -> None:
    """Do as the lines of the standard input say, and answer each with what it took."""
    import torch
    import torch.distributed as dist

    import bilevel
    from bilevel.distributed import ShardedCleaningProblem, connect

    torch.set_num_threads(1)
    with connect("gloo") as ranks:
        columns, labels = generated(ranks.rank * rows // ranks.size, (ranks.rank + 1) * rows // ranks.size)
        trusted, checked = generated(rows, rows + TRUSTED)
        problem = ShardedCleaningProblem(columns.T, labels, trusted.T, checked, ranks=ranks, intercept=False, classes=2)
        run = bilevel.iterate(problem, problem.start())
        state: Any = next(run)

        def step() -> None:
            nonlocal state
            state = next(run)

        def go_to(number: int) -> None:
            while state.step < number:
                step()

        pulled, out = np.random.default_rng(3).random(len(labels), np.float32), np.empty(COLUMNS, np.float32)
        summed = torch.zeros(SUMMED, dtype=torch.float64)
        work: dict[str, Callable[[], Any]] = {
            "step": step,
            "early": lambda: go_to(EARLY),
            "late": lambda: go_to(LATE),
            "before renewal": lambda: go_to(state.step // REFRESH * REFRESH + REFRESH - 1),
            "renewal": step,
            "pass": lambda: np.dot(columns, pulled, out=out),
            "sum": lambda: ranks.all_sum(summed),
            "gloo": lambda: dist.all_reduce(summed) if ranks.size > 1 else None,
        }
        for line in sys.stdin:
            spent = took(work[line.strip()], steps if line.strip() in REPEATED else 1, ranks)
            tell({**spent, "at": state.step, "face": int((state.adjoint["weight"] != 0).sum())})


REPEATED = ("step", "pass", "sum", "gloo")
"""What is done as often as a block has steps."""


def took(do: Callable[[], Any], count: int, ranks: Any) -> dict[str, float]:
    """Seconds and processor seconds of one call, threads of the network included, with its rounds and bytes."""
    ranks.total(0.0)  # all start together
    met, sent = ranks.rounds, ranks.bytes
    began, busy = time.perf_counter(), time.process_time()
    for _ in range(count):
        do()
    cpu, wall = time.process_time() - busy, time.perf_counter() - began
    spent = {"cpu": cpu, "wall": wall, "rounds": ranks.rounds - met, "bytes": ranks.bytes - sent}
    return {name: value / count for name, value in spent.items()}


def tell(answer: Any) -> None:
    print(json.dumps(answer), flush=True)


# --- both groups ----------------------------------------------------------------------------------------------------


class Group:
    """So many ranks, each a process of its own."""

    def __init__(self, size: int, rows: int, steps: int) -> None:
        port = free_port()
        asked = ["-m", "benchmarks.sharded_rows", "--rank", "--rows", str(rows), "--steps", str(steps)]
        told = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        self.processes = [
            subprocess.Popen(
                [sys.executable, *asked], env={**os.environ, **told, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for rank in range(size)
        ]  # fmt: skip

    def do(self, what: str) -> dict[str, float]:
        """The mean over ranks of what they did; of the seconds, those of the last to end."""
        for process in self.processes:
            process.stdin.write(what + "\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
        found = self.answers()
        means = {name: sum(each[name] for each in found) / len(found) for name in found[0]}
        return {**means, "wall": max(each["wall"] for each in found)}

    def answers(self) -> list[Any]:
        lines = [process.stdout.readline() for process in self.processes]  # type: ignore[union-attr]
        if not all(lines):
            raise RuntimeError("a rank has ended; its message is above")
        return list(map(json.loads, lines))

    def end(self) -> None:
        for process in self.processes:
            process.stdin.close()  # type: ignore[union-attr]
        for process in self.processes:
            process.wait()


def free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


Pair = tuple[dict[str, float], dict[str, float]]


def rows(count: int, steps: int, pairs: int, seconds: tuple[float, float]) -> Iterator[Row]:
    groups: list[Group] = []
    try:
        groups += [Group(size, count, steps) for size in (1, 2)]

        def pair(what: str) -> Pair:
            one, two = (group.do(what) for group in groups)
            return one, two

        pair("early")
        early = [pair("step") for _ in range(pairs)]
        pair("late")
        found, renewal = turns(pair, steps, pairs, *seconds)
        sums, by_gloo = [pair("sum") for _ in range(pairs)], [pair("gloo") for _ in range(pairs)]
    finally:
        for group in groups:
            group.end()
    judged = quiet_ones(found)[:pairs]
    quiet = [turn.step for turn in judged]
    step, passing = [turn.step for turn in found], [turn.around[1] for turn in found]
    size, load = f"{count} x {COLUMNS} float32", f"load average {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores"
    yield Row(f"load average of the last minute, on {os.cpu_count()} cores, our own included", os.getloadavg()[0])
    yield Row(f"pairs of blocks of {steps} steps on a quiet machine that are judged, of {len(step)}", len(quiet))
    for when, these, bounds in (
        (", quiet pairs", quiet, ("<= 0.6", ">= 1.7")), (", all pairs", step, ("", "")), (", early", early, ("", ""))
    ):  # fmt: skip
        face = f"a face of {these[0][0]['face']:.0f} columns; {load}" if these else f"never quiet; {load}"
        cpu, wall = cpu_ratio(these), wall_ratio(these)
        yield Row(f"processor seconds per step and rank, {size}{when}: 2 ranks / 1 rank", cpu, bounds[0], face)
        yield Row(f"wall time per step{when}: 1 rank / 2 ranks", wall, bounds[1], face)
        if these is not early:
            hundred = wall_ratio(per_hundred(these, renewal))
            yield Row(f"wall time per 100 steps, one of them anew{when}: 1 rank / 2 ranks", hundred)
    for when, these in (("", step), (", early", early)):
        yield Row(f"sums per step{when}, 2 ranks", middle(these, lambda _, b: b["rounds"]))
        sent = middle(these, lambda _, b: b["bytes"]) / (8 * COLUMNS)
        yield Row(f"bytes per step and rank{when}, in units of {8 * COLUMNS} ({COLUMNS} numbers)", sent, "<= 3")
    around = [each for turn in judged for each in turn.around]
    yield Row("the pass over the rows alone, around quiet pairs: wall time, 1 rank / 2 ranks", wall_ratio(around))
    cpu, wall = cpu_ratio(passing), wall_ratio(passing)
    yield Row("the pass over the rows alone, all pairs: processor seconds, 2 ranks / 1 rank", cpu)
    yield Row("the pass alone, all pairs: wall time, 1 rank / 2 ranks", wall)
    yield Row("the same, the slowest pair", min(a["wall"] / b["wall"] for a, b in passing))
    yield Row("the same, the fastest pair", max(a["wall"] / b["wall"] for a, b in passing))
    yield Row("all pairs, wall time: the ratio of the pass alone / that of the step", wall / wall_ratio(step))
    yield Row("milliseconds of processor per step, 1 rank", 1e3 * middle(step, lambda a, _: a["cpu"]))
    yield Row("milliseconds of processor per step and rank, 2 ranks", 1e3 * middle(step, lambda _, b: b["cpu"]))
    yield Row("milliseconds of processor for the pass alone, 1 rank", 1e3 * middle(passing, lambda a, _: a["cpu"]))
    read = middle(passing, lambda a, _: count * COLUMNS * 4 / 1e9 / a["wall"])
    yield Row("GB/s that the pass reads, 1 rank", read)
    anew = "a step that computes margins and curvature anew, as every hundredth does"
    yield Row(f"milliseconds of {anew}, 1 rank", 1e3 * middle(renewal, lambda a, _: a["wall"]))
    yield Row(f"wall time of such a step, {len(renewal)} pairs: 1 rank / 2 ranks", wall_ratio(renewal))
    latency = middle(sums, lambda _, b: b["wall"])
    yield Row(f"milliseconds of one sum of {SUMMED} numbers, 2 ranks", 1e3 * latency)
    own = 1e3 * middle(by_gloo, lambda _, b: b["wall"])
    yield Row(f"milliseconds of gloo's own sum of {SUMMED} numbers, 2 ranks", own)
    # The model: t(2) is the pass of two at once, half of what one does beside its pass, and the sum that is waited for.
    beside = middle(step, lambda a, _: a["wall"]) - middle(passing, lambda a, _: a["wall"])
    model = middle(passing, lambda _, b: b["wall"]) + beside / 2 + latency
    yield Row("wall time per step, 2 ranks, all pairs: measured / model", middle(step, lambda _, b: b["wall"]) / model)


class Turn(NamedTuple):
    """A pair of blocks of steps, and pairs of the pass alone before and after it."""

    step: Pair
    around: list[Pair]


def turns(
    pair: Callable[[str], Pair], steps: int, wanted: int, least: float, most: float
) -> tuple[list[Turn], list[Pair]]:
    """Turns until `wanted` are quiet, and pairs of the hundredth steps between them, one at least."""
    found: list[Turn] = []
    renewal: list[Pair] = []
    before, began = pair("pass"), time.monotonic()

    def ready() -> bool:
        took = time.monotonic() - began
        return bool(renewal) and took >= least and (took >= most or len(quiet_ones(found)) >= wanted)

    while not ready():
        step, after = pair("step"), pair("pass")
        found.append(Turn(step, [before, after]))
        before = after
        if step[0]["at"] % REFRESH + steps >= REFRESH:
            pair("before renewal")
            renewal.append(pair("renewal"))
            before = pair("pass")
    return found, renewal


def quiet_ones(found: list[Turn]) -> list[Turn]:
    """Those around which both groups passed over their rows about as fast as they ever did."""
    best = [min(each[k]["wall"] for turn in found for each in turn.around) for k in (0, 1)]
    return [turn for turn in found if all(each[k]["wall"] <= QUIET * best[k] for each in turn.around for k in (0, 1))]


def per_hundred(step: list[Pair], renewal: list[Pair]) -> list[Pair]:
    """Pairs of a hundred steps: 99 as in a block of these, and the median of those that compute anew."""
    anew = [middle(renewal, lambda a, _: a["wall"]), middle(renewal, lambda _, b: b["wall"])]
    hundred = [[{"wall": (REFRESH - 1) * each[k]["wall"] + anew[k]} for k in (0, 1)] for each in step]
    return [(one, two) for one, two in hundred]


def cpu_ratio(pairs: list[Any]) -> float:
    """Processor seconds of a rank of two, by those of one rank."""
    return middle(pairs, lambda a, b: b["cpu"] / a["cpu"])


def wall_ratio(pairs: list[Any]) -> float:
    """How much sooner two ranks are ready."""
    return middle(pairs, lambda a, b: a["wall"] / b["wall"])


def middle(pairs: list[Any], number: Callable[[Any, Any], float]) -> float:
    """The median over pairs of a number of both; NaN where there is none."""
    return median(number(a, b) for a, b in pairs) if pairs else math.nan


if __name__ == "__main__":
    main()
