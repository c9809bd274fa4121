"""A fit that was stopped goes on with the same bits, and repeats nothing that is in its checkpoint."""

from __future__ import annotations

import functools
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

import bilevel
from bilevel import HyperCleaner, cli
from bilevel.cleaning import load_cleaner
from bilevel.cleaning.losses import Squared
from bilevel.run.checkpoint import RunDocument, previous_of
from bilevel.run.engine import Run

SETTINGS = {"steps": 2, "random_state": 5}
QUICK = ["--steps", "3"]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def path(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("run.safetensors")


def table(rows: int = 120, columns: int = 6, classes: int = 3):
    generator = np.random.default_rng(2)
    X = generator.normal(size=(rows, columns))
    y = (X @ generator.normal(size=(columns, classes))).argmax(1)
    given, trusted = y.copy(), np.arange(rows) < 40
    wrong = ~trusted & (generator.random(rows) < 0.3)
    given[wrong] = (given[wrong] + 1) % classes
    return X, given, trusted


def outcome(cleaner: HyperCleaner) -> dict[str, bytes]:
    """Every number that a fit leaves, to the last bit; seconds are not among them."""
    history = [{name: value for name, value in row.items() if name != "seconds"} for row in cleaner.history_]
    facts = [history, cleaner.selection_, cleaner.radius_, cleaner.noise_, cleaner.n_iter_, cleaner.status_]
    arrays = {name: getattr(cleaner, name) for name in ("coef_", "intercept_", "sample_weight_", "transition_")}
    return {"facts": repr(facts).encode(), **{name: np.asarray(array).tobytes() for name, array in arrays.items()}}


class Stop:
    """A callback that raises `error` at its n-th call, and counts the calls."""

    def __init__(self, at: int = 0, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.at, self.error, self.calls = at, error, 0

    def __call__(self, moment):
        self.calls += 1
        if self.calls == self.at:
            raise self.error


class Killed(BaseException):
    """What no part of the library catches."""


CASES = {
    "auto": {},
    "weights for a radius that is given": {"noise": "rows", "radius": 2.0, "solver": "vpbgd"},
    "batches": {"noise": "rows", "batch_size": 16},
    "a set of the user": {"noise": "class-pairs", "constraint": bilevel.sets.Box(-1.0, 1.0)},
    "no intercept": {"noise": "transition", "fit_intercept": False},
}


@functools.cache
def undisturbed(case: str = "auto") -> tuple[dict[str, bytes], int]:
    """What a fit leaves that nobody stops, and its number of steps."""
    X, y, trusted = table()
    count = Stop()
    cleaner = HyperCleaner(**SETTINGS, **CASES[case], callback=count).fit(X, y, trusted=trusted)
    return outcome(cleaner), count.calls


@pytest.mark.parametrize("case", CASES)
def test_a_stopped_fit_ends_with_the_same_bits(path, case):
    """Stopped in the middle, and at the last step but one."""
    steps = undisturbed(case)[1]
    stop_and_resume(path, case, [steps // 2, steps - 1])


@pytest.mark.reliability
@pytest.mark.parametrize("case", CASES)
def test_a_fit_stopped_after_any_step_ends_with_the_same_bits(path, case):
    stop_and_resume(path, case, range(1, undisturbed(case)[1] + 1))


def stop_and_resume(path: Path, case: str, moments) -> None:
    X, y, trusted = table()
    settings = {**SETTINGS, **CASES[case]}
    whole, steps = undisturbed(case)
    for at in moments:
        checkpoint = path.with_name(f"{at}.safetensors")
        stop = Stop(at, Killed)
        with pytest.raises(Killed):
            HyperCleaner(**settings, callback=stop).fit(X, y, trusted=trusted, checkpoint=checkpoint)
        rest = Stop()
        resumed = HyperCleaner(**settings, callback=rest)
        resumed.fit(X, y, trusted=trusted, checkpoint=checkpoint, resume=checkpoint)
        assert outcome(resumed) == whole
        assert at + rest.calls == steps + 1  # every step was made once; the record that was cut short is made again


def test_row_weights_for_all_rows_are_a_stage_of_their_own(path):
    """More rows than the sample, whose wrong labels weights of rows explain best: they are learned again from all."""
    X = np.random.default_rng(0).normal(size=(2600, 5))
    right, trusted = X[:, 0] > 0, np.arange(2600) < 300
    y = np.where(~trusted & (X[:, 2] > -0.3), (X[:, 1] > 0) | right, right)  # wrong by a rule of its own
    settings = {"steps": 4, "random_state": 5, "loss": "smoothed hinge"}
    whole = HyperCleaner(**settings).fit(X, y, trusted=trusted)
    assert whole.noise_ == "rows"
    with pytest.raises(Killed):
        HyperCleaner(**settings, callback=Stop(10, Killed)).fit(X, y, trusted=trusted, checkpoint=path)
    document = RunDocument.load(path)
    assert (document.stage, document.state.step) == ("all rows", 2)
    resumed = HyperCleaner(**settings).fit(X, y, trusted=trusted, resume=path)
    assert outcome(resumed) == outcome(whole)


def test_finished_stages_are_not_repeated(path):
    X, y, trusted = table()
    whole = HyperCleaner(**SETTINGS).fit(X, y, trusted=trusted, checkpoint=path)
    calls = Stop()
    again = HyperCleaner(**SETTINGS, callback=calls).fit(X, y, trusted=trusted, resume=path)
    assert outcome(again) == outcome(whole)
    assert calls.calls == 0
    stages = ["start", *(f"{part} {name}" for name in whole.selection_ for part in ("learning", "trial")), "training"]
    assert list(RunDocument.load(path).finished) == stages


@pytest.mark.parametrize("stage", ["start", "trial class-pairs"])
def test_a_fit_stopped_within_a_stage_without_steps_makes_this_stage_again(path, stage, monkeypatch):
    X, y, trusted = table()
    whole, _ = undisturbed()
    once = Run.once

    def killed(self, name, compute):
        if name == stage:
            compute()
            raise Killed
        return once(self, name, compute)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "once", killed)
        with pytest.raises(Killed):
            HyperCleaner(**SETTINGS).fit(X, y, trusted=trusted, checkpoint=path)
    again = {"resume": path} if path.exists() else {}  # nothing is lost before the first stage
    assert outcome(HyperCleaner(**SETTINGS).fit(X, y, trusted=trusted, **again)) == whole


# --- Ctrl-C and errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [2, 7])
def test_ctrl_c_keeps_a_model_and_a_way_to_go_on(path, at):
    """The model is that of an early end; the checkpoint is not, and goes on to the end."""
    X, y, trusted = table()
    whole, _ = undisturbed()
    stopped = HyperCleaner(**SETTINGS, callback=Stop(at))
    with pytest.warns(
        bilevel.errors.CheckpointWarning, match=r"Step . of .* is in run.safetensors: HyperCleaner.fit.*resum"
    ):
        stopped.fit(X, y, trusted=trusted, checkpoint=bilevel.Checkpoint(path, every=7))
    assert stopped.status_ == "interrupted"
    stage = "training" if at == 7 else "learning"
    assert RunDocument.load(path).stage.startswith(stage)  # every=7, but the newest step is there
    resumed = HyperCleaner(**SETTINGS).fit(X, y, trusted=trusted, resume=path, checkpoint=path)
    assert outcome(resumed) == whole


def test_an_error_names_the_file(path):
    X, y, trusted = table()
    with pytest.raises(MemoryError) as caught:
        HyperCleaner(**SETTINGS, callback=Stop(2, MemoryError)).fit(X, y, trusted=trusted, checkpoint=path)
    assert caught.value.__notes__ == [
        "Step 2 of \"learning transition\" is in run.safetensors: HyperCleaner.fit(..., resume='run.safetensors') "
        "goes on from there"
    ]


def test_a_damaged_checkpoint_is_noticed_and_the_one_before_it_used(path):
    X, y, trusted = table()
    whole, _ = undisturbed()
    with pytest.raises(Killed):
        HyperCleaner(**SETTINGS, callback=Stop(4, Killed)).fit(X, y, trusted=trusted, checkpoint=path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.warns(
        bilevel.errors.CheckpointWarning, match=r"run.safetensors.*damaged.*run.previous.safetensors, step"
    ):
        resumed = HyperCleaner(**SETTINGS).fit(X, y, trusted=trusted, resume=path, checkpoint=path)
    assert outcome(resumed) == whole


# --- other rows, other settings ---------------------------------------------------------------------------------------


@pytest.fixture
def stopped(path):
    X, y, trusted = table()
    with pytest.raises(Killed):
        HyperCleaner(**SETTINGS, callback=Stop(2, Killed)).fit(X, y, trusted=trusted, checkpoint=path)
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 4}, r"run.safetensors cannot be continued, since steps differs.*2 then, 4 now"),
        ({"random_state": 6}, "since random_state differs"),
        ({"noise": "rows"}, "since noise differs.*'auto' then, 'rows' now"),
        ({"solver": bilevel.Approx(upper_step=0.5)}, "since solver differs"),
        ({"ridge": 0.1}, "since ridge differs"),
    ],
)
def test_other_settings_are_refused(stopped, change, message):
    X, y, trusted = table()
    with pytest.raises(bilevel.IncompatibleError, match=message):
        HyperCleaner(**{**SETTINGS, **change}).fit(X, y, trusted=trusted, resume=stopped)


