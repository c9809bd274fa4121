"""The commands. Each is thin, and imports what it needs when it is called: `bilevel --help` loads no torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ._version import __version__
from .errors import BilevelError, MissingExtra, shown

if TYPE_CHECKING:
    from cyclopts import App

SUCCESS, FAILURE, INTERRUPTED = 0, 2, 130
"""Exit codes: done; a mistake that the message names; Ctrl-C (128 + SIGINT)."""


_given: list[str] = []
"""The arguments of the running command, for reports that show it."""


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
    _given[:] = sys.argv[1:] if arguments is None else arguments
    try:
        code = application()(list(_given), exit_on_error=False, result_action="return_value")
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
            "bilevel clean train.csv --label species --trusted checked.csv --report report.html",
            "bilevel clean --help    # what a command does, its options, more examples",
        ),
    )
    app.command(
        clean,
        help_epilogue=_examples(
            "# train.csv has doubtful labels in the column species; checked.csv has the same columns and right labels",
            "bilevel clean train.csv --label species --trusted checked.csv --report report.html",
            "",
            "# everything that can be kept: a weight per row, a model for later, a page for a colleague",
            "bilevel clean train.csv --label species --trusted checked.csv \\",
            "    --out weights.csv --model model.safetensors --report report.html",
            "",
            "# a long run: after a crash, or after Ctrl-C, the same command with --resume goes on",
            "bilevel clean train.csv --label species --trusted checked.csv --out w.csv --checkpoint run.safetensors",
            "bilevel clean train.csv --label species --trusted checked.csv --out w.csv --resume run.safetensors",
            "",
            "# the table itself says which rows were checked; leave the name of each row out",
            "bilevel clean train.parquet --label species --trusted-column checked --ignore name",
            "",
            "# for programs",
            "bilevel clean train.csv --label species --trusted checked.csv --json | jq .label_issues",
        ),
    )
    app.command(
        predict,
        help_epilogue=_examples(
            "bilevel predict model.safetensors new.csv                        # to the screen, as CSV",
            "bilevel predict model.safetensors new.parquet --out predicted.parquet",
        ),
    )
    app.command(
        demo,
        help_epilogue=_examples(
            "bilevel demo",
            "bilevel demo --seed 3      # other rows, other wrong labels",
            "bilevel demo --steps 50    # quicker; less is learned",
            "bilevel demo --out digits.svg --force    # replaces an older picture",
            "bilevel demo --checkpoint demo.safetensors    # if it is stopped: bilevel resume demo.safetensors",
        ),
    )
    app.command(
        resume,
        help_epilogue=_examples(
            "bilevel resume demo.safetensors    # a demo that was stopped",
            "",
            "# a run of your own, minimize(problem, ..., checkpoint='run.safetensors'); problem is in study.py",
            "bilevel resume run.safetensors --problem study:problem",
            "bilevel resume run.safetensors --problem study:problem --steps 1000    # go on beyond its end",
        ),
    )
    app.command(_data_commands())
    app.command(_few_shot_commands())
    return app


def _data_commands() -> App:
    from cyclopts import App

    data = App(
        name="data",
        help="Public sets of data: what there is, download it, check it.\n\nFiles are in the folder that --folder or "
        "the environment variable BILEVEL_DATA names, by default the user's cache folder. Files that you put there "
        "yourself are used as well, after a check of their structure; once they are there, no network is needed.",
        help_epilogue=_examples(
            "bilevel data list",
            "bilevel data fetch omniglot",
            "BILEVEL_DATA=/srv/data bilevel data verify",
        ),
    )
    data.command(
        data_list,
        name="list",
        help_epilogue=_examples("bilevel data list", "bilevel data list --folder /srv/data"),
    )
    data.command(
        data_fetch,
        name="fetch",
        help_epilogue=_examples(
            "bilevel data fetch mnist fashion-mnist",
            "bilevel data fetch omniglot --folder /srv/data",
            "",
            "# without a network: copy the official files to FOLDER/omniglot yourself, then",
            "bilevel data verify omniglot --folder FOLDER",
        ),
    )
    data.command(
        data_verify,
        name="verify",
        help_epilogue=_examples(
            "bilevel data verify               # every set that is in the data folder",
            "bilevel data verify cifar-100     # an error if it is not there",
        ),
    )
    return data


def _few_shot_commands() -> App:
    from cyclopts import App

    few_shot = App(
        name="fewshot",
        help="Train a network whose features let a support vector machine learn new classes from a few examples.",
        help_epilogue=_examples(
            "bilevel data fetch omniglot",
            "bilevel fewshot train --dataset omniglot --ways 5 --shots 5 --out characters.safetensors --minutes 60",
            "bilevel fewshot evaluate characters.safetensors",
        ),
    )
    few_shot.command(
        few_shot_train,
        name="train",
        help_epilogue=_examples(
            "# a first look, without any data to download (a minute)",
            "bilevel fewshot train --dataset generated --out strokes.safetensors --minutes 1",
            "",
            "bilevel fewshot train --dataset omniglot --ways 10 --out ten.safetensors --picture ten.png --minutes 60",
            "bilevel fewshot train --dataset omniglot --ways 10 --out ten.safetensors --minutes 90 --resume    # go on",
            "",
            "# another method",
            "bilevel fewshot train --dataset fc100 --solver vpbgd --out fc100.safetensors",
        ),
    )
    few_shot.command(
        few_shot_evaluate,
        name="evaluate",
        help_epilogue=_examples(
            "bilevel fewshot evaluate characters.safetensors",
            "bilevel fewshot evaluate characters.safetensors --episodes 5000",
        ),
    )
    return few_shot


def few_shot_train(
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
    force: bool = False,
) -> int:
    """Train a network on tasks of a few examples per class.

    Every step draws fresh tasks: some classes, of each a few images to learn from and a few to be judged by. A support
    vector machine is trained on the features of the first, and the network moves such that it does better on the
    others. The network that is kept is the one that was best on classes set aside for that. In the end it is judged on
    classes that have played no part, on 600 tasks.

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
        The method of bilevel optimisation. adam hands the hypergradient of the solved lower level to torch's optimiser.
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
        Go on from --out.
    force
        Replace files that exist.
    """
    from .applications.few_shot import command
    from .applications.few_shot.experiment import Experiment

    _one_thread()
    experiment = Experiment(
        dataset=dataset, ways=ways, shots=shots, queries=queries, train_ways=train_ways, solver=solver,
        step=step, network=network, width=width, normalise=not plain, tasks_per_step=tasks_per_step, seed=seed,
    )  # fmt: skip
    return command.train(
        experiment, out, minutes=minutes, steps=steps, evaluate_every=evaluate_every, picture=picture, folder=folder,
        resume=resume, force=force,
    )  # fmt: skip


def few_shot_evaluate(model: Path, /, *, episodes: int = 600, seed: int = 0, folder: Path | None = None) -> int:
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
    from .applications.few_shot import command

    _one_thread()
    return command.evaluate(model, episodes=episodes, seed=seed, folder=folder)


def data_list(*, folder: Path | None = None) -> int:
    """Show the sets of data: what they are, how large, under which licence, and whether their files are here.

    Parameters
    ----------
    folder
        The data folder. Default: that of the environment variable BILEVEL_DATA, or the user's cache folder.
    """
    from .datasets import command

    return command.show_list(folder)


def data_fetch(*names: str, folder: Path | None = None) -> int:
    """Download sets of data. Each file must match the checksum of the catalogue, or it is thrown away.

    Files that are there already are never replaced. Exit codes: 0 done, 2 a file could not be had; the message says why
    and where to put it by hand.

    Parameters
    ----------
    names
        The sets; `bilevel data list` shows them.
    folder
        The data folder. Default: that of the environment variable BILEVEL_DATA, or the user's cache folder.
    """
    from .datasets import command

    return command.fetch_all(names, folder)


def data_verify(*names: str, folder: Path | None = None) -> int:
    """Read sets of data, check their structure, and show the SHA-256 of each file and whether it is the official one.

    Other files with the right structure (unpacked or packed again) can be used; their SHA-256 goes into results. Exit
    codes: 0 all can be used, 2 a file is damaged, or a set that was named is not there.

    Parameters
    ----------
    names
        The sets. Default: all that are in the data folder.
    folder
        The data folder. Default: that of the environment variable BILEVEL_DATA, or the user's cache folder.
    """
    from .datasets import command

    return command.verify_all(names, folder)


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
    from . import demo as demonstration

    _one_thread()
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
    from . import resuming

    _one_thread()
    return resuming.resume(file, problem=problem, solver=solver, steps=steps)


def clean(
    table: Path,
    /,
    *,
    label: str,
    trusted: Path | None = None,
    trusted_column: str | None = None,
    out: Path | None = None,
    model: Path | None = None,
    report: Path | None = None,
    test: Path | None = None,
    noise: Literal["auto", "rows", "class-pairs", "transition"] = "auto",
    radius: float | Literal["auto"] = "auto",
    solver: str = "auto",
    steps: int | None = None,
    seed: int = 0,
    holdout: float = 0.2,
    ignore: list[str] | None = None,
    categorical: list[str] | None = None,
    image_shape: str | None = None,
    json: bool = False,
    checkpoint: Path | None = None,
    resume: Path | None = None,
    force: bool = False,
) -> int:
    """Find the wrong labels of a table, and train a model that is not fooled by them.

    You have a table of training rows with doubtful labels, and a few rows whose labels you have checked (fifty are a
    good start, several per label). The command learns how far each label can be believed such that a model trained on
    the rows does well on the checked ones. You see which labels are suspicious, and how accurate logistic regression is
    on all rows and on those that are kept, next to the cleaned model. Tables are CSV files (UTF-8, with a header) or
    Parquet files; texts are taken as categories.

    Ctrl-C ends training early and keeps the best found so far. With --checkpoint FILE a run that is stopped or killed
    loses nothing: the same command with --resume FILE instead goes on, and ends with the same bits as if it had never
    been stopped.
    Exit codes: 0 done, 2 a mistake that the message names (nothing is written), 130 stopped by Ctrl-C.

    Parameters
    ----------
    table
        The table with doubtful labels.
    label
        Its column of labels.
    trusted
        A table with the same columns, whose labels are right.
    trusted_column
        Instead of --trusted: a column of the table that is true (yes, x, 1) in rows whose label is right; no, 0 or an
        empty cell in the others.
    out
        Write a table with a line per row: row, given_label, predicted_label, label_quality (probability of the given
        label, 0 to 1), is_label_issue, weight.
    model
        Write the trained model, a .safetensors file; `bilevel predict` uses it.
    report
        Write a page with the results, an .html file that needs no network.
    test
        A table with right labels to measure accuracy on. Without it some trusted rows are kept aside for that.
    noise
        How labels go wrong: each row on its own (rows), or by pairs of labels (class-pairs, transition). auto takes the
        first of transition, class-pairs and rows whose Brier score on trusted rows held out is within one standard
        error of the smallest.
    radius
        Size of the l1 ball that holds the model: smaller is sparser. auto chooses it on the trusted rows.
    solver
        The method of bilevel optimisation: dmlcbo, approx, implicit, vpbgd (needs a number as --radius), rmd-pcd,
        projected-soba, or auto.
    steps
        Steps of the solver for each model of noise. More is not always better: early steps learn what many rows share.
    seed
        For everything drawn at random; the same seed gives the same result.
    holdout
        Share of the trusted rows kept aside to measure accuracy, when there is no --test; 0 for none.
    ignore
        A column to leave out, such as the name of each row. May be given several times.
    categorical
        A column of numbers that are names of categories. May be given several times.
    image_shape
        The columns are pixels of pictures of this height and width, such as 28x28; the report then shows them. Columns
        named pixel0, pixel1, ... are taken for pictures anyway.
    json
        Print one JSON document instead of tables.
    checkpoint
        A .safetensors file for the state of training, written after every step; --resume goes on from it.
    resume
        The checkpoint of this command with these tables and settings, to go on from. New checkpoints replace it.
    force
        Replace files that exist.
    """
    from .applications.hyper_cleaning import command

    _one_thread()
    return command.clean(
        command.Request(
            table=table, label=label, trusted=trusted, trusted_column=trusted_column, test=test, out=out, model=model,
            report=report, noise=noise, radius=radius, solver=solver, steps=steps, seed=seed, holdout=holdout,
            ignore=ignore or (), categorical=categorical or (), image_shape=image_shape, json=json,
            checkpoint=checkpoint, resume=resume, force=force, arguments=tuple(_given),
        )
    )  # fmt: skip


def predict(
    model: Path,
    table: Path,
    /,
    *,
    out: Path | None = None,
    allow_unknown: bool = False,
    force: bool = False,
) -> int:
    """Predict the labels of new rows with a model that `bilevel clean --model` saved.

    Parameters
    ----------
    model
        The .safetensors file.
    table
        A CSV or Parquet file with the columns of the table that the model was trained on; a label column is ignored.
    out
        Write a table with a line per row: row, predicted_label and the probability of each label. Without it the
        table is printed as CSV.
    allow_unknown
        Let a category that the model has never seen count as none of the known ones, instead of refusing it.
    force
        Replace a file that exists.
    """
    from .applications.hyper_cleaning import command

    _one_thread()
    return command.predict(model, table, out=out, allow_unknown=allow_unknown, force=force)


def _one_thread() -> None:
    """Small matrices: a second thread costs more than it gives, and bits repeat with one."""
    import torch

    torch.set_num_threads(1)


def _examples(*lines: str) -> str:
    return "**Examples**\n\n```\n" + "\n".join(lines) + "\n```\n"
