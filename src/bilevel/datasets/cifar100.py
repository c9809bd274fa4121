"""CIFAR-100 in its binary form, and FC100, the few-shot split of its superclasses.

    records of 3,074 bytes: superclass 0 .. 19, class 0 .. 99, then 32 x 32 pixels of red, of green and of blue

The official cifar-100-binary.tar.gz, or the folder unpacked from it. (The other official forms are pickles and Matlab
files; they are not read: a pickle can run anything.)
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from .._files import CorruptFileError
from ..errors import InvalidInputError
from .catalogue_entry import ImageClasses, TrainTestRows
from .untrusted_bytes import Files, reading, require

CLASSES, SUPERCLASSES = 100, 20
PIXELS = (3, 32, 32)
RECORD = 2 + 3 * 32 * 32
NAMES = "fine_label_names.txt"
ARCHIVE_SLACK = 1_000_000  # headers, padding and the files of names

FC100: dict[str, tuple[int, ...]] = {
    "train": (1, 2, 3, 4, 5, 6, 9, 10, 15, 17, 18, 19),
    "validation": (8, 11, 13, 16),
    "test": (0, 7, 12, 14),
}
"""The superclasses of each part: Oreshkin, Rodriguez and Lacoste, TADAM, NeurIPS 2018."""


@dataclass(frozen=True)
class Cifar100(TrainTestRows):
    """Images with their classes, and the superclass of each class.

    Parameters
    ----------
    name, sha256
        As in `Dataset`.
    X, test_X
        Images (rows, 3, 32, 32) uint8.
    y, test_y
        Classes 0 .. 99, (rows,).
    superclass
        The superclass of each class, (100,).
    class_names
        The name of each class.

    Examples
    --------
    >>> import numpy as np
    >>> from bilevel.datasets import Cifar100, ImageClasses, TrainTestRows, fc100_split, omniglot_split
    >>> y, names = np.arange(100).repeat(6), tuple(map(str, range(100)))
    >>> images = np.zeros((600, 3, 32, 32), np.uint8)
    >>> data = Cifar100("cifar-100", images, y, images[:0], y[:0], np.arange(100) // 5, names, sha256={})
    >>> int(data.superclass[data.y[-1]])
    19
    """

    superclass: np.ndarray
    class_names: tuple[str, ...]


def read(root: Path, *, train: int = 500, test: int = 100) -> Cifar100:
    """All images, `train` and `test` of each class."""
    files = Files(root)
    folder = "cifar-100-binary"
    path = files.first(f"cifar-100/{folder}.tar.gz", f"cifar-100/{folder}", folder, dataset="cifar-100")
    sizes = {"train.bin": CLASSES * train * RECORD, "test.bin": CLASSES * test * RECORD, NAMES: 10_000}
    content = partial(_from_folder, files, path) if path.is_dir() else _from_archive(files, path, sizes)
    parts, superclasses = [], []
    for name, each in (("train.bin", train), ("test.bin", test)):
        records = _records(content(name, sizes[name]), each, f"{path}: {name}")
        superclasses.append(_superclass_of_each(records, f"{path}: {name}"))
        parts += [records[:, 2:].reshape(-1, *PIXELS), records[:, 1].astype(np.int64)]
    require(bool((superclasses[0] == superclasses[1]).all()), path, "has other superclasses in train.bin and test.bin")
    names = tuple(content(NAMES, sizes[NAMES]).decode("ascii", "replace").split())
    require(len(names) == CLASSES, f"{path}: {NAMES}", f"holds {len(names)} names instead of {CLASSES}")
    return Cifar100("cifar-100", *parts, superclass=superclasses[0], class_names=names, sha256=files.sha256)


def _from_folder(files: Files, path: Path, name: str, size: int) -> bytes:
    if not (path / name).exists():
        raise CorruptFileError(
            f"{path / name} is missing: fetch or copy the set again; `bilevel data verify` checks it"
        )
    return files.unpacked(path / name, limit=size)


def _from_archive(files: Files, path: Path, sizes: dict[str, int]) -> Callable[[str, int], bytes]:
    """Members of the archive by name; it is unpacked in memory, and gets no more of it than the official one needs."""
    unpacked = files.unpacked(path, limit=sum(sizes.values()) + ARCHIVE_SLACK)

    def content(name: str, size: int) -> bytes:
        with reading(path), tarfile.open(fileobj=io.BytesIO(unpacked), mode="r:") as archive:
            members = [member for member in archive.getmembers() if member.name == f"cifar-100-binary/{name}"]
            require(len(members) == 1 and members[0].isreg(), path, f"holds no one file cifar-100-binary/{name}")
            require(members[0].size <= size, path, f"has {members[0].size:,} bytes in {name}, more than {size:,}")
            file = archive.extractfile(members[0])
            assert file is not None
            return file.read()

    return content


def _records(content: bytes, each: int, where: str) -> np.ndarray:
    expected = CLASSES * each * RECORD
    require(len(content) == expected, where, f"has {len(content):,} bytes instead of {expected:,}")
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    counts = np.bincount(records[:, 1], minlength=CLASSES)
    require(len(counts) == CLASSES and set(counts) == {each}, where, f"does not hold {each} images of each class")
    return records


def _superclass_of_each(records: np.ndarray, where: str) -> np.ndarray:
    """The superclass of each class, the same in all its records; five classes in each superclass."""
    superclass = np.zeros(CLASSES, np.int64)
    superclass[records[:, 1]] = records[:, 0]
    same = bool((superclass[records[:, 1]] == records[:, 0]).all())
    counts = np.bincount(superclass, minlength=SUPERCLASSES)
    require(same and len(counts) == SUPERCLASSES and set(counts) == {5}, where, "has superclasses without five classes")
    return superclass


def fc100_split(data: Cifar100, split: Literal["train", "validation", "test"] = "train") -> ImageClasses:
    """FC100: training and test images of CIFAR-100 together, 600 of each class, split by superclass.

    60 classes to train, 20 for validation and 20 to test; no superclass is in two of them.

    Parameters
    ----------
    data
        The result of `load("cifar-100")`.
    split
        train, validation or test.

    Returns
    -------
    ImageClasses
        Images (classes, 600, 3, 32, 32) uint8.

    References
    ----------
    Oreshkin, Rodriguez Lopez & Lacoste (2018).

    Examples
    --------
    >>> import numpy as np
    >>> from bilevel.datasets import Cifar100, ImageClasses, TrainTestRows, fc100_split, omniglot_split
    >>> y, names = np.arange(100).repeat(6), tuple(map(str, range(100)))
    >>> images = np.zeros((600, 3, 32, 32), np.uint8)
    >>> data = Cifar100("cifar-100", images, y, images[:0], y[:0], np.arange(100) // 5, names, sha256={})
    >>> fc100_split(data, "train").images.shape[0], fc100_split(data, "test").images.shape[0]
    (60, 20)
    """
    if split not in FC100:
        raise InvalidInputError(f"split must be one of {', '.join(FC100)}, got {split!r}")
    chosen = np.flatnonzero(np.isin(data.superclass, FC100[split]))
    of_train, of_test = (np.argsort(y, kind="stable").reshape(CLASSES, -1)[chosen] for y in (data.y, data.test_y))
    images = np.concatenate([data.X[of_train], data.test_X[of_test]], axis=1)
    return ImageClasses("fc100", images, tuple(data.class_names[i] for i in chosen), sha256=data.sha256)
