"""A third group of bilevel problems, of kinds that are in neither `zoo_problems` nor `zoo_further`.

Each maker takes a seed and a dtype and gives a `Case`. All data are drawn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from bilevel import Problem, sets

from .zoo_problems import Case


def elastic(seed: int, dtype: torch.dtype) -> Case:
    """The two penalties of an elastic net; its weights are differences of nonnegative parts."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(120, 25)) @ (np.eye(25) + 0.8 * rng.normal(size=(25, 25)) / 5)
    wanted = rows @ (rng.normal(size=25) * (rng.random(25) < 0.3)) + rng.normal(size=120)
    A, V, b, c = _all(dtype, rows[:40], rows[40:], wanted[:40], wanted[40:])

    def lower(x: Tensor, y: Tensor) -> Tensor:
        w, p = y[0] - y[1], x.exp()
        return (A @ w - b).square().mean() / 2 + p[0] * y.sum() + p[1] * w.square().sum() + 1e-4 * y.square().sum()

    problem = Problem(lambda x, y: (V @ (y[0] - y[1]) - c).square().mean(), lower, sets.NonNegative())
    return Case(problem, torch.zeros(2, dtype=dtype), torch.zeros(2, 25, dtype=dtype))


def kernel(seed: int, dtype: torch.dtype) -> Case:
    """Widths per feature and penalty of kernel ridge regression, whose lower level is free and ill-conditioned."""
    rng = np.random.default_rng(seed)
    rows = rng.uniform(-1, 1, size=(100, 4))
    wanted = np.sin(4 * rows[:, 0]) + rows[:, 1] ** 2 + 0.1 * rng.normal(size=100)
    A, V, b, c = _all(dtype, rows[:50], rows[50:], wanted[:50], wanted[50:])

    def gram(x: Tensor, P: Tensor, Q: Tensor) -> Tensor:
        return (-((P[:, None] - Q[None]).square() * x[:4].exp()).sum(-1)).exp()

    def lower(x: Tensor, y: Tensor) -> Tensor:
        K = gram(x, A, A)
        return (K @ y - b).square().sum() / 2 + (x[4].exp() * (y @ K @ y) + 1e-6 * y @ y) / 2

    def exact(x: Tensor) -> Tensor:
        K = gram(x, A, A)
        return torch.linalg.solve(K @ K + x[4].exp() * K + 1e-6 * torch.eye(50, dtype=dtype), K @ b)

    problem = Problem(lambda x, y: (gram(x, V, A) @ y - c).square().mean(), lower)
    return Case(problem, torch.zeros(5, dtype=dtype), torch.zeros(50, dtype=dtype), lower=exact)


def poison(seed: int, dtype: torch.dtype) -> Case:
    """Ten poisoned rows in a box that make a logistic regression in an l2 ball err most."""
    rng = np.random.default_rng(seed)
    rows, direction = rng.normal(size=(120, 6)), rng.normal(size=6)
    signs = np.sign(rows @ direction + 0.3 * rng.normal(size=120))
    A, V, s, t = _all(dtype, rows[:40], rows[40:], signs[:40], signs[40:])
    given = torch.ones(10, dtype=dtype)
    given[::2] = -1

    def lower(x: Tensor, y: Tensor) -> Tensor:
        return (softplus(-s * (A @ y)).sum() + softplus(-given * (x @ y)).sum()) / 50 + 1e-2 * y.square().sum()

    problem = Problem(lambda x, y: -softplus(-t * (V @ y)).mean(), lower, sets.L2Ball(3.0),
                      upper_constraint=sets.Box(-2.0, 2.0))  # fmt: skip
    return Case(problem, torch.zeros(10, 6, dtype=dtype), torch.zeros(6, dtype=dtype), (-2.0, 2.0))


