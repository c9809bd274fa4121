"""What the commands share."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from .._files import check_name
from ..errors import InvalidInputError, did_you_mean

if TYPE_CHECKING:
    from cyclopts import App

command_line: list[str] = []
"""The arguments of the running command, for reports that show it."""


def one_thread() -> None:
    """Use one thread: the matrices are small, and results are then reproducible to the bit."""
    import torch

    torch.set_num_threads(1)


def check_there(*paths: Path | None) -> None:
    """Raise if a file does not exist, before slow imports."""
    for path in paths:
        if path is None:
            continue
        check_name(path)
        if path.is_symlink() and not path.exists():
            raise InvalidInputError(f"{path} is a symbolic link that leads to no file")
        if not path.exists():
            beside = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
            raise InvalidInputError(f"{path}: there is no such file.{did_you_mean(path.name, beside)}")


def add_examples(app: App) -> None:
    """Show the examples of examples.toml at the end of the help of each command."""
    document = tomllib.loads(Path(__file__).with_name("examples.toml").read_text(encoding="utf-8"))
    for command, text in document.items():
        part = app
        for word in command.split() if command != "bilevel" else ():
            part = part[word]
        part.help_epilogue = f"**Examples**\n\n```\n{text.strip()}\n```\n"
