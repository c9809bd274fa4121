"""Faults of the system and untrusted arguments are reported in one sentence: no traceback, exit code 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet as parquet
import pytest
import torch

import bilevel
from bilevel import cli

CLEAN = ["--label", "label", "--trusted-column", "checked", "--noise", "transition", "--steps", "1"]
LONG = "x" * 300


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    frame().to_csv("table.csv", index=False)
    for name in ("loop.csv", "loop.safetensors", "loop.toml"):
        Path(name).symlink_to(name)
    return tmp_path


def frame() -> pd.DataFrame:
    X = np.random.default_rng(0).normal(size=(60, 3))
    labels = {"label": np.where(X[:, 0] > 0, "a", "b"), "checked": (np.arange(60) < 20).astype(int)}
    return pd.DataFrame(X, columns=["p", "q", "r"]).assign(**labels)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["clean", "loop.csv", *CLEAN], "cannot be the name of a file"),
        (["clean", f"{LONG}.csv", *CLEAN], "cannot be the name of a file (File name too long)"),
        (["clean", "table.csv", *CLEAN, "--out", f"{LONG}.csv"], "File name too long"),
        (["clean", "table.csv", *CLEAN, "--report", f"{LONG}.html"], "File name too long"),
        (["clean", "table.csv", *CLEAN, "--out", "loop.csv"], "cannot be the name of a file"),
        (["clean", "table.csv", *CLEAN, "--checkpoint", "loop.safetensors"], "cannot be the name of a file"),
        (["clean", "table.csv", *CLEAN, "--resume", "loop.safetensors"], "cannot be the name of a file"),
        (["resume", "loop.safetensors"], "cannot be the name of a file"),
        (["predict", "loop.safetensors", "table.csv"], "cannot be the name of a file"),
        (["predict", LONG, "table.csv"], "File name too long"),
        (["demo", "--steps", "1", "--checkpoint", f"{LONG}.safetensors"], "File name too long"),
        (["fewshot", "evaluate", "loop.safetensors"], "cannot be the name of a file"),
        (["status", "--results", LONG], "File name too long"),
        (["data", "list", "--folder", LONG], "File name too long"),
        (["reproduce", "table-2", "--configuration", "loop.toml"], "cannot be read"),
        (["reproduce", "table-2", "--configuration", f"{LONG}.toml"], "File name too long"),
    ],
    ids=lambda part: " ".join(part)[:60] if isinstance(part, list) else "",
)
def test_names_that_lead_nowhere(here, command, message, capsys):
    assert cli.main(command) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.startswith("bilevel: ")


@pytest.mark.parametrize(
    "text",
    ["a = " + "[" * 5000 + "]" * 5000, "a = " + "9" * 5000, "a = 0x" + "f" * 5000, "a = \0", "\udcff", "a = inf"],
)
def test_configurations_that_are_none(here, text, capsys):
    Path("mine.toml").write_bytes(text.encode(errors="surrogateescape"))
    assert cli.main(["reproduce", "table-2", "--configuration", "mine.toml"]) == 2
    assert "mine.toml is not TOML" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[" * 50_000, "[]", "3", '"x"', "9" * 5000, '{"pid": []}', '{"updated": "x"}'])
def test_a_status_that_is_none(here, text, capsys):
    Path("results/runs").mkdir(parents=True)
    Path("results/status.json").write_text(text)
    assert cli.main(["status", "--results", "results"]) == 2
    assert "status.json is damaged" in capsys.readouterr().err


def test_a_text_table_of_200_gigabytes_is_refused_by_its_size(here, capsys):
    with open("huge.csv", "w") as file:
        file.write(Path("table.csv").read_text())
        file.truncate(200 * 10**9)  # takes no room
    assert cli.main(["clean", "huge.csv", *CLEAN]) == 2
    assert "huge.csv would fill 50.0 GB of memory" in capsys.readouterr().err


def test_a_zero_byte_in_the_header(here, capsys):
    Path("zero.csv").write_text("p\0" + Path("table.csv").read_text()[1:])
    assert cli.main(["clean", "zero.csv", *CLEAN]) == 2
    assert r"the name of the column 'p\x00' has a zero byte in it" in capsys.readouterr().err


@pytest.mark.parametrize("metadata", [
    "[" * 100_000, b"\xff\xfe", "[]", '"x"', "{}", json.dumps({"index_columns": 3}),
    json.dumps({"index_columns": ["__index_level_0__"], "columns": [], "column_indexes": []}),
    json.dumps({"index_columns": [{"kind": "range", "start": 0, "stop": 10**12, "step": 0}], "columns": [{}]}),
], ids=lambda text: repr(text[:30]))  # fmt: skip
def test_what_others_write_where_pandas_keeps_its_notes(here, metadata):
    table = pyarrow.Table.from_pandas(frame(), preserve_index=False).replace_schema_metadata({"pandas": metadata})
    parquet.write_table(table, "table.parquet")
    assert cli.main(["clean", "table.parquet", *CLEAN]) == 0


def test_the_index_of_a_frame_is_no_column(here, capsys):
    frame().set_index(pd.Index(np.arange(60) * 7, name="number")).to_parquet("table.parquet")
    assert cli.main(["clean", "table.parquet", *CLEAN, "--model", "model.safetensors"]) == 0
    assert cli.main(["predict", "model.safetensors", "table.csv"]) == 0
    assert "probability_a" in capsys.readouterr().out


def command(*arguments: str, **options) -> subprocess.CompletedProcess:
    paths = os.pathsep.join(map(os.path.abspath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))))
    return subprocess.run(
        [sys.executable, "-m", "bilevel", *arguments], stderr=subprocess.PIPE, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": paths}, **options,
    )  # fmt: skip


@pytest.mark.parametrize("arguments", [
    ["data", "list"],
    pytest.param(["clean", "table.csv", *CLEAN, "--json"], marks=pytest.mark.slow),
], ids=" ".join)  # fmt: skip
def test_a_standard_output_that_is_closed(here, arguments):
    finished = command(*arguments, preexec_fn=lambda: os.close(1))
    assert finished.returncode == 0
    assert "Traceback" not in finished.stderr


def test_a_reader_that_has_seen_enough(here):
    read, write = os.pipe()
    os.close(read)
    finished = command("completion", "bash", stdout=write)
    os.close(write)
    assert (finished.returncode, finished.stderr) == (0, "")


def test_a_full_device(here):
    with open("/dev/full", "w") as full:
        finished = command("completion", "bash", stdout=full)
    assert finished.returncode == 2
    assert "Traceback" not in finished.stderr


@pytest.mark.parametrize("arguments", [["doctor"], ["data", "list"], ["resume", "a.safetensors"]], ids=" ".join)
def test_a_current_folder_that_was_deleted(tmp_path, arguments):
    def delete() -> None:
        os.chdir(tmp_path)
        os.rmdir(tmp_path)

    finished = command(*arguments, preexec_fn=delete)
    assert finished.returncode == 2
    assert finished.stderr == "bilevel: the current folder was deleted: change to one that exists\n"


def test_a_checkpoint_of_another_run_is_not_replaced(here, capsys):
    bilevel.minimize(
        bilevel.Problem(lambda x, y: y.square().sum(), lambda x, y: (y - x).square().sum()),
        torch.ones(2), torch.ones(2), solver=bilevel.DMLCBO(), steps=1, checkpoint="demo.safetensors",
    )  # fmt: skip
    stored = Path("demo.safetensors").read_bytes()
    assert cli.main(["demo", "--steps", "1", "--checkpoint", "demo.safetensors"]) == 2
    assert "bilevel resume demo.safetensors continues from it" in capsys.readouterr().err
    assert Path("demo.safetensors").read_bytes() == stored


@pytest.mark.parametrize("command", [
    ["completion", "\x1b[2J"], ["demo", "--steps", "\udcff"], ["fewshot", "train", "--network", "a\nb\x07"],
], ids=repr)  # fmt: skip
def test_an_argument_with_control_characters_is_shown_and_not_obeyed(command, capsys):
    assert cli.main(command) == 2
    shown = capsys.readouterr().err
    assert all(sign.isprintable() or sign == "\n" for sign in shown)
    assert shown.startswith("bilevel: Invalid value")


@pytest.mark.parametrize("command", [
    ["demo", "--steps", "1"],
    ["fewshot", "train", "--dataset", "generated", "--out", "model.safetensors", "--steps", "1", "--width", "2",
     "--ways", "2", "--shots", "1", "--queries", "1", "--episodes", "2"],
], ids=lambda command: command[0])  # fmt: skip
def test_a_seed_of_any_length(here, command):
    assert cli.main([*command, "--seed", "9" * 400]) == 0
