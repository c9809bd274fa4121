"""Nothing in README and manual is stale: links lead somewhere, commands exist and run, messages are those we give."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
from pathlib import Path

import pytest
import torch
from hatchling.builders.sdist import SdistBuilder

import bilevel
from bilevel import cli, datasets

ROOT = Path(__file__).resolve().parents[2]
PAPERS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "RELEASING.md", "SECURITY.md")]
PAGES = sorted((ROOT / "docs").glob("*.md"))


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def shown_commands() -> list[tuple[str, str]]:
    """(page, command) for every line of a block that is a command, its comment and its output left out."""
    found = []
    for path in (*PAPERS, *PAGES):
        text = re.sub(r"\\\n\s*", "", path.read_text())
        blocks = re.findall(r"^(`{3,})(.*?)\n(.*?)^\1", text, re.DOTALL | re.MULTILINE)
        fenced = [block for _, language, block in blocks if language in ("", "bash", "console", "sh", "{command}")]
        indented = re.findall(r"^    (\S.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
        for line in [*"\n".join(fenced).splitlines(), *indented]:
            line = re.sub(r"\s+#.*|\s[|>].*|^([A-Z_]+=\S+ )+", "", line.removeprefix("$ "))
            if re.match(r"(bilevel|make|python -m|pytest) ", line + " "):
                found.append((short(path), line))
    return found


COMMANDS = shown_commands()


def test_there_are_commands_of_each_kind():
    assert {line.split()[0] for _, line in COMMANDS} == {"bilevel", "make", "python", "pytest"}


@pytest.mark.parametrize(("page", "line"), sorted(set(COMMANDS)))
def test_a_command_that_is_shown_exists(page, line):
    """Its name and its options; whether it does what the page says is tested below and in test_docs.py."""
    program, *words = shlex.split(line)
    if program == "bilevel":
        function, _, _ = cli.application().parse_args(words, exit_on_error=False, print_error=False)
        assert function.__name__ != "help_print" or "--help" in words
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in words if "=" not in word} <= set(targets)
    elif program == "python" and words[1] != "build":
        assert importlib.util.find_spec(words[1]) is not None
    elif program == "pytest":
        for word in words:
            assert word.startswith("-") or word in ("reliability", "slow") or list(ROOT.glob(word)), word


def test_workflows_run_targets_of_make():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        text = path.read_text()
        listed = re.findall(r"target: (\w+),", text) + re.findall(
            r"\w+", "".join(re.findall(r"target: \[(.*)\]", text))
        )
        steps = re.findall(r"run: (.*)", text)
        assert steps
        assert all(re.fullmatch(r"make (\$\{\{ matrix.target \}\}|[a-z]+)", step) for step in steps)
        assert {*listed, *(step.split()[1] for step in steps if "$" not in step)} <= targets, path.name


def test_the_version_of_the_citation_is_that_of_the_package():
    assert re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1] == bilevel.__version__  # type: ignore[index]


@pytest.mark.slow
def test_the_commands_of_the_readme_do_what_it_says(tmp_path, monkeypatch):
    """In the order in which they stand."""
    monkeypatch.chdir(tmp_path)
    lines = [line for page, line in COMMANDS if page == "README.md" and line.startswith("bilevel ")]
    assert [line.split()[1] for line in lines] == ["example", "clean"]
    for line in lines:
        assert cli.main(shlex.split(line)[1:]) == 0, line
    assert (tmp_path / "telco" / "report.html").exists()


@pytest.mark.parametrize("path", [*PAPERS, *PAGES], ids=short)
def test_links_to_files_lead_somewhere(path):
    text = re.sub(r"```.*?```|`[^`]*`", "", path.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if not re.match(r"\w+://", target) and not target.startswith("auto_gallery/"):
            assert (path.parent / target).exists(), target
        if target.startswith("auto_gallery/plot_"):
            assert (path.parent / target.replace("auto_gallery", "gallery").replace(".rst", ".py")).exists(), target


def test_the_source_distribution_has_the_files_that_the_manual_is_built_from():
    shipped = {Path(file.relative_path) for file in SdistBuilder(str(ROOT)).recurse_included_files()}
    read = set(PAGES)
    for page in PAGES:
        text = page.read_text()
        names = re.findall(r"\{(?:literal)?include\} (\S+)", text) + re.findall(r"\]\(([^)#\s:]+)\)", text)
        read |= {(page.parent / name).resolve() for name in names if not name.startswith("auto_gallery/")}
    assert sum("results" in path.parts for path in read) > 10
    assert {path.relative_to(ROOT) for path in read if path.is_file()} <= shipped
    assert {Path("Makefile"), Path("constraints.txt"), Path("docs/conf.py")} <= shipped


@pytest.mark.parametrize("path", PAGES, ids=short)
def test_names_that_a_page_links_to_exist(path):
    for role, name in re.findall(r"\{py:(\w+)\}`~?([\w.]+)`", path.read_text()):
        module, _, last = name.rpartition(".")
        thing = getattr(importlib.import_module(module), last)
        assert isinstance(thing, type) == (role == "class"), name


@pytest.mark.parametrize("path", [*PAPERS, *PAGES], ids=short)
def test_python_is_python(path):
    for code in re.findall(r"```(?:python|\{computed\})\n(?::\w+:\n)*(.*?)```", path.read_text(), re.DOTALL):
        ast.parse(code)


def minimized(g=lambda x, y: (y - x).square().sum(), constraint=None, solver=None, x0=None):
    start = torch.ones(2).double()
    problem = bilevel.Problem(lambda x, y: y.square().sum(), g, constraint, x0=start if x0 is None else x0, y0=start)
    bilevel.minimize(problem, steps=1, solver=solver)


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("y0 is not in ...", lambda folder: minimized(constraint=bilevel.sets.L1Ball(1.0))),
        (
            "... cannot use set ...: it needs ...; solvers that can: ...",
            lambda folder: minimized(constraint=bilevel.sets.L2Ball(2.0), solver=bilevel.solvers.SIGD()),
        ),
        (
            "takes points of 1 dimension(s), got shape ()",
            lambda folder: bilevel.sets.L1Ball(1.0).project(torch.tensor(1.0)),
        ),
        ("returned a tensor of shape ...: return one number", lambda folder: minimized(g=lambda x, y: y - x)),
        ("there is no ... in ...", lambda folder: datasets.load("mnist", folder=folder)),
    ],
)
def test_messages_of_the_troubleshooting_page_are_those_we_give(message, call, tmp_path):
    assert f"`{message}`" in (ROOT / "docs" / "troubleshooting.md").read_text()
    with pytest.raises((bilevel.BilevelError, UserWarning), match=re.escape(message).replace(re.escape("..."), ".*")):
        call(tmp_path)
