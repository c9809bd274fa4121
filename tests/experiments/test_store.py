"""The store loses nothing: not when it is locked, damaged, full, or when a program is killed between two writes."""

import errno
import json
import os
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

from bilevel.experiments import run_folders
from bilevel.experiments.lock import StoreLocked, only_driver
from bilevel.experiments.record import RunRecord
from bilevel.experiments.run import Outcome
from bilevel.experiments.store import ResultsStore
from bilevel.files import Damaged, FileMissing, NotWritten


def outcome(number, **more):
    record = RunRecord(
        identity=f"{number:016x}", experiment="table-2", role="final", dataset="mnist", method="dmlcbo",
        settings={"upper_step": 0.1, "Q": 3}, seed=number, status="iterations", wall_seconds=1.5, training_seconds=0.1,
        counts={"steps": 20}, environment={"torch": "2"},
        curve={"step": [0, 20], "accuracy": [0.1 + 0.2, 1 / 3], "half_width": [float("inf"), 1e-300]}, **more,
    )  # fmt: skip
    return Outcome(record, {"x": np.arange(3.0)})


def test_records_come_back_with_the_same_bits(tmp_path):
    outcomes = [outcome(i) for i in range(3)]
    with ResultsStore(tmp_path) as store:
        assert store.add(outcomes) == 3
    with ResultsStore(tmp_path) as store:
        assert store.records() == [each.record for each in outcomes]
        assert store.records(experiment="table-2", role="final") == store.records()
        assert store.records(experiment="table-3") == store.records(role="grid") == []
        np.testing.assert_array_equal(store.folders.state(outcomes[0].record.identity)["x"], np.arange(3.0))
    rows = sqlite3.connect(tmp_path / "results.sqlite")
    assert rows.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    rows.close()


def test_nothing_is_doubled_or_replaced(tmp_path):
    with ResultsStore(tmp_path) as store:
        store.add([outcome(1)])
        other = outcome(1, reason="made again")
        assert store.add([other, outcome(2)]) == 1
        assert [record.reason for record in store.records()] == ["", ""]


def test_a_second_driver_does_not_double(tmp_path):
    with ResultsStore(tmp_path) as one, ResultsStore(tmp_path) as two:
        assert one.add([outcome(1)]) + two.add([outcome(1)]) == 1
        assert len(one.records()) == 1


def test_a_kill_between_folder_and_row_loses_nothing(tmp_path, monkeypatch):
    def killed(self, records):
        raise KeyboardInterrupt

    with ResultsStore(tmp_path) as store, monkeypatch.context() as patch:
        patch.setattr(ResultsStore, "_insert", killed)
        with pytest.raises(KeyboardInterrupt):
            store.add([outcome(1)])
    with ResultsStore(tmp_path) as store:
        assert store.records() == [outcome(1).record]


def test_only_what_was_written_aside_long_ago_is_removed(tmp_path):
    old, new = (tmp_path / "runs" / f".{name}.tmp" for name in ("old", "new"))
    with ResultsStore(tmp_path) as store:
        old.mkdir()
        new.mkdir()
        os.utime(old, (0, 0))
        store.folders.remove_leftovers()
    assert (old.exists(), new.exists()) == (False, True)


def test_a_kill_while_a_folder_is_written_leaves_no_run(tmp_path, monkeypatch):
    def killed(*_):
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(run_folders, "_rename", killed)
        patch.setattr(run_folders.shutil, "rmtree", lambda *_, **__: None)  # a program that is killed tidies nothing
        with ResultsStore(tmp_path) as store, pytest.raises(SystemExit):
            store.add([outcome(1)])
    (left,) = (tmp_path / "runs").iterdir()
    assert (left / "record.json").is_file()
    for reading in (True, False):
        with ResultsStore(tmp_path, reading=reading) as store:
            assert store.records() == []
    with ResultsStore(tmp_path) as store:
        assert store.add([outcome(1)]) == 1
    (left / "record.json").write_text("{")
    with ResultsStore(tmp_path, reading=True) as store:
        assert len(store.records()) == 1


