"""All ranks end at the same step, whoever is interrupted, whosever time is up and whichever callback says so."""

import os
import signal
import threading
from types import SimpleNamespace

import pytest
import torch
from tests.distributed.ranks import on_ranks
from tests.distributed.test_rows import sharded

import bilevel
from bilevel.distributed import Ranks, RanksFailed, ShardedSpace, minimize
from bilevel.errors import Incompatible, InvalidInput

FOREVER = {"steps": 1_000_000, "evaluate_every": 1_000_000}


def run(ranks, fused, **options):
    problem = sharded(ranks, {"intercept": False, "fused": fused})
    found = minimize(problem, problem.start(), **options)
    return found.status.name, int(found.state.step), len(found.history)


class Ticks:
    """A clock that goes faster on higher ranks."""

    def __init__(self, rank):
        self.now, self.rank = 0.0, rank

    def __call__(self):
        self.now += 1.0 + 10.0 * self.rank
        return self.now


def ended(ranks):
    """How runs end that one rank ends."""
    found = {}
    for fused in (True, False):
        if ranks.rank == 1:
            threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        found[f"interrupted {fused}"] = run(ranks, fused, **FOREVER)
        found[f"late {fused}"] = run(ranks, fused, **FOREVER, seconds=25.0, clock=Ticks(ranks.rank))
    stop = lambda record, state: ranks.rank == 1 and state.step == 20  # noqa: E731
    found["stopped"] = run(ranks, True, steps=1000, evaluate_every=10, callbacks=[stop])

    def at_an_evaluation(record, state):
        if ranks.rank == 1 and state.step == 10:
            os.kill(os.getpid(), signal.SIGINT)

    found["at an evaluation"] = run(ranks, True, steps=1000, evaluate_every=10, callbacks=[at_an_evaluation])

    def fails(record, state):
        if ranks.rank == 0 and state.step == 10:
            raise OSError("the disk is full")

    def asserts(record, state):
        assert ranks.rank == 0, "a test of mine"

    for name, options in {
        "failed": {"callbacks": [fails], "evaluate_every": 10},
        "asserted": {"callbacks": [asserts], "evaluate_every": 10},
        "another y0": {
            "y0": {name: value + ranks.rank for name, value in sharded(ranks, {"intercept": False}).y0.items()}
        },
        "differ": {"evaluate_every": 10 + ranks.rank},
        "checkpoint": {"checkpoint": "run.safetensors"},
    }.items():
        try:
            run(ranks, True, steps=20, **options)
        except RanksFailed as error:
            found[name] = str(error)
    found["handler"] = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return found


@pytest.mark.slow
def test_ranks_end_together():
    one, two = on_ranks(ended, 2)
    assert one == two
    for fused in (True, False):
        status, step, _ = one[f"interrupted {fused}"]
        assert status == "INTERRUPTED"
        assert 0 < step < 1_000_000
        assert one[f"late {fused}"][0] == "TIME"
        assert 2 < one[f"late {fused}"][1] <= 26
    assert one["stopped"][:2] == ["STOPPED", 20]
    assert one["at an evaluation"][:2] == ["INTERRUPTED", 10]
    assert one["failed"] == "rank 0, in a callback: the disk is full"
    assert one["asserted"].startswith("rank 1, in a callback: a test of mine")
    assert "y0 is " in one["another y0"]
    assert one["another y0"].endswith("start from the same point on every rank")
    assert "the arguments of minimize" in one["differ"]
    assert "checkpoint='run.safetensors' is for one process" in one["checkpoint"]
    assert one["handler"]


def judged(ranks):
    """A number that is not finite, on rank 1 alone."""
    problem = sharded(ranks, {})
    x, space = problem.start(), ShardedSpace(ranks=ranks)
    good = SimpleNamespace(x=x, y=problem.y0), space.is_finite(x)
    x = x.clone()
    if ranks.rank == 1:
        x[0] = float("nan")
    bad = SimpleNamespace(x=x, y=problem.y0), space.is_finite(x)
    return [(problem.is_finite(state), seen) for state, seen in (good, bad)]


def test_what_is_not_finite_on_one_rank_is_so_for_all():
    assert on_ranks(judged, 2) == [[[True, True], [False, False]]] * 2


def test_one_rank_runs_as_bilevel_minimize_does():
    problem = sharded(Ranks(), {"intercept": False})
    found = minimize(problem, problem.start(), steps=30, evaluate_every=10)
    wanted = bilevel.minimize(problem, problem.start(), steps=30, evaluate_every=10)
    assert torch.equal(found.x, wanted.x)
    assert found.stats["seconds"] > 0
    assert [r.step for r in found.history] == [0, 10, 20, 30]


def test_problems_that_are_not_divided_are_refused():
    problem = bilevel.Problem(lambda x, y: y.sum(), lambda x, y: (y - x).square().sum())
    with pytest.raises(Incompatible, match=r"use ShardedCleaningProblem, or bilevel\.minimize"):
        minimize(problem, torch.zeros(1), torch.zeros(1))
    divided = sharded(Ranks(), {})
    with pytest.raises(InvalidInput, match="x0"):
        minimize(divided, torch.full((161,), float("nan")))
