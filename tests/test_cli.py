"""The command line: help that teaches, exit codes, messages instead of tracebacks, and no torch until it is needed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import bilevel
from bilevel import cli, demo, errors


def python(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300, cwd=cwd)


WITHOUT_TORCH = [
    *(f"assert main({words.split()!r}) == 0" for words in (
        "--version", "--help", "demo --help", "clean --help", "predict --help", "resume --help", "data --help",
        "data fetch --help", "doctor --help", "fewshot train --help",
    )),
    "assert main(['no-such-command']) == 2",
    "import bilevel; dir(bilevel); bilevel.__version__; bilevel.BilevelError",
]  # fmt: skip


def test_torch_is_not_loaded():
    """By none of these, one after the other in one process."""
    heavy = "{'torch', 'numpy', 'pandas', 'sklearn', 'matplotlib'}"
    lines = ["import sys; from bilevel.cli import main"]
    for code in WITHOUT_TORCH:
        lines += [code, f"assert not (heavy := {heavy} & set(sys.modules)), ({code!r}, heavy)"]
    finished = python("-c", "\n".join(lines))
    assert finished.returncode == 0, finished.stderr


def test_python_dash_m(tmp_path):
    finished = python("-m", "bilevel", "--version", cwd=tmp_path)
    assert (finished.returncode, finished.stdout.strip()) == (0, bilevel.__version__)


def test_help_teaches_with_examples(capsys):
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "Examples" in text
    assert "bilevel clean --help" in text
    assert cli.main(["demo", "--help"]) == 0
    text = capsys.readouterr().out
    for part in ("wrong labels", "--seed", "--steps", "--checkpoint", "Examples", "bilevel demo --seed 3"):
        assert part in text
    assert str(demo.STEPS) in text
    assert cli.main(["example", "--help"]) == 0
    assert "--no-force" not in capsys.readouterr().out


def programs(app, *path):
    """Every command, with the words that call it."""
    yield path, app
    for name in app:
        if not name.startswith("-"):
            yield from programs(app[name], *path, name)


def commands(text):
    """The lines of a text that call bilevel: without comments, the variables before and what is behind | or >."""
    lines = (line.split(" #")[0].strip() for line in text.replace("\\\n", " ").splitlines())
    found = (re.fullmatch(r"(?:[A-Z_]+=\S+ )*bilevel (.*?)(?: [|>].*)?", line) for line in lines)
    return [match[1] for match in found if match]


APP = cli.application()
HELP = {line for _, app in programs(APP) for line in commands(app.help_epilogue or "")}


@pytest.mark.parametrize("line", sorted(HELP))
def test_examples_of_help_can_be_typed(line):
    """Each is parsed and every word of it understood; it is not run. Those of the manual: docs/test_pages.py."""
    function, _, _ = APP.parse_args(line, exit_on_error=False, print_error=False)
    assert function.__name__ != "help_print" or "--help" in line


def test_a_list_takes_all_values_that_follow():
    line = "reproduce table-2 --datasets mnist madelon --methods dmlcbo --methods approx --seeds 3"
    _, given, _ = APP.parse_args(line, exit_on_error=False, print_error=False)
    (options,) = given.args
    assert (options.datasets, options.methods, options.seeds) == (("mnist", "madelon"), ("dmlcbo", "approx"), 3)
    _, given, _ = APP.parse_args("clean t.csv --label a --ignore b c --categorical d e", exit_on_error=False)
    options = given.args[0]
    assert (options.ignore, options.categorical) == (("b", "c"), ("d", "e"))


def test_without_arguments_the_help_is_shown(capsys):
    assert cli.main([]) == 0
    assert "bilevel COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--stepz", "3"], "--stepz"),
        (["demo", "--steps", "many"], "many"),
        (["dmo"], "dmo"),
        (["demo", "extra"], "extra"),
        (["demo", "--seed", "-1"], "seed must be non-negative, got -1"),
        (["demo", "--steps", "0"], "steps must be an integer of at least 1, got 0"),
        (["demo", "--checkpoint", "missing/demo.safetensors"], "does not exist: create it first"),
    ],
)  # fmt: skip
def test_mistakes_end_with_a_message_and_code_2(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
    assert os.listdir(tmp_path) == []


def test_our_errors_have_no_traceback(capsys, monkeypatch):
    def fails(**_):
        raise errors.InvalidInputError("radius must be positive, got -1")

    monkeypatch.setattr(demo, "run", fails)
    assert cli.main(["demo"]) == 2
    assert capsys.readouterr().err == "bilevel: radius must be positive, got -1\n"


def test_a_missing_extra_names_the_pip_line(tmp_path):
    (tmp_path / "cyclopts.py").write_text("raise ImportError('not installed')")
    finished = subprocess.run(
        [sys.executable, "-m", "bilevel", "demo"], capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert finished.returncode == 2
    assert finished.stderr == (
        "bilevel: The command line needs an optional part of bilevel: pip install 'bilevel[apps]'\n"
    )


@pytest.mark.parametrize("name", ["sklearn", "rich.console"])
def test_a_demo_without_its_packages(name, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, name, None)
        with pytest.raises(errors.MissingExtraError, match="The demo needs .* pip install 'bilevel\\[apps\\]'"):
            demo.run()


# A shell shows 130 for both. Python ends by the signal itself, although `main` has returned 130, when the interrupt
# came while it ran a text as code, as the making of a dataclass or a namedtuple does when a package is imported.
INTERRUPTED = (cli.INTERRUPTED, -signal.SIGINT)


def test_ctrl_c_in_the_middle_of_a_run(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "bilevel", "demo", "--steps", "100000"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests may run in the background
    )  # fmt: skip
    try:
        assert process.stdout is not None
        process.stdout.readline()  # the first words appear when everything is imported
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode in INTERRUPTED
    assert shown.splitlines()[-1] == "bilevel: stopped by Ctrl-C"
    assert "Traceback" not in shown
    assert os.listdir(tmp_path) == []