def test_a_reader_is_not_kept_waiting_by_who_locks_readers_out(tmp_path):
    ResultsStore(tmp_path).close()
    other = sqlite3.connect(tmp_path / "results.sqlite", isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("INSERT INTO notes VALUES ('a', 'b')")
    with pytest.raises(StoreLocked, match="locked by another program"):
        ResultsStore(tmp_path, reading=True, patience=0.05)
    other.close()
    ResultsStore(tmp_path, reading=True).close()


def test_a_folder_that_may_not_be_written_can_be_read(tmp_path, monkeypatch):
    with ResultsStore(tmp_path) as store:
        store.add([outcome(1)])
    asked = []
    connect = sqlite3.connect
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    monkeypatch.setattr(sqlite3, "connect", lambda place, **more: asked.append(place) or connect(place, **more))
    with ResultsStore(tmp_path, reading=True) as store:
        assert len(store.records()) == 1
    assert any("mode=ro" in str(place) for place in asked)
    assert not any("mode=rw" in str(place) for place in asked)


def test_a_damaged_row_is_named(tmp_path):
    with ResultsStore(tmp_path) as store:
        store.add([outcome(1)])
    with sqlite3.connect(tmp_path / "results.sqlite") as rows:
        rows.execute("UPDATE runs SET settings = '{'")
    rows.close()
    with ResultsStore(tmp_path, reading=True) as store, pytest.raises(Damaged, match="the row of run"):
        store.records(curves=False)


def test_a_reader_writes_nothing_and_disturbs_no_writer(tmp_path):
    """It sees rows and folders without a row, also while a writer is in the middle of a transaction."""
    with ResultsStore(tmp_path) as store:
        store.add([outcome(1)])
        store.folders.write(outcome(2))  # and its row is to come
        (tmp_path / "runs" / ".half.tmp").mkdir()
        os.utime(tmp_path / "runs" / ".half.tmp", (0, 0))
        before = sorted(tmp_path.rglob("*"))
        store._rows.execute("BEGIN IMMEDIATE")
        with ResultsStore(tmp_path, reading=True, patience=0.05) as reader:
            assert reader.records() == [outcome(1).record, outcome(2).record]
        store._rows.execute("ROLLBACK")
        assert sorted(tmp_path.rglob("*")) == before
        assert store.identities() == {outcome(1).record.identity}
        assert store.add([outcome(2)]) == 1
    before = sorted(tmp_path.rglob("*"))
    ResultsStore(tmp_path, reading=True).close()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_reader_needs_no_rows(tmp_path):
    with ResultsStore(tmp_path) as store:
        store.add([outcome(1)])
    for left in tmp_path.glob("results.sqlite*"):
        left.unlink()
    with ResultsStore(tmp_path, reading=True) as reader:
        assert reader.records() == [outcome(1).record]
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_a_run_that_another_program_stored_in_the_same_moment_is_fine(tmp_path, monkeypatch):
    with ResultsStore(tmp_path) as store:
        place = store.runs / outcome(1).record.identity

        def meanwhile(path):
            place.mkdir(exist_ok=True)
            (place / "record.json").write_text(json.dumps(run_folders.row_of(outcome(1).record)))

        with monkeypatch.context() as patch:
            patch.setattr(run_folders, "_flush", meanwhile)
            assert store.add([outcome(1)]) == 1
        assert [folder.name for folder in store.runs.iterdir()] == [place.name]
        other = store.runs / outcome(2).record.identity
        other.mkdir()
        (other / "something else").touch()
        with pytest.raises(NotWritten):
            store.add([outcome(2)])


def test_one_driver_at_a_time_and_a_killed_one_leaves_no_lock(tmp_path):
    hold = (
        "import pathlib, sys, time; from bilevel.experiments.lock import only_driver\n"
        "with only_driver(pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(100)"
    )
    with subprocess.Popen([sys.executable, "-c", hold, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        message = f"process {other.pid}.* is at work in {tmp_path}: wait for it or stop it by Ctrl-C, or choose another"
        with pytest.raises(StoreLocked, match=message), only_driver(tmp_path):
            pass
        other.kill()
    with only_driver(tmp_path):
        pass


def test_a_locked_store_is_named_and_loses_nothing(tmp_path):
    with ResultsStore(tmp_path, patience=0.05) as store:
        store.add([outcome(1)])
        other = sqlite3.connect(tmp_path / "results.sqlite", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreLocked, match="locked by another program: wait for it or end it"):
            store.add([outcome(2)])
        other.execute("ROLLBACK")
        other.close()
    with ResultsStore(tmp_path) as store:
        assert len(store.records()) == 2


def test_a_damaged_store_is_named_and_made_again_from_its_runs(tmp_path):
    with ResultsStore(tmp_path) as store:
        store.add([outcome(1), outcome(2)])
        before = store.records()
    file = tmp_path / "results.sqlite"
    file.write_bytes(b"<html>" + bytes(range(256)) * 64)
    with pytest.raises(Damaged, match="results.sqlite is damaged .* move it aside"):
        ResultsStore(tmp_path)
    for left in tmp_path.glob("results.sqlite*"):
        left.rename(tmp_path / f"old-{left.name}")
    with ResultsStore(tmp_path) as store:
        assert store.records() == before


def test_a_damaged_curve_is_named(tmp_path):
    with ResultsStore(tmp_path) as store:
        store.add([outcome(1)])
        curve = tmp_path / "runs" / outcome(1).record.identity / "curve.csv"
        curve.write_text("step,accuracy\n0\n")
        with pytest.raises(Damaged, match=r"curve.csv is damaged or missing .* delete the folder"):
            store.records()
        assert len(store.records(curves=False)) == 1


def test_a_full_disk_is_named_and_keeps_what_was_there(tmp_path, monkeypatch):
    def full(curve):
        raise OSError(errno.ENOSPC, "No space left on device")

    with ResultsStore(tmp_path) as store:
        store.add([outcome(1)])
        with monkeypatch.context() as patch:
            patch.setattr(run_folders, "curve_text", full)
            with pytest.raises(NotWritten, match="No space left on device.*: make room"):
                store.add([outcome(2)])
        assert [folder.name for folder in store.runs.iterdir()] == [outcome(1).record.identity]
        store._rows.execute("PRAGMA max_page_count = 1")
        with pytest.raises(NotWritten, match="full.*: make room"):
            store.add([outcome(i, reason="x" * 100_000) for i in range(2, 5)])
        store._rows.execute("PRAGMA max_page_count = 1000000")
    with ResultsStore(tmp_path) as store:
        assert len(store.records()) == 4


def test_a_folder_without_results_is_named(tmp_path):
    with pytest.raises(FileMissing, match="holds no results"):
        ResultsStore(tmp_path / "none", reading=True)
    assert not (tmp_path / "none").exists()
