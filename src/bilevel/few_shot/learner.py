"""Episodic training of a network under the SVM head, with any solver of the library or any optimiser of torch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._checks import check_count, check_number
from .._fingerprint import fingerprint
from .._serializable import matches
from ..errors import InvalidInputError, NonFiniteError
from ..linearization import Costs, check_modes
from ..random import RandomStreams, Seeds
from ..ranks import Ranks
from ..run._serialization import serializable
from ..run.checkpoint import Checkpoint, RunDocument
from ..run.engine import Limits, Run, Stage
from ..run.solution import Status
from ..solvers import DMLCBO, Solver
from .evaluation import TRAINING, VALIDATION, Accuracy, EpisodeSource, check_episodes, evaluate, in_mode
from .head import SVMHead
from .problem import FewShotProblem, Parameters, check_network_and_head
from .updates import OptimizerUpdates, SolverUpdates, Updates

KIND = "MetaLearner.fit"


@serializable
@dataclass(frozen=True)
class TrainingRecord:
    """One line of the learning curve.

    Parameters
    ----------
    step, seconds
        How many steps were taken, and how long they took, evaluations not included.
    loss, accuracy
        On the queries of the tasks of the latest steps, before the network has learned from them; the mean since the
        record before.
    validation, interval, tasks
        The mean accuracy on validation tasks, half the width of its 95 % interval, and how many tasks; None without
        validation.

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
    """All that training needs to go on with the same bits.

    Parameters
    ----------
    step
        How many steps were taken.
    network
        Its parameters and buffers by name.
    updates
        The state of the solver, or of optimiser and scheduler; None before the first call of `MetaLearner.fit`.
    sums
        Of loss and accuracy since the last record before this step, and the number of steps since then.
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


@dataclass(frozen=True)
class Training:
    """What `MetaLearner.fit` returns.

    Parameters
    ----------
    status
        Why it ended; `status.ok` says whether as planned.
    history
        The learning curve, a list of `TrainingRecord`.
    step, seconds
        Steps taken in all, and their time without evaluations.
    best
        The best accuracy on validation tasks, which is that of the network now; None without validation.
    message
        What went wrong, if something did.

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


