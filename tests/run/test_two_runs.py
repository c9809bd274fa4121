"""Two processes and one checkpoint: one of them writes it, and the other is refused."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

import bilevel

PAIRS = """
import json, multiprocessing, sys, time
import torch, bilevel
from pathlib import Path

torch.set_num_threads(1)
fork, (way, trials, folder) = multiprocessing.get_context("fork"), sys.argv[1:]

def problem():
    return bilevel.Problem(
        upper=lambda x, y: (y - 0.5).square().sum(), lower=lambda x, y: (y - x).square().sum(),
        constraint=bilevel.sets.L1Ball(1.0), x0=torch.zeros(2).double(), y0=torch.zeros(2).double())

def one(k, path, barrier, results, late):
    options = {"resume": path} if way == "resume" else {"solver": bilevel.DMLCBO(upper_step=0.1)}
    def wait(record, state):  # the one that writes ends after the other one, which has been refused by then
        inside[k] = True
        while results.empty() and not all(inside):
            time.sleep(0.001)
    barrier.wait()
    time.sleep(late)
    try:
        solution = bilevel.minimize(problem(), steps=40, evaluate_every=5, checkpoint=path, callbacks=[wait], **options)
        results.put([solution.state.step, ""])
    except bilevel.InvalidInputError as error:
        results.put([0, str(error)])

for trial in range(int(trials)):
    path = Path(folder) / f"{trial}.safetensors"
    if way == "resume":
        bilevel.minimize(problem(), steps=10, checkpoint=path, solver=bilevel.DMLCBO(upper_step=0.1))
    barrier, results, inside = fork.Barrier(2), fork.SimpleQueue(), fork.Array("b", 2)
    pair = [fork.Process(target=one, args=(k, path, barrier, results, 0.01 * trial * k)) for k in range(2)]
    for process in pair:
        process.start()
    for process in pair:
        process.join()
    print(json.dumps([results.get(), results.get(), bilevel.Solution.load(path).state.step]))
"""


@pytest.mark.parametrize("way", ["start", "resume"])
def test_one_of_two_runs_into_one_file_is_refused(way, tmp_path):
    command = [sys.executable, "-c", PAIRS, way, "3", str(tmp_path)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    first = 10 if way == "resume" else 0
    for *ends, stored in map(json.loads, finished.stdout.splitlines()):
        (refused, message), (step, none) = sorted(ends)
        assert (refused, step, stored, none) == (0, first + 40, first + 40, "")
        assert "in progress" in message or "exists and was left" in message or "was written by another run" in message
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_checkpoint_that_was_written_since_it_was_read_is_not_put_back(tmp_path):
    def problem():
        return bilevel.Problem(lambda x, y: (y - 1).square().sum(), lambda x, y: (y - x).square().sum())

    start, path = torch.zeros(2).double(), tmp_path / "run.safetensors"
    bilevel.minimize(problem(), start, start, steps=5, checkpoint=path, solver=bilevel.DMLCBO(upper_step=0.1))
    read = bilevel.Solution.load(path)
    bilevel.minimize(problem(), resume=path, checkpoint=path, steps=5)
    content = path.read_bytes()
    with pytest.raises(bilevel.InvalidInputError, match="was written by another run after this one had read it"):
        bilevel.minimize(problem(), resume=read, checkpoint=path, steps=7)
    assert path.read_bytes() == content
    assert bilevel.minimize(problem(), resume=path, checkpoint=path, steps=7).state.step == 17
