"""What the catalogue says about a set of data, and what its reader returns."""

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
        What follows the address of its set; its last part is its name in the folder of the set.
    checksum
        `sha256:...` or `md5:...`; None when none was published: such a file is never downloaded.
    size
        Its bytes, where they are known.

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
    """Data that were read, with the SHA-256 of every file they came from.

    Parameters
    ----------
    name
        What the catalogue calls it.
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
    """As many images of each class, and the name of each class.

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
        What `load` and the command line call it, and its folder in the data folder.
    title, home, licence, citation
        For people.
    addresses
        Where its files are published: the official address first, then mirrors. One checksum holds for all of them.
    files
        What `fetch` downloads.
    read
        From the data folder to the data; raises `MissingFileError` when its files are not there and `CorruptFileError`
        when their structure is not that of the official ones.
    also_in
        Other folders of the data folder that `read` looks into.

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
