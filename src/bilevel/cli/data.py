"""`bilevel data`: list, fetch and verify."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import App

from ..errors import InvalidInputError, escape_control_chars

if TYPE_CHECKING:
    from ..datasets import Entry


def add_to(app: App) -> None:
    """Give the program these commands."""
    data = App(
        name="data",
        help="List, download and verify public data sets.\n\nFiles are in the folder named by --folder or the "
        "environment variable BILEVEL_DATA, by default the user's cache folder. Files that you put there yourself are "
        "used as well, after a check of their structure. Only fetch uses the network.",
    )
    data.command(show, name="list")
    data.command(fetch)
    data.command(verify)
    app.command(data)


def show(*, folder: Path | None = None) -> None:
    """List the data sets with their size and licence, and whether their files are available.

    Parameters
    ----------
    folder
        The data folder. Default: that of the environment variable BILEVEL_DATA, or the user's cache folder.
    """
    from ..datasets import CATALOGUE, data_folder

    root = data_folder(folder)
    for entry in CATALOGUE.values():
        _print(f"{entry.name}: {entry.title}")
        _print(f"    {_size(entry)}licence: {entry.licence}; {entry.home}")
        _print(f"    cite {entry.citation}")
        _print("    here" if _is_here(entry, root) else f"    not here: bilevel data fetch {entry.name}")
    _print(f"\nData folder: {root} (--folder or BILEVEL_DATA names another one)")


def fetch(*names: str, folder: Path | None = None) -> None:
    """Download data sets. A file that does not match its checksum in the catalogue is deleted.

    Existing files are never replaced. Exit codes: 0 success, 2 a file could not be downloaded; the message says why,
    and where to put it by hand.

    Parameters
    ----------
    names
        The data sets; `bilevel data list` shows them.
    folder
        The data folder. Default: that of the environment variable BILEVEL_DATA, or the user's cache folder.
    """
    from .. import datasets
    from ..datasets.catalogue import find

    if not names:
        raise InvalidInputError(f"name the sets to fetch, of {', '.join(datasets.CATALOGUE)}")
    for entry in [find(name) for name in names]:  # all names are known before the first download
        target = datasets.data_folder(folder) / entry.name
        _print(f"{entry.name}: {_size(entry)}downloading what is not here to {target}")
        datasets.fetch(entry.name, folder)
        _print(f"{entry.name}: complete")


def verify(*names: str, folder: Path | None = None) -> int:
    """Read data sets, check their structure, and show the SHA-256 of each file and whether it is the official one.

    Other files with the correct structure (such as unpacked ones) can be used; their SHA-256 is stored with results.
    Exit codes: 0 all files can be used, 2 a file is damaged or a named data set is missing.

    Parameters
    ----------
    names
        The data sets. Default: all that are in the data folder.
    folder
        The data folder. Default: that of the environment variable BILEVEL_DATA, or the user's cache folder.
    """
    from .. import datasets
    from .._files import MissingFileError
    from ..datasets.catalogue import find

    root = datasets.data_folder(folder)
    here = [entry for entry in datasets.CATALOGUE.values() if _is_here(entry, root)]
    if not names and not here:
        raise MissingFileError(
            f"no set of data is in {root}: get one by `bilevel data fetch NAME`, or name another --folder"
        )
    code = 0
    for entry in [find(name) for name in names] or here:
        try:
            checks = datasets.verify(entry.name, root)
        except InvalidInputError as error:
            _print(f"{entry.name}: CANNOT BE USED\n    {error}")
            code = 2
            continue
        _print(f"{entry.name}: the structure is right")
        for check in checks:
            kind = "official" if check.official else "not the official bytes, usable"
            _print(f"    {check.sha256}  {check.file}  ({kind})")
    return code


def _is_here(entry: Entry, root: Path) -> bool:
    """Whether the folder of a data set contains files; `verify` checks them."""
    return any((root / folder).is_dir() and any((root / folder).iterdir()) for folder in entry.folders)


def _size(entry: Entry) -> str:
    sizes = [file.size for file in entry.files]
    return "" if None in sizes else f"{sum(size or 0 for size in sizes) / 1e6:.1f} MB; "


def _print(text: str) -> None:
    """Print with control characters escaped, since names of files may contain them."""
    print(escape_control_chars(text))
