"""Lines between ranks: messages arrive, and whoever is not of the run, or not in step with it, is told."""

import os
import socket
import threading
import time

import pytest
import torch
from tests.distributed.ranks import on_ranks

from bilevel.distributed import RanksFailed, lines
from bilevel.distributed.lines import LONGEST, Lines, open_lines


def summed(ranks, size):
    """Sums of every kind, by lines and without them, and which way each went."""
    found, gathered, there = [], [], ranks._lines is not None
    for own in (ranks._lines, None):
        ranks._lines = own
        for dtype in (torch.float64, torch.float32, torch.int64, torch.bfloat16):
            for shape in ((), (3,), (2, 0), (4, 5)):
                tensor = (torch.arange(20)[: torch.Size(shape).numel()].reshape(shape) * (ranks.rank + 1)).to(dtype)
                found.append(ranks.all_sum(tensor.clone()).tolist())
                gathered.append(ranks.all_max(tensor).tolist())
    half = len(found) // 2
    assert found[:half] == found[half:]
    assert gathered[:half] == gathered[half:]
    return there, found[:half], gathered[:half]


@pytest.mark.parametrize("size", [2, 3])
def test_sums_by_lines_are_those_of_gloo(size):
    for there, sums, largest in on_ranks(summed, size, size):
        assert there
        assert sums[3] == [[k * size * (size + 1) / 2 for k in range(j, j + 5)] for j in (0, 5, 10, 15)]
        assert largest[3] == [[k * size for k in range(j, j + 5)] for j in (0, 5, 10, 15)]


def begun(ranks):
    """A sum that is begun comes while its ranks do something else; several of the longest kind wait in the line."""
    tensors = [torch.full((LONGEST // 8,), float(k + ranks.rank), dtype=torch.float64) for k in range(2)]
    ends = [ranks.begin_sum(tensor) for tensor in tensors]
    return [float(end()[0]) for end in ends]


def test_sums_that_are_begun_end_in_order():
    for found in on_ranks(begun, 2):
        assert found == [1.0, 3.0]


def out_of_step(ranks):
    try:
        ranks.all_sum(torch.zeros(3 + ranks.rank))
    except RanksFailed as error:
        return str(error)


def test_sums_of_different_lengths_are_told_on_every_rank():
    one, two = on_ranks(out_of_step, 2)
    assert "of rank 0 has 12 bytes" in one
    assert "of rank 1 has 16" in one
    assert "of rank 1 has 16 bytes" in two
    assert "in the same order" in two


def leaves(ranks):
    if ranks.rank == 1:
        ranks._lines.close()
        return None
    began = time.monotonic()
    try:
        ranks.total(1.0)
    except RanksFailed as error:
        return str(error), time.monotonic() - began


def test_a_rank_that_is_gone_is_noticed_at_once():
    (told, seconds), _ = on_ranks(leaves, 2)
    assert "rank 0 lost the other ranks" in told
    assert seconds < 10


def unreachable(ranks):
    """Rank 1 tells an address at which nobody answers."""
    lines.PATIENCE = 1.0
    gather = ranks.gather
    if ranks.rank == 0:

        def gather(value, whole=ranks.gather):
            hidden = isinstance(value, list) and value[1] is not None
            return whole([value[0], ["127.0.0.1", 1]] if hidden else value)

    return open_lines(ranks.rank, ranks.size, gather, 60.0) is None


def test_without_lines_on_one_rank_there_are_none():
    assert on_ranks(unreachable, 2) == [True, True]


def no_network(ranks):
    if ranks.rank == 1:
        os.environ["MASTER_ADDR"] = "no.such.host.invalid"
    return open_lines(ranks.rank, ranks.size, ranks.gather, 60.0) is None, ranks.total(1.0)


def test_without_an_address_on_one_rank_there_are_none():
    assert on_ranks(no_network, 2) == [[True, [2.0]]] * 2


def test_a_caller_that_is_not_of_the_run_is_sent_away():
    secret = bytes(range(16))
    with socket.create_server(("127.0.0.1", 0)) as door:
        address = door.getsockname()
        strangers = [socket.create_connection(address) for _ in range(2)]
        strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n ....")
        strangers[1].close()
        caller = threading.Thread(target=lambda: found.update(one=lines._meet(1, [address, None], secret, door)))
        found = {}
        caller.start()
        met = lines._meet(0, [address, None], secret, door)
        caller.join()
    strangers[0].close()
    assert list(met) == [1]
    two = [Lines(rank, {1 - rank: line}, 5.0) for rank, line in ((0, met[1]), (1, found["one"][0]))]
    room = [bytearray(b"...."), bytearray(b"....")]
    two[0].send(memoryview(b"abcd"))
    two[1].receive([memoryview(each) for each in room])
    assert room[0] == b"abcd"
    for each in two:
        each.close()
