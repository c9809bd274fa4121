"""Which final model to use: the correction or a simpler one, compared on checked rows that none of them has seen.

    correction              p of the joint likelihood
    filter                  the heaviest model, fitted to the rows that confident learning keeps (cleanlab's default)
    all labels              the mixture of models of all labels, as if they were right
    gold loss correction    a linear model, trained through a matrix of label shares
    transition, class-pairs, rows    the linear noise models of the bilevel pipeline, where rows and columns are few
    checked only            ridge logistic regression of the checked rows

The models of the given labels are fitted once without any checked row. What is made of checked rows (C, R, the joint
likelihood, matrices, linear noise models) is rebuilt for each fold of them from the others: with C or R of all checked
rows a held-out loss is far too small. The score is Brier's, of each checked row. Of the candidates within one standard
error of the best, those that predict most classes are preferred, and of these the first.

Reference: Northcutt, Jiang and Chuang, Confident learning, JAIR 70 (2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import NonFiniteError
from .correction import Correction, Evidence, decide, final_model, with_checked_rows
from .linear_candidates import BILEVEL, GOLD, LinearRows, bilevel_model, gold_loss_correction, transition_shares
from .out_of_fold import MOST_ROWS, fitted, folds_of, probabilities, sample_of_each

FEWEST = 20
"""Fewer checked rows cannot tell candidates apart: then it is the correction."""
SAMPLE = 2_000
"""Rows with given labels that enter what is rebuilt for each fold."""
FEW = 5_000
"""Rows x columns x classes up to which the noise models of the bilevel pipeline are tried."""


@dataclass(frozen=True)
class Comparison:
    """Mean Brier score of each candidate on held-out checked rows, its standard error, and the choice.

    `folds` has the mean scores of each fold; a linear noise model that is not ahead of the correction is not tried on
    further ones. `posterior` has Q(c|x,g) of each checked row, made without its right label, shape (m, classes);
    None without scores.
    """

    scores: Mapping[str, float]
    errors: Mapping[str, float]
    choice: str
    posterior: np.ndarray | None = None
    folds: Mapping[str, tuple[float, ...]] | None = None


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
        The decision is argmax_c p_c / prior_c^tau: candidates by which no row is of some class are avoided.
    """
    evidence = correction.evidence
    if len(evidence.checked) < FEWEST:
        return Comparison({}, {}, "correction")
    trial = _Trial(correction, seed)
    fold = folds_of(evidence.right[evidence.checked], evidence.tied[evidence.checked], seed + 1)
    numbers = np.unique(fold)
    for number in numbers:
        trial.hold_out(np.flatnonzero(fold == number))
    full = {name: each for name, each in trial.scores.items() if np.isfinite(each).all()}
    absent = {name: missing_classes(trial.seen[name], correction, tau) for name in full}
    errors = {name: _standard_error(each[np.isfinite(each)]) for name, each in trial.scores.items()}
    scores = {name: float(np.nanmean(each)) for name, each in trial.scores.items()}
    parts = {name: [each[fold == number].mean() for number in numbers] for name, each in trial.scores.items()}
    folds = {name: tuple(float(mean) for mean in each if np.isfinite(mean)) for name, each in parts.items()}
    choice = most_stable(full, absent) if correction.mixture is not None else "correction"
    return Comparison(scores, errors, choice, trial.posterior, folds)


