"""The choice of the final model: the correction or a simpler one, compared on checked rows that no model has seen.

    average                 the geometric mean of the next two, whose errors differ
    correction              p of the joint likelihood
    filter                  the first model alone, fitted to the rows that confident learning keeps (cleanlab's default)
    all labels              the mixture of models of all labels, as if they were right
    gold loss correction    a linear model, trained through a matrix of label shares
    transition, class-pairs, rows    the linear noise models of the bilevel pipeline, where rows and columns are few
    checked only            ridge logistic regression of the checked rows

The models of the given labels are fitted once without any checked row. Everything that uses checked rows (C, R, the
joint likelihood, matrices, linear noise models) is fitted again for each fold without the rows of the fold; otherwise
the held-out loss would be far too small. The score is the Brier score of each checked row, among the classes of the
checked rows. Of the candidates within one standard error of the best, the one that predicts most classes is used, and
of several such candidates the first in the list.

Reference: Northcutt, Jiang and Chuang, Confident learning, JAIR 70 (2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import NonFiniteError
from .correction import Correction, Evidence, decide, final_model, geometric_mean, with_checked_rows
from .label_likelihood import TINY
from .linear_candidates import BILEVEL, GOLD, LinearModels
from .out_of_fold import MOST_ROWS, fitted, folds_of, probabilities, sample_of_each, several

ORDER = ("average", "correction", "filter", "all labels", GOLD, *BILEVEL, "checked only")
"""The candidates, the preferred one first."""
FEWEST = 20
"""With fewer checked rows candidates cannot be compared, and the correction is used."""
SAMPLE = 2_000
"""The maximal number of rows with given labels in the fits of a fold."""
FEW = 5_000
"""Rows x columns x classes up to which the noise models of the bilevel pipeline are tried."""


@dataclass(frozen=True)
class Comparison:
    """The mean Brier score of each candidate on held-out checked rows, and the choice.

    `posterior` is Q(c|x,g) of each checked row, computed without its right label, shape (m, classes); None without
    scores.
    """

    scores: Mapping[str, float]
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


def compare(correction: Correction, seed: int = 0, tau: float = 0.0) -> Comparison:
    """The Brier scores of the candidates on the checked rows.

    Parameters
    ----------
    tau
        The decision is argmax_c p_c / prior_c^tau; candidates that never predict some class are avoided.
    """
    evidence = correction.evidence
    if len(evidence.checked) < FEWEST:
        return Comparison({}, "correction")
    trial = _Trial(correction, seed)
    for held in held_out_rows(correction, seed + 1):
        trial.hold_out(held)
    names = [name for name in ORDER if np.isfinite(trial.scores.get(name, np.nan)).any()]
    everywhere = {name: trial.scores[name] for name in names if np.isfinite(trial.scores[name]).all()}
    absent = {name: missing_classes(trial.seen[name], correction, tau) for name in everywhere}
    choice = most_stable(everywhere, absent) if correction.mixture is not None else "correction"
    return Comparison({name: float(np.nanmean(trial.scores[name])) for name in names}, choice, trial.posterior)


def held_out_rows(correction: Correction, seed: int, **settings: int) -> list[np.ndarray]:
    """The checked rows that each fold holds out."""
    evidence = correction.evidence
    fold = folds_of(evidence.right[evidence.checked], evidence.tied[evidence.checked], seed, **settings)
    return [np.flatnonzero(fold == number) for number in np.unique(fold)]


class _Trial:
    """Scores of the candidates on checked rows, fold by fold.

    `scores` are the Brier scores of the checked rows, shape (m,), NaN where a candidate was not tried; `seen` are the
    probabilities of all rows, shape (n, classes), which show which classes a candidate predicts.
    """

    def __init__(self, correction: Correction, seed: int) -> None:
        evidence, mixture = correction.evidence, correction.mixture
        self.base, self.evidence, self.seed = without_checked(correction), evidence, seed
        self.scores: dict[str, np.ndarray] = {}
        self.seen = {"all labels": self.base.probabilities}
        self.posterior = np.zeros((len(evidence.checked), evidence.classes))
        self.linear: tuple[str, ...] = ()
        self.filter: Any = None
        free = evidence.unchecked[~np.isin(evidence.tied[evidence.unchecked], evidence.tied[evidence.checked])]
        if mixture is None or not several(evidence.given[free]):
            return
        kept = np.intersect1d(confident_rows(correction), free)
        if several(evidence.given[kept]):
            self.filter = fitted(mixture.first, evidence.X, evidence.given, kept)
            self.seen["filter"] = probabilities(self.filter, evidence.X, evidence.classes)
        self.models = LinearModels(evidence, sample_of_each(evidence.given, free, SAMPLE, seed), seed)
        small = evidence.X.shape[0] * evidence.X.shape[1] * evidence.classes <= FEW
        self.linear = (GOLD, *BILEVEL) if small else (GOLD,)

    def hold_out(self, held: np.ndarray) -> None:
        """Score every remaining candidate on these checked rows."""
        evidence, made = self.evidence, without_labels(self.base, held, self.seed)
        checked, rows, others = made.checked_models, evidence.checked[held], made.evidence.checked
        self.seen["correction"] = made.p
        if self.filter is not None:
            self.seen["average"] = geometric_mean(made.p, [self.filter], evidence.X)
        if checked is not None and checked.own is not None:
            self.seen["checked only"] = probabilities(checked.own, evidence.X, evidence.classes)
        tried = [name for name in self.linear if not self._behind(name)]
        for name in tried:
            self.seen.pop(name, None)
            with suppress(NonFiniteError):
                model = SingleModel(self.models.fit(name, others, self.base.probabilities[others]), evidence.classes)
                self.seen[name] = model.predict_proba(evidence.X)
        for name in self.seen.keys() - (set(self.linear) - set(tried)):  # no old ones
            score = self.scores.setdefault(name, np.full(len(evidence.checked), np.nan))
            score[held] = brier_scores(self.seen[name][rows], evidence, rows)
        model = made.label_model
        self.posterior[held] = made.p[rows] if model is None else model.posterior(made.p[rows], evidence.given[rows])

    def _behind(self, name: str) -> bool:
        """Whether a noise model is not better than the correction so far; noise models take most of the time."""
        if name == GOLD or name not in self.scores:
            return False
        return bool(np.nanmean(self.scores["correction"] - self.scores[name]) <= 0)


def brier_scores(P: np.ndarray, evidence: Evidence, rows: np.ndarray) -> np.ndarray:
    """|P / sum - e_y|^2 of checked rows, shape (rows,), among the classes that checked rows have.

    The scores ignore the other classes, so that a model is not rewarded for never predicting them.
    """
    seen = np.unique(evidence.right[evidence.checked])
    P = P[:, seen] + TINY
    return ((P / P.sum(1, keepdims=True) - (seen == evidence.right[rows, None])) ** 2).sum(1)


def missing_classes(P: np.ndarray, correction: Correction, tau: float) -> int:
    """The number of classes among given and checked labels that are predicted for no row."""
    evidence = correction.evidence
    present = np.union1d(evidence.given[evidence.given >= 0], evidence.right[evidence.checked])
    return len(np.setdiff1d(present, decide(P, correction.prior, tau)))


def without_checked(correction: Correction) -> Correction:
    """The same correction, with probabilities of the checked rows by a mixture that was fitted without them."""
    evidence, mixture = correction.evidence, correction.mixture
    labels = np.where(np.isin(evidence.tied, evidence.tied[evidence.checked]), -1, evidence.best_labels)
    if mixture is None or not several(labels[labels >= 0]):
        return correction
    unseen = mixture.fit(evidence.X, labels)
    P = correction.probabilities.copy()
    P[evidence.checked] = unseen.predict_proba(evidence.X[evidence.checked])
    return replace(correction, probabilities=P)


def without_labels(correction: Correction, held: np.ndarray, seed: int) -> Correction:
    """The correction of the same probabilities by the other checked rows, with the labels of these rows unknown."""
    evidence = correction.evidence
    given, right = evidence.given.copy(), evidence.right.copy()
    given[evidence.checked[held]] = right[evidence.checked[held]] = -1
    return with_checked_rows(replace(correction, evidence=replace(evidence, given=given, right=right)), seed, SAMPLE)


def most_stable(rows: Mapping[str, np.ndarray], absent: Mapping[str, int] | None = None) -> str:
    """The candidate to use, of those whose mean score is within one standard error (of the difference) of the best.

    Parameters
    ----------
    rows
        The score of each row by each candidate, the most stable candidate first.
    absent
        The number of classes that each candidate never predicts; fewer are preferred, then the order decides.

    Examples
    --------
    >>> scores = {"a": np.array([0.1, 0.5, 0.3]), "b": np.array([0.2, 0.3, 0.3])}
    >>> most_stable(scores), most_stable(scores, {"a": 1, "b": 0})
    ('a', 'b')
    """
    best = min(rows, key=lambda name: rows[name].mean())
    behind = {name: scores - rows[best] for name, scores in rows.items()}
    close = [
        name for name, each in behind.items() if name == best or each.mean() <= each.std(ddof=1) / len(each) ** 0.5
    ]
    return min(close, key=lambda name: 0 if absent is None else absent[name])


def confident_rows(correction: Correction) -> np.ndarray:
    """Numbers of the unchecked rows that confident learning keeps, with the first model of the mixture."""
    assert correction.mixture is not None
    evidence, P = correction.evidence, correction.mixture.first_out_of_fold
    rows = evidence.unchecked
    return rows[~confident_issues(P[rows], evidence.given[rows])]


def confident_issues(P: np.ndarray, given: np.ndarray) -> np.ndarray:
    """The label issues of confident learning, pruned by noise rate, shape (n,): the default of cleanlab.

    A row counts as class j if P_j is at least the mean P_j of the rows labelled j (for several such j, the one with the
    largest P_j). These counts give the joint distribution of given and right labels, and with it a number of issues for
    each pair (g, j): the rows with the largest P_j - P_g.
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


