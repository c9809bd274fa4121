"""Checkpoints: what a run leaves on the disk when it ends, fails, is stopped or runs out of room."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import re
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.documents import write_document

import bilevel
from bilevel import cli, sets
from bilevel.cleaning import load_cleaner
from bilevel.run.checkpoint import Checkpoint, previous_of
from bilevel.run.minimize import SolverStage

FIXTURES = Path(__file__).parents[1] / "fixtures"
START = torch.zeros(3).double()


def problem(**options):
    target = torch.tensor([0.5, -0.2, 0.1]).double()
    return bilevel.Problem(
        upper=options.pop("upper", lambda x, y: (y - target).square().sum()),
        lower=lambda x, y: (y - x).square().sum(),
        constraint=options.pop("constraint", sets.L1Ball(1.0)),
        y0=torch.zeros(3).double(),
    )


def load_checkpoint(path):
    """The newest state that is intact."""
    return bilevel.Solution.from_document(Checkpoint(path).load())


def at_step(step, action):
    """A callback that does something at one step."""
    return lambda record, state: action() if state.step == step else None


def interrupt():
    raise KeyboardInterrupt


@pytest.fixture
def path(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("run.safetensors")


def test_the_end_and_the_state_before_it_are_on_the_disk(path):
    solution = bilevel.minimize(
        problem(), START, steps=25, checkpoint=bilevel.Checkpoint(path, every=10), solver=bilevel.DMLCBO(upper_step=0.1)
    )
    assert (bilevel.Solution.load(path).stats["steps"], load_checkpoint(previous_of(path)).stats["steps"]) == (25, 20)
    assert bilevel.Solution.load(path).status is solution.status is bilevel.Status.STEPS
    assert load_checkpoint(previous_of(path)).status is bilevel.Status.RUNNING
    assert solution.message == ""
    assert sorted(os.listdir()) == ["run.previous.safetensors", "run.safetensors"]


def test_resuming_goes_to_the_planned_end_with_the_settings_of_the_run(path):
    run = {"steps": 60, "evaluate_every": 10, "output": "best", "tol": 1e-9}
    whole = bilevel.minimize(problem(), START, **{"solver": bilevel.DMLCBO(upper_step=0.1), **run})
    stopped = bilevel.minimize(
        problem(),
        START,
        checkpoint=path,
        callbacks=[at_step(30, interrupt)],
        **{"solver": bilevel.DMLCBO(upper_step=0.1), **run},
    )
    assert stopped.status is bilevel.Status.INTERRUPTED
    resumed = bilevel.minimize(problem(), resume=path, checkpoint=path)
    assert [record.step for record in resumed.history] == [record.step for record in whole.history]
    assert (resumed.output, resumed.plan) == ("best", whole.plan)
    assert torch.equal(resumed.x, whole.x)
    again = bilevel.minimize(problem(), resume=path, progress=True)  # nothing is left to do
    assert (again.stats["steps"], again.status) == (60, bilevel.Status.STEPS)
    assert torch.equal(again.x, whole.x)
    assert bilevel.minimize(problem(), resume=path, steps=5).stats["steps"] == 65


@pytest.mark.parametrize("output", ["last", "best", "sampled"])
def test_an_evaluation_that_was_cut_short_is_made_again(path, output, monkeypatch):
    """Ctrl-C between a step and the end of its evaluation."""
    run = {"steps": 40, "evaluate_every": 10, "output": output}
    whole = bilevel.minimize(problem(), START, **{"solver": bilevel.DMLCBO(upper_step=0.1), **run})
    record = SolverStage.record

    def interrupted(self, state, seconds):
        if state.step == 20:
            raise KeyboardInterrupt
        return record(self, state, seconds)

    with monkeypatch.context() as patch:
        patch.setattr(SolverStage, "record", interrupted)
        bilevel.minimize(problem(), START, checkpoint=path, **{"solver": bilevel.DMLCBO(upper_step=0.1), **run})
    resumed = bilevel.minimize(problem(), resume=path)
    assert [record.step for record in resumed.history] == [0, 10, 20, 30, 40]
    assert torch.equal(resumed.x, whole.x)
    assert torch.equal(resumed.y, whole.y)


@pytest.mark.parametrize("output", ["last", "best", "sampled"])
def test_the_bits_of_a_set_that_moves(path, output):
    moving = problem(constraint=lambda x: sets.Translated(sets.L1Ball(0.5), x / 3))
    run = {"solver": bilevel.solvers.BiCGAFFA(), "steps": 30, "evaluate_every": 7, "output": output}
    whole = bilevel.minimize(moving, START, **{"solver": bilevel.DMLCBO(upper_step=0.1), **run})
    bilevel.minimize(
        moving,
        START,
        checkpoint=path,
        callbacks=[at_step(14, interrupt)],
        **{"solver": bilevel.DMLCBO(upper_step=0.1), **run},
    )
    resumed = bilevel.minimize(moving, resume=path, solver=run["solver"])
    assert torch.equal(resumed.x, whole.x)
    assert torch.equal(resumed.y, whole.y)


def rows_twice():
    """A cube whose rows come twice: the active ones are not unique, and those of the last call are the warm start."""
    rows = torch.cat([torch.eye(3), torch.eye(3), -torch.eye(3)]).double()
    return sets.Polyhedron(rows, 0.3 * torch.ones(9).double())


@pytest.mark.parametrize(
    "make",
    [rows_twice, lambda: sets.Intersection(sets.L1Ball(0.6), sets.Box(-0.3, 0.3))],
    ids=["Polyhedron", "Intersection"],
)
def test_sets_with_an_iteration_inside_resume_with_the_same_bits(path, make):
    """The resumed run has a set of its own, as in a new process."""
    run = {"steps": 9, "evaluate_every": 3}
    whole = bilevel.minimize(problem(constraint=make()), START, **{"solver": bilevel.DMLCBO(upper_step=0.1), **run})
    bilevel.minimize(
        problem(constraint=make()),
        START,
        checkpoint=path,
        callbacks=[at_step(6, interrupt)],
        **{"solver": bilevel.DMLCBO(upper_step=0.1), **run},
    )
    resumed = bilevel.minimize(problem(constraint=make()), resume=path)
    assert torch.equal(resumed.state.y, whole.state.y)
    assert torch.equal(resumed.state.x, whole.state.x)


# --- runs that have ended ---------------------------------------------------------------------------------------------

ENDS = {
    "STATIONARY": {"steps": 3000, "evaluate_every": 50, "tol": 1e-3},
    "CERTIFIED": {"steps": 300, "evaluate_every": 20, "tol": 0.2, "delta": 1e-3},
    "STOPPED": {"steps": 300, "evaluate_every": 10, "callbacks": [lambda record, state: record.step == 30]},
    "SERIES_DIVERGES": {"steps": 40, "evaluate_every": 10, "tol": 10.0,
                        "solver": bilevel.DMLCBO(upper_step=0.1, hypergradient=bilevel.Neumann(terms=2, eta=1.5))},
}  # fmt: skip


def restarted(run):
    """What the script of the docs passes on: no steps, no stopping rule."""
    return {name: run[name] for name in ("solver", "callbacks") if name in run}


@pytest.mark.parametrize("end", ENDS)
def test_a_run_that_has_ended_is_returned_as_it_is(path, end):
    """Its stopping rule decided, and the script that is started again after every crash does not overrule it."""
    run = ENDS[end]
    ended = bilevel.minimize(problem(), START, checkpoint=path, **{"solver": bilevel.DMLCBO(upper_step=0.1), **run})
    assert ended.status.name == end
    assert ended.state.step < run["steps"]
    again = bilevel.minimize(problem(), resume=path, checkpoint=path, **restarted(run))
    for found in (again, bilevel.Solution.load(path)):
        assert (found.status, found.stats, found.plan) == (ended.status, ended.stats, ended.plan)
        assert torch.equal(found.x, ended.x)
        assert found.rows() == ended.rows()


def test_a_run_that_has_ended_goes_on_when_asked(path):
    run = ENDS["STATIONARY"]
    ended = bilevel.minimize(problem(), START, checkpoint=path, **{"solver": bilevel.DMLCBO(upper_step=0.1), **run})
    assert bilevel.minimize(problem(), resume=path, steps=7).state.step == ended.state.step + 7
    tighter = bilevel.minimize(problem(), resume=path, tol=1e-5)
    assert tighter.status is bilevel.Status.STATIONARY
    assert torch.equal(
        tighter.x,
        bilevel.minimize(problem(), START, **{"solver": bilevel.DMLCBO(upper_step=0.1), **{**run, "tol": 1e-5}}).x,
    )


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("output", ["last", "best"])
def test_ctrl_c_at_the_evaluation_that_ends_a_run(path, end, output):
    """In a callback, after the record was made: it is judged when the run is resumed."""
    run = {**ENDS[end], "output": output}
    whole = bilevel.minimize(problem(), START, **{"solver": bilevel.DMLCBO(upper_step=0.1), **run})
    callbacks = [at_step(whole.state.step, interrupt), *run.get("callbacks", ())]
    stopped = bilevel.minimize(
        problem(),
        START,
        checkpoint=path,
        **{"solver": bilevel.DMLCBO(upper_step=0.1), **{**run, "callbacks": callbacks}},
    )
    assert (stopped.status, stopped.state.step) == (bilevel.Status.INTERRUPTED, whole.state.step)
    resumed = bilevel.minimize(problem(), resume=path, checkpoint=path, **restarted(run))
    assert (resumed.status, resumed.state.step) == (whole.status, whole.state.step)
    assert torch.equal(resumed.x, whole.x)
    assert {**resumed.stats, "seconds": 0} == {**whole.stats, "seconds": 0}


@pytest.mark.parametrize("output", ["last", "sampled"])
def test_the_counts_after_ctrl_c_within_a_step(path, output):
    """Half a step leaves nothing behind: neither x and y nor the counts know of it."""
    calls, stop_at = [], [0]

    def upper(x, y):
        calls.append(1)
        if len(calls) == stop_at[0]:
            raise KeyboardInterrupt
        return (y - 1).square().sum()

    run = {"steps": 12, "evaluate_every": 6, "output": output}
    whole = bilevel.minimize(problem(upper=upper), START, **{"solver": bilevel.DMLCBO(upper_step=0.1), **run})
    total, interrupted = len(calls), 0
    for stop_at[0] in range(4, total):
        calls.clear()
        with contextlib.suppress(KeyboardInterrupt):  # before the first step
            stopped = bilevel.minimize(
                problem(upper=upper), START, checkpoint=path, **{"solver": bilevel.DMLCBO(upper_step=0.1), **run}
            )
            interrupted += stopped.state.step not in (0, 6, 12)
            calls[:] = [1] * total
            resumed = bilevel.minimize(problem(upper=upper), resume=path)
            assert {**resumed.stats, "seconds": 0} == {**whole.stats, "seconds": 0}
            assert torch.equal(resumed.x, whole.x)
        for file in (path, previous_of(path)):
            file.unlink(missing_ok=True)
    assert interrupted > 5


# --- files in the way -------------------------------------------------------------------------------------------------


def test_files_of_other_runs_are_left_alone(path):
    half = bilevel.minimize(problem(), START, steps=5, checkpoint=path, solver=bilevel.DMLCBO(upper_step=0.1))
    content = path.read_bytes()
    for resume in (None, half):
        start = START if resume is None else None
        with pytest.raises(FileExistsError, match=r"run.safetensors exists and was left.*resume='run.safetensors'"):
            bilevel.minimize(problem(), start, steps=5, checkpoint=path, resume=resume)
    path.rename(previous_of(path))
    with pytest.raises(bilevel.InvalidInputError, match=r"run.previous.safetensors exists"):
        bilevel.minimize(problem(), START, steps=5, checkpoint=path, solver=bilevel.DMLCBO(upper_step=0.1))
    assert previous_of(path).read_bytes() == content


def test_a_run_that_is_refused_leaves_the_temporary_of_the_running_one(path):
    bilevel.minimize(problem(), START, steps=5, checkpoint=path, solver=bilevel.DMLCBO(upper_step=0.1))
    temporary = Path(".run.safetensors.0123456789abcdef.tmp")
    temporary.write_text("half a checkpoint")
    with pytest.raises(FileExistsError):
        bilevel.minimize(problem(), START, steps=5, checkpoint=path, solver=bilevel.DMLCBO(upper_step=0.1))
    assert temporary.read_text() == "half a checkpoint"
    bilevel.minimize(problem(), resume=path, checkpoint=path)
    assert not temporary.exists()


def test_a_second_run_that_would_write_the_same_file_is_refused(path):
    refused = []

    def second(record, state):
        with pytest.raises(bilevel.InvalidInputError, match="run.safetensors is the checkpoint of a run in progress"):
            bilevel.minimize(problem(), resume=path, checkpoint=path)
        refused.append(state.step)

    options = {"evaluate_every": 10, "checkpoint": path}
    bilevel.minimize(
        problem(), START, steps=20, callbacks=[second], **{"solver": bilevel.DMLCBO(upper_step=0.1), **options}
    )
    assert refused == [10, 20]
    assert bilevel.minimize(problem(), resume=path, steps=5, **options).state.step == 25
    assert sorted(os.listdir()) == ["run.previous.safetensors", "run.safetensors"]


def test_a_run_that_is_refused_leaves_nothing_behind(path):
    """Neither a checkpoint nor another log stands in the way of the corrected call."""
    Path("old.csv").write_text("precious")

    def run(log, other="other.csv"):
        callbacks = [bilevel.run.CSVFile(other), bilevel.run.CSVFile(log)]
        return bilevel.minimize(
            problem(), START, steps=5, checkpoint=path, callbacks=callbacks, solver=bilevel.DMLCBO(upper_step=0.1)
        )

    with pytest.raises(FileExistsError, match=r"old.csv exists and was left as it is"):
        run("old.csv")
    for log, other in (("same", "same"), ("run.safetensors", "a.csv"), ("b.csv", "run.previous.safetensors")):
        with pytest.raises(bilevel.InvalidInputError, match="is named twice: each log and checkpoint needs"):
            run(log, other)
    assert os.listdir() == ["old.csv"]
    run("new.csv")
    assert sorted(os.listdir()) == [
        "new.csv", "old.csv", "other.csv", "run.previous.safetensors", "run.safetensors"
    ]  # fmt: skip


def test_an_observer_that_fails_to_begin_leaves_no_checkpoint(path):
    class Unable:
        def begin(self, history):
            raise OSError("no such device")

        def __call__(self, record, state): ...

    with pytest.raises(OSError, match="no such device") as caught:
        bilevel.minimize(
            problem(), START, steps=5, checkpoint=path, callbacks=[Unable()], solver=bilevel.DMLCBO(upper_step=0.1)
        )
    assert not hasattr(caught.value, "__notes__")
    assert os.listdir() == []


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
@pytest.mark.parametrize("act", [1, 2, 3])
def test_the_two_checkpoints_never_share_their_bytes(path, act, links, monkeypatch):
    """The program ends between any two acts of the rotation: a byte that flips later damages one file, not both."""
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(PermissionError(1, "not permitted")))
    bilevel.minimize(
        problem(), START, steps=30, evaluate_every=10, checkpoint=path, solver=bilevel.DMLCBO(upper_step=0.1)
    )

    class Killed(BaseException):
        pass

    done, originals = [], {name: getattr(os, name) for name in ("link", "replace")}

    def watched(name):
        def act_of(*arguments):
            if len(done) == act:
                raise Killed
            done.append(name)
            return originals[name](*arguments)

        return act_of

    with monkeypatch.context() as patch:
        for name in originals:
            patch.setattr(os, name, watched(name))
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        with contextlib.suppress(Killed):
            bilevel.minimize(problem(), resume=path, checkpoint=path, steps=10)
    assert done
    assert path.stat().st_ino != previous_of(path).stat().st_ino
    with path.open("r+b") as file:
        file.seek(900)
        byte = file.read(1)
        file.seek(900)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.warns(bilevel.errors.CheckpointWarning, match="damaged"):
        assert load_checkpoint(path).stats["steps"] >= 20


@pytest.mark.parametrize(
    ("checkpoint", "message"),
    [
        ("missing/run.safetensors", "missing does not exist: create it first"),
        (3, "checkpoint must be a path or bilevel.Checkpoint"),
        ("", "checkpoint must be a path such as"),
        (".", "is a folder"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_the_first_step(path, checkpoint, message):
    def never(x, y):
        raise AssertionError

    with pytest.raises(bilevel.BilevelError, match=message):
        bilevel.minimize(problem(upper=never), START, START, checkpoint=checkpoint, resume=None)


def test_a_state_that_no_file_can_hold_is_known_before_the_first_step(path):
    class Mine(bilevel.DMLCBO):
        def init(self, *arguments):
            state = super().init(*arguments)
            state.adjoint = {(1, 2): torch.ones(1)}
            return state

        def step(self, *arguments):
            raise AssertionError

    with pytest.raises(bilevel.InvalidInputError, match="current/adjoint is of type dict, which cannot be stored"):
        bilevel.minimize(problem(), START, solver=Mine(), checkpoint=path)


def test_a_full_disk_after_resuming_names_the_old_file(path):
    bilevel.minimize(problem(), START, steps=5, checkpoint=path, solver=bilevel.DMLCBO(upper_step=0.1))
    with LittleRoom(100), pytest.warns(bilevel.errors.CheckpointWarning, match="Step 5 is in run.safetensors"):
        bilevel.minimize(problem(), resume=path, checkpoint=path, steps=3)
    assert load_checkpoint(path).stats["steps"] == 5


def test_settings_of_checkpoints():
    with pytest.raises(bilevel.InvalidInputError, match="is a folder"):
        load_checkpoint(Path())
    for name in ("a\0b", 300 * "a", f"{250 * 'a'}.safetensors"):
        with pytest.raises(bilevel.InvalidInputError, match="cannot be the name of a file"):
            bilevel.Checkpoint(name)
    with pytest.raises(bilevel.InvalidInputError, match="every must be an integer of at least 1, got 0"):
        bilevel.Checkpoint("a", every=0)
    with pytest.raises(bilevel.InvalidTypeError, match="about holds texts and numbers by name, got "):
        bilevel.Checkpoint("a", about={"f": print})  # type: ignore[dict-item]


# --- failure in the middle --------------------------------------------------------------------------------------------


def test_ctrl_c_names_the_file(path):
    solution = bilevel.minimize(
        problem(),
        START,
        steps=100,
        evaluate_every=10,
        checkpoint=path,
        callbacks=[at_step(20, interrupt)],
        solver=bilevel.DMLCBO(upper_step=0.1),
    )
    assert solution.message.startswith("Step 20 is in run.safetensors: minimize(..., resume='run.safetensors')")
    assert load_checkpoint(path).status is bilevel.Status.INTERRUPTED
    assert torch.equal(load_checkpoint(path).state.x, solution.state.x)


@pytest.mark.parametrize("value", ["nan", "overflow"])
def test_what_is_not_finite_leaves_the_last_finite_state(path, value):
    def upper(x, y):
        if value == "nan":
            return (y - 3).square().sum() + 0 * (0.2 - x).sqrt().sum()
        return (y - 3).square().sum() + (1e4 * (x - 0.2).clamp_min(0)).exp().exp().sum()

    free = problem(upper=upper, constraint=sets.Box(-9.0, 9.0))
    solution = bilevel.minimize(
        free,
        START,
        steps=2000,
        evaluate_every=1000,
        checkpoint=bilevel.Checkpoint(path, every=2),
        solver=bilevel.DMLCBO(upper_step=0.1),
    )
    saved = load_checkpoint(path)
    assert saved.status is solution.status is bilevel.Status.DIVERGED
    assert "is in run.safetensors" in solution.message
    assert torch.equal(saved.state.x, solution.state.x)
    assert bool(torch.isfinite(saved.x).all())
    assert saved.stats["steps"] > 2


def test_an_error_right_after_resuming_from_the_older_file_leaves_a_good_one_under_the_name(path):
    bilevel.minimize(
        problem(), START, steps=20, evaluate_every=10, checkpoint=path, solver=bilevel.DMLCBO(upper_step=0.1)
    )
    path.write_bytes(path.read_bytes()[:-1])

    class Unable(bilevel.DMLCBO):
        def step(self, *arguments):
            raise MemoryError

    Unable.__name__ = "DMLCBO"
    with pytest.warns(bilevel.errors.CheckpointWarning), pytest.raises(MemoryError) as caught:
        bilevel.minimize(problem(), resume=path, checkpoint=path, solver=Unable(upper_step=0.1))
    assert caught.value.__notes__[0].startswith("Step 10 is in run.safetensors")
    assert bilevel.Solution.load(path).stats["steps"] == 10


def test_an_error_of_the_users_function_keeps_the_run(path):
    calls = []

    def upper(x, y):
        calls.append(1)
        if len(calls) > 60:
            raise MemoryError("no memory is left")
        return (y - 1).square().sum()

    with pytest.raises(MemoryError, match="no memory") as caught:
        bilevel.minimize(
            problem(upper=upper),
            START,
            steps=500,
            evaluate_every=400,
            checkpoint=path,
            solver=bilevel.DMLCBO(upper_step=0.1),
        )
    (note,) = caught.value.__notes__
    step = int(load_checkpoint(path).stats["steps"])
    assert step > 20
    assert note.startswith(f"Step {step} is in run.safetensors")
    healthy = problem(upper=lambda x, y: (y - 1).square().sum())
    whole = bilevel.minimize(healthy, START, steps=80, solver=bilevel.DMLCBO(upper_step=0.1))
    assert torch.equal(bilevel.minimize(healthy, resume=path, steps=80 - step).x, whole.x)


class LittleRoom:
    """No file may grow beyond so many bytes: the system refuses to write, as on a full disk."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __enter__(self) -> None:
        self.handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        self.limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, self.limit[1]))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self.limit)
        signal.signal(signal.SIGXFSZ, self.handler)


