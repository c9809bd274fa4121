"""A full disk, a locked or damaged file, an unknown name, a typo: the command names it, and loses no run."""

import os
import platform
import resource
import sqlite3
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest

from bilevel.cli import main
from bilevel.errors import InvalidInput
from bilevel.experiments import command, pools
from bilevel.experiments.record import RunRecord
from bilevel.experiments.run import Outcome
from bilevel.experiments.store import ResultsStore
from bilevel.files import NotWritten

from .conftest import TINY

RUNS = 8


@pytest.fixture(autouse=True)
def no_report(monkeypatch):
    """Runs are what may be lost; the report is made of them again."""
    monkeypatch.setattr(command, "_report", lambda *_: None)


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
        patch.setattr(pools, "run", None)
        yield


def stored(tmp_path):
    with ResultsStore(tmp_path / "results") as store:
        return {record.identity: record for record in store.records()}


def test_a_full_disk_in_the_middle_of_a_sweep(reproduce, tmp_path, monkeypatch):
    made, run = [], pools.run
    monkeypatch.setattr(pools, "run", lambda specs, folder: made.append(specs) or run(specs, folder))
    with files_up_to(60_000):  # enough for some runs; then the log of SQLite is too large
        code, said = reproduce()
    assert code == 2
    assert "cannot be written" in said
    assert "make room or choose another folder, then run the command again; what was stored is still there" in said
    kept = stored(tmp_path)
    assert 0 < len(kept) < RUNS
    assert reproduce()[0] == 0
    after = stored(tmp_path)
    assert len(after) == len({specs[0].identity for specs in made}) == RUNS
    assert {name: after[name] for name in kept} == kept
    assert len(made) <= RUNS + 1  # at most the run that found no room was made again


def test_a_sweep_that_ended_by_an_error_is_not_called_running(reproduce, tmp_path, monkeypatch, capsys):
    def failing(specs, folder):
        raise InvalidInput("no data here")

    monkeypatch.setattr(pools, "run", failing)
    assert reproduce()[0] == 2
    assert main(["status", "--results", str(tmp_path / "results")]) == 0
    assert "stopped, 0 of 8 runs done" in capsys.readouterr().out


def test_a_sweep_that_was_killed_is_told_and_shared_work_counts_once(tmp_path, capsys):
    about = {"role": "final", "dataset": "d", "method": "m", "settings": {}, "seed": 0, "status": "iterations"}
    shared = {"wall_seconds": 3600.0, "environment": {"work": "same", "threads": 1}}
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for pid, state in ((gone.pid, "was killed (the same command goes on)"), (os.getpid(), "running")):
        with ResultsStore(tmp_path) as store:
            store.add([Outcome(RunRecord(**about, **shared, identity=name, experiment=name)) for name in "ab"])
            store.say(command="c", state="running", text="1 of 2", share=0.5, pid=pid, node=platform.node())
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
    with ResultsStore(tmp_path) as store:
        store.add([Outcome(runs[0])])
        with files_up_to(50_000 if entries > 10 else 20), pytest.raises(NotWritten, match=r"runs cannot be written \("):
            store.add([Outcome(runs[1], {"x": np.zeros(entries)})])
        assert [folder.name for folder in store.runs.iterdir()] == [runs[0].identity]
        assert store.records() == runs[:1]
        assert store.add([Outcome(runs[1], {"x": np.zeros(entries)})]) == 1
    with ResultsStore(tmp_path) as store:
        assert store.records() == runs


def test_memory_that_runs_out_costs_no_other_run_and_is_named(reproduce, tmp_path, monkeypatch):
    calls, run = [], pools.run

    def without_memory_once(specs, folder):
        calls.append(specs)
        if len(calls) == 2:
            raise MemoryError("cannot allocate 3 GB")
        return run(specs, folder)

    with monkeypatch.context() as patch:
        patch.setattr(pools, "run", without_memory_once)
        code, said = reproduce("--methods", "dmlcbo")
    assert code == 2
    identity = calls[1][0].identity
    assert f"run {identity} ended with an error of its worker (MemoryError: cannot allocate 3 GB): the same com" in said
    assert list(stored(tmp_path)) == [calls[0][0].identity]
    assert reproduce("--methods", "dmlcbo")[0] == 0


def test_results_that_another_program_locks(reproduce, tmp_path, monkeypatch):
    assert reproduce("--methods", "dmlcbo")[0] == 0
    kept = stored(tmp_path)
    monkeypatch.setitem(ResultsStore.__init__.__kwdefaults__, "patience", 0.05)
    other = sqlite3.connect(tmp_path / "results" / "results.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    code, said = reproduce()
    other.execute("ROLLBACK")
    other.close()
    assert code == 2
    assert "results.sqlite is locked by another program: wait for it or end it, then run the command again" in said
    assert stored(tmp_path) == kept
    assert reproduce()[0] == 0
    assert {name: stored(tmp_path)[name] for name in kept} == kept
    assert len(stored(tmp_path)) == RUNS


@pytest.mark.parametrize("damage", ["another file", "cut off", "empty"])
def test_damaged_results_are_made_again_from_the_folders(reproduce, exported, tmp_path, monkeypatch, damage):
    assert reproduce()[0] == 0
    before, file = exported(), tmp_path / "results" / "results.sqlite"
    content = {"another file": b"<html>" * 2000, "cut off": file.read_bytes()[:5000], "empty": b""}[damage]
    file.write_bytes(content)
    if damage != "empty":  # an empty file is a database without rows: they are made again at once
        code, said = reproduce()
        assert code == 2
        assert "results.sqlite is damaged or not a file of results" in said
        assert "move it aside together with its -wal and -shm files" in said
        for left in file.parent.glob("results.sqlite*"):
            left.rename(tmp_path / left.name)
    with nothing_to_run(monkeypatch):
        assert reproduce()[0] == 0
    assert exported() == before


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
