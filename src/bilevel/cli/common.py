"""What the commands share."""

from __future__ import annotations

from pathlib import Path

from ..errors import InvalidInput, meant

given: list[str] = []
"""The arguments of the running command, for reports that show it."""


def one_thread() -> None:
    """Small matrices: a second thread costs more than it gives, and bits repeat with one."""
    import torch

    torch.set_num_threads(1)


def check_there(*paths: Path | None) -> None:
    """Refuse files that are not there, before anything slow is loaded."""
    for path in paths:
        if path is not None and not path.exists():
            beside = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
            raise InvalidInput(f"{path}: there is no such file.{meant(path.name, beside)}")


def examples(*lines: str) -> str:
    return "**Examples**\n\n```\n" + "\n".join(lines) + "\n```\n"
