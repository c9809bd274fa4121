"""`bilevel fewshot`, and experiments by name."""

from __future__ import annotations

import pytest
import torch

from bilevel.cli import main
from bilevel.errors import InvalidInputError
from bilevel.few_shot import ConvNet, MetaLearner, SVMHead
from bilevel.few_shot.options import SOLVERS, Experiment
from bilevel.run.checkpoint import Checkpoint

SMALL = ["--dataset", "generated", "--ways", "3", "--shots", "1", "--queries", "2", "--width", "4"]
SMALL += ["--tasks-per-step", "2", "--train-ways", "4", "--episodes", "20"]


def train(*arguments: object) -> int:
    return main(["fewshot", "train", *SMALL, *map(str, arguments)])


def test_train_draw_and_evaluate(tmp_path, capsys):
    out, picture = tmp_path / "net.safetensors", tmp_path / "curve.svg"
    assert train("--out", out, "--steps", 4, "--picture", picture) == 0
    assert "accuracy on novel classes: " in capsys.readouterr().out
    assert "minutes of training" in picture.read_text()
    assert main(["fewshot", "evaluate", str(out), "--episodes", "20", "--ways", "5"]) == 0
    assert "5-way 1-shot tasks of generated" in capsys.readouterr().out
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
    one, two = Checkpoint.of(whole).load(), Checkpoint.of(parts).load()
    assert one.state.step == two.state.step == 4
    for name, value in one.state.network.items():
        assert torch.equal(value, two.state.network[name])
    assert [record.validation for record in one.history] == [record.validation for record in two.history]


@pytest.mark.parametrize("solver", ["dmlcbo", "dmlcbo-as-published"])
def test_settings_of_long_trainings_are_stored(tmp_path, solver):
    out = tmp_path / "net.safetensors"
    assert train("--out", out, "--steps", 3, "--halve-every", 2, "--bfloat16", "--solver", solver) == 0
    experiment = Experiment.from_identity(Checkpoint.of(out).load().identity)
    assert experiment.bfloat16
    assert experiment.solver == solver
    assert train("--out", out, "--steps", 4, "--resume", "--solver", solver) == 2  # without --bfloat16
    assert train("--out", out, "--steps", 4, "--resume", "--halve-every", 3, "--bfloat16", "--solver", solver) == 0
    assert main(["fewshot", "evaluate", str(out), "--episodes", "20"]) == 0


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
    learner = MetaLearner(ConvNet(width=4), SVMHead(3), about={"ways": 3})
    path = learner.save(tmp_path / "own.safetensors")
    assert main(["fewshot", "evaluate", str(path)]) == 2
    assert "does not contain its experiment" in capsys.readouterr().err


def test_force_takes_nothing_away_from_a_run_that_cannot_start(tmp_path):
    out = tmp_path / "net.safetensors"
    out.write_bytes(b"an earlier network")
    command = ["fewshot", "train", "--out", str(out), "--dataset", "omniglot", "--folder", str(tmp_path), "--force"]
    assert main(command) == 2
    assert out.read_bytes() == b"an earlier network"


def test_force_takes_nothing_away_when_an_argument_is_wrong(tmp_path, capsys):
    out = tmp_path / "net.safetensors"
    assert train("--out", out, "--steps", 2) == 0
    before = out.read_bytes()
    assert train("--out", out, "--minutes", -1, "--force") == 2
    assert train("--out", out, "--steps", 2, "--force", "--picture", tmp_path / "c.xyz") == 2
    assert "must end in .png, .svg or .pdf" in capsys.readouterr().err
    assert out.read_bytes() == before


def test_another_experiment_is_not_resumed(tmp_path, capsys):
    out, picture = tmp_path / "net.safetensors", tmp_path / "curve.png"
    assert train("--out", out, "--steps", 2, "--picture", picture) == 0
    assert train("--out", out, "--steps", 3, "--resume", "--seed", 5) == 2
    assert "seed differs from that of its run: 0 then, 5 now" in capsys.readouterr().err
    assert train("--out", out, "--steps", 3, "--resume", "--picture", picture) == 0  # the same command again


def test_a_training_that_fails_at_once_is_a_failure(tmp_path):
    assert train("--out", tmp_path / "net.safetensors", "--steps", 2, "--solver", "approx", "--step", 1e30) == 2


def test_the_parts_of_a_set_share_no_class():
    splits = Experiment(dataset="generated").splits()
    parts = [splits.train.images, splits.validation.images, splits.test.images]
    classes = [image.tobytes() for part in parts for image in part[:, 0].numpy()]
    assert len(set(classes)) == len(classes) == 60


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_method_takes_steps(solver):
    experiment = Experiment(dataset="generated", ways=3, shots=1, queries=2, width=4, tasks_per_step=2, solver=solver)
    training = experiment.learner().fit(experiment.splits().train, steps=2)
    assert training.status.ok


def test_an_experiment_from_a_file_is_checked():
    identity = Experiment(dataset="generated").identity
    assert Experiment.from_identity(identity) == Experiment(dataset="generated")
    with pytest.raises(InvalidInputError, match="ways = 'five', which is no int"):
        Experiment.from_identity({**identity, "ways": "five"})
    with pytest.raises(InvalidInputError, match="does not contain its experiment"):
        Experiment.from_identity({"ways": 3})
    with pytest.raises(InvalidInputError, match="solver must be one of dmlcbo, .*, got 'sgd'"):
        Experiment(solver="sgd")
