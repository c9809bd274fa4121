"""Noise model "correction": models of the given labels, corrected by checked rows.

    P   out-of-fold probabilities of a mixture of models of all labels (the right ones of checked rows)
    C   ridge logistic regression of the checked rows alone
    R   logistic regression of the right label on [clr P, clr C] / 2 on checked rows, cross-fitted there
    p, T_x   joint penalised likelihood of p = softmax(alpha . (clr P, clr R, clr C) + b) and of a noise model T_x
    Q(c|x,g) ~ p_c T_x[c,g],   label quality = Q(g|x,g)
    final model: a pool of p on new rows, by the models of P refitted to all rows, and of other models: the heaviest of
    P, refitted to the rows whose label is not suspected, and others that the caller adds

clr is the centred logarithm. See `out_of_fold` and `label_likelihood` for P and for p, T_x. Without checked rows there
is no noise model: Q = p = P.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.special import softmax
from sklearn.decomposition import TruncatedSVD
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline

from ..errors import InvalidInputError
from .label_likelihood import MOST_ROWS, TINY, LabelModel, centred_log, fit_label_model
from .out_of_fold import (
    FittedMixture,
    Mixture,
    fitted,
    folds_of,
    log_likelihood,
    mix,
    models_of,
    of_labels,
    out_of_fold,
    probabilities,
    ridge_logistic,
    several,
    standardised,
    tied_rows,
)

STRENGTHS = (0.01, 0.1, 1.0)
SPARSE_STRENGTHS = (0.1, 1.0, 10.0, 100.0)
"""Values of C for the model of the checked rows; the one with the largest out-of-fold likelihood is used."""
TAUS = np.linspace(0.0, 1.0, 11)
"""Powers of the priors that a balanced decision may take."""


@dataclass(frozen=True)
class Evidence:
    """The features of n rows and the known facts about their labels.

    Parameters
    ----------
    X
        Features, dense (gaps are NaN) or sparse, shape (n, columns), or None when probabilities are at hand.
    given, right
        Labels 0, ..., classes - 1, or -1 where unknown, shape (n,).
    wrong
        Rows whose given label is known to be wrong while the right one is unknown, shape (n,).
    tied
        One number per row, equal for rows that must share a fold, shape (n,).
    """

    X: Any
    given: np.ndarray
    right: np.ndarray
    wrong: np.ndarray
    tied: np.ndarray
    classes: int

    @classmethod
    def of(cls, X: Any, given: Any, right: Any, classes: int, *, wrong: Any = None, groups: Any = None) -> Evidence:
        """The evidence of rows; equal rows and rows of the same group are tied."""
        given, right = np.asarray(given, np.int64), np.asarray(right, np.int64)
        wrong = np.zeros(len(given), bool) if wrong is None else wrong
        tied = np.arange(len(given)) if X is None and groups is None else tied_rows(X, groups)
        return cls(X, given, right, wrong, tied, classes)

    @cached_property
    def checked(self) -> np.ndarray:
        """Numbers of the rows whose right label is known."""
        return np.flatnonzero(self.right >= 0)

    @cached_property
    def unchecked(self) -> np.ndarray:
        """Numbers of the rows whose given label was not checked."""
        return np.flatnonzero((self.right < 0) & (self.given >= 0) & ~self.wrong)

    @property
    def best_labels(self) -> np.ndarray:
        """The right label if it is known, otherwise the given one; -1 if that is known to be wrong."""
        return np.where(self.right >= 0, self.right, np.where(self.wrong, -1, self.given))

    @property
    def verified(self) -> np.ndarray:
        """Numbers of the checked rows whose given label is known."""
        return np.flatnonzero((self.right >= 0) & (self.given >= 0))


# --- checked rows -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckedModels:
    """The models C and R of the checked rows; each is None if there are too few rows or labels."""

    own: Any
    corrector: Any
    seen: np.ndarray  # which classes have checked rows, shape (classes,)

    @property
    def prior_alpha(self) -> list[float]:
        """The prior means of the weights of clr P, clr R and clr C in the joint likelihood."""
        if self.corrector is None:
            return [1.0]
        return [0.5, 0.5] if self.own is None else [0.5, 0.5, 0.0]

    def features(self, P: np.ndarray, X: Any) -> list[np.ndarray]:
        """[clr P, clr R, clr C] of rows that were not checked, each of the shape of P."""
        if self.corrector is None:
            return [centred_log(P)]
        C = None if self.own is None else probabilities(self.own, X, len(self.seen))
        R = probabilities(self.corrector, corrector_input(P, C), len(self.seen))
        return self.stacked(P, R, C)

    def stacked(self, P: np.ndarray, R: np.ndarray, C: np.ndarray | None) -> list[np.ndarray]:
        """Classes without checked rows keep P."""
        R = np.where(self.seen, R, P) + 1e-4
        R = R / R.sum(1, keepdims=True)
        return [centred_log(each) for each in (P, R, C) if each is not None]


def corrector_input(P: np.ndarray, C: np.ndarray | None) -> np.ndarray:
    """[clr P, clr C] / 2."""
    return 0.5 * np.hstack([centred_log(each) for each in (P, C) if each is not None])


def fit_checked(
    P: np.ndarray, X: Any, right: np.ndarray, tied: np.ndarray, seed: int
) -> tuple[CheckedModels, list[np.ndarray]]:
    """C and R of checked rows only, and the features of these rows, cross-fitted.

    Parameters
    ----------
    P
        Out-of-fold probabilities of the checked rows, shape (m, classes).
    X, right, tied
        Features, right labels and ties of the checked rows.
    """
    classes = P.shape[1]
    seen = np.bincount(right, minlength=classes) > 0
    if seen.sum() < 2 or len(right) < 4:
        models = CheckedModels(None, None, seen)
        return models, models.features(P, X)
    fold = folds_of(right, tied, seed)
    own, C = (None, None) if X is None else _own_model(X, right, fold, classes)
    regression, inputs = LogisticRegression(C=1.0, max_iter=200, tol=1e-3), corrector_input(P, C)
    models = CheckedModels(own, fitted(regression, inputs, right), seen)
    return models, models.stacked(P, out_of_fold(regression, inputs, right, fold, classes), C)


def _own_model(X: Any, right: np.ndarray, fold: np.ndarray, classes: int) -> tuple[Any, np.ndarray]:
    """Ridge logistic regression of the checked rows, and its probabilities out of fold.

    Sparse rows have many columns. Because the penalty is invariant under rotations, the model is fitted in coordinates
    of the space that the rows span. Columns are scaled once, by the features of all checked rows.
    """
    if sp.issparse(X):
        size, grid = max(1, min(X.shape) - 1), SPARSE_STRENGTHS
        prepare: Any = TruncatedSVD(size, algorithm="arpack", random_state=0).fit(X)
    else:
        prepare, grid = standardised().fit(X), STRENGTHS
    Z = prepare.transform(X)
    tried = [ridge_logistic(strength, sparse=True) for strength in grid]
    scored = [(out_of_fold(model, Z, right, fold, classes), model) for model in tried]
    C, best = max(scored, key=lambda pair: log_likelihood(pair[0] + 1e-3, right))
    return Pipeline([("prepare", prepare), ("regression", fitted(best, Z, right))]), C


# --- the whole --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Correction:
    """The learned probabilities of the labels, and the parts of a final model.

    Parameters
    ----------
    evidence
        The rows.
    mixture
        The mixture of models of the given labels; None if probabilities were given.
    probabilities
        P, out of fold, shape (n, classes).
    checked_models, label_model
        C and R, and p with T_x; None without checked rows.
    p, posterior
        p(c|x) and Q(c|x,g), shape (n, classes). Q is 1 for the right label of a checked row.
    """

    evidence: Evidence
    mixture: Mixture | None
    probabilities: np.ndarray
    checked_models: CheckedModels | None
    label_model: LabelModel | None
    p: np.ndarray
    posterior: np.ndarray

    @property
    def prior(self) -> np.ndarray:
        """The expected share of each class, shape (classes,)."""
        total = self.posterior.sum(0) + 1.0
        return total / total.sum()

    @property
    def label_quality(self) -> np.ndarray:
        """Q(g|x,g), the probability that the given label is right, shape (n,); NaN where none was given."""
        return of_labels(self.posterior, self.evidence.given)

    @property
    def is_issue(self) -> np.ndarray:
        """Labels to drop: with a quality below 1/2, and not the best label either if rare classes count more."""
        return suspected(self.posterior, self.evidence.given, self.prior)


def correct(
    evidence: Evidence, *, estimator: Any = None, pred_probs: np.ndarray | None = None, seed: int = 0,
    progress: Callable[[str], None] = lambda stage: None,
) -> Correction:  # fmt: skip
    """Compute everything except the final model.

    Parameters
    ----------
    estimator
        A classifier, or a list to mix; default: see `out_of_fold.default_models`.
    pred_probs
        P, out of fold, of all rows, shape (n, classes), if it was computed by other models.
    """
    mixture = None
    if pred_probs is None:
        if evidence.X is None:
            raise InvalidInputError("correction needs features X, or pred_probs: the probabilities of a model of them")
        progress("models of the labels")
        labels = evidence.best_labels
        if evidence.tied.min() == evidence.tied.max():
            raise InvalidInputError("all rows are equal or in one group: no model can be fitted without one of them")
        fold = folds_of(labels, evidence.tied, seed)
        validation = evidence.unchecked if len(evidence.unchecked) else evidence.checked
        mixture = mix(models_of(estimator, evidence.X, seed), evidence.X, labels, fold, validation, evidence.classes)
        pred_probs = mixture.out_of_fold
    P = pred_probs / pred_probs.sum(1, keepdims=True)
    progress("correction")
    return with_checked_rows(Correction(evidence, mixture, P, None, None, P, P), seed)


def with_checked_rows(base: Correction, seed: int = 0, most_rows: int = MOST_ROWS) -> Correction:
    """Compute p, T_x and Q from the checked rows of the evidence; without any, Q = p = P.

    Parameters
    ----------
    most_rows
        The maximal number of given labels in the likelihood.
    """
    evidence, P = base.evidence, base.probabilities
    checked = evidence.checked
    if len(checked) == 0:
        return replace(base, p=P, posterior=certain(P, evidence))
    X = evidence.X
    models, own = fit_checked(
        P[checked], None if X is None else X[checked], evidence.right[checked], evidence.tied[checked], seed
    )
    features = models.features(P, X)
    for all_rows, cross_fitted in zip(features, own, strict=True):
        all_rows[checked] = cross_fitted
    model = fit_label_model(
        features, evidence.given, evidence.right, evidence.wrong, models.prior_alpha, seed=seed, most_rows=most_rows
    )
    p = model.class_probabilities(features)
    Q = certain(model.posterior(p, evidence.given), evidence)
    return replace(base, checked_models=models, label_model=model, p=p, posterior=Q)


def certain(Q: np.ndarray, evidence: Evidence) -> np.ndarray:
    """Q, with 1 for a known right label and 0 for a given label that is known to be wrong."""
    Q = Q.copy()
    wrong = np.flatnonzero(evidence.wrong & (evidence.right < 0) & (evidence.given >= 0))
    Q[wrong, evidence.given[wrong]] = 0.0
    Q[evidence.checked] = np.eye(evidence.classes)[evidence.right[evidence.checked]]
    return Q / Q.sum(1, keepdims=True)


# --- the final model --------------------------------------------------------------------------------------------------

CORRECTED, ALL, KEPT = "correction", "all labels", "kept"
"""p of the joint likelihood, the mixture of models of all labels, and a model of the rows that are not suspected."""


@dataclass(frozen=True)
class CorrectedModel:
    """Class probabilities of new rows, pooled: softmax(sum_k w_k log P_k).

    Parameters
    ----------
    others
        Classifiers beside p ("correction") and the mixture itself ("all labels"), by name.
    weights
        w_k of each that counts, by name; where there is no such classifier, p has its weight.
    """

    mixture: FittedMixture
    checked_models: CheckedModels | None
    label_model: LabelModel | None
    others: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Shape (n, classes)."""
        P = self.mixture.predict_proba(X)
        if self.checked_models is None or self.label_model is None:
            return P
        p = self.label_model.class_probabilities(self.checked_models.features(P, X))
        found = dict.fromkeys(self.weights, p) | {CORRECTED: p, ALL: P}
        return pooled(found | {name: of_all_classes(each, X, p) for name, each in self.others.items()}, self.weights)


