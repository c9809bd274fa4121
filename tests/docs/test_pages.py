"""Nothing in README and manual is stale: links lead somewhere, commands exist and run, numbers come from files."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder

from bilevel import cli

ROOT = Path(__file__).resolve().parents[2]
PAPERS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "RELEASING.md", "SECURITY.md")]
PAGES = sorted((ROOT / "docs").glob("*.md"))
MEASURED = [ROOT / "docs" / f"{name}.md" for name in ("hyper-cleaning-results", "few-shot-results", "benchmarks")]
GALLERY = sorted((ROOT / "docs" / "gallery").glob("plot_*.py"))


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
            line = re.sub(r"\s+#.*", "", line.removeprefix("$ "))
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
        cli.application().parse_args(words, exit_on_error=False, print_error=False)
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in words if "=" not in word} <= set(targets)
    elif program == "python" and words[1] != "build":
        assert importlib.util.find_spec(words[1]) is not None
    elif program == "pytest":
        for word in words:
            assert word.startswith("-") or word in ("reliability", "slow") or list(ROOT.glob(word)), word


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


@pytest.mark.parametrize("path", [*PAPERS, *PAGES], ids=short)
def test_lines_have_at_most_120_characters(path):
    """Except rows of tables, formulas, and what stands for itself: a picture, or output that is shown."""
    text = re.sub(r"^```text\n.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert [line for line in text.splitlines() if len(line) > 120 and not re.match(r"\||!?\[|\$\$|    ", line)] == []


@pytest.mark.parametrize("path", MEASURED, ids=short)
def test_tables_of_results_are_files_below_their_command(path):
    """No table is typed by hand; above each stands the command that wrote it, with the file's name."""
    text = path.read_text()
    assert not re.search(r"^\|", text, re.MULTILINE)
    included = re.findall(r"```\{include\} \.\./(results/\S+)", text)
    assert included
    for name in included:
        above = text[: text.index(f"../{name}")]
        written = re.findall(r"--out (results/\S+)", above)
        assert name.split("/table.md")[0].split("/curves.md")[0].removesuffix(".md") in {
            file.removesuffix(".json") for file in written
        }
        assert (ROOT / name).read_text().startswith("| ")


def test_messages_of_the_troubleshooting_page_are_in_the_source():
    source = " ".join(path.read_text() for path in (ROOT / "src").rglob("*.py")) + (ROOT / "Makefile").read_text()
    source = re.sub(r"[\"']\s+f?[\"']", "", " ".join(source.split()))  # texts over several lines
    rows = re.findall(r"^\| (.*?) \|", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)
    messages = [part for row in rows for span in re.findall(r"`([^`]+)`", row) for part in span.split("...")]
    fragments = [part.strip(" :;") for part in messages if len(part.split()) >= 3]
    assert len(fragments) > 6
    for fragment in fragments:
        pattern = re.escape(fragment).replace(r"\(s\),\ got\ shape\ \(\)", r"\(s\), got shape")
        pattern = re.sub(r"\d+|bilevel\\\[|\\'.*|y0", r".{1,30}", pattern)
        assert re.search(pattern, source), fragment


def test_the_gallery_has_its_ten_examples():
    """And each figure a title, of which Sphinx-Gallery makes the alternative text."""
    assert len(GALLERY) >= 10
    for path in GALLERY:
        text = path.read_text()
        figures = text.count("plt.subplots(")
        assert figures, path.name
        assert len(re.findall(r"title\(|title=", text)) >= figures, path.name