class MetaLearner:
    """Learn features with which a support vector machine does well on tasks of a few examples per class.

    min_x E_task[ loss of the queries at (x, y*(x)) ], y* the dual solution for the task's support examples.

    Every step draws fresh tasks, a function of the seed and the step number alone. (A network memorises fixed tasks;
    `fixed_tasks=True` keeps them all the same, with their dual variables, as the paper's single loop does.) The dual
    variables of fresh tasks start at their solution for the network after the step: a few Newton steps, far cheaper
    than one pass of the network, whereas a starting point that lags one step behind makes the hypergradient inaccurate.
    The momentum, moments and step sizes that the solver keeps for x are carried from step to step.

    Batch normalisation and dropout work as usual: the network trains in training mode, where statistics are those of
    all images of a step; its running statistics follow, and it is evaluated in evaluation mode.

    Parameters
    ----------
    network
        From images (N, ...) to features (N, d); its parameters are learned in place.
    head
        `SVMHead(ways=...)`, with the number of ways of the training tasks. Validation and test tasks may have another
        number of ways: they use the same head with their number of ways. Tasks of more ways teach more per image.
    solver
        Any solver of the library that supports a box; default `DMLCBO(upper_step=0.1)`. Rules that compare f from step
        to step (step_rule="adaptive", upper_step="auto") do not work with fresh tasks.
    optimizer
        parameters -> optimiser of torch, such as `lambda parameters: torch.optim.Adam(parameters, lr=1e-3)`: it then
        takes the steps, with the hypergradient in `.grad`; of the solver only its estimator `hypergradient` is used.
    scheduler
        optimiser -> scheduler, stepped after every step.
    about
        Texts and numbers by name to store in the files of this learner; a file with other ones cannot be resumed.
    tasks_per_step
        Tasks drawn for each step.
    fixed_tasks
        Keep the first tasks for all steps. Their dual variables and the solver's state of them, such as the momentum of
        the lower level, then live on from step to step. Not with an optimizer.
    seed
        The seed of the tasks and of all other random numbers.
    ranks
        The processes that divide the tasks of a step, from `bilevel.distributed.connect()`: each process creates the
        same learner and makes the same calls; the network, the learning curve and the file agree with those of one
        process, up to rounding. Default: a single process.

    Attributes
    ----------
    state, history
        The latest `TrainingState`, and the learning curve. (The network is that of the best record after `fit`.)
    costs
        The cost of the steps: gradients and products, over all tasks of a step at once.

    References
    ----------
    Shi, Chang & Gu (2024), the paper of DMLCBO, section 5.2, with fresh tasks; Lee, Maji, Ravichandran & Soatto (2019).

    Examples
    --------
    >>> from bilevel.few_shot import ConvNet, Episodes, generated_images
    >>> episodes = Episodes(generated_images(20, 8, 16), ways=3, shots=2, queries=4)
    >>> learner = MetaLearner(ConvNet(image_size=16, width=4), SVMHead(ways=3), tasks_per_step=2)
    >>> learner.fit(episodes, steps=3).status.name
    'STEPS'
    >>> learner.evaluate(episodes, count=10).count
    10
    """

    def __init__(
        self,
        network: nn.Module,
        head: SVMHead,
        *,
        solver: Solver | None = None,
        optimizer: Callable[[list[nn.Parameter]], Any] | None = None,
        scheduler: Callable[[Any], Any] | None = None,
        tasks_per_step: int = 8,
        fixed_tasks: bool = False,
        seed: int = 0,
        about: dict[str, Any] | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        check_network_and_head(network, head)
        if scheduler is not None and optimizer is None:
            raise InvalidInputError("scheduler goes with optimizer: a solver of the library has its own step sizes")
        if fixed_tasks and optimizer is not None:
            raise InvalidInputError("fixed_tasks goes with solver: an optimizer keeps no dual variables")
        check_count("tasks_per_step", tasks_per_step)
        self.network, self.head, self.tasks_per_step, self.seed = network, head, tasks_per_step, seed
        self.fixed_tasks = fixed_tasks
        self.solver, self.ranks = (
            DMLCBO(upper_step=0.1) if solver is None else solver,
            Ranks() if ranks is None else ranks,
        )
        seeds = Seeds.from_seed(seed)
        self._updates: Updates
        if optimizer is None:
            self._updates = SolverUpdates(self.solver, seeds, fixed=fixed_tasks)
        else:
            estimator = getattr(self.solver, "estimator", getattr(self.solver, "hypergradient", None))
            self._updates = OptimizerUpdates(network, optimizer, scheduler, estimator, seeds)
        self.identity: dict[str, Any] = {**(about or {}), **self._settings()}
        self.costs: Costs = Costs()
        tensors = {name: value.detach().clone() for name, value in _tensors(network).items()}
        self._document = RunDocument(kind=KIND, identity=self.identity, state=TrainingState(0, tensors))

    @property
    def state(self) -> TrainingState:
        return self._document.state

    @property
    def history(self) -> list[TrainingRecord]:
        return self._document.history

    def fit(
        self,
        episodes: EpisodeSource,
        *,
        steps: int | None = None,
        minutes: float | None = None,
        halve_every: int | None = None,
        validate: EpisodeSource | None = None,
        validate_count: int = 200,
        evaluate_every: int = 100,
        checkpoint: str | Path | Checkpoint | None = None,
        resume: bool | str | Path = False,
        overwrite: bool = False,
        progress: bool = False,
        callbacks: Iterable[Callable[[TrainingRecord, MetaLearner], Any]] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> Training:
        """Train until `steps` steps have been taken in all, or their time is `minutes`, whichever comes first.

        Parameters
        ----------
        episodes
            The training tasks, of as many ways as the head.
        steps, minutes
            Counted from the first step of this learner, also when it goes on from a file: the same call again goes on
            where the last one ended. Minutes are those of the steps, without evaluations.
        halve_every
            Halve the step size of the solver after every so many steps (with an optimizer, use a scheduler instead).
            Like `steps`, it may be changed when a training goes on.
        validate, validate_count
            Tasks of other classes for each record, and how many. The network is in the end that of the best record.
        evaluate_every
            A record is made, and callbacks are called, every so many steps and at the end.
        checkpoint
            A file, or `Checkpoint(path, every=...)`: written at every record (or every so many steps) and at the end;
            the one before it is kept. An existing file is refused unless it is resumed or may be overwritten.
        resume
            A file to go on from, with the same bits as a run that was never interrupted. True: `checkpoint`, if it
            exists.
        overwrite
            Replace the file of another training, when the first checkpoint is written.
        progress
            Show a progress bar.
        callbacks
            Functions of (record, learner); one that returns something true ends the training.
        clock
            Measures the seconds. `time.process_time` counts those of the processor alone, so that a busy machine does
            not shorten a training of so many minutes.
        """
        with self.ranks.guard("checking the arguments of fit"):
            check_modes(next(self.network.parameters()).device)
            stage = MetaTraining(self, episodes, validate, validate_count)
            self._updates.set_schedule(halve_every)
            limits = _limits(steps, minutes, evaluate_every, clock)
            self._resume(checkpoint, resume)
        plan = {"steps": steps, "minutes": minutes, "halve_every": halve_every, "evaluate_every": evaluate_every}
        plan["validate_count"] = validate_count
        self._check_ranks(plan, episodes, validate)
        run = Run(
            KIND, identity=self.identity, ranks=self.ranks, checkpoint=checkpoint, resume=self._document,
            callbacks=callbacks, progress=progress, overwrite=overwrite,
        )  # fmt: skip
        self._document = document = run.document
        if document.seconds < limits.seconds:  # the same call again ends at once
            run.reopen(stage.name)
        try:
            with in_mode(self.network, training=True), run:
                status = run.do(stage, limits).status
        finally:
            document.path = None
            self._place_best()
        step, message = self.state.step, document.message
        if message:
            message = f"step {step + 1} failed ({message}); the network is that of step {step}"
        best = None if self._best is None else self._best[0].validation_accuracy
        return Training(status, self.history, step, document.seconds, best, message)

    def _check_ranks(self, plan: dict[str, Any], episodes: EpisodeSource, validate: EpisodeSource | None) -> None:
        """Raise on every rank unless all of them will make the same steps."""
        ranks, tasks = self.ranks, self.tasks_per_step
        if ranks.size == 1:
            return
        ranks.agree({**self.identity, **plan}, "make the same calls on every rank")
        if tasks < ranks.size:
            raise InvalidInputError(
                f"tasks_per_step is {tasks}, and there are {ranks.size} ranks: draw at least {ranks.size} tasks per "
                f"step, or start at most {tasks} of them"
            )
        data = {"episodes": _images(episodes), "validate": _images(validate)}
        ranks.agree(data, "give every rank the same images, in the same order")
        self._check_states()

    def _check_states(self) -> None:
        """Nothing keeps apart what rounding or a file of another content has made different, so compare."""
        if self.ranks.size > 1:
            state = self.state
            place = {"step": state.step, "network": fingerprint(state.network), "state": fingerprint(state)}
            self.ranks.agree(place, "start from the same network, or the same file")

    def evaluate(self, episodes: EpisodeSource, *, count: int = 600, seed: int = 0) -> Accuracy:
        """The accuracy on `count` fresh tasks, with its 95 % interval; see `evaluate`."""
        return evaluate(self.network, self._head_for(episodes), episodes, count=count, seed=seed, ranks=self.ranks)

    def _head_for(self, episodes: EpisodeSource) -> SVMHead:
        ways = getattr(episodes, "ways", self.head.ways)
        return self.head if ways == self.head.ways else self.head.with_ways(ways)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write network and training to one safetensors file, complete or not at all."""
        with self.ranks.guard(f"writing {path}"):
            return self._document.save(Path(path), overwrite=overwrite) if self.ranks.rank == 0 else Path(path)

    def load(self, path: str | Path) -> MetaLearner:
        """Go on from a file of a learner with the same settings, and give its network to this one."""
        with self.ranks.guard(f"reading {path}"):
            self._read(path)
        self._document.path = None  # a checkpoint of the next call is a file of its own
        return self

    def _resume(self, checkpoint: str | Path | Checkpoint | None, resume: bool | str | Path) -> None:
        if resume is True and checkpoint is not None and any(path.exists() for path in Checkpoint.of(checkpoint).files):
            self._read(Checkpoint.of(checkpoint).path)
        elif not isinstance(resume, bool):
            self._read(resume)

    def _read(self, path: str | Path) -> None:
        document = Checkpoint.of(path).load()
        document.check_identity(KIND, self.identity)
        if not isinstance(document.state, TrainingState):
            raise InvalidInputError(f"{path} holds no state of a training")
        best = document.state.best
        networks = [_tensors(self.network), document.state.network, *(best[1:] if best else ())]
        shapes = [{name: value.shape for name, value in network.items()} for network in networks]
        if any(shape != shapes[0] for shape in shapes) or not matches(document.history, list[TrainingRecord]):
            raise InvalidInputError(f"{path} holds a network of other tensors, or records that are none of a training")
        self._document = document
        self._place_best()

    @property
    def _best(self) -> tuple[TrainingRecord, Parameters] | None:
        """The best record so far and its network: an earlier one, or the record of this very step."""
        best, last = self.state.best, self.history[-1] if self.history else None
        if last is None or last.step != self.state.step or last.validation is None:
            return best
        better = best is None or last.validation > (best[0].validation or 0.0)
        return (last, self.state.network) if better else best

    def _place_best(self) -> None:
        """Give the network the parameters of the best record, or the latest ones if there was no validation."""
        place(self.network, self.state.network if self._best is None else self._best[1])

    def _settings(self) -> dict[str, Any]:
        """What a file must agree with."""
        shapes = [(name, tuple(value.shape)) for name, value in self.network.named_parameters()]
        head = self.head
        return {
            "the network's shape": fingerprint(shapes),
            "head": f"{head.extra_repr()}, tol={head.tol:g}, hypergradient={head.hypergradient!r}",
            "updates": repr(self._updates),
            "tasks_per_step": self.tasks_per_step,
            "fixed_tasks": self.fixed_tasks,
            "seed": self.seed,
        }


class MetaTraining(Stage):
    """Steps on fresh tasks; a record is the accuracy on validation tasks."""

    name = "training"

    def __init__(
        self, learner: MetaLearner, episodes: EpisodeSource, validate: EpisodeSource | None, validate_count: int
    ) -> None:
        check_episodes("episodes", episodes, learner.head.ways)
        if validate is not None:
            check_episodes("validate", validate, learner._head_for(validate).ways)
        check_count("validate_count", validate_count)
        self.learner, self.episodes, self.validate, self.validate_count = learner, episodes, validate, validate_count
        self._held: TrainingState | None = None  # what network and optimiser stand at

    def init(self) -> TrainingState:
        with self.learner.ranks.guard("drawing the first tasks", wait=False):
            return replace(self.learner.state, updates=self.learner._updates.init(self._draw))

    def step(self, state: TrainingState) -> TrainingState:
        learner, k = self.learner, state.step + 1
        self._hold(state)
        self._held = None  # a step that is cut short may leave them anywhere
        problem = self._draw(k)
        x, updates, loss, accuracy = learner._updates.step(problem, state.updates, k)
        if not learner.fixed_tasks:
            problem.forget()  # a graph of hundreds of megabytes, which would wait for the garbage collector
        if not (math.isfinite(loss) and problem.x_space.is_finite(x)):
            raise NonFiniteError(f"the loss is {loss:g}, or parameters are not finite")
        recorded = bool(learner.history) and learner.history[-1].step == state.step
        losses, accuracies, count = (0.0, 0.0, 0) if recorded else state.sums
        sums = (losses + loss, accuracies + accuracy, count + 1)
        new = TrainingState(k, {**state.network, **x, **problem.buffers}, updates, sums, learner._best)
        place(learner.network, new.network)
        self._held = new
        return new

    def _hold(self, state: TrainingState) -> None:
        """Network and optimiser go on from here."""
        if self._held is not state:
            place(self.learner.network, state.network)
            self.learner._updates.restore(state.updates)
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
        tasks = self.episodes.sample(learner.tasks_per_step, generator)
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
        learner._check_states()
        row = TrainingRecord(state.step, seconds, loss / max(count, 1), accuracy / max(count, 1))
        if self.validate is None:
            return row
        found = evaluate(
            learner.network, learner._head_for(self.validate), self.validate, count=self.validate_count,
            seed=learner.seed, stream=VALIDATION, ranks=learner.ranks,
        )  # fmt: skip
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
    own = _tensors(network)
    for name, value in tensors.items():
        own[name].copy_(value)


def _tensors(network: nn.Module) -> Parameters:
    """Its parameters and buffers by name."""
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


def _images(source: EpisodeSource | None) -> str:
    """A fingerprint of the tensors that a source of tasks holds."""
    return fingerprint([value for value in getattr(source, "__dict__", {}).values() if isinstance(value, Tensor)])


def _limits(steps: int | None, minutes: float | None, evaluate_every: int, clock: Callable[[], float]) -> Limits:
    if steps is None and minutes is None:
        raise InvalidInputError("say how long to train: fit(episodes, steps=...) or fit(episodes, minutes=...)")
    if steps is not None:
        check_count("steps", steps)
    if minutes is not None:
        check_number("minutes", minutes)
    check_count("evaluate_every", evaluate_every)
    return Limits(steps or math.inf, 60 * (minutes or math.inf), evaluate_every, clock)
