"""`bilevel fewshot`: train a network for tasks of a few examples per class, and judge it on classes it never saw."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from ...errors import InvalidInput
from ...files import check_writable
from ...solution import Status
from .evaluation import EpisodeSource
from .experiment import Experiment
from .learner import MetaLearner, Training
from .picture import check_picture, plot_curve
from .schedule import load_training
from .team import Team

SUCCESS, FAILURE, INTERRUPTED = 0, 2, 130
EVALUATIONS = 20
"""Points of the learning curve, when nothing else is said."""


def train(
    experiment: Experiment,
    model: Path,
    *,
    minutes: float | None,
    steps: int | None,
    evaluate_every: int | None,
    picture: Path | None,
    folder: Path | None,
    resume: bool,
    force: bool,
    team: Team | None = None,
) -> int:
    """Train, say how it went, draw the learning curve; of a team the one that writes the files does so."""
    team = Team() if team is None else team
    with team.together("reading the data"):
        if picture is not None:
            check_picture(picture)
            check_writable(picture, overwrite=force or resume)
        splits, learner = experiment.splits(folder), experiment.learner(team)
    tell = say if team.writes else _nothing
    tell(
        f"{experiment.ways}-way {experiment.shots}-shot tasks of {experiment.dataset}, {experiment.solver}: "
        f"{splits.train.classes} classes to train on, {splits.validation.classes} others to choose by, "
        f"{splits.test.classes} others to test on"
    )
    training = learner.fit(
        splits.train,
        minutes=10.0 if minutes is None and steps is None else minutes,
        steps=steps,
        validate=splits.validation,
        validate_count=100,
        evaluate_every=evaluate_every or (max(1, steps // EVALUATIONS) if steps else 100),
        checkpoint=model,
        resume=resume,
        overwrite=force,
        progress=True,
    )
    return _report(training, learner, splits.test, model, picture, tell)


def evaluate(model: Path, *, episodes: int, seed: int, folder: Path | None) -> int:
    """The accuracy of a trained network on novel classes and, for comparison, on those of training."""
    if episodes < 2:
        raise InvalidInput(f"episodes must be at least 2, as an interval needs a spread, got {episodes}")
    experiment = Experiment.of(load_training(model).settings.get("about"))
    learner, splits = experiment.learner().load(model), experiment.splits(folder)
    answer(
        f"{experiment.ways}-way {experiment.shots}-shot tasks of {experiment.dataset}, {experiment.solver}, "
        f"{learner.state.step} steps in {learner.state.seconds / 60:.1f} minutes"
    )
    answer(f"novel classes:    {learner.evaluate(splits.test, count=episodes, seed=seed)}")
    answer(f"training classes: {learner.evaluate(splits.seen, count=episodes, seed=seed)}")
    return SUCCESS


def _report(
    training: Training,
    learner: MetaLearner,
    test: EpisodeSource,
    model: Path,
    picture: Path | None,
    tell: Callable[[str], None],
) -> int:
    if training.history and picture is not None:
        with learner.team.together("drawing the learning curve"):
            if learner.team.writes:
                plot_curve({"training": training.history}, picture)
        tell(f"learning curve: {picture}")
    interrupted = training.status is Status.INTERRUPTED
    how = "stopped by Ctrl-C" if interrupted else training.status.value
    tell(f"{training.step} steps in {training.seconds / 60:.1f} minutes: {how}. {training.message}")
    tell(f"network: {model}; go on with the same command and --resume, or judge it: bilevel fewshot evaluate {model}")
    if interrupted:
        return INTERRUPTED
    if training.step:
        found = learner.evaluate(test)
        if learner.team.writes:
            answer(f"accuracy on novel classes: {found}")
    return SUCCESS if training.status.ok else FAILURE


def _nothing(text: str) -> None:
    """Said by another process."""


def say(text: str) -> None:
    """What is going on: not part of the result."""
    sys.stderr.write(text.strip() + "\n")
    sys.stderr.flush()


def answer(text: str) -> None:
    """A line of the result."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
