"""The joint penalised likelihood of class probabilities and of a row-dependent noise model.

With K classes, given label g, right label y, features F_1, ..., F_L of a row (centred log-probabilities, (K,) each):

    p(c|x)   = softmax(sum_l alpha_l F_l(x) + b)_c                                       right labels
    T_x[c,c] = 1 - eps_c(x),  eps_c(x) = sigmoid(a + d_c + h log((1 - p_c + .02) / .3))  a right label is kept
    T_x[c,j] = eps_c(x) softmax_{j != c}(r_cj + gamma log(p_j + .01))                    or replaced

    h = gamma = 0: noise by class; h = gamma = 1: difficult rows get the label that looks right.

Minimised by L-BFGS, with the priors alpha ~ N(alpha_0, .3^2), b ~ N(0, 1), a ~ N(logit .2, 1), d ~ N(0, .3^2),
r, h, gamma ~ N(0, 1):

    - sum_{checked} log p(y|x) - sum_{verified} log T_x[y, g] - sum_{wrong} log sum_{c != g} p_c T_x[c, g]
    - t sum_{others} log sum_c p_c T_x[c, g] - log priors,       t = min(1, checked / others).

p(y|x) of a checked row is renormalised over the classes of the checked rows, because these do not show that the other
classes are rare. Verified rows are checked rows whose given label is known. Without them the level of noise is not
identified:
T_x = (1 - rho) I + rho 1 p(x)' gives P(g|x) = p_g for every rho, and only the prior of a decides. d is shrunk strongly,
because sampling errors in the class frequencies of few checked rows would otherwise appear as asymmetric noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

NOISE_LEVEL = 0.2
"""The mean of the prior of eps."""
SD_ALPHA, SD_CLASS = 0.3, 0.3
"""Standard deviations of the priors of alpha and d; those of the others are 1."""
MOST_ROWS = 5_000
"""The maximal number of given labels; their total weight does not exceed that of the checked rows."""
STEPS = 80
"""Of L-BFGS, at most."""
TINY = 1e-12


def centred_log(P: np.ndarray, floor: float = 1e-3) -> np.ndarray:
    """log(P + floor) minus its mean over the classes, the shape of P."""
    L = np.log(P + floor)
    return L - L.mean(-1, keepdims=True)


@dataclass(frozen=True)
class LabelModel:
    """p(c|x) and T_x of the module's formulas.

    Parameters
    ----------
    alpha, b
        Shapes (L,) and (K,).
    a, d, h, r, gamma
        Scalars, d (K,), r (K, K).
    """

    alpha: np.ndarray
    b: np.ndarray
    a: float
    d: np.ndarray
    h: float
    r: np.ndarray
    gamma: float

    def class_probabilities(self, features: Sequence[np.ndarray]) -> np.ndarray:
        """p(c|x), shape (n, K), of L arrays (n, K)."""
        scores = sum(weight * F for weight, F in zip(self.alpha, features, strict=True)) + self.b
        scores = np.exp(scores - scores.max(1, keepdims=True))
        return scores / scores.sum(1, keepdims=True)

    def label_probabilities(self, P: np.ndarray, given: np.ndarray) -> np.ndarray:
        """T_x[c, g], shape (n, K): how likely a row of each class is given its label."""
        noise = (self.a, self.d, self.h, self.r, self.gamma)
        numbers = [torch.as_tensor(value, dtype=torch.float64) for value in noise]
        return _noise_columns(torch.from_numpy(P), torch.from_numpy(given), *numbers).numpy()

    def posterior(self, P: np.ndarray, given: np.ndarray) -> np.ndarray:
        """Q(c|x,g) = p_c T_x[c,g] / sum_k p_k T_x[k,g], shape (n, K); p itself where given is -1."""
        Q, known = P.copy(), given >= 0
        Q[known] *= self.label_probabilities(P[known], given[known])
        return Q / Q.sum(1, keepdims=True)


def _noise_columns(P: Tensor, given: Tensor, a: Tensor, d: Tensor, h: Tensor, r: Tensor, gamma: Tensor) -> Tensor:
    """T_x[:, g] of each row, shape (n, K)."""
    eps = torch.sigmoid(a + d + h * torch.log((1 - P + 0.02) / 0.3))
    weight = torch.exp(r) * (1 - torch.eye(len(d), dtype=P.dtype))  # exp(r_cj), without j = c
    look = (P + 0.01) ** gamma
    replaced = weight.T[given] * look.gather(1, given[:, None]) / (look @ weight.T + TINY)
    kept = torch.nn.functional.one_hot(given, len(d)).bool()
    return torch.where(kept, 1 - eps, eps * replaced)


def fit_label_model(
    features: Sequence[np.ndarray],
    given: np.ndarray,
    right: np.ndarray,
    wrong: np.ndarray,
    prior_alpha: Sequence[float],
    *,
    seed: int = 0,
    most_rows: int = MOST_ROWS,
) -> LabelModel:
    """The minimiser of the module's objective.

    Parameters
    ----------
    features
        L arrays of shape (n, K).
    given, right
        Labels 0, ..., K - 1, or -1 where they are unknown, shape (n,).
    wrong
        Rows whose given label is known to be wrong, while the right one is unknown, shape (n,).
    prior_alpha
        alpha_0, shape (L,).
    most_rows
        The maximal number of rows with given labels, drawn at random.
    """
    others, wrong = (right < 0) & (given >= 0) & ~wrong, wrong & (right < 0) & (given >= 0)
    numbers = np.flatnonzero(others)
    if len(numbers) > most_rows:
        numbers = np.sort(np.random.default_rng(seed).permutation(numbers)[:most_rows])
    rows = (np.flatnonzero(right >= 0), numbers, np.flatnonzero(wrong))
    checked, taken, wrong_rows = (_Rows(np.stack(features), given, right, each) for each in rows)
    return _Fit(checked, taken, wrong_rows, prior_alpha).run()


class _Rows:
    """The features (L, n, K), given and right labels (n,) of some rows."""

    def __init__(self, features: np.ndarray, given: np.ndarray, right: np.ndarray, rows: np.ndarray) -> None:
        self.features = torch.from_numpy(np.ascontiguousarray(features[:, rows], dtype=np.float64))
        self.given, self.right = torch.from_numpy(given[rows]), torch.from_numpy(right[rows])


class _Fit:
    def __init__(self, checked: _Rows, others: _Rows, wrong: _Rows, prior_alpha: Sequence[float]) -> None:
        self.checked, self.others, self.wrong = checked, others, wrong
        self.temper = min(1.0, (len(checked.given) + len(wrong.given)) / max(len(others.given), 1))
        self.seen, self.verified = torch.unique(checked.right), (checked.given >= 0).nonzero()[:, 0]
        classes = checked.features.shape[2]
        self.level = float(np.log(NOISE_LEVEL / (1 - NOISE_LEVEL)))
        self.prior_alpha = torch.tensor(prior_alpha, dtype=torch.float64)
        self.alpha, self.b = _variable(prior_alpha), _variable(np.zeros(classes))
        self.a, self.d, self.h = _variable(self.level), _variable(np.zeros(classes)), _variable(0.0)
        self.r, self.gamma = _variable(np.zeros((classes, classes))), _variable(0.0)
        # Two classes: a label that is replaced becomes the other one, whatever r and gamma are.
        self.noise = [self.a, self.d, self.h] + ([self.r, self.gamma] if classes > 2 else [])

    def run(self) -> LabelModel:
        """Fit p to the checked rows first, then the noise with p fixed, then everything, to start near the optimum."""
        self._minimise([self.alpha, self.b], lambda: self._right_labels(self._p(self.checked)) + self._prior_p())
        fixed = [self._p(rows).detach() for rows in (self.checked, self.others, self.wrong)]
        self._minimise(self.noise, lambda: self._given_labels(*fixed) + self._prior_noise())
        self._minimise([self.alpha, self.b, *self.noise], self._objective)
        value = [variable.detach().numpy() for variable in (self.alpha, self.b, self.d, self.r)]
        return LabelModel(value[0], value[1], self.a.item(), value[2], self.h.item(), value[3], self.gamma.item())

    def _objective(self) -> Tensor:
        P = [self._p(rows) for rows in (self.checked, self.others, self.wrong)]
        return self._right_labels(P[0]) + self._given_labels(*P) + self._prior_p() + self._prior_noise()

    def _p(self, rows: _Rows) -> Tensor:
        return torch.softmax(torch.tensordot(self.alpha, rows.features, 1) + self.b, -1)

    def _columns(self, P: Tensor, given: Tensor) -> Tensor:
        return _noise_columns(P, given, self.a, self.d, self.h, self.r, self.gamma)

    def _right_labels(self, P: Tensor) -> Tensor:
        return torch.log(P[:, self.seen].sum(1)).sum() - _log_of(P, self.checked.right).sum()

    def _given_labels(self, P_checked: Tensor, P_others: Tensor, P_wrong: Tensor) -> Tensor:
        joint = P_others * self._columns(P_others, self.others.given)
        total = -self.temper * torch.log(joint.sum(1) + TINY).sum()
        if len(self.verified):
            columns = self._columns(P_checked[self.verified], self.checked.given[self.verified])
            total = total - _log_of(columns, self.checked.right[self.verified]).sum()
        if len(P_wrong):
            joint = P_wrong * self._columns(P_wrong, self.wrong.given)
            total = total - torch.log(joint.sum(1) - joint.gather(1, self.wrong.given[:, None])[:, 0] + TINY).sum()
        return total

    def _prior_p(self) -> Tensor:
        return 0.5 * (((self.alpha - self.prior_alpha) ** 2).sum() / SD_ALPHA**2 + (self.b**2).sum())

    def _prior_noise(self) -> Tensor:
        rest = (self.a - self.level) ** 2 + self.h**2 + self.gamma**2 + (self.r**2).sum()
        return 0.5 * ((self.d**2).sum() / SD_CLASS**2 + rest)

    def _minimise(self, variables: list[Tensor], objective: Callable[[], Tensor]) -> None:
        sizes = [variable.numel() for variable in variables]

        def move(flat: np.ndarray) -> None:
            with torch.no_grad():
                for variable, part in zip(variables, torch.from_numpy(flat).split(sizes), strict=True):
                    variable.copy_(part.view_as(variable))

        def value_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
            move(flat)
            value = objective()
            parts = torch.autograd.grad(value, variables)
            return value.item(), torch.cat([part.reshape(-1) for part in parts]).numpy()

        start = torch.cat([variable.detach().reshape(-1) for variable in variables]).numpy()
        options = {"maxiter": STEPS, "gtol": 1e-4, "ftol": 1e-9}
        move(minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", options=options).x)


def _variable(value: object) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


def _log_of(P: Tensor, labels: Tensor) -> Tensor:
    return torch.log(P.gather(1, labels[:, None])[:, 0] + 1e-9)
