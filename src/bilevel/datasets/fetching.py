"""Downloads with pinned checksums, and checks of the files in the data folder."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._files import MissingFileError
from ..errors import BilevelError, InvalidInputError, MissingExtraError
from .catalogue import data_folder, find
from .catalogue_entry import Entry, RemoteFile
from .untrusted_bytes import OPENERS

TIMEOUT = 30  # seconds without an answer


class DownloadError(BilevelError, OSError):
    """A file could not be downloaded, or is not the one of the catalogue; the message says where to put it by hand.

    Examples
    --------
    >>> raise DownloadError("no network: put train-images-idx3-ubyte.gz into mnist")
    Traceback (most recent call last):
    bilevel.datasets.fetching.DownloadError: no network: put train-images-idx3-ubyte.gz into mnist
    """


@dataclass(frozen=True)
class FileCheck:
    """A file (or unpacked folder) of a data set, its SHA-256, and whether it is the official file.

    A compressed file whose content is the official file is official too. `official` is False for other bytes with the
    right structure: repacked, unpacked or changed.

    Parameters
    ----------
    file
        The name of the file.
    sha256
        The SHA-256 of its bytes.
    official
        Whether it is the file of the catalogue.

    Examples
    --------
    >>> FileCheck("rows.txt", sha256="0" * 64, official=False).official
    False
    """

    file: str
    sha256: str
    official: bool


def fetch(name: str, folder: str | Path | None = None) -> Path:
    """Download the missing files of a data set; return the folder of the data set.

    Existing files are never replaced: they are used if their structure is right, and otherwise an error names them. A
    download that does not match its pinned checksum is deleted.

    Parameters
    ----------
    name
        The set.
    folder
        The data folder; see `data_folder`.

    Returns
    -------
    Path
        The folder of the set.

    Examples
    --------
    >>> from bilevel.datasets import fetch
    >>> fetch("mnist")  # doctest: +SKIP
    PosixPath('.../bilevel/mnist')
    >>> fetch("no-such-set")
    Traceback (most recent call last):
    bilevel.errors.InvalidInputError: ...
    """
    entry, root = find(name), data_folder(folder)
    target = root / entry.name
    try:
        entry.read(root)
    except MissingFileError:
        for file in entry.files:
            if not (target / file.name).exists():
                _download(entry, file, target)
        entry.read(root)
    return target


def verify(name: str, folder: str | Path | None = None) -> list[FileCheck]:
    """Read a data set, which checks its structure, and compare each file with the pinned checksum.

    Parameters
    ----------
    name
        The set.
    folder
        The data folder; see `data_folder`.

    Returns
    -------
    list of FileCheck
        One for each file of the set.

    Examples
    --------
    >>> from bilevel.datasets import verify
    >>> verify("mnist", folder="no-such-folder")
    Traceback (most recent call last):
    bilevel.errors.MissingFileError: mnist: there is no mnist/train-images-idx3-ubyte.gz in no-such-folder. ...
    """
    entry, root = find(name), data_folder(folder)
    pinned = {f"{entry.name}/{file.name}": file for file in entry.files}
    return [
        FileCheck(path, digest, _is_official(root / path, pinned.get(path)) or _is_packed(root / path, pinned, path))
        for path, digest in entry.read(root).sha256.items()
    ]


def _is_official(path: Path, file: RemoteFile | None, opener: Callable[..., Any] = open) -> bool:
    if file is None or file.checksum is None:
        return False
    algorithm, digest = file.checksum.split(":")
    with opener(path, "rb") as opened:
        return hashlib.file_digest(opened, algorithm).hexdigest() == digest


def _is_packed(path: Path, pinned: dict[str, RemoteFile], name: str) -> bool:
    """Whether a .gz or .bz2 file, which has been read and so is no bomb, unpacks to an official file."""
    return path.suffix in OPENERS and _is_official(
        path, pinned.get(name.removesuffix(path.suffix)), OPENERS[path.suffix]
    )


def _download(entry: Entry, file: RemoteFile, target: Path) -> None:
    if file.checksum is None:
        raise InvalidInputError(
            f"{entry.name}: no checksum of {file.name} is known, so it is not downloaded: get it from {entry.home}, "
            f"verify that it is the right file and put it into {target}"
        )
    try:
        import pooch
    except ImportError:
        raise MissingExtraError("Downloading data", "apps") from None
    pooch.get_logger().setLevel(logging.WARNING)
    reasons = []
    for address in entry.addresses:
        try:
            downloader: Any = pooch.HTTPDownloader(timeout=TIMEOUT)
            pooch.retrieve(address + file.path, file.checksum, file.name, target, downloader=downloader)
            return
        except (OSError, ValueError) as error:  # no network, no room, no such file; a checksum that does not match
            reasons.append(f"{address + file.path}: {(str(error) or type(error).__name__).splitlines()[0]}")
    raise DownloadError(
        f"{entry.name}: {file.name} could not be downloaded.\n  "
        + "\n  ".join(reasons)
        + f"\nTry again later, or get the file from {entry.home} and put it into {target}"
    )
