"""LIBSVM text, one `LABEL 1:VALUE 2:VALUE ...` per row: cod-rna, which pairs of RNA sequences are non-coding RNA."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from ..errors import MissingExtra
from .contents import Files, damaged, require
from .entry import Entry, RemoteFile, Rows

COLUMNS = 8
LONGEST_ROW = 120  # bytes; in the official files at most 83


def read(root: Path, *, train: int = 59_535, test: int = 271_617) -> Rows:
    """Rows (n, 8) float64, not scaled, labels -1 and 1; files may be plain or .bz2."""
    files = Files(root)
    parts = []
    for name, rows in (("cod-rna", train), ("cod-rna.t", test)):
        path = files.first(f"cod-rna/{name}", f"cod-rna/{name}.bz2", dataset="cod-rna")
        parts += _parse(files.unpacked(path, limit=rows * LONGEST_ROW), path)
        require(len(parts[-1]) == rows, path, f"holds {len(parts[-1]):,} rows instead of {rows:,}")
    return Rows("cod-rna", *parts, sha256=files.sha256)


def _parse(content: bytes, path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        from sklearn.datasets import load_svmlight_file
    except ImportError:
        raise MissingExtra("Reading LIBSVM files", "apps") from None
    try:
        X, y = load_svmlight_file(io.BytesIO(content), n_features=COLUMNS, zero_based=False)[:2]  # type: ignore[arg-type]
    except (ValueError, OverflowError) as error:
        raise damaged(path, f"is no LIBSVM text with {COLUMNS} columns ({error})") from error
    dense = X.toarray()  # type: ignore[union-attr]
    require(bool(np.isfinite(dense).all()), path, "holds values that are not finite")
    require(set(np.unique(y)) == {-1.0, 1.0}, path, "does not hold the labels -1 and 1")
    return dense, y.astype(np.int64)


COD_RNA = Entry(
    name="cod-rna",
    title="331,152 pairs of RNA sequences, 8 columns, two classes",
    home="https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html#cod-rna",
    licence="none stated",
    citation="Uzilov, Keegan and Mathews, BMC Bioinformatics 7:173 (2006)",
    addresses=("https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/",),
    files=(
        RemoteFile("cod-rna",
                   "sha256:65b7cc0689fc29bba5db8b50fab0b6446d985f4bf8f6f5dd474f7df8b2f1ab6c", 4_667_176),
        RemoteFile("cod-rna.t",
                   "sha256:58cff16df896436b06343df78ccaef37a6979d819abbcadbec3cb16b93938df6", 21_344_555),
    ),
    read=read,
)  # fmt: skip
