"""Lines: a connection from each rank to each other, for messages that are shorter than the wait for them.

gloo hands a message from thread to thread. Where every core computes, each of them waits for a core, and while one
waits another spins (torch 2.13): a sum of some hundred numbers takes one to three milliseconds. A line is a TCP
connection that the thread in need of a message reads itself, in less than a tenth of that.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from ..errors import BilevelError

LONGEST = 1 << 16
"""Bytes of a message at the most: a connection holds as many while nobody reads."""
MOST = 32
"""Ranks at the most: each has a line to each other."""
PATIENCE = 5.0
"""Seconds in which lines must be there: where they are not, ranks do without."""

_HEAD = struct.Struct("<QQ")
"""Before a message: its number on this line, and its bytes."""
_HELLO = struct.Struct("<16sI")
"""The first bytes on a line: what only ranks of this run know, and which rank it is."""


class OutOfStep(BilevelError, RuntimeError):
    """Ranks send each other different things."""


class Lines:
    """Lines from this rank to the others.

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
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * LONGEST)
            line.settimeout(timeout)

    def send(self, message: memoryview) -> None:
        """To every other rank, which need not be waiting for it."""
        self._sent += 1
        whole = _HEAD.pack(self._sent, message.nbytes) + bytes(message)
        for line in self._others.values():
            line.sendall(whole)

    def receive(self, into: list[memoryview]) -> None:
        """into[r] becomes the next message of rank r, for all r but this one; all are of the same length."""
        self._received += 1
        for other, line in self._others.items():
            number, length = _HEAD.unpack(_read(line, bytearray(_HEAD.size)))
            if (number, length) != (self._received, into[other].nbytes):
                raise OutOfStep(
                    f"message {self._received} of rank {self._rank} has {into[other].nbytes} bytes, and message "
                    f"{number} of rank {other} has {length}: every rank must ask the same questions, in the same order"
                )
            _read(line, into[other])

    def close(self) -> None:
        for line in self._others.values():
            line.close()


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
    if size > MOST:
        return None
    others: dict[int, socket.socket] = {}
    door = _door()
    try:
        address = None if door is None else door.getsockname()[:2]
        told = gather([secrets.token_hex(16), address])
        (secret, _), addresses = told[0], [each[1] for each in told]
        complete = door is not None and None not in addresses
        if complete:
            others = _meet(rank, addresses, bytes.fromhex(secret), door)  # type: ignore[arg-type]
        if all(gather(complete and len(others) == size - 1)):
            return Lines(rank, {other: others[other] for other in sorted(others)}, timeout)
        for line in others.values():
            line.close()
        return None
    finally:
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


def _meet(rank: int, addresses: list[Any], secret: bytes, door: socket.socket) -> dict[int, socket.socket]:
    """Call the ranks before this one, and answer those after it; without those that were not there in time."""
    until, found = time.monotonic() + PATIENCE, {}
    try:
        for other in range(rank):
            found[other] = socket.create_connection(tuple(addresses[other]), timeout=PATIENCE)
            found[other].sendall(_HELLO.pack(secret, rank))
        while len(found) < len(addresses) - 1:
            door.settimeout(max(until - time.monotonic(), 1e-3))
            line, _ = door.accept()
            other = _caller(line, secret)
            if other is None:
                line.close()
            else:
                found[other] = line
    except OSError:
        pass
    return found


def _caller(line: socket.socket, secret: bytes) -> int | None:
    """Which rank calls; None for anybody else."""
    line.settimeout(PATIENCE)
    try:
        known, other = _HELLO.unpack(_read(line, bytearray(_HELLO.size)))
    except OSError:
        return None
    return other if secrets.compare_digest(known, secret) else None


def _read(line: socket.socket, into: Any) -> Any:
    """Fill `into`, whose other end must be alive."""
    rest = memoryview(into)
    while rest:
        got = line.recv_into(rest)
        if not got:
            raise ConnectionResetError("connection closed by peer")
        rest = rest[got:]
    return into