def of_all_classes(model: Any, X: Any, p: np.ndarray) -> np.ndarray:
    """A classifier's probabilities of the rows X, (n, classes), which are those of p for classes it has never seen."""
    P = probabilities(model, X, p.shape[1])
    unseen = np.setdiff1d(np.arange(p.shape[1]), model.classes_)
    P[:, unseen] = p[:, unseen]
    return P


def pooled(P: Mapping[str, np.ndarray], weights: Mapping[str, float]) -> np.ndarray:
    """softmax(sum_k w_k log P_k) of class probabilities (n, classes) by name: w_k = 1 / K is their geometric mean."""
    return softmax(sum(weight * centred_log(P[name]) for name, weight in weights.items()), axis=1)


def final_model(
    correction: Correction, others: Mapping[str, Any] | None = None, weights: Mapping[str, float] | None = None
) -> CorrectedModel:
    """The model for new rows; the mixture is refitted to all rows.

    Parameters
    ----------
    others
        Classifiers that take part, by name, beside "kept": the heaviest of the mixture, refitted to the rows whose
        label is not suspected.
    weights
        Of "correction", "all labels", "kept" and the others; default the first and the third alike.
    """
    evidence, mixture = correction.evidence, correction.mixture
    if evidence.X is None or mixture is None:
        raise InvalidInputError("a model for new rows needs the features X and the estimator, not pred_probs alone")
    everything, others = mixture.fit(evidence.X, evidence.best_labels), dict(others or {})
    weights = weights or {CORRECTED: 0.5, KEPT: 0.5}
    if correction.label_model is not None and KEPT in weights:
        rows = np.flatnonzero(~correction.is_issue & (evidence.best_labels >= 0))
        if several(evidence.best_labels[rows]):
            others[KEPT] = fitted(mixture.models[mixture.heaviest], evidence.X, evidence.best_labels, rows)
    return CorrectedModel(everything, correction.checked_models, correction.label_model, others, weights)


