"""`bilevel clean` on several ranks means what it means in one process."""

import json

import numpy as np
import pandas as pd
import pytest
from tests.distributed.ranks import free_port
from tests.distributed.tables import arguments, finished, rank_of, start, write_tables

from bilevel import cli
from bilevel.applications.hyper_cleaning import load_cleaner

pytestmark = pytest.mark.slow  # each starts several processes


def on_two(folder, *words):
    """Exit codes, outputs and errors of two ranks."""
    port = free_port()
    return [
        finished(process) for process in [start(folder, ["bilevel", *words], rank_of(r, 2, port)) for r in range(2)]
    ]


def alone(monkeypatch, *words):
    """The same command as the only rank."""
    for name, value in rank_of(0, 1, free_port()).items():
        monkeypatch.setenv(name, str(value))
    try:
        return cli.main(list(words))
    finally:
        for name in rank_of(0, 1, 0):
            monkeypatch.delenv(name)


@pytest.mark.parametrize("radius", ["2", pytest.param("auto", marks=pytest.mark.slow)])
def test_two_ranks_find_what_one_process_finds(tmp_path, monkeypatch, capsys, radius):
    """With texts of one rank alone, a column constant on one rank, one constant everywhere, and columns by name."""
    write_tables(tmp_path)
    monkeypatch.chdir(tmp_path)
    settings = ["--radius", radius, "--noise", "rows", "--steps", "10", "--json"]
    assert cli.main(arguments("train.parquet", *settings, "--out", "one.csv", "--model", "one.safetensors")) == 0
    one = json.loads(capsys.readouterr().out)
    ended = on_two(tmp_path, *arguments("train", *settings, "--out", "two.csv", "--model", "two.safetensors"))
    assert [code for code, _, _ in ended] == [0, 0], ended
    assert ended[1][1:] == ("", "")  # only rank 0 speaks
    two = json.loads(ended[0][1])
    for name in ("status", "rows", "trusted_rows", "classes", "label_issues", "noise"):
        assert one[name] == two[name]
    expected, found = pd.read_csv("one.csv"), pd.read_csv("two.csv")
    assert list(expected) == list(found)
    for name in expected:
        if expected[name].dtype.kind == "f":
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=1e-9)
        else:
            assert (expected[name] == found[name]).all(), name
    assert alone(monkeypatch, *arguments("train", *settings, "--out", "rank.parquet")) == 0
    np.testing.assert_allclose(pd.read_parquet("rank.parquet")["weight"], found["weight"], rtol=1e-10, atol=1e-10)
    saved = load_cleaner("two.safetensors")
    np.testing.assert_allclose(saved.cleaner.coef_, load_cleaner("one.safetensors").cleaner.coef_, rtol=1e-6, atol=1e-9)
    assert cli.main(["predict", "two.safetensors", "train.parquet", "--out", "predicted.csv"]) == 0
    assert (pd.read_csv("predicted.csv")["predicted_label"] == found["predicted_label"]).all()
    assert not list(tmp_path.glob(".*"))


def test_what_several_processes_do_not_do_is_refused_by_name(tmp_path, monkeypatch, capsys):
    write_tables(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    wanted = {
        ("--report", "page.html"): "--report is for one process: make it in one process",
        ("--noise", "transition"): "--noise transition is for one process",
        ("--resume", "none"): "--resume none: no complete checkpoint is there; --checkpoint none starts a new run",
        ("--checkpoint", "file"): "file is a file, and the checkpoint of several processes is a folder",
        ("--checkpoint", "train"): "train is also the name of another file or folder of this command",
        ("--solver", "vpbgd"): "--solver vpbgd needs a fixed radius: add --radius 1",
        ("--categorical", "nothing"): "train has no column 'nothing', which --categorical names",
    }
    for words, told in wanted.items():
        assert alone(monkeypatch, *arguments("train", *words)) == 2
        assert told in capsys.readouterr().err
    named = ["clean", "train", "--label", "species", "--trusted-column", "constant"]
    assert alone(monkeypatch, *named) == 2
    assert "--trusted-column is for one process: write the trusted rows to a table" in capsys.readouterr().err
    assert cli.main(arguments("train.parquet", "--timeout", "3")) == 2
    assert "--timeout 3 goes with torchrun" in capsys.readouterr().err


def test_labels_and_cells_that_are_empty_are_named_by_their_row(tmp_path, monkeypatch, capsys):
    write_tables(tmp_path)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train" / "part-1.parquet"
    frame = pd.read_parquet(path)
    for column, value, told in [
        ("species", "  ", "train, row 106 of all its files, column 'species': the label is empty"),
        ("species", None, "train, row 106 of all its files, column 'species': the cell is empty"),
        ("a", np.nan, "train, row 106 of all its files, column 'a': the cell is empty"),
        ("town", None, "train, row 106 of all its files, column 'town': the cell is empty"),
    ]:
        damaged = frame.copy()
        damaged.loc[5, column] = value
        damaged.to_parquet(path, index=False)
        assert alone(monkeypatch, *arguments("train", "--radius", "2")) == 2
        assert told in capsys.readouterr().err


def test_a_checkpoint_of_another_run_is_refused_and_one_that_ended_is_its_result(tmp_path, monkeypatch, capsys):
    write_tables(tmp_path)
    monkeypatch.chdir(tmp_path)
    settings = ["--radius", "2", "--steps", "4"]
    assert alone(monkeypatch, *arguments("train", *settings, "--checkpoint", "run", "--out", "one.csv")) == 0
    assert alone(monkeypatch, *arguments("train", *settings, "--resume", "run", "--out", "again.csv")) == 0
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "again.csv").read_bytes()
    assert "and go on from run" in capsys.readouterr().err
    assert alone(monkeypatch, *arguments("train", *settings, "--checkpoint", "run")) == 2
    assert "--checkpoint run: the folder holds a run and was left as it is" in capsys.readouterr().err
    assert alone(monkeypatch, *arguments("train", "--radius", "3", "--steps", "4", "--resume", "run")) == 2
    assert "radius differs from that of its run" in capsys.readouterr().err
    assert alone(monkeypatch, *arguments("train", *settings, "--resume", "run", "--ignore", "a")) == 2
    assert "cannot be continued, since" in capsys.readouterr().err
    path = tmp_path / "train" / "part-1.parquet"
    frame = pd.read_parquet(path)
    frame.loc[[3, 4]] = frame.loc[[4, 3]].to_numpy()
    frame.to_parquet(path, index=False)
    assert alone(monkeypatch, *arguments("train", *settings, "--resume", "run")) == 2
    assert "the rows and labels differs from that of its run" in capsys.readouterr().err
