"""Observers: every record in a file, also across a kill and a resume, and a log that fails ends no run."""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import bilevel
from bilevel import sets
from bilevel.run.solution import record_values

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
    return list(csv.DictReader(path.read_text().splitlines()))


def test_every_record_is_a_line(tmp_path):
    path = tmp_path / "run.csv"
    solution = bilevel.minimize(
        problem(), callbacks=[bilevel.run.CSVFile(path)], **RUN, solver=bilevel.DMLCBO(upper_step=0.1)
    )
    rows = rows_of(path)
    assert [int(row["step"]) for row in rows] == [0, 10, 20, 30, 40]
    for row, record in zip(rows, solution.history, strict=True):
        assert list(row) == list(record_values(record))
        for name in ("upper", "lower_residual", "stationarity", "projections"):
            assert float(row[name]) == float(record_values(record)[name])  # to the last digit
    assert rows[0]["contraction"] == ""


def test_a_killed_run_goes_on_in_the_same_file(tmp_path):
    """The log of the killed run is ahead of its checkpoint; after resuming it has each record once."""
    path, checkpoint = tmp_path / "run.csv", tmp_path / "run.safetensors"

    class Killed(BaseException):
        pass

    def kill(record, state):
        if state.step == 30:
            raise Killed

    with pytest.raises(Killed):
        bilevel.minimize(
            problem(),
            checkpoint=checkpoint,
            callbacks=[bilevel.run.CSVFile(path), kill],
            **RUN,
            solver=bilevel.DMLCBO(upper_step=0.1),
        )
    bilevel.Solution.load(checkpoint)
    with path.open("a") as file:
        file.write("half a li")
    bilevel.minimize(problem(), resume=checkpoint, callbacks=[bilevel.run.CSVFile(path)])
    assert [int(row["step"]) for row in rows_of(path)] == [0, 10, 20, 30, 40]


def test_files_of_others_are_left_alone(tmp_path):
    path = tmp_path / "run.csv"
    path.write_text("precious\n")
    with pytest.raises(FileExistsError, match="exists and was left as it is"):
        bilevel.minimize(problem(), callbacks=[bilevel.run.CSVFile(path)], **RUN, solver=bilevel.DMLCBO(upper_step=0.1))
    half = bilevel.minimize(problem(), **RUN, solver=bilevel.DMLCBO(upper_step=0.1))
    with pytest.raises(bilevel.InvalidInputError, match="exists and was left as it is"):
        bilevel.minimize(problem(), resume=half, steps=10, callbacks=[bilevel.run.CSVFile(path)])
    assert path.read_text() == "precious\n"
    with pytest.raises(FileNotFoundError, match="create it first"):
        bilevel.run.CSVFile(tmp_path / "missing" / "run")


def test_a_run_that_goes_on_from_a_state_has_no_history(tmp_path):
    path = tmp_path / "run.csv"
    state = bilevel.minimize(problem(), steps=5, solver=bilevel.DMLCBO(upper_step=0.1)).state
    solution = bilevel.minimize(
        problem(), resume=state, steps=10, evaluate_every=5, callbacks=[bilevel.run.CSVFile(path)]
    )
    assert [int(row["step"]) for row in rows_of(path)] == [10, 15]
    assert not torch.equal(solution.x, state.x)  # automatic steps go on where given ones ended


def test_a_log_that_cannot_be_written_ends_no_run(tmp_path):
    path = tmp_path / "run.csv"
    log = bilevel.run.CSVFile(path)
    begin = log.begin

    def full(history):
        begin(history)
        (number,) = (
            int(link.name) for link in Path("/proc/self/fd").iterdir() if link.exists() and link.samefile(path)
        )
        with open("/dev/full", "w") as device:
            os.dup2(device.fileno(), number)

    log.begin = full  # type: ignore[method-assign]
    with pytest.warns(bilevel.errors.ObserverWarning, match=r"run.csv could not be written at step 10 \(No space left"):
        solution = bilevel.minimize(problem(), callbacks=[log], **RUN, solver=bilevel.DMLCBO(upper_step=0.1))
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
    bilevel.minimize(
        problem(constraint=constraint),
        solver=bilevel.solvers.BiCGAFFA(),
        steps=4,
        evaluate_every=2,
        callbacks=[watcher],
    )
    assert watcher.seen == [["begin", 1], [2, (2,)], [4, (2,)], ["end"]]


def test_the_end_is_told_when_a_run_fails():
    watcher = Watcher()

    def fail(record, state):
        raise MemoryError

    with pytest.raises(MemoryError):
        bilevel.minimize(problem(), callbacks=[watcher, fail], **RUN, solver=bilevel.DMLCBO(upper_step=0.1))
    assert watcher.seen[-1] == ["end"]


# --- TensorBoard, read back by its own reader -------------------------------------------------------------------------


def events_of(folder) -> dict[str, list[tuple[int, float]]]:
    """Every scalar in a folder: (step, value) by name."""
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})  # 0: all of them
    accumulator.Reload()
    names = accumulator.Tags()["scalars"]
    return {name: [(event.step, event.value) for event in accumulator.Scalars(name)] for name in names}


def test_tensorboard_has_every_number(tmp_path):
    solution = bilevel.minimize(
        problem(), callbacks=[bilevel.run.TensorBoard(tmp_path)], **RUN, solver=bilevel.DMLCBO(upper_step=0.1)
    )
    events = events_of(tmp_path)
    for name in ("upper", "lower_residual", "stationarity", "projections", "seconds"):
        expected = [(record.step, float(np.float32(record_values(record)[name]))) for record in solution.history]
        assert events[f"bilevel/{name}"] == expected  # TensorBoard keeps float32
    assert "bilevel/contraction" not in events  # there is none


def test_tensorboard_shows_each_record_of_a_killed_and_resumed_run_once(tmp_path):
    """The events of the killed run are ahead of its checkpoint."""
    path = tmp_path / "run.safetensors"

    class Killed(BaseException):
        pass

    def kill(record, state):
        if state.step == 30:
            raise Killed

    checkpoint = bilevel.Checkpoint(path, every=20)
    with pytest.raises(Killed):
        bilevel.minimize(
            problem(),
            checkpoint=checkpoint,
            callbacks=[bilevel.run.TensorBoard(tmp_path), kill],
            **RUN,
            solver=bilevel.DMLCBO(upper_step=0.1),
        )
    path.unlink()  # step 30, written by the rescue, which a kill -9 would not have let happen
    with pytest.warns(bilevel.errors.CheckpointWarning, match="step 20"):
        resumed = bilevel.minimize(problem(), resume=path, callbacks=[bilevel.run.TensorBoard(tmp_path)])
    upper = events_of(tmp_path)["bilevel/upper"]
    assert upper == [(record.step, float(np.float32(record.upper))) for record in resumed.history]
    assert [step for step, _ in upper] == [0, 10, 20, 30, 40]


def test_without_tensorboard_the_pip_line_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(bilevel.MissingExtraError, match=r"pip install 'bilevel\[tensorboard\]'"):
        bilevel.run.TensorBoard(tmp_path)
