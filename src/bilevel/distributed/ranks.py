"""The ranks of a run: who is there, sums over all of them, and errors that every rank hears of.

A run over several processes is one program in each of them. They meet in `all_sum` alone, which is counted, and check
with `agree` and `together` that they are doing the same thing: a rank that failed by itself would leave the others
waiting until the time-out.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import BilevelError, InvalidInput
from .lines import LONGEST, Lines, OutOfStep, open_lines

TIMEOUT = 300.0
"""Seconds that a rank waits for the others."""
PORT, PATIENCE, RETRY = "bilevel/port of this attempt", 5.0, 0.1
"""Under which name rank 0 tells its port, and the seconds that others wait for an answer there and between attempts."""
SHORT, SHORT_BY_LINES = 1 << 16, 1 << 20
"""Bytes that all ranks together put into a sum and still send each other whole, by gloo and by lines."""
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What `torchrun` tells its processes."""

_lines: Lines | None = None
"""Between the ranks of the default group, while `connect` holds it."""


class RanksFailed(BilevelError, RuntimeError):
    """Some rank cannot go on, or the ranks do not do the same thing; every rank raises it, with the cause.

    Examples
    --------
    >>> raise RanksFailed("rank 1, reading its rows: there is no file rows-1.parquet")
    Traceback (most recent call last):
    bilevel.distributed.ranks.RanksFailed: rank 1, reading its rows: there is no file rows-1.parquet
    """


class Unreachable(RanksFailed, ConnectionError):
    """The ranks did not find each other within the time-out.

    Examples
    --------
    >>> issubclass(Unreachable, ConnectionError)
    True
    """


