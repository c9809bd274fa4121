"""The store loses nothing: not when it is locked, damaged, full, or when a program is killed between two writes."""

import errno
import sqlite3

import numpy as np
import pytest

from bilevel.experiments import store as store_module
from bilevel.experiments.record import RunRecord
from bilevel.experiments.run import Outcome
from bilevel.experiments.store import ResultsStore, StoreLocked
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
        np.testing.assert_array_equal(store.state(outcomes[0].record.identity)["x"], np.arange(3.0))
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
    (tmp_path / "runs" / ".half.tmp").mkdir()
    with ResultsStore(tmp_path) as store:
        assert store.records() == [outcome(1).record]
    assert not (tmp_path / "runs" / ".half.tmp").exists()


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
            patch.setattr(store_module, "curve_text", full)
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
        ResultsStore(tmp_path / "none", create=False)
    assert not (tmp_path / "none").exists()
