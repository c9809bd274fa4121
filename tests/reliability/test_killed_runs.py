"""Nothing is lost: a run that is killed at any moment, or whose checkpoint is damaged, ends with the same bits."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tests.reliability import mutants, worker

import bilevel
from bilevel.run.checkpoint import previous_of


def load_checkpoint(path: Path) -> bilevel.Solution:
    """The newest state that is intact."""
    return bilevel.Solution.from_document(bilevel.Checkpoint(path).load())


def assert_same_end(resumed: bilevel.Solution, whole: bilevel.Solution) -> None:
    """Every tensor of the state and of the output, all counts, and the records but for the seconds."""
    for a, b in ((resumed.x, whole.x), (resumed.state.x, whole.state.x)):
        assert torch.equal(a, b)
    for name in whole.y:
        assert torch.equal(resumed.y[name], whole.y[name])
        assert torch.equal(resumed.state.y[name], whole.state.y[name])
        assert torch.equal(resumed.state.lower_momentum[name], whole.state.lower_momentum[name])
    assert torch.equal(resumed.state.upper_momentum, whole.state.upper_momentum)
    assert (resumed.state.step, resumed.state.seeds) == (whole.state.step, whole.state.seeds)
    rows = [[row for row in solution.rows() if row.pop("seconds") >= 0] for solution in (resumed, whole)]
    assert repr(rows[0]) == repr(rows[1])  # repr: NaN equals NaN
    assert {**resumed.stats, "seconds": 0} == {**whole.stats, "seconds": 0}


@pytest.fixture(scope="module")
def whole() -> bilevel.Solution:
    return worker.run()


@pytest.fixture(scope="module")
def server():
    """The process that forks runs."""
    process = subprocess.Popen(
        [sys.executable, worker.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    yield process
    process.stdin.close()
    process.wait(timeout=60)
    process.stdout.close()


def run_and_kill(server: subprocess.Popen[str], path: Path, delay: float) -> float:
    """Start a run and kill it after so many seconds of the processor (0: never), whatever it does; how long it took."""
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(f"{delay} {path}\n")
    return float(server.stdout.readline())


def killed_at_random_moments(server, folder: Path, whole: bilevel.Solution, count: int, seed: int = 0) -> list[int]:
    """The steps at which resuming went on; each time the end is that of the undisturbed run."""
    duration = run_and_kill(server, folder / "whole.safetensors", 0)
    moments = random.Random(seed)
    steps = []
    for i in range(count):
        path = folder / f"{i}.safetensors"
        run_and_kill(server, path, max(moments.random(), 0.01) * duration)
        steps.append(int(load_checkpoint(path).stats["steps"]) if path.exists() else 0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # no checkpoint is damaged by a kill
            assert_same_end(worker.resume(path), whole)
        assert not list(folder.glob(".*.tmp"))
    return steps


def test_kill_at_a_few_moments(server, whole, tmp_path):
    killed_at_random_moments(server, tmp_path, whole, 2)


@pytest.mark.reliability
@pytest.mark.parametrize("seed", range(1, 5))
def test_kill_at_30_random_moments(seed, server, whole, tmp_path, record_property):
    steps = killed_at_random_moments(server, tmp_path, whole, 30, seed)
    record_property("figure", "`minimize` killed {kills} times: the same bits")
    record_property("counts", {"kills": len(steps)})
    assert len(set(steps)) >= 6  # the moments were spread over the run


ACTS = [(os, "mkdir"), (os, "rename"), (os, "fsync"), (os, "link"), (os, "replace"), (safetensors.torch, "save_file")]


@pytest.mark.parametrize("call", [1, 4, 7])
@pytest.mark.parametrize(("home", "name"), ACTS, ids=[name for _, name in ACTS])
def test_killed_at_each_act_of_writing(home, name, call, whole, tmp_path):
    """The program is killed before the first, fourth or seventh fsync, link, rename ... of its checkpoints."""
    path, original, calls = tmp_path / "run.safetensors", getattr(home, name), itertools.count(1)

    def deadly(*arguments, **options):
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **options)

    child = os.fork()
    if child == 0:
        setattr(home, name, deadly)
        worker.run(str(path))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    for file in (path, previous_of(path)):
        assert not file.exists() or bilevel.Solution.load(file).stats["steps"] >= 0  # complete, or not there
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same_end(worker.resume(path), whole)
    assert sorted(os.listdir(tmp_path)) == ["run.previous.safetensors", "run.safetensors"]


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def stopped(tmp_path) -> Path:
    """The checkpoints of a run that was stopped at step 24."""
    path = tmp_path / "run.safetensors"

    def stop(record, state):
        if state.step == 24:
            raise MemoryError("out of memory")

    options = {**worker.settings(), "evaluate_every": 1}
    with pytest.raises(MemoryError):
        bilevel.minimize(
            worker.problem(), steps=worker.STEPS, seed=7, callbacks=[stop],
            checkpoint=bilevel.Checkpoint(path, every=10), **options,
        )  # fmt: skip
    assert [load_checkpoint(file).stats["steps"] for file in (path, previous_of(path))] == [24, 20]
    return path


def damages(content: bytes, truncations: int, flips: int) -> list[bytes]:
    """Cut off at so many places, and so many flipped bytes, spread over the file."""
    choose = random.Random(1)
    cut = [content[: choose.randrange(len(content))] for _ in range(truncations)]
    flipped = []
    for position in choose.sample(range(len(content)), flips):
        changed = bytearray(content)
        changed[position] ^= choose.randrange(1, 256)
        flipped.append(bytes(changed))
    return cut + flipped


def check_damage(path: Path, damaged: list[bytes]) -> None:
    for content in damaged:
        path.write_bytes(content)
        with pytest.warns(
            bilevel.errors.CheckpointWarning, match=r"run.safetensors: .*run.previous.safetensors, step 20"
        ):
            assert load_checkpoint(path).stats["steps"] == 20
        with pytest.raises(bilevel.InvalidInputError, match="run.safetensors"):
            bilevel.Solution.load(path)


def test_some_damage_is_detected_and_the_previous_checkpoint_used(stopped):
    check_damage(stopped, damages(stopped.read_bytes(), 10, 20))


@pytest.mark.reliability
def test_50_truncations_and_200_flipped_bytes_are_detected(stopped, record_property):
    record_property("figure", "50 truncations and 200 flipped bytes of a checkpoint: all detected")
    check_damage(stopped, damages(stopped.read_bytes(), 50, 200))


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda _: b"", None], ids=["cut", "empty", "gone"])
def test_a_damaged_checkpoint_costs_steps_but_no_bits(stopped, damage, whole):
    good = previous_of(stopped).read_bytes()
    if damage is None:
        stopped.unlink()
    else:
        stopped.write_bytes(damage(stopped.read_bytes()))
    seen: list[bool] = []

    def watch(record, state):
        if state.step <= 30:
            seen.append(previous_of(stopped).read_bytes() == good)

    with pytest.warns(bilevel.errors.CheckpointWarning):
        resumed = bilevel.minimize(
            worker.problem(), resume=stopped, checkpoint=bilevel.Checkpoint(stopped, every=10), callbacks=[watch],
            **worker.settings() | {"evaluate_every": 10},
        )  # fmt: skip
    assert seen == [True]  # the damaged one never takes the place of the good one
    assert torch.equal(resumed.state.x, whole.state.x)
    assert torch.equal(resumed.x, whole.x)


def test_both_checkpoints_damaged(stopped):
    for path in (stopped, previous_of(stopped)):
        path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(
        bilevel.InvalidInputError, match=r"run.safetensors: .*damaged.*run.previous.safetensors: .*damaged"
    ):
        load_checkpoint(stopped)


def test_a_newer_format_is_no_damage(stopped):
    """A file of a newer bilevel is not passed over for an older one."""
    with safetensors.safe_open(stopped, framework="pt") as file:
        document = json.loads(file.metadata()["bilevel"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    mutants.save_signed(tensors, document | {"version": 9}, stopped)
    with pytest.raises(bilevel.InvalidInputError, match="format version 9 .* upgrade bilevel"):
        load_checkpoint(stopped)
