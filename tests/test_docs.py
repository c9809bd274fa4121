"""The code and the commands of the manual run (its list of names: docs/test_reference_page.py)."""

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import bilevel
from bilevel import cli, datasets
from bilevel.experiments import ResultsStore, RunRecord
from bilevel.experiments.run_folder import Outcome

ROOT = Path(__file__).resolve().parents[1]


def python_blocks(path):
    """Those that are shown, and those that are also run when the manual is built."""
    fences = r"```(?:python|\{computed\})\n(?::\w+:\n)*(.*?)```"
    return re.findall(fences, (ROOT / path).read_text(), re.DOTALL)


def test_the_readme_runs(capsys):
    """Every Python block of the README, in order."""
    problem, projection = python_blocks("README.md")
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(problem, names)
    assert names["solution"].status.ok
    assert "correct to" in capsys.readouterr().out
    exec(projection, names)
    assert torch.allclose(names["weights"].sum(-1), torch.ones(4))
    assert names["scores"].grad.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["telco", "penguins", "digits", "tickets"])
def test_the_command_of_an_example_finds_its_wrong_labels(name, tmp_path, monkeypatch, capsys):
    """Most labels that it suspects are wrong, and most wrong labels are suspected."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["example", name]) == 0
    command = capsys.readouterr().out.partition("bilevel clean")[2].replace("\\\n", " ")
    assert cli.main(["clean", *shlex.split(command), "--out", "weights.csv"]) == 0
    truth = pd.read_csv(f"{name}/truth.csv").iloc[:, 1]
    given = pd.read_csv(f"{name}/train.csv")[truth.name]
    wrong, suspected = given != truth, pd.read_csv("weights.csv")["is_label_issue"]
    assert (wrong & suspected).sum() > 0.8 * suspected.sum()
    assert (wrong & suspected).sum() > 0.6 * wrong.sum()
    assert Path(name, "report.html").exists()


OWN_SET, OWN_TEST, OWN_PROBLEM = python_blocks("docs/write-your-own-set.md")
page: dict[str, object] = {"__name__": __name__}
exec(OWN_SET, page)
exec(OWN_TEST, page)
TestNearlyNeutral = page["TestNearlyNeutral"]  # the page's own test, all that it inherits included


def test_your_own_set_in_a_problem():
    """The gradient finds a width between the two ends, better than both."""
    exec(OWN_PROBLEM, page)
    problem, solution = page["problem"], page["solution"]
    ends = [float(bilevel.upper_value(problem, torch.tensor(x).double())) for x in (-6.0, 2.0)]
    assert float(bilevel.upper_value(problem, solution.x)) < min(ends) - 1e-4
    h = 1e-4
    slope = (bilevel.upper_value(problem, solution.x + h) - bilevel.upper_value(problem, solution.x - h)) / (2 * h)
    y = bilevel.solve_lower(problem, solution.x).y
    assert abs(float(bilevel.hypergradient(problem, solution.x, y)) - float(slope)) < 1e-4


def test_your_own_set_refuses_bad_parameters():
    with pytest.raises(bilevel.EmptySetError, match="width must be at least 0, got -1"):
        page["NearlyNeutral"](-1.0)


def test_the_page_about_resuming_runs(tmp_path, monkeypatch, capsys):
    """Its Python blocks in order, and its command for a run of one's own, resumed beyond its end."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    start, *others = python_blocks("docs/saving-and-resuming.md")
    (tmp_path / "study_on_a_page.py").write_text(start.split("solution =")[0])
    for block in (start, *others, others[1]):
        exec(block.replace("2000", "200"), names)
    assert names["solution"].status.finished
    assert {file.name for file in tmp_path.iterdir()} >= {
        "run.safetensors",
        "run.csv",
        "study.safetensors",
    }
    monkeypatch.syspath_prepend(str(tmp_path))
    command = ["resume", "run.safetensors", "--problem", "study_on_a_page:problem", "--steps", "5"]
    assert cli.main(command) == 0


@pytest.mark.slow
def test_the_page_about_wrong_labels_runs(tmp_path, monkeypatch, capsys):
    """Its commands, then its Python blocks."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "hyper-cleaning.md").read_text().replace("\\\n", " ")
    blocks = re.findall(r"```\{command\}\n(?::\w+:\n)*(.*?)```", text, re.DOTALL)
    for line in "\n".join(blocks).splitlines():
        assert cli.main(shlex.split(line)[1:]) == 0, line
    assert "suspected labels" in capsys.readouterr().out
    assert (tmp_path / "predictions.csv").exists()
    names: dict[str, Any] = {}
    for block in python_blocks("docs/hyper-cleaning.md"):
        exec(block, names)
    assert names["hits"].sum() > 0.6 * names["wrong"].sum()


@pytest.mark.slow
def test_the_page_about_few_shots_runs(capsys):
    names: dict[str, Any] = {}
    for block in python_blocks("docs/few-shot.md"):
        exec(block, names)
    assert "(50 tasks)" in capsys.readouterr().out


def test_the_page_about_data_sets_lists_the_catalogue():
    """Names and licences in its table; its block without files runs."""
    text = (ROOT / "docs" / "datasets.md").read_text()
    rows = {name: line for line in text.splitlines() for name in re.findall(r"^\| `([\w-]+)` ", line)}
    assert list(rows) == list(datasets.CATALOGUE)
    for name, entry in datasets.CATALOGUE.items():
        assert rows[name].endswith(f"| {entry.licence} |")
    names: dict[str, Any] = {}
    exec(python_blocks("docs/datasets.md")[1], names)
    assert names["tasks"].query.shape == (32, 75, 1, 28, 28)


def test_the_page_about_scaling_out_runs(tmp_path, monkeypatch):
    """Its runs with a file each, resumed by the same call, and its rows on one rank; the build runs the last block."""
    monkeypatch.chdir(tmp_path)
    pool, rows, _ = (block.replace("2000", "20") for block in python_blocks("docs/scaling-out.md"))
    names: dict[str, Any] = {"__name__": "page"}
    exec(pool, names)
    names["make_problem"] = lambda: bilevel.Problem(
        upper=lambda x, y: (y - 1).square().sum(),
        lower=lambda x, y: (y - x).square().sum(),
        constraint=bilevel.sets.L2Ball(1.0),
        x0=torch.zeros(3).double(),
        y0=torch.zeros(3).double(),
    )
    assert names["run"](1) == names["run"](1)
    assert (tmp_path / "run-1.safetensors").exists()

    table = np.random.default_rng(0).normal(size=(40, 3))
    files = {"rows": table, "labels": table[:, 0] > 0, "trusted": table[:9], "checked": table[:9, 0] > 0}
    for name, values in files.items():
        np.save(f"{name}.npy", values.astype(int) if values.dtype == bool else values)
    exec(rows, names)
    assert np.load("weights-0.npy").shape == (40,)


def test_the_page_about_reproducing_reads_a_store(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    about: dict[str, Any] = {"experiment": "table-2", "role": "final", "dataset": "mnist", "method": "dmlcbo"}
    numbers: dict[str, Any] = {"settings": {}, "seed": 0, "curve": {"step": [0, 20], "accuracy": [0.5, 0.93]}}
    record = RunRecord(**about, **numbers, identity="0123456789abcdef", status="iterations")
    ResultsStore("bilevel-results").add([Outcome(record)])
    for block in python_blocks("docs/reproduce.md"):
        exec(block, {})
    assert capsys.readouterr().out == "mnist dmlcbo 0 0.93\n"
