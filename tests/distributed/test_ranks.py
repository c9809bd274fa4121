"""Ranks meet, agree, and hear of each other's errors."""

import pytest
import torch
from tests.distributed.ranks import on_ranks

from bilevel.distributed import Ranks, RanksFailed


def summed(ranks):
    ranks.all_sum(torch.zeros(3))
    return (
        ranks.total(1.0, float(ranks.rank)),
        ranks.gather({"rank": ranks.rank, "text": "ä" * ranks.rank}),
        ranks.bytes,
    )


def test_sums_and_texts_reach_every_rank():
    for total, gathered, sent in on_ranks(summed, 3):
        assert total == [3.0, 3.0]
        assert gathered == [{"rank": rank, "text": "ä" * rank} for rank in range(3)]
        assert sent > 12


def disagree(ranks):
    try:
        ranks.agree({"steps": 10, "columns": 5 + ranks.rank}, "give every rank the same table")
    except RanksFailed as error:
        return str(error)


def test_ranks_that_differ_are_told_on_every_rank():
    told = on_ranks(disagree, 2)
    assert told == ["columns is 5 on rank 0 and 6 on rank 1: give every rank the same table"] * 2


def fail_on_one(ranks):
    try:
        with ranks.together("reading its rows"):
            if ranks.rank == 1:
                raise FileNotFoundError("there is no file rows-1.npy")
    except RanksFailed as error:
        return str(error)


def test_an_error_of_one_rank_is_raised_on_all():
    assert on_ranks(fail_on_one, 2) == ["rank 1, reading its rows: there is no file rows-1.npy"] * 2


def test_alone_an_error_stays_what_it_is():
    with pytest.raises(FileNotFoundError), Ranks().together("reading"):
        raise FileNotFoundError("no")