class _Trial:
    """Scores of the candidates on checked rows, fold by fold.

    `scores` has the Brier score of each checked row, shape (m,), NaN where a candidate was not tried; `seen` has
    probabilities of all rows, shape (n, classes), to see which classes a candidate predicts.
    """

    def __init__(self, correction: Correction, seed: int) -> None:
        evidence, mixture = correction.evidence, correction.mixture
        self.correction, self.evidence, self.seed = correction, evidence, seed
        self.checked = evidence.checked
        self.target = np.eye(evidence.classes)[evidence.right[self.checked]]
        self.seen = {"correction": correction.p}
        names = ["correction", "all labels"]
        if mixture is None:
            self.unseen = correction.probabilities[self.checked]
        else:
            self.unseen = without_checked(correction)
            free = ~np.isin(evidence.tied, evidence.tied[self.checked])  # not tied to a checked row
            kept, heaviest = confident_rows(correction), mixture.models[mixture.heaviest]
            filtered = SingleModel(fitted(heaviest, evidence.X, evidence.given, kept[free[kept]]), evidence.classes)
            self.seen["filter"] = filtered.predict_proba(evidence.X)
            names = ["correction", "filter", "all labels", GOLD, *self._bilevel()]
            rows = evidence.unchecked[free[evidence.unchecked]]
            self.linear, self.start = LinearRows(evidence.X), None
            self.noisy = _sampled(evidence.given, rows, SAMPLE, seed)
        if evidence.X is not None:
            names.append("checked only")
        self.seen["all labels"] = correction.probabilities
        self.scores = {name: np.full(len(self.checked), np.nan) for name in names}
        self.posterior = np.zeros_like(self.unseen)

    def _bilevel(self) -> tuple[str, ...]:
        rows, columns = self.evidence.X.shape
        return BILEVEL if rows * columns * self.evidence.classes <= FEW else ()

    def hold_out(self, held: np.ndarray) -> None:
        """Score every candidate that is still in question on these checked rows."""
        p, own, Q = _held_out(self.correction, self.unseen, held, self.seed)
        self.posterior[held] = Q
        self._score("correction", held, p)
        self._score("all labels", held, self.unseen[held])
        if "filter" in self.scores:
            self._score("filter", held, self.seen["filter"][self.checked[held]])
        if "checked only" in self.scores:
            self._score("checked only", held, own[self.checked[held]])
            self.seen["checked only"] = own
        others = np.setdiff1d(np.arange(len(self.checked)), held)
        for name in (GOLD, *BILEVEL):
            if name in self.scores and not self._behind(name):
                self._score_linear(name, held, others)

    def _score(self, name: str, held: np.ndarray, P: np.ndarray) -> None:
        self.scores[name][held] = ((P - self.target[held]) ** 2).sum(1)

    def _score_linear(self, name: str, held: np.ndarray, others: np.ndarray) -> None:
        try:
            found, self.start = linear_model(
                name, self.evidence, self.linear, self.noisy, self.checked[others], self.unseen[others], self.seed,
                self.start,
            )  # fmt: skip
        except NonFiniteError:
            return
        model = SingleModel(found, self.evidence.classes)
        self.seen[name] = model.predict_proba(self.evidence.X)
        self._score(name, held, self.seen[name][self.checked[held]])

    def _behind(self, name: str) -> bool:
        """Whether a noise model is not ahead of the correction so far: they take most of the time of small tables."""
        ahead = self.scores["correction"] - self.scores[name]
        return name != GOLD and bool(np.isfinite(ahead).any()) and bool(np.nanmean(ahead) <= 0)


def linear_model(
    name: str, evidence: Evidence, linear: LinearRows, noisy: np.ndarray, checked: np.ndarray, P: np.ndarray, seed: int,
    start: np.ndarray | None = None,
) -> tuple[Any, np.ndarray | None]:  # fmt: skip
    """Gold loss correction or a noise model of the bilevel pipeline, and where gold loss correction ended.

    Parameters
    ----------
    noisy, checked
        Numbers of the rows whose given label, and whose right label is learned from.
    P
        Probabilities of the checked rows by models of the given labels, shape (m, classes).
    start
        Where gold loss correction begins.
    """
    right = evidence.right[checked]
    parts = (linear.Z[noisy], evidence.given[noisy], linear.Z[checked], right)
    if name != GOLD:
        return linear.model(*bilevel_model(name, *parts, evidence.classes, seed)), start
    start = gold_loss_correction(*parts, transition_shares(P, right), start)
    return linear.model(start[:-1].T, start[-1]), start


def _sampled(given: np.ndarray, rows: np.ndarray, count: int, seed: int) -> np.ndarray:
    return rows if len(rows) <= count else sample_of_each(given, rows, count, seed)


def _standard_error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("inf")


def missing_classes(P: np.ndarray, correction: Correction, tau: float) -> int:
    """How many classes that rows were given, or checked to be of, are predicted for no row."""
    evidence = correction.evidence
    present = np.union1d(evidence.given[evidence.given >= 0], evidence.right[evidence.checked])
    return len(np.setdiff1d(present, decide(P, correction.prior, tau)))


def without_checked(correction: Correction) -> np.ndarray:
    """Probabilities of the checked rows by the mixture fitted without any of them, shape (m, classes)."""
    evidence, mixture = correction.evidence, correction.mixture
    assert mixture is not None
    labels = np.where(evidence.right >= 0, -1, evidence.best_labels)
    labels = np.where(np.isin(evidence.tied, evidence.tied[evidence.checked]), -1, labels)
    return mixture.fit(evidence.X, labels).predict_proba(evidence.X[evidence.checked])


def _held_out(correction: Correction, unseen: np.ndarray, held: np.ndarray, seed: int) -> tuple[np.ndarray, ...]:
    """p and Q of some of the checked rows, and C of all rows, made without the right labels of the former."""
    evidence = correction.evidence
    rows = evidence.checked[held]
    others = np.ones(len(evidence.given), bool)
    others[rows] = False
    P = correction.probabilities.copy()
    P[evidence.checked] = unseen
    X = evidence.X
    part = Evidence(None if X is None else X[others], evidence.given[others], evidence.right[others],
                    evidence.wrong[others], evidence.tied[others], evidence.classes)  # fmt: skip
    made = with_checked_rows(replace(correction, evidence=part, probabilities=P[others]), seed, SAMPLE)
    models = made.checked_models
    own = P if models is None or models.own is None else probabilities(models.own, X, evidence.classes)
    if models is None or made.label_model is None:
        return unseen[held], own, unseen[held]
    p = made.label_model.class_probabilities(models.features(unseen[held], None if X is None else X[rows]))
    return p, own, made.label_model.posterior(p, evidence.given[rows])


