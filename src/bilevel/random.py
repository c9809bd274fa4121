"""Randomness as a pure function of (seed, stream, step, index).

No generator is carried from one step to the next: the noise of step k is determined by k. A resumed run therefore has
the same bits, and one source of randomness can be varied while the others stay fixed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from numbers import Integral

import torch

from ._serializable import serializable
from .errors import InvalidInputError, InvalidTypeError


@serializable
@dataclass(frozen=True, kw_only=True)
class Seeds:
    """One seed per source of randomness.

    Parameters
    ----------
    data
        The batches.
    smoothing
        The directions of randomised smoothing.
    truncation
        The random length of the Neumann series.
    output
        The uniformly sampled iterate.
    curvature
        The starting vectors of curvature estimates.

    Examples
    --------
    >>> Seeds.from_seed(3)
    Seeds(data=3, smoothing=3, truncation=3, output=3, curvature=3)
    """

    data: int = 0
    smoothing: int = 0
    truncation: int = 0
    output: int = 0
    curvature: int = 0

    @classmethod
    def from_seed(cls, seed: int | Seeds) -> Seeds:
        """The same seed for all sources, or the given ones."""
        if isinstance(seed, Seeds):
            return seed
        if isinstance(seed, bool) or not isinstance(seed, Integral):
            raise InvalidTypeError(f"seed must be an integer or bilevel.Seeds(...), got {seed!r}")
        if seed < 0:
            raise InvalidInputError(f"seed must be non-negative, got {seed}")
        seed = int(seed)
        return cls(data=seed, smoothing=seed, truncation=seed, output=seed, curvature=seed)


def plain_generator(seed: int) -> torch.Generator:
    """A generator for draws outside of runs; torch takes seeds of 64 bits, ours may be longer."""
    return torch.Generator().manual_seed(seed % (1 << 63))


@dataclass(frozen=True)
class RandomStreams:
    """The random streams of one step."""

    seeds: Seeds = Seeds()
    step: int = 0

    def generator(self, stream: str, index: int = 0, device: torch.device | str = "cpu") -> torch.Generator:
        """A fresh generator for draw `index` of `stream` at this step."""
        key = f"{stream}/{getattr(self.seeds, stream)}/{self.step}/{index}".encode()
        seed = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
        return torch.Generator(device).manual_seed(seed - (1 << 63))
