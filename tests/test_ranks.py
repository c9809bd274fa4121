"""Ranks sum, agree, and raise each other's errors."""

import os
import subprocess
import sys
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from tests.ranks import free_port, on_ranks

from bilevel.errors import InvalidInputError, NonFiniteError, RankConnectionError
from bilevel.ranks import Ranks, connect

LENGTHS = {"with the question": 3, "after it": 4_000, "by all_reduce": 40_000}
"""Numbers in a tensor, for each way by which sums are made."""


def sums(ranks):
    for length in LENGTHS.values():
        k = torch.arange(length, dtype=torch.float64)
        assert ranks.sum(k * (1 + ranks.rank)).equal(k * ranks.size * (ranks.size + 1) / 2)
        assert ranks.max(k.int() * ranks.rank).equal(k.int() * (ranks.size - 1))
    assert ranks.sum(torch.zeros(0, 2)).shape == (0, 2)
    scalar = ranks.sum(torch.tensor(0.1 * (ranks.rank + 1), dtype=torch.bfloat16))
    return ranks.sum(torch.tensor(1.0)).item(), scalar.shape == (), ranks.rounds, ranks.bytes


def test_sums_and_maxima_of_every_length():
    for one, scalar, rounds, sent in on_ranks(sums, 3):
        assert one == 3.0
        assert scalar
        assert rounds == 10  # one exchange each, and one more for the rest of what is after the question
        assert sent > 12 * sum(LENGTHS.values())


def derivatives(ranks):
    """The loss of the run is the sum over ranks of (r + 1) |s|^2 / 2 with s = sum over ranks of (r + 1) v_r."""
    weight = ranks.rank + 1.0
    v = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    loss = weight * ranks.sum(weight * v).square().sum() / 2
    (slope,) = torch.autograd.grad(loss, v, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), v)
    return slope.tolist(), second.tolist()


def test_derivatives_of_a_sum_are_sums():
    for rank, (slope, second) in enumerate(on_ranks(derivatives, 2)):
        weight, s = rank + 1.0, torch.tensor([3.0, 6.0])
        assert slope == (weight * 3 * s).tolist()  # 3 = 1 + 2, the weights of the losses
        assert second == [weight * 3 * 3] * 2


def values(ranks):
    found = ranks.gather({"rank": ranks.rank, "text": "ä" * ranks.rank}), ranks.gather("x" * (5_000 * (ranks.rank + 1)))
    return found[0], [len(each) for each in found[1]]


def test_values_reach_every_rank():
    for short, long in on_ranks(values, 3):
        assert short == [{"rank": rank, "text": "ä" * rank} for rank in range(3)]
        assert long == [5_000, 10_000, 15_000]


def rows_and_back(ranks):
    whole = torch.arange(14.0).reshape(7, 2)
    mine = ranks.part(whole)
    again = ranks.concat(mine)
    assert (again is None) == (ranks.rank > 0)
    assert again is None or again.equal(whole)
    assert ranks.part(whole.numpy()).shape == mine.shape
    uneven = ranks.part(whole, count=7 if ranks.rank == 1 else 0)
    assert ranks.concat(uneven) is None or ranks.rank == 0
    return mine.shape[0], uneven.shape[0]


def test_rows_are_divided_and_joined():
    assert on_ranks(rows_and_back, 3) == [[2, 0], [2, 7], [3, 0]]
    whole = torch.arange(5.0)
    assert Ranks().part(whole).equal(whole)
    assert Ranks().concat(whole) is whole
    with pytest.raises(InvalidInputError, match="hold 4 rows in total, but 5 were given"):
        Ranks().part(whole, count=4)


def at_the_same_time(ranks):
    return ranks.sync(ranks.rank == 1, False, 1.0 + ranks.rank)


def test_ranks_stop_at_the_same_step():
    assert on_ranks(at_the_same_time, 2) == [[True, False, 2.0]] * 2
    assert Ranks().sync(False, True, 1.5) == (False, True, 1.5)


# --- errors -----------------------------------------------------------------------------------------------------------


def message(ranks, do):
    """The error that a rank raises, by name; the ranks can go on after it."""
    try:
        do()
    except Exception as error:
        assert ranks.gather(ranks.rank) == list(range(ranks.size))
        return f"{type(error).__name__}: {error}"


def disagree(ranks):
    facts = {"steps": 10, "columns": 5 + ranks.rank}
    more = {"steps": 10} | ({"test": "a.csv"} if ranks.rank == 0 else {})
    return [
        message(ranks, lambda: ranks.agree(facts, "give every rank the same table")),
        message(ranks, lambda: ranks.agree(more, "start all alike")),
        message(ranks, lambda: ranks.agree({"steps": 10}, "")),
    ]


def test_ranks_that_differ_are_told_on_every_rank():
    first = "RankError: columns is 5 on rank 0 and 6 on rank 1: give every rank the same table"
    second = "RankError: test is 'a.csv' on rank 0 and None on rank 1: start all alike"
    assert on_ranks(disagree, 2) == [[first, second, None]] * 2


