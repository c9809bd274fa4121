"""Observers: every record in a file, also across a kill and a resume, and a log that fails ends no run."""

from __future__ import annotations

import csv
import json
import math
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

import bilevel
from bilevel import sets
from bilevel.observers import flat

START = torch.zeros(2).double()
RUN = {"steps": 40, "evaluate_every": 10}


def problem(**options):
    return bilevel.Problem(
        upper=lambda x, y: (y - 1).square().sum(),
        lower=lambda x, y: (y - x).square().sum(),
        y0=START,
        x0=START,
        **options,
    )


def rows_of(path):
    text = path.read_text()
    return (
        list(csv.DictReader(text.splitlines())) if path.suffix == ".csv" else [json.loads(s) for s in text.splitlines()]
    )


KINDS = {"csv": bilevel.CSVFile, "jsonl": bilevel.JSONLines}


@pytest.mark.parametrize("kind", KINDS)
def test_every_record_is_a_line(kind, tmp_path):
    path = tmp_path / f"run.{kind}"
    solution = bilevel.minimize(problem(), callbacks=[KINDS[kind](path)], **RUN)
    rows = rows_of(path)
    assert [int(row["step"]) for row in rows] == [0, 10, 20, 30, 40]
    for row, record in zip(rows, solution.history, strict=True):
        assert list(row) == list(flat(record))
        for name in ("upper", "lower_residual", "stationarity", "projections"):
            assert float(row[name]) == float(flat(record)[name])  # to the last digit
    assert rows[0]["contraction"] in ("", None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_goes_on_in_the_same_file(kind, tmp_path):
    """The log of the killed run is ahead of its checkpoint; after resuming it has each record once."""
    path, checkpoint = tmp_path / f"run.{kind}", tmp_path / "run.safetensors"

    class Killed(BaseException):
        pass

    def kill(record, state):
        if state.step == 30:
            raise Killed

    with pytest.raises(Killed):
        bilevel.minimize(problem(), checkpoint=checkpoint, callbacks=[KINDS[kind](path), kill], **RUN)
    bilevel.Solution.load(checkpoint)
    with path.open("a") as file:
        file.write("half a li")
    bilevel.minimize(problem(), resume=checkpoint, callbacks=[KINDS[kind](path)])
    assert [int(row["step"]) for row in rows_of(path)] == [0, 10, 20, 30, 40]


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_others_are_left_alone(kind, tmp_path):
    path = tmp_path / f"run.{kind}"
    path.write_text("precious\n")
    with pytest.raises(FileExistsError, match="exists and was left as it is"):
        bilevel.minimize(problem(), callbacks=[KINDS[kind](path)], **RUN)
    half = bilevel.minimize(problem(), **RUN)
    with pytest.raises(bilevel.InvalidInput, match="exists and was left as it is"):
        bilevel.minimize(problem(), resume=half, steps=10, callbacks=[KINDS[kind](path)])
    assert path.read_text() == "precious\n"
    with pytest.raises(FileNotFoundError, match="create it first"):
        KINDS[kind](tmp_path / "missing" / "run")


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_goes_on_from_a_state_has_no_history(kind, tmp_path):
    path = tmp_path / f"run.{kind}"
    state = bilevel.minimize(problem(), steps=5).state
    bilevel.minimize(problem(), resume=state, steps=10, evaluate_every=5, callbacks=[KINDS[kind](path)])
    assert [int(row["step"]) for row in rows_of(path)] == [10, 15]


def test_numbers_that_json_does_not_have(tmp_path):
    record = bilevel.Record(step=1, seconds=0.5, upper=math.inf, lower_residual=0.1, stationarity=math.nan)
    log = bilevel.JSONLines(tmp_path / "a.jsonl")
    log.begin([record])
    log.end()
    (row,) = rows_of(tmp_path / "a.jsonl")
    assert (row["upper"], row["stationarity"], row["seconds"]) == (None, None, 0.5)


def test_a_log_that_cannot_be_written_ends_no_run(tmp_path):
    log = bilevel.CSVFile(tmp_path / "run.csv")
    begin = log.begin

    def full(history):
        begin(history)
        log._file.close()
        log._file = open("/dev/full", "w")  # noqa: SIM115

    log.begin = full  # type: ignore[method-assign]
    with pytest.warns(bilevel.ObserverWarning, match=r"run.csv could not be written at step 10 \(No space left"):
        solution = bilevel.minimize(problem(), callbacks=[log], **RUN)
    assert solution.status is bilevel.Status.STEPS


class Watcher:
    def __init__(self):
        self.seen = []

    def begin(self, history):
        self.seen.append(["begin", len(history)])

    def __call__(self, record, state):
        self.seen.append([record.step, tuple(state.y.shape)])

    def end(self):
        self.seen.append(["end"])


@pytest.mark.parametrize("moving", [False, True])
def test_observers_are_told_of_begin_and_end(moving):
    """Also when the solver works on a rewritten problem."""
    constraint = (lambda x: sets.Translated(sets.L1Ball(0.5), x)) if moving else sets.L1Ball(0.5)
    watcher = Watcher()
    assert isinstance(watcher, bilevel.Observer)
    bilevel.minimize(
        problem(constraint=constraint), solver=bilevel.BiCGAFFA(), steps=4, evaluate_every=2, callbacks=[watcher]
    )
    assert watcher.seen == [["begin", 1], [2, (2,)], [4, (2,)], ["end"]]


def test_the_end_is_told_when_a_run_fails():
    watcher = Watcher()

    def fail(record, state):
        raise MemoryError

    with pytest.raises(MemoryError):
        bilevel.minimize(problem(), callbacks=[watcher, fail], **RUN)
    assert watcher.seen[-1] == ["end"]


# --- TensorBoard: the package is not among the pinned ones; a stand-in has the signatures of its SummaryWriter --------


class FakeWriter:
    made: list = []  # noqa: RUF012

    def __init__(self, log_dir=None, comment="", purge_step=None, max_queue=10, flush_secs=120, filename_suffix=""):
        self.log_dir, self.purge_step, self.scalars, self.closed = log_dir, purge_step, {}, False
        FakeWriter.made.append(self)

    def add_scalar(self, tag, scalar_value, global_step=None, walltime=None):
        self.scalars.setdefault(tag, []).append((global_step, scalar_value))

    def flush(self):
        pass

    def close(self):
        self.closed = True


def test_tensorboard_is_given_every_number(tmp_path, monkeypatch):
    fake = ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = FakeWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    half = bilevel.minimize(problem(), steps=20, evaluate_every=10, callbacks=[bilevel.TensorBoard(tmp_path)])
    bilevel.minimize(problem(), resume=half, steps=10, callbacks=[bilevel.TensorBoard(tmp_path)])
    first, second = FakeWriter.made
    assert (first.log_dir, first.purge_step, second.purge_step) == (str(tmp_path), None, 21)
    assert first.closed
    assert [step for step, _ in first.scalars["bilevel/upper"]] == [0, 10, 20]
    assert first.scalars["bilevel/upper"][-1] == (20, half.history[-1].upper)
    assert [step for step, _ in second.scalars["bilevel/projections"]] == [30]
    assert "bilevel/contraction" not in first.scalars  # there is none


def test_without_tensorboard_the_pip_line_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(bilevel.MissingExtra, match=r"pip install 'bilevel\[tensorboard\]'"):
        bilevel.TensorBoard(tmp_path)


def test_tensorboard_itself(tmp_path):
    """Where the package is installed, its own reader finds the numbers."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    solution = bilevel.minimize(problem(), callbacks=[bilevel.TensorBoard(tmp_path)], **RUN)
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    written = [SimpleNamespace(step=event.step, value=event.value) for event in events.Scalars("bilevel/upper")]
    assert [event.step for event in written] == [record.step for record in solution.history]