def test_a_full_disk_is_a_warning_and_the_run_goes_on(path):
    """Records make the file grow until it is refused; the last good one stays and is named."""
    whole = bilevel.minimize(problem(), START, steps=20, evaluate_every=1, solver=bilevel.DMLCBO(upper_step=0.1))
    bilevel.minimize(
        problem(), START, steps=10, evaluate_every=1, checkpoint=path, solver=bilevel.DMLCBO(upper_step=0.1)
    )
    size = path.stat().st_size
    path.unlink()
    previous_of(path).unlink()
    with LittleRoom(size), pytest.warns(bilevel.errors.CheckpointWarning) as warned:
        solution = bilevel.minimize(
            problem(), START, steps=20, evaluate_every=1, checkpoint=path, solver=bilevel.DMLCBO(upper_step=0.1)
        )
    step = int(load_checkpoint(path).stats["steps"])
    assert 5 < step < 20
    first = str(warned[0].message)
    assert first.startswith("run.safetensors could not be written (")
    assert f"Step {step} is in run.safetensors" in first
    assert torch.equal(solution.x, whole.x)
    assert torch.equal(bilevel.minimize(problem(), resume=path).x, whole.x)
    assert sorted(os.listdir()) == ["run.previous.safetensors", "run.safetensors"]


