"""Lines: a connection from each rank to each other, for messages that are shorter than the wait for them.

gloo hands a message from thread to thread. Where every core computes, each of them waits for a core, and while one
waits another spins (torch 2.13): a sum of some hundred numbers takes a millisecond or more. A line is a TCP connection
that the thread in need of a message reads itself.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
import struct
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from ..errors import BilevelError

LONGEST = 1 << 16
"""Bytes of a message at the most: a connection holds as many while nobody reads."""
MOST = 32
"""Ranks at the most: each has a line to each other."""
PATIENCE, GREETING = 5.0, 1.0
"""Seconds in which lines must be there (where they are not, ranks do without), and in which a caller must say who."""
FOREVER = 1e6
"""Seconds that a socket waits at the most."""

_HEAD = struct.Struct("<QQ40s")
"""Before a message: its number on this line, the bytes that it has or announces, and what is asked of them."""
_HELLO = struct.Struct("<16sI")
"""The first bytes on a line: what only ranks of this run know, and which rank it is."""


class OutOfStep(BilevelError, RuntimeError):
    """Ranks send each other different things."""


class Head(NamedTuple):
    """What is said before a message."""

    number: int
    length: int
    asked: bytes

    def __str__(self) -> str:
        asked = self.asked.rstrip(b"\0").decode("ascii", "replace")
        return f"{asked} of {self.length} bytes, number {self.number}"


class Lines:
    """Lines from this rank to the others, which hear of each other's end at once.

    Parameters
    ----------
    rank
        Of this process.
    others
        The connection to each other rank.
    timeout
        Seconds to wait for a message.
    """

    def __init__(self, rank: int, others: dict[int, socket.socket], timeout: float) -> None:
        self._rank, self._others, self._sent, self._received = rank, others, 0, 0
        for line in others.values():
            line.settimeout(min(timeout, FOREVER))

    def send(self, asked: str, length: int, message: memoryview | None) -> Head:
        """A message to every other rank, which need not be waiting for it, or without one the announcement of `length`
        bytes that go another way; what is returned is for `receive`.
        """
        self._sent += 1
        head = Head(self._sent, length, asked.encode()[:40].ljust(40, b"\0"))
        whole = _HEAD.pack(*head) + bytes(message or b"")
        with self._unbroken():
            for line in self._others.values():
                line.sendall(whole)
        return head

    def receive(self, head: Head, into: list[memoryview] | None) -> None:
        """into[r] becomes what rank r sent, for all r but this one, when this one sent what has this head."""
        self._received += 1
        with self._unbroken():
            if head.number != self._received:
                raise OutOfStep(
                    f"rank {self._rank} waits for sum {head.number}, and sum {self._received}, begun before it, has "
                    "not ended: end sums in the order in which they were begun"
                )
            for other, line in self._others.items():
                found = Head(*_HEAD.unpack(_read(line, bytearray(_HEAD.size))))
                if found != head:
                    raise OutOfStep(
                        f"rank {self._rank} asks for {head}, and rank {other} for {found}: every rank must ask the "
                        "same questions, in the same order"
                    )
                if into is not None:
                    _read(line, into[other])

    @contextmanager
    def _unbroken(self) -> Iterator[None]:
        """What breaks off within a message breaks off for good: the next would begin in the middle of it.

        Where ranks differ, all of them read what was sent, and see for themselves what differs.
        """
        try:
            yield
        except OutOfStep:
            self._take_leave()
            raise
        except BaseException:
            self.close()
            raise

    def _take_leave(self) -> None:
        """Send nothing more, and read what comes: a connection that is closed with something unread forgets what it has
        sent.
        """
        for line in self._others.values():
            with suppress(OSError):
                line.shutdown(socket.SHUT_WR)
                line.settimeout(GREETING)
                while line.recv(LONGEST):
                    continue
        self.close()

    def close(self) -> None:
        for line in self._others.values():
            line.close()


# --- how they come about ----------------------------------------------------------------------------------------------


def open_lines(rank: int, size: int, gather: Callable[[Any], list[Any]], timeout: float) -> Lines | None:
    """Lines between all ranks, or None on all of them where some cannot reach each other.

    Parameters
    ----------
    rank, size
        Of this process, and how many there are.
    gather
        What each rank gives, in the order of ranks.
    timeout
        Seconds to wait for a message.
    """
    if not 1 < size <= MOST:
        return None
    found: dict[int, socket.socket] = {}
    door, complete = _door(), False
    try:
        address = None if door is None else door.getsockname()[:2]
        told = gather([secrets.token_hex(16), socket.gethostname(), address])
        addresses = [each[2] for each in told]
        if door is not None and _reachable(addresses, hosts={each[1] for each in told}):
            found = _meet(rank, addresses, bytes.fromhex(told[0][0]), door)
        complete = all(gather(len(found) == size - 1))
        if rank == 0 and not complete:
            warnings.warn(
                f"the {size} ranks do not all reach each other by TCP connections of their own (a firewall?): sums go "
                "by gloo, and take longer",
                stacklevel=3,
            )
        return Lines(rank, dict(sorted(found.items())), timeout) if complete else None
    finally:
        for each in () if complete else found.values():
            each.close()
        if door is not None:
            door.close()


def _door() -> socket.socket | None:
    """A socket that other ranks reach where they reach MASTER_ADDR; None where there is no such network."""
    try:
        family, _, _, _, master = socket.getaddrinfo(os.environ["MASTER_ADDR"], 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as way:
            way.connect(master)  # sends nothing: it tells by which address this machine gets there
            own = way.getsockname()[0]
        return socket.create_server((own, 0), family=family, backlog=MOST)
    except (KeyError, OSError):
        return None


def _reachable(addresses: list[Any], hosts: set[str]) -> bool:
    """Whether all have an address, and none of several machines an address that means the caller's own."""
    if None in addresses:
        return False
    return len(hosts) == 1 or not any(ipaddress.ip_address(each[0].partition("%")[0]).is_loopback for each in addresses)