def flat(scale):
    """A loss of the user: two versions of one class, with one `repr`."""

    class Flat(Squared):
        def __repr__(self):
            return "Flat()"

        def margin_loss(self, m):
            return scale * super().margin_loss(m)

    return Flat()


@pytest.mark.parametrize(("name", "make"), [
    ("constraint", lambda bound: bilevel.sets.Box(-1.0, torch.linspace(1.0, bound, 6))),
    ("loss", flat),
])  # fmt: skip
def test_another_set_and_another_loss_with_one_name_are_refused(path, name, make):
    X, y, trusted = table()
    then, same, other = make(1.0), make(1.0), make(2.0)
    assert repr(then) == repr(other)
    with pytest.raises(Killed):
        HyperCleaner(**SETTINGS, **{name: then}, noise="class-pairs", callback=Stop(2, Killed)).fit(
            X, y, trusted=trusted, checkpoint=path
        )
    with pytest.raises(bilevel.IncompatibleError, match=f"since {name} differs from that of its run"):
        HyperCleaner(**SETTINGS, **{name: other}, noise="class-pairs").fit(X, y, trusted=trusted, resume=path)
    again = HyperCleaner(**SETTINGS, **{name: same}, noise="class-pairs").fit(X, y, trusted=trusted, resume=path)
    assert again.status_ == "finished"


