"""Madelon: artificial data with 500 columns of which 20 matter, in the text files of the UCI repository."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .contents import Files, damaged, require
from .entry import Entry, RemoteFile, Rows

COLUMNS, LARGEST = 500, 999


def read(root: Path, *, train: int = 2_000, valid: int = 600) -> Rows:
    """Rows (n, 500) integers 0 .. 999, labels -1 and 1; the official validation rows are the test rows."""
    files = Files(root)
    parts: list[np.ndarray] = []
    for name, rows in (("train", train), ("valid", valid)):
        values = _read_integers(files, f"madelon_{name}.data", (rows, COLUMNS))
        labels = _read_integers(files, f"madelon_{name}.labels", (rows,))
        where = root / "madelon" / f"madelon_{name}"
        require(values.min() >= 0 and values.max() <= LARGEST, f"{where}.data", f"holds values outside 0 .. {LARGEST}")
        require(set(np.unique(labels)) == {-1, 1}, f"{where}.labels", "does not hold the labels -1 and 1")
        parts += [values, labels]
    return Rows("madelon", *parts, sha256=files.sha256)


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


MADELON = Entry(
    name="madelon",
    title="2,600 artificial rows, 500 columns, two classes",
    home="https://archive.ics.uci.edu/dataset/171/madelon",
    licence="CC BY 4.0",
    citation="Guyon, Gunn, Ben-Hur and Dror, Advances in Neural Information Processing Systems 17 (2004)",
    addresses=("https://archive.ics.uci.edu/ml/machine-learning-databases/madelon/",),
    files=(  # no checksums were published: these are of files that at least three public copies agree on
        RemoteFile("MADELON/madelon_train.data",
                   "sha256:0b6e37711efdc7ab74250c51e7d6966bffd9f8f2b0e9971e882c3a7a380c2314", 4_001_995),
        RemoteFile("MADELON/madelon_train.labels",
                   "sha256:10bffcc3b017467cb810d326b931951adcbde2b4870faf981da2991993b48689", 5_000),
        RemoteFile("MADELON/madelon_valid.data",
                   "sha256:cb9a46475147de1a58d9f15ef4c318e5b85de344e0f9ab92626fa446aa815dc9", 1_200_599),
        RemoteFile("madelon_valid.labels",
                   "sha256:fbac32fa87fac41ab731994a1c824e7b25396069bff6df242c01fe240fcb34dc", 1_500),
    ),
    read=read,
)  # fmt: skip
