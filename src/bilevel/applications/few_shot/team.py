"""Who trains: this process alone, or several that share the tasks of a step (`bilevel.distributed.TaskParallel`)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from torch import nn

from .evaluation import Accuracy, EpisodeSource, evaluate
from .head import SVMHead
from .inputs import TaskBatch
from .problem import FewShotProblem
from .training_state import TrainingState

if TYPE_CHECKING:
    from .learner import MetaLearner


class Team:
    """One process: it passes all images through the network, decides by itself, and writes the files.

    What a `MetaLearner` asks of those that train. Several processes, each with a learner of its own, override this:
    they make the same steps, so whatever a step or a decision depends on must be the same in all of them.
    """

    writes = True
    """Whether this process writes files and shows how far the training is."""

    def join(self, network: nn.Module, *, solver: bool) -> None:
        """Before anything else is done with the network; `solver`: x moves by a solver, not by an optimiser."""

    def begin(self, learner: MetaLearner, sources: dict[str, EpisodeSource], plan: dict[str, Any]) -> None:
        """Before the first step of a training, after a file was read."""

    def draw(self, sample: Callable[[], TaskBatch], step: int) -> TaskBatch:
        """The tasks of a step, of all who train."""
        return sample()

    def problem(self, network: nn.Module, head: SVMHead, tasks: TaskBatch, seed: int) -> FewShotProblem:
        """The problem of these tasks, whose derivatives in x are those of all of them."""
        return FewShotProblem(network, head, tasks, seed=seed)

    def evaluate(self, network: nn.Module, head: SVMHead, episodes: EpisodeSource, **settings: Any) -> Accuracy:
        """As the function `evaluate`."""
        return evaluate(network, head, episodes, **settings)

    def after_step(self, seconds: float, interrupted: bool) -> tuple[float, bool]:
        """How long the step took, and whether to stop, given what this process measured and was told."""
        return seconds, interrupted

    def decide(self, wish: Callable[[], bool]) -> bool:
        """Whether anybody wishes so."""
        return wish()

    def together(self, doing: str) -> AbstractContextManager[None]:
        """Around work that may fail, such as reading a file: then it has failed for all."""
        return nullcontext()

    def whole(self, state: TrainingState) -> TrainingState:
        """The state as a file holds it."""
        return state

    def parts(self, state: TrainingState, network: nn.Module) -> TrainingState:
        """What a file holds, as this process keeps it."""
        return state

    def check(self, state: TrainingState) -> None:
        """At every record: all stand at the same point."""
