"""Out-of-fold class probabilities of the given labels, by a mixture of scikit-learn classifiers.

    P(c | x_i) = sum_k w_k P_k(c | x_i),    w = argmax sum_i log sum_k w_k P_k(g_i | x_i)  on the simplex (EM),

where P_k is the prediction of a model that was fitted without row i, rows equal to it and rows of its group.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ..errors import InvalidInputError, InvalidTypeError

FOLDS = 5
MOST_ROWS = 20_000
"""A model is fitted to at most this many rows, drawn at random, and predicts all rows."""
SMALLEST_WEIGHT = 0.05
"""Models with a smaller weight in the mixture are left out."""
EM_STEPS = 50
FLOOR = 1e-6
"""The number added to a probability before its logarithm is taken."""

Strengths = Sequence[Any]
"""The same classifier with several regularisations: the one whose out-of-fold likelihood is largest is used."""


# --- models -----------------------------------------------------------------------------------------------------------


def boosting(seed: int = 0) -> Any:
    """Boosted trees, regularised for noisy labels: shallow, with large leaves and few steps."""
    shape: Any = {"max_iter": 80, "learning_rate": 0.06, "max_leaf_nodes": 8, "min_samples_leaf": 40,
                  "early_stopping": False}  # fmt: skip
    return HistGradientBoostingClassifier(**shape, l2_regularization=5.0, random_state=seed)


def ridge_logistic(strength: float, *, sparse: bool = False) -> Any:
    """Logistic regression with C = strength; dense columns are standardised, gaps become the column's mean."""
    regression = LogisticRegression(C=strength, max_iter=200, tol=1e-3)
    if sparse:
        return regression
    return make_pipeline(*(step for _, step in standardised().steps), regression)


def standardised() -> Any:
    """Dense columns with mean 0 and standard deviation 1; gaps become the column's mean."""
    return make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler())


def extra_trees(seed: int = 0) -> Any:
    """Extremely randomised trees, whose errors differ from those of boosting."""
    share: Any = 0.3  # of the columns, tried at each split
    trees = ExtraTreesClassifier(50, min_samples_leaf=5, max_features=share, random_state=seed, n_jobs=1)
    return make_pipeline(SimpleImputer(keep_empty_features=True), trees)


def default_models(X: Any, seed: int = 0) -> dict[str, Strengths]:
    """Boosting, ridge logistic and extra trees; for sparse rows (texts) logistic and naive Bayes."""
    if not sp.issparse(X):
        linear = [ridge_logistic(strength) for strength in (0.01, 0.1, 1.0)]
        return {"boosting": [boosting(seed)], "logistic": linear, "extra trees": [extra_trees(seed)]}
    models: dict[str, Strengths] = {"logistic": [ridge_logistic(strength, sparse=True) for strength in (1.0, 3.0, 10)]}
    if X.nnz == 0 or X.data.min() >= 0:  # naive Bayes takes counts
        models["naive Bayes"] = [MultinomialNB(alpha=0.1)]
    return models


def models_of(estimator: Any, X: Any, seed: int = 0) -> dict[str, Strengths]:
    """The classifiers to mix: the default ones for None, otherwise one estimator or each of a list."""
    if estimator is None:
        return default_models(X, seed)
    chosen = list(estimator) if isinstance(estimator, list | tuple) else [estimator]
    if not chosen:
        raise InvalidInputError("estimator must be a classifier or a list of classifiers, got an empty list")
    for each in chosen:
        if isinstance(each, type) or not (hasattr(each, "fit") and hasattr(each, "predict_proba")):
            raise InvalidTypeError(f"estimator needs the methods fit and predict_proba, got {each!r}")
    names = [type(each).__name__ for each in chosen]
    return {
        name if names.count(name) == 1 else f"{name} {number}": [each]
        for number, (name, each) in enumerate(zip(names, chosen, strict=True), 1)
    }


def fitted(model: Any, X: Any, labels: np.ndarray, rows: np.ndarray | None = None, seed: int = 0) -> Any:
    """A copy of the model, fitted to these rows (default all), or to about `MOST_ROWS` of them."""
    rows = np.arange(len(labels)) if rows is None else rows
    rows = sample_of_each(labels, rows, MOST_ROWS, seed)
    Z = X[rows]  # a copy
    if not sp.issparse(Z):
        Z[:, np.isnan(Z).all(0)] = 0.0  # a column without any value in these rows: scikit-learn's boosting fails
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a rough optimum serves
        warnings.filterwarnings("ignore", message="The number of unique classes")  # few checked rows
        copy: Any = clone(model)
        return copy.fit(Z, labels[rows])


