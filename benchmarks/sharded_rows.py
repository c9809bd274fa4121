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

COLUMNS, TRUSTED, CHUNK, SUMMED = 784, 1000, 10_000, 784
EARLY, LATE = 20, 250
"""The first steps that are measured: while y still has many entries, and when the face has settled."""
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
            "pass": lambda: np.dot(columns, pulled, out=out),
            "sum": lambda: ranks.all_sum(summed),
            "gloo": lambda: dist.all_reduce(summed) if ranks.size > 1 else None,
        }
        for line in sys.stdin:
            spent = took(work[line.strip()], steps, ranks)
            tell({**spent, "face": int((state.adjoint["weight"] != 0).sum())})


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


def rows(count: int, steps: int, pairs: int) -> Iterator[Row]:
    groups: list[Group] = []
    try:
        groups += [Group(size, count, steps) for size in (1, 2)]
        one, two = groups

        def measured(what: str) -> list[tuple[dict[str, float], dict[str, float]]]:
            return [(one.do(what), two.do(what)) for _ in range(pairs)]

        measured("early")
        early = measured("step")
        measured("late")
        step, passing = [], []
        for _ in range(pairs):  # in turns: what memory gives to two processes changes from second to second
            for what, found in (("step", step), ("pass", passing)):
                found.append((one.do(what), two.do(what)))
        sums, by_gloo = measured("sum"), measured("gloo")
    finally:
        for group in groups:
            group.end()
    size, load = f"{count} x {COLUMNS} float32", f"load average {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores"
    yield Row(f"load average of the last minute, on {os.cpu_count()} cores, our own included", os.getloadavg()[0])
    for when, found, bounds in (("", step, ("<= 0.6", ">= 1.7")), (", early", early, ("", ""))):
        face = f"a face of {found[0][0]['face']:.0f} columns; {load}"
        cpu, wall = cpu_ratio(found), wall_ratio(found)
        yield Row(f"processor seconds per step and rank, {size}{when}: 2 ranks / 1 rank", cpu, bounds[0], face)
        yield Row(f"wall time per step{when}: 1 rank / 2 ranks", wall, bounds[1], face)
        yield Row(f"rounds per step{when}, 2 ranks", middle(found, lambda _, b: b["rounds"]), "", face)
        sent = middle(found, lambda _, b: b["bytes"]) / (8 * COLUMNS)
        yield Row(f"bytes per step and rank{when}, in units of {8 * COLUMNS} ({COLUMNS} numbers)", sent, "<= 3", face)
    cpu, wall = cpu_ratio(passing), wall_ratio(passing)
    yield Row("the pass over the rows alone: processor seconds, 2 ranks / 1 rank", cpu)
    yield Row("the pass alone: wall time, 1 rank / 2 ranks", wall)
    yield Row("processor seconds: the ratio of the step / that of the pass alone", cpu_ratio(step) / cpu)
    yield Row("wall time: the ratio of the pass alone / that of the step", wall / wall_ratio(step))
    yield Row("milliseconds of processor per step, 1 rank", 1e3 * middle(step, lambda a, _: a["cpu"]))
    yield Row("milliseconds of processor per step and rank, 2 ranks", 1e3 * middle(step, lambda _, b: b["cpu"]))
    yield Row("milliseconds of processor for the pass alone, 1 rank", 1e3 * middle(passing, lambda a, _: a["cpu"]))
    read = middle(passing, lambda a, _: count * COLUMNS * 4 / 1e9 / a["wall"])
    yield Row("GB/s that the pass reads, 1 rank", read)
    latency, rounds = middle(sums, lambda _, b: b["wall"]), middle(step, lambda _, b: b["rounds"])
    yield Row(f"milliseconds of one sum of {SUMMED} numbers, 2 ranks", 1e3 * latency)
    own = 1e3 * middle(by_gloo, lambda _, b: b["wall"])
    yield Row(f"milliseconds of gloo's own sum of {SUMMED} numbers, 2 ranks", own)
    # The model: t(2) is the pass of two at once, half of what one does beside its pass, and the sums.
    beside = middle(step, lambda a, _: a["wall"]) - middle(passing, lambda a, _: a["wall"])
    model = middle(passing, lambda _, b: b["wall"]) + beside / 2 + rounds * latency
    yield Row("wall time per step, 2 ranks: measured / model", middle(step, lambda _, b: b["wall"]) / model)


def cpu_ratio(pairs: list[Any]) -> float:
    """Processor seconds of a rank of two, by those of one rank."""
    return middle(pairs, lambda a, b: b["cpu"] / a["cpu"])


def wall_ratio(pairs: list[Any]) -> float:
    """How much sooner two ranks are ready."""
    return middle(pairs, lambda a, b: a["wall"] / b["wall"])


def middle(pairs: list[Any], number: Callable[[Any, Any], float]) -> float:
    """The median over pairs of a number of both."""
    return median(number(a, b) for a, b in pairs)


if __name__ == "__main__":
    main()
