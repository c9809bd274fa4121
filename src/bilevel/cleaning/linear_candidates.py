"""Linear models for wrong labels, as candidates in addition to the correction.

    gold loss correction    T_cg = mean probability of g in checked rows of class c, by models of the given labels;
                            min  - sum_i log (p(x_i) T)_g - sum_checked log p_y + |W|^2 / (2 C),  p = softmax(W x + b)
    transition, class-pairs, rows    the noise models of the bilevel pipeline (`training`)

Reference: Hendrycks, Mazeika, Wilson and Gimpel, Using trusted data to train deep networks on labels corrupted by
severe noise, NeurIPS 2018.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from scipy.optimize import minimize
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline

from ..run.engine import Run
from .correction import Evidence
from .design import Design
from .learning import Rows, Settings
from .losses import loss_of
from .out_of_fold import standardised
from .training import Training

STRENGTH, SPARSE_STRENGTH = 0.1, 3.0
"""C of gold loss correction."""
GOLD = "gold loss correction"
BILEVEL = ("transition", "class-pairs", "rows")


class LinearModels:
    """The linear candidates for some rows; dense columns are standardised, sparse ones are not.

    Parameters
    ----------
    noisy
        Numbers of the rows whose given label is used.
    """

    def __init__(self, evidence: Evidence, noisy: np.ndarray, seed: int) -> None:
        self.evidence = evidence
        self.noisy = noisy
        self.seed = seed
        self._prepare = None if sp.issparse(evidence.X) else standardised().fit(evidence.X)
        self._Z = evidence.X if self._prepare is None else self._prepare.transform(evidence.X)
        self._start: np.ndarray | None = None  # where gold loss correction ended

    def fit(self, name: str, checked: np.ndarray, P: np.ndarray) -> Any:
        """Fit the candidate of that name; return a classifier of unscaled rows.

        Parameters
        ----------
        checked
            Numbers of the rows whose right label is used.
        P
            Probabilities of these rows by models of the given labels, shape (m, classes).
        """
        right = self.evidence.right[checked]
        parts = (self._Z[self.noisy], self.evidence.given[self.noisy], self._Z[checked], right)
        if name != GOLD:
            return self._classifier(*bilevel_model(name, *parts, self.evidence.classes, self.seed))
        self._start = gold_loss_correction(*parts, transition_shares(P, right), self._start)
        return self._classifier(self._start[:-1].T, self._start[-1])

    def _classifier(self, weight: np.ndarray, bias: np.ndarray) -> Any:
        """scikit-learn's logistic regression with these coefficients, (K, columns) and (K,)."""
        if len(bias) == 2:
            weight, bias = weight[1:] - weight[:1], bias[1:] - bias[:1]
        regression: Any = LogisticRegression()
        regression.coef_, regression.intercept_ = weight, bias
        regression.classes_, regression.n_features_in_ = np.arange(max(2, len(bias))), weight.shape[1]
        if self._prepare is None:
            return regression
        return Pipeline([("prepare", self._prepare), ("regression", regression)])


def transition_shares(P: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The mean P of the checked rows of each class, shape (K, K); the identity for classes without checked rows."""
    T = np.eye(P.shape[1])
    for c in np.unique(right):
        T[c] = P[right == c].mean(0)
    return T


def gold_loss_correction(
    Z: Any, given: np.ndarray, Z_checked: Any, right: np.ndarray, T: np.ndarray, start: np.ndarray | None = None,
    max_iter: int = 100,
) -> np.ndarray:  # fmt: skip
    """W and b, one column below the other, of the module's formula, shape (columns + 1, K).

    Parameters
    ----------
    Z, given
        Rows with given labels.
    Z_checked, right
        Rows with right labels.
    T
        Probabilities of labels given the class, shape (K, K).
    start
        The starting values of W and b.
    """
    K, width = len(T), Z.shape[1]
    ridge = 1 / (SPARSE_STRENGTH if sp.issparse(Z) else STRENGTH)
    likelihood, known = T[:, given].T, np.eye(K)[right]

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        theta = flat.reshape(width + 1, K)
        W, b = theta[:-1], theta[-1]
        p, p_checked = softmax(Z @ W + b, axis=1), softmax(Z_checked @ W + b, axis=1)
        joint = p * likelihood
        total = joint.sum(1) + 1e-12
        slope, slope_checked = p - joint / total[:, None], p_checked - known
        value = -np.log(total).sum() - np.log((p_checked * known).sum(1) + 1e-12).sum() + 0.5 * ridge * (W**2).sum()
        gradient = Z.T @ slope + Z_checked.T @ slope_checked + ridge * W
        return value, np.vstack([gradient, slope.sum(0) + slope_checked.sum(0)]).ravel()

    begin = np.zeros((width + 1) * K) if start is None else start.ravel()
    return minimize(objective, begin, jac=True, method="L-BFGS-B", options={"maxiter": max_iter}).x.reshape(-1, K)


def bilevel_model(
    noise: str, Z: Any, given: np.ndarray, Z_checked: Any, right: np.ndarray, classes: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients and intercepts of a noise model of `BILEVEL`: (K, columns) and (K,); one line for two classes."""
    settings = Settings(classes=classes, noise=noise, loss=loss_of("auto", classes), seed=seed)
    noisy, checked = (
        Rows(Design.of(rows), torch.from_numpy(labels)) for rows, labels in ((Z, given), (Z_checked, right))
    )
    with Run("candidate") as run:
        model = Training(noisy, checked, settings, run).fit().model
    if run.interrupted:
        raise KeyboardInterrupt
    return model["weight"].numpy(), model["bias"].numpy()
