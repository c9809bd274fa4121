"""`bilevel example`: raw tables with a known number of wrong labels, and a command that finds them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pandas as pd
import pytest

from bilevel import cli

NAMES = {"telco": "churn", "penguins": "Species", "digits": "digit", "tickets": "team"}


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("name", "label"), NAMES.items())
def test_the_truth_belongs_to_the_training_rows(here, name, label, capsys):
    assert cli.main(["example", name]) == 0
    train, checked, test, truth = (pd.read_csv(f"{name}/{stem}.csv") for stem in ("train", "checked", "test", "truth"))
    assert list(truth) == ["row", label]
    assert truth["row"].tolist() == list(range(1, len(train) + 1))
    said = float(capsys.readouterr().out.split("% of the labels")[0].split()[-1]) / 100
    assert (truth[label] != train[label]).mean() == pytest.approx(said, abs=1 / len(train))
    assert list(train) == list(checked) == list(test)
    assert set(train[label]) == set(truth[label]) == set(checked[label])
    rows = pd.concat([train, checked, test]).drop(columns=label)
    assert name == "digits" or not rows.duplicated().any()
    assert name == "digits" or rows.isna().any(axis=None)  # gaps


@pytest.mark.parametrize("name", NAMES)
def test_the_printed_command_is_one(here, name, capsys):
    """With a folder whose name needs quotes. The command itself runs in test_docs.py."""
    assert cli.main(["example", name, "--to", "my data"]) == 0
    shown = capsys.readouterr().out.replace("\\\n", "")
    words = shlex.split(next(line for line in shown.splitlines() if line.startswith("bilevel ")))
    cli.application().parse_args(words[1:], exit_on_error=False, print_error=False)
    assert {Path(word).parent for word in words if word.endswith(".csv")} == {Path("my data", name)}
    assert all(Path(word).exists() for word in words if word.endswith(".csv"))


def test_files_are_replaced_on_request_only(here, capsys):
    assert cli.main(["example", "penguins"]) == 0
    before = Path("penguins/train.csv").read_bytes()
    Path("penguins/train.csv").write_text("mine")
    assert cli.main(["example", "penguins"]) == 2
    assert "exists and was left as it is" in capsys.readouterr().err
    assert Path("penguins/train.csv").read_text() == "mine"
    assert cli.main(["example", "penguins", "--force"]) == 0
    assert Path("penguins/train.csv").read_bytes() == before  # the same in every call


def test_names_are_listed_and_unknown_ones_refused(here, capsys):
    assert cli.main(["example"]) == 0
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()] == list(NAMES)
    assert cli.main(["example", "pinguins"]) == 2
    assert "Did you mean 'penguins'?" in capsys.readouterr().err
    assert list(here.iterdir()) == []
