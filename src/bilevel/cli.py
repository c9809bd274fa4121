"""The commands. Each is thin, and imports what it needs when it is called: `bilevel --help` loads no torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ._version import __version__
from .errors import BilevelError, MissingExtra

if TYPE_CHECKING:
    from cyclopts import App

SUCCESS, FAILURE, INTERRUPTED = 0, 2, 130
"""Exit codes: done; a mistake that the message names; Ctrl-C (128 + SIGINT)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    try:
        return _run(arguments)
    except BilevelError as error:
        print(f"bilevel: {error}", file=sys.stderr)
        return FAILURE
    except KeyboardInterrupt:
        print("bilevel: stopped by Ctrl-C", file=sys.stderr)
        return INTERRUPTED


def _run(arguments: Sequence[str] | None) -> int:
    try:
        from cyclopts import CycloptsError
    except ImportError:
        raise MissingExtra("The command line", "apps") from None
    try:
        code = application()(
            None if arguments is None else list(arguments), exit_on_error=False, result_action="return_value"
        )
    except CycloptsError:  # cyclopts has said what is wrong with the arguments
        return FAILURE
    return code if isinstance(code, int) else SUCCESS


def application() -> App:
    """All commands."""
    from cyclopts import App, Parameter

    app = App(
        name="bilevel",
        version=__version__,
        help_format="markdown",
        suppress_keyboard_interrupt=False,  # `main` answers it
        default_parameter=Parameter(negative=()),  # --force needs no --no-force
        help="Bilevel optimisation with a convex set in the lower level: find wrong labels, tune by gradient.",
        help_epilogue=_examples(
            "bilevel demo            # find the wrong labels among 1,000 digits",
            "bilevel demo --help     # what a command does, its options, more examples",
        ),
    )
    app.command(
        demo,
        help_epilogue=_examples(
            "bilevel demo",
            "bilevel demo --seed 3      # other rows, other wrong labels",
            "bilevel demo --steps 50    # quicker; less is learned",
            "bilevel demo --out digits.svg --force    # replaces an older picture",
        ),
    )
    return app


def demo(*, seed: int = 0, steps: int | None = None, out: Path | None = None, force: bool = False) -> None:
    """Find the wrong labels among 1,000 handwritten digits.

    30 % of the training labels are wrong; 50 images, five per digit, can be trusted. One weight per training image is
    learned such that the model trained with these weights does well on the trusted ones. You see the accuracy on test
    images next to that of training without weights, how many wrong labels were found, and a picture of the most
    suspicious ones. It takes well under a minute, and no network: the images come with scikit-learn.

    Parameters
    ----------
    seed
        Which rows are trusted, for training and for testing, and which labels are wrong.
    steps
        Steps of the solver (default 250). More is not better: with a free weight per row the model ends up knowing
        only the trusted rows.
    out
        The picture: a .png, .svg or .pdf file. Default: bilevel-demo.png in this folder, or the next free
        name (bilevel-demo-2.png, ...).
    force
        Replace the picture if it exists.
    """
    import torch

    torch.set_num_threads(1)  # small matrices: a second thread costs more than it gives, and bits repeat with one
    from . import demo as demonstration

    demonstration.run(seed=seed, steps=demonstration.STEPS if steps is None else steps, out=out, force=force)


def _examples(*lines: str) -> str:
    return "**Examples**\n\n```\n" + "\n".join(lines) + "\n```\n"
