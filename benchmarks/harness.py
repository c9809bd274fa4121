"""How things are timed: in alternating blocks, the median of the ratios."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One measured ratio, and the bound it has to meet ("" when there is none)."""

    name: str
    ratio: float
    bound: str = ""
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the bound holds; None without one."""
        if not self.bound:
            return None
        sign, number = self.bound.split()
        return self.ratio <= float(number) if sign == "<=" else self.ratio >= float(number)


def seconds(function: Callable[[], object], *, budget: float = 0.3) -> float:
    """The best time of one call, over as many calls as fit in the budget (at least three)."""
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - began < budget:
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def best_times(*functions: Callable[[], object], budget: float = 1.0) -> list[float]:
    """The best time of each, called in turn for about `budget` seconds each, after one warm-up."""
    best = [float("inf")] * len(functions)
    for function in functions:
        function()
    began, rounds = time.perf_counter(), 0
    while rounds < 5 or (time.perf_counter() - began < budget and rounds < 2_000):
        for k, function in enumerate(functions):
            start = time.perf_counter()
            function()
            best[k] = min(best[k], time.perf_counter() - start)
        rounds += 1
    return best


def ratio(slow: Callable[[], object], fast: Callable[[], object], *, blocks: int = 5) -> float:
    """seconds(slow) / seconds(fast): the median over alternating blocks, after one warm-up of each."""
    slow(), fast()
    return statistics.median(seconds(slow) / seconds(fast) for _ in range(blocks))


def hardware() -> dict[str, object]:
    """What the numbers were measured on."""
    import torch

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": [round(value, 2) for value in os.getloadavg()],
    }


def report(rows: list[Row], path: Path) -> None:
    """Print the table and store it as JSON and as Markdown."""
    width = max(len(row.name) for row in rows)
    for row in rows:
        verdict = {True: "met", False: "NOT MET", None: ""}[row.met]
        print(f"{row.name:<{width}}  {row.ratio:>10.3g}  {row.bound:>10}  {verdict:>7}  {row.note}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"hardware": hardware(), "rows": [asdict(row) for row in rows]}, indent=2) + "\n")
    path.with_suffix(".md").write_text(markdown(rows))
    print(f"\nstored in {path}; one thread; hardware: {hardware()}")


def markdown(rows: list[Row]) -> str:
    """The table for a page of the manual."""
    verdict = {True: "yes", False: "no", None: ""}
    lines = ["| what | ratio | wanted | met |", "| --- | --- | --- | --- |"]
    lines += [f"| {row.name} | {row.ratio:.3g} | {row.bound} | {verdict[row.met]} |" for row in rows]
    return "\n".join(lines) + "\n"