def roads(seed: int, dtype: torch.dtype) -> Case:
    """How much to widen each of ten roads; drivers of four pairs of places choose among five paths each."""
    rng = np.random.default_rng(seed)
    uses, free, wide = _all(
        dtype, rng.random((10, 4, 5)) < 0.35, rng.uniform(0.5, 2.0, size=10), rng.uniform(0.5, 1.5, size=10)
    )

    def flows(y: Tensor) -> Tensor:
        return (uses * y).sum((1, 2))

    def lower(x: Tensor, y: Tensor) -> Tensor:
        v, room = flows(y), wide + x
        return (free * (v + 0.03 * room * (v / room) ** 5)).sum() + 1e-2 * y.square().sum()

    def upper(x: Tensor, y: Tensor) -> Tensor:
        v = flows(y)
        return (free * v * (1 + 0.15 * (v / (wide + x)) ** 4)).sum() + 0.2 * x.sum() + 0.05 * x.square().sum()

    problem = Problem(upper, lower, sets.Simplex(1.0), upper_constraint=sets.Box(0.0, 20.0))
    return Case(problem, torch.ones(10, dtype=dtype), torch.full((4, 5), 0.2, dtype=dtype), (0.0, 20.0))


def inverse(seed: int, dtype: torch.dtype) -> Case:
    """Costs of features from plans that were observed, each the minimum of a quadratic over a polyhedron."""
    rng = np.random.default_rng(seed)
    limits, most = _all(dtype, np.vstack([rng.uniform(size=(4, 6)), -np.eye(6)]), np.r_[np.full(4, 1.5), np.zeros(6)])
    constraint, (features,) = sets.Polyhedron(limits, most), _all(dtype, rng.normal(size=(12, 6, 3)))
    truth, noise = _all(dtype, np.array([-1.0, 0.7, -0.4]), 0.1 * rng.normal(size=(12, 6)))
    observed = constraint.project(-(features @ truth) + noise)
    problem = Problem(
        lambda x, y: (y - observed).square().mean(),
        lambda x, y: ((features @ x) * y).sum() + y.square().sum() / 2,
        constraint,
    )
    return Case(problem, torch.zeros(3, dtype=dtype), torch.zeros(12, 6, dtype=dtype))


def meta(seed: int, dtype: torch.dtype) -> Case:
    """A linear representation that is shared by ten regressions from eight examples each, heads in l2 balls."""
    rng = np.random.default_rng(seed)
    basis, heads = rng.normal(size=(12, 3)), rng.normal(size=(10, 3))
    rows = rng.normal(size=(10, 28, 12))
    wanted = np.einsum("tnd,dk,tk->tn", rows, basis, heads) + 0.3 * rng.normal(size=(10, 28))
    A, V, b, c, start = _all(dtype, rows[:, :8], rows[:, 8:], wanted[:, :8], wanted[:, 8:],
                             0.3 * rng.normal(size=(12, 3)))  # fmt: skip

    def fit(D: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return (D @ x @ y[..., None])[..., 0]

    problem = Problem(
        lambda x, y: (fit(V, x, y) - c).square().mean(),
        lambda x, y: (fit(A, x, y) - b).square().mean() + 1e-2 * y.square().mean(),
        sets.L2Ball(3.0),
    )
    return Case(problem, start, torch.zeros(10, 3, dtype=dtype))


def dictionary(seed: int, dtype: torch.dtype) -> Case:
    """A dictionary of six atoms in l2 balls for nonnegative sparse codes of twenty signals."""
    rng = np.random.default_rng(seed)
    atoms = rng.normal(size=(6, 10))
    signals = (rng.random((20, 6)) * (rng.random((20, 6)) < 0.4)) @ atoms + 0.1 * rng.normal(size=(20, 10))
    S, start = _all(dtype, signals, sets.L2Ball(1.0).project(torch.as_tensor(rng.normal(size=(6, 10)))).numpy())
    problem = Problem(
        lambda x, y: (y @ x - S).square().mean(),
        lambda x, y: (y @ x - S).square().sum() / 2 + 0.1 * y.sum() + 0.01 * y.square().sum(),
        sets.NonNegative(),
        upper_constraint=sets.L2Ball(1.0),
    )
    return Case(problem, start, torch.zeros(20, 6, dtype=dtype))


def robust(seed: int, dtype: torch.dtype) -> Case:
    """The scale of a pseudo-Huber loss and the radius of an l2 ball that moves with x."""
    rng = np.random.default_rng(seed)
    rows, noise = rng.normal(size=(150, 12)), rng.standard_t(1.5, size=150)
    wanted = rows @ rng.normal(size=12) + noise
    A, V, b, c = _all(dtype, rows[:50], rows[50:], wanted[:50], wanted[50:])

    def lower(x: dict[str, Tensor], y: Tensor) -> Tensor:
        d = x["scale"].exp()
        return (d * (d.square() + (A @ y - b).square()).sqrt()).mean() + 1e-3 * y.square().sum()

    problem: Any = Problem(
        lambda x, y: (1 + (V @ y - c).square()).sqrt().mean(), lower, lambda x: sets.L2Ball(x["radius"].exp())
    )
    start = {"scale": torch.zeros((), dtype=dtype), "radius": torch.zeros((), dtype=dtype)}
    return Case(problem, start, torch.zeros(12, dtype=dtype))


def covariance(seed: int, dtype: torch.dtype) -> Case:
    """A weight per sample for a covariance matrix in the PSD cone, near a target with negative eigenvalues."""
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(8, 3))
    samples = rng.normal(size=(40, 3)) @ factor.T + 0.3 * rng.normal(size=(40, 8))
    samples[::5] *= 4.0
    held = rng.normal(size=(200, 3)) @ factor.T
    S, C, shift = _all(dtype, samples[:, :, None] * samples[:, None], held.T @ held / 200, 0.5 * np.eye(8))

    def target(x: Tensor) -> Tensor:
        return (x.sigmoid()[:, None, None] * S).mean(0) - shift

    problem = Problem(
        lambda x, y: (y - C).square().mean(), lambda x, y: (y - target(x)).square().sum() / 2, sets.PSDCone()
    )
    return Case(problem, torch.zeros(40, dtype=dtype), torch.zeros(8, 8, dtype=dtype))


