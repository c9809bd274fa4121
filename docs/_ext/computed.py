"""The directive `computed`: Python code that is shown, run when the manual is built, and followed by what it printed.

All blocks of a page share their names, run in order, and run in a temporary folder of the page. An error is a warning
of Sphinx, and `make docs` has warnings as errors. Options: `:silent:` shows no output, `:output:` shows the output
alone, `:hidden:` shows nothing at all. `root` is the folder of the repository.

The directive `command` does the same for commands of `bilevel`, in the same folder.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive, directives

ROOT = Path(__file__).resolve().parents[2]
pages: dict[str, tuple[dict[str, Any], tempfile.TemporaryDirectory[str]]] = {}
"""By page: its names and its folder."""


class Computed(Directive):
    """Run the content, show it and its output."""

    has_content = True
    option_spec: ClassVar = {"silent": directives.flag, "output": directives.flag, "hidden": directives.flag}
    language = "python"

    def code(self) -> str:
        return "\n".join(self.content)

    def run(self) -> list[nodes.Node]:
        content = "\n".join(self.content)
        page = self.state.document.settings.env.docname
        where = f"docs/{page}.md, line {self.lineno}"
        try:
            printed = run(self.code(), *page_of(page), where)
        except Exception as error:
            raise self.error(f"{where}: {type(error).__name__}: {error}") from error
        if "hidden" in self.options:
            return []
        shown: list[nodes.Node] = []
        if "output" not in self.options:
            shown.append(nodes.literal_block(content, content, language=self.language))
        if printed and "silent" not in self.options:
            shown.append(nodes.literal_block(printed, printed, language="text", classes=["computed-output"]))
        return shown


class Command(Computed):
    """Run commands of bilevel, show them and their output."""

    language = "bash"

    def code(self) -> str:
        lines = "\n".join(self.content).replace("\\\n", " ").splitlines()
        calls = [f"assert not main({shlex.split(line)[1:]!r})" for line in lines]
        return "\n".join(["import os", "from bilevel.cli import main", "os.environ['COLUMNS'] = '80'", *calls])


def page_of(page: str) -> tuple[dict[str, Any], str]:
    if page not in pages:
        name = "page_" + page.replace("-", "_").replace("/", "_")
        module = sys.modules[name] = types.ModuleType(name)  # where classes of the page are looked up
        module.__dict__["root"] = ROOT
        pages[page] = module.__dict__, tempfile.TemporaryDirectory()
    names, folder = pages[page]
    return names, folder.name


def run(code: str, names: dict[str, Any], folder: str, where: str) -> str:
    """What the code printed."""
    printed = io.StringIO()
    with inside(folder), contextlib.redirect_stdout(printed):
        exec(compile(code, where, "exec"), names)
    return "\n".join(line.rstrip() for line in printed.getvalue().splitlines()).strip("\n")


@contextlib.contextmanager
def inside(folder: str) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def begin_page(app: Any, docname: str, source: list[str]) -> None:
    pages.pop(docname, None)
    reset_torch()


def reset_torch(*_: Any) -> None:
    """What one page or example sets for all of torch does not reach the next."""
    import torch

    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)


def setup(app: Any) -> dict[str, Any]:
    app.add_directive("computed", Computed)
    app.add_directive("command", Command)
    app.connect("source-read", begin_page)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