def test_a_full_disk_when_a_solution_is_saved(path):
    solution = bilevel.minimize(problem(), START, steps=5, solver=bilevel.DMLCBO(upper_step=0.1))
    solution.save(path)
    good = path.read_bytes()
    with LittleRoom(100), pytest.raises(OSError, match=r"run.safetensors could not be written .*nothing was changed"):
        solution.save(path, overwrite=True)
    with LittleRoom(100), pytest.raises(bilevel.BilevelError):
        solution.save("new.safetensors")
    assert path.read_bytes() == good
    assert os.listdir() == ["run.safetensors"]


# --- older versions ---------------------------------------------------------------------------------------------------


def fixtures():
    spec = importlib.util.spec_from_file_location("make_fixtures", FIXTURES / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_is_a_file_of_every_format_version():
    from bilevel.cleaning import model_file
    from bilevel.run import checkpoint

    versions = {"run": checkpoint.VERSION, "cleaner": model_file.VERSION}
    expected = {f"{kind}-v{i + 1}" for kind, version in versions.items() for i in range(version)}
    assert {file.stem for file in FIXTURES.glob("*.safetensors")} == expected


@pytest.mark.parametrize("file", sorted(FIXTURES.glob("run-*")), ids=lambda file: file.stem)
def test_runs_of_older_versions_are_read_and_resumed(file):
    """The point nearest to (1, -1) in the l1 ball is (1/2, -1/2)."""
    solution = bilevel.Solution.load(file)
    assert [record.step for record in solution.history] == [0, 20, 40]
    assert solution.state.seeds == bilevel.Seeds.from_seed(3)
    resumed = bilevel.minimize(fixtures().problem(), resume=file, steps=400)
    assert torch.allclose(resumed.y, torch.tensor([0.5, -0.5]).double(), atol=1e-3)


@pytest.mark.parametrize("format", ["bilevel.Solution", "bilevel.Journal", "bilevel.MetaLearner"])
def test_files_of_version_0_1_are_refused_in_one_sentence(path, format):
    write_document(path, {"format": format, "version": 1}, {"x": torch.zeros(2)})
    with pytest.raises(bilevel.InvalidInputError) as caught:
        bilevel.minimize(problem(), resume=path)
    message = "the file was written by version 0.1 and cannot be read: start the run again"
    assert str(caught.value) == f"run.safetensors: {message}"


@pytest.mark.parametrize("file", sorted(FIXTURES.glob("cleaner-*")), ids=lambda file: file.stem)
def test_cleaners_of_older_versions_predict(file):
    features, _, _ = fixtures().rows()
    predicted = load_cleaner(file).cleaner.predict(features)
    assert (predicted == np.where(features[:, 0] > 0, "right", "left")).mean() > 0.9


# --- bilevel resume ---------------------------------------------------------------------------------------------------

STUDY = """
import torch, bilevel
def make():
    return bilevel.Problem(
        upper=lambda x, y: (y - 1).square().sum(), lower=lambda x, y: (y - x).square().sum(),
        constraint=bilevel.sets.L1Ball(1.0), x0=torch.zeros(2).double(), y0=torch.zeros(2).double())
problem, solver, number = make(), bilevel.DMLCBO(upper_step=0.3), 3
"""


@pytest.fixture
def study(path, monkeypatch):
    """A module of the user in the current folder, and a run of its problem that was stopped at step 20 of 50."""
    Path("study_of_a_user.py").write_text(STUDY)
    monkeypatch.syspath_prepend("")
    names: dict = {}
    exec(STUDY, names)
    run = {"solver": bilevel.DMLCBO(upper_step=0.3), "steps": 50, "evaluate_every": 10}
    checkpoint = bilevel.Checkpoint(path, about={"problem": "study_of_a_user:problem"})
    bilevel.minimize(
        names["problem"],
        checkpoint=checkpoint,
        callbacks=[at_step(20, interrupt)],
        **{"solver": bilevel.DMLCBO(upper_step=0.1), **run},
    )
    return bilevel.minimize(names["problem"], **{"solver": bilevel.DMLCBO(upper_step=0.1), **run})


@pytest.mark.parametrize("name", ["problem", "make"])
def test_resume_a_run_of_your_own(study, path, capsys, name):
    assert cli.main(["resume", str(path), "--problem", f"study_of_a_user:{name}"]) == 0
    shown = capsys.readouterr()
    assert "Solution(status=STEPS, steps=50" in shown.out
    assert "step 50/50" in shown.err
    assert torch.equal(bilevel.Solution.load(path).x, study.x)
    for arguments in ([], ["--problem", f"study_of_a_user:{name}"]):  # nothing is left to do, and no problem is needed
        content = path.read_bytes()
        assert cli.main(["resume", str(path), *arguments]) == 0
        shown = capsys.readouterr()
        assert "run.safetensors: this run has ended at step 50, all steps were taken; --steps N" in shown.out
        assert (shown.err, path.read_bytes()) == ("", content)
    assert cli.main(["resume", str(path), "--problem", f"study_of_a_user:{name}", "--steps", "5"]) == 0
    assert bilevel.Solution.load(path).stats["steps"] == 55


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run.safetensors"], "name its problem with --problem MODULE:NAME\n  problem: 'study_of_a_user:problem'"),
        (["other.safetensors"], "other.safetensors: there is no such file"),
        (["run.safetensors", "--problem", "study_of_a_user"], "must be MODULE:NAME"),
        (["run.safetensors", "--problem", "study_of_a_user:nothing"], "has no 'nothing'"),
        (["run.safetensors", "--problem", "study_of_a_user:number"], "this is a int, not a bilevel.Problem"),
        (["run.safetensors", "--problem", "no_such_study:problem"], "there is no module 'no_such_study'"),
    ],
)  # fmt: skip
def test_mistakes_in_resuming(study, arguments, message, capsys):
    assert cli.main(["resume", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_resume_a_run_that_stopped_early_says_why(path, capsys):
    bilevel.minimize(
        problem(),
        START,
        steps=900,
        checkpoint=path,
        callbacks=[lambda record, state: True],
        solver=bilevel.DMLCBO(upper_step=0.1),
    )
    assert cli.main(["resume", str(path)]) == 0
    assert "ended at step 100, a callback ended the run; --steps N" in capsys.readouterr().out


def test_resume_continues_the_logs_of_the_run(study, path, capsys):
    """The file names its logs; the resumed log is that of an undisturbed run, but for the seconds."""
    names: dict = {}
    exec(STUDY, names)
    run = {"solver": names["solver"], "steps": 50, "evaluate_every": 10}
    bilevel.minimize(
        names["problem"],
        callbacks=[bilevel.run.CSVFile("whole.log")],
        **{"solver": bilevel.DMLCBO(upper_step=0.1), **run},
    )
    callbacks = [bilevel.run.CSVFile("run.log"), at_step(30, interrupt)]
    bilevel.minimize(
        names["problem"],
        checkpoint="logged.safetensors",
        callbacks=callbacks,
        **{"solver": bilevel.DMLCBO(upper_step=0.1), **run},
    )
    assert cli.main(["resume", "logged.safetensors", "--problem", "study_of_a_user:problem"]) == 0
    assert "run.log is continued" in capsys.readouterr().err

    def lines(name):
        return [re.sub(r"(^\d+,)[\d.e-]+", r"\1", line) for line in Path(name).read_text().splitlines()]

    assert lines("run.log") == lines("whole.log")


@pytest.mark.parametrize("there", ["gone", "another's", "a folder"])
def test_resume_leaves_files_alone_that_are_not_its_logs(study, path, there, capsys):
    """An untrusted checkpoint may name any file."""
    names: dict = {}
    exec(STUDY, names)
    callbacks = [bilevel.run.CSVFile("precious.txt"), at_step(30, interrupt)]
    run = {"solver": names["solver"], "steps": 50, "evaluate_every": 10}
    bilevel.minimize(
        names["problem"],
        checkpoint="logged.safetensors",
        callbacks=callbacks,
        **{"solver": bilevel.DMLCBO(upper_step=0.1), **run},
    )
    Path("precious.txt").unlink()
    if there == "another's":
        Path("precious.txt").write_text("step,seconds,upper\n0,0.1,3\n")
    if there == "a folder":
        Path("precious.txt").mkdir()
    assert cli.main(["resume", "logged.safetensors", "--problem", "study_of_a_user:problem"]) == 0
    assert "precious.txt does not exist or is not a log of this run, and is not changed" in capsys.readouterr().err
    if there == "gone":
        assert not Path("precious.txt").exists()
    if there == "another's":
        assert Path("precious.txt").read_text() == "step,seconds,upper\n0,0.1,3\n"


def test_logs_in_a_file_that_are_none(study, path):
    solution = load_checkpoint(path)
    for logs, code in (
        ({"a": "open"}, 0), ({"": "CSVFile"}, 0), ({"a\0b": "CSVFile"}, 0), (3, 2), ({"a": 3}, 2), (["a"], 2)
    ):  # fmt: skip
        solution.document.plan = dataclasses.replace(solution.plan, logs=logs)
        solution.save(path, overwrite=True)
        assert cli.main(["resume", str(path), "--problem", "study_of_a_user:problem", "--steps", "1"]) == code
    assert set(os.listdir()) <= {"study_of_a_user.py", path.name, previous_of(path).name, "__pycache__"}


def test_resume_with_a_damaged_checkpoint_says_so(study, path, capsys):
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(bilevel.errors.CheckpointWarning, match="run.previous.safetensors, step 10"):
        assert cli.main(["resume", str(path), "--problem", "study_of_a_user:problem"]) == 0
    assert torch.equal(bilevel.Solution.load(path).x, study.x)


@pytest.mark.parametrize("solver", [
    bilevel.DMLCBO(), bilevel.DMLCBO.as_published(0.1, 0.2), bilevel.Approx(tolerance=1e-3),
    bilevel.DMLCBO(
        upper_step=0.1, hypergradient=bilevel.Neumann(smoothing=bilevel.hypergradients.Perturbed(radius=0.1))
    ),
], ids=lambda solver: type(solver).__name__)  # fmt: skip
def test_a_solver_comes_back_from_the_file(path, solver):
    bilevel.minimize(problem(constraint=sets.Box(-1.0, 1.0)), START, solver=solver, steps=2, checkpoint=path)
    assert load_checkpoint(path).plan.solver == solver


@dataclasses.dataclass(frozen=True)
class Mine(bilevel.DMLCBO):
    """A solver of a user, which a file cannot hold."""


def test_a_solver_of_your_own_is_named_and_passed_again(study, path, capsys):
    solver = Mine(upper_step=0.3)
    with pytest.raises(bilevel.IncompatibleError, match="a run of DMLCBO cannot be continued by Mine"):
        bilevel.minimize(fixtures().problem(), resume=path, solver=solver)
    options = {"checkpoint": "mine.safetensors", "callbacks": [at_step(2, interrupt)], "evaluate_every": 1}
    bilevel.minimize(fixtures().problem(), solver=solver, **options)
    assert load_checkpoint("mine.safetensors").solver.startswith("Mine(upper_step=0.3")
    with pytest.raises(bilevel.InvalidInputError, match=r"used Mine\(upper_step=0.3.*pass it as solver="):
        bilevel.minimize(fixtures().problem(), resume="mine.safetensors")
    assert bilevel.minimize(fixtures().problem(), resume="mine.safetensors", solver=solver, steps=3).state.step == 5
    assert cli.main(["resume", "mine.safetensors", "--problem", "study_of_a_user:problem"]) == 2
    assert "names the solver Mine(upper_step=0.3" in capsys.readouterr().err


@pytest.mark.slow
def test_the_demo_resumes(path, capsys, monkeypatch):
    from bilevel import demo

    minimize = bilevel.minimize

    def stopped(*arguments, **options):
        return minimize(
            *arguments, callbacks=[at_step(20, interrupt)], **{"solver": bilevel.DMLCBO(upper_step=0.1), **options}
        )

    monkeypatch.setattr(bilevel, "minimize", stopped)
    assert cli.main(["demo", "--seed", "1", "--steps", "30", "--checkpoint", "run.safetensors"]) == 130
    assert "stopped by Ctrl-C: Step 20 is in run.safetensors" in capsys.readouterr().err
    monkeypatch.setattr(bilevel, "minimize", minimize)
    assert cli.main(["resume", "run.safetensors"]) == 0
    shown = capsys.readouterr()
    assert "demo with seed 1, step 20, 10 steps left" in shown.err
    assert "learned weights" in shown.out
    data = demo.load_digits(1)
    weights, _ = demo.learn_weights(data, steps=30, seed=1, progress=False)
    assert torch.equal(weights, torch.sigmoid(bilevel.Solution.load(path).x))
    assert cli.main(["resume", "run.safetensors"]) == 0
    assert "this run has ended at step 30" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:[fg] differs between two calls:bilevel.errors.ProblemWarning")
def test_a_problem_that_draws_can_be_resumed(path):
    def upper(x, y):
        return (torch.nn.functional.dropout(y, 0.5) - 1).square().sum()

    start = torch.full((30,), 0.3).double()
    problem = bilevel.Problem(upper, lambda x, y: (y - x).square().sum(), x0=start, y0=start)
    bilevel.minimize(problem, solver=bilevel.DMLCBO(upper_step=0.1), steps=10, checkpoint=path)
    assert bilevel.minimize(problem, resume=path, solver=bilevel.DMLCBO(upper_step=0.1), steps=5).state.step == 15


def test_a_callback_that_changes_the_folder_does_not_move_the_checkpoint(tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir(), second.mkdir()
    monkeypatch.chdir(first)
    problem = bilevel.Problem(lambda x, y: (y - 1).square().sum(), lambda x, y: (y - x).square().sum())
    start = torch.zeros(2).double()
    bilevel.minimize(
        problem, start, start, steps=6, evaluate_every=2, solver=bilevel.DMLCBO(), checkpoint="run.safetensors",
        callbacks=[lambda record, state: os.chdir(second)],
    )  # fmt: skip
    assert bilevel.Solution.load(first / "run.safetensors").stats["steps"] == 6
    assert os.listdir(second) == []
