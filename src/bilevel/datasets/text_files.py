"""Data sets in text files.

cod-rna    LIBSVM text, one `LABEL 1:VALUE 2:VALUE ...` per row: which pairs of RNA sequences are non-coding RNA
madelon    columns of integers: artificial data with 500 columns of which 20 matter, from the UCI repository
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import MissingExtraError
from .catalogue_entry import TrainTestRows
from .untrusted_bytes import Files, damaged, require

RNA_COLUMNS, LONGEST_RNA_ROW = 8, 120  # bytes; in the official files at most 83
MADELON_COLUMNS, LARGEST = 500, 999


def read_cod_rna(root: Path, *, train: int = 59_535, test: int = 271_617) -> TrainTestRows:
    """Rows (n, 8) float64, not scaled, labels -1 and 1; files may be plain or .bz2."""
    files = Files(root)
    parts = []
    for name, rows in (("cod-rna", train), ("cod-rna.t", test)):
        path = files.first(f"cod-rna/{name}", f"cod-rna/{name}.bz2", dataset="cod-rna")
        parts += _parse_libsvm(files.unpacked(path, limit=rows * LONGEST_RNA_ROW), path)
        require(len(parts[-1]) == rows, path, f"holds {len(parts[-1]):,} rows instead of {rows:,}")
    return TrainTestRows("cod-rna", *parts, sha256=files.sha256)


def _parse_libsvm(content: bytes, path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        from sklearn.datasets import load_svmlight_file
    except ImportError:
        raise MissingExtraError("Reading LIBSVM files", "apps") from None
    try:
        options: Any = {"n_features": RNA_COLUMNS, "zero_based": False}
        X, y = load_svmlight_file(io.BytesIO(content), **options)[:2]
    except (ValueError, OverflowError) as error:
        raise damaged(path, f"is no LIBSVM text with {RNA_COLUMNS} columns ({error})") from error
    dense = X.toarray()
    require(bool(np.isfinite(dense).all()), path, "holds values that are not finite")
    require(set(np.unique(y)) == {-1.0, 1.0}, path, "does not hold the labels -1 and 1")
    return dense, y.astype(np.int64)


def read_madelon(root: Path, *, train: int = 2_000, valid: int = 600) -> TrainTestRows:
    """Rows (n, 500) integers 0 .. 999, labels -1 and 1; the official validation rows are the test rows."""
    files = Files(root)
    parts: list[np.ndarray] = []
    for name, rows in (("train", train), ("valid", valid)):
        values = _read_integers(files, f"madelon_{name}.data", (rows, MADELON_COLUMNS))
        labels = _read_integers(files, f"madelon_{name}.labels", (rows,))
        where = root / "madelon" / f"madelon_{name}"
        require(values.min() >= 0 and values.max() <= LARGEST, f"{where}.data", f"holds values outside 0 .. {LARGEST}")
        require(set(np.unique(labels)) == {-1, 1}, f"{where}.labels", "does not hold the labels -1 and 1")
        parts += [values, labels]
    return TrainTestRows("madelon", *parts, sha256=files.sha256)


def _read_integers(files: Files, name: str, shape: tuple[int, ...]) -> np.ndarray:
    path = files.first(f"madelon/{name}", dataset="madelon")
    lines = files.unpacked(path, limit=5 * int(np.prod(shape)) + shape[0]).splitlines()
    try:
        values = np.array([line.split() for line in lines], np.int64)
    except (ValueError, OverflowError) as error:
        raise damaged(path, f"does not hold integers in columns ({error})") from error
    expected = shape if len(shape) == 2 else (*shape, 1)
    require(values.shape == expected, path, f"holds {values.shape} numbers instead of {expected}")
    return values.reshape(shape)
