"""The engine: stages resumed with the same bits, interruptions, failures, files."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import bilevel
from bilevel.run.checkpoint import Checkpoint, RunDocument
from bilevel.run.engine import Limits, Run, Stage
from bilevel.run.solution import Status
from bilevel.solvers import State


@dataclass(kw_only=True, repr=False)
class Walk(State):
    """A random walk."""

    x: None = None
    y: None = None
    place: torch.Tensor

    def is_finite(self) -> bool:
        return bool(torch.isfinite(self.place).all())


class Walking(Stage):
    """Step k adds a number that is a function of the seed and k."""

    def __init__(self, name="walking", start=0.0, action=None):
        self.name, self.start, self.action, self.counts = name, start, action or {}, {"draws": 0}

    def init(self):
        return Walk(place=torch.full((2,), self.start, dtype=torch.float64))

    def step(self, state):
        self.counts = {"draws": self.counts["draws"] + 1}
        draw = torch.randn(2, generator=torch.Generator().manual_seed(state.step), dtype=torch.float64)
        if state.step + 1 in self.action:
            found = self.action[state.step + 1]()
            draw = draw if found is None else found
        return Walk(step=state.step + 1, place=state.place + draw)

    def record(self, state, seconds):
        return {"stage": self.name, "step": state.step, "sum": float(state.place.sum())}

    def result(self, state):
        return {"place": state.place}


def raises(error):
    def action():
        raise error

    return action


def journey(path=None, resume=None, action=None, steps=10, stage="second", **options):
    """Two walks, the second from where the first ended, with a single computation between them."""
    options = {"identity": {"seed": 0}, "checkpoint": path, "resume": resume, **options}
    limits = Limits(steps, record_every=3)
    with Run("journey", **options) as run:
        first = run.do(Walking("first", action=action if stage == "first" else None), limits)
        middle = run.once("middle", lambda: {"shift": float(first.result["place"][0])})
        if run.interrupted:
            return run, first
        return run, run.do(Walking("second", middle["shift"], action if stage == "second" else None), limits)


@pytest.fixture
def path(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("run.safetensors")


def test_stages_are_recorded_and_their_results_are_in_the_file(path):
    run, outcome = journey(path)
    assert (outcome.status, outcome.state.step, outcome.message) == (Status.STEPS, 10, "")
    assert [(row["stage"], row["step"]) for row in run.document.history] == [
        (name, step) for name in ("first", "second") for step in (3, 6, 9, 10)
    ]
    found = RunDocument.load(path)
    assert list(found.finished) == ["first", "middle", "second"]
    assert (found.counts, found.status, found.place) == ({"draws": 10}, Status.STEPS, 'Step 10 of "second"')
    assert torch.equal(found.finished["second"].result["place"], outcome.state.place)


@pytest.mark.parametrize("stage", ["first", "second"])
@pytest.mark.parametrize("step", [1, 2, 3, 9, 10])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_the_same_bits_after_a_stop_at_any_step(path, stage, step, error):
    whole = journey()
    action = {step: raises(error)}
    if error is KeyboardInterrupt:
        assert journey(path, action=action, stage=stage)[0].interrupted
    else:
        with pytest.raises(error) as caught:
            journey(path, action=action, stage=stage)
        assert "is in run.safetensors: journey(..., resume=" in caught.value.__notes__[0]
    run, outcome = journey(path, resume=path)
    assert torch.equal(outcome.state.place, whole[1].state.place)
    assert run.document.history == whole[0].document.history
    assert run.document.finished.keys() == whole[0].document.finished.keys()


def test_finished_stages_are_not_done_again(path):
    journey(path)
    content = path.read_bytes()
    with Run("journey", identity={"seed": 0}, checkpoint=path, resume=path) as run:
        outcome = run.do(Walking("first", action={1: raises(AssertionError)}), Limits(10))
        assert (outcome.status, outcome.state) == (Status.STEPS, None)
        assert outcome.result["place"].shape == (2,)
        assert run.once("middle", raises(AssertionError))
        last = run.do(Walking("second", action={1: raises(AssertionError)}), Limits(10))
        assert last.state.step == 10
    assert path.read_bytes() == content


def test_a_stage_that_is_reopened_goes_on(path):
    _, whole = journey(steps=10)
    journey(path, steps=10)
    with Run("journey", identity={"seed": 0}, resume=path) as run:
        run.reopen("second")
        longer = run.do(Walking("second"), Limits(14))
    assert longer.state.step == 14
    assert not torch.equal(longer.state.place, whole.state.place)


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


def press():
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_press_stops_after_the_step_at_hand_and_says_so(path, capsys):
    handler = signal.getsignal(signal.SIGINT)
    run, outcome = journey(path, action={5: press}, stage="first")
    assert (outcome.status, outcome.state.step, run.interrupted) == (Status.INTERRUPTED, 5, True)
    assert "stopping after this step; press Ctrl-C again to stop at once" in capsys.readouterr().err
    assert "Step 5 of \"first\" is in run.safetensors: journey(..., resume='run.safetensors')" in outcome.message
    assert signal.getsignal(signal.SIGINT) is handler
    whole = journey()[1]
    assert torch.equal(journey(path, resume=path)[1].state.place, whole.state.place)


def test_the_second_press_stops_at_once_and_the_last_complete_step_stands(path):
    def twice():
        press()
        press()
        raise AssertionError

    _, outcome = journey(path, action={5: twice}, stage="first")
    assert (outcome.status, outcome.state.step) == (Status.INTERRUPTED, 4)
    assert RunDocument.load(path).counts == {"draws": 4}


def test_nothing_is_written_after_an_interruption(path):
    with Run("journey", checkpoint=path) as run:
        run.do(Walking("first", action={5: press}), Limits(10))
        content = path.read_bytes()
        assert run.once("fit", lambda: 3) == 3
        last = run.do(Walking("last", action={2: press}), Limits(10))
        assert (last.status, last.state.step) == (Status.INTERRUPTED, 2)  # it can be interrupted itself
    assert path.read_bytes() == content


def test_a_press_within_a_single_computation_ends_the_run_after_it(path):
    with Run("journey", checkpoint=path) as run:
        assert run.once("start", lambda: press() or 3) == 3
        assert run.interrupted
    assert RunDocument.load(path).finished["start"].result == 3


def test_a_press_at_the_last_step_is_heeded_by_the_next_stage(path):
    with Run("journey") as run:
        assert run.do(Walking("first", action={10: press}), Limits(10)).status is Status.STEPS
        assert run.do(Walking("second"), Limits(10)).state.step == 1
        assert run.interrupted


def test_a_run_in_another_thread_leaves_signals_alone():
    found = []
    thread = threading.Thread(target=lambda: found.append(journey()[1].status))
    thread.start()
    thread.join()
    assert found == [Status.STEPS]


# --- failures, limits, callbacks --------------------------------------------------------------------------------------


def test_a_step_that_is_not_finite_keeps_the_state_before_it(path):
    action = {5: lambda: torch.tensor([1.0, torch.inf]).double()}
    _, outcome = journey(path, action=action)
    assert (outcome.status, outcome.state.step) == (Status.DIVERGED, 4)
    found = RunDocument.load(path)
    assert (found.status, found.counts) == (Status.DIVERGED, {"draws": 4})
    assert list(found.finished) == ["first", "middle", "second"]  # a stage that fails is not tried again by itself


@pytest.mark.parametrize("error", [bilevel.NotConvergedError("too slow"), bilevel.EmptySetError("no point")])
def test_a_part_that_fails_ends_the_stage_and_is_an_error_at_its_first_step(error):
    _, outcome = journey(action={5: raises(error)})
    assert (outcome.status, outcome.message) == (Status.FAILED, str(error))
    with pytest.raises(type(error)):
        journey(action={1: raises(error)})


def test_limits_in_seconds_and_the_clock():
    ticks = iter(range(1000))
    limits = Limits(seconds=6.0, record_every=4, clock=lambda: float(next(ticks)))
    with Run("journey") as run:
        outcome = run.do(Walking(), limits)
    assert (outcome.status, outcome.state.step) == (Status.TIME, 5)  # the start takes a second, as every step does
    assert [row["step"] for row in run.document.history] == [4, 5]


def test_callbacks_see_rows_and_states_and_may_stop():
    seen = []

    class Observer:
        def begin(self, history):
            seen.append(("begin", len(history)))

        def __call__(self, row, state):
            seen.append((row["step"], state.step))
            return row["step"] == 6

        def end(self):
            seen.append("end")

    with Run("journey", callbacks=[Observer()]) as run:
        assert run.do(Walking(), Limits(10, record_every=3)).status is Status.STOPPED
    assert seen == [("begin", 0), (3, 3), (6, 6), "end"]


def test_progress_is_the_share_of_the_work_of_all_stages(capsys):
    work = {"first": 10.0, "middle": 0.0, "second": 30.0, "left out": 0.0}
    journey(progress=True, work=work)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" %")[0] for line in lines] == ["15", "22", "48", "70", "92", "100"]
    assert lines[-1] == "100 %: second"
    assert "left" in lines[1]
    with Run("walk", progress=True) as run:
        run.do(Walking(), Limits(2, record_every=1))
    assert capsys.readouterr().err.splitlines()[-1] == "step 2/2: walking"


# --- the file ---------------------------------------------------------------------------------------------------------


def test_another_identity_is_refused_by_name(path):
    journey(path)
    with pytest.raises(bilevel.IncompatibleError, match="run.safetensors cannot be continued, since seed differs"):
        journey(path, resume=path, identity={"seed": 1})
    with pytest.raises(bilevel.IncompatibleError, match="is a run of journey, not of minimize"):
        Run("minimize", resume=path)


def test_a_damaged_file_is_noticed_and_the_one_before_it_used(path):
    whole = journey(path)[1]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(bilevel.errors.CheckpointWarning, match='step 9 of "second"'):
        _, outcome = journey(path, resume=path)
    assert torch.equal(outcome.state.place, whole.state.place)


def test_files_of_others_are_left_alone(path):
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="exists and was left as it is"):
        journey(path)
    assert path.read_text() == "precious"
    journey(path, overwrite=True)
    assert RunDocument.load(path).place == 'Step 10 of "second"'


def test_a_checkpoint_can_be_written_less_often_than_records_are_made(path):
    with pytest.raises(MemoryError) as caught:
        journey(Checkpoint(path, every=5), action={8: raises(MemoryError)}, stage="first")
    assert 'Step 7 of "first" is in run.safetensors' in caught.value.__notes__[0]
    assert RunDocument.load("run.previous.safetensors").state.step == 5


def test_what_no_file_can_hold_is_known_before_the_first_step(path):
    class Unable(Walking):
        def init(self):
            return Walk(place={1, 2})

        def step(self, state):
            raise AssertionError

    with pytest.raises(bilevel.InvalidInputError, match="place is of type set, which cannot be stored"):  # noqa: SIM117
        with Run("journey", checkpoint=path) as run:
            run.do(Unable(), Limits(10))
    assert os.listdir() == []
