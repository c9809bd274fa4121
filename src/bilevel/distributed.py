"""One run over several processes: rows or tasks are divided among the ranks that `torchrun` starts."""

from .ranks import Ranks, connect

__all__ = ["Ranks", "connect"]
