"""`bilevel fewshot train` killed at random moments, in one process and in two: --resume ends with the same bits."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
import torch
from tests.reliability.forks import Command

from bilevel import cli
from bilevel.run.checkpoint import RunDocument

KILLS = {1: 20, 2: 8}
STEPS = 40
SMALL = ["--dataset", "generated", "--ways", "3", "--shots", "1", "--queries", "2", "--width", "4"]
SMALL += ["--train-ways", "4", "--episodes", "20", "--tasks-per-step", "2", "--evaluate-every", "4"]
pytestmark = pytest.mark.reliability


def train(ranks: int, path: Path, *more: str, steps: int = STEPS) -> Command:
    arguments = ["fewshot", "train", *SMALL, "--out", str(path), "--steps", str(steps), *more]
    return Command(path.parent, *arguments, ranks=ranks)


@pytest.mark.parametrize("ranks", KILLS)
def test_killed_training_ends_with_the_same_bits(tmp_path, ranks, record_property):
    record_property("figure", f"bilevel fewshot train in {ranks} processes killed {KILLS[ranks]} times: the same bits")
    first = ["fewshot", "train", *SMALL, "--out", str(tmp_path / "first.safetensors"), "--steps", "1"]
    assert cli.main(first) == 0  # which imports what the others need
    undisturbed = tmp_path / "whole.safetensors"
    process = train(ranks, undisturbed)
    began = process.wait_for(undisturbed)
    process.finish()
    lasted = undisturbed.stat().st_mtime - began
    whole, moments, steps = RunDocument.load(undisturbed).state, random.Random(ranks), set()
    for i in range(KILLS[ranks]):
        path = tmp_path / f"{i}.safetensors"
        process = train(ranks, path)
        process.wait_for(path)
        time.sleep(moments.random() * lasted)
        process.kill()
        steps.add(RunDocument.load(path).state.step)
        train(ranks, path, "--resume").finish()
        state = RunDocument.load(path).state
        assert state.step == whole.step
        for name, value in whole.network.items():
            assert torch.equal(state.network[name], value), (i, name)
    assert len(steps) >= 3  # the kills came at different moments
