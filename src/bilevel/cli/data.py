"""`bilevel data`: list, fetch and verify."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .common import examples

if TYPE_CHECKING:
    from cyclopts import App


def add_to(app: App) -> None:
    """Give the program these commands."""
    from cyclopts import App

    data = App(
        name="data",
        help="Public sets of data: what there is, download it, check it.\n\nFiles are in the folder that --folder or "
        "the environment variable BILEVEL_DATA names, by default the user's cache folder. Files that you put there "
        "yourself are used as well, after a check of their structure; once they are there, no network is needed.",
        help_epilogue=examples(
            "bilevel data list",
            "bilevel data fetch omniglot",
            "BILEVEL_DATA=/srv/data bilevel data verify",
        ),
    )
    data.command(
        show,
        name="list",
        help_epilogue=examples("bilevel data list", "bilevel data list --folder /srv/data"),
    )
    data.command(
        fetch,
        name="fetch",
        help_epilogue=examples(
            "bilevel data fetch mnist fashion-mnist",
            "bilevel data fetch omniglot --folder /srv/data",
            "",
            "# without a network: copy the official files to FOLDER/omniglot yourself, then",
            "bilevel data verify omniglot --folder FOLDER",
        ),
    )
    data.command(
        verify,
        name="verify",
        help_epilogue=examples(
            "bilevel data verify               # every set that is in the data folder",
            "bilevel data verify cifar-100     # an error if it is not there",
        ),
    )
    app.command(data)


def show(*, folder: Path | None = None) -> int:
    """Show the sets of data: what they are, how large, under which licence, and whether their files are here.

    Parameters
    ----------
    folder
        The data folder. Default: that of the environment variable BILEVEL_DATA, or the user's cache folder.
    """
    from ..datasets import command

    return command.show_list(folder)


def fetch(*names: str, folder: Path | None = None) -> int:
    """Download sets of data. Each file must match the checksum of the catalogue, or it is thrown away.

    Files that are there already are never replaced. Exit codes: 0 done, 2 a file could not be had; the message says why
    and where to put it by hand.

    Parameters
    ----------
    names
        The sets; `bilevel data list` shows them.
    folder
        The data folder. Default: that of the environment variable BILEVEL_DATA, or the user's cache folder.
    """
    from ..datasets import command

    return command.fetch_all(names, folder)


def verify(*names: str, folder: Path | None = None) -> int:
    """Read sets of data, check their structure, and show the SHA-256 of each file and whether it is the official one.

    Other files with the right structure (unpacked or packed again) can be used; their SHA-256 goes into results. Exit
    codes: 0 all can be used, 2 a file is damaged, or a set that was named is not there.

    Parameters
    ----------
    names
        The sets. Default: all that are in the data folder.
    folder
        The data folder. Default: that of the environment variable BILEVEL_DATA, or the user's cache folder.
    """
    from ..datasets import command

    return command.verify_all(names, folder)