def hinge(seed: int, dtype: torch.dtype) -> Case:
    """Scales of ten features for a smooth hinge loss in a box."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(160, 10))
    signs = np.sign(rows[:, :3].sum(1) + 0.5 * rng.normal(size=160))
    A, V, s, t = _all(dtype, rows[:60], rows[60:], signs[:60], signs[60:])

    def lower(x: Tensor, y: Tensor) -> Tensor:
        short = (1 - s * (A @ (x.exp() * y))).clamp(min=0)
        return torch.where(short < 0.1, short.square() / 0.2, short - 0.05).mean() + 1e-2 * y.square().sum()

    problem = Problem(lambda x, y: softplus(-3 * t * (V @ (x.exp() * y))).mean(), lower, sets.Box(-1.0, 1.0))
    return Case(problem, torch.zeros(10, dtype=dtype), torch.zeros(10, dtype=dtype))


def guards(seed: int, dtype: torch.dtype) -> Case:
    """Three guards for twelve targets; the attacker mixes between the targets that pay most."""
    rng = np.random.default_rng(seed)
    prize, fine, loss = _all(dtype, rng.uniform(1, 5, size=12), rng.uniform(1, 5, size=12), rng.uniform(1, 5, size=12))
    problem = Problem(
        lambda x, y: (y * loss * (1 - x)).sum(),
        lambda x, y: -(y * ((1 - x) * prize - x * fine)).sum() + 0.1 * y.square().sum(),
        sets.Simplex(1.0),
        upper_constraint=sets.CappedSimplex(total=3.0, cap=1.0),
    )
    return Case(problem, torch.full((12,), 0.25, dtype=dtype), torch.full((12,), 1 / 12, dtype=dtype))


def window(seed: int, dtype: torch.dtype) -> Case:
    """The limits of a box, a dictionary, in which a coupled system settles near where it is wanted."""
    rng = np.random.default_rng(seed)
    mix = rng.normal(size=(15, 15))
    G, b, wanted = _all(dtype, mix @ mix.T / 15 + 0.1 * np.eye(15), rng.normal(size=15), rng.normal(size=15))
    problem: Any = Problem(
        lambda x, y: (y - wanted).square().sum() + 0.01 * (x["low"].square().sum() + x["room"].exp().sum()),
        lambda x, y: y @ G @ y / 2 - b @ y,
        lambda x: sets.Box(x["low"], x["low"] + x["room"].exp()),
    )
    start = {"low": torch.full((15,), -0.5, dtype=dtype), "room": torch.zeros(15, dtype=dtype)}
    return Case(problem, start, torch.zeros(15, dtype=dtype))


def worst(seed: int, dtype: torch.dtype) -> Case:
    """An upper level that is a maximum: the worst of eight mixtures of what a simplex of shares gives."""
    rng = np.random.default_rng(seed)
    R, B, S = _all(dtype, rng.normal(size=(8, 20)), rng.normal(size=(20, 6)), np.diag(np.logspace(0, -2, 20)))
    problem = Problem(
        lambda x, y: (R @ y).max() + 1e-2 * x.square().sum(),
        lambda x, y: y @ S @ y - (B @ x) @ y,
        sets.Simplex(1.0),
    )
    return Case(problem, torch.zeros(6, dtype=dtype), torch.full((20,), 0.05, dtype=dtype))


def units(seed: int, dtype: torch.dtype) -> Case:
    """Logistic weights whose entries of x have units from 1e-3 to 1e3, and y too."""
    rng = np.random.default_rng(seed)
    scale = np.logspace(-3, 3, 8)
    B, unit, of_y, t = _all(dtype, rng.normal(size=(14, 8)), scale, np.logspace(-1, 1, 14), rng.uniform(0, 1, size=14))
    problem = Problem(
        lambda x, y: (y * of_y - t).square().sum() + 1e-3 * (x * unit).square().sum(),
        lambda x, y: softplus(y * of_y).sum() + (y * of_y).square().sum() / 2 - (B @ (x * unit)) @ (y * of_y),
        sets.NonNegative(),
    )
    return Case(problem, torch.as_tensor(0.1 / scale, dtype=dtype), torch.zeros(14, dtype=dtype))


def saturated(seed: int, dtype: torch.dtype) -> Case:
    """A weight per row by a sigmoid, from a start at which most weights are nearly 0 or 1 and wrong."""
    rng = np.random.default_rng(seed)
    rows, bad = rng.normal(size=(140, 8)), rng.random(60) < 0.3
    wanted = rows @ rng.normal(size=8) + 0.2 * rng.normal(size=140)
    wanted[:60][bad] += 5.0 * rng.normal(size=bad.sum())
    A, V, b, c, start = _all(dtype, rows[:60], rows[60:], wanted[:60], wanted[60:],
                             np.where(rng.random(60) < 0.5, 5.0, -5.0))  # fmt: skip
    problem = Problem(
        lambda x, y: (V @ y - c).square().mean(),
        lambda x, y: (x.sigmoid() * (A @ y - b).square()).mean() + 1e-3 * y.square().sum(),
        sets.L2Ball(5.0),
    )
    return Case(problem, start, torch.zeros(8, dtype=dtype))


def demand(seed: int, dtype: torch.dtype) -> Case:
    """Prices of twelve goods of a shop for eight buyers, each with a budget and a limit per good."""
    rng = np.random.default_rng(seed)
    value, cost = _all(dtype, rng.uniform(0.5, 3, size=(8, 12)), rng.uniform(0.2, 1.0, size=12))
    problem = Problem(
        lambda x, y: -((x - cost) * y).sum() / 8,
        lambda x, y: ((x - value) * y).sum() + 0.2 * y.square().sum(),
        sets.BoxSection(0.0, 1.0, 1.0, 3.0),
        upper_constraint=sets.Box(0.0, 4.0),
    )
    return Case(problem, torch.ones(12, dtype=dtype), torch.full((8, 12), 0.25, dtype=dtype), (0.0, 4.0))


def many(seed: int, dtype: torch.dtype) -> Case:
    """A penalty per group of five for 700 weights in an l2 ball: more than are solved by a matrix."""
    rng = np.random.default_rng(seed)
    rows, weights = rng.normal(size=(300, 700)), rng.normal(size=700) * np.repeat(rng.random(140) < 0.1, 5)
    wanted = rows @ weights + rng.normal(size=300)
    A, V, b, c = _all(dtype, rows[:150], rows[150:], wanted[:150], wanted[150:])
    problem = Problem(
        lambda x, y: (V @ y - c).square().mean(),
        lambda x, y: (A @ y - b).square().mean() / 2 + (x.exp() * y.reshape(140, 5).square().sum(1)).sum() / 2,
        sets.L2Ball(6.0),
    )
    return Case(problem, torch.zeros(140, dtype=dtype), torch.zeros(700, dtype=dtype))


THIRD = {
    make.__name__: make
    for make in (
        elastic, kernel, poison, roads, inverse, meta, dictionary, robust, covariance, hinge, guards, window, worst,
        units, saturated, demand, many,
    )
}  # fmt: skip


def _all(dtype: torch.dtype, *values: object) -> tuple[Tensor, ...]:
    return tuple(torch.as_tensor(np.ascontiguousarray(value), dtype=dtype) for value in values)
