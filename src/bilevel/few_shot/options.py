"""The options of `bilevel fewshot train`, declared once for the command line, files, experiments and ranks.

This module imports nothing heavy, because `bilevel fewshot --help` needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from ..errors import InvalidInputError

if TYPE_CHECKING:
    from torch import nn

    from ..ranks import Ranks
    from .episodes import Episodes
    from .learner import MetaLearner

TEST_QUERIES = 15
"""Query images per class of a test task, as is usual."""

DatasetName = Literal["omniglot", "fc100", "generated"]
SolverName = Literal["dmlcbo", "dmlcbo-as-published", "vpbgd", "rmd-pcd", "approx", "implicit", "adam"]
NetworkName = Literal["conv", "resnet12"]

SOLVERS: dict[str, tuple[str, dict[str, Any]]] = {
    "dmlcbo": ("DMLCBO", {"adaptivity": "elementwise", "upper_step": 0.02, "largest_scale": 1e8}),
    "dmlcbo-as-published": ("DMLCBO.as_published", {"gamma": 0.02, "tau": 0.01}),
    "vpbgd": ("VPBGD", {"lower_steps": 3, "penalty_steps": 3, "upper_step": 0.01}),
    "rmd-pcd": ("RMDPCD", {"steps": 3, "inner": "full", "step_rule": "fixed", "upper_step": 0.01}),
    "approx": ("Approx", {"inner_steps": 3, "step_rule": "fixed", "upper_step": 0.1}),
    "implicit": ("Implicit", {"step_rule": "fixed", "upper_step": 0.1}),
    "adam": ("Adam", {"lr": 1e-3}),
}
"""Solvers of the library and their settings by name; "adam" hands the hypergradient to torch's optimiser."""