@pytest.mark.parametrize("which", ["X", "y", "the choice of trusted rows"])
def test_other_rows_are_refused(stopped, which):
    X, y, trusted = table()
    X[100, 3] += 1e-12 * (which == "X")
    y[100] = (y[100] + (which == "y")) % 3
    trusted[100] |= which.startswith("the choice")
    before = stopped.read_bytes()
    with pytest.raises(bilevel.IncompatibleError, match=f"since {which} differs from that of its run;"):
        HyperCleaner(**SETTINGS).fit(X, y, trusted=trusted, resume=stopped, checkpoint=stopped)
    assert stopped.read_bytes() == before


@pytest.mark.parametrize("exchange", [lambda X: X[::-1], lambda X: X[:, ::-1]], ids=["rows", "columns"])
def test_the_same_numbers_in_another_order_are_refused(stopped, exchange):
    X, y, trusted = table()
    with pytest.raises(bilevel.IncompatibleError, match="since X differs from that of its run;"):
        HyperCleaner(**SETTINGS).fit(exchange(X).copy(), y, trusted=trusted, resume=stopped)


def test_any_seed_means_that_of_the_fit_that_was_stopped(path):
    X, y, trusted = table()
    X, settings = sparse.csr_matrix(X), {"steps": 3, "noise": "rows"}
    with pytest.raises(Killed):
        HyperCleaner(**settings, callback=Stop(2, Killed)).fit(X, y, trusted=trusted, checkpoint=path)
    results = [outcome(HyperCleaner(**settings).fit(X, y, trusted=trusted, resume=path)) for _ in range(2)]
    assert results[0] == results[1]


