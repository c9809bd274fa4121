"""The index: one line per set of data."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import InvalidInput, MissingExtra, meant
from .cifar100 import CIFAR_100
from .entry import Dataset, Entry
from .idx import FASHION_MNIST, MNIST
from .libsvm import COD_RNA
from .madelon import MADELON
from .omniglot import OMNIGLOT

CATALOGUE: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        MNIST,
        FASHION_MNIST,
        COD_RNA,
        MADELON,
        OMNIGLOT,
        CIFAR_100,
    )
}

VARIABLE = "BILEVEL_DATA"


def find(name: str) -> Entry:
    """The entry of a set.

    Examples
    --------
    >>> find("mnist").licence
    'CC BY-SA 3.0 as commonly stated'
    """
    if name not in CATALOGUE:
        raise InvalidInput(
            f"there is no data set {name!r}: choose one of {', '.join(CATALOGUE)}.{meant(name, CATALOGUE)}"
        )
    return CATALOGUE[name]


def data_folder(folder: str | Path | None = None) -> Path:
    """Where the files are: the argument, the environment variable BILEVEL_DATA, or the user's cache folder.

    Parameters
    ----------
    folder
        A folder to use instead.

    Returns
    -------
    Path
        It need not exist yet.

    Examples
    --------
    >>> data_folder("somewhere").name
    'somewhere'
    """
    chosen = folder or os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    try:
        import pooch
    except ImportError:
        raise MissingExtra("The default data folder (set BILEVEL_DATA to do without it)", "apps") from None
    return Path(pooch.os_cache("bilevel"))


def load(name: str, folder: str | Path | None = None) -> Dataset:
    """Read a set from the files in the data folder, after a check of their structure; never uses the network.

    Parameters
    ----------
    name
        mnist, fashion-mnist, cod-rna, madelon (they give `Rows`), omniglot (`ImageClasses`) or cifar-100 (`Cifar100`).
    folder
        The data folder; see `data_folder`.

    Returns
    -------
    Dataset
        `Rows`, `ImageClasses` or `Cifar100`, with the SHA-256 of every file.

    Examples
    --------
    >>> from bilevel.datasets import load
    >>> load("mnist", folder="no-such-folder")
    Traceback (most recent call last):
    bilevel.files.FileMissing: mnist: there is no mnist/train-images-idx3-ubyte.gz in no-such-folder. ...
    """
    return find(name).read(data_folder(folder))
