"""The rows of the paper's hyper-cleaning problems, drawn for each seed from the files of a data folder."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cleaning import CleaningProblem
from ..datasets import Dataset, TrainTestRows, load
from ..datasets.catalogue import find
from ..errors import InvalidInputError

if TYPE_CHECKING:
    from .configuration import CleaningData


@dataclass(frozen=True)
class Task:
    """Noisy, trusted and test rows; `wrong` marks the noisy rows whose given label is wrong."""

    X: np.ndarray
    given: np.ndarray
    wrong: np.ndarray
    trusted_X: np.ndarray
    trusted_y: np.ndarray
    test_X: np.ndarray
    test_y: np.ndarray


PACKAGED = ("digits", "generated")
"""Datasets without files: the digits of scikit-learn, and the pen strokes of few-shot learning."""


def load_cached(name: str, folder: Path) -> Dataset:
    """A dataset, read once per process, and again when its files have changed."""
    return _load(name, folder, _states(name, folder))


@lru_cache(maxsize=2)
def _load(name: str, folder: Path, states: object) -> Dataset:
    if name != "digits":
        return load(name, folder)
    from sklearn.datasets import load_digits

    X, y = map(np.asarray, load_digits(return_X_y=True))
    test = np.arange(len(y)) % 4 == 0
    return TrainTestRows("digits", X[~test], y[~test], X[test], y[test], sha256={})


def has_files(name: str, folder: Path) -> bool:
    """Whether a dataset needs no files, or the data folder has some of them."""
    return name in PACKAGED or any(_states(name, folder))


def _states(name: str, folder: Path) -> tuple[tuple[tuple[str, int, int], ...], ...]:
    return () if name in PACKAGED else tuple(_file_states(folder / place) for place in find(name).folders)


def _file_states(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times of the files of a dataset, without the cache of decoded images."""
    files = (file for file in sorted(folder.rglob("*")) if not file.name.startswith("decoded-"))
    stats = ((str(file), file.stat()) for file in files if file.is_file())
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


def data_hash(name: str, folder: Path) -> str:
    """SHA-256 over the names and the SHA-256 of the files of a dataset; "" for generated data."""
    if name in PACKAGED:
        return ""
    digests = sorted(load_cached(name, folder).sha256.items())
    return hashlib.sha256("".join(f"{digest}  {file}\n" for file, digest in digests).encode()).hexdigest()


def cleaning_task(data: CleaningData, name: str, folder: Path, seed: int) -> Task:
    """Two classes; rows, trusted rows and flipped labels are drawn by the seed."""
    rng = np.random.default_rng(seed)
    X, y, test_X, test_y = _two_classes(load_cached(name, folder), data.classes)
    if len(y) < data.rows + data.trusted:
        raise InvalidInputError(
            f"{name} has {len(y)} rows of its two classes, fewer than rows + trusted = {data.rows} + {data.trusted}: "
            "lower them"
        )
    order = rng.permutation(len(y))
    train, trusted = order[: data.rows], order[data.rows : data.rows + data.trusted]
    if data.scaling == "unit":
        X, test_X = X / 255.0, test_X / 255.0
    else:
        used = X[order[: data.rows + data.trusted]]
        spread = used.std(0)
        X, test_X = ((part - used.mean(0)) / np.where(spread > 0, spread, 1.0) for part in (X, test_X))
    wrong = np.zeros(data.rows, bool)
    wrong[rng.choice(data.rows, round(data.flipped * data.rows), replace=False)] = True
    return Task(X[train], np.where(wrong, 1 - y[train], y[train]), wrong, X[trusted], y[trusted], test_X, test_y)


def cleaning_problem(data: CleaningData, task: Task) -> CleaningProblem:
    """The paper's problem with these rows."""
    settings: Any = {"noise": "rows", "loss": data.loss, "radius": data.radius, "ridge": data.c, "intercept": False}
    return CleaningProblem(task.X, task.given, task.trusted_X, task.trusted_y, **settings)


def _two_classes(rows: Dataset, classes: tuple[int, int] | None) -> tuple[np.ndarray, ...]:
    """float64 rows and labels 0, 1 of training and test rows."""
    assert isinstance(rows, TrainTestRows)
    parts: list[np.ndarray] = []
    for X, y in ((rows.X, rows.y), (rows.test_X, rows.test_y)):
        chosen = np.isin(y, classes) if classes else slice(None)
        second = y[chosen] == classes[1] if classes else y > 0
        parts += [X[chosen].reshape(len(second), -1).astype(float), second.astype(int)]
    return tuple(parts)
