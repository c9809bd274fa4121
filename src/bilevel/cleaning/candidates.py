"""The choice of the final model: an average or one of its members, compared on checked rows that no model has seen.

    average                 softmax(sum_k w_k log P_k) of the following, but for the bilevel noise models
    correction              p of the joint likelihood
    filter                  the first model alone, fitted to the rows that confident learning keeps (cleanlab's default)
    all labels              the mixture of models of all labels, as if they were right
    gold loss correction    a linear model, trained through a matrix of label shares
    transition, class-pairs, rows    the linear noise models of the bilevel pipeline, where rows and columns are few
    checked only            ridge logistic regression of the checked rows

    w = argmax sum_{checked} log softmax(sum_k w_k log P_k)_y - |w - w_0|^2 / (2 .3^2),    w >= 0,

so that w leaves w_0 only as far as the checked rows ask for it.

The models of the given labels are fitted once without any checked row. Everything that uses checked rows (C, R, the
joint likelihood, matrices, linear noise models, w) is fitted again for each fold without the rows of the fold;
otherwise the held-out loss would be far too small. The score is the Brier score of each checked row, among the classes
of the checked rows. The first candidate in the list is used unless another is clearly better, or predicts more classes.

Reference: Northcutt, Jiang and Chuang, Confident learning, JAIR 70 (2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax

from ..errors import NonFiniteError
from .correction import (
    ALL,
    CORRECTED,
    KEPT,
    Correction,
    balancing_power,
    decide,
    final_model,
    of_all_classes,
    pooled,
    with_checked_rows,
)
from .label_likelihood import TINY, centred_log
from .linear_candidates import BILEVEL, GOLD, LinearModels
from .out_of_fold import MOST_ROWS, fitted, folds_of, probabilities, sample_of_each, several

AVERAGE, FILTER, CHECKED = "average", "filter", "checked only"
POOL = (CORRECTED, FILTER, ALL, GOLD, CHECKED)
"""Members of the average."""
ORDER = (AVERAGE, CORRECTED, FILTER, ALL, GOLD, *BILEVEL, CHECKED)
"""The candidates, the preferred one first."""
START = {CORRECTED: 0.4, FILTER: 0.3, ALL: 0.3}
"""w_0; that of other members is 0."""
SD_WEIGHT = 0.3
CLEARLY = 3.0
"""Standard errors by which a candidate must be better than the ones before it."""
SMALLEST_WEIGHT = 0.02
"""Members with less weight are left out."""
FEWEST = 20
"""With fewer checked rows candidates cannot be compared, and the average has the weights w_0."""
ADVICE_FOLDS = 3
"""Folds of the advice, each with three fits of the plain model: with many classes they take a third of the time."""
SAMPLE = 2_000
"""The maximal number of rows with given labels in the fits of a fold."""
FEW = 5_000
"""Rows x columns x classes up to which the noise models of the bilevel pipeline are tried."""


@dataclass(frozen=True)
class Comparison:
    """The mean Brier score of each candidate on held-out checked rows, and the choice.

    `weights` are those of the average. `posterior` is Q(c|x,g) of each checked row, computed without its right label,
    shape (m, classes); None without scores. `tau` is the power of the decision.
    """

    choice: str
    scores: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=lambda: START)
    posterior: np.ndarray | None = None
    tau: float = 0.0


@dataclass(frozen=True)
class SingleModel:
    """One classifier with a column for every class."""

    model: Any
    classes: int

    def predict_proba(self, X: Any) -> np.ndarray:
        """Shape (n, classes)."""
        return probabilities(self.model, X, self.classes)


def compare(correction: Correction, seed: int = 0, *, balanced: bool = False) -> Comparison:
    """The Brier scores of the candidates on the checked rows.

    Parameters
    ----------
    balanced
        Whether decisions are balanced (`balancing_power`, with the filter as rival). Candidates that never predict
        some class are avoided.
    """
    evidence, prior = correction.evidence, correction.prior
    if len(evidence.checked) < FEWEST:
        tau = balancing_power(correction.p, prior) if balanced else 0.0
        return Comparison(AVERAGE if len(evidence.checked) else ALL, tau=tau)
    trial, right = _Trial(correction, seed), evidence.right[evidence.checked]
    folds = held_out_rows(correction, seed + 1)
    for held in folds:
        trial.hold_out(held)
    P = {name: trial.held[name] for name in ORDER if name in trial.held}
    members = {name: P[name] for name in POOL if name in P and np.isfinite(P[name]).all()}
    weights = pool_weights(members, right)
    P[AVERAGE] = np.empty_like(trial.posterior)
    for held in folds:
        others = np.setdiff1d(np.arange(len(right)), held)
        own = pool_weights({name: each[others] for name, each in members.items()}, right[others])
        P[AVERAGE][held] = pooled({name: each[held] for name, each in members.items()}, own)
    scores = {name: brier_scores(P[name], right) for name in ORDER if name in P}
    everywhere = {name: each for name, each in scores.items() if np.isfinite(each).all()}
    trial.seen[AVERAGE] = pooled(trial.seen, weights)
    rival = trial.seen[FILTER].argmax(1) if FILTER in trial.seen else None
    tau = dict.fromkeys(everywhere, 0.0)
    if balanced:  # the filter is no rival of its own
        rivals = {name: None if name == FILTER else rival for name in everywhere}
        tau = {name: balancing_power(trial.seen[name], prior, other) for name, other in rivals.items()}
    absent = {name: missing_classes(trial.seen[name], correction, tau[name]) for name in everywhere}
    choice = most_stable(everywhere, absent) if correction.mixture is not None else CORRECTED
    means = {name: float(np.nanmean(each)) for name, each in scores.items()}
    return Comparison(choice, means, weights, trial.posterior, tau[choice])


def pool_weights(P: Mapping[str, np.ndarray], right: np.ndarray) -> dict[str, float]:
    """w of the module's formula from probabilities (m, classes) of checked rows and their labels; small ones are out.

    Only the classes of the checked rows count: these rows say nothing of the others.

    Examples
    --------
    >>> right = np.arange(40) % 2
    >>> good, bad = 0.1 + 0.8 * np.eye(2)[right], np.full((40, 2), 0.5)
    >>> {name: round(weight, 1) for name, weight in pool_weights({"filter": bad, "checked only": good}, right).items()}
    {'filter': 0.3, 'checked only': 0.9}
    """
    seen, labels = np.unique(right, return_inverse=True)
    F = np.stack([centred_log(each)[:, seen] for each in P.values()])
    start, hot = np.array([START.get(name, 0.0) for name in P]), np.eye(len(seen))[labels]

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        logs = log_softmax(np.tensordot(w, F, 1), axis=1)
        value = ((w - start) ** 2).sum() / (2 * SD_WEIGHT**2) - (logs * hot).sum()
        return value, (w - start) / SD_WEIGHT**2 + np.einsum("lnk,nk->l", F, np.exp(logs) - hot)

    w = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=[(0, None)] * len(start)).x
    return {name: float(weight) for name, weight in zip(P, w, strict=True) if weight >= SMALLEST_WEIGHT}


def held_out_rows(correction: Correction, seed: int, **settings: int) -> list[np.ndarray]:
    """The checked rows that each fold holds out."""
    evidence = correction.evidence
    fold = folds_of(evidence.right[evidence.checked], evidence.tied[evidence.checked], seed, **settings)
    return [np.flatnonzero(fold == number) for number in np.unique(fold)]


class _Trial:
    """Probabilities of the candidates, fold by fold.

    `held` are those of the checked rows by models that have not seen them, shape (m, classes), NaN for candidates that
    were not tried; `seen` are those of all rows in the last fold, shape (n, classes), which show the predicted classes.
    """

    def __init__(self, correction: Correction, seed: int) -> None:
        evidence, mixture = correction.evidence, correction.mixture
        self.base, self.evidence, self.seed = without_checked(correction), evidence, seed
        self.held: dict[str, np.ndarray] = {}
        self.seen: dict[str, np.ndarray] = {}
        self.posterior = np.zeros((len(evidence.checked), evidence.classes))
        self.linear: tuple[str, ...] = ()
        self.filter: Any = None
        free = evidence.unchecked[~np.isin(evidence.tied[evidence.unchecked], evidence.tied[evidence.checked])]
        if mixture is None or not several(evidence.given[free]):
            return
        kept = np.intersect1d(confident_rows(correction), free)
        if several(evidence.given[kept]):
            self.filter = fitted(mixture.first, evidence.X, evidence.given, kept)
        self.models = LinearModels(evidence, sample_of_each(evidence.given, free, SAMPLE, seed), seed)
        small = evidence.X.shape[0] * evidence.X.shape[1] * evidence.classes <= FEW
        self.linear = (GOLD, *BILEVEL) if small else (GOLD,)

    def hold_out(self, held: np.ndarray) -> None:
        """Predict these checked rows by every remaining candidate."""
        evidence, made, P = self.evidence, without_labels(self.base, held, self.seed), self.base.probabilities
        X, p, rows, others = evidence.X, made.p, evidence.checked[held], made.evidence.checked
        self.seen = {CORRECTED: p, ALL: P}
        if self.filter is not None:
            self.seen[FILTER] = of_all_classes(self.filter, X, p)
        if made.checked_models is not None and made.checked_models.own is not None:
            self.seen[CHECKED] = of_all_classes(made.checked_models.own, X, p)
        for name in self.linear:
            if not self._behind(name):
                with suppress(NonFiniteError):
                    self.seen[name] = of_all_classes(self.models.fit(name, others, P[others]), X, p)
        for name, found in self.seen.items():
            self.held.setdefault(name, np.full(self.posterior.shape, np.nan))[held] = found[rows]
        model = made.label_model
        self.posterior[held] = p[rows] if model is None else model.posterior(p[rows], evidence.given[rows])

    def _behind(self, name: str) -> bool:
        """Whether a noise model is not better than the correction so far; noise models take most of the time."""
        if name == GOLD or name not in self.held:
            return False
        right = self.evidence.right[self.evidence.checked]
        ahead = brier_scores(self.held[CORRECTED], right) - brier_scores(self.held[name], right)
        return bool(np.nanmean(ahead) <= 0)


def brier_scores(P: np.ndarray, right: np.ndarray) -> np.ndarray:
    """|P / sum - e_y|^2 of checked rows, shape (m,), among the classes that checked rows have.

    The scores ignore the other classes, so that a model is not rewarded for never predicting them.
    """
    seen = np.unique(right)
    P = P[:, seen] + TINY
    return ((P / P.sum(1, keepdims=True) - (seen == right[:, None])) ** 2).sum(1)


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
    """The first candidate that is not worse than the best by more than `CLEARLY` standard errors of the difference.

    With several candidates and few rows, smaller differences are often due to chance.

    Parameters
    ----------
    rows
        The score of each row by each candidate, the most stable candidate first.
    absent
        The number of classes that each candidate never predicts: one with fewer, within a standard error of the best,
        is preferred.

    Examples
    --------
    >>> scores = {"a": np.array([0.1, 0.5, 0.3]), "b": np.array([0.2, 0.3, 0.3])}
    >>> most_stable(scores), most_stable(scores, {"a": 1, "b": 0})
    ('a', 'b')
    """
    best = min(rows, key=lambda name: rows[name].mean())
    behind = {name: scores - rows[best] for name, scores in rows.items()}

    def close(errors: float) -> list[str]:
        return [n for n, each in behind.items() if each.mean() <= errors * each.std(ddof=1) / len(each) ** 0.5]

    return min([close(CLEARLY)[0], *close(1.0)], key=lambda name: 0 if absent is None else absent[name])


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


def chosen_model(correction: Correction, comparison: Comparison, seed: int = 0) -> Any:
    """The candidate that was chosen, fitted to all rows, with predict_proba."""
    evidence, mixture, choice = correction.evidence, correction.mixture, comparison.choice
    if choice == CORRECTED or mixture is None:
        return final_model(correction)
    if choice == ALL:
        return mixture.fit(evidence.X, evidence.best_labels)
    if choice != AVERAGE:
        return SingleModel(_classifier(correction, choice, seed), evidence.classes)
    weights = dict(comparison.weights)
    others = {name: _classifier(correction, name, seed) for name in weights if name not in (CORRECTED, ALL)}
    others = {name: model for name, model in others.items() if model is not None}
    if FILTER in weights:  # two models of filtered rows share its weight
        weights[FILTER] = weights[KEPT] = weights[FILTER] / 2
    return final_model(correction, others, weights)


def _classifier(correction: Correction, name: str, seed: int) -> Any:
    """A candidate that is one classifier, fitted to all rows; None if its rows have one label."""
    evidence, mixture = correction.evidence, correction.mixture
    if name == CHECKED:
        return correction.checked_models and correction.checked_models.own
    if name == FILTER:
        assert mixture is not None
        rows, labels = np.concatenate([confident_rows(correction), evidence.checked]), evidence.best_labels
        return fitted(mixture.first, evidence.X, labels, rows) if several(labels[rows]) else None
    noisy = sample_of_each(evidence.given, evidence.unchecked, MOST_ROWS, seed)
    return LinearModels(evidence, noisy, seed).fit(name, evidence.checked, correction.probabilities[evidence.checked])


# --- what to do with the suspected labels -----------------------------------------------------------------------------

ADVICE = ("relabel", "filter", "leave alone")
"""Use the suggested labels, drop the suspected rows, or keep all rows as they are."""


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
    decide: relabelling, which loses no rows, is advised unless another way is clearly better.
    """
    evidence, mixture = correction.evidence, correction.mixture
    if mixture is None or len(evidence.checked) < FEWEST:
        return None
    right = evidence.right[evidence.checked]
    P = {name: np.zeros((len(right), evidence.classes)) for name in ADVICE}
    for held in held_out_rows(correction, seed + 2, count=ADVICE_FOLDS):
        rows = evidence.checked[held]
        for name, labels in _labels_by_way(without_labels(correction, held, seed), rows).items():
            train = sample_of_each(labels, np.flatnonzero(labels >= 0), SAMPLE, seed)
            if not several(labels[train]):
                return None
            model = fitted(mixture.models[mixture.heaviest], evidence.X, labels, train)
            P[name][held] = probabilities(model, evidence.X[rows], evidence.classes)
    choice = most_stable({name: brier_scores(each, right) for name, each in P.items()})
    return Advice(choice, {name: float((each.argmax(1) == right).mean()) for name, each in P.items()})


def _labels_by_way(made: Correction, rows: np.ndarray) -> dict[str, np.ndarray]:
    """The training labels of each way, -1 for rows that are left out; `rows` and rows tied to them always are."""
    evidence, issue = made.evidence, made.is_issue
    labels = np.where(np.isin(evidence.tied, evidence.tied[rows]), -1, evidence.best_labels)
    suggested = np.where(issue & (labels >= 0), made.posterior.argmax(1), labels)
    return {"filter": np.where(issue, -1, labels), "relabel": suggested, "leave alone": labels}