def sample_of_each(labels: np.ndarray, rows: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """About `count` of the rows, sorted, with the same fraction of each label, rounded up; all rows if they are fewer.

    Examples
    --------
    >>> labels = np.array([0] * 100 + [1])
    >>> np.bincount(labels[sample_of_each(labels, np.arange(101), 10)])
    array([10,  1])
    """
    if len(rows) <= count:
        return rows
    share, order = count / len(rows), np.random.default_rng(seed).permutation(rows)
    members = [order[labels[order] == label] for label in np.unique(labels[rows])]
    return np.sort(np.concatenate([each[: int(np.ceil(share * len(each)))] for each in members]))


def probabilities(model: Any, X: Any, classes: int) -> np.ndarray:
    """predict_proba with a column for every class 0, ..., classes - 1, also for classes that the model has not seen."""
    P = np.zeros((X.shape[0], classes))
    P[:, model.classes_] = model.predict_proba(X)
    return P


# --- folds ------------------------------------------------------------------------------------------------------------


def tied_rows(X: Any, groups: Any = None) -> np.ndarray:
    """One number per row, the same for rows that must share a fold: equal rows, rows of one group, chains of both.

    Examples
    --------
    >>> tied_rows(np.array([[1.0], [2.0], [1.0], [3.0]]), groups=["a", "b", "c", "b"])
    array([0, 1, 0, 1], dtype=int32)
    """
    keys = [] if X is None else [row_numbers(X)]
    if groups is not None:
        keys.append(np.unique(np.asarray(groups).astype(str), return_inverse=True)[1])
    count = len(keys[0])
    rows = np.arange(count)
    starts = count + np.cumsum([0] + [int(key.max()) + 1 for key in keys])
    ends = np.concatenate([key + start for key, start in zip(keys, starts[:-1], strict=True)])
    edges = sp.coo_matrix((np.ones(len(ends), bool), (np.tile(rows, len(keys)), ends)), shape=(starts[-1],) * 2)
    return sp.csgraph.connected_components(edges, directed=False)[1][:count]


def row_numbers(X: Any) -> np.ndarray:
    """One number per distinct row of a dense or sparse matrix, shape (n,)."""
    seen: dict[int, int] = {}
    return np.array([seen.setdefault(key, len(seen)) for key in row_keys(X)])


def row_keys(X: Any) -> Iterator[int]:
    """The same number for equal rows of dense or of sparse matrices."""
    if not sp.issparse(X):
        return (hash(row.tobytes()) for row in X)
    X = sp.csr_matrix(X, copy=True)
    X.sum_duplicates()
    return (hash(X.indices[i:j].tobytes() + X.data[i:j].tobytes()) for i, j in pairwise(X.indptr))


def folds_of(labels: np.ndarray, tied: np.ndarray, seed: int, count: int = FOLDS) -> np.ndarray:
    """The fold of each row, shape (n,): tied rows share a fold, and each label is distributed over all folds.

    Examples
    --------
    >>> folds_of(np.array([0, 0, 1, 1]), np.array([0, 1, 2, 3]), seed=0, count=2)
    array([0, 1, 0, 1])
    """
    first = np.unique(tied, return_index=True)[1]  # one row of each set of tied rows
    order = np.random.default_rng(seed).permutation(len(first))
    order = order[np.argsort(labels[first][order], kind="stable")]
    fold = np.empty(len(first), int)
    fold[order] = np.arange(len(first)) % count
    return fold[np.unique(tied, return_inverse=True)[1]]


def out_of_fold(model: Any, X: Any, labels: np.ndarray, fold: np.ndarray, classes: int) -> np.ndarray:
    """Class probabilities of each row by a model fitted without its fold, shape (n, classes); label -1 is not used.

    If fewer than two labels are left without a fold, its probabilities are the class frequencies.
    """
    P = np.zeros((len(labels), classes))
    for number in np.unique(fold):
        train, held = np.flatnonzero((fold != number) & (labels >= 0)), np.flatnonzero(fold == number)
        if not several(labels[train]):
            P[held] = shares(labels[train], classes)
        else:
            P[held] = probabilities(fitted(model, X, labels, train), X[held], classes)
    return P


def several(labels: np.ndarray) -> bool:
    """Whether there are at least two labels.

    Examples
    --------
    >>> several(np.array([1, 1])), several(np.array([0, 1]))
    (False, True)
    """
    return len(np.unique(labels)) > 1


def shares(labels: np.ndarray, classes: int) -> np.ndarray:
    """The frequency of each class, with one row added to each, shape (classes,)."""
    counts = np.bincount(labels, minlength=classes) + 1.0
    return counts / counts.sum()


# --- the mixture ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mixture:
    """Models with convex weights, and their out-of-fold probabilities.

    Parameters
    ----------
    models, weights
        The models with positive weight, by name.
    out_of_fold
        The mixture's probabilities, shape (n, classes).
    first, first_out_of_fold
        The first model of the list, whatever its weight, and its own probabilities, shape (n, classes).
    """

    models: Mapping[str, Any]
    weights: Mapping[str, float]
    classes: int
    out_of_fold: np.ndarray
    first: Any
    first_out_of_fold: np.ndarray

    @property
    def heaviest(self) -> str:
        """The name of the model with the largest weight."""
        return max(self.weights, key=lambda name: self.weights[name])

    def fit(self, X: Any, labels: np.ndarray) -> FittedMixture:
        """The same mixture with models fitted to these rows; rows with label -1 are not used."""
        known = np.flatnonzero(labels >= 0)
        models = {name: fitted(model, X, labels, known) for name, model in self.models.items()}
        return FittedMixture(models, self.weights, self.classes)


@dataclass(frozen=True)
class FittedMixture:
    """sum_k w_k P_k(c | x) of fitted models."""

    models: Mapping[str, Any]
    weights: Mapping[str, float]
    classes: int

    def predict_proba(self, X: Any) -> np.ndarray:
        """Shape (n, classes)."""
        parts = [self.weights[name] * probabilities(model, X, self.classes) for name, model in self.models.items()]
        return np.sum(parts, axis=0)


def mix(models: Mapping[str, Strengths], X: Any, labels: np.ndarray, fold: np.ndarray, validation: np.ndarray,
        classes: int) -> Mixture:  # fmt: skip
    """The mixture with the largest out-of-fold likelihood of the labels of the rows `validation`.

    Parameters
    ----------
    labels
        The training labels, shape (n,): given labels, right ones for checked rows, -1 for rows that are not used.
    validation
        Numbers of the rows whose label was given and not checked.
    """
    chosen: dict[str, Any] = {}
    P: dict[str, np.ndarray] = {}
    for name, strengths in models.items():
        tried = [(out_of_fold(model, X, labels, fold, classes), model) for model in strengths]
        P[name], chosen[name] = max(tried, key=lambda pair: log_likelihood(pair[0][validation], labels[validation]))
    weights = mixture_weights([each[validation] for each in P.values()], labels[validation])
    kept = {name: float(weight) for name, weight in zip(P, weights, strict=True) if weight > 0}
    mixed = sum(weight * P[name] for name, weight in kept.items())
    first = next(iter(models))
    return Mixture({name: chosen[name] for name in kept}, kept, classes, np.asarray(mixed), chosen[first], P[first])


def of_labels(P: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """P(label) of each row, shape (n,); NaN where the label is -1."""
    return np.where(labels >= 0, P[np.arange(len(labels)), labels], np.nan)


def log_likelihood(P: np.ndarray, labels: np.ndarray) -> float:
    """The mean of log P(label)."""
    return float(np.log(of_labels(P, labels) + FLOOR).mean())


def mixture_weights(P: Sequence[np.ndarray], labels: np.ndarray) -> np.ndarray:
    """Convex weights that maximise sum_i log sum_k w_k P_k(label_i), by EM; small ones are 0.

    Examples
    --------
    >>> mixture_weights([np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([[0.5, 0.5], [0.5, 0.5]])], np.array([0, 1]))
    array([1., 0.])
    """
    likelihood = np.stack([of_labels(each, labels) + FLOOR for each in P])
    weights = np.full(len(P), 1.0 / len(P))
    for _ in range(EM_STEPS):
        responsibility = weights[:, None] * likelihood
        weights = (responsibility / responsibility.sum(0)).mean(1)
    weights[weights < SMALLEST_WEIGHT] = 0.0
    return weights / weights.sum()
