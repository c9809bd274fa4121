"""The processes of one run, called ranks: sums over all of them, and errors that every rank raises.

A run over several processes runs the same program in each of them. Every exchange carries its name. If a rank failed,
or takes part in another exchange than the others, all ranks raise an error that names it instead of waiting for ever.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from . import errors
from .errors import InvalidInputError, RankConnectionError, RankError, first_line

TIMEOUT = 300.0
"""Seconds that a rank waits for the others."""
ROLL_CALL = 5.0
"""Seconds for which a rank that lost the others tries to find out which ranks are left, or a quarter of the time-out if
that is shorter. The store may take as long again; all of it is within the time-out."""
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""The environment variables that `torchrun` sets for its processes."""
ROOM, SHORT = 1 << 13, 1 << 16
"""The size in bytes of the first message of an exchange, and of the largest tensor that is sent whole to every rank;
longer tensors are summed by `all_reduce`.
"""
RAISED_AS_THEY_ARE = ("NonFiniteError", "NotConvergedError", "EmptySetError")
"""Errors that end a run with a status of their own: all ranks raise the same error. Other errors become RankError."""
_HEAD = struct.Struct("<96sI")  # the question, and how many bytes come with it
_FAILED = "failed"
_ALONE = contextlib.nullcontext()


class Ranks:
    """The ranks of a process group of torch.distributed, or a single process; `connect` returns those of `torchrun`.

    Parameters
    ----------
    group
        A process group with the backend gloo; None for a single process.

    Attributes
    ----------
    rank, size
        The number of this process, from 0, and how many there are.
    device
        The device for this rank: a GPU if each rank of the machine has its own, else the CPU.
    rounds, bytes
        The number of exchanges between the ranks, and the number of bytes that this rank has sent.

    Examples
    --------
    >>> alone = Ranks()
    >>> alone.rank, alone.size, alone.sum(torch.ones(2))
    (0, 1, tensor([1., 1.]))
    """

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self.rank: int = 0 if group is None else dist.get_rank(group)
        self.size: int = 1 if group is None else dist.get_world_size(group)
        self.rounds: int = 0
        self.bytes: int = 0
        self._roll_call = ROLL_CALL
        self._attempt: Any = None  # stores of torch.distributed: of these processes, and of torchrun
        self._torchrun: Any = None

    @property
    def device(self) -> torch.device:
        local, per_machine = (int(os.environ.get(name, "0")) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
        own = self.size > 1 and 0 < per_machine <= torch.cuda.device_count()
        return torch.device("cuda", local) if own else torch.device("cpu")

    def sum(self, part: Tensor) -> Tensor:
        """part_0 + part_1 + ..., the same bits on every rank; `part` itself on one rank.

        Differentiable: the loss of a run is the sum of the losses of its ranks, so the derivative with respect to a
        part is the sum of the derivatives on all ranks. Divide a loss that depends only on the sum by `size`. Every
        rank must take part in the forward and in the backward pass.
        """
        return part if self.size == 1 else _Sum.apply(part, self)  # type: ignore[return-value]

    def max(self, part: Tensor) -> Tensor:
        """The largest over the ranks, entry by entry (no NaN), without derivatives."""
        return self._reduce("max", part, torch.maximum, dist.ReduceOp.MAX)

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in the order of ranks: anything that JSON can hold. Nothing is pickled."""
        if self.size == 1:
            return [value]
        return [json.loads(each) for each in self._exchange("gather", json.dumps(value).encode())]

    def concat(self, rows: Tensor) -> Tensor | None:
        """The rows of all ranks below each other, on rank 0; None on the others."""
        if self.size == 1:
            return rows
        rows = rows.detach().contiguous()
        question = f"rows of {str(rows.dtype).removeprefix('torch.')} {tuple(rows.shape[1:])}"
        counts = [int(count) for count in self._exchange(question, str(len(rows)).encode())]
        if self.rank > 0:
            if rows.numel():
                self._call(dist.send, rows.cpu(), group_dst=0)
            return None
        whole = rows.new_empty(sum(counts), *rows.shape[1:], device="cpu")
        whole[: counts[0]] = rows
        for rank, part in list(enumerate(whole.split(counts)))[1:]:
            if part.numel():
                self._call(dist.recv, part, group_src=rank)
        return whole.to(rows.device)

    def part(self, whole: Any, count: int | None = None) -> Any:
        """This rank's rows of a tensor or array that every rank has: the inverse of `concat`.

        Parameters
        ----------
        whole
            All rows.
        count
            How many of them this rank holds; either every rank passes it or none. Default: rows are divided evenly.
        """
        if count is None:
            return whole[len(whole) * self.rank // self.size : len(whole) * (self.rank + 1) // self.size]
        counts = self.gather(count)
        if sum(counts) != len(whole):
            raise InvalidInputError(
                f"the {self.size} ranks hold {sum(counts)} rows in total, but {len(whole)} were given"
            )
        first = sum(counts[: self.rank])
        return whole[first : first + count]

    def agree(self, facts: Mapping[str, Any], remedy: str) -> None:
        """Raise on every rank unless all of them have the same facts, which JSON can hold.

        Parameters
        ----------
        facts
            Values by name.
        remedy
            What to do when they differ.
        """
        found = self.gather(dict(facts))
        for name in dict.fromkeys(name for each in found for name in each):
            values = [each.get(name) for each in found]
            other = next((rank for rank, value in enumerate(values) if value != values[0]), None)
            if other is not None:
                raise RankError(f"{name} is {values[0]!r} on rank 0 and {values[other]!r} on rank {other}: {remedy}")

    def guard(self, doing: str, *, wait: bool = True) -> contextlib.AbstractContextManager[None]:
        """If the block fails on one rank, raise on all ranks an error that names the rank and the cause.

        The other ranks raise it in their current sum or at the end of the block, where all ranks wait for each other;
        without `wait`, in the next sum.
        """
        return _ALONE if self.size == 1 else self._guard(doing, wait)

    @contextlib.contextmanager
    def _guard(self, doing: str, wait: bool) -> Iterator[None]:
        try:
            yield
            if wait:
                self._exchange("end of a guarded block")
        except Exception as error:
            if isinstance(error, RankError) or getattr(error, "on_all_ranks", False):
                raise
            text = f"{doing}: {str(error) or type(error).__name__}"[: ROOM // 8]  # JSON may take 6 bytes for a letter
            try:
                self._exchange(_FAILED, json.dumps([type(error).__name__, text]).encode())
            except Exception as announced:
                raise announced from error

    def sync(self, bad: bool, pressed: bool, seconds: float) -> tuple[bool, bool, float]:
        """Whether some rank's step was bad, whether Ctrl-C was pressed at some rank, and the longest time."""
        if self.size == 1:
            return bad, pressed, seconds
        found = self.max(torch.tensor([bad, pressed, seconds], dtype=torch.float64)).tolist()
        return bool(found[0]), bool(found[1]), found[2]

    def remember(self, fact: str) -> None:
        """Set the mark that `remembers` reads in processes that `torchrun` starts after these."""
        if self._torchrun is not None and self.rank == 0:
            self._torchrun.set(f"bilevel/fact/{fact}", "")

    def remembers(self, fact: str) -> bool:
        """Whether `torchrun` started these processes again, after others that called `remember`."""
        return self._torchrun is not None and self._torchrun.check([f"bilevel/fact/{fact}"])

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rank={self.rank}, size={self.size})"

    # --- exchanges ----------------------------------------------------------------------------------------------------

    def _reduce(self, name: str, part: Tensor, combine: Callable[[Tensor, Tensor], Tensor], operation: Any) -> Tensor:
        """Short tensors travel whole to every rank and are combined in the order of ranks."""
        if self.size == 1 or not part.numel():
            return part
        mine = part.detach().cpu().contiguous()
        question = f"{name} of {str(mine.dtype).removeprefix('torch.')} {tuple(mine.shape)}"
        if mine.nbytes <= SHORT:
            sent = self._exchange(question, mine.reshape(-1).view(torch.uint8).numpy().tobytes())
            parts = [torch.frombuffer(bytearray(each), dtype=mine.dtype).reshape(mine.shape) for each in sent]
            return reduce(combine, parts).to(part.device)
        self._exchange(question)
        total = mine.clone()
        self.bytes += mine.nbytes
        self._call(dist.all_reduce, total, operation)
        return total.to(part.device)

    def _exchange(self, question: str, content: bytes = b"") -> list[bytes]:
        """The messages of all ranks, after a check that all ranks take part in the same exchange.

        The first message always has the same length: gloo ends the process, or returns wrong numbers, if lengths
        differ. The rest follows in a second message.
        """
        self.bytes += len(content)
        messages = self._all_gather(_HEAD.pack(question.encode(), len(content)) + content[:ROOM], _HEAD.size + ROOM)
        heads = [_HEAD.unpack_from(message) for message in messages]
        operations = [name.rstrip(b"\0").decode(errors="replace") for name, _ in heads]
        lengths = [length for _, length in heads]
        contents = [message[_HEAD.size : _HEAD.size + n] for message, n in zip(messages, lengths, strict=True)]
        self._check(operations, contents)
        if max(lengths) > ROOM:
            rest = self._all_gather(content[ROOM:], max(lengths) - ROOM)
            contents = [(first + more)[:n] for first, more, n in zip(contents, rest, lengths, strict=True)]
        return contents

    def _all_gather(self, message: bytes, length: int) -> list[bytes]:
        self.rounds += 1
        mine = torch.frombuffer(bytearray(message.ljust(length, b"\0")), dtype=torch.uint8)
        messages = [torch.empty_like(mine) for _ in range(self.size)]
        self._call(dist.all_gather, messages, mine)
        return [each.numpy().tobytes() for each in messages]

    def _check(self, operations: list[str], contents: list[bytes]) -> None:
        """Raise on every rank if some rank failed or takes part in another exchange."""
        failed = {rank: json.loads(contents[rank]) for rank, each in enumerate(operations) if each == _FAILED}
        other = next((rank for rank, each in enumerate(operations) if each != operations[0]), None)
        if failed:
            kinds, texts = ({each[i] for each in failed.values()} for i in (0, 1))
            everywhere = len(failed) == self.size and len(texts) == 1
            text = "; ".join(f"rank {rank}, {each[1]}" for rank, each in failed.items())
            kind = kinds.pop() if len(kinds) == 1 else ""
            known = getattr(errors, kind) if kind in RAISED_AS_THEY_ARE else RankError
            error = known(f"every rank, {texts.pop()}" if everywhere else text)
        elif other is not None:
            error = RankError(
                f"rank 0 asks for {operations[0]!r}, and rank {other} for {operations[other]!r}: every rank must ask "
                "the same questions, in the same order"
            )
        else:
            return
        error.on_all_ranks = True  # type: ignore[attr-defined]
        raise error

    def _call(self, communicate: Callable[..., Any], *arguments: Any, **settings: Any) -> None:
        """Convert errors of torch.distributed into `RankError`, with the cause if the rank that ended has stored it."""
        try:
            communicate(*arguments, group=self._group, **settings)
        except (RuntimeError, OSError) as error:
            raise RankError(self._cause(first_line(error))) from error

    def _cause(self, error: str) -> str:
        """Why another rank has ended, if it could store the reason; else which ranks do not answer.

        The store may live in the process of rank 0 and blocks for ever if that is stopped, so that a thread reads it.
        """
        missing, answers, ended = set(range(self.size)) - {self.rank}, [], threading.Event()
        keepers = {0} if self._torchrun is None else set(missing)
        if self._attempt is not None:
            threading.Thread(target=self._call_roll, args=(missing, keepers, answers, ended), daemon=True).start()
            if not ended.wait(2 * self._roll_call):
                missing &= keepers
        if answers:
            return answers[0]
        others = " or ".join(f"rank {rank}" for rank in sorted(missing)) or "the connection to the others"
        return (
            f"rank {self.rank} lost {others} ({error}): a rank ended or hangs, see its own message; a run "
            "that writes a checkpoint can be resumed"
        )

    def _call_roll(self, missing: set[int], keepers: set[int], answers: list[str], ended: threading.Event) -> None:
        """Remove the ranks that answer from the missing ones, until a rank has stored why it ended."""
        ends = time.monotonic() + self._roll_call
        try:
            self._attempt.set(f"lost/{self.rank}", "")
            while missing and not answers and time.monotonic() < ends:
                if self._attempt.check(["cause"]):
                    answers.append(self._attempt.get("cause").decode())
                missing -= {rank for rank in missing if self._attempt.check([f"lost/{rank}"])}
                time.sleep(0.05)
        except (RuntimeError, OSError):  # the store is gone
            missing &= keepers
        ended.set()

    def _leave(self, error: BaseException) -> None:
        """Store why this rank ends, for the others, which may be waiting in a sum."""
        if not getattr(error, "on_all_ranks", False) and not isinstance(error, RankError):
            with contextlib.suppress(RuntimeError, OSError):
                self._attempt.set("cause", f"rank {self.rank} ended: {type(error).__name__}: {first_line(error)}")


