"""The commands. Each imports what it needs when it is called, so that `bilevel --help` does not load torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .._version import __version__
from ..errors import BilevelError, MissingExtraError, escape_control_chars
from .common import add_examples, command_line

if TYPE_CHECKING:
    from cyclopts import App

SUCCESS, FAILURE, INTERRUPTED = 0, 2, 130
"""Exit codes: success; an error; Ctrl-C (128 + SIGINT)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    if sys.stdout is None:  # closed by whoever started us: nobody wants to read it
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (for the rest of the program)
    try:
        os.getcwd()  # without it torch ends the program
        return _run(arguments)
    except BilevelError as error:
        for text in (str(error), *getattr(error, "__notes__", ())):
            print(f"bilevel: {escape_control_chars(text)}", file=sys.stderr)
        return FAILURE
    except KeyboardInterrupt as stop:
        details = [*filter(None, map(str, stop.args)), *getattr(stop, "__notes__", ())]
        print(escape_control_chars(": ".join(["bilevel: stopped by Ctrl-C", *details])), file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return SUCCESS
    except OSError as error:  # of the system: a name that is too long, a folder that is gone, no permission
        print(f"bilevel: {escape_control_chars(_system_message(error))}", file=sys.stderr)
        return FAILURE


def _system_message(error: OSError) -> str:
    try:
        os.getcwd()
    except FileNotFoundError:
        return "the current folder was deleted: change to one that exists"
    return ": ".join(str(part) for part in (error.filename, error.strerror or error) if part)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        from cyclopts import CycloptsError
    except ImportError:
        raise MissingExtraError("The command line", "apps") from None
    command_line[:] = sys.argv[1:] if arguments is None else arguments
    readable = all(sign.isprintable() for sign in "".join(command_line))
    how: dict[str, Any] = {"exit_on_error": False, "print_error": readable, "result_action": "return_value"}
    try:
        code = application()(list(command_line), **how)
    except CycloptsError as error:
        if not readable:  # else cyclopts has said what is wrong with the arguments
            print(f"bilevel: {escape_control_chars(str(error))}", file=sys.stderr)
        elif error.command_chain:
            print(f"Options and examples: bilevel {' '.join(error.command_chain)} --help", file=sys.stderr)
        return FAILURE
    return code if isinstance(code, int) else SUCCESS


def application() -> App:
    """All commands."""
    from cyclopts import App, Parameter

    from . import cleaning, data, doctor, example, experiments, few_shot, runs

    app = App(
        name="bilevel",
        version=__version__,
        help_format="markdown",
        suppress_keyboard_interrupt=False,  # `main` answers it
        # --force needs no --no-force; a list takes all values that follow: --methods dmlcbo approx
        default_parameter=Parameter(negative=(), consume_multiple=1),
        help="Bilevel optimisation with a constrained lower level: find wrong labels, learn from few examples.",
    )
    for commands in (example, cleaning, runs, data, few_shot, experiments, doctor):
        commands.add_to(app)
    add_examples(app)
    return app
