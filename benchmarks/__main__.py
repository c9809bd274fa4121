"""`make bench`: every benchmark, or the ones named, on one thread.

python -m benchmarks [name ...] [--out FILE] [--data FOLDER]
"""

from __future__ import annotations

import argparse
import importlib
import os
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"

BENCHMARKS = ("startup", "hypergradients", "sets", "dmlcbo_step", "cleaning_memory", "few_shot_head")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
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

    from .harness import report

    torch.set_num_threads(1)
    rows = []
    for name in arguments.names or BENCHMARKS:
        print(f"... {name}", flush=True)
        rows += importlib.import_module(f"benchmarks.{name}").rows()
    report(rows, arguments.out)


if __name__ == "__main__":
    main()