class _Sum(torch.autograd.Function):
    """The sum over ranks, which is its own transpose."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks._reduce("sum", part, torch.add, dist.ReduceOp.SUM)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return ctx.ranks.sum(gradient), None


@contextlib.contextmanager
def connect(timeout: float = TIMEOUT) -> Iterator[Ranks]:
    """Connect to the ranks that `torchrun` started or to those of an existing process group; otherwise use one process.

    For trusted networks only: the ports of torchrun and torch.distributed have neither passwords nor encryption.

    Parameters
    ----------
    timeout
        Seconds to wait for the others, at the start and in every sum, before an error names those that are missing.

    Yields
    ------
    Ranks
        The ranks, as seen from this process.

    Examples
    --------
    Without `torchrun` there is one rank:

    >>> with connect() as ranks:
    ...     ranks.size
    1
    """
    if not timeout > 0:
        raise InvalidInputError(f"timeout must be a positive number of seconds, got {timeout!r}")
    wait = timedelta(seconds=timeout)
    if dist.is_available() and dist.is_initialized():
        group: Any = dist.new_group(backend="gloo", timeout=wait)
        try:
            yield Ranks(group)
        finally:
            dist.destroy_process_group(group)
    elif not started_by_torchrun():
        yield Ranks()
    else:
        ranks = _join(wait)
        try:
            yield ranks
        except BaseException as error:
            ranks._leave(error)
            raise
        finally:
            gc.collect()  # what still refers to the group would end it while Python ends
            dist.destroy_process_group()


def _join(wait: timedelta) -> Ranks:
    """Connect to the other ranks at the address that torchrun has set."""
    roll_call = min(ROLL_CALL, wait.total_seconds() / 4)
    sums = wait - timedelta(seconds=2 * roll_call)
    try:
        store, rank, size = next(dist.rendezvous("env://", timeout=wait))  # type: ignore[attr-defined]
        attempt = dist.PrefixStore(_attempt_name(store, rank, size, wait), store)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=attempt, rank=rank, world_size=size, timeout=sums)
    except (RuntimeError, ValueError, OSError) as error:
        rank, size, host, port = (os.environ[name] for name in VARIABLES)
        raise RankConnectionError(
            f"rank {rank} of {size} could not connect to the others at {host}:{port} within {wait.total_seconds():g} s "
            f"({first_line(error)}): start as many processes as WORLD_SIZE says, each with its own RANK, and an "
            "address and port that all of them can reach"
        ) from error
    ranks = Ranks(dist.group.WORLD)
    ranks._attempt, ranks._roll_call = attempt, roll_call
    ranks._torchrun = store if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True) else None
    return ranks


def _attempt_name(store: Any, rank: int, size: int, wait: timedelta) -> str:
    """A name that the processes of this attempt share, and no earlier ones.

    The store of torchrun outlives processes that it starts again, with the addresses of those that ended, and
    TORCHELASTIC_RESTART_COUNT differs between machines. So every process leaves a number of its own there, and the name
    is made of all of them, once every rank has seen the same ones.
    """
    numbers = [f"bilevel/process/{each}" for each in range(size)]
    store.set(numbers[rank], uuid.uuid4().hex)
    ends = time.monotonic() + wait.total_seconds()
    while time.monotonic() < ends:
        name = "bilevel/" + hashlib.blake2b(b" ".join(store.multi_get(numbers)), digest_size=16).hexdigest()
        store.set(f"{name}/{rank}", "seen")
        if store.check([f"{name}/{each}" for each in range(size)]):
            return name
        time.sleep(0.02)
    raise TimeoutError("not all ranks connected")


def started_by_torchrun() -> bool:
    """Whether this process is one of several; raise if only some of the variables of `torchrun` are set."""
    given = [name for name in VARIABLES if os.environ.get(name)]
    if given and len(given) < len(VARIABLES) and "WORLD_SIZE" in given:
        missing = ", ".join(name for name in VARIABLES if name not in given)
        raise InvalidInputError(f"{', '.join(given)} are set and {missing} are not: use torchrun, or unset them")
    if len(given) < len(VARIABLES):
        return False
    numbers = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
    if not all(map(str.isdigit, numbers.values())) or int(numbers["RANK"]) >= int(numbers["WORLD_SIZE"]):
        values = ", ".join(f"{name}={value}" for name, value in numbers.items())
        raise InvalidInputError(
            f"{values}: whole numbers are needed, and RANK is 0 to WORLD_SIZE - 1; use torchrun, or unset them"
        )
    return True
