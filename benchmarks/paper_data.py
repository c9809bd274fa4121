"""The data sets of the paper's hyper-cleaning experiments: two classes as in its table 2, or all ten classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bilevel.datasets import TrainTestRows, load
from bilevel.experiments.configuration import load_configuration
from bilevel.experiments.data import Task, cleaning_task

ROWS = {name: data.rows for name, data in load_configuration("table-2").datasets.items()}  # type: ignore[union-attr]
"""Training rows of the paper's problems, and as many trusted ones."""


def images(data: Path, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training images and labels, test images and labels; pixels in [0, 1], float32."""
    rows = _rows(data, name)
    flat = [(pixels.reshape(len(pixels), -1) / 255.0).astype(np.float32) for pixels in (rows.X, rows.test_X)]
    return flat[0], rows.y, flat[1], rows.test_y


def _rows(data: Path, name: str) -> TrainTestRows:
    rows = load(name, data)
    assert isinstance(rows, TrainTestRows)
    return rows


def paper_task(data: Path, name: str, seed: int) -> Task:
    """Two classes, 30 % of the labels flipped; sizes and scaling of table 2."""
    return cleaning_task(load_configuration("table-2").datasets[name], name, data, seed)  # type: ignore[arg-type]


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
