"""The commands. Each is thin, and imports what it needs when it is called: `bilevel --help` loads no torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._version import __version__
from ..errors import BilevelError, MissingExtra, shown
from .common import examples, given

if TYPE_CHECKING:
    from cyclopts import App

SUCCESS, FAILURE, INTERRUPTED = 0, 2, 130
"""Exit codes: done; a mistake that the message names; Ctrl-C (128 + SIGINT)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    try:
        return _run(arguments)
    except BilevelError as error:
        for text in (str(error), *getattr(error, "__notes__", ())):
            print(f"bilevel: {shown(text)}", file=sys.stderr)
        return FAILURE
    except KeyboardInterrupt as stop:
        told = [*filter(None, map(str, stop.args)), *getattr(stop, "__notes__", ())]
        print(shown(": ".join(["bilevel: stopped by Ctrl-C", *told])), file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return SUCCESS


def _run(arguments: Sequence[str] | None) -> int:
    try:
        from cyclopts import CycloptsError
    except ImportError:
        raise MissingExtra("The command line", "apps") from None
    given[:] = sys.argv[1:] if arguments is None else arguments
    try:
        code = application()(list(given), exit_on_error=False, result_action="return_value")
    except CycloptsError:  # cyclopts has said what is wrong with the arguments
        return FAILURE
    return code if isinstance(code, int) else SUCCESS


def application() -> App:
    """All commands."""
    from cyclopts import App, Parameter

    from . import cleaning, data, doctor, experiments, few_shot, runs

    app = App(
        name="bilevel",
        version=__version__,
        help_format="markdown",
        suppress_keyboard_interrupt=False,  # `main` answers it
        # --force needs no --no-force; a list takes all values that follow: --methods dmlcbo approx
        default_parameter=Parameter(negative=(), consume_multiple=1),
        help="Bilevel optimisation with a convex set in the lower level: find wrong labels, tune by gradient.",
        help_epilogue=examples(
            "bilevel demo            # find the wrong labels among 1,000 digits",
            "bilevel clean train.csv --label species --trusted checked.csv --report report.html",
            "bilevel clean --help    # what a command does, its options, more examples",
            "bilevel doctor          # what is installed, and the pip line for what is missing",
            "bilevel --install-completion    # commands and options by the Tab key",
        ),
    )
    for commands in (cleaning, runs, data, few_shot, experiments, doctor):
        commands.add_to(app)
    app.register_install_completion_command(
        help="Install completion for this shell (bash, zsh, fish): commands and options by the Tab key."
    )
    return app
