"""The accuracy of a network and its head on the queries of fresh tasks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from .._checks import check_count
from ..errors import InvalidInputError, InvalidTypeError
from ..random import RandomStreams, Seeds
from ..ranks import Ranks
from .inputs import TaskBatch, check_same_dtype, check_tasks
from .problem import image_features
from .svm_head import SVMHead

TRAINING, EVALUATION, VALIDATION = 0, 1, 2
"""Draws of one seed that share no task: index of `RandomStreams.generator`."""

AT_ONCE = 4
"""Tasks that are evaluated at once: more would need more memory, and not less time."""


class EpisodeSource(Protocol):
    """A source of tasks: `Episodes`, or any object with its method `sample`."""

    def sample(self, count: int, generator: torch.Generator) -> TaskBatch:
        """`count` tasks of one shape, a function of the generator alone."""
        ...


@dataclass(frozen=True)
class Accuracy:
    """mean +- 1.96 s / sqrt(count): the accuracy over independent tasks, with half the width of its 95 % interval.

    Parameters
    ----------
    mean
        The mean accuracy, between 0 and 1.
    interval
        Half the width of the 95 % interval of the mean.
    count
        The number of tasks.

    References
    ----------
    Snell, Swersky & Zemel (2017), who report few-shot accuracies in this form.

    Examples
    --------
    >>> print(Accuracy.from_tasks(torch.tensor([1.0, 0.8, 0.9, 0.9])))
    90.00 % +- 8.00 % (4 tasks)
    """

    mean: float
    interval: float
    count: int

    @classmethod
    def from_tasks(cls, values: Tensor) -> Accuracy:
        """From the accuracy of each task: mean +- 1.96 s / sqrt(count)."""
        count = len(values)
        spread = float(values.double().std()) if count > 1 else math.nan
        return cls(float(values.double().mean()), 1.96 * spread / math.sqrt(count), count)

    def __str__(self) -> str:
        return f"{100 * self.mean:.2f} % +- {100 * self.interval:.2f} % ({self.count} tasks)"


@torch.no_grad()
def evaluate(
    network: nn.Module,
    head: SVMHead,
    episodes: EpisodeSource,
    *,
    count: int = 600,
    seed: int = 0,
    stream: int = EVALUATION,
    ranks: Ranks | None = None,
) -> Accuracy:
    """The accuracy on `count` tasks, in evaluation mode; the mode of the network is restored.

    The accuracy of a task is the fraction of its queries whose largest score is that of their class.

    Parameters
    ----------
    network, head
        The network from images to features, and the head from features to scores. If the head has another number of
        ways than the tasks, that of the tasks is used.
    episodes
        The source of the tasks; for an unbiased estimate, with classes that were not used for training.
    count
        The number of tasks.
    seed
        The seed of the tasks.
    stream
        The random stream of the seed; those of training, evaluation and validation share no task.
    ranks
        The processes that divide the tasks; each calls this function with the same arguments.

    Returns
    -------
    Accuracy
        The mean over tasks, with its 95 % interval.

    References
    ----------
    Snell, Swersky & Zemel (2017): means over 600 tasks of classes that training has not seen.

    Examples
    --------
    >>> from bilevel.few_shot import ConvNet, Episodes, generated_images
    >>> episodes = Episodes(generated_images(10, 8, 16), ways=3, shots=2, queries=2)
    >>> evaluate(ConvNet(image_size=16, width=4), SVMHead(ways=3), episodes, count=5).count
    5
    """
    ranks = Ranks() if ranks is None else ranks
    with ranks.guard("evaluating"), in_mode(network, training=False):
        check_count("count", count)
        check_episodes("episodes", episodes)
        head = head.with_ways(getattr(episodes, "ways", head.ways))
        values = torch.zeros(count, dtype=torch.float64)
        for start in range(AT_ONCE * ranks.rank, count, AT_ONCE * ranks.size):
            generator = RandomStreams(Seeds.from_seed(seed), start).generator("data", stream)
            tasks = episodes.sample(min(AT_ONCE, count - start), generator)
            values[start : start + AT_ONCE] = _accuracies(network, head, tasks)
    return Accuracy.from_tasks(ranks.sum(values))


@contextmanager
def in_mode(network: nn.Module, *, training: bool) -> Iterator[None]:
    """Switch the network to this mode, and restore the mode of each of its parts afterwards.

    In a network in training mode, parts in evaluation mode (such as a frozen batch normalisation) stay in it.
    """
    modes = [(part, part.training) for part in network.modules()]
    if network.training != training or not training:
        network.train(training)
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def _accuracies(network: nn.Module, head: SVMHead, tasks: TaskBatch) -> Tensor:
    """The share of right answers of each task, (t,)."""
    mask = check_tasks(tasks, head.ways)
    check_same_dtype(network, tasks.query)
    support, query = image_features(network, tasks, mask)
    scores = head(support, tasks.support_labels, query, mask)
    return (scores.argmax(-1) == tasks.query_labels).double().mean(-1)


def check_episodes(name: str, episodes: object, ways: int | None = None) -> None:
    """Something to draw tasks from, of as many ways as the head where it is trained."""
    if not hasattr(episodes, "sample"):
        raise InvalidTypeError(
            f"{name} must be Episodes(...) or have their sample(count, generator), got {episodes!r:.60}"
        )
    given = getattr(episodes, "ways", ways)
    if ways is not None and given != ways:
        raise InvalidInputError(
            f"{name} has {given}-way tasks, but the head is {ways}-way: make it SVMHead(ways={given})"
        )
