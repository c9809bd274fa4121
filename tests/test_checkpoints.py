"""Checkpoints: what a run leaves on the disk when it ends, fails, is stopped or runs out of room."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

import bilevel
from bilevel import cli, resuming, sets
from bilevel.applications.hyper_cleaning import load_cleaner
from bilevel.checkpoints import load_checkpoint, previous_of

FIXTURES = Path(__file__).parent / "fixtures"
START = torch.zeros(3).double()


def problem(**options):
    target = torch.tensor([0.5, -0.2, 0.1]).double()
    return bilevel.Problem(
        upper=options.pop("upper", lambda x, y: (y - target).square().sum()),
        lower=lambda x, y: (y - x).square().sum(),
        constraint=options.pop("constraint", sets.L1Ball(1.0)),
        y0=torch.zeros(3).double(),
    )


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
    solution = bilevel.minimize(problem(), START, steps=25, checkpoint=bilevel.Checkpoint(path, every=10))
    assert (bilevel.Solution.load(path).stats["steps"], load_checkpoint(previous_of(path)).stats["steps"]) == (25, 20)
    assert bilevel.Solution.load(path).status is solution.status is bilevel.Status.STEPS
    assert load_checkpoint(previous_of(path)).status is bilevel.Status.RUNNING
    assert solution.message == ""
    assert sorted(os.listdir()) == ["run.previous.safetensors", "run.safetensors"]


def test_resuming_goes_to_the_planned_end_with_the_settings_of_the_run(path):
    run = {"steps": 60, "evaluate_every": 10, "output": "best", "tol": 1e-9}
    whole = bilevel.minimize(problem(), START, **run)
    stopped = bilevel.minimize(problem(), START, checkpoint=path, callbacks=[at_step(30, interrupt)], **run)
    assert stopped.status is bilevel.Status.INTERRUPTED
    resumed = bilevel.minimize(problem(), resume=path, checkpoint=path)
    assert [record.step for record in resumed.history] == [record.step for record in whole.history]
    assert (resumed.output, resumed.plan) == ("best", {**whole.plan, "about": {}, "checkpoint_every": None})
    assert torch.equal(resumed.x, whole.x)
    again = bilevel.minimize(problem(), resume=path, progress=True)  # nothing is left to do
    assert (again.stats["steps"], again.status) == (60, bilevel.Status.STEPS)
    assert torch.equal(again.x, whole.x)
    assert bilevel.minimize(problem(), resume=path, steps=5).stats["steps"] == 65


@pytest.mark.parametrize("output", ["last", "best", "sampled"])
def test_an_evaluation_that_was_cut_short_is_made_again(path, output, monkeypatch):
    """Ctrl-C between a step and the end of its evaluation."""
    run = {"steps": 40, "evaluate_every": 10, "output": output}
    whole = bilevel.minimize(problem(), START, **run)
    record = bilevel.loop._Run._record

    def interrupted(self):
        if self.state.step == 20:
            raise KeyboardInterrupt
        return record(self)

    with monkeypatch.context() as patch:
        patch.setattr("bilevel.loop._Run._record", interrupted)
        bilevel.minimize(problem(), START, checkpoint=path, **run)
    resumed = bilevel.minimize(problem(), resume=path)
    assert [record.step for record in resumed.history] == [0, 10, 20, 30, 40]
    assert torch.equal(resumed.x, whole.x)
    assert torch.equal(resumed.y, whole.y)


@pytest.mark.parametrize("output", ["last", "best", "sampled"])
def test_the_bits_of_a_set_that_moves(path, output):
    moving = problem(constraint=lambda x: sets.Translated(sets.L1Ball(0.5), x / 3))
    run = {"solver": bilevel.BiCGAFFA(), "steps": 30, "evaluate_every": 7, "output": output}
    whole = bilevel.minimize(moving, START, **run)
    bilevel.minimize(moving, START, checkpoint=path, callbacks=[at_step(14, interrupt)], **run)
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
    whole = bilevel.minimize(problem(constraint=make()), START, **run)
    bilevel.minimize(problem(constraint=make()), START, checkpoint=path, callbacks=[at_step(6, interrupt)], **run)
    resumed = bilevel.minimize(problem(constraint=make()), resume=path)
    assert torch.equal(resumed.state.y, whole.state.y)
    assert torch.equal(resumed.state.x, whole.state.x)


# --- runs that have ended ---------------------------------------------------------------------------------------------

ENDS = {
    "STATIONARY": {"steps": 3000, "evaluate_every": 50, "tol": 1e-3},
    "CERTIFIED": {"steps": 300, "evaluate_every": 20, "tol": 0.2, "delta": 1e-3},
    "STOPPED": {"steps": 300, "evaluate_every": 10, "callbacks": [lambda record, state: record.step == 30]},
    "SERIES_DIVERGES": {"steps": 40, "evaluate_every": 10, "tol": 10.0,
                        "solver": bilevel.DMLCBO(hypergradient=bilevel.Neumann(terms=2, eta=1.5))},
}  # fmt: skip


def restarted(run):
    """What the script of the docs passes on: no steps, no stopping rule."""
    return {name: run[name] for name in ("solver", "callbacks") if name in run}


@pytest.mark.parametrize("end", ENDS)
def test_a_run_that_has_ended_is_returned_as_it_is(path, end):
    """Its stopping rule decided, and the script that is started again after every crash does not overrule it."""
    run = ENDS[end]
    ended = bilevel.minimize(problem(), START, checkpoint=path, **run)
    assert ended.status.name == end
    assert ended.state.step < run["steps"]
    again = bilevel.minimize(problem(), resume=path, checkpoint=path, **restarted(run))
    for found in (again, bilevel.Solution.load(path)):
        assert (found.status, found.stats, found.plan) == (ended.status, ended.stats, ended.plan)
        assert torch.equal(found.x, ended.x)
        assert found.rows() == ended.rows()


def test_a_run_that_has_ended_goes_on_when_asked(path):
    run = ENDS["STATIONARY"]
    ended = bilevel.minimize(problem(), START, checkpoint=path, **run)
    assert bilevel.minimize(problem(), resume=path, steps=7).state.step == ended.state.step + 7
    tighter = bilevel.minimize(problem(), resume=path, tol=1e-5)
    assert tighter.status is bilevel.Status.STATIONARY
    assert torch.equal(tighter.x, bilevel.minimize(problem(), START, **{**run, "tol": 1e-5}).x)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("output", ["last", "best"])
def test_ctrl_c_at_the_evaluation_that_ends_a_run(path, end, output):
    """In a callback, after the record was made: it is judged when the run is resumed."""
    run = {**ENDS[end], "output": output}
    whole = bilevel.minimize(problem(), START, **run)
    callbacks = [at_step(whole.state.step, interrupt), *run.get("callbacks", ())]
    stopped = bilevel.minimize(problem(), START, checkpoint=path, **{**run, "callbacks": callbacks})
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
    whole = bilevel.minimize(problem(upper=upper), START, **run)
    total, interrupted = len(calls), 0
    for stop_at[0] in range(4, total):
        calls.clear()
        with contextlib.suppress(KeyboardInterrupt):  # before the first step
            stopped = bilevel.minimize(problem(upper=upper), START, checkpoint=path, **run)
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
    half = bilevel.minimize(problem(), START, steps=5, checkpoint=path)
    content = path.read_bytes()
    for resume in (None, half):
        start = START if resume is None else None
        with pytest.raises(FileExistsError, match=r"run.safetensors exists and was left.*resume='run.safetensors'"):
            bilevel.minimize(problem(), start, steps=5, checkpoint=path, resume=resume)
    path.rename(previous_of(path))
    with pytest.raises(bilevel.InvalidInput, match=r"run.previous.safetensors exists"):
        bilevel.minimize(problem(), START, steps=5, checkpoint=path)
    assert previous_of(path).read_bytes() == content


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
            state.adjoint = {1: torch.ones(1)}
            return state

        def step(self, *arguments):
            raise AssertionError

    with pytest.raises(bilevel.InvalidInput, match="state/adjoint is of type dict, which has no place in a file"):
        bilevel.minimize(problem(), START, solver=Mine(), checkpoint=path)


def test_a_full_disk_after_resuming_names_the_old_file(path):
    bilevel.minimize(problem(), START, steps=5, checkpoint=path)
    with LittleRoom(100), pytest.warns(bilevel.CheckpointWarning, match="Step 5 is in run.safetensors"):
        bilevel.minimize(problem(), resume=path, checkpoint=path, steps=3)
    assert load_checkpoint(path).stats["steps"] == 5


def test_settings_of_checkpoints():
    with pytest.raises(bilevel.InvalidInput, match="every must be an integer of at least 1, got 0"):
        bilevel.Checkpoint("a", every=0)
    with pytest.raises(bilevel.InvalidType, match="about holds texts and numbers by name, got 'f': "):
        bilevel.Checkpoint("a", about={"f": print})  # type: ignore[dict-item]


# --- failure in the middle --------------------------------------------------------------------------------------------


def test_ctrl_c_names_the_file(path):
    solution = bilevel.minimize(
        problem(), START, steps=100, evaluate_every=10, checkpoint=path, callbacks=[at_step(20, interrupt)]
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
        free, START, steps=2000, evaluate_every=1000, checkpoint=bilevel.Checkpoint(path, every=2)
    )
    saved = load_checkpoint(path)
    assert saved.status is solution.status is bilevel.Status.DIVERGED
    assert "is in run.safetensors" in solution.message
    assert torch.equal(saved.state.x, solution.state.x)
    assert bool(torch.isfinite(saved.x).all())
    assert saved.stats["steps"] > 2


def test_an_error_of_the_users_function_keeps_the_run(path):
    calls = []

    def upper(x, y):
        calls.append(1)
        if len(calls) > 60:
            raise MemoryError("no memory is left")
        return (y - 1).square().sum()

    with pytest.raises(MemoryError, match="no memory") as caught:
        bilevel.minimize(problem(upper=upper), START, steps=500, evaluate_every=400, checkpoint=path)
    (note,) = caught.value.__notes__
    step = int(load_checkpoint(path).stats["steps"])
    assert step > 20
    assert note.startswith(f"Step {step} is in run.safetensors")
    healthy = problem(upper=lambda x, y: (y - 1).square().sum())
    whole = bilevel.minimize(healthy, START, steps=80)
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
    whole = bilevel.minimize(problem(), START, steps=20, evaluate_every=1)
    bilevel.minimize(problem(), START, steps=10, evaluate_every=1, checkpoint=path)
    size = path.stat().st_size
    path.unlink()
    previous_of(path).unlink()
    with LittleRoom(size), pytest.warns(bilevel.CheckpointWarning) as warned:
        solution = bilevel.minimize(problem(), START, steps=20, evaluate_every=1, checkpoint=path)
    step = int(load_checkpoint(path).stats["steps"])
    assert 5 < step < 20
    first = str(warned[0].message)
    assert first.startswith("run.safetensors could not be written (")
    assert f"Step {step} is in run.safetensors" in first
    assert torch.equal(solution.x, whole.x)
    assert torch.equal(bilevel.minimize(problem(), resume=path).x, whole.x)
    assert sorted(os.listdir()) == ["run.previous.safetensors", "run.safetensors"]


def test_a_full_disk_when_a_solution_is_saved(path):
    solution = bilevel.minimize(problem(), START, steps=5)
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
    from bilevel import storage
    from bilevel.applications.hyper_cleaning import model_file

    expected = {f"solution-v{i + 1}" for i in range(storage.VERSION)} | {
        f"cleaner-v{i + 1}" for i in range(model_file.VERSION)
    }
    assert {file.stem for file in FIXTURES.glob("*.safetensors")} == expected


@pytest.mark.parametrize("file", sorted(FIXTURES.glob("solution-*")), ids=lambda file: file.stem)
def test_solutions_of_older_versions_are_read_and_resumed(file):
    """The point nearest to (1, -1) in the l1 ball is (1/2, -1/2)."""
    solution = bilevel.Solution.load(file)
    assert [record.step for record in solution.history] == [0, 20, 40]
    assert solution.state.seeds == bilevel.Seeds.of(3)
    resumed = bilevel.minimize(fixtures().problem(), resume=file, steps=400)
    assert torch.allclose(resumed.y, torch.tensor([0.5, -0.5]).double(), atol=1e-3)


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
    bilevel.minimize(names["problem"], checkpoint=checkpoint, callbacks=[at_step(20, interrupt)], **run)
    return bilevel.minimize(names["problem"], **run)


@pytest.mark.parametrize("name", ["problem", "make"])
def test_resume_a_run_of_your_own(study, path, capsys, name):
    assert cli.main(["resume", str(path), "--problem", f"study_of_a_user:{name}"]) == 0
    shown = capsys.readouterr()
    assert "Solution(status=STEPS, steps=50" in shown.out
    assert "step 30/30" in shown.err
    assert torch.equal(bilevel.Solution.load(path).x, study.x)
    assert cli.main(["resume", str(path), "--problem", f"study_of_a_user:{name}"]) == 2
    assert "all 50 steps of this run are taken; --steps N takes more" in capsys.readouterr().err
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


def test_resume_with_a_damaged_checkpoint_says_so(study, path, capsys):
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(bilevel.CheckpointWarning, match="run.previous.safetensors, step 10"):
        assert cli.main(["resume", str(path), "--problem", "study_of_a_user:problem"]) == 0
    assert torch.equal(bilevel.Solution.load(path).x, study.x)


@pytest.mark.parametrize("solver", [
    bilevel.DMLCBO(), bilevel.DMLCBO.as_published(0.1, 0.2), bilevel.Approx(tolerance=1e-3),
    bilevel.DMLCBO(hypergradient=bilevel.Neumann(terms=3, smoothing=bilevel.Perturbed(radius=0.1))),
], ids=lambda solver: type(solver).__name__)  # fmt: skip
def test_a_solver_comes_back_from_its_text(solver):
    assert repr(resuming.solver_of(repr(solver))) == repr(solver)


@pytest.mark.parametrize("text", [
    "__import__('os').mkdir('exploded')", "DMLCBO(upper_step=open('exploded', 'w'))", "DMLCBO.as_published(1, 2)",
    "(lambda: 0)()", "DMLCBO(0.1)", "DMLCBO(**{'upper_step': -1})", "[" * 500, "", "DMLCBO", "9**9**9", "Mine()",
])  # fmt: skip
def test_a_text_that_is_no_plain_solver_is_refused(path, text):
    with pytest.raises(bilevel.InvalidInput, match="the file names the solver"):
        resuming.solver_of(text)
    assert os.listdir() == []


@pytest.mark.slow
def test_the_demo_resumes(path, capsys, monkeypatch):
    from bilevel import demo

    monkeypatch.setattr(demo, "TRAINING", 60)
    minimize = bilevel.minimize

    def stopped(*arguments, **options):
        return minimize(*arguments, callbacks=[at_step(20, interrupt)], **options)

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
    assert cli.main(["resume", "run.safetensors"]) == 2
    assert "all 30 steps of this demo are taken" in capsys.readouterr().err
