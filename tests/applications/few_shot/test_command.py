"""`bilevel fewshot`, and experiments by name."""

from __future__ import annotations

import pytest
import torch

from bilevel.applications.few_shot import MetaLearner
from bilevel.applications.few_shot.experiment import SOLVERS, Experiment
from bilevel.applications.few_shot.training_state import load_state
from bilevel.cli import main
from bilevel.errors import InvalidInput

SMALL = ["--dataset", "generated", "--ways", "3", "--shots", "1", "--queries", "2", "--width", "4"]
SMALL += ["--tasks-per-step", "2", "--train-ways", "4"]


def train(*arguments: object) -> int:
    return main(["fewshot", "train", *SMALL, *map(str, arguments)])


@pytest.fixture(autouse=True)
def few_test_tasks(monkeypatch):
    """600 tasks are many for a test."""
    full = MetaLearner.evaluate
    monkeypatch.setattr(MetaLearner, "evaluate", lambda self, episodes, count=600, seed=0: full(
        self, episodes, count=min(count, 20), seed=seed))  # fmt: skip


def test_train_draw_and_evaluate(tmp_path, capsys):
    out, picture = tmp_path / "net.safetensors", tmp_path / "curve.svg"
    assert train("--out", out, "--steps", 4, "--picture", picture) == 0
    assert "accuracy on novel classes: " in capsys.readouterr().out
    assert "minutes of training" in picture.read_text()
    assert main(["fewshot", "evaluate", str(out), "--episodes", "20"]) == 0
    shown = capsys.readouterr().out
    assert "3-way 1-shot tasks of generated, dmlcbo, 4 steps" in shown
    assert "novel classes:" in shown
    assert "training classes:" in shown


def test_a_resumed_training_has_the_same_bits(tmp_path):
    whole, parts = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"
    assert train("--out", whole, "--steps", 4, "--evaluate-every", 1) == 0
    assert train("--out", parts, "--steps", 2, "--evaluate-every", 1) == 0
    assert train("--out", parts, "--steps", 4, "--evaluate-every", 1) == 2  # the file exists
    assert train("--out", parts, "--steps", 4, "--evaluate-every", 1, "--resume") == 0
    one, two = load_state(whole), load_state(parts)
    assert one.step == two.step == 4
    for name, value in one.parameters.items():
        assert torch.equal(value, two.parameters[name])
    assert [record.validation for record in one.history] == [record.validation for record in two.history]


def test_what_is_wrong_is_named(tmp_path, capsys):
    out = tmp_path / "net.safetensors"
    assert main(["fewshot", "train", "--dataset", "generated", "--ways", "40", "--out", str(out)]) == 2
    assert "ways must be at most" in capsys.readouterr().err
    assert train("--out", out, "--steps", 0) == 2
    assert main(["fewshot", "train", "--out", str(out), "--dataset", "omniglot", "--folder", str(tmp_path)]) == 2
    assert "bilevel data fetch omniglot" in capsys.readouterr().err
    assert main(["fewshot", "evaluate", str(tmp_path / "none.safetensors")]) == 2
    assert "none.safetensors" in capsys.readouterr().err
    assert not out.exists()


def test_a_learner_of_another_origin_has_no_experiment(tmp_path, capsys):
    learner = Experiment(dataset="generated", ways=3, width=4).learner()
    del learner.state.settings["about"]
    path = learner.save(tmp_path / "own.safetensors")
    assert main(["fewshot", "evaluate", str(path)]) == 2
    assert "does not say which experiment it belongs to" in capsys.readouterr().err


def test_force_takes_nothing_away_from_a_run_that_cannot_start(tmp_path):
    out = tmp_path / "net.safetensors"
    out.write_bytes(b"an earlier network")
    command = ["fewshot", "train", "--out", str(out), "--dataset", "omniglot", "--folder", str(tmp_path), "--force"]
    assert main(command) == 2
    assert out.read_bytes() == b"an earlier network"


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_method_takes_steps(solver):
    experiment = Experiment(dataset="generated", ways=3, shots=1, queries=2, width=4, tasks_per_step=2, solver=solver)
    training = experiment.learner().fit(experiment.splits().train, steps=2)
    assert training.status.ok


def test_an_experiment_from_a_file_is_checked():
    about = Experiment(dataset="generated").about()
    assert Experiment.of(about) == Experiment(dataset="generated")
    with pytest.raises(InvalidInput, match="ways = 'five', which is no int"):
        Experiment.of({**about, "ways": "five"})
    with pytest.raises(InvalidInput, match="does not say which experiment"):
        Experiment.of({**about, "more": 1})
    with pytest.raises(InvalidInput, match="solver must be one of dmlcbo, .*, got 'sgd'"):
        Experiment(solver="sgd")
