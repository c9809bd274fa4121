"""`bilevel fewshot`: train a network for tasks of a few examples per class, and test it on novel classes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import InvalidInputError, MissingExtraError
from ..ranks import Ranks
from ..run.checkpoint import Checkpoint
from ..run.solution import Status
from .evaluation import EpisodeSource
from .learner import MetaLearner, Training, TrainingRecord
from .options import Experiment, TrainOptions

SUCCESS, FAILURE, INTERRUPTED = 0, 2, 130
BEGUN = "this training was begun"


def train(options: TrainOptions, ranks: Ranks) -> int:
    """Train, print the result and draw the learning curve; rank 0 prints and writes the files."""
    options = replace(options, resume=_resumes(options, ranks))
    with ranks.guard("reading the data"):
        options.check()
        splits, learner = options.splits(options.folder), options.learner(ranks)
    log(
        ranks,
        f"{options.ways}-way {options.shots}-shot tasks of {options.dataset}, {options.solver}: "
        f"{splits.train.classes} training classes, {splits.validation.classes} validation classes, "
        f"{splits.test.classes} test classes",
    )
    limits = {**options.how_long, "validate": splits.validation, "validate_count": 100}
    files: Any = {"checkpoint": options.out, "resume": options.resume, "overwrite": options.force}
    training = learner.fit(splits.train, **limits, **files, progress=True)
    return _report(training, learner, splits.test, options)


def evaluate(model: Path, *, ways: int | None, episodes: int, seed: int, folder: Path | None) -> int:
    """The accuracy of a trained network on novel classes and, for comparison, on those of training."""
    if episodes < 2:
        raise InvalidInputError(f"episodes must be at least 2, to estimate an interval, got {episodes}")
    document = Checkpoint.of(model).load()
    experiment = Experiment.from_identity(document.identity)
    learner = experiment.learner().load(model)
    experiment = experiment if ways is None else replace(experiment, ways=ways)
    splits = experiment.splits(folder)
    print(
        f"{experiment.ways}-way {experiment.shots}-shot tasks of {experiment.dataset}, {experiment.solver}, "
        f"{learner.state.step} steps in {document.seconds / 60:.1f} minutes"
    )
    print(f"novel classes:    {learner.evaluate(splits.test, count=episodes, seed=seed)}")
    print(f"training classes: {learner.evaluate(splits.seen, count=episodes, seed=seed)}")
    return SUCCESS


def _resumes(options: TrainOptions, ranks: Ranks) -> bool:
    """Whether to go on from the file: if --resume says so, or if `torchrun` has started the processes again and those
    that ended had written it, or a newer one than there was when they began.
    """
    path = options.out
    before = f"{path} as of {path.stat().st_mtime_ns if path.exists() else 'never'} is not of this training"
    again = ranks.remembers(BEGUN)
    written = again and not ranks.remembers(before)
    if not again and not options.resume:
        ranks.remember(before)
    ranks.remember(BEGUN)
    return ranks.gather(options.resume or written)[0]


def _report(training: Training, learner: MetaLearner, test: EpisodeSource, options: TrainOptions) -> int:
    ranks = learner.ranks
    if training.history and options.picture is not None:
        with ranks.guard("drawing the learning curve"):
            if ranks.rank == 0:
                plot_curve(training.history, options.picture)
        log(ranks, f"learning curve: {options.picture}")
    interrupted = training.status is Status.INTERRUPTED
    how = "stopped by Ctrl-C" if interrupted else training.status.value
    log(ranks, f"{training.step} steps in {training.seconds / 60:.1f} minutes: {how}. {training.message}")
    then = f"continue with the same command and --resume, or test it: bilevel fewshot evaluate {options.out}"
    log(ranks, f"network: {options.out}; {then}")
    if interrupted:
        return INTERRUPTED
    if training.step:
        found = learner.evaluate(test, count=options.episodes)
        if ranks.rank == 0:
            print(f"accuracy on novel classes: {found}")
    return SUCCESS if training.status.ok else FAILURE


def plot_curve(history: Sequence[TrainingRecord], path: str | Path | None = None) -> Any:
    """Accuracy on classes that training does not see against its minutes, with its interval as a band.

    Returns a matplotlib figure, and writes a file if there is a path.

    Examples
    --------
    >>> records = [TrainingRecord(10, 6.0, 1.0, 0.5, 0.6, 0.02), TrainingRecord(20, 12.0, 0.8, 0.6, 0.7, 0.02)]
    >>> plot_curve(records).axes[0].get_xlabel()
    'minutes of training'
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("Plotting", "apps") from None
    rows = [row for row in history if row.validation is not None]
    if not rows:
        raise InvalidInputError("the learning curve has no accuracy to plot: train with validate=...")
    points = [(row.seconds / 60, 100 * (row.validation or 0.0), 100 * (row.interval or 0.0)) for row in rows]
    figure = Figure(figsize=(6, 4), layout="constrained")
    axis = figure.subplots()
    minutes, mean, half = zip(*points, strict=True)
    (line,) = axis.plot(minutes, mean)
    low, high = ([m + sign * h for m, h in zip(mean, half, strict=True)] for sign in (-1, 1))
    axis.fill_between(minutes, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axis.set(xlabel="minutes of training", ylabel="accuracy on unseen classes, %")
    if path is not None:
        figure.savefig(path)
    return figure


def log(ranks: Ranks, text: str) -> None:
    """Print a progress message, once for all ranks."""
    if ranks.rank == 0:
        print(text.strip(), file=sys.stderr, flush=True)
