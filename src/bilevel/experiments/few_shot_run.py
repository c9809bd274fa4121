"""One few-shot training, judged on novel classes with every number of ways that was asked for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..applications.few_shot.experiment import Experiment, Splits
from ..errors import BilevelError
from ..solution import Status
from .configuration import FewShotData
from .plan import RunSpec
from .record import Curve, RunRecord
from .run import Outcome, about, environment, reason_of

STATUS = {Status.STEPS: "iterations", Status.TIME: "time limit", Status.DIVERGED: "diverged"}
CURVE_SEED, FINAL_SEED = 1, 2
"""Tasks along the curve, and those of its last row."""


class Judge:
    """A callback of `MetaLearner.fit`: the curve of one number of ways.

    In the search of step sizes novel classes are not looked at: its rows hold the validation accuracy alone.
    """

    def __init__(self, data: FewShotData, splits: Splits, *, final: bool) -> None:
        self._data, self._splits, self._final = data, splits, final
        self.curve: Curve = {}

    def __call__(self, record: Any, learner: Any) -> None:
        if self._final:
            self._add(record.step, record.seconds, record.validation, learner, self._data.novel_tasks, CURVE_SEED)

    def at_end(self, training: Any, learner: Any) -> None:
        """The network that was best on validation classes, on more tasks."""
        validation = float("nan") if training.best is None else training.best.mean
        self._add(training.step, training.seconds, validation, learner, self._data.final_tasks, FINAL_SEED)

    def _add(self, step: int, seconds: float, validation: float, learner: Any, tasks: int, seed: int) -> None:
        row = {"step": step, "training_seconds": seconds, "validation_accuracy": validation}
        if self._final:
            novel = learner.evaluate(self._splits.test, count=tasks, seed=seed)
            seen = learner.evaluate(self._splits.seen, count=max(2, tasks // 3), seed=seed)
            row |= {"accuracy": novel.mean, "half_width": novel.interval, "training_class_accuracy": seen.mean}
        for name, value in row.items():
            self.curve.setdefault(name, []).append(value)


def run_few_shot(specs: Sequence[RunSpec], folder: Path) -> list[Outcome]:
    """Train once, by the settings that all specs share, and judge by the tasks of each."""
    began = time.perf_counter()
    data = [FewShotData(**spec.data) for spec in specs]
    experiments = [_experiment(spec, part, part.ways) for spec, part in zip(specs, data, strict=True)]
    splits = [experiment.splits(folder) for experiment in experiments]
    validation = _experiment(specs[0], data[0], data[0].validation_ways).splits(folder).validation
    spec, status, reason, training = specs[0], "failed", "", None
    judges = [Judge(part, tasks, final=spec.role == "final") for part, tasks in zip(data, splits, strict=True)]
    learner = experiments[0].learner()
    try:
        training = learner.fit(
            splits[0].train, steps=spec.iterations, clock=time.thread_time,
            minutes=None if spec.limit_seconds is None else spec.limit_seconds / 60, validate=validation,
            validate_count=data[0].validation_tasks, evaluate_every=spec.evaluate_every, callbacks=judges,
        )  # fmt: skip
        if training.status is Status.INTERRUPTED:  # Ctrl-C is for the sweep: a run that was cut short is no result
            raise KeyboardInterrupt
        for judge in judges:
            judge.at_end(training, learner)
        ended = training.status
        if ended is Status.STEPS and training.step < spec.iterations:
            ended = Status.TIME
        status, reason = STATUS.get(ended, "failed"), training.message
    except (BilevelError, ArithmeticError, RuntimeError) as error:
        reason = reason_of(error)
    state = {name: value.detach().numpy().copy() for name, value in learner.network.state_dict().items()}
    wall = time.perf_counter() - began
    return [
        Outcome(
            RunRecord(
                **about(one), status=status, reason=reason, wall_seconds=wall,
                training_seconds=0.0 if training is None else training.seconds,
                counts={} if training is None else {"steps": training.step, **learner.costs.as_dict()},
                environment=environment(one, "float32"), curve=judge.curve,
            ),
            state,
        )
        for one, judge in zip(specs, judges, strict=True)
    ]  # fmt: skip


def _experiment(spec: RunSpec, data: FewShotData, ways: int) -> Experiment:
    settings = spec.fixed | spec.settings
    return Experiment(
        dataset=data.images, ways=ways, shots=data.shots, queries=data.queries, train_ways=data.train_ways,
        solver=spec.solver, step=float(settings["upper_step"]), width=data.width, normalise=data.normalise,
        scale=data.scale, tasks_per_step=data.tasks_per_step, seed=spec.seed,
    )  # fmt: skip
