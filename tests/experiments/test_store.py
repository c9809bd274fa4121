"""The store loses nothing: not when a program is killed, a file is damaged, or two programs write at once."""

import os
import shutil
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest

from bilevel.errors import CorruptFileError, InvalidInputError, MissingFileError, WriteError
from bilevel.experiments.run_folder import Outcome, RunRecord, write_run
from bilevel.experiments.store import ResultsStore, StoreLockedError


def outcome(number, **more):
    record = RunRecord(
        identity=f"{number:016x}", experiment="table-2", role="final", dataset="mnist", method="dmlcbo",
        settings={"upper_step": 0.1, "Q": 3}, seed=number, status="iterations", processor_seconds=1.5,
        training_seconds=0.1, counts={"steps": 20}, environment={"torch": "2"},
        curve={"step": [0, 20], "accuracy": [0.1 + 0.2, 1 / 3], "half_width": [float("inf"), 1e-300]}, **more,
    )  # fmt: skip
    return Outcome(record, {"x": np.arange(3.0)})


def test_records_come_back_with_the_same_bits(tmp_path):
    outcomes = [outcome(i) for i in range(3)]
    ResultsStore(tmp_path).add(outcomes)
    store = ResultsStore(tmp_path, reading=True)
    assert store.records() == [each.record for each in outcomes]
    assert store.records(experiment="table-2", role="final") == store.records()
    assert store.records(experiment="table-3") == store.records(role="grid") == []
    found = store.outcome(outcomes[0].record.identity)
    assert found.record == outcomes[0].record
    np.testing.assert_array_equal(found.state["x"], np.arange(3.0))
    assert [record.curve for record in store.records(curves=False)] == [{}] * 3


def test_nothing_is_doubled_or_replaced(tmp_path):
    store = ResultsStore(tmp_path)
    store.add([outcome(1)])
    ResultsStore(tmp_path).add([outcome(1, reason="made again"), outcome(2)])
    assert [record.reason for record in store.records()] == ["", ""]


def test_only_what_was_abandoned_long_ago_is_removed(tmp_path):
    store = ResultsStore(tmp_path)
    store.add([outcome(1)])
    old, new = (tmp_path / "runs" / f".{name}.tmp" for name in ("old", "new"))
    old.mkdir()
    new.mkdir()
    os.utime(old, (0, 0))
    store.remove_abandoned()
    assert (old.exists(), new.exists()) == (False, True)
    assert len(store.records()) == 1


def test_a_kill_while_a_folder_is_written_leaves_no_run(tmp_path):
    """What it leaves is a folder under a temporary name, with all files or half of them."""
    identity = outcome(1).record.identity
    ResultsStore(tmp_path / "other").add([outcome(1)])
    left = tmp_path / "runs" / f".{identity}.0123abcd.tmp"
    shutil.copytree(tmp_path / "other" / "runs" / identity, left)
    store = ResultsStore(tmp_path)
    assert store.records() == []
    store.add([outcome(1)])
    (left / "record.json").write_text("{")
    assert len(store.records()) == 1


def test_a_reader_writes_nothing(tmp_path):
    store = ResultsStore(tmp_path)
    store.add([outcome(1)])
    store.set_status(state="running")
    before = sorted(tmp_path.rglob("*"))
    reader = ResultsStore(tmp_path, reading=True)
    assert reader.records() == [outcome(1).record]
    assert reader.status()["state"] == "running"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_that_another_program_stored_in_the_same_moment_is_fine(tmp_path):
    store = ResultsStore(tmp_path)
    store.add([outcome(0)])

    class Meanwhile(RunRecord):
        """While it is written, another program stores the same run."""

        def __getattribute__(self, name):
            if name == "processor_seconds":
                write_run(outcome(1), store.runs)
            return super().__getattribute__(name)

    values = {each.name: getattr(outcome(1).record, each.name) for each in fields(RunRecord)}
    store.add([Outcome(Meanwhile(**values))])
    assert store.identities() == [folder.name for folder in sorted(store.runs.iterdir())]
    assert len(store.records()) == 2
    wrong = store.runs / outcome(2).record.identity
    wrong.mkdir()
    (wrong / "something else").touch()
    with pytest.raises(WriteError):
        store.add([outcome(2)])


def test_one_driver_at_a_time_and_a_killed_one_leaves_no_lock(tmp_path):
    hold = (
        "import os, sys; from bilevel.experiments import ResultsStore\n"
        "store = ResultsStore(sys.argv[1])\n"
        "with store.only_driver():\n"
        "    store.set_status(pid=os.getpid()); print('held', flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", hold, str(tmp_path)], text=True, **pipes) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        message = f"process {other.pid}.* is writing to {tmp_path}: wait for it or stop it by Ctrl-C, or choose another"
        with pytest.raises(StoreLockedError, match=message), ResultsStore(tmp_path).only_driver():
            pass
        other.kill()
    with ResultsStore(tmp_path).only_driver():
        pass


def test_results_of_version_0_1_are_refused(tmp_path):
    (tmp_path / "results.sqlite").touch()
    for reading in (True, False):
        with pytest.raises(InvalidInputError, match="holds results of bilevel 0.1: choose another folder"):
            ResultsStore(tmp_path, reading=reading)


@pytest.mark.parametrize("name", ["curve.csv", "record.json"])
def test_a_damaged_file_is_named(tmp_path, name):
    store = ResultsStore(tmp_path)
    store.add([outcome(1)])
    folder = tmp_path / "runs" / outcome(1).record.identity
    (folder / name).write_text("step,accuracy\n0\n")
    with pytest.raises(CorruptFileError, match=rf"{name} is damaged or missing .* delete the folder {folder};"):
        store.records()
    assert (name == "record.json") or len(store.records(curves=False)) == 1


def test_a_damaged_status_is_named(tmp_path):
    ResultsStore(tmp_path).set_status(state="running")
    (tmp_path / "status.json").write_text("{")
    with pytest.raises(CorruptFileError, match="status.json is damaged .* delete it"):
        ResultsStore(tmp_path).status()


def test_a_folder_without_results_is_named(tmp_path):
    with pytest.raises(MissingFileError, match="holds no results"):
        ResultsStore(tmp_path / "none", reading=True)
    ResultsStore(tmp_path / "none")
    assert not (tmp_path / "none").exists()
