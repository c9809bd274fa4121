"""A full disk, a locked or damaged file, an unknown name, a typo: the command names it, and loses no run."""

import os
import platform
import resource
import shutil
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest

from bilevel.cli import main
from bilevel.errors import InvalidInputError, WriteError
from bilevel.experiments import command, worker_pools
from bilevel.experiments.run_folder import Outcome, RunRecord
from bilevel.experiments.store import ResultsStore

from .conftest import TINY

RUNS = 8


@pytest.fixture(autouse=True)
def no_report(monkeypatch):
    """Runs are what may be lost; the report is made of them again."""
    monkeypatch.setattr(command, "report_runs", lambda *_: None)


@pytest.fixture
def reproduce(table, data, tmp_path, capsys):
    """Runs the command; returns its exit code and what it said of mistakes."""

    def call(*more):
        options = ["--configuration", str(table), "--workers", "0", "--data", str(data)]
        code = main(["reproduce", "table-2", *options, "--results", str(tmp_path / "results"), *more])
        return code, capsys.readouterr().err

    return call


@pytest.fixture
def exported(tmp_path):
    """The table of all runs, timing included: what must not change."""

    def call():
        out = tmp_path / "runs.csv"
        assert main(["results", "export", "--results", str(tmp_path / "results"), "--out", str(out), "--force"]) == 0
        return out.read_text()

    return call


