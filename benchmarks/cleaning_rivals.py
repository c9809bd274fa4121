"""Finding wrong labels: HyperCleaner at its defaults next to what people do today.

    python -m benchmarks.cleaning_rivals --data DATA [--seeds 5] [--first-seed 10] [--out results/cleaning-rivals.json]

5,000 rows of MNIST and of FashionMNIST, ten classes, 40 % wrong labels, 500 or 100 trusted rows. Scikit-learn's
logistic regression (C = 0.1) is refitted on the rows kept by each method and on the trusted rows, and scored on the
10,000 test rows. AUROC: how well the quality of a label tells right from wrong ones.

- cleanlab: 5-fold cross-validated probabilities, find_label_issues, label quality scores; in an environment of its own
  (build/cleanlab-venv, made at the first run).
- trusted filter: a model of the trusted rows; a row is dropped when its given label has less than half the
  probability of its best label.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from statistics import mean, stdev

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np

from .harness import hardware
from .paper_data import Task, ten_classes

DATASETS = ("mnist", "fashion-mnist")
METHODS = ("cleanlab", "trusted filter", "HyperCleaner")
COMPARISONS = [(rival, what, digits) for rival in METHODS[:2] for what, digits in (("auroc", 4), ("refit", 2))]
COMPARISONS += [("noisy", "refit", 2), ("trusted only", "refit", 2)]
ENVIRONMENT = Path("build/cleanlab-venv")
CLEANLAB = """
import sys, time, warnings
import numpy as np
warnings.simplefilter("ignore")
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
rows = np.load(sys.argv[1])
began = time.perf_counter()
chances = cross_val_predict(LogisticRegression(C=0.1, max_iter=200), rows["X"], rows["y"], cv=5, method="predict_proba")
issues, quality = find_label_issues(rows["y"], chances), get_label_quality_scores(rows["y"], chances)
np.savez(sys.argv[2], issues=issues, quality=quality, seconds=time.perf_counter() - began)
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cleaning_rivals", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--data", type=Path, required=True, help="folder with mnist/ and fashion-mnist/")
    parser.add_argument("--datasets", nargs="+", default=DATASETS, choices=DATASETS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=10, help="seeds 0 to 2 were seen while defaults were chosen")
    parser.add_argument("--out", type=Path, default=Path("build/cleaning-rivals.json"))
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    python = _cleanlab_python()
    cells = []
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    for name in arguments.datasets:
        for noise in ("uniform", "class-dependent"):
            for trusted in (500, 100):
                runs = [_run(python, ten_classes(arguments.data, name, noise, trusted, seed), seed) for seed in seeds]
                cells.append({"data": name, "noise": noise, "trusted": trusted, "seeds": list(seeds), "runs": runs})
                _show(cells[-1], header=len(cells) == 1)
                arguments.out.parent.mkdir(parents=True, exist_ok=True)
                arguments.out.write_text(json.dumps({"hardware": hardware(), "cells": cells}, indent=1) + "\n")
                arguments.out.with_suffix(".md").write_text(_markdown(cells))
    print(f"\nstored in {arguments.out}, and as a table in {arguments.out.with_suffix('.md')}")


def _run(python: Path, task: Task, seed: int) -> dict[str, dict[str, float]]:
    """AUROC, refit accuracy and seconds of each method, and the accuracies they lie between."""
    everything = np.ones(len(task.given), bool)
    result = {
        "noisy": {"refit": refit(task, everything, with_trusted=False)},
        "trusted only": {"refit": refit(task, ~everything)},
        "truly clean": {"refit": refit(task, ~task.wrong)},
    }
    methods = {"cleanlab": lambda: _cleanlab(python, task), "trusted filter": lambda: _filter(task),
               "HyperCleaner": lambda: _clean(task, seed)}  # fmt: skip
    for name, method in methods.items():
        kept, quality, seconds, *more = method()
        result[name] = {"auroc": auroc(task, quality), "refit": refit(task, kept), "seconds": seconds}
        if more:
            result[name]["noise"] = more[0]
    return result


def _clean(task: Task, seed: int) -> tuple:
    began = time.perf_counter()
    cleaner = fitted(task, seed)
    issues = cleaner.label_issues()
    seconds = time.perf_counter() - began
    return ~issues["is_label_issue"].to_numpy(), issues["label_quality"].to_numpy(), seconds, cleaner.noise_


def fitted(task: Task, seed: int, **settings):
    """A HyperCleaner of the task."""
    from bilevel import HyperCleaner

    cleaner = HyperCleaner(random_state=seed, **settings)
    return cleaner.fit(task.X, task.given, X_trusted=task.trusted_X, y_trusted=task.trusted_y)


def _filter(task: Task) -> tuple:
    began = time.perf_counter()
    model = _regression(task.trusted_X, task.trusted_y)
    chances = np.zeros((len(task.given), 10))
    chances[:, model.classes_] = model.predict_proba(task.X)
    quality = chances[np.arange(len(chances)), task.given]
    return quality >= 0.5 * chances.max(1), quality, time.perf_counter() - began