class Ranks:
    """A process group of torch.distributed, or this process alone.

    Parameters
    ----------
    group
        A process group; None for the default one, and for one process where there is none.

    Attributes
    ----------
    rank, size
        The number of this process, from 0, and how many there are.
    rounds, bytes
        How often the ranks have met, and how many bytes each has put in.

    Examples
    --------
    >>> alone = Ranks()
    >>> alone.rank, alone.size, alone.all_sum(torch.ones(2))
    (0, 1, tensor([1., 1.]))
    """

    def __init__(self, group: Any = None) -> None:
        here = dist.is_available() and dist.is_initialized()
        if not here and started_by_torchrun() and int(os.environ["WORLD_SIZE"]) > 1:
            raise InvalidInput(
                f"torchrun started {os.environ['WORLD_SIZE']} processes that have not met, and each would do all the "
                "work: write `with connect() as ranks:` around it, and pass ranks"
            )
        self.group = group
        self.rank = dist.get_rank(group) if here else 0
        self.size = dist.get_world_size(group) if here else 1
        self._backend = dist.get_backend(group) if here else ""
        self.rounds, self.bytes = 0, 0
        self._memory: Any = None

    def remember(self, what: str) -> None:
        """Tell the processes that `torchrun` may start after these: see `remembers`."""
        if self._memory is not None and self.rank == 0:
            self._memory.set(f"bilevel/{what}", "yes")

    def remembers(self, what: str) -> bool:
        """Whether `torchrun` started these processes anew, after others that called `remember`."""
        anew = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
        return anew and self._memory is not None and self._memory.check([f"bilevel/{what}"])

    @property
    def device(self) -> torch.device:
        """Where tensors must be to be summed: this rank's GPU with nccl, else the processor."""
        return torch.device("cuda", torch.cuda.current_device()) if self._backend == "nccl" else torch.device("cpu")

    def all_sum(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks, written to `tensor` (contiguous) and returned; the same bits on every rank."""
        return self.begin_sum(tensor)()

    def begin_sum(self, tensor: Tensor) -> Callable[[], Tensor]:
        """`all_sum` while this rank goes on: it ends when what is returned is called, in the order of beginning."""
        return self._begin(tensor, dist.ReduceOp.SUM)

    def all_max(self, tensor: Tensor) -> Tensor:
        """The largest over the ranks, entry by entry, written to `tensor` (contiguous, no NaN) and returned."""
        return self._begin(tensor, dist.ReduceOp.MAX)()

    def _begin(self, tensor: Tensor, by: Any) -> Callable[[], Tensor]:
        """Reduce over ranks; short tensors by sending them whole to everybody, and in the order of ranks."""
        size = tensor.numel() * tensor.itemsize
        self.rounds += 1
        self.bytes += size
        if self.size == 1:
            return lambda: tensor
        lines = _lines if self.group is None and tensor.device.type == "cpu" else None
        question = "max" if by == dist.ReduceOp.MAX else "sum"
        asked = f"{question} {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
        with self._waiting():
            if lines is not None and size <= LONGEST and self.size * size <= SHORT_BY_LINES:
                parts = self._room(tensor)
                parts[self.rank] = tensor.detach()
                into = [_bytes(part) for part in parts]
                head = lines.send(asked, size, into[self.rank])
                return self._ending(lambda: lines.receive(head, into), tensor, parts, by)
            if lines is not None:  # those that ask for something else are told before gloo waits for them
                lines.receive(lines.send(asked, size, None), None)
            if self._backend == "gloo" and (self.size == 2 or self.size * size < SHORT):
                parts = self._room(tensor)  # gloo's all_reduce cuts tensors into pieces and waits for each
                work: Any = dist.all_gather(list(parts), tensor, group=self.group, async_op=True)
                return self._ending(work.wait, tensor, parts, by)
            work = dist.all_reduce(tensor, by, group=self.group, async_op=True)
            return self._ending(work.wait, tensor, None, by)

    def _room(self, tensor: Tensor) -> Tensor:
        """For the tensor of each rank."""
        return tensor.new_empty(self.size, *tensor.shape, requires_grad=False)

    def _ending(self, arrive: Callable[[], Any], tensor: Tensor, parts: Tensor | None, by: Any) -> Callable[[], Tensor]:
        def end() -> Tensor:
            with self._waiting():
                arrive()
            if parts is not None:
                first, *others = parts
                for part in others:
                    first = torch.maximum(first, part) if by == dist.ReduceOp.MAX else first + part
                tensor.detach().copy_(first)
            return tensor

        return end

    def total(self, *numbers: float) -> list[float]:
        """Sums of a few numbers, in one round and in float64."""
        return self.all_sum(torch.tensor(numbers, dtype=torch.float64, device=self.device)).tolist()

    def gather(self, value: Any) -> list[Any]:
        """What each rank gives, in the order of ranks: anything that JSON can hold (nothing is pickled)."""
        if self.size == 1:
            return [value]
        text = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8, device=self.device)
        lengths = torch.zeros(self.size, dtype=torch.int64, device=self.device)
        lengths[self.rank] = len(text)
        self.all_sum(lengths)
        texts = torch.zeros(self.size, int(lengths.max()), dtype=torch.uint8, device=self.device)
        texts[self.rank, : len(text)] = text
        self.all_sum(texts)
        parts = zip(texts.cpu(), lengths.tolist(), strict=True)
        return [json.loads(bytes(part[:length].tolist())) for part, length in parts]

    def agree(self, what: Mapping[str, Any], remedy: str) -> None:
        """Raise on every rank unless all of them have the same values, which JSON can hold.

        Parameters
        ----------
        what
            Values by what they are called.
        remedy
            What to do when they differ.
        """
        found = self.gather(dict(what))
        for name in dict.fromkeys(name for each in found for name in each):
            values = [each.get(name) for each in found]
            other = next((rank for rank, value in enumerate(values) if value != values[0]), None)
            if other is not None:
                raise RanksFailed(f"{name} is {values[0]!r} on rank 0 and {values[other]!r} on rank {other}: {remedy}")

    @contextmanager
    def together(self, doing: str) -> Iterator[None]:
        """Work that every rank does by itself: when it fails on one, all raise an error that names rank and cause.

        The ranks meet at the end of it; within it they must not.
        """
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        told = self.gather("" if failure is None else str(failure) or type(failure).__name__)
        if self.size == 1 and failure is not None:
            raise failure
        failed = [f"rank {rank}, {doing}: {text}" for rank, text in enumerate(told) if text]
        if len(failed) > 1 and len(set(told)) == 1:
            failed = [f"every rank, {doing}: {told[0]}"]
        if failed:
            raise RanksFailed("; ".join(failed)) from failure

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Errors of torch.distributed as ours."""
        try:
            yield
        except OutOfStep as error:
            raise RanksFailed(str(error)) from error
        except (RuntimeError, OSError) as error:
            raise RanksFailed(
                f"rank {self.rank} lost the other ranks ({first_line(error)}): one of them ended or hangs; its own "
                "message tells why, and a run that writes a checkpoint can be resumed"
            ) from error

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rank={self.rank}, size={self.size})"


