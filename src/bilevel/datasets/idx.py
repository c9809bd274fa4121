"""IDX files: MNIST and Fashion-MNIST, images of 28 x 28 pixels in ten classes.

0, 0, type, dimensions; the sizes, big-endian 32-bit integers; the entries in C order (type 8: bytes)
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from .catalogue_entry import TrainTestRows
from .untrusted_bytes import Files, require

PIXELS, CLASSES = (28, 28), 10


def read(root: Path, *, name: str, train: int = 60_000, test: int = 10_000) -> TrainTestRows:
    """Images (rows, 28, 28) uint8 and labels 0 .. 9; files may be .gz or unpacked."""
    files = Files(root)
    parts = []
    for prefix, rows in (("train", train), ("t10k", test)):
        parts.append(_read_idx(files, name, f"{prefix}-images-idx3-ubyte", (rows, *PIXELS)))
        labels = _read_idx(files, name, f"{prefix}-labels-idx1-ubyte", (rows,))
        known = len(np.unique(labels)) == CLASSES and labels.max() == CLASSES - 1
        require(known, root / name, f"{prefix}-labels-idx1-ubyte does not hold the labels 0 to {CLASSES - 1}")
        parts.append(labels.astype(np.int64))
    return TrainTestRows(name, *parts, sha256=files.sha256)


def _read_idx(files: Files, dataset: str, name: str, shape: tuple[int, ...]) -> np.ndarray:
    path = files.first(f"{dataset}/{name}.gz", f"{dataset}/{name}", dataset=dataset)
    header = bytes((0, 0, 8, len(shape))) + np.array(shape, ">i4").tobytes()
    content = files.unpacked(path, limit=len(header) + math.prod(shape))
    require(content.startswith(header), path, f"does not begin as the IDX file of {shape} bytes does")
    require(len(content) == len(header) + math.prod(shape), path, f"ends after {len(content):,} bytes: it is cut off")
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape).copy()  # which may be written to
