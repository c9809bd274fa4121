"""The entries of the catalogue of data sets, and the results of their readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class RemoteFile:
    """One official file.

    Parameters
    ----------
    path
        The path after the address of the data set; its last part is the name of the file in the folder of the set.
    checksum
        `sha256:...`. A file without a published checksum, None, is never downloaded.
    size
        The size in bytes, or None.

    Examples
    --------
    >>> RemoteFile("rows.txt", checksum=None).size is None
    True
    """

    path: str
    checksum: str | None
    size: int | None = None

    @property
    def name(self) -> str:
        """Its name in the folder of the set."""
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Dataset:
    """Data that were read, with the SHA-256 of each of their files.

    Parameters
    ----------
    name
        The name in the catalogue.
    sha256
        The SHA-256 of each file, by its name.

    Examples
    --------
    >>> Dataset("mine", sha256={"rows.txt": "0" * 64}).name
    'mine'
    """

    name: str
    sha256: Mapping[str, str] = field(kw_only=True)


@dataclass(frozen=True)
class TrainTestRows(Dataset):
    """Training and test rows with their labels, as in the files: nothing is scaled.

    Parameters
    ----------
    name, sha256
        As in `Dataset`.
    X, test_X
        (rows, ...), as in the files.
    y, test_y
        (rows,) integers.

    Examples
    --------
    >>> import numpy as np
    >>> X, y, test_X, test_y = np.zeros((3, 2)), np.array([0, 1, 0]), np.zeros((1, 2)), np.array([1])
    >>> rows = TrainTestRows("mine", X, y, test_X, test_y, sha256={})
    >>> rows.X.shape, rows.test_y.shape
    ((3, 2), (1,))
    """

    X: np.ndarray
    y: np.ndarray
    test_X: np.ndarray
    test_y: np.ndarray


@dataclass(frozen=True)
class ImageClasses(Dataset):
    """The same number of images of each class, and the name of each class.

    Parameters
    ----------
    name, sha256
        As in `Dataset`.
    images
        (classes, per_class, channels, height, width) uint8.
    class_names
        One for each class.

    Examples
    --------
    >>> import numpy as np
    >>> ImageClasses("mine", np.zeros((2, 5, 1, 8, 8), np.uint8), ("cat", "dog"), sha256={}).class_names[1]
    'dog'
    """

    images: np.ndarray
    class_names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One set of the catalogue.

    Parameters
    ----------
    name
        The name for `load` and the command line, and of its folder in the data folder.
    title, home, licence, citation
        Texts that describe the data set.
    addresses
        The addresses of its files, the official one first, then mirrors. The checksums are the same for all of them.
    files
        The files that `fetch` downloads.
    read
        A function from the data folder to the data. It raises `MissingFileError` if files are missing and
        `CorruptFileError` if their structure differs from that of the official ones.
    also_in
        Other folders in the data folder that `read` searches.

    Examples
    --------
    >>> from bilevel.datasets import CATALOGUE
    >>> CATALOGUE["madelon"].licence, len(CATALOGUE["madelon"].files) > 1
    ('CC BY 4.0', True)
    """

    name: str
    title: str
    home: str
    licence: str
    citation: str
    addresses: tuple[str, ...]
    files: tuple[RemoteFile, ...]
    read: Callable[[Path], Dataset]
    also_in: tuple[str, ...] = ()

    @property
    def folders(self) -> tuple[str, ...]:
        """Where its files may be in the data folder."""
        return (self.name, *self.also_in)
