"""How ranks begin something together: what each was given is compared before anything is summed.

The first message has the same length on every rank, whatever it was given. So ranks with different batches, dtypes or
methods find out, and a rank that refuses its input tells the others, where a sum of different lengths would hang.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import InvalidInput, InvalidType
from .ranks import Ranks, RanksFailed
from .sums import largest_of

ROOM = 30
"""So many numbers travel with the first message; more need a second one."""


class Given(NamedTuple):
    """What one rank was given."""

    told: Mapping[str, Any]  # must be the same on every rank: by what it is called, as JSON
    numbers: Tensor  # of which the largest over ranks is asked
    kept: Any = None  # for this rank itself


def meet(ranks: Ranks, owner: str, look: Callable[[], Given]) -> tuple[Given, Tensor]:
    """What `look()` gives here, and its numbers' largest over all ranks, once all were told the same.

    When `look` refuses its input on some rank, all raise: the same error where all refuse alike.
    """
    failure: Exception | None = None
    try:
        given = look()
    except (InvalidInput, InvalidType) as error:
        failure, given = error, Given({"failure": str(error)}, torch.zeros(0))
    mark = _mark({**given.told, "how many numbers": given.numbers.numel()})
    message = torch.zeros(2 + ROOM, dtype=torch.float64)
    message[0], message[1] = mark, -mark
    flat = given.numbers.detach().reshape(-1).double()
    if len(flat) <= ROOM:
        message[2 : 2 + len(flat)] = flat.cpu()
    found = largest_of(message, ranks)
    if float(found[0]) != -float(found[1]):
        _explain(ranks, owner, given.told, failure)
    if failure is not None:
        raise failure
    largest = found[2 : 2 + len(flat)].to(flat.device) if len(flat) <= ROOM else largest_of(flat, ranks)
    return given, largest.reshape(given.numbers.shape)


def _mark(told: Mapping[str, Any]) -> float:
    """A number of 48 bits, which float64 holds exactly."""
    text = json.dumps(told, sort_keys=True).encode()
    return float(int.from_bytes(hashlib.blake2b(text, digest_size=6).digest(), "little"))


def _explain(ranks: Ranks, owner: str, told: Mapping[str, Any], failure: Exception | None) -> None:
    """Raise on every rank, with what differs."""
    found = ranks.gather(dict(told))
    failed = [f"rank {rank}, {owner}: {each['failure']}" for rank, each in enumerate(found) if "failure" in each]
    if failed:
        raise RanksFailed("; ".join(failed)) from failure
    for name in told:
        values = [each.get(name) for each in found]
        for rank, value in enumerate(values):
            if value != values[0]:
                raise RanksFailed(
                    f"{owner}: {name} is {values[0]!r} on rank 0 and {value!r} on rank {rank}: every rank must ask the "
                    "same question, about its part of the same vectors"
                )
    raise RanksFailed(f"{owner}: the ranks were asked different questions, {found}")