def suspected(Q: np.ndarray, given: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Labels with Q(g) < 1/2 that are not argmax_c Q_c / prior_c^(1/2) either, shape (n,); none where given is -1."""
    return (of_labels(Q, given) < 0.5) & ((Q / prior**0.5).argmax(1) != given)


# --- the decision -----------------------------------------------------------------------------------------------------


def decide(P: np.ndarray, prior: np.ndarray, tau: float) -> np.ndarray:
    """argmax_c P_c / prior_c^tau, shape (n,)."""
    return (P / prior**tau).argmax(1)


def expected_accuracy(P: np.ndarray, chosen: np.ndarray) -> tuple[float, float]:
    """The accuracy and the balanced accuracy of chosen classes (n,) that are expected if P is right.

    Examples
    --------
    >>> expected_accuracy(np.array([[0.6, 0.4], [0.8, 0.2]]), np.array([0, 0]))
    (0.7, 0.5)
    """
    found = np.bincount(chosen, P[np.arange(len(P)), chosen], minlength=P.shape[1])  # right rows of each class
    return float(found.sum() / len(P)), float((found / np.maximum(P.sum(0), TINY)).mean())


def balancing_power(P: np.ndarray, prior: np.ndarray, rival: np.ndarray | None = None) -> float:
    """The tau of `TAUS` with the largest sum of expected accuracy and expected balanced accuracy.

    Parameters
    ----------
    rival
        The classes that a simpler model chooses, shape (n,). Powers that are expected to be behind it in neither are
        preferred, then those that are not behind in balanced accuracy.
    """
    least = (0.0, 0.0) if rival is None else expected_accuracy(P, rival)

    def merit(tau: float) -> tuple[bool, bool, float]:
        plain, balanced = expected_accuracy(P, decide(P, prior, tau))
        return plain >= least[0] and balanced >= least[1], balanced >= least[1], plain + balanced

    return max(TAUS.tolist(), key=merit)