def failing(ranks, where):
    def work():
        with ranks.guard("step 3"), ranks.guard("its rows"):
            ranks.sum(torch.ones(2))
            if where == "everywhere" or (ranks.rank == 1 and where == "before a sum"):
                raise FileNotFoundError("there is no file rows.npy")
            if ranks.rank == 1 and where == "a status":
                raise NonFiniteError("x has NaN")
            if where != "at the end":
                ranks.sum(torch.ones(70_000))
            elif ranks.rank == 1:
                raise ZeroDivisionError

    return message(ranks, work)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("before a sum", "RankError: rank 1, its rows: there is no file rows.npy"),
        ("at the end", "RankError: rank 1, its rows: ZeroDivisionError"),
        ("everywhere", "RankError: every rank, its rows: there is no file rows.npy"),
        ("a status", "NonFiniteError: rank 1, its rows: x has NaN"),
        ("nowhere", None),
    ],
)
def test_an_error_of_one_rank_is_raised_on_all(where, message):
    assert on_ranks(failing, 2, where) == [message] * 2


def different_questions(ranks):
    sums = {
        "shapes": lambda: ranks.sum(torch.ones(3 + ranks.rank)),
        "kinds": lambda: ranks.sum(torch.ones(3, dtype=dtype)),
    }
    dtype = torch.float64 if ranks.rank else torch.float32
    return [message(ranks, do) for do in sums.values()]


def test_ranks_that_ask_for_different_sums_are_told():
    shapes = (
        "RankError: rank 0 asks for 'sum of float32 (3,)', and rank 1 for 'sum of float32 (4,)': every rank must ask"
    )
    kinds = (
        "RankError: rank 0 asks for 'sum of float32 (3,)', and rank 1 for 'sum of float64 (3,)': every rank must ask"
    )
    for found in on_ranks(different_questions, 2):
        assert [text.partition(" the same questions")[0] for text in found] == [shapes, kinds]


def leave(ranks):
    if ranks.rank == 1:
        raise ZeroDivisionError("division by zero")
    ranks.sum(torch.ones(2))


def test_a_rank_that_ends_leaves_its_cause():
    with pytest.raises(AssertionError, match="RankError: rank 1 ended: ZeroDivisionError: division by zero"):
        on_ranks(leave, 2)


def test_alone_an_error_stays_what_it_is():
    with pytest.raises(FileNotFoundError), Ranks().guard("reading"):
        raise FileNotFoundError("no")


# --- connecting -------------------------------------------------------------------------------------------------------


def test_without_torchrun_there_is_one_rank():
    with connect() as ranks:
        assert (ranks.rank, ranks.size, ranks.gather("a")) == (0, 1, ["a"])
    with pytest.raises(InvalidInputError, match="timeout must be a positive number of seconds, got 0"), connect(0):
        pass


@pytest.mark.parametrize(("rank", "size"), [("3", "2"), ("x", "2"), ("0", "two")])
def test_ranks_that_cannot_be_are_refused_at_once(monkeypatch, rank, size):
    for name, value in {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with (
        pytest.raises(InvalidInputError, match=f"RANK={rank}, WORLD_SIZE={size}, MASTER_PORT=1: whole numbers"),
        connect(),
    ):
        pass


def test_half_of_what_torchrun_tells_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with (
        pytest.raises(InvalidInputError, match="MASTER_ADDR, MASTER_PORT are not: use torchrun, or unset them"),
        connect(),
    ):
        pass


def test_nobody_is_waited_for_longer_than_the_time_out(monkeypatch):
    port = str(free_port())
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, value)
    began = time.monotonic()  # far from the default of 300 s, on a busy machine too
    with (
        pytest.raises(RankConnectionError, match=r"rank 1 of 2 could not connect to the others at .* within 1 s"),
        connect(timeout=1.0),
    ):
        pass
    assert time.monotonic() - began < 60


def within_a_group(ranks):
    with connect() as again:
        return again.sum(torch.ones(1)).item(), again.size, ranks.size


def test_a_process_group_that_is_there_is_used():
    assert on_ranks(within_a_group, 2) == [[2.0, 2, 2]] * 2


def add(ranks):
    found = ranks.remembers("written"), ranks.sum(torch.ones(1)).item()
    ranks.remember("written")
    return found


def test_addresses_of_processes_that_ended_are_not_taken_for_those_of_this_attempt():
    """The store of torchrun outlives the processes that it starts again."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    torchrun = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": str(store.port)}
    assert on_ranks(add, 2, environment=torchrun) == [[False, 2.0]] * 2
    assert on_ranks(add, 2, environment=torchrun) == [[True, 2.0]] * 2


TWICE = """
import os, signal, torch
from bilevel.ranks import connect

with connect(timeout=60) as ranks:
    again = ranks.remembers("a first attempt")
    ranks.remember("a first attempt")
    print("sum", float(ranks.sum(torch.ones(1))), again, flush=True)
    while not again:
        if ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        ranks.sum(torch.ones(1))
"""


@pytest.mark.reliability
def test_ranks_on_two_machines_meet_again_after_one_was_killed(tmp_path):
    """Two agents of torchrun stand for two machines: they count restarts differently."""
    (tmp_path / "twice.py").write_text(TWICE)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    torchrun += ["--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    agents = [
        subprocess.Popen(
            [*torchrun, "twice.py"], cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for _ in range(2)
    ]  # fmt: skip
    for agent in agents:
        text, _ = agent.communicate(timeout=200)
        assert agent.returncode == 0, text
        assert "sum 2.0 True" in text
