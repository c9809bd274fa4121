"""Untrusted files: nothing in them runs, nothing is written, memory stays bounded, and the error is ours."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.reliability import hostile

import bilevel
from bilevel import cli
from bilevel.errors import escape_control_chars

ROOT = Path(__file__).parents[2]
WELL_MADE = {
    ("signed-run-solver.safetensors", "Solution.load"),
    ("signed-run-solver.safetensors", "Checkpoint.load"),
    ("signed-run-solver.safetensors", "bilevel resume"),  # "this run has ended": nothing in it is needed
    ("signed-run-command.safetensors", "bilevel resume"),
    ("signed-run-command.safetensors", "Solution.load"),
    ("signed-run-command.safetensors", "Checkpoint.load"),
    ("signed-run-command-line.safetensors", "Checkpoint.load"),
    ("signed-cleaner-settings.safetensors", "load_cleaner"),
    ("signed-cleaner-loss.safetensors", "load_cleaner"),
    ("text.csv", "read_table"),
    ("escapes.csv", "read_table"),
    ("toml.csv", "read_table"),  # a title above a line of separated texts
    ("categories.parquet", "read_table"),  # its 5,000 rows share one long text in memory too
}
"""What may be read: a text in a field that nobody runs, and tables."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("hostile") / "files"
    hostile.make_all(made)
    return made


@pytest.fixture(scope="module")
def readings(folder) -> list[dict]:
    """One line per file and reader, from a process with little room and an audit hook."""
    finished = subprocess.run(
        [sys.executable, "-m", hostile.__name__, str(folder)],
        capture_output=True, text=True, cwd=folder, timeout=500, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-3000:]
    # `bilevel resume` speaks to its user in between.
    return [json.loads(line) for line in finished.stdout.splitlines() if line.startswith("{")]


def test_every_file_was_read_by_every_reader(readings, folder):
    assert len(readings) == len(list(folder.iterdir())) * len(hostile.readers()) > 200


def test_every_refusal_is_an_error_of_ours(readings):
    odd = [line for line in readings if not line["ours"]]
    assert not odd, odd[:5]


def test_what_is_read_is_what_may_be_read(readings):
    read = {(line["file"], line["reader"]) for line in readings if line["error"] == "none"}
    assert read <= WELL_MADE, read - WELL_MADE


def test_nothing_runs_and_nothing_is_written(readings, folder):
    assert not [line for line in readings if line["acts"]]
    for place in (folder, folder.parent, folder.parent.parent, Path("/tmp")):
        assert not (place / "exploded").exists()


def test_refusals_take_no_time(readings):
    slow = [line for line in readings if line["seconds"] > 5.0]
    assert not slow, slow


@pytest.mark.parametrize("file", ["exabytes.safetensors", "pickle.csv", "escapes.csv", "zip.csv", "toml.safetensors"])
def test_the_command_line_shows_no_control_characters(folder, file, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    path = str(folder / file)
    commands = [["resume", path], ["predict", path, path], ["clean", path, "--label", "a", "--trusted", path]]
    for command in commands:
        assert cli.main(command) == 2
        shown = capsys.readouterr()
        assert "Traceback" not in shown.err
        assert all(sign.isprintable() or sign == "\n" for sign in shown.err + shown.out)
    assert os.listdir(tmp_path) == []


def test_hostile_names_in_a_message_are_shown_and_not_obeyed():
    assert escape_control_chars("\x1b[2J\x07\u202eabc\n") == "\\x1b[2J\\x07\\u202eabc\n"


FORBIDDEN = {"pickle", "marshal", "shelve", "zipfile", "tarfile", "gzip", "bz2", "lzma", "tomllib", "yaml", "dill",
             "cloudpickle", "joblib", "xml"}  # fmt: skip


UNPACKED_IN_MEMORY = {"untrusted_bytes.py", "omniglot.py", "cifar100.py"}
"""Readers of the official archives of data sets; tests/datasets has hostile ones for them."""


def test_the_package_has_no_reader_of_formats_that_run_or_unpack():
    """No pickle, TOML for the user's own configurations and archives for data sets alone."""
    package = Path(bilevel.__file__).parent
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {node.module or ""} if node.level == 0 else set()
            elif isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called == "np.load" and "allow_pickle=False" in ast.unparse(node):
                    continue
                assert called not in ("eval", "exec", "torch.load", "np.load", "pd.read_pickle"), f"{path}: {called}"
                continue
            else:
                continue
            found = {name.split(".")[0] for name in names} & FORBIDDEN
            if path.name == "packed_models.py":  # what skops compresses; it builds objects of listed types alone
                found -= {"zipfile"}
            if path.name in ("headers.py", "table_files.py"):  # compressed tables, read in blocks of text
                found -= {"zipfile", "gzip", "bz2", "lzma"}
            if path.parent.name == "datasets" and path.name in UNPACKED_IN_MEMORY:
                found -= {"zipfile", "tarfile", "gzip", "bz2"}
            if {"experiments", "datasets", "cli", "diagnostics", "examples"} & set(path.parts):
                found -= {"tomllib"}  # data alone; a user's is checked by models that refuse what they do not know
            assert not found, path
