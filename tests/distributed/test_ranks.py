"""Ranks meet, agree, and hear of each other's errors."""

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from tests.distributed.ranks import free_port, on_ranks

from bilevel.distributed import Ranks, RanksFailed, connect
from bilevel.distributed.ranks import LONGEST, PORT, Unreachable
from bilevel.errors import InvalidInput

LONG = 40_000
"""Numbers that are not gathered on three ranks to be added, but summed by gloo."""


def summed(ranks):
    long = ranks.all_sum(torch.arange(LONG, dtype=torch.float64) * (1 + ranks.rank))
    assert long.tolist() == [ranks.size * (ranks.size + 1) / 2 * k for k in range(LONG)]
    return (
        ranks.total(1.0, float(ranks.rank)),
        ranks.gather({"rank": ranks.rank, "text": "ä" * ranks.rank}),
        ranks.bytes,
    )


def test_sums_and_texts_reach_every_rank():
    assert LONG * 8 > LONGEST
    for total, gathered, sent in on_ranks(summed, 3):
        assert total == [3.0, 3.0]
        assert gathered == [{"rank": rank, "text": "ä" * rank} for rank in range(3)]
        assert sent > 8 * LONG


def disagree(ranks):
    try:
        ranks.agree({"steps": 10, "columns": 5 + ranks.rank}, "give every rank the same table")
    except RanksFailed as error:
        return str(error)


def test_ranks_that_differ_are_told_on_every_rank():
    told = on_ranks(disagree, 2)
    assert told == ["columns is 5 on rank 0 and 6 on rank 1: give every rank the same table"] * 2


def one_key_more(ranks):
    try:
        ranks.agree({"steps": 10} | ({"test": "a.csv"} if ranks.rank == 0 else {}), "start all alike")
    except RanksFailed as error:
        return str(error)


def test_a_rank_that_has_something_more_is_told_on_every_rank():
    assert on_ranks(one_key_more, 2) == ["test is 'a.csv' on rank 0 and None on rank 1: start all alike"] * 2


def fail_on_one(ranks):
    try:
        with ranks.together("reading its rows"):
            if ranks.rank == 1:
                raise FileNotFoundError("there is no file rows-1.npy")
    except RanksFailed as error:
        return str(error)


def test_an_error_of_one_rank_is_raised_on_all():
    assert on_ranks(fail_on_one, 2) == ["rank 1, reading its rows: there is no file rows-1.npy"] * 2


def test_processes_that_have_not_met_are_not_taken_for_one(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidInput, match="2 processes that have not met.*with connect"):
        Ranks()


@pytest.mark.parametrize(("rank", "size"), [("3", "2"), ("x", "2"), ("0", "two")])
def test_ranks_that_cannot_be_are_refused_at_once(monkeypatch, rank, size):
    for name, value in {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidInput, match=f"RANK={rank}, WORLD_SIZE={size}, MASTER_PORT=1: whole numbers"):
        connect().__enter__()


def test_nobody_is_waited_for_longer_than_the_time_out(monkeypatch):
    port = str(free_port())
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, value)
    began = time.monotonic()
    with pytest.raises(Unreachable, match=r"rank 1 of 2 did not meet the others at .* within 1 s"):
        connect(timeout=1.0).__enter__()
    assert time.monotonic() - began < 5


def test_alone_an_error_stays_what_it_is():
    with pytest.raises(FileNotFoundError), Ranks().together("reading"):
        raise FileNotFoundError("no")


def test_the_port_of_processes_that_ended_is_not_taken_for_that_of_this_attempt():
    """The store of torchrun still has the port of an attempt that was killed: ranks wait for the one of theirs."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    store.set(PORT, str(free_port()))
    torchrun = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": str(store.port)}
    assert on_ranks(summed, 2, environment=torchrun)[0][0] == [2.0, 1.0]
    assert int(store.get(PORT)) > 0
