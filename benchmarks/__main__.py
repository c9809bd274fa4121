"""`make bench`: every benchmark, or the ones named, on one thread.

    python -m benchmarks [name ...] [--out FILE] [--data FOLDER]

Rows are stored as they come. A benchmark that fails says why in the table and does not lose the others; the exit code
is then 1.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .harness import Row

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"

BENCHMARKS = (
    "startup", "hypergradients", "sets", "projections", "step_overhead", "dmlcbo_step", "cleaning_memory",
    "few_shot_head", "few_shot_step", "time_to_value",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("names", nargs="*", help=f"which of {', '.join(BENCHMARKS)} (default: all)")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks.json"), help="where to store the rows")
    parser.add_argument("--data", type=Path, help="folder with the official files of the data sets (or BILEVEL_DATA)")
    arguments = parser.parse_args()
    if arguments.data:
        os.environ["BILEVEL_DATA"] = str(arguments.data)
    unknown = set(arguments.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no benchmark called {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")

    import torch

    from .harness import collected, report, store

    torch.set_num_threads(1)
    rows = []
    for name in arguments.names or BENCHMARKS:
        print(f"... {name}", flush=True)
        rows += collected(name, _rows(name))
        store(rows, arguments.out)
    report(rows, arguments.out)
    if any(math.isnan(row.ratio) for row in rows):
        sys.exit(1)


def _rows(name: str) -> Iterator[Row]:
    yield from importlib.import_module(f"benchmarks.{name}").rows()


if __name__ == "__main__":
    main()
