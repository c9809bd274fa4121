"""`bilevel fewshot`: train and evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .common import examples, one_thread

if TYPE_CHECKING:
    from cyclopts import App


def add_to(app: App) -> None:
    """Give the program these commands."""
    from cyclopts import App

    few_shot = App(
        name="fewshot",
        help="Train a network whose features let a support vector machine learn new classes from a few examples.",
        help_epilogue=examples(
            "bilevel data fetch omniglot",
            "bilevel fewshot train --dataset omniglot --ways 5 --shots 5 --out characters.safetensors --minutes 60",
            "bilevel fewshot evaluate characters.safetensors",
        ),
    )
    few_shot.command(
        train,
        name="train",
        help_epilogue=examples(
            "# a first look, without any data to download (a minute)",
            "bilevel fewshot train --dataset generated --out strokes.safetensors --minutes 1",
            "",
            "bilevel fewshot train --dataset omniglot --ways 10 --out ten.safetensors --picture ten.png --minutes 60",
            "bilevel fewshot train --dataset omniglot --ways 10 --out ten.safetensors --minutes 90 --resume    # go on",
            "",
            "# four processes share the tasks of a step",
            "torchrun --nproc-per-node 4 -m bilevel fewshot train --tasks-per-step 4 --out four.safetensors",
            "",
            "# another method",
            "bilevel fewshot train --dataset fc100 --solver vpbgd --out fc100.safetensors",
        ),
    )
    few_shot.command(
        evaluate,
        name="evaluate",
        help_epilogue=examples(
            "bilevel fewshot evaluate characters.safetensors",
            "bilevel fewshot evaluate characters.safetensors --episodes 5000",
        ),
    )
    app.command(few_shot)


def train(
    *,
    out: Path,
    dataset: Literal["omniglot", "fc100", "generated"] = "omniglot",
    ways: int = 5,
    shots: int = 5,
    queries: int = 5,
    train_ways: int = 20,
    solver: Literal["dmlcbo", "vpbgd", "rmd-pcd", "approx", "implicit", "adam"] = "dmlcbo",
    step: float | None = None,
    network: Literal["conv", "resnet12"] = "conv",
    width: int = 32,
    plain: bool = False,
    tasks_per_step: int = 1,
    minutes: float | None = None,
    steps: int | None = None,
    evaluate_every: int | None = None,
    seed: int = 0,
    picture: Path | None = None,
    folder: Path | None = None,
    resume: bool = False,
    timeout: float | None = None,
    force: bool = False,
) -> int:
    """Train a network on tasks of a few examples per class.

    Every step draws fresh tasks: some classes, of each a few images to learn from and a few to be judged by. A support
    vector machine is trained on the features of the first, and the network moves such that it does better on the
    others. The network that is kept is the one that was best on classes set aside for that. In the end it is judged on
    classes that have played no part, on 600 tasks.

    Started by torchrun, its processes share the tasks of a step (at least as many as processes) and make the same
    steps as one process would; the first writes the files, from which any number of processes goes on.

    Ctrl-C ends training; what was learned is in the file, and --resume goes on from it with the same bits. Exit codes:
    0 done, 2 a mistake that the message names, or training that failed, 130 stopped by Ctrl-C.

    Parameters
    ----------
    out
        The network and all that training needs to go on, a .safetensors file.
    dataset
        omniglot (characters), fc100 (photographs, from CIFAR-100), or generated (pen strokes, nothing to download).
    ways
        Classes of a task.
    shots
        Images of each class to learn from.
    queries
        Images of each class to be judged by, in training. In tests there are 15.
    train_ways
        Classes of a task in training. More than in tests teach more, since few classes are soon told apart.
    solver
        The method of bilevel optimisation; each starts at the solved machines of fresh tasks (of dmlcbo the upper level
        is left). adam hands the hypergradient of the solved lower level to torch's optimiser.
    step
        Its step size for the network (default: one that works).
    network
        conv (four convolutions) or resnet12.
    width
        Channels of conv.
    plain
        Leave out the batch normalisation of conv, as the paper has it.
    tasks_per_step
        Tasks drawn for each step.
    minutes
        How long to train, evaluations not counted (default 10). With --resume: in all.
    steps
        How many steps to take at most.
    evaluate_every
        Steps between the points of the learning curve (default 100, or a twentieth of --steps).
    seed
        Of the network's first parameters and of all tasks.
    picture
        Draw the learning curve: a .png, .svg or .pdf file.
    folder
        The data folder. Default: that of the environment variable BILEVEL_DATA, or the user's cache folder.
    resume
        Go on from --out, if it is there.
    timeout
        With torchrun: how many seconds a process waits for the others (default 300).
    force
        Replace files that exist.
    """
    from ..applications.few_shot import command
    from ..applications.few_shot.experiment import Experiment
    from ..distributed import TaskParallel, connect
    from ..distributed.few_shot import goes_on
    from ..distributed.ranks import TIMEOUT

    one_thread()
    experiment = Experiment(
        dataset=dataset, ways=ways, shots=shots, queries=queries, train_ways=train_ways, solver=solver,
        step=step, network=network, width=width, normalise=not plain, tasks_per_step=tasks_per_step, seed=seed,
    )  # fmt: skip
    with connect(timeout=TIMEOUT if timeout is None else timeout) as ranks:
        return command.train(
            experiment, out, minutes=minutes, steps=steps, evaluate_every=evaluate_every, picture=picture,
            folder=folder, resume=goes_on(out, ranks, resume=resume), force=force,
            team=TaskParallel(ranks) if ranks.size > 1 else None,
        )  # fmt: skip


def evaluate(model: Path, /, *, episodes: int = 600, seed: int = 0, folder: Path | None = None) -> int:
    """Judge a trained network: mean accuracy with its 95 % interval on novel classes, and on those of training.

    Parameters
    ----------
    model
        The file that `bilevel fewshot train` wrote.
    episodes
        How many tasks.
    seed
        Which tasks.
    folder
        The data folder. Default: that of the environment variable BILEVEL_DATA, or the user's cache folder.
    """
    from ..applications.few_shot import command

    one_thread()
    return command.evaluate(model, episodes=episodes, seed=seed, folder=folder)
