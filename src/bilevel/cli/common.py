"""What the commands share."""

from __future__ import annotations

given: list[str] = []
"""The arguments of the running command, for reports that show it."""


def one_thread() -> None:
    """Small matrices: a second thread costs more than it gives, and bits repeat with one."""
    import torch

    torch.set_num_threads(1)


def examples(*lines: str) -> str:
    return "**Examples**\n\n```\n" + "\n".join(lines) + "\n```\n"