def _meet(rank: int, addresses: list[Any], secret: bytes, door: socket.socket) -> dict[int, socket.socket]:
    """Call the ranks before this one, and answer those after it; without those that were not there in time."""
    until, found = time.monotonic() + PATIENCE, dict[int, socket.socket]()
    with suppress(OSError):
        for other in range(rank):
            found[other] = socket.create_connection(tuple(addresses[other]), timeout=_left(until))
            _prepare(found[other])
            found[other].sendall(_HELLO.pack(secret, rank))
        while len(found) < len(addresses) - 1 and time.monotonic() < until:
            door.settimeout(_left(until))
            line, _ = door.accept()
            other = _caller(line, secret)
            if other in range(rank + 1, len(addresses)):
                _prepare(line)
                found[other] = line
            else:
                line.close()
    return found


def _prepare(line: socket.socket) -> None:
    """Messages leave at once, and fit in whole."""
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * LONGEST)
    if line.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < 2 * LONGEST:
        raise OSError(f"this system does not hold {LONGEST} bytes of a connection")


def _caller(line: socket.socket, secret: bytes) -> int:
    """Which rank calls; -1 for anybody else."""
    try:
        known, other = _HELLO.unpack(_read(line, bytearray(_HELLO.size), until=time.monotonic() + GREETING))
    except OSError:
        return -1
    return other if secrets.compare_digest(known, secret) else -1


def _read(line: socket.socket, into: Any, until: float | None = None) -> Any:
    """Fill `into`; the other end must be alive."""
    rest = memoryview(into)
    while rest:
        if until is not None:
            line.settimeout(_left(until))
        got = line.recv_into(rest)
        if not got:
            raise ConnectionResetError("connection closed by peer")
        rest = rest[got:]
    return into


def _left(until: float) -> float:
    return max(until - time.monotonic(), 1e-3)
