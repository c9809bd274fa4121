"""A few-shot problem of the paper by name: its data, its network, its head and how it is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from ...datasets import fc100_split, load, omniglot_split
from ...errors import InvalidInput
from ...solvers import DMLCBO, RMDPCD, VPBGD, Approx, Implicit
from .episodes import Episodes, generated_images
from .head import SVMHead
from .learner import MetaLearner
from .networks import ConvNet, ResNet12
from .team import Team

TEST_QUERIES = 15
"""Query images per class of a test task, as is usual."""

SOLVERS: dict[str, Callable[[], Any]] = {
    "dmlcbo": lambda: DMLCBO(adaptivity="elementwise", upper_step=0.02, largest_scale=1e8),
    "vpbgd": lambda: VPBGD(lower_steps=3, penalty_steps=3, upper_step=0.01),
    "rmd-pcd": lambda: RMDPCD(steps=3, inner="full", step_rule="fixed", upper_step=0.01),
    "approx": lambda: Approx(inner_steps=3, step_rule="fixed", upper_step=0.1),
    "implicit": lambda: Implicit(step_rule="fixed", upper_step=0.1),
    "adam": lambda: None,
}
"""The solvers by name; "adam" hands the hypergradient of the solved dual to torch's optimiser."""


class Splits(NamedTuple):
    """Tasks of classes to train on, of classes to choose by, and of classes to be judged by; and tests of the first."""

    train: Episodes
    validation: Episodes
    test: Episodes
    seen: Episodes


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Which tasks, which network, which method; all of it plain values, so that a file can hold it.

    Parameters
    ----------
    dataset
        "omniglot", "fc100" or "generated" (pen strokes, for tests).
    ways, shots, queries
        Classes of a task, support images and, in training, query images of each.
    train_ways
        Classes of a task in training. More than in tests teach more: five classes are soon told apart, and a task
        without an error has little to say.
    solver
        A name of `SOLVERS`.
    step
        The solver's upper step, or Adam's learning rate; None for the default.
    network, width, normalise
        "conv" or "resnet12"; the channels of "conv" and whether it has batch normalisation, which the paper's has not.
    scale
        Of the head's scores.
    tasks_per_step, seed
        As in `MetaLearner`.

    Examples
    --------
    >>> Experiment(dataset="omniglot", ways=20).shots
    5
    """

    dataset: str = "omniglot"
    ways: int = 5
    shots: int = 5
    queries: int = 5
    train_ways: int = 20
    solver: str = "dmlcbo"
    step: float | None = None
    network: str = "conv"
    width: int = 32
    normalise: bool = True
    scale: float = 10.0
    tasks_per_step: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, known in (
            ("dataset", self.dataset, DATASETS),
            ("solver", self.solver, SOLVERS),
            ("network", self.network, ("conv", "resnet12")),
        ):
            if value not in known:
                raise InvalidInput(f"{name} must be one of {', '.join(known)}, got {value!r}")

    @classmethod
    def of(cls, about: Any) -> Experiment:
        """From what a file says, which may be anything."""
        types = {part.name: type(part.default) for part in fields(cls)}
        if not isinstance(about, Mapping) or set(about) != set(types):
            raise InvalidInput("the file does not say which experiment it belongs to: train it by `bilevel fewshot`")
        for name, value in about.items():
            wanted = (float, type(None)) if name == "step" else types[name]
            if not isinstance(value, wanted):
                raise InvalidInput(f"the file has {name} = {value!r:.60}, which is no {types[name].__name__}")
        return cls(**about)

    def about(self) -> dict[str, Any]:
        """The settings by name."""
        return asdict(self)

    def splits(self, folder: str | Path | None = None) -> Splits:
        """The tasks, from the files of the data folder."""
        train, validation, test = DATASETS[self.dataset](folder)

        def judged(images: Any) -> Episodes:
            return Episodes(images, self.ways, self.shots, min(TEST_QUERIES, images.shape[1] - self.shots))

        extra: dict[str, Any] = {"omniglot": {"rotations": True}, "fc100": {"augment": True}}.get(self.dataset, {})
        tasks = Episodes(train, self.train_ways, self.shots, self.queries, **extra)
        return Splits(tasks, judged(validation), judged(test), judged(train))

    def make_network(self) -> nn.Module:
        """The network, with parameters drawn from the seed."""
        channels, size = (3, 32) if self.dataset == "fc100" else (1, 28)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            if self.network == "resnet12":
                return ResNet12(channels, size)
            return ConvNet(channels, size, width=self.width, normalise=self.normalise)

    def learner(self, team: Team | None = None) -> MetaLearner:
        """A learner that has not learned anything yet, and says in its files what it is."""
        settings: dict[str, Any] = {"tasks_per_step": self.tasks_per_step, "seed": self.seed, "about": self.about()}
        settings["team"] = team
        if self.solver == "adam":
            rate = 1e-3 if self.step is None else self.step
            settings["optimizer"] = lambda parameters: torch.optim.Adam(parameters, lr=rate)
        else:
            solver = SOLVERS[self.solver]()
            settings["solver"] = solver if self.step is None else with_step(solver, self.step)
        return MetaLearner(self.make_network(), SVMHead(self.train_ways, scale=self.scale), **settings)


def with_step(solver: Any, step: float) -> Any:
    """The solver with another upper step."""
    return type(solver)(**{**vars(solver), "upper_step": step})


def _omniglot(folder: str | Path | None) -> tuple[Any, Any, Any]:
    """1,100 characters to train on and 100 to choose by, the usual 1,200 together; 423 to be judged by."""
    data = load("omniglot", folder)
    return tuple(omniglot_split(data, part, validation=100).images for part in ("train", "validation", "test"))  # type: ignore[return-value, arg-type]


def _fc100(folder: str | Path | None) -> tuple[Any, Any, Any]:
    """60, 20 and 20 classes, no superclass in two of the parts."""
    data = load("cifar-100", folder)
    return tuple(fc100_split(data, part).images for part in ("train", "validation", "test"))  # type: ignore[return-value, arg-type]


def _generated(folder: str | Path | None) -> tuple[Any, Any, Any]:
    images = generated_images(60, 20)
    return images[:30], images[30:45], images[45:]


DATASETS: dict[str, Callable[[str | Path | None], tuple[Any, Any, Any]]] = {
    "omniglot": _omniglot,
    "fc100": _fc100,
    "generated": _generated,
}