@contextmanager
def files_up_to(size):
    """A disk on which no file grows beyond so many bytes: the system refuses to write, as when it is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def nothing_to_run(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(worker_pools, "run", None)
        yield


def stored(tmp_path):
    store = ResultsStore(tmp_path / "results")
    return {record.identity: record for record in store.records()}


def test_a_full_disk_in_the_middle_of_a_sweep(reproduce, tmp_path, monkeypatch):
    made, run = [], worker_pools.run
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)

    def full_after_three(specs, folder):
        made.append(specs)
        if len(made) == 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
        return run(specs, folder)

    monkeypatch.setattr(worker_pools, "run", full_after_three)
    try:
        code, said = reproduce()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert code == 2
    assert "cannot be written" in said
    assert "make room or choose another folder, then run the command again; what was stored is still there" in said
    kept = stored(tmp_path)
    assert len(kept) == 3
    assert reproduce()[0] == 0
    after = stored(tmp_path)
    assert len(after) == len({specs[0].identity for specs in made}) == RUNS
    assert {name: after[name] for name in kept} == kept
    assert len(made) == RUNS + 1  # only the run that found no room was made again


def test_a_sweep_that_ended_by_an_error_is_not_called_running(reproduce, tmp_path, monkeypatch, capsys):
    def failing(specs, folder):
        raise InvalidInputError("no data here")

    monkeypatch.setattr(worker_pools, "run", failing)
    assert reproduce()[0] == 2
    assert main(["status", "--results", str(tmp_path / "results")]) == 0
    assert "stopped, 0 of 8 runs done" in capsys.readouterr().out


def test_a_sweep_that_was_killed_is_told_and_shared_work_counts_once(tmp_path, capsys):
    about = {"role": "final", "dataset": "d", "method": "m", "settings": {}, "seed": 0, "status": "iterations"}
    shared = {"processor_seconds": 3600.0, "environment": {"work": "same", "threads": 1}}
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for pid, state in ((gone.pid, "was killed (the same command continues)"), (os.getpid(), "running")):
        store = ResultsStore(tmp_path)
        store.add([Outcome(RunRecord(**about, **shared, identity=name, experiment=name)) for name in "ab"])
        store.set_status(command="c", state="running", text="1 of 2", share=0.5, pid=pid, node=platform.node())
        assert main(["status", "--results", str(tmp_path)]) == 0
        shown = capsys.readouterr().out
        assert f"    {state}, 1 of 2" in shown
        assert "2 runs, 1.00 core-hours" in shown


def test_a_disk_without_any_room(reproduce, tmp_path):
    with files_up_to(100):
        code, said = reproduce()
    assert code == 2
    assert "cannot be written" in said
    assert reproduce("--methods", "dmlcbo")[0] == 0


@pytest.mark.parametrize("entries", [10, 10_000])
def test_a_full_disk_while_a_run_is_stored(tmp_path, entries):
    """The curve, or the final state, does not fit: the run is not there at all, those before it are."""
    about = {"experiment": "t", "role": "final", "dataset": "d", "method": "m", "settings": {}, "seed": 0}
    runs = [RunRecord(**about, identity=f"{i:016x}", status="iterations", curve={"step": [0, 1]}) for i in range(2)]
    store = ResultsStore(tmp_path)
    store.add([Outcome(runs[0])])
    with files_up_to(50_000 if entries > 10 else 20), pytest.raises(WriteError, match=r"runs cannot be written \("):
        store.add([Outcome(runs[1], {"x": np.zeros(entries)})])
    assert [folder.name for folder in store.runs.iterdir()] == [runs[0].identity]
    assert store.records() == runs[:1]
    store.add([Outcome(runs[1], {"x": np.zeros(entries)})])
    assert ResultsStore(tmp_path).records() == runs


def test_memory_that_runs_out_costs_no_other_run_and_is_named(reproduce, tmp_path, monkeypatch):
    calls, run = [], worker_pools.run

    def without_memory_once(specs, folder):
        calls.append(specs)
        if len(calls) == 2:
            raise MemoryError("cannot allocate 3 GB")
        return run(specs, folder)

    with monkeypatch.context() as patch:
        patch.setattr(worker_pools, "run", without_memory_once)
        code, said = reproduce("--methods", "dmlcbo")
    assert code == 2
    identity = calls[1][0].identity
    assert f"run {identity} ended with an error of its worker (MemoryError: cannot allocate 3 GB): the same com" in said
    assert list(stored(tmp_path)) == [calls[0][0].identity]
    assert reproduce("--methods", "dmlcbo")[0] == 0


def test_a_damaged_run_is_named_and_made_again(reproduce, tmp_path):
    assert reproduce("--methods", "dmlcbo")[0] == 0
    before = stored(tmp_path)
    folder = min((tmp_path / "results" / "runs").iterdir())
    for damage in (b"<html>", b"", b"{", b'{"identity": "0"}'):
        (folder / "record.json").write_bytes(damage)
        code, said = reproduce("--methods", "dmlcbo")
        assert code == 2, damage
        assert "record.json is damaged or missing" in said
        assert f"delete the folder {folder}; the next `bilevel reproduce` makes that one run again" in said
    shutil.rmtree(folder)
    assert reproduce("--methods", "dmlcbo")[0] == 0
    assert stored(tmp_path).keys() == before.keys()


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("iterations = 20", "iteratons = 20", "unknown key 'run.iteratons'. Did you mean 'iterations'?"),
        ("trusted = 50", "trustd = 50", "datasets.madelon: unknown key 'trustd'. Did you mean 'trusted'?"),
        ("[datasets.madelon]", "[datasets.madelom]", "cifar-100. Did you mean 'madelon'?"),
        ('solver = "approx"', 'solver = "aprox"', "method approx: there is no solver 'aprox'"),
        ("inner_steps = 20", "iner_steps = 20", "approx has no setting 'iner_steps'. Did you mean 'inner_steps'?"),
    ],
)
def test_a_typo_in_a_configuration_is_named_before_anything_is_run(
    reproduce, exported, table, monkeypatch, right, wrong, message
):
    assert reproduce("--methods", "dmlcbo", "--seeds", "1")[0] == 0
    before = exported()
    table.write_text(TINY.replace(right, wrong, 1))
    with nothing_to_run(monkeypatch):
        code, said = reproduce()
    assert code == 2
    assert message in said
    assert exported() == before
