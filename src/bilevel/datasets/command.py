"""`bilevel data`: the catalogue, downloads and checks, for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import InvalidInput, MissingExtra, shown
from ..files import FileMissing
from .catalogue import CATALOGUE, VARIABLE, data_folder, find
from .entry import Entry
from .fetching import fetch, verify


def show_list(folder: Path | None) -> int:
    """All sets of the catalogue, and which of them are in the data folder."""
    say, root = _printer(), data_folder(folder)
    for entry in CATALOGUE.values():
        say(f"{entry.name}: {entry.title}")
        say(f"    {_size(entry)}licence: {entry.licence}; {entry.home}")
        say(f"    cite {entry.citation}")
        say("    here" if _is_here(entry, root) else f"    not here: bilevel data fetch {entry.name}")
    say(f"\nData folder: {root} (--folder or {VARIABLE} names another one)")
    return 0


def fetch_all(names: Sequence[str], folder: Path | None) -> int:
    """Download the named sets."""
    if not names:
        raise InvalidInput(f"name the sets to fetch, of {', '.join(CATALOGUE)}")
    say = _printer()
    for name in [find(name).name for name in names]:  # all names are known before the first download
        say(f"{name}: {_size(find(name))}downloading what is not here to {data_folder(folder) / name}")
        fetch(name, folder)
        say(f"{name}: complete")
    return 0


def verify_all(names: Sequence[str], folder: Path | None) -> int:
    """Check the named sets, or all that are in the data folder; the exit code is 2 if one cannot be used."""
    say, root = _printer(), data_folder(folder)
    entries = [find(name) for name in names] or [entry for entry in CATALOGUE.values() if _is_here(entry, root)]
    if not entries:
        raise FileMissing(
            f"no set of data is in {root}: get one by `bilevel data fetch NAME`, or name another --folder"
        )
    code = 0
    for entry in entries:
        try:
            checks = verify(entry.name, root)
        except InvalidInput as error:
            say(f"{entry.name}: CANNOT BE USED\n    {error}")
            code = 2
            continue
        say(f"{entry.name}: the structure is right")
        for check in checks:
            kind = "official" if check.official else "not the official bytes, usable"
            say(f"    {check.sha256}  {check.file}  ({kind})")
    return code


def _is_here(entry: Entry, root: Path) -> bool:
    """Whether a folder of the set has something in it; `verify` tells whether it is any good."""
    return any((root / folder).is_dir() and any((root / folder).iterdir()) for folder in entry.folders)


def _size(entry: Entry) -> str:
    sizes = [file.size for file in entry.files]
    return "" if None in sizes else f"{sum(size or 0 for size in sizes) / 1e6:.1f} MB; "


def _printer() -> Callable[[str], None]:
    """Prints lines that are not wrapped, whatever signs names of files may hold."""
    try:
        from rich.console import Console
    except ImportError:
        raise MissingExtra("The command line", "apps") from None
    console = Console(highlight=False, markup=False, emoji=False)
    return lambda text: console.print(shown(text), soft_wrap=True)
