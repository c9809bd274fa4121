"""One few-shot training, evaluated on novel classes with every number of ways that a spec has."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import BilevelError
from ..few_shot.options import Experiment, Splits
from .configuration import FewShotData
from .plan import RunSpec
from .run import count_gradients, failure_reason, final_status, make_record
from .run_folder import Curve, Outcome, append_row

CURVE_SEED, FINAL_SEED = 1, 2
"""Of the tasks along the curve, and of those of its last row."""


class FewShotCurve:
    """A callback of `MetaLearner.fit`: collects the curve of one number of ways.

    In the search of step sizes novel classes are not used: its rows hold the validation accuracy alone.
    """

    def __init__(self, data: FewShotData, splits: Splits, *, final: bool) -> None:
        self._data, self._splits, self._final = data, splits, final
        self.columns: Curve = {}

    def __call__(self, record: Any, learner: Any) -> None:
        if self._final:
            self._add(record.step, record.seconds, record.validation, learner, self._data.novel_tasks, CURVE_SEED)

    def add_end(self, training: Any, learner: Any) -> None:
        """The network that was best on validation classes, on more tasks."""
        validation = float("nan") if training.best is None else training.best.mean
        self._add(training.step, training.seconds, validation, learner, self._data.final_tasks, FINAL_SEED)

    def _add(self, step: int, seconds: float, validation: float, learner: Any, tasks: int, seed: int) -> None:
        row = {"step": step, "training_seconds": seconds, "gradients": count_gradients(learner.costs.as_dict())}
        row["validation_accuracy"] = validation
        if self._final:
            novel = learner.evaluate(self._splits.test, count=tasks, seed=seed)
            seen = learner.evaluate(self._splits.seen, count=max(2, tasks // 3), seed=seed)
            row |= {"accuracy": novel.mean, "half_width": novel.interval, "training_class_accuracy": seen.mean}
        append_row(self.columns, row)


def run_few_shot(specs: Sequence[RunSpec], folder: Path) -> list[Outcome]:
    """Train once, by the settings that all specs share, and evaluate by the tasks of each."""
    began = time.process_time()
    data = [FewShotData(**spec.data) for spec in specs]
    experiments = [_experiment(spec, part, part.ways) for spec, part in zip(specs, data, strict=True)]
    splits = [experiment.splits(folder) for experiment in experiments]
    validation = _experiment(specs[0], data[0], data[0].validation_ways).splits(folder).validation
    spec, status, reason, training = specs[0], "failed", "", None
    curves = [FewShotCurve(part, tasks, final=spec.role == "final") for part, tasks in zip(data, splits, strict=True)]
    learner = experiments[0].learner()
    try:
        training = learner.fit(
            splits[0].train,
            steps=spec.iterations,
            clock=time.thread_time,
            minutes=None if spec.limit_seconds is None else spec.limit_seconds / 60,
            validate=validation,
            validate_count=data[0].validation_tasks,
            evaluate_every=spec.evaluate_every,
            callbacks=curves,
        )
        status, reason = final_status(training.status, training.message, training.step, spec.iterations)
        for curve in curves:
            curve.add_end(training, learner)
    except (BilevelError, ArithmeticError, RuntimeError) as error:
        reason = failure_reason(error)
    state = {name: value.detach().numpy().copy() for name, value in learner.network.state_dict().items()}
    ended = {
        "status": status,
        "reason": reason,
        "training_seconds": 0.0 if training is None else training.seconds,
        "counts": {} if training is None else {"steps": training.step, **learner.costs.as_dict()},
    }
    pairs = zip(specs, curves, strict=True)
    return [Outcome(make_record(one, "float32", began, **ended, curve=curve.columns), state) for one, curve in pairs]


def _experiment(spec: RunSpec, data: FewShotData, ways: int) -> Experiment:
    names = ("shots", "queries", "train_ways", "width", "bfloat16", "scale", "tasks_per_step")
    settings: dict[str, Any] = {name: getattr(data, name) for name in names} | {"plain": not data.normalise}
    settings |= {"dataset": data.images, "solver": spec.solver}
    method = spec.fixed | spec.settings
    settings["tasks_per_step"] = int(method.get("tasks_per_step", data.tasks_per_step))
    return Experiment(ways=ways, step=float(method["upper_step"]), seed=spec.seed, **settings)
