"""How things are timed: in alternating blocks, the median of the ratios."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable
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
        if not self.bound or math.isnan(self.ratio):
            return None
        sign, number = self.bound.split()
        return self.ratio <= float(number) if sign == "<=" else self.ratio >= float(number)


def collected(name: str, found: Iterable[Row]) -> list[Row]:
    """The rows as they come; where one fails, those before it and one that says why."""
    rows: list[Row] = []
    try:
        for row in found:
            rows.append(row)
    except Exception as error:
        rows.append(Row(f"{name}: does not run", math.nan, "", reason_of(error)))
    return rows


def reason_of(error: Exception) -> str:
    """The last line of what a program or an exception said."""
    output = error.stderr if isinstance(error, subprocess.CalledProcessError) else None
    said = (output or str(error) or type(error).__name__).strip()
    return said.splitlines()[-1]


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
    """What the numbers were measured with, and on."""
    import torch

    from bilevel.experiments.code_version import commit

    return {
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": [round(value, 2) for value in os.getloadavg()],
    }


def report(rows: list[Row], path: Path) -> None:
    """Print the table, and store it."""
    width = max(len(row.name) for row in rows)
    for row in rows:
        verdict = {True: "met", False: "NOT MET", None: ""}[row.met]
        print(f"{row.name:<{width}}  {_shown(row):>10}  {row.bound:>10}  {verdict:>7}  {row.note}")
    store(rows, path)
    print(f"\nstored in {path}; one thread; hardware: {hardware()}")


def store(rows: list[Row], path: Path) -> None:
    """Write the rows as JSON, with the facts of the machine, and as Markdown."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found = [{**asdict(row), "ratio": None if math.isnan(row.ratio) else row.ratio} for row in rows]
    path.write_text(json.dumps({"hardware": hardware(), "rows": found}, indent=2) + "\n")
    path.with_suffix(".md").write_text(markdown(rows))


def markdown(rows: list[Row]) -> str:
    """The table for a page of the manual."""
    verdict = {True: "yes", False: "no", None: ""}
    lines = ["| what | ratio | wanted | met |", "| --- | --- | --- | --- |"]
    lines += [f"| {row.name} | {_shown(row)} | {row.bound} | {verdict[row.met]} |" for row in rows]
    return "\n".join(lines) + "\n"


def _shown(row: Row) -> str:
    return "-" if math.isnan(row.ratio) else f"{row.ratio:.3g}"
