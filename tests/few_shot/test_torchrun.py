"""`torchrun ... -m bilevel fewshot train`: several processes, one file, one voice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests.ranks import free_port

import bilevel.few_shot.learner  # noqa: F401  what a file may hold
from bilevel.run.checkpoint import RunDocument

SMALL = ["--dataset", "generated", "--ways", "3", "--shots", "1", "--queries", "2", "--width", "4"]
SMALL += ["--train-ways", "4", "--episodes", "20"]


def start(size, *arguments, tasks=2, restarts=0):
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(size), "--master-addr", "127.0.0.1"]
    torchrun += ["--master-port", str(free_port()), "--max-restarts", str(restarts)]
    command = [sys.executable, *(torchrun if size > 1 else []), "-m", "bilevel", "fewshot", "train", *SMALL]
    command += ["--tasks-per-step", str(tasks)]
    return subprocess.Popen(
        [*command, *map(str, arguments)], env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def train(size, *arguments, tasks=2):
    process = start(size, *arguments, tasks=tasks)
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err


def load_state(path):
    return RunDocument.load(path).state


def check_close(one, two, rtol=1e-3, atol=1e-5):
    for name, value in load_state(one).network.items():
        torch.testing.assert_close(load_state(two).network[name], value, rtol=rtol, atol=atol)


@pytest.mark.slow
def test_two_processes_train_the_network_of_one_and_go_on_from_its_file(tmp_path):
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    assert train(1, "--out", one, "--steps", 4, "--evaluate-every", 2)[0] == 0
    code, out, err = train(2, "--out", two, "--steps", 2, "--evaluate-every", 2, "--picture", tmp_path / "c.svg")
    assert code == 0, err
    assert out.count("accuracy on novel classes: ") == 1
    assert err.count("3-way 1-shot tasks of generated") == 1
    assert (tmp_path / "c.svg").exists()
    assert train(1, "--out", two, "--steps", 3, "--evaluate-every", 2, "--resume")[0] == 0
    assert train(2, "--out", two, "--steps", 4, "--evaluate-every", 2, "--resume")[0] == 0
    check_close(one, two)
    code, out, err = train(2, "--out", two, "--steps", 4)
    assert code != 0
    assert "opening the checkpoint: " in err
    assert "exists and was left as it is" in err


@pytest.mark.slow
def test_fewer_tasks_than_processes_are_refused_with_the_remedy(tmp_path):
    code, _, err = train(2, "--out", tmp_path / "net.safetensors", "--steps", 2, tasks=1)
    assert code != 0
    assert "draw at least 2 tasks per step, or start at most 1" in err


@pytest.mark.reliability
def test_ctrl_c_ends_all_processes_with_a_file_to_go_on_from(tmp_path):
    path = tmp_path / "net.safetensors"
    process = start(2, "--out", path, "--steps", 100_000, "--evaluate-every", 2)
    deadline = time.monotonic() + 300
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert err.count("stopped by Ctrl-C") == 1
    step = load_state(path).step
    assert step > 0
    assert train(1, "--out", path, "--steps", step + 1, "--evaluate-every", 2, "--resume")[0] == 0
    assert load_state(path).step == step + 1


@pytest.mark.reliability
def test_a_killed_process_is_started_anew_and_training_ends_as_if_undisturbed(tmp_path):
    whole, path = tmp_path / "whole.safetensors", tmp_path / "net.safetensors"
    asked = ["--steps", 40, "--evaluate-every", 4]
    assert train(2, "--out", whole, *asked)[0] == 0
    path.write_bytes(b"another file")  # which --force replaces, and from which nothing goes on
    process = start(2, "--out", path, *asked, "--force", restarts=1)
    deadline = time.monotonic() + 300
    while (path.stat().st_size < 100 or load_state(path).step < 16) and time.monotonic() < deadline:
        time.sleep(0.1)
    before = load_state(path).step
    os.kill(max(workers(process.pid)), signal.SIGKILL)
    stored = [before]
    while process.poll() is None and time.monotonic() < deadline:
        stored.append(load_state(path).step)
        time.sleep(0.1)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert err.count("3-way 1-shot tasks of generated") == 2
    assert 16 <= before < 40
    assert stored == sorted(stored)  # it went on
    assert load_state(path).step == 40
    check_close(whole, path, rtol=1e-6, atol=1e-8)


def workers(parent):
    """The processes that torchrun started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (entry / "stat").exists():
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            found += [int(entry.name)] if int(stat[1]) == parent else []
    return found
