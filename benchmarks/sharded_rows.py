"""Rows divided among ranks: one rank against two, one thread each, on this machine.

    python -m benchmarks.sharded_rows [--rows 200000] [--steps 20] [--pairs 5]

Three processes hold the same generated rows, one all of them and two a half each. They work in turns, a block of steps
by the one and a block by the two, so that a busy machine disturbs both; every figure is a median over such pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np

from .harness import Row, report

COLUMNS, TRUSTED, CHUNK, FIRST = 784, 1000, 10_000, 30
OUT = Path("results/sharded-rows.json")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharded_rows", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--steps", type=int, default=20, help="in a block")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        serve(given.rows, given.steps)
    else:
        report(list(rows(given.rows, given.steps, given.pairs)), given.out)


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

    import bilevel
    from bilevel.distributed import ShardedCleaningProblem, connect

    torch.set_num_threads(1)
    with connect("gloo") as ranks:
        columns, labels = generated(ranks.rank * rows // ranks.size, (ranks.rank + 1) * rows // ranks.size)
        trusted, checked = generated(rows, rows + TRUSTED)
        problem = ShardedCleaningProblem(columns.T, labels, trusted.T, checked, ranks=ranks, intercept=False, classes=2)
        states = bilevel.iterate(problem, problem.start())
        state: Any = next(states)
        for _ in range(FIRST):
            state = next(states)
        pulled, out = np.random.default_rng(3).random(len(labels), np.float32), np.empty(COLUMNS, np.float32)
        summed = torch.zeros(COLUMNS + 400, dtype=torch.float64)
        work: dict[str, Callable[[], Any]] = {
            "step": lambda: next(states),
            "pass": lambda: np.dot(columns, pulled, out=out),
            "sum": lambda: ranks.all_sum(summed),
        }
        tell({"face": int((state.adjoint["weight"] != 0).sum())})
        for line in sys.stdin:
            tell(took(work[line.strip()], steps, ranks))


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
        self.about = self.answers()[0]

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


def rows(count: int, steps: int, pairs: int) -> Iterator[Row]:
    groups: list[Group] = []
    try:
        groups += [Group(size, count, steps) for size in (1, 2)]
        one, two = groups
        pairs_of = {what: [(one.do(what), two.do(what)) for _ in range(pairs)] for what in ("pass", "step")}
        sums = [two.do("sum") for _ in range(pairs)]
    finally:
        for group in groups:
            group.end()

    def middle(what: str, ratio: Callable[[Any, Any], float]) -> float:
        return median(ratio(a, b) for a, b in pairs_of[what])

    size, load = f"{count} x {COLUMNS} float32", f"load average {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores"
    face = f"a face of {one.about['face']} columns"
    step, passing, latency = pairs_of["step"], pairs_of["pass"], median(s["wall"] for s in sums)
    bandwidth = count * COLUMNS * 4 / 1e9 / median(a["wall"] for a, _ in passing)
    yield Row(f"processor seconds per step and rank, {size}: 2 ranks / 1 rank",
              middle("step", lambda a, b: b["cpu"] / a["cpu"]), "<= 0.6", face)  # fmt: skip
    yield Row(
        "wall time per step: 1 rank / 2 ranks", middle("step", lambda a, b: a["wall"] / b["wall"]), ">= 1.7", load
    )
    yield Row("the pass over the rows alone: processor seconds, 2 ranks / 1 rank",
              middle("pass", lambda a, b: b["cpu"] / a["cpu"]))  # fmt: skip
    yield Row(
        "the pass alone: wall time, 1 rank / 2 ranks", middle("pass", lambda a, b: a["wall"] / b["wall"]), "", load
    )
    yield Row("rounds per step, 2 ranks", median(b["rounds"] for _, b in step), "<= 1.5")
    yield Row(f"bytes per step and rank, in {COLUMNS} numbers of 8 bytes",
              median(b["bytes"] for _, b in step) / (8 * COLUMNS), "<= 3")  # fmt: skip
    yield Row("milliseconds of processor per step, 1 rank", 1e3 * median(a["cpu"] for a, _ in step))
    yield Row("milliseconds of processor per step and rank, 2 ranks", 1e3 * median(b["cpu"] for _, b in step))
    yield Row("milliseconds of a step beside the pass, 1 rank (wall)",
              1e3 * median(a["wall"] for a, _ in step) - 1e3 * median(a["wall"] for a, _ in passing))  # fmt: skip
    yield Row("GB/s that the pass reads, 1 rank", bandwidth)
    yield Row(f"milliseconds of one sum of {COLUMNS + 400} numbers, 2 ranks", 1e3 * latency)
    # t(2) = t(1)/2 + what memory takes more when two read + one sum
    predicted = [(a["wall"] - p["wall"]) / 2 + q["wall"] + latency
                 for (a, _), (p, q) in zip(step, passing, strict=True)]  # fmt: skip
    yield Row("wall time per step, 2 ranks: measured / model",
              median(b["wall"] / guess for (_, b), guess in zip(step, predicted, strict=True)))  # fmt: skip


if __name__ == "__main__":
    main()
