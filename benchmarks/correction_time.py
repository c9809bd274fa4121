"""Time and memory of noise="correction" on large tables: python -m benchmarks.correction_time [--rows N ...] [--out F]

50 columns, three classes, 30 % wrong labels, 200 checked rows, one thread, each size in a process of its own.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from .cleaning_memory import child
from .harness import hardware

RUN = """
import json, sys, time, warnings
import numpy as np, torch, bilevel
torch.set_num_threads(1)
warnings.simplefilter("ignore")
count = int(sys.argv[1])
rng = np.random.default_rng(0)
X = rng.normal(size=(count + 200, 50))
scores = X[:, :3] + X[:, 3:6] * X[:, 6:9]
right = scores.argmax(1)
given = np.where(rng.random(len(right)) < 0.3, rng.integers(0, 3, len(right)), right)
before, began = peak(), time.process_time()
cleaner = bilevel.HyperCleaner(noise="correction", random_state=0)
cleaner.fit(X[200:], given[200:], X_trusted=X[:200], y_trusted=right[:200])
print(json.dumps({"seconds": time.process_time() - began, "peak": peak() - before, "size": X.nbytes}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.correction_time", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--rows", type=int, nargs="+", default=[20_000, 200_000])
    parser.add_argument("--out", type=Path, default=Path("build/correction-time.json"))
    arguments = parser.parse_args()
    found, lines = {}, ["| rows x 50 columns | seconds of the processor | memory above the table |", "|" + " --- |" * 3]
    for count in arguments.rows:
        found[count] = child(RUN, str(count))
        extra = found[count]["peak"] / 1e6
        lines.append(f"| {count:,} | {found[count]['seconds']:.0f} | {extra:.0f} MB |")
        print(lines[-1], flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"hardware": hardware(), "runs": found}, indent=1) + "\n")
    arguments.out.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
