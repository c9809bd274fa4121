"""`bilevel demo` and `bilevel resume`."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from .common import one_thread


def add_to(app: App) -> None:
    """Give the program these commands."""
    app.command(demo)
    app.command(resume)


def demo(*, seed: int = 0, steps: int | None = None, checkpoint: Path | None = None) -> None:
    """Find the wrong labels among 1,000 handwritten digits.

    30 % of the training labels are wrong; 50 images, five per digit, are trusted. The demo learns one weight per
    training image, so that a model trained with these weights does well on the trusted images. It shows the accuracy on
    test images with and without the weights, and how many wrong labels were found. It takes well under a minute and
    needs no network: the images come with scikit-learn.

    Parameters
    ----------
    seed
        Which rows are trusted, for training and for testing, and which labels are wrong.
    steps
        Steps of the solver (default 250). More steps are not better: with one weight per row, the model eventually
        fits only the trusted rows.
    checkpoint
        A .safetensors file for the state of training; `bilevel resume` continues from it.
    """
    from .. import demo as demonstration

    one_thread()
    steps = demonstration.STEPS if steps is None else steps
    demonstration.run(seed=seed, steps=steps, checkpoint=checkpoint)


def resume(file: Path, /, *, problem: str | None = None, solver: str | None = None, steps: int | None = None) -> int:
    """Continue a run that was stopped from its checkpoint, with the same bits as an uninterrupted run.

    The file stores the progress and the planned end of the run, and its CSV logs, which are continued if they
    exist. If the run has ended, the command says so. A demo needs no further options. For a checkpoint of
    `bilevel clean`, the command prints the line that continues it (with --resume). For a run of your own, name its
    problem, which is code, with --problem. Code in the file is never executed, so that untrusted files are safe. New
    checkpoints replace the old one. If the file is damaged, the previous one, NAME.previous.safetensors, is used.

    Exit codes: 0 success, 2 an error or a run that failed, 130 stopped by Ctrl-C.

    Parameters
    ----------
    file
        The checkpoint, a .safetensors file.
    problem
        The problem, as MODULE:NAME: a `bilevel.Problem`, or a function without arguments that returns one. Modules in
        the current folder are found.
    solver
        The solver, as MODULE:NAME. Not needed for solvers of the library with plain settings.
    steps
        How many more steps to take (default: the remaining ones).
    """
    from ..cleaning import training  # noqa: F401  (files of HyperCleaner hold its classes)
    from ..run import resume as runs

    one_thread()
    return runs.resume(file, problem=problem, solver=solver, steps=steps)
