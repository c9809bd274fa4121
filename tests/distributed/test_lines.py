"""Lines between ranks: messages arrive, and whoever is not of the run, or not in step with it, is told."""

import os
import socket
import threading
import time
import warnings

import pytest
import torch
from tests.distributed.ranks import on_ranks

from bilevel.distributed import RanksFailed, lines
from bilevel.distributed import ranks as module
from bilevel.distributed.lines import LONGEST, Lines, open_lines


def summed(ranks):
    """Sums and largest of every kind, by lines and then without them."""
    found, there = [[], []], module._lines is not None
    for way in found:
        for dtype in (torch.float64, torch.float32, torch.int64, torch.bfloat16):
            for shape in ((), (3,), (2, 0), (4, 5)):
                tensor = (torch.arange(20)[: torch.Size(shape).numel()].reshape(shape) * (ranks.rank + 1)).to(dtype)
                way += [ranks.all_sum(tensor.clone()).tolist(), ranks.all_max(tensor).tolist()]
        module._hold(None)
    assert found[0] == found[1]
    return there, found[0]


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_sums_by_lines_are_those_of_gloo(size):
    for there, found in on_ranks(summed, size):
        assert there
        assert found[6] == [[k * size * (size + 1) / 2 for k in range(j, j + 5)] for j in (0, 5, 10, 15)]
        assert found[7] == [[k * size for k in range(j, j + 5)] for j in (0, 5, 10, 15)]


def in_order(ranks):
    """A number alone, and as one of many, has the bits of the sum in the order of ranks."""
    parts = torch.randn(ranks.size, 785, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wanted = parts[0].clone()
    for part in parts[1:]:
        wanted += part
    mine = parts[ranks.rank]
    alone = torch.stack([ranks.all_sum(mine[k : k + 1].clone())[0] for k in range(0, 785, 56)])
    return torch.equal(ranks.all_sum(mine.clone()), wanted), torch.equal(alone, wanted[::56])


@pytest.mark.slow
def test_parts_are_added_in_the_order_of_ranks():
    assert on_ranks(in_order, 6) == [[True, True]] * 6


def begun(ranks):
    """Two of the longest kind are on their way at once."""
    tensors = [torch.full((LONGEST // 8,), float(k + ranks.rank), dtype=torch.float64) for k in range(2)]
    ends = [ranks.begin_sum(tensor) for tensor in tensors]
    return [float(end()[0]) for end in ends]


@pytest.mark.slow
def test_sums_that_are_begun_end_in_order():
    assert on_ranks(begun, 2) == [[1.0, 3.0]] * 2


def abandoned(ranks):
    """What follows a sum that rank 0 began and did not end."""
    end = ranks.begin_sum(torch.ones(2))
    if ranks.rank == 1:
        end()
    try:
        return [ranks.total(10.0, 10.0), ranks.total(20.0, 20.0)]
    except RanksFailed as error:
        return str(error)


def test_a_sum_that_does_not_end_is_not_taken_for_the_next_one():
    one, two = on_ranks(abandoned, 2)
    assert "rank 0 waits for sum" in one
    assert "end sums in the order in which they were begun" in one
    assert "rank 1 lost the other ranks" in two


def out_of_step(ranks, case):
    first, second = CASES[case]
    try:
        (second if ranks.rank else first)(ranks)
    except RanksFailed as error:
        return str(error)


CASES = {
    "lengths": (lambda ranks: ranks.all_sum(torch.zeros(3)), lambda ranks: ranks.all_sum(torch.zeros(4))),
    "long": (lambda ranks: ranks.all_sum(torch.zeros(16384)), lambda ranks: ranks.all_sum(torch.zeros(16385))),
    "dtypes": (
        lambda ranks: ranks.all_sum(torch.zeros(2)),
        lambda ranks: ranks.all_sum(torch.zeros(1, dtype=torch.float64)),
    ),
    "questions": (lambda ranks: ranks.all_sum(torch.zeros(2)), lambda ranks: ranks.all_max(torch.zeros(2))),
}
TOLD = {
    "lengths": ("sum float32 (3,) of 12 bytes", "sum float32 (4,) of 16 bytes"),
    "long": ("sum float32 (16384,) of 65536 bytes", "sum float32 (16385,) of 65540 bytes"),
    "dtypes": ("sum float32 (2,) of 8 bytes", "sum float64 (1,) of 8 bytes"),
    "questions": ("sum float32 (2,) of 8 bytes", "max float32 (2,) of 8 bytes"),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if case == "lengths" else pytest.mark.slow) for case in TOLD]
)
def test_ranks_that_ask_for_different_sums_are_told_on_every_rank(case):
    for told in on_ranks(out_of_step, 2, case):
        assert all(text in told for text in TOLD[case])
        assert "in the same order" in told


def leaves(ranks):
    if ranks.rank == 1:
        module._lines.close()
        return None
    began = time.monotonic()
    try:
        ranks.total(1.0)
    except RanksFailed as error:
        return str(error), time.monotonic() - began


@pytest.mark.slow
def test_a_rank_that_is_gone_is_noticed_at_once():
    (told, seconds), _ = on_ranks(leaves, 2)
    assert "rank 0 lost the other ranks" in told
    assert seconds < 10


def unreachable(ranks):
    """Rank 0 tells an address at which nobody answers."""
    lines.PATIENCE = 1.0

    def gather(value):
        hidden = ranks.rank == 0 and isinstance(value, list)
        return ranks.gather([*value[:2], ["127.0.0.1", 1]] if hidden else value)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = open_lines(ranks.rank, ranks.size, gather, 60.0)
    return found is None, ["sums go by gloo" in str(each.message) for each in told]


def test_without_lines_on_one_rank_there_are_none():
    assert on_ranks(unreachable, 2) == [[True, [True]], [True, []]]


def no_network(ranks):
    if ranks.rank == 1:
        os.environ["MASTER_ADDR"] = "no.such.host.invalid"
    warnings.simplefilter("ignore")
    return open_lines(ranks.rank, ranks.size, ranks.gather, 60.0) is None, ranks.total(1.0)


@pytest.mark.slow
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
    head = two[0].send("sum", 4, memoryview(b"abcd"))
    two[1].receive(head, [memoryview(each) for each in room])
    assert room[0] == b"abcd"
    for each in two:
        each.close()


def test_addresses_that_mean_the_caller_are_not_given_to_other_machines():
    here, there = ["127.0.0.1", 5], ["10.0.0.2", 5]
    assert lines._reachable([here, here], {"one"})
    assert not lines._reachable([here, there], {"one", "two"})
    assert lines._reachable([["10.0.0.1", 5], there], {"one", "two"})
    assert not lines._reachable([None, there], {"one"})


def test_silent_callers_do_not_hold_up_the_start(monkeypatch):
    monkeypatch.setattr(lines, "PATIENCE", 1.0)
    monkeypatch.setattr(lines, "GREETING", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as door:
        silent = [socket.create_connection(door.getsockname()) for _ in range(6)]
        began = time.monotonic()
        assert lines._meet(0, [door.getsockname(), None], bytes(16), door) == {}
        assert time.monotonic() - began < 3
        for each in silent:
            each.close()
