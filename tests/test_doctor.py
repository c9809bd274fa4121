"""`bilevel doctor`, shell completion, and help that teaches for every command."""

from __future__ import annotations

import builtins
import json
import os
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


def test_completion_is_installed_for_the_shell(tmp_path):
    home = {**os.environ, "HOME": str(tmp_path), "SHELL": "/bin/bash"}
    command = [sys.executable, "-m", "bilevel", "--install-completion", "--shell", "bash"]
    finished = subprocess.run(command, env=home, capture_output=True, text=True, timeout=60)
    assert finished.returncode == 0, finished.stderr
    written = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    for word in ("bilevel", "clean", "doctor", "--trusted"):
        assert word in written
    assert (Path(tmp_path) / ".bashrc").exists()


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