def _cleanlab(python: Path, task: Task) -> tuple:
    with tempfile.TemporaryDirectory() as folder:
        rows, answer = Path(folder) / "rows.npz", Path(folder) / "answer.npz"
        np.savez(rows, X=task.X, y=task.given)
        subprocess.run([python, "-c", CLEANLAB, rows, answer], check=True)
        found = np.load(answer)
        return ~found["issues"], found["quality"], float(found["seconds"])


def auroc(task: Task, quality: np.ndarray) -> float:
    """How well a number per row tells right from wrong labels."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(~task.wrong, quality))


def refit(task: Task, kept: np.ndarray, *, with_trusted: bool = True) -> float:
    """Test accuracy in percent of the reference model, trained on the rows kept."""
    X, y = task.X[kept], task.given[kept]
    if with_trusted:
        X, y = np.concatenate([X, task.trusted_X]), np.concatenate([y, task.trusted_y])
    return 100.0 * _regression(X, y).score(task.test_X, task.test_y)


def _regression(X: np.ndarray, y: np.ndarray):
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 200 iterations, as in the reference figures
        return LogisticRegression(C=0.1, max_iter=200).fit(X, y)


def _cleanlab_python() -> Path:
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        print("Making an environment for cleanlab, once.", flush=True)
        subprocess.run([sys.executable, "-m", "venv", ENVIRONMENT], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "cleanlab==2.9.0", "scikit-learn"], check=True)
    return python.absolute()


def average(cell: dict, method: str, what: str) -> float:
    return mean(run[method][what] for run in cell["runs"])


def _ahead(cell: dict, rival: str, what: str) -> tuple[float, float]:
    """Mean paired difference of HyperCleaner to a rival, and its standard error."""
    gaps = [run["HyperCleaner"][what] - run[rival][what] for run in cell["runs"]]
    return mean(gaps), stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else float("nan")


def _show(cell: dict, *, header: bool) -> None:
    if header:
        print("AUROC / refit accuracy %, means over the seeds; differences of HyperCleaner with their standard errors")
        print(f"{'data':<14}{'noise':<16}{'trusted':>7} {'noisy':>6} {'trust.':>6} {'clean':>6}"
              f" {'cleanlab':>14} {'filter':>14} {'HyperCleaner':>14}  seconds (cleanlab, ours)")  # fmt: skip
    figures = " ".join(f"{average(cell, m, 'auroc'):.3f} / {average(cell, m, 'refit'):5.2f}" for m in METHODS)
    ends = " ".join(f"{average(cell, m, 'refit'):6.1f}" for m in ("noisy", "trusted only", "truly clean"))
    clock = ", ".join(f"{average(cell, method, 'seconds'):.1f}" for method in ("cleanlab", "HyperCleaner"))
    print(f"{cell['data']:<14}{cell['noise']:<16}{cell['trusted']:>7} {ends} {figures}  {clock}")
    for rival, what, digits in COMPARISONS:
        gap, error = _ahead(cell, rival, what)
        verdict = "beaten" if gap > 0 else "NOT BEATEN"
        print(f"    {what:<5} minus {rival:<15} {gap:+.{digits}f} +- {error:.{digits}f}  {verdict}")
    print(f"    noise models chosen: {[run['HyperCleaner']['noise'] for run in cell['runs']]}", flush=True)


def _markdown(cells: list[dict]) -> str:
    """Two tables: the figures, and by how much HyperCleaner is ahead."""
    lines = [
        "| data | noise | trusted rows | noisy | trusted only | cleanlab | trusted filter | HyperCleaner | truly clean "
        "| seconds: cleanlab, ours |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for cell in cells:
        figures = [f"{average(cell, m, 'auroc'):.3f} / {average(cell, m, 'refit'):.2f}" for m in METHODS]
        noisy, trusted, clean = (f"{average(cell, m, 'refit'):.1f}" for m in ("noisy", "trusted only", "truly clean"))
        clock = ", ".join(f"{average(cell, method, 'seconds'):.1f}" for method in ("cleanlab", "HyperCleaner"))
        entries = [cell["data"], cell["noise"], str(cell["trusted"]), noisy, trusted, *figures, clean, clock]
        lines.append(f"| {' | '.join(entries)} |")
    titles = [f"{'AUROC' if what == 'auroc' else what} minus that of {rival}" for rival, what, _ in COMPARISONS]
    lines += ["", f"| data | noise | trusted rows | {' | '.join(titles)} |", "|" + " --- |" * (3 + len(titles))]
    for cell in cells:
        gaps = [(*_ahead(cell, rival, what), digits) for rival, what, digits in COMPARISONS]
        entries = [f"{gap:+.{digits}f} ± {error:.{digits}f}" for gap, error, digits in gaps]
        lines.append(f"| {cell['data']} | {cell['noise']} | {cell['trusted']} | {' | '.join(entries)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
