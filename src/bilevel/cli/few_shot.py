"""`bilevel fewshot`: train and evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from ..few_shot.options import TrainOptions
from .common import one_thread


def add_to(app: App) -> None:
    """Give the program these commands."""
    few_shot = App(
        name="fewshot",
        help="Train a network whose features let a support vector machine learn new classes from a few examples.",
    )
    few_shot.command(train)
    few_shot.command(evaluate)
    app.command(few_shot)


def train(options: Annotated[TrainOptions, Parameter(name="*")]) -> int:
    """Train a network on tasks of a few examples per class.

    Every step draws fresh tasks: some classes, with a few support images and a few query images of each. A support
    vector machine is trained on the features of the support images, and the network is updated to improve its
    predictions for the queries. The network with the best accuracy on validation classes is kept. At the end it is
    tested on classes that were used for neither training nor validation.

    Under torchrun, the processes share the tasks of a step (at least one each) and take the same steps as one process
    would. Rank 0 writes the files, from which any number of processes can continue.

    Ctrl-C ends training; the file contains the state so far, and --resume continues from it with the same bits. Exit
    codes: 0 success, 2 an error or training that failed, 130 stopped by Ctrl-C.
    """
    from ..few_shot import command
    from ..ranks import TIMEOUT, connect

    one_thread()
    with connect(timeout=TIMEOUT if options.timeout is None else options.timeout) as ranks:
        return command.train(options, ranks)


def evaluate(
    model: Path, /, *, ways: int | None = None, episodes: int = 600, seed: int = 0, folder: Path | None = None
) -> int:
    """Evaluate a trained network: mean accuracy with a 95 % interval, on novel classes and on training classes.

    Parameters
    ----------
    model
        The file that `bilevel fewshot train` wrote.
    ways
        Classes per task (default: as in training's --ways).
    episodes
        The number of tasks.
    seed
        The seed that selects the tasks.
    folder
        The data folder. Default: that of the environment variable BILEVEL_DATA, or the user's cache folder.
    """
    from ..few_shot import command

    one_thread()
    return command.evaluate(model, ways=ways, episodes=episodes, seed=seed, folder=folder)
