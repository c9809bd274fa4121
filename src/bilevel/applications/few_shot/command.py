"""`bilevel fewshot`: train a network for tasks of a few examples per class, and judge it on classes it never saw."""

from __future__ import annotations

import sys
from pathlib import Path

from ...checkpoints import Checkpoint
from ...errors import InvalidInput
from ...files import check_writable
from .evaluation import Accuracy
from .experiment import Experiment
from .learner import MetaLearner, Training
from .memory import keep_freed_memory
from .picture import plot_curve
from .training_state import load_state

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
) -> int:
    """Train, say how it went, draw the learning curve."""
    if picture is not None:
        check_writable(picture, overwrite=force)
    keep_freed_memory()
    splits, learner = experiment.splits(folder), experiment.learner()
    if force and not resume:
        for path in Checkpoint(model).files:
            path.unlink(missing_ok=True)
    say(
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
        progress=True,
    )
    return _report(training, learner, splits.test, model, picture)


def evaluate(model: Path, *, episodes: int, seed: int, folder: Path | None) -> int:
    """The accuracy of a trained network on novel classes and, for comparison, on those of training."""
    if episodes < 2:
        raise InvalidInput(f"episodes must be at least 2, as an interval needs a spread, got {episodes}")
    experiment = Experiment.of(load_state(model).settings.get("about"))
    learner, splits = experiment.learner().load(model), experiment.splits(folder)
    answer(
        f"{experiment.ways}-way {experiment.shots}-shot tasks of {experiment.dataset}, {experiment.solver}, "
        f"{learner.state.step} steps in {learner.state.seconds / 60:.1f} minutes"
    )
    answer(f"novel classes:    {learner.evaluate(splits.test, count=episodes, seed=seed)}")
    answer(f"training classes: {learner.evaluate(splits.seen, count=episodes, seed=seed)}")
    return SUCCESS


def _report(training: Training, learner: MetaLearner, test: object, model: Path, picture: Path | None) -> int:
    if training.history and picture is not None:
        plot_curve({"training": training.history}, picture)
        say(f"learning curve: {picture}")
    say(f"{training.step} steps in {training.seconds / 60:.1f} minutes: {training.status.value}. {training.message}")
    say(f"network: {model}; go on with the same command and --resume")
    if not training.step:
        return INTERRUPTED
    found: Accuracy = learner.evaluate(test)  # type: ignore[arg-type]
    answer(f"accuracy on novel classes: {found}")
    if training.status.name == "INTERRUPTED":
        return INTERRUPTED
    return SUCCESS if training.status.ok else FAILURE


def say(text: str) -> None:
    """What is going on: not part of the result."""
    sys.stderr.write(text.strip() + "\n")
    sys.stderr.flush()


def answer(text: str) -> None:
    """A line of the result."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
