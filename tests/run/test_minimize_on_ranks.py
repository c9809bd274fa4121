"""All ranks end at the same step, whoever is interrupted, whosever time is up and whichever callback says so."""

import os
import shutil
import signal
import threading

import pytest
import torch
from tests.cleaning.test_divided_rows import sharded
from tests.ranks import on_ranks

import bilevel
from bilevel import minimize
from bilevel.errors import RankError
from bilevel.ranks import Ranks
from bilevel.run.checkpoint import RunDocument

FOREVER = {"steps": 1_000_000, "evaluate_every": 1_000_000}


def run(ranks, **options):
    problem = sharded(ranks, {"intercept": False})
    found = minimize(problem, problem.start(), **options, solver=bilevel.DMLCBO(upper_step=0.1))
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
    if ranks.rank == 1:
        threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    found["interrupted"] = run(ranks, **FOREVER)
    found["late"] = run(ranks, **FOREVER, seconds=25.0, clock=Ticks(ranks.rank))
    stop = lambda record, state: ranks.rank == 1 and state.step == 20  # noqa: E731
    found["stopped"] = run(ranks, steps=1000, evaluate_every=10, callbacks=[stop])

    def at_an_evaluation(record, state):
        if ranks.rank == 1 and state.step == 10:
            os.kill(os.getpid(), signal.SIGINT)

    found["at an evaluation"] = run(ranks, steps=1000, evaluate_every=10, callbacks=[at_an_evaluation])

    def fails(record, state):
        if ranks.rank == 0 and state.step == 10:
            raise OSError("the disk is full")

    def asserts(record, state):
        assert ranks.rank == 0, "a test of mine"

    for name, options in {
        "failed": {"callbacks": [fails], "evaluate_every": 10},
        "asserted": {"callbacks": [asserts], "evaluate_every": 10},
        "another y0": {
            "y0": {name: value + 1e-3 * ranks.rank for name, value in sharded(ranks, {"intercept": False}).y0.items()}
        },
        "differ": {"evaluate_every": 10 + ranks.rank},
        "delta": {"delta": 0.1, "tol": 0.1},
    }.items():
        try:
            run(ranks, steps=20, **options)
        except RankError as error:
            found[name] = str(error)
    found["handler"] = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return found


@pytest.mark.slow
def test_ranks_end_together():
    one, two = on_ranks(ended, 2)
    assert one == two
    status, step, _ = one["interrupted"]
    assert status == "INTERRUPTED"
    assert 0 < step < 1_000_000
    assert one["late"][0] == "TIME"
    assert one["late"][1] == 2  # the slowest rank decides: 11 s for the start and for each step
    assert one["stopped"][:2] == ["STOPPED", 20]
    assert one["at an evaluation"][:2] == ["INTERRUPTED", 10]
    assert one["failed"] == "rank 0, in a callback: the disk is full"
    assert one["asserted"].startswith("rank 1, in a callback: a test of mine")
    assert "y0 is " in one["another y0"]
    assert one["another y0"].endswith("start from the same point on every rank")
    assert "the arguments of minimize" in one["differ"]
    assert "delta=0.1 is for one process, and there are 2 ranks" in one["delta"]
    assert one["handler"]


def one_rank_diverges(ranks):
    """An x that is not finite, on rank 1 alone, at step 5."""
    problem = sharded(ranks, {"intercept": False})

    class Diverging(bilevel.DMLCBO):
        def step(self, problem, state):
            new = super().step(problem, state)
            if new.step == 5 and ranks.rank == 1:
                new.x[0] = float("nan")
            return new

    found = minimize(problem, problem.start(), solver=Diverging(), steps=10)
    return found.status.name, int(found.state.step)


@pytest.mark.slow
def test_what_is_not_finite_on_one_rank_is_so_for_all():
    assert on_ranks(one_rank_diverges, 2) == [["DIVERGED", 4]] * 2


def stored(ranks, path, steps, resume=None):
    """x of all rows, and y, of a run that writes checkpoints; the rows are divided unevenly."""
    problem = sharded(ranks, {"intercept": False})
    problem.x0 = problem.start()
    options = {"solver": bilevel.DMLCBO(), "evaluate_every": 20, "output": "best"}
    place = bilevel.Checkpoint(path, every=10)
    found = minimize(problem, steps=steps, resume=resume, checkpoint=place, **options)
    x = [weight for part in ranks.gather(found.x.tolist()) for weight in part]
    return {"x": x, **{name: entry.tolist() for name, entry in found.y.items()}}


def stored_and_resumed(ranks, folder):
    whole = stored(ranks, f"{folder}/whole.safetensors", 60)
    stored(ranks, f"{folder}/half.safetensors", 33)
    if ranks.rank == 0:
        shutil.copy(f"{folder}/half.safetensors", f"{folder}/copy.safetensors")
    return whole, stored(ranks, f"{folder}/half.safetensors", 27, resume=f"{folder}/half.safetensors")


def largest_difference(a, b):
    return max(float((torch.tensor(a[name]) - torch.tensor(b[name])).abs().max()) for name in a)


@pytest.mark.slow
def test_one_file_resumes_with_the_same_bits_and_on_other_numbers_of_ranks(tmp_path):
    two = on_ranks(stored_and_resumed, 2, str(tmp_path))
    whole, resumed = two[0]
    assert resumed == whole
    assert two[1] == two[0]
    copy = str(tmp_path / "copy.safetensors")
    assert RunDocument.load(copy).result["x"].shape == (len(whole["x"]),)
    for alone in (stored(Ranks(), copy, 27, resume=copy), stored(Ranks(), str(tmp_path / "alone"), 60)):
        assert largest_difference(alone, whole) < 1e-10
    three = on_ranks(stored, 3, str(tmp_path / "three"), 27, str(tmp_path / "half.previous.safetensors"))
    assert three[0] == three[2]


def test_one_rank_runs_as_without_ranks():
    problem = sharded(Ranks(), {"intercept": False})
    found = minimize(problem, problem.start(), steps=30, evaluate_every=10, solver=bilevel.DMLCBO(upper_step=0.1))
    assert found.stats["seconds"] > 0
    assert [r.step for r in found.history] == [0, 10, 20, 30]


def status_above_start(ranks):
    """Steps that are far too long, on rows that the ranks divide."""
    target = ranks.part(torch.linspace(-1.0, 1.0, 6, dtype=torch.float64))

    def upper(x, y):
        return (x - target).square().sum() + 1e-3 * y.square().sum() / ranks.size

    def lower(x, y):
        return (y - 1).square().sum() / ranks.size + 1e-3 * y.sum() * x.sum()

    start = target + 0.1
    problem = bilevel.Problem(upper, lower, x0=start, y0=torch.zeros(2).double(), ranks=ranks, divided=("x",))
    solver = bilevel.solvers.ProjectedSOBA(upper_step=1.001)
    found = bilevel.minimize(problem, solver=solver, steps=40, evaluate_every=20)
    return found.status.name


@pytest.mark.slow
def test_a_run_that_ends_above_its_start_says_so_on_several_ranks():
    alone = status_above_start(Ranks())
    assert alone == "ABOVE_START"
    assert on_ranks(status_above_start, 2) == [alone, alone]
