"""Eleven bilevel problems of the kinds that users bring, none of them used to tune a default.

Each maker takes a seed and a dtype and gives a `Case`. The data are those of scikit-learn, or drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import lsq_linear
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.preprocessing import PolynomialFeatures
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from bilevel import Problem, sets


@dataclass
class Case:
    """A problem with its start; `bounds` are those of x for SciPy, `lower` its y*(x) where one is known otherwise."""

    problem: Problem
    x0: Any
    y0: Any
    bounds: tuple[float, float] | None = None
    convex: bool = True
    lower: Callable[[Any], Tensor] | None = None


def ridge1(seed: int, dtype: torch.dtype) -> Case:
    """One penalty for 60 polynomial features, weights in an l1 ball."""
    train, wanted, held, truth = _diabetes(seed, dtype, features=60)
    problem = Problem(
        lambda x, y: (held @ y - truth).square().mean() / 2,
        lambda x, y: (train @ y - wanted).square().mean() / 2 + x.exp().sum() * y.square().sum() / 2,
        sets.L1Ball(4.0),
    )
    return Case(problem, torch.zeros(1, dtype=dtype), torch.zeros(train.shape[1], dtype=dtype))


def ridge50(seed: int, dtype: torch.dtype) -> Case:
    """One penalty per feature: many local minima."""
    train, wanted, held, truth = _diabetes(seed, dtype, features=50)
    count = train.shape[1]
    problem = Problem(
        lambda x, y: (held @ y - truth).square().mean() / 2,
        lambda x, y: (train @ y - wanted).square().mean() / 2 + (x.exp() * y.square()).sum() / 2,
        sets.L1Ball(1.5),
    )
    return Case(problem, torch.zeros(count, dtype=dtype), torch.zeros(count, dtype=dtype))


def l1radius(seed: int, dtype: torch.dtype) -> Case:
    """The radius of the l1 ball of a logistic regression: a set that moves with x."""
    data, labels = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    rows, signs = _standard(data)[order], 2.0 * labels[order] - 1
    train, wanted, held, truth = (_tensor(v, dtype) for v in (rows[:60], signs[:60], rows[60:310], signs[60:310]))
    problem = Problem(
        lambda x, y: softplus(-truth * (held @ y)).mean(),
        lambda x, y: softplus(-wanted * (train @ y)).mean() + 1e-3 * y.square().sum(),
        lambda x: sets.L1Ball(radius=x[0].exp()),
    )
    return Case(problem, torch.full((1,), -2.0, dtype=dtype), torch.zeros(rows.shape[1], dtype=dtype))


def svm(seed: int, dtype: torch.dtype) -> Case:
    """Cost and kernel width of a support vector machine, by its dual: a box that moves with x."""
    rng = np.random.default_rng(seed)
    data, labels = load_breast_cancer(return_X_y=True)
    rows, signs = _standard(data)[:, :8], 2.0 * labels - 1
    order = rng.permutation(len(labels))
    train, held = order[:70], order[70:220]
    given = np.where(rng.random(70) < 0.1, -signs[train], signs[train])
    inner = _tensor(((rows[train][:, None] - rows[train][None]) ** 2).mean(-1), dtype)
    outer = _tensor(((rows[held][:, None] - rows[train][None]) ** 2).mean(-1), dtype)
    wanted, truth, ridge = _tensor(given, dtype), _tensor(signs[held], dtype), 1e-2 * torch.eye(70, dtype=dtype)

    def lower(x: Tensor, y: Tensor) -> Tensor:
        weights = y * wanted
        return weights @ ((-x[1].exp() * inner).exp() + ridge) @ weights / 2 - y.sum()

    problem = Problem(
        lambda x, y: softplus(-truth * ((-x[1].exp() * outer).exp() @ (y * wanted))).mean(),
        lower,
        lambda x: sets.Box(0.0, x[0].exp()),
    )
    return Case(problem, torch.zeros(2, dtype=dtype), torch.zeros(70, dtype=dtype))


def clean_wine(seed: int, dtype: torch.dtype) -> Case:
    """A weight per row of data with wrong labels, three classes in l1 balls."""
    rng = np.random.default_rng(seed)
    data, labels = load_wine(return_X_y=True)
    rows, order = _standard(data), rng.permutation(len(labels))
    train, held = order[:80], order[80:140]
    given, wrong = labels[train].copy(), rng.random(80) < 0.3
    given[wrong] = (given[wrong] + 1) % 3
    inner = _tensor(np.c_[rows[train], np.ones(80)], dtype)
    outer = _tensor(np.c_[rows[held], np.ones(len(held))], dtype)
    wanted, truth = torch.as_tensor(given), torch.as_tensor(labels[held])

    def lower(x: Tensor, y: Tensor) -> Tensor:
        losses = cross_entropy(inner @ y.T, wanted, reduction="none")
        return (x.sigmoid() * losses).mean() + 1e-2 * y.square().sum()

    problem = Problem(lambda x, y: cross_entropy(outer @ y.T, truth), lower, sets.L1Ball(2.0))
    return Case(problem, torch.zeros(80, dtype=dtype), torch.zeros(3, inner.shape[1], dtype=dtype))


def portfolio(seed: int, dtype: torch.dtype) -> Case:
    """Tilts of expected returns; a portfolio on a capped simplex."""
    rng, count, days = np.random.default_rng(seed), 20, 120
    loadings, means = rng.normal(size=(count, 3)) * 0.02, rng.normal(size=count) * 0.004 + 0.004
    returns = means + rng.normal(size=(2 * days, 3)) @ loadings.T + 0.03 * rng.normal(size=(2 * days, count))
    covariance, mean = _tensor(np.cov(returns[:days].T), dtype), _tensor(returns[:days].mean(0), dtype)
    later = _tensor(returns[days:], dtype)

    def upper(x: Tensor, y: Tensor) -> Tensor:
        gained = later @ y
        return -gained.mean() + 5.0 * gained.var() + 1e-4 * x.square().sum()

    problem = Problem(
        upper,
        lambda x, y: 5.0 * y @ (covariance @ y) - (mean + 0.01 * x) @ y + 1e-3 * y.square().sum(),
        sets.CappedSimplex(total=1.0, cap=0.25),
    )
    return Case(problem, torch.zeros(count, dtype=dtype), torch.full((count,), 1 / count, dtype=dtype))


def pricing(seed: int, dtype: torch.dtype) -> Case:
    """Prices of six goods for twelve customers, each of whom divides a unit among them: a Stackelberg game."""
    rng, customers, goods = np.random.default_rng(seed), 12, 6
    worth = _tensor(np.c_[rng.uniform(0.5, 3.0, size=(customers, goods)), np.zeros(customers)], dtype)
    size = _tensor(rng.uniform(0.5, 1.5, size=customers), dtype)

    def prices(x: Tensor) -> Tensor:  # the last good is to buy nothing
        return torch.cat([x, x.new_zeros(1)])

    problem = Problem(
        lambda x, y: -(size * (y @ prices(x))).mean(),
        lambda x, y: ((prices(x) - worth) * y).sum() + 0.25 * y.square().sum(),
        sets.Simplex(1.0),
        upper_constraint=sets.Box(0.0, 5.0),
    )
    start = torch.full((customers, goods + 1), 1 / (goods + 1), dtype=dtype)
    return Case(problem, torch.full((goods,), 0.5, dtype=dtype), start, bounds=(0.0, 5.0))


def nnls(seed: int, dtype: torch.dtype) -> Case:
    """A Tikhonov matrix and a shift, shared by sixteen nonnegative least-squares problems; x is a dictionary."""
    rng, count, tasks, rows = np.random.default_rng(seed), 12, 8, 10
    design = rng.normal(size=(rows, count))
    prior = np.linalg.cholesky(0.9 ** np.abs(np.subtract.outer(range(count), range(count))))
    true = np.maximum(prior @ rng.normal(size=(count, 2 * tasks)) + 0.3, 0)
    seen = design @ true + 0.3 * rng.normal(size=(rows, 2 * tasks))
    matrix, right, target = (_tensor(v, dtype) for v in (design, seen, true))

    def lower(x: dict[str, Tensor], y: Tensor) -> Tensor:
        penalty = (x["L"] @ (y - x["shift"][:, None])).square().mean() / 2
        return (matrix @ y - right).square().mean() / 2 + penalty + 1e-3 * y.square().mean()

    problem = Problem(
        lambda x, y: (y - target).square().mean() / 2 + 1e-4 * x["L"].square().sum(), lower, sets.NonNegative()
    )
    x0 = {"L": torch.eye(count, dtype=dtype), "shift": torch.zeros(count, dtype=dtype)}
    return Case(problem, x0, torch.zeros(count, 2 * tasks, dtype=dtype))


def metric(seed: int, dtype: torch.dtype) -> Case:
    """Weights of kinds of pairs for a learned metric in the cone of positive semidefinite matrices."""
    rng = np.random.default_rng(seed)
    data, labels = load_wine(return_X_y=True)
    rows, order = _standard(data)[:, :6], rng.permutation(len(labels))

    def pairs(among: Any, count: int) -> tuple[Tensor, Tensor, Tensor]:
        first, second = rng.choice(among, count), rng.choice(among, count)
        first, second = first[first != second], second[first != second]
        alike = labels[first] == labels[second]
        kind = torch.as_tensor(np.where(alike, labels[first], 3))
        return _tensor(rows[first] - rows[second], dtype), kind, _tensor(np.where(alike, 1.0, -1.0), dtype)

    inner, kind, sign = pairs(order[:40], 150)
    outer, _, truth = pairs(order[40:100], 200)

    def losses(y: Tensor, differences: Tensor, signs: Tensor) -> Tensor:
        return softplus(signs * (((differences @ y) * differences).sum(-1) - 2.0))

    problem = Problem(
        lambda x, y: losses(y, outer, truth).mean(),
        lambda x, y: (x[:4].exp()[kind] * losses(y, inner, sign)).mean() + x[4].exp() * y.square().sum() / 2,
        sets.PSDCone(),
    )
    return Case(problem, torch.zeros(5, dtype=dtype), torch.eye(6, dtype=dtype))


def mlp(seed: int, dtype: torch.dtype) -> Case:
    """Class weights for a small network on imbalanced batches: noisy, and not convex in y."""
    rng = np.random.default_rng(seed)
    data, labels = load_wine(return_X_y=True)
    rows, order = _standard(data), rng.permutation(len(labels))
    held, rest = order[:70], order[70:]
    train = np.concatenate([rest[labels[rest] == kind][:count] for kind, count in ((0, 40), (1, 12), (2, 5))])
    inner, outer = _tensor(rows[train], dtype), _tensor(rows[held], dtype)
    wanted, truth = torch.as_tensor(labels[train]), torch.as_tensor(labels[held])
    hidden, inputs = 8, rows.shape[1]
    sizes = [inputs * hidden, hidden, hidden * 3, 3]

    def network(y: Tensor, batch: Tensor) -> Tensor:
        first, bias, second, offset = y.split(sizes)
        return (batch @ first.reshape(inputs, hidden) + bias).tanh() @ second.reshape(hidden, 3) + offset

    def lower(x: Tensor, y: Tensor, batch: Any = None) -> Tensor:
        i = slice(None) if batch is None else batch[0]
        losses = cross_entropy(network(y, inner[i]), wanted[i], reduction="none")
        return (x.exp()[wanted[i]] * losses).mean() + 1e-2 * y.square().sum()

    def upper(x: Tensor, y: Tensor, batch: Any = None) -> Tensor:
        i = slice(None) if batch is None else batch[1]
        return cross_entropy(network(y, outer[i]), truth[i]) + 1e-3 * x.square().sum()

    def sampler(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return tuple(torch.randint(count, (16,), generator=generator) for count in (len(train), len(held)))

    start = 0.1 * torch.randn(sum(sizes), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    problem = Problem(upper, lower, sets.L2Ball(3.0), sampler=sampler)
    return Case(problem, torch.zeros(3, dtype=dtype), start.to(dtype), convex=False)


def cond1e4(seed: int, dtype: torch.dtype) -> Case:
    """Two penalties of a regression whose lower level has the condition number 1e4."""
    rng, count, rows, condition = np.random.default_rng(seed), 20, 60, 1e4
    scale = np.logspace(0, -0.5 * math.log10(condition), count)
    data = rng.normal(size=(2 * rows, count)) @ np.diag(scale)
    weights = rng.normal(size=count) * np.minimum(1 / scale, 30.0) * 0.5
    labels = data @ weights + 0.3 * rng.normal(size=2 * rows)
    parts = (data[:rows], labels[:rows], data[rows:], labels[rows:], np.linspace(0, 1, count))
    train, wanted, held, truth, ramp = (_tensor(v, dtype) for v in parts)

    def lower(x: Tensor, y: Tensor) -> Tensor:
        penalties = (x[0].exp() + x[1].exp() * ramp) / condition
        squares = (penalties * y.square()).sum() + 0.1 / condition * y.square().sum()
        return (train @ y - wanted).square().mean() / 2 + squares / 2

    def exact(x: Tensor) -> Tensor:
        a, b = x.double().tolist()
        penalties = (math.exp(a) + math.exp(b) * np.linspace(0, 1, count) + 0.1) / condition
        matrix = np.vstack([data[:rows] / math.sqrt(rows), np.diag(np.sqrt(penalties))])
        right = np.concatenate([labels[:rows] / math.sqrt(rows), np.zeros(count)])
        found = lsq_linear(matrix, right, bounds=(-10, 10), method="bvls", tol=1e-14, max_iter=2000)
        return _tensor(found.x, torch.float64)

    problem = Problem(lambda x, y: (held @ y - truth).square().mean() / 2, lower, sets.Box(-10.0, 10.0))
    return Case(problem, torch.zeros(2, dtype=dtype), torch.zeros(count, dtype=dtype), lower=exact)


CASES = {
    maker.__name__: maker
    for maker in (ridge1, ridge50, l1radius, svm, clean_wine, portfolio, pricing, nnls, metric, mlp, cond1e4)
}


def _diabetes(seed: int, dtype: torch.dtype, *, features: int) -> tuple[Tensor, ...]:
    """80 training rows and 150 others, with squares and products of the features."""
    data, labels = load_diabetes(return_X_y=True)
    data = _standard(PolynomialFeatures(2, include_bias=False).fit_transform(_standard(data)))
    data = data[:, data.std(0) > 1e-9][:, :features]
    labels = (labels - labels.mean()) / labels.std()
    order = np.random.default_rng(seed).permutation(len(labels))
    train, held = order[:80], order[80:230]
    return tuple(_tensor(v, dtype) for v in (data[train], labels[train], data[held], labels[held]))


def _standard(data: Any) -> Any:
    spread = data.std(0)
    spread[spread == 0] = 1
    return (data - data.mean(0)) / spread


def _tensor(values: Any, dtype: torch.dtype) -> Tensor:
    return torch.as_tensor(np.ascontiguousarray(values), dtype=dtype)
