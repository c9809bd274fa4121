"""The four data sets of the paper's hyper-cleaning experiments, read from a data folder of `bilevel.datasets`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bilevel.datasets import Rows, load

PAIRS = {"mnist": (6, 9), "fashion-mnist": (1, 7)}
ROWS = {"mnist": 2000, "fashion-mnist": 2000, "cod-rna": 5000, "madelon": 1000}
"""Training rows of the paper's problems, and as many trusted ones."""


@dataclass(frozen=True)
class Task:
    """Noisy, trusted and test rows; `wrong` says which given labels of the noisy rows are wrong."""

    X: np.ndarray
    given: np.ndarray
    wrong: np.ndarray
    trusted_X: np.ndarray
    trusted_y: np.ndarray
    test_X: np.ndarray
    test_y: np.ndarray


def images(data: Path, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training images and labels, test images and labels; pixels in [0, 1], float32."""
    rows = _rows(data, name)
    flat = [(pixels.reshape(len(pixels), -1) / 255.0).astype(np.float32) for pixels in (rows.X, rows.test_X)]
    return flat[0], rows.y, flat[1], rows.test_y


def _rows(data: Path, name: str) -> Rows:
    rows = load(name, data)
    assert isinstance(rows, Rows)
    return rows


def paper_task(data: Path, name: str, seed: int) -> Task:
    """Two classes, 30 % of the labels flipped; sizes and scaling of the paper's experiments."""
    rng = np.random.default_rng(seed)
    X, y, test_X, test_y = _two_classes(data, name)
    order, count = rng.permutation(len(y)), ROWS[name]
    train, trusted = order[:count], order[count : 2 * count]
    if name not in PAIRS:  # standardised columns
        used = X[order[: 2 * count]]
        X, test_X = ((rows - used.mean(0)) / used.std(0) for rows in (X, test_X))
    wrong = np.zeros(count, bool)
    wrong[rng.choice(count, round(0.3 * count), replace=False)] = True
    return Task(X[train], np.where(wrong, 1 - y[train], y[train]), wrong, X[trusted], y[trusted], test_X, test_y)


def _two_classes(data: Path, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    if name in PAIRS:
        X, y, test_X, test_y = images(data, name)
        _, second = PAIRS[name]
        kept, test_kept = np.isin(y, PAIRS[name]), np.isin(test_y, PAIRS[name])
        return (
            X[kept].astype(float), (y[kept] == second).astype(int),
            test_X[test_kept].astype(float), (test_y[test_kept] == second).astype(int),
        )  # fmt: skip
    rows = _rows(data, name)
    return rows.X.astype(float), (rows.y > 0).astype(int), rows.test_X.astype(float), (rows.test_y > 0).astype(int)


def ten_classes(data: Path, name: str, noise: str, trusted: int, seed: int) -> Task:
    """5,000 rows of all ten classes, 40 % wrong labels: uniform, or class-dependent, k -> k + 3."""
    rng = np.random.default_rng(seed)
    X, y, test_X, test_y = images(data, name)
    order = rng.permutation(len(y))
    train, known = order[:5000], order[5000 : 5000 + trusted]
    wrong = np.zeros(5000, bool)
    wrong[rng.choice(5000, 2000, replace=False)] = True
    shift = rng.integers(1, 10, 5000) if noise == "uniform" else 3
    given = np.where(wrong, (y[train] + shift) % 10, y[train])
    return Task(X[train], given, wrong, X[known], y[known], test_X, test_y)