def chosen_model(correction: Correction, choice: str, seed: int = 0) -> Any:
    """The candidate of that name, fitted to all rows, with predict_proba."""
    evidence, mixture = correction.evidence, correction.mixture
    if choice == "correction" or mixture is None:
        return final_model(correction)
    if choice == "all labels":
        return mixture.fit(evidence.X, evidence.best_labels)
    if choice == "checked only":
        assert correction.checked_models is not None
        return SingleModel(correction.checked_models.own, evidence.classes)
    if choice in ("filter", "average"):
        rows = np.concatenate([confident_rows(correction), evidence.checked])
        model = fitted(mixture.first, evidence.X, evidence.best_labels, rows)
        if choice == "filter":
            return SingleModel(model, evidence.classes)
        corrected = final_model(correction)
        return replace(corrected, others={**corrected.others, "filter": model})
    noisy = sample_of_each(evidence.given, evidence.unchecked, MOST_ROWS, seed)
    P = correction.probabilities[evidence.checked]
    return SingleModel(LinearModels(evidence, noisy, seed).fit(choice, evidence.checked, P), evidence.classes)


# --- what to do with the suspected labels -----------------------------------------------------------------------------

ADVICE = ("filter", "relabel", "leave alone")
"""Drop the suspected rows, use the suggested labels, or keep all rows as they are."""


