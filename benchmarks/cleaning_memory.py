"""Hyper-cleaning of a file of 1,000,000 rows: the memory it takes, and how time grows with the number of rows."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from .harness import Row

ROWS, COLUMNS, TRUSTED = 1_000_000, 100, 1_000
STEPS = 3

PEAK = """
def peak():
    '''The largest resident memory of this process so far, mapped pages included, in bytes.'''
    try:
        # Of this program alone: ru_maxrss also remembers the program that started it.
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except OSError:
        import resource, sys
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
"""

BARE = "import json, torch; print(json.dumps({'peak': peak()}))"

RUN = f"""
import json, sys, time
import numpy as np, torch, bilevel
from bilevel.cleaning import CleaningProblem
torch.set_num_threads(1)
folder, count, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rows = np.memmap(folder + "/rows.dat", dtype=np.float32, mode="r").reshape(-1, {COLUMNS})
labels = np.load(folder + "/labels.npy")
trusted = slice(len(rows) - {TRUSTED}, None)
problem = CleaningProblem(rows[:count], labels[:count], rows[trusted], labels[trusted], radius=10.0)
bilevel.minimize(problem, problem.start(), steps=2, evaluate_every=2, output="best")  # all that users run
states = bilevel.iterate(problem, problem.start())
next(states)
products, times = problem.costs.hessian_products, []
for _ in range(steps):
    began = time.perf_counter()
    next(states)
    times.append(time.perf_counter() - began)
products = (problem.costs.hessian_products - products) / steps
print(json.dumps({{"peak": peak(), "seconds": min(times), "products": products}}))
"""

CLEAN = f"""
import json, sys, time
import numpy as np, torch, bilevel
from bilevel.run.progress import TimeLeft
torch.set_num_threads(1)
folder, count = sys.argv[1], int(sys.argv[2])
rows = np.memmap(folder + "/rows.dat", dtype=np.float32, mode="r").reshape(-1, {COLUMNS})[-count - {TRUSTED}:]
labels = np.load(folder + "/labels.npy")[-count - {TRUSTED}:]
trusted = np.arange(len(rows)) >= count
clock, told, began = TimeLeft(), [], time.monotonic()
clock.update(0.0)
def note(moment):
    clock.update(moment.share)
    told.append((time.monotonic() - began, clock.seconds()))
cleaner = bilevel.HyperCleaner(random_state=0, callback=note).fit(rows, labels, trusted=trusted)
cleaner.label_issues()
took = time.monotonic() - began
ratios = [left / (took - now) for now, left in told if left == left and took - now > 0.1 * took]
print(json.dumps({{"peak": peak(), "seconds": took, "least": min(ratios), "most": max(ratios)}}))
"""


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        bare = child(BARE)["peak"]
        runs = {count: child(RUN, folder, str(count), str(STEPS)) for count in (10_000, 100_000, ROWS)}
        cleaned = child(CLEAN, folder, str(ROWS))
    size = 4 * ROWS * COLUMNS
    excess = runs[ROWS]["peak"] - bare
    per_row = {count: run["seconds"] / count for count, run in runs.items()}
    return [
        Row(
            f"CleaningProblem: peak memory above `import torch` / data, {ROWS:,} x {COLUMNS} float32 rows mapped",
            excess / size,
            "<= 1.5",
            f"{excess / 1e6:.0f} MB above {bare / 1e6:.0f} MB",
        ),
        Row(
            "HyperCleaner: the same, with the trusted rows marked by a mask",
            (cleaned["peak"] - bare) / size,
            "<= 1.5",
            f"{(cleaned['peak'] - bare) / 1e6:.0f} MB above {bare / 1e6:.0f} MB, {cleaned['seconds']:.0f} s",
        ),
        Row(
            "HyperCleaner: time left as it was told / as it was, the least honest moment before the last tenth",
            max(cleaned["most"], 1 / cleaned["least"]),
            "<= 3",
            f"from {cleaned['least']:.2f} to {cleaned['most']:.2f}",
        ),
        *(
            Row(
                f"time of a DMLCBO step per row: {count:,} / 10,000 rows",
                per_row[count] / per_row[10_000],
                "<= 2",
                f"{runs[count]['seconds']:.3f} s and {runs[count]['products']:.0f} products per step",
            )
            for count in (100_000, ROWS)
        ),
    ]


def write(folder: Path) -> None:
    """Two classes by a linear rule, 30 % of the labels turned over; the last rows are right and serve as trusted."""
    generator = np.random.default_rng(0)
    rule = generator.normal(size=COLUMNS).astype(np.float32)
    labels = np.empty(ROWS + TRUSTED, dtype=np.int64)
    with open(folder / "rows.dat", "wb") as file:
        for start in range(0, ROWS + TRUSTED, 50_000):
            block = generator.standard_normal((min(50_000, ROWS + TRUSTED - start), COLUMNS), dtype=np.float32)
            labels[start : start + len(block)] = block @ rule > 0
            block.tofile(file)
    wrong = generator.random(ROWS) < 0.3
    labels[:ROWS][wrong] = 1 - labels[:ROWS][wrong]
    np.save(folder / "labels.npy", labels)


def child(program: str, *arguments: str) -> dict[str, float]:
    """What a fresh process prints."""
    command = [sys.executable, "-c", PEAK + program, *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