class connect:
    """Join the other ranks that `torchrun` started; as a context, leave them at its end. Gives `Ranks`.

    Parameters
    ----------
    backend
        "gloo" (processors), "nccl" (GPUs); default: nccl where every rank can have a GPU of its own, else gloo.
    timeout
        Seconds to wait for the others, at the start and in every sum.

    Examples
    --------
    Without `torchrun` there is one rank:

    >>> with connect() as ranks:
    ...     ranks.size
    1
    """

    def __init__(self, backend: str | None = None, *, timeout: float = TIMEOUT) -> None:
        if not timeout > 0:
            raise InvalidInput(f"timeout must be a positive number of seconds, got {timeout!r}")
        self._timeout = timedelta(seconds=timeout)
        self._backend = backend or _backend()
        self._mine = False

    def __enter__(self) -> Ranks:
        if not started_by_torchrun() or dist.is_initialized():
            return Ranks()
        if self._backend == "nccl":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        try:
            self._store, rank, size, memory = _meeting_place(self._timeout)
            dist.init_process_group(self._backend, store=self._store, rank=rank, world_size=size, timeout=self._timeout)
        except (RuntimeError, ValueError, OSError) as error:
            raise Unreachable(
                f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} did not meet the others at {where} within "
                f"{self._timeout.total_seconds():g} s ({first_line(error)}): start as many processes as WORLD_SIZE "
                "says, each with a RANK of its own, with an address and port that all of them reach"
            ) from error
        self._mine = True
        ranks = Ranks()
        ranks._memory = memory
        if self._backend == "gloo":
            try:
                _hold(open_lines(rank, size, ranks.gather, self._timeout.total_seconds()))
            except BaseException:
                self.__exit__()
                raise
        return ranks

    def __exit__(self, *_: Any) -> None:
        if self._mine:
            _hold(None)
            gc.collect()  # what still refers to the group, such as a parallel network, would end it while Python ends
            dist.destroy_process_group()


def _hold(lines: Lines | None) -> None:
    """These lines from now on, and those before no more."""
    global _lines
    if _lines is not None:
        _lines.close()
    _lines = lines


def started_by_torchrun() -> bool:
    """Whether this process is one of several; half of what `torchrun` tells is an error."""
    given = [name for name in VARIABLES if os.environ.get(name)]
    if given and len(given) < len(VARIABLES) and "WORLD_SIZE" in given:
        missing = ", ".join(name for name in VARIABLES if name not in given)
        raise InvalidInput(f"{', '.join(given)} are set and {missing} are not: use torchrun, or unset them")
    if len(given) < len(VARIABLES):
        return False
    told = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
    if not all(value.isdigit() for value in told.values()) or int(told["RANK"]) >= int(told["WORLD_SIZE"]):
        raise InvalidInput(
            f"{', '.join(f'{name}={value}' for name, value in told.items())}: whole numbers are needed, and RANK is 0 "
            "to WORLD_SIZE - 1; use torchrun, or unset them"
        )
    return True


def _meeting_place(timeout: timedelta) -> tuple[dist.Store, int, int, Any]:  # type: ignore[attr-defined]
    """Where ranks tell each other their addresses, the rank of this process, how many there are, and the store of
    torchrun, if there is one.

    The store of torchrun (torch 2.13) outlives processes that it starts again, with the addresses of those that ended:
    a rank that reads one of them waits in vain. Rank 0 opens a store for this attempt and tells torchrun's its port;
    where nobody answers, the port is still that of an attempt before.
    """
    host, until = os.environ["MASTER_ADDR"], time.monotonic() + timeout.total_seconds()
    by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    if by_agent or os.environ["RANK"] != "0":
        _wait_for_answer(host, int(os.environ["MASTER_PORT"]), until)  # torch itself waits for longer than it is told
    shared, rank, size = next(dist.rendezvous("env://", timeout=timeout))  # type: ignore[attr-defined]
    if not by_agent:
        return shared, rank, size, None
    if rank == 0:
        own = dist.TCPStore(host, 0, size, is_master=True, timeout=timeout, wait_for_workers=False)  # type: ignore[attr-defined]
        shared.set(PORT, str(own.port))
        return own, rank, size, shared
    while True:
        port = int(shared.get(PORT))  # once more each time: it may be that of processes that ended
        try:
            socket.create_connection((host, port), timeout=PATIENCE).close()
            return dist.TCPStore(host, port, size, is_master=False, timeout=timeout), rank, size, shared  # type: ignore[attr-defined]
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(RETRY)


def _wait_for_answer(host: str, port: int, until: float) -> None:
    """Until somebody listens there."""
    while True:
        try:
            socket.create_connection((host, port), timeout=PATIENCE).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(RETRY)


def _backend() -> str:
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return "nccl" if torch.cuda.is_available() and torch.cuda.device_count() >= per_node else "gloo"


def _bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def first_line(error: BaseException) -> str:
    """The first line of what an error says, or what it is."""
    return (str(error).splitlines() or [type(error).__name__])[0]
