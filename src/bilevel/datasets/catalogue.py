"""The catalogue of data sets, from catalogue.toml, and their readers."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ..errors import InvalidInputError, MissingExtraError, did_you_mean
from . import cifar100, idx, omniglot, text_files
from .catalogue_entry import Dataset, Entry, RemoteFile

READERS: dict[str, Callable[[Path], Dataset]] = {
    "mnist": partial(idx.read, name="mnist"),
    "fashion-mnist": partial(idx.read, name="fashion-mnist"),
    "cod-rna": text_files.read_cod_rna,
    "madelon": text_files.read_madelon,
    "omniglot": omniglot.read,
    "cifar-100": cifar100.read,
}
VARIABLE = "BILEVEL_DATA"


def _load_catalogue() -> dict[str, Entry]:
    document = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    entries = {}
    for name, about in document.items():
        about["files"] = tuple(RemoteFile(**file) for file in about["files"])
        entries[name] = Entry(name=name, read=READERS[name], **about)
    return entries


CATALOGUE = _load_catalogue()


def find(name: str) -> Entry:
    """The entry of a data set.

    Examples
    --------
    >>> find("mnist").licence
    'CC BY-SA 3.0 as commonly stated'
    """
    if name not in CATALOGUE:
        raise InvalidInputError(
            f"there is no data set {name!r}: choose one of {', '.join(CATALOGUE)}.{did_you_mean(name, CATALOGUE)}"
        )
    return CATALOGUE[name]


def data_folder(folder: str | Path | None = None) -> Path:
    """The data folder: the argument, the environment variable BILEVEL_DATA, or the user's cache folder.

    Parameters
    ----------
    folder
        A folder to use instead.

    Returns
    -------
    Path
        The folder, which may not exist yet.

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
        raise MissingExtraError("The default data folder (set BILEVEL_DATA to do without it)", "apps") from None
    return Path(pooch.os_cache("bilevel"))


def load(name: str, folder: str | Path | None = None) -> Dataset:
    """Read a data set from the data folder and check its structure; this never uses the network.

    Parameters
    ----------
    name
        mnist, fashion-mnist, cod-rna, madelon (they give `TrainTestRows`), omniglot (`ImageClasses`) or cifar-100
        (`Cifar100`).
    folder
        The data folder; see `data_folder`.

    Returns
    -------
    Dataset
        `TrainTestRows`, `ImageClasses` or `Cifar100`, with the SHA-256 of every file.

    Examples
    --------
    >>> from bilevel.datasets import load
    >>> load("mnist", folder="no-such-folder")
    Traceback (most recent call last):
    bilevel.errors.MissingFileError: mnist: there is no mnist/train-images-idx3-ubyte.gz in no-such-folder. ...
    """
    return find(name).read(data_folder(folder))
