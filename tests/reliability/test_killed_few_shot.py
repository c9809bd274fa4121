"""`bilevel fewshot train` killed at random moments, in one process and in two: --resume ends with the same bits."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests.ranks import free_port

import bilevel.few_shot.learner  # noqa: F401  (files hold its classes)
from bilevel.run.checkpoint import RunDocument

KILLS = {1: 20, 2: 8}
STEPS = 40
SMALL = ["--dataset", "generated", "--ways", "3", "--shots", "1", "--queries", "2", "--width", "4"]
SMALL += ["--train-ways", "4", "--episodes", "20", "--tasks-per-step", "2", "--evaluate-every", "4"]
pytestmark = pytest.mark.reliability


def train(ranks: int, path: Path, *more: str) -> subprocess.Popen[str]:
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-addr", "127.0.0.1"]
    torchrun += ["--master-port", str(free_port())]
    command = [sys.executable, *(torchrun if ranks > 1 else []), "-m", "bilevel", "fewshot", "train", *SMALL]
    return subprocess.Popen(
        [*command, "--out", str(path), "--steps", str(STEPS), *more],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors


def wait_for(path: Path, process: subprocess.Popen[str]) -> float:
    """Until training has begun, which the first checkpoint tells; the time of that."""
    while not path.exists() and process.poll() is None:
        time.sleep(0.005)
    return time.time()


@pytest.mark.parametrize("ranks", KILLS)
def test_killed_training_ends_with_the_same_bits(tmp_path, ranks, record_property):
    record_property("figure", f"bilevel fewshot train in {ranks} processes killed {KILLS[ranks]} times: the same bits")
    undisturbed = tmp_path / "whole.safetensors"
    process = train(ranks, undisturbed)
    began = wait_for(undisturbed, process)
    finish(process)
    lasted = undisturbed.stat().st_mtime - began
    whole, moments, steps = RunDocument.load(undisturbed).state, random.Random(ranks), set()
    for i in range(KILLS[ranks]):
        path = tmp_path / f"{i}.safetensors"
        process = train(ranks, path)
        wait_for(path, process)
        time.sleep(moments.random() * lasted)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        steps.add(RunDocument.load(path).state.step)
        finish(train(ranks, path, "--resume"))
        state = RunDocument.load(path).state
        assert state.step == whole.step
        for name, value in whole.network.items():
            assert torch.equal(state.network[name], value), (i, name)
    assert len(steps) >= 3  # the kills came at different moments