def most_stable(rows: Mapping[str, np.ndarray], absent: Mapping[str, int] | None = None) -> str:
    """The candidate to use, of those whose mean score is within one standard error (of the difference) of the best.

    Parameters
    ----------
    rows
        The score of each row by each candidate, the most stable candidate first.
    absent
        How many classes each never predicts: the fewest count most, then the order.

    Examples
    --------
    >>> scores = {"a": np.array([0.1, 0.5, 0.3]), "b": np.array([0.2, 0.3, 0.3])}
    >>> most_stable(scores), most_stable(scores, {"a": 1, "b": 0})
    ('a', 'b')
    """
    best = min(rows, key=lambda name: rows[name].mean())
    behind = {name: scores - rows[best] for name, scores in rows.items()}
    close = [name for name, each in behind.items() if name == best or each.mean() <= _standard_error(each)]
    return min(close, key=lambda name: 0 if absent is None else absent[name])


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


def chosen_model(correction: Correction, choice: str, seed: int = 0) -> Any:
    """The candidate of that name, made of all rows, with predict_proba."""
    evidence, mixture = correction.evidence, correction.mixture
    if choice == "correction" or mixture is None:
        return final_model(correction)
    if choice == "all labels":
        return mixture.fit(evidence.X, evidence.best_labels)
    if choice == "checked only":
        assert correction.checked_models is not None
        return SingleModel(correction.checked_models.own, evidence.classes)
    if choice == "filter":
        rows = np.concatenate([confident_rows(correction), evidence.checked])
        model = fitted(mixture.models[mixture.heaviest], evidence.X, evidence.best_labels, rows)
        return SingleModel(model, evidence.classes)
    noisy = _sampled(evidence.given, evidence.unchecked, MOST_ROWS, seed)
    P = correction.probabilities[evidence.checked]
    model, _ = linear_model(choice, evidence, LinearRows(evidence.X), noisy, evidence.checked, P, seed)
    return SingleModel(model, evidence.classes)


# --- what to do with the suspected labels -----------------------------------------------------------------------------

ADVICE = ("filter", "relabel", "leave alone")
"""Drop the rows that are suspected, give them the suggested labels, or keep all as they are."""


@dataclass(frozen=True)
class Advice:
    """What to do with suspected labels before a model is trained.

    Parameters
    ----------
    choice
        One of `ADVICE`.
    accuracy
        Of a plain model (the heaviest of the mixture) trained each way, on checked rows whose labels were not used.
    """

    choice: str
    accuracy: Mapping[str, float]


def advise(correction: Correction, seed: int = 0) -> Advice | None:
    """Compare the three ways on two halves of the checked rows; None with too few of them, or without a mixture.

    The labels of a half have no part in which rows are suspected when that half is predicted. Filtering is advised
    unless another way is better by more than a standard error.
    """
    evidence, mixture = correction.evidence, correction.mixture
    checked = evidence.checked
    if mixture is None or len(checked) < FEWEST:
        return None
    fold = folds_of(evidence.right[checked], evidence.tied[checked], seed + 2, count=2)
    missed = {name: np.zeros(len(checked)) for name in ADVICE}
    for half in (0, 1):
        held = np.flatnonzero(fold == half)
        for name, labels in _labels_without(correction, held, seed).items():
            rows = _sampled(labels, np.flatnonzero(labels >= 0), SAMPLE, seed)
            model = fitted(mixture.models[mixture.heaviest], evidence.X, labels, rows)
            missed[name][held] = model.predict(evidence.X[checked[held]]) != evidence.right[checked[held]]
    return Advice(most_stable(missed), {name: float(1 - each.mean()) for name, each in missed.items()})


def _labels_without(correction: Correction, held: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """What each way makes of the labels, -1 for rows that do not train, without the right labels of `held`."""
    evidence = correction.evidence
    rows = evidence.checked[held]
    right = evidence.right.copy()
    right[rows] = -1
    part = replace(evidence, right=right, given=np.where(np.isin(np.arange(len(right)), rows), -1, evidence.given))
    made = with_checked_rows(replace(correction, evidence=part), seed, SAMPLE)
    given = np.where(np.isin(evidence.tied, evidence.tied[rows]), -1, part.best_labels)
    issue = made.is_issue
    suggested = np.where(issue & (given >= 0), made.posterior.argmax(1), given)
    return {"filter": np.where(issue, -1, given), "relabel": suggested, "leave alone": given}
