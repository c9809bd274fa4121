"""Ranks that are threads of one process: many small cases of sets without starting processes.

Not for problems: `functools.cached_property` holds a lock of the class before Python 3.12, and threads that meet within
one wait for each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bilevel.distributed import Ranks

SECONDS = 120.0
"""How long a thread waits for the others."""


class ThreadRanks(Ranks):
    """A rank that meets the other threads in memory; sums are taken in the order of ranks."""

    def __init__(self, rank: int, size: int, meeting: threading.Barrier, desk: dict[int, Tensor]) -> None:
        super().__init__()
        self.rank, self.size, self._meeting, self._desk = rank, size, meeting, desk

    def begin_sum(self, tensor: Tensor) -> Callable[[], Tensor]:
        return lambda: self._reduced(tensor, lambda parts: sum(parts[1:], parts[0]))

    def all_max(self, tensor: Tensor) -> Tensor:
        return self._reduced(tensor, lambda parts: torch.stack(parts).amax(0))

    def _reduced(self, tensor: Tensor, reduce: Callable[[list[Tensor]], Any]) -> Tensor:
        self.rounds, self.bytes = self.rounds + 1, self.bytes + tensor.numel() * tensor.itemsize
        self._desk[self.rank] = tensor.clone()
        self._meeting.wait(SECONDS)
        parts = [self._desk[rank] for rank in range(self.size)]
        assert len({(part.shape, part.dtype) for part in parts}) == 1, "ranks sum different things"
        result = reduce(parts)
        self._meeting.wait(SECONDS)
        return tensor.copy_(result)


def on_threads(function: Callable[..., Any], size: int, *arguments: Any) -> list[Any]:
    """What `function(ranks, *arguments)` returns on each of `size` threads; the first error is raised here."""
    meeting, desk = threading.Barrier(size), {}
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = function(ThreadRanks(rank, size, meeting, desk), *arguments)
        except BaseException as error:
            errors.append(error)
            meeting.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    if errors:
        raise (told or errors)[0]
    return results
