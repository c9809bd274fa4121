"""The four data sets of the paper's hyper-cleaning experiments, read from a folder with their official files.

DATA/mnist/train-images-idx3-ubyte.gz ...         also fashion-mnist/
DATA/cod-rna/cod-rna.bz2, cod-rna.t.bz2           LIBSVM text
DATA/madelon/madelon_train.data ...               UCI text
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np

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
    folder = data / name
    parts = [_idx(folder / f"{kind}-ubyte.gz") for kind in
             ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")]  # fmt: skip
    X, y, test_X, test_y = parts
    flat = [(pixels.reshape(len(pixels), -1) / 255.0).astype(np.float32) for pixels in (X, test_X)]
    return flat[0], y.astype(int), flat[1], test_y.astype(int)


def _idx(path: Path) -> np.ndarray:
    raw = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(raw, ">i4", raw[3], 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


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
    if name == "madelon":
        parts = [np.loadtxt(data / name / f"madelon_{part}") for part in
                 ("train.data", "train.labels", "valid.data", "valid.labels")]  # fmt: skip
        return parts[0], (parts[1] > 0).astype(int), parts[2], (parts[3] > 0).astype(int)
    from sklearn.datasets import load_svmlight_file

    (X, y), (test_X, test_y) = (
        load_svmlight_file(str(data / name / f"{file}.bz2")) for file in ("cod-rna", "cod-rna.t")
    )
    return X.toarray(), (y > 0).astype(int), test_X.toarray(), (test_y > 0).astype(int)


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