@dataclass(frozen=True)
class Advice:
    """What to do with suspected labels before a model is trained.

    Parameters
    ----------
    choice
        One of `ADVICE`.
    accuracy
        The accuracy of a plain model (the one with the largest weight in the mixture), trained each way, on checked
        rows whose labels were not used.
    """

    choice: str
    accuracy: Mapping[str, float]


def advise(correction: Correction, seed: int = 0) -> Advice | None:
    """Compare the three ways on held-out checked rows; None with too few of them, or without a mixture.

    The labels of the held-out rows do not influence which rows are suspected. The Brier scores of the plain model
    decide: filtering is advised unless another way is better by more than a standard error.
    """
    evidence, mixture = correction.evidence, correction.mixture
    if mixture is None or len(evidence.checked) < FEWEST:
        return None
    missed, scores = ({name: np.zeros(len(evidence.checked)) for name in ADVICE} for _ in range(2))
    for held in held_out_rows(correction, seed + 2):
        rows = evidence.checked[held]
        right = evidence.right[rows]
        for name, labels in _labels_by_way(without_labels(correction, held, seed), rows).items():
            train = sample_of_each(labels, np.flatnonzero(labels >= 0), SAMPLE, seed)
            if not several(labels[train]):
                return None
            model = fitted(mixture.models[mixture.heaviest], evidence.X, labels, train)
            P = probabilities(model, evidence.X[rows], evidence.classes)
            missed[name][held] = P.argmax(1) != right
            scores[name][held] = brier_scores(P, evidence, rows)
    return Advice(most_stable(scores), {name: float(1 - each.mean()) for name, each in missed.items()})


def _labels_by_way(made: Correction, rows: np.ndarray) -> dict[str, np.ndarray]:
    """The training labels of each way, -1 for rows that are left out; `rows` and rows tied to them always are."""
    evidence, issue = made.evidence, made.is_issue
    labels = np.where(np.isin(evidence.tied, evidence.tied[rows]), -1, evidence.best_labels)
    suggested = np.where(issue & (labels >= 0), made.posterior.argmax(1), labels)
    return {"filter": np.where(issue, -1, labels), "relabel": suggested, "leave alone": labels}
