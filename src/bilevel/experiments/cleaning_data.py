"""The rows of the paper's hyper-cleaning problems, drawn anew for every seed from a data folder."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..applications.hyper_cleaning import CleaningProblem
from ..datasets import Dataset, Rows, load
from ..datasets.catalogue import find
from ..errors import InvalidInput

if TYPE_CHECKING:
    from .configuration import CleaningData


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


def files_of(name: str, folder: Path) -> Dataset:
    """A dataset, read once per process, and again when its files are others."""
    return _read(name, folder, tuple(_state(folder / place) for place in find(name).folders))


@lru_cache(maxsize=2)
def _read(name: str, folder: Path, state: object) -> Dataset:
    return load(name, folder)


def _state(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times of the files of a dataset; what was decoded from them is not one of them."""
    files = (file for file in sorted(folder.rglob("*")) if not file.name.startswith("decoded-"))
    found = ((str(file), file.stat()) for file in files if file.is_file())
    return tuple((name, facts.st_size, facts.st_mtime_ns) for name, facts in found)


def data_hash(dataset: Dataset) -> str:
    """SHA-256 over the names and the SHA-256 of the files a dataset was read from."""
    lines = "".join(f"{digest}  {file}\n" for file, digest in sorted(dataset.sha256.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def cleaning_task(data: CleaningData, name: str, folder: Path, seed: int) -> Task:
    """Two classes; rows, trusted rows and flipped labels are drawn by the seed."""
    rng = np.random.default_rng(seed)
    X, y, test_X, test_y = _two_classes(files_of(name, folder), data.classes)
    if len(y) < data.rows + data.trusted:
        raise InvalidInput(
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


def cleaning_problem(data: CleaningData, task: Task, columns: np.ndarray | slice = slice(None)) -> CleaningProblem:
    """The paper's problem, or that of some of its columns."""
    return CleaningProblem(
        np.ascontiguousarray(task.X[:, columns]), task.given, np.ascontiguousarray(task.trusted_X[:, columns]),
        task.trusted_y, noise="rows", loss=data.loss, radius=data.radius, ridge=data.c, intercept=False,
    )  # fmt: skip


def _two_classes(rows: Dataset, classes: tuple[int, int] | None) -> tuple[np.ndarray, ...]:
    """float64 rows and labels 0, 1 of training and test rows."""
    assert isinstance(rows, Rows)
    found: list[np.ndarray] = []
    for X, y in ((rows.X, rows.y), (rows.test_X, rows.test_y)):
        kept = np.isin(y, classes) if classes else slice(None)
        second = y[kept] == classes[1] if classes else y > 0
        found += [X[kept].reshape(len(second), -1).astype(float), second.astype(int)]
    return tuple(found)
