"""Which final model to use: the correction or a simple baseline, compared on checked rows that none of them has seen.

    correction     p of the joint likelihood
    filter         the heaviest model, fitted to the rows that confident learning keeps (cleanlab's default)
    all labels     the mixture of models of all labels, as if they were right
    checked only   ridge logistic regression of the checked rows

The models of the given labels are fitted once without any checked row. What is made of checked rows (C, R and the joint
likelihood) is rebuilt for each fold of them from the others: with C or R of all checked rows a held-out loss is far too
small. The score is Brier's, of each checked row; the first candidate within one standard error of the best wins.

Reference: Northcutt, Jiang and Chuang, Confident learning, JAIR 70 (2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .correction import Correction, Evidence, final_model, with_checked_rows
from .out_of_fold import fitted, folds_of, probabilities

FEWEST = 20
"""Fewer checked rows cannot tell candidates apart: then it is the correction."""


@dataclass(frozen=True)
class Comparison:
    """Mean Brier score of each candidate on held-out checked rows, its standard error, and the choice.

    `posterior` has Q(c|x,g) of each checked row, made without its right label, shape (m, classes); None without scores.
    """

    scores: Mapping[str, float]
    errors: Mapping[str, float]
    choice: str
    posterior: np.ndarray | None = None


@dataclass(frozen=True)
class SingleModel:
    """One classifier with a column for every class."""

    model: Any
    classes: int

    def predict_proba(self, X: Any) -> np.ndarray:
        """Shape (n, classes)."""
        return probabilities(self.model, X, self.classes)


def compare(correction: Correction, seed: int = 0) -> Comparison:
    """The Brier scores of the candidates on the checked rows."""
    evidence, mixture = correction.evidence, correction.mixture
    checked = evidence.checked
    if mixture is None or evidence.X is None or len(checked) < FEWEST:
        return Comparison({}, {}, "correction")
    unseen, X = without_checked(correction), evidence.X
    kept = confident_rows(correction)
    heaviest = mixture.models[mixture.heaviest]
    filtered = SingleModel(fitted(heaviest, X[kept], evidence.given[kept]), evidence.classes)
    predictions = {
        "correction": np.zeros_like(unseen),
        "filter": filtered.predict_proba(X[checked]),
        "all labels": unseen,
        "checked only": np.zeros_like(unseen),
    }
    fold, posterior = folds_of(evidence.right[checked], evidence.tied[checked], seed + 1), np.zeros_like(unseen)
    for number in np.unique(fold):
        held = np.flatnonzero(fold == number)
        predictions["correction"][held], predictions["checked only"][held], posterior[held] = _held_out(
            correction, unseen, held, seed
        )
    target = np.eye(evidence.classes)[evidence.right[checked]]
    rows = {name: ((P - target) ** 2).sum(1) for name, P in predictions.items()}
    error = {name: float(each.std(ddof=1) / np.sqrt(len(each))) for name, each in rows.items()}
    scores = {name: float(each.mean()) for name, each in rows.items()}
    return Comparison(scores, error, most_stable(rows), posterior)


def without_checked(correction: Correction) -> np.ndarray:
    """Probabilities of the checked rows by the mixture fitted without any of them, shape (m, classes)."""
    evidence, mixture = correction.evidence, correction.mixture
    assert mixture is not None
    labels = np.where(evidence.right >= 0, -1, evidence.best_labels)
    labels = np.where(np.isin(evidence.tied, evidence.tied[evidence.checked]), -1, labels)
    return mixture.fit(evidence.X, labels).predict_proba(evidence.X[evidence.checked])


def _held_out(correction: Correction, unseen: np.ndarray, held: np.ndarray, seed: int) -> tuple[np.ndarray, ...]:
    """p, C and Q of some of the checked rows, made without their right labels."""
    evidence = correction.evidence
    rows = evidence.checked[held]
    others = np.ones(len(evidence.given), bool)
    others[rows] = False
    P = correction.probabilities.copy()
    P[evidence.checked] = unseen
    part = Evidence(evidence.X[others], evidence.given[others], evidence.right[others], evidence.wrong[others],
                    evidence.tied[others], evidence.classes)  # fmt: skip
    made = with_checked_rows(replace(correction, evidence=part, probabilities=P[others]), seed)
    X = evidence.X[rows]
    models = made.checked_models
    own = unseen[held] if models is None or models.own is None else probabilities(models.own, X, evidence.classes)
    if models is None or made.label_model is None:
        return unseen[held], own, unseen[held]
    p = made.label_model.class_probabilities(models.features(unseen[held], X))
    return p, own, made.label_model.posterior(p, evidence.given[rows])


def most_stable(rows: Mapping[str, np.ndarray]) -> str:
    """The first candidate whose mean score is within one standard error (of the difference) of the best.

    Examples
    --------
    >>> most_stable({"a": np.array([0.1, 0.5, 0.3]), "b": np.array([0.2, 0.3, 0.3])})
    'a'
    """
    best = min(rows, key=lambda name: rows[name].mean())
    for name, scores in rows.items():
        behind = scores - rows[best]
        if behind.mean() <= behind.std(ddof=1) / np.sqrt(len(behind)):
            return name
    return best


def confident_rows(correction: Correction) -> np.ndarray:
    """Numbers of the unchecked rows that confident learning keeps."""
    evidence = correction.evidence
    rows = evidence.unchecked
    return rows[~confident_issues(correction.probabilities[rows], evidence.given[rows])]


def confident_issues(P: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Confident learning's issues, pruned by noise rate, shape (n,): cleanlab's `find_label_issues` by default.

    A row counts as class j when P_j is at least the mean P_j of the rows labelled j (the largest such P_j). That gives
    the joint distribution of given and right labels; of each pair (g, j) as many rows are issues as it expects,
    those with the largest P_j - P_g.
    """
    n, classes = P.shape
    counts = np.bincount(given, minlength=classes)
    threshold = np.array([P[given == j, j].mean() if counts[j] else np.inf for j in range(classes)])
    above = np.where(threshold - 1e-6 <= P, P, -1.0)
    sure = above.max(1) >= 0
    joint = np.zeros((classes, classes))
    np.add.at(joint, (given[sure], above[sure].argmax(1)), 1)
    joint[np.diag_indices(classes)] = np.maximum(joint.diagonal(), 1)  # no label is always wrong
    joint = joint / np.maximum(joint.sum(1, keepdims=True), 1) * counts[:, None]
    expected = np.round(joint * n / joint.sum()).astype(int)
    issues = np.zeros(n, bool)
    for g in np.flatnonzero(counts):
        rows = np.flatnonzero(given == g)
        for j in range(classes):
            if j != g and expected[g, j] and len(rows) > 5:
                margin = P[rows, j] - P[rows, g]
                issues[rows[np.argsort(-margin, kind="stable")[: expected[g, j]]]] = True
    return issues & (P.argmax(1) != given)


def chosen_model(correction: Correction, choice: str) -> Any:
    """The candidate of that name, made of all rows, with predict_proba."""
    evidence, mixture = correction.evidence, correction.mixture
    if choice == "correction" or mixture is None:
        return final_model(correction)
    if choice == "all labels":
        return mixture.fit(evidence.X, evidence.best_labels)
    if choice == "checked only":
        assert correction.checked_models is not None
        return SingleModel(correction.checked_models.own, evidence.classes)
    rows = np.concatenate([confident_rows(correction), evidence.checked])
    return SingleModel(
        fitted(mixture.models[mixture.heaviest], evidence.X[rows], evidence.best_labels[rows]), evidence.classes
    )
