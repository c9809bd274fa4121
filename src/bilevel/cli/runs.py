"""`bilevel demo` and `bilevel resume`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .common import examples, one_thread

if TYPE_CHECKING:
    from cyclopts import App


def add_to(app: App) -> None:
    """Give the program these commands."""
    app.command(
        demo,
        help_epilogue=examples(
            "bilevel demo",
            "bilevel demo --seed 3      # other rows, other wrong labels",
            "bilevel demo --steps 50    # quicker; less is learned",
            "bilevel demo --out digits.svg --force    # replaces an older picture",
            "bilevel demo --checkpoint demo.safetensors    # if it is stopped: bilevel resume demo.safetensors",
        ),
    )
    app.command(
        resume,
        help_epilogue=examples(
            "bilevel resume demo.safetensors    # a demo that was stopped",
            "",
            "# a run of your own, minimize(problem, ..., checkpoint='run.safetensors'); problem is in study.py",
            "bilevel resume run.safetensors --problem study:problem",
            "bilevel resume run.safetensors --problem study:problem --steps 1000    # go on beyond its end",
        ),
    )


def demo(
    *,
    seed: int = 0,
    steps: int | None = None,
    out: Path | None = None,
    checkpoint: Path | None = None,
    force: bool = False,
) -> None:
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
    checkpoint
        A .safetensors file for the state of training; `bilevel resume` goes on from it.
    force
        Replace the picture if it exists.
    """
    from .. import demo as demonstration

    one_thread()
    steps = demonstration.STEPS if steps is None else steps
    demonstration.run(seed=seed, steps=steps, out=out, force=force, checkpoint=checkpoint)


def resume(file: Path, /, *, problem: str | None = None, solver: str | None = None, steps: int | None = None) -> int:
    """Go on with a run that was stopped, from its checkpoint, with the same bits as if it had never been stopped.

    The file says how far the run is and was to go, and which CSV and JSON logs it has: those that are there go on. Of a
    run that has ended you are told so. A demo is known by its file. `bilevel clean` goes on by its own
    option --resume; for its file you are told the command. A run of your own needs its problem,
    which is code: name it with --problem. Nothing in the file itself is ever run, so that the file of a
    stranger can do no harm. New checkpoints replace the old one. A damaged file is noticed, and the one before it,
    NAME.previous.safetensors, is used.

    Exit codes: 0 done, 2 a mistake or a run that failed, 130 stopped by Ctrl-C.

    Parameters
    ----------
    file
        The checkpoint, a .safetensors file.
    problem
        Where the problem is, as MODULE:NAME: a `bilevel.Problem`, or a function without arguments that makes one.
        Modules of the current folder are found.
    solver
        Where the solver is, as MODULE:NAME. Not needed for solvers of the library with plain settings.
    steps
        How many more steps to take (default: those that are left).
    """
    from .. import resuming

    one_thread()
    return resuming.resume(file, problem=problem, solver=solver, steps=steps)
