"""Writes that are killed leave nothing that the next write does not remove; what is renamed is on the disk before."""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import signal
from pathlib import Path

import pytest
import safetensors.torch
import torch

import bilevel
from bilevel.errors import CheckpointWarning, WriteError
from bilevel.experiments.run_folder import Outcome, RunRecord, write_run


def solution() -> bilevel.Solution:
    problem = bilevel.Problem(lambda x, y: (y - 1).square().sum(), lambda x, y: (y - x).square().sum())
    return bilevel.minimize(problem, torch.zeros(2).double(), torch.zeros(2).double(), steps=1, solver=bilevel.DMLCBO())


def in_a_child(act) -> int:
    """How a forked process ends."""
    child = os.fork()
    if child == 0:
        act()
        os._exit(0)
    return os.waitpid(child, 0)[1]


def test_the_next_write_removes_what_a_killed_one_left(tmp_path, monkeypatch):
    found, path = solution(), tmp_path / "run.safetensors"

    def killed(tensors, name, **_):
        (Path(name).parent / "of safetensors.tmp").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patched:
        patched.setattr(safetensors.torch, "save_file", killed)
        assert in_a_child(lambda: found.save(path)) == signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert {file.name for file in left.iterdir()} == {"content", "of safetensors.tmp"}
    found.save(path)
    assert os.listdir(tmp_path) == ["run.safetensors"]


@pytest.mark.parametrize("act", ["mkdir", "rename"])
def test_a_folder_that_was_not_yet_locked_when_its_program_was_killed_is_removed(act, tmp_path, monkeypatch):
    found, path, original = solution(), tmp_path / "run.safetensors", getattr(os, act)

    def killed(*arguments, **options):
        if act == "mkdir":
            original(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patched:
        patched.setattr(os, act, killed)
        assert in_a_child(lambda: found.save(path)) == signal.SIGKILL
    (left,) = tmp_path.iterdir()
    found.save(path)
    assert left.exists()  # it is so new that its program may live
    os.utime(left, (0, 0))
    found.save(path, overwrite=True)
    assert os.listdir(tmp_path) == ["run.safetensors"]


@pytest.mark.parametrize("act", ["mkdir", "rename", "fsync"])
def test_a_write_that_the_disk_refuses_leaves_nothing(act, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    found = solution()
    with monkeypatch.context() as patched:
        patched.setattr(os, act, refuse)
        with pytest.raises(WriteError, match="Input/output error"):
            found.save(tmp_path / "run.safetensors")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_system_without_locks_is_a_warning(number, tmp_path, monkeypatch):
    """NFS without its lock daemon."""

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = tmp_path / "run.safetensors"
    problem = bilevel.Problem(lambda x, y: (y - 1).square().sum(), lambda x, y: (y - x).square().sum())
    start = torch.zeros(2).double(), torch.zeros(2).double()
    with pytest.warns(CheckpointWarning, match=f"cannot be locked .{os.strerror(number)}.: let no other run write it"):
        solution = bilevel.minimize(problem, *start, steps=1, solver=bilevel.DMLCBO(), checkpoint=path)
    assert torch.equal(bilevel.Solution.load(path).x, solution.x)


def test_a_write_in_progress_is_left_alone(tmp_path, monkeypatch):
    """Two programs write one file: the later one wins, and both end well."""
    found, path, original = solution(), tmp_path / "run.safetensors", safetensors.torch.save_file

    def slow(tensors, name, **options):
        monkeypatch.setattr(safetensors.torch, "save_file", original)
        assert in_a_child(lambda: found.save(path)) == 0
        original(tensors, name, **options)

    monkeypatch.setattr(safetensors.torch, "save_file", slow)
    found.save(path, overwrite=True)
    assert os.listdir(tmp_path) == ["run.safetensors"]
    assert torch.equal(bilevel.Solution.load(path).x, found.x)


def test_a_run_is_on_the_disk_before_its_folder_has_its_name(tmp_path, monkeypatch):
    acts, fsync, rename = [], os.fsync, os.rename

    def flushed(handle):
        acts.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        fsync(handle)

    def renamed(source, target):
        acts.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "rename", renamed)
    about = {"experiment": "table-2", "role": "final", "dataset": "a", "method": "b", "status": "steps"}
    record = RunRecord(identity="0123", settings={}, seed=0, final={}, curve={"step": [1]}, **about)
    write_run(Outcome(record, {}), tmp_path)
    *before, folder, rename_, around = acts
    assert set(before) == {"curve.csv", "record.json"}
    assert (folder.startswith(".0123."), rename_, around) == (True, "rename", tmp_path.name)


def test_errors_and_checks_can_be_sent_to_other_processes():
    error = bilevel.MissingExtraError("The command line", "apps")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    problem = bilevel.Problem(
        lambda x, y: y.square().sum(), lambda x, y: (y - x).square().sum(), y0=torch.zeros(2).double()
    )
    check = bilevel.check_hypergradient(problem, torch.tensor([1.0, 2.0]).double())
    assert str(pickle.loads(pickle.dumps(check))) == str(check)


@pytest.mark.parametrize("call", ["solve_lower", "upper_value", "hypergradient", "minimize", "check_hypergradient"])
def test_an_x_of_the_wrong_shape_is_explained(call):
    given = bilevel.Problem(
        lambda x, y: y.sum() + x[3], lambda x, y: (y - x[3]).square().sum(), y0=torch.zeros(2).double()
    )
    with pytest.raises(bilevel.InvalidInputError, match=r"failed with IndexError: .* of shape \(2,\)"):
        getattr(bilevel, call)(given, torch.zeros(2).double())
