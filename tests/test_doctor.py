"""`bilevel doctor`, shell completion, and help that teaches for every command."""

from __future__ import annotations

import builtins
import json
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import bilevel
from bilevel import cli
from bilevel.cli import doctor


def test_it_shows_versions_threads_devices_and_the_data_folder(capsys, monkeypatch, tmp_path):
    import torch

    (tmp_path / "mnist").mkdir()
    monkeypatch.setenv("BILEVEL_DATA", str(tmp_path))
    assert cli.main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for part in (
        bilevel.__version__,
        torch.__version__,
        "threads",
        "cpu",
        f"{tmp_path} (mnist)",
        "a small problem solved",
    ):
        assert part in shown


def test_a_missing_package_comes_with_its_pip_line(capsys, monkeypatch):
    needed = [f"numpy>=1; extra == '{extra}'" for extra in doctor.EXTRAS]
    monkeypatch.setattr(metadata, "requires", lambda _: [*needed, "no-such-package[x]>=0.61; extra == 'tensorboard'"])
    assert cli.main(["doctor"]) == 0
    assert "missing no-such-package: pip install 'bilevel[tensorboard]'" in capsys.readouterr().out
    assert cli.main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["missing"] == {"tensorboard": ["no-such-package"]}


def test_without_torch_it_still_answers(capsys, monkeypatch):
    real = builtins.__import__

    def load(name, *rest):
        if name == "torch":
            raise ImportError("no torch here")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", load)
    found = doctor.examine()
    monkeypatch.undo()
    assert not found["ok"]
    assert found["torch"] == "cannot be imported: no torch here"
    assert found["small_problem"] == "not tried"


def test_a_run_that_fails_is_said(monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("the processor is on fire")

    monkeypatch.setattr(bilevel, "minimize", fails)
    found = doctor.examine()
    assert not found["ok"]
    assert found["small_problem"] == "RuntimeError: the processor is on fire"


def test_the_optional_parts_are_those_of_the_package():
    """All extras that pyproject.toml has for users: `all` is a sum of them; dev and docs are for contributors."""
    written = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    assert set(doctor.EXTRAS) == set(written["project"]["optional-dependencies"]) - {"all", "dev", "docs"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed_and_no_file_is_changed(tmp_path, monkeypatch, capsys, shell):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cli.main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    for word in ("bilevel", "clean", "doctor", "trusted"):
        assert word in printed
    assert list(tmp_path.iterdir()) == []


def test_bash_reads_the_completion(tmp_path):
    script = subprocess.run([sys.executable, "-m", "bilevel", "completion", "bash"], capture_output=True, text=True)
    checked = subprocess.run(["bash", "-c", f"{script.stdout}\ncomplete -p bilevel"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def commands(app, path=()):
    for name in app:
        if not name.startswith("-"):
            yield (*path, name)
            yield from commands(app[name], (*path, name))


@pytest.mark.parametrize("command", list(commands(cli.application())), ids=" ".join)
def test_help_has_examples_of_the_command_itself(command, capsys):
    assert cli.main([*command, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"bilevel {' '.join(command)}" in shown.split("Examples", 1)[1]
