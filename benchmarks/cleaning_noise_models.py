"""What each noise model of HyperCleaner does, and whether the weight or the probability of a label ranks better.

    python -m benchmarks.cleaning_noise_models --data DATA [--seeds 3] [--first-seed 10] [--out FILE]

The problems of `benchmarks.cleaning_rivals`. For each noise model alone, and for "auto", the means over the seeds of:
AUROC of the label's quality (the cleaned model's probability of the given label), AUROC of the weight that the noise
model gives the row, and the accuracy of the reference model refitted on the rows kept and on the trusted ones.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean

from .cleaning_rivals import DATASETS, auroc, fitted, refit  # one thread, said there
from .harness import hardware
from .paper_data import Task, ten_classes

NOISE = ("rows", "class-pairs", "transition", "auto")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cleaning_noise_models", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--data", type=Path, required=True, help="folder with mnist/ and fashion-mnist/")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("build/cleaning-noise-models.json"))
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    cells = []
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    for name in DATASETS:
        for kind in ("uniform", "class-dependent"):
            for trusted in (500, 100):
                tasks = {seed: ten_classes(arguments.data, name, kind, trusted, seed) for seed in seeds}
                for noise in NOISE:
                    runs = [run(task, seed, noise) for seed, task in tasks.items()]
                    cells.append({"data": name, "kind": kind, "trusted": trusted, "noise": noise, "runs": runs})
                    print(line(cells[-1]), flush=True)
                arguments.out.parent.mkdir(parents=True, exist_ok=True)
                content = {"hardware": hardware(), "seeds": list(seeds), "cells": cells}
                arguments.out.write_text(json.dumps(content, indent=1) + "\n")
                arguments.out.with_suffix(".md").write_text(markdown(cells))
    print(f"\nstored in {arguments.out}, and as a table in {arguments.out.with_suffix('.md')}")


def run(task: Task, seed: int, noise: str) -> dict[str, float]:
    """What one noise model reaches."""
    cleaner = fitted(task, seed, noise=noise)
    issues = cleaner.label_issues()
    return {
        "quality": auroc(task, issues["label_quality"].to_numpy()),
        "weight": auroc(task, cleaner.sample_weight_),
        "refit": refit(task, ~issues["is_label_issue"].to_numpy()),
    }


def line(cell: dict) -> str:
    """One row of the Markdown table."""
    quality, weight, accuracy = (mean(run[what] for run in cell["runs"]) for what in ("quality", "weight", "refit"))
    where = f"{cell['data']} | {cell['kind']} | {cell['trusted']} | {cell['noise']}"
    return f"| {where} | {quality:.3f} | {weight:.3f} | {accuracy:.2f} |"


def markdown(cells: list[dict]) -> str:
    """The table."""
    head = "| data | noise in the labels | trusted rows | noise model | AUROC of quality | AUROC of weight | refit % |"
    return "\n".join([head, "| --- " * 7 + "|", *map(line, cells)]) + "\n"


if __name__ == "__main__":
    main()
