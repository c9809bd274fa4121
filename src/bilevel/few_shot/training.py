"""The steps of episodic training: what a file stores of them, and the stage that the engine runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .._checks import check_count
from .._fingerprint import fingerprint
from ..errors import NonFiniteError
from ..random import RandomStreams, Seeds
from ..ranks import Ranks
from ..run._serialization import serializable
from ..run.engine import Stage
from ..run.solution import Status
from .evaluation import TRAINING, VALIDATION, Accuracy, EpisodeSource, check_episodes, evaluate
from .problem import FewShotProblem, Parameters
from .updates import Updates

if TYPE_CHECKING:
    from .learner import MetaLearner


@serializable
@dataclass(frozen=True)
class TrainingRecord:
    """One line of the learning curve.

    Parameters
    ----------
    step, seconds
        The number of steps, and their time without evaluations.
    loss, accuracy
        The means since the previous record, on the queries of the training tasks before the step on these tasks.
    validation, interval, tasks
        The mean accuracy on validation tasks, half the width of its 95 % interval, and the number of tasks; None
        without validation.

    Examples
    --------
    >>> TrainingRecord(step=100, seconds=12.5, loss=0.7, accuracy=0.75).validation is None
    True
    """

    step: int
    seconds: float
    loss: float
    accuracy: float
    validation: float | None = None
    interval: float | None = None
    tasks: int | None = None

    @property
    def validation_accuracy(self) -> Accuracy | None:
        """Validation, interval and tasks together."""
        if self.validation is None or self.interval is None or self.tasks is None:
            return None
        return Accuracy(self.validation, self.interval, self.tasks)


@serializable
@dataclass(frozen=True)
class TrainingState:
    """The state from which training continues with the same bits.

    Parameters
    ----------
    step
        The number of steps so far.
    network
        The parameters and buffers of the network by name.
    updates
        The state of the solver, or of optimiser and scheduler; None before the first call of `MetaLearner.fit`.
    sums
        The sums of loss and accuracy since the last record before this step, and the number of steps since then.
    best
        The best record before this step and its network; None without validation.
    """

    step: int
    network: Parameters
    updates: Any = None
    sums: tuple[float, float, int] = (0.0, 0.0, 0)
    best: tuple[TrainingRecord, Parameters] | None = None

    def is_finite(self) -> bool:
        """Always: a step that leads elsewhere raises an error."""
        return True

    def best_so_far(self, history: list[TrainingRecord]) -> tuple[TrainingRecord, Parameters] | None:
        """The best record so far and its network: an earlier one, or the record of this very step."""
        last = history[-1] if history else None
        if last is None or last.step != self.step or last.validation is None:
            return self.best
        better = self.best is None or last.validation > (self.best[0].validation or 0.0)
        return (last, self.network) if better else self.best


@dataclass(frozen=True)
class Training:
    """The result of `MetaLearner.fit`.

    Parameters
    ----------
    status
        Why training ended; `status.ok` is true if it ended as planned.
    history
        The learning curve, a list of `TrainingRecord`.
    step, seconds
        The total number of steps, and their time without evaluations.
    best
        The best accuracy on validation tasks, reached by the final network; None without validation.
    message
        The message of an error, if there was one.

    Examples
    --------
    >>> import torch
    >>> from bilevel.few_shot import ConvNet, Episodes, MetaLearner, SVMHead, generated_images
    >>> episodes = Episodes(generated_images(20, 8, 16), ways=3, shots=2, queries=4)
    >>> learner = MetaLearner(ConvNet(image_size=16, width=4), SVMHead(ways=3), tasks_per_step=2)
    >>> training = learner.fit(episodes, steps=2)
    >>> training.status.name, training.step
    ('STEPS', 2)
    """

    status: Status
    history: list[TrainingRecord] = field(repr=False)
    step: int
    seconds: float
    best: Accuracy | None = None
    message: str = ""


def check_states(ranks: Ranks, state: TrainingState) -> None:
    """Raise if rounding, or a file of another content, has made the states of ranks differ."""
    if ranks.size > 1:
        place = {"step": state.step, "network": fingerprint(state.network), "state": fingerprint(state)}
        ranks.agree(place, "start from the same network, or the same file")


class MetaTraining(Stage):
    """Steps on fresh tasks; a record is the accuracy on validation tasks."""

    name = "training"

    def __init__(
        self, learner: MetaLearner, updates: Updates, source: EpisodeSource, validate: EpisodeSource | None, count: int
    ) -> None:
        check_episodes("episodes", source, learner.head.ways)
        if validate is not None:
            check_episodes("validate", validate)
        check_count("validate_count", count)
        self.learner = learner
        self.updates = updates
        self.source = source
        self.validate = validate
        self.count = count
        self._held: TrainingState | None = None  # what network and optimiser stand at

    def init(self) -> TrainingState:
        with self.learner.ranks.guard("drawing the first tasks", wait=False):
            return replace(self.learner.state, updates=self.updates.init(self._draw))

    def step(self, state: TrainingState) -> TrainingState:
        learner, k = self.learner, state.step + 1
        self._hold(state)
        self._held = None  # a step that is cut short may leave them anywhere
        problem = self._draw(k)
        x, updates, loss, accuracy = self.updates.step(problem, state.updates, k)
        if not learner.fixed_tasks:
            problem.forget()  # a graph of hundreds of megabytes, which would wait for the garbage collector
        if not (math.isfinite(loss) and problem.x_space.is_finite(x)):
            raise NonFiniteError(f"the loss is {loss:g}, or parameters are not finite")
        recorded = bool(learner.history) and learner.history[-1].step == state.step
        losses, accuracies, count = (0.0, 0.0, 0) if recorded else state.sums
        sums = (losses + loss, accuracies + accuracy, count + 1)
        network = {**state.network, **x, **problem.buffers}
        new = TrainingState(k, network, updates, sums, state.best_so_far(learner.history))
        place(learner.network, new.network)
        self._held = new
        return new

    def _hold(self, state: TrainingState) -> None:
        """Network and optimiser go on from here."""
        if self._held is not state:
            place(self.learner.network, state.network)
            self.updates.restore(state.updates)
            self._held = state

    def _draw(self, step: int) -> FewShotProblem:
        """The problem of a step."""
        return self._first if self.learner.fixed_tasks else self._draw_fresh(step)

    @cached_property
    def _first(self) -> FewShotProblem:
        return self._draw_fresh(0)

    def _draw_fresh(self, step: int) -> FewShotProblem:
        """A function of seed and step."""
        learner, ranks = self.learner, self.learner.ranks
        generator = RandomStreams(Seeds.from_seed(learner.seed), step).generator("data", TRAINING)
        tasks = self.source.sample(learner.tasks_per_step, generator)
        if ranks.size > 1:
            drawn = fingerprint(tasks.support_labels, tasks.query_labels, tasks.support[:, 0])
            remedy = "sample(count, generator) must be a function of the generator alone, with the same images"
            ranks.agree({f"the draw of the tasks of step {step}": drawn}, remedy)
        seed = generator.initial_seed() % (1 << 63)
        problem = FewShotProblem(learner.network, learner.head, tasks, seed=seed, ranks=ranks)
        problem.costs = learner.costs
        return problem

    def record(self, state: TrainingState, seconds: float) -> TrainingRecord:
        learner, (loss, accuracy, count) = self.learner, state.sums
        self._hold(state)
        check_states(learner.ranks, state)
        row = TrainingRecord(state.step, seconds, loss / max(count, 1), accuracy / max(count, 1))
        if self.validate is None:
            return row
        draws = {"count": self.count, "seed": learner.seed, "stream": VALIDATION}
        found = evaluate(learner.network, learner.head, self.validate, **draws, ranks=learner.ranks)
        return replace(row, validation=found.mean, interval=found.interval, tasks=found.count)

    def describe(self, state: TrainingState, row: TrainingRecord | None) -> str:
        loss, accuracy, count = state.sums
        text = f"loss {loss / count:.4g}  accuracy {100 * accuracy / count:.1f} %"
        found = None if row is None else row.validation_accuracy
        return text if found is None else f"{text}  validation {found}"

    def view(self, state: TrainingState) -> MetaLearner:
        return self.learner


@torch.no_grad()
def place(network: nn.Module, tensors: Parameters) -> None:
    """Give the network these parameters and buffers, in place."""
    own = named_tensors(network)
    for name, value in tensors.items():
        own[name].copy_(value)


def named_tensors(network: nn.Module) -> Parameters:
    """Its parameters and buffers by name."""
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}