def test_files_of_other_runs_are_left_alone(stopped):
    X, y, trusted = table()
    before = stopped.read_bytes()
    with pytest.raises(FileExistsError, match="run.safetensors exists and was left as it is"):
        HyperCleaner(**SETTINGS).fit(X, y, trusted=trusted, checkpoint=stopped)
    assert stopped.read_bytes() == before
    with pytest.raises(bilevel.InvalidInputError, match="must be a path .*, got 3"):
        HyperCleaner(**SETTINGS).fit(X, y, trusted=trusted, resume=3)
    with pytest.raises(bilevel.InvalidInputError, match="is a run of HyperCleaner.fit, which resumes it"):
        bilevel.Solution.load(stopped)


# --- bilevel clean ----------------------------------------------------------------------------------------------------


@pytest.fixture
def interrupted(forest, monkeypatch, capsys):
    """`bilevel clean` stopped by Ctrl-C at its fifth step."""
    with monkeypatch.context() as patch:
        init, stop = HyperCleaner.__init__, Stop(5)
        patch.setattr(HyperCleaner, "__init__", lambda self, **settings: init(self, **settings, callback=stop))
        assert forest.clean(*QUICK, "--out", "w.csv", "--checkpoint", "run.safetensors") == 130
    return capsys.readouterr().err


def test_the_command_goes_on_as_its_message_says(forest, interrupted, capsys):
    line = next(line for line in interrupted.splitlines() if "the fit was interrupted" in line)
    assert 'Step 2 of "learning class-pairs" is in run.safetensors: bilevel clean train.csv' in line
    assert "add --force as well" in interrupted
    words = shlex.split(line.partition("run.safetensors: ")[2].partition(" goes on")[0])
    assert cli.main([*words[1:], "--model", "m.safetensors", "--force"]) == 0
    assert forest.clean(*QUICK, "--out", "whole.csv", "--model", "whole.safetensors") == 0
    assert forest.read("w.csv") == forest.read("whole.csv")
    resumed, whole = (load_cleaner(name).cleaner for name in ("m.safetensors", "whole.safetensors"))
    assert outcome(resumed) == outcome(whole)


def test_bilevel_resume_tells_the_command_and_runs_nothing(forest, interrupted):
    """In a process that knows nothing of cleaning yet."""
    before = {name: (forest.folder / name).read_bytes() for name in forest.files()}
    words = [sys.executable, "-m", "bilevel", "resume", "run.safetensors"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 2
    told = ended.stderr
    assert 'step 2 of "learning class-pairs"' in told.lower()
    assert told.rstrip().endswith("--out w.csv --resume run.safetensors")
    assert before == {name: (forest.folder / name).read_bytes() for name in forest.files()}


REFUSED = {
    "--checkpoint run.safetensors": "run.safetensors exists and was left as it is; --resume run.safetensors",
    "--checkpoint a.safetensors --resume run.safetensors": "omit --checkpoint",
    "--resume missing.safetensors": "missing.safetensors: there is no such file; --checkpoint missing.safetensors",
    "--resume train.csv": "must end in .safetensors",
    "--resume run.safetensors --model run.safetensors --force": "another file of this command",
    "--resume run.safetensors --seed 1": "run.safetensors cannot be continued, since",
    "--checkpoint nowhere/run.safetensors": "nowhere does not exist: create it first",
}


def test_checkpoints_that_cannot_be(forest, interrupted, capsys):
    before = {name: (forest.folder / name).read_bytes() for name in forest.files()}
    for arguments, message in REFUSED.items():
        assert forest.clean(*QUICK, *arguments.split()) == 2
        assert message in capsys.readouterr().err
    assert before == {name: (forest.folder / name).read_bytes() for name in forest.files()}


def test_another_table_is_refused(forest, interrupted, capsys):
    forest.write("train.csv", pd.concat([forest.frame[1:], forest.frame[:1]]))
    assert forest.clean(*QUICK, "--resume", "run.safetensors") == 2
    assert "since X differs from that of its run" in capsys.readouterr().err
    assert previous_of(Path("run.safetensors")).exists()