class Splits(NamedTuple):
    """Tasks of training, validation and test classes, and test tasks of training classes (`seen`)."""

    train: Episodes
    validation: Episodes
    test: Episodes
    seen: Episodes


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The tasks, the network and the method of a training run, which are stored in its file.

    Parameters
    ----------
    dataset
        omniglot (characters), fc100 (photographs, from CIFAR-100), or generated (pen strokes, nothing to download).
    ways
        Classes per task.
    shots
        Support images per class.
    queries
        Query images per class in training. Test tasks have 15.
    train_ways
        Classes per task in training. More classes than in tests give better features, because tasks of few classes
        soon become easy.
    solver
        The solver; it starts each step at the solved lower level of fresh tasks (so that dmlcbo only updates the upper
        level). dmlcbo-as-published is the paper's single loop: the tasks of the first step and their dual variables
        are kept for all steps. adam passes the hypergradient of the solved lower level to torch's optimiser.
    step
        The step size of the solver for the network (default: one that works).
    network
        conv (four convolutions) or resnet12.
    width
        Channels of conv.
    plain
        Leave out the batch normalisation of conv, as in the paper.
    bfloat16
        Compute the blocks of conv in bfloat16: half the time on processors with instructions for it.
    scale
        A factor on the scores of the support vector machine.
    tasks_per_step
        Tasks drawn for each step.
    seed
        The seed of the initial parameters and of all tasks.

    Examples
    --------
    >>> Experiment(dataset="omniglot", ways=20).shots
    5
    """

    dataset: DatasetName = "omniglot"
    ways: int = 5
    shots: int = 5
    queries: int = 5
    train_ways: int = 20
    solver: SolverName = "dmlcbo"
    step: float | None = None
    network: NetworkName = "conv"
    width: int = 32
    plain: bool = False
    bfloat16: bool = False
    scale: float = 10.0
    tasks_per_step: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in (("dataset", DatasetName), ("solver", SolverName), ("network", NetworkName)):
            value = getattr(self, name)
            if value not in get_args(known):
                raise InvalidInputError(f"{name} must be one of {', '.join(get_args(known))}, got {value!r}")

    @classmethod
    def from_identity(cls, identity: Mapping[str, Any]) -> Experiment:
        """The experiment stored in a file, whose values are validated."""
        types = {part.name: type(part.default) for part in fields(Experiment)}
        if not set(types) <= set(identity):
            raise InvalidInputError("the file does not contain its experiment: train it with `bilevel fewshot`")
        for name, kind in types.items():
            if not isinstance(identity[name], float | None if name == "step" else kind):
                raise InvalidInputError(f"the file has {name} = {identity[name]!r:.60}, which is no {kind.__name__}")
        return Experiment(**{name: identity[name] for name in types})

    @property
    def identity(self) -> dict[str, Any]:
        """The settings by name."""
        return {part.name: getattr(self, part.name) for part in fields(Experiment)}

    def splits(self, folder: str | Path | None = None) -> Splits:
        """The tasks, from the files of the data folder."""
        from .episodes import Episodes

        train, validation, test = _images(self.dataset, folder)

        def tests(images: Any) -> Episodes:
            return Episodes(images, self.ways, self.shots, min(TEST_QUERIES, images.shape[1] - self.shots))

        extra: dict[str, Any] = {"omniglot": {"rotations": True}, "fc100": {"augment": True}}.get(self.dataset, {})
        tasks = Episodes(train, self.train_ways, self.shots, self.queries, **extra)
        return Splits(tasks, tests(validation), tests(test), tests(train))

    def make_network(self) -> nn.Module:
        """The network, with parameters drawn from the seed."""
        import torch

        from .networks import ConvNet, ResNet12

        channels, size = (3, 32) if self.dataset == "fc100" else (1, 28)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed % (1 << 63))
            if self.network == "resnet12":
                return ResNet12(channels, size)
            return ConvNet(channels, size, width=self.width, normalise=not self.plain, bfloat16=self.bfloat16)

    def learner(self, ranks: Ranks | None = None) -> MetaLearner:
        """An untrained learner, whose files contain this experiment."""
        from torch import optim

        from .. import solvers
        from .learner import MetaLearner
        from .svm_head import SVMHead

        name, settings = SOLVERS[self.solver]
        adam, published = self.solver == "adam", self.solver == "dmlcbo-as-published"
        if self.step is not None:
            settings = {**settings, "lr" if adam else "gamma" if published else "upper_step": self.step}
        if adam:
            method: dict[str, Any] = {"optimizer": lambda parameters: optim.Adam(parameters, **settings)}
        else:
            method = {"solver": attrgetter(name)(solvers)(**settings), "fixed_tasks": published}
        method |= {"tasks_per_step": self.tasks_per_step, "seed": self.seed, "about": self.identity, "ranks": ranks}
        return MetaLearner(self.make_network(), SVMHead(self.train_ways, scale=self.scale), **method)


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Experiment):
    """The arguments of `bilevel fewshot train`.

    Parameters
    ----------
    out
        The .safetensors file for the network and the state of training.
    minutes
        Training time without evaluations (default 10). With --resume: the total time.
    steps
        The maximal number of steps.
    halve_every
        Halve the step size of the solver after every such number of steps. Like --steps, it may change with --resume.
    evaluate_every
        Steps between the points of the learning curve (default 100, or a twentieth of --steps).
    episodes
        Number of test tasks of novel classes at the end.
    picture
        Draw the learning curve: a .png, .svg or .pdf file.
    folder
        The data folder. Default: that of the environment variable BILEVEL_DATA, or the user's cache folder.
    resume
        Continue from --out, if it exists.
    timeout
        With torchrun: how many seconds a process waits for the others (default 300).
    force
        Replace files that exist.
    """

    out: Path
    minutes: float | None = None
    steps: int | None = None
    halve_every: int | None = None
    evaluate_every: int | None = None
    episodes: int = 600
    picture: Path | None = None
    folder: Path | None = None
    resume: bool = False
    timeout: float | None = None
    force: bool = False

    @property
    def how_long(self) -> dict[str, Any]:
        """Arguments of `MetaLearner.fit`."""
        every = self.evaluate_every or (max(1, self.steps // 20) if self.steps else 100)
        minutes = 10.0 if self.minutes is None and self.steps is None else self.minutes
        return {"steps": self.steps, "minutes": minutes, "halve_every": self.halve_every, "evaluate_every": every}

    def check(self) -> None:
        """Raise if the picture cannot be written."""
        from .._files import check_writable

        if self.picture is not None:
            if self.picture.suffix.lower() not in (".png", ".svg", ".pdf"):
                raise InvalidInputError(f"--picture {self.picture}: its name must end in .png, .svg or .pdf")
            check_writable(self.picture, overwrite=self.force or self.resume)


def _images(dataset: str, folder: str | Path | None) -> tuple[Any, Any, Any]:
    """Images of classes to train on, to choose by and to test on, which share no class.

    Omniglot: 1,100 characters and 100, the usual 1,200 together, and 423. FC100: 60, 20 and 20 classes, no superclass
    in two of the parts.
    """
    from ..datasets import fc100_split, load, omniglot_split
    from .episodes import generated_images

    if dataset == "generated":
        images = generated_images(60, 20)
        return images[:30], images[30:45], images[45:]
    omniglot = dataset == "omniglot"
    data: Any = load("omniglot" if omniglot else "cifar-100", folder)
    split: Any = partial(omniglot_split, validation=100) if omniglot else fc100_split
    return tuple(split(data, part).images for part in ("train", "validation", "test"))
