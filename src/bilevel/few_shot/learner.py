"""Episodic training of a network under the SVM head, with any solver of the library or any optimiser of torch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from .._checks import check_count, check_number
from .._fingerprint import fingerprint
from .._serializable import matches
from ..errors import InvalidInputError
from ..linearization import Costs, check_default_device, check_modes
from ..random import Seeds
from ..ranks import Ranks
from ..run.checkpoint import Checkpoint, RunDocument
from ..run.engine import Limits, Run
from ..solvers import DMLCBO, Solver
from .evaluation import Accuracy, EpisodeSource, evaluate, in_mode
from .problem import check_network_and_head
from .svm_head import SVMHead
from .training import MetaTraining, Training, TrainingRecord, TrainingState, check_states, named_tensors, place
from .updates import OptimizerUpdates, SolverUpdates, Updates

KIND = "MetaLearner.fit"


class MetaLearner:
    """Train features such that a support vector machine is accurate on tasks with a few examples per class.

    min_x E_task[ loss of the queries at (x, y*(x)) ], y* the dual solution for the task's support examples.

    Every step draws fresh tasks, which are a function of the seed and the step number, because a network memorises
    fixed tasks. (`fixed_tasks=True` uses the same tasks and dual variables in all steps, as the paper's single loop
    does.) The dual variables of fresh tasks start at their solution for the network after the step. This takes a few
    Newton steps, far less than one pass of the network, whereas dual variables that lag behind make the hypergradient
    inaccurate. The momentum, moments and step sizes of the solver for x are kept from step to step.

    Batch normalisation and dropout work as usual: the network trains in training mode, with the statistics of all
    images of a step, and is evaluated in evaluation mode with its running statistics.

    Parameters
    ----------
    network
        A module from images (N, ...) to features (N, d); its parameters are trained in place.
    head
        `SVMHead(ways=...)`, with the number of ways of the training tasks. Validation and test tasks may have another
        number of ways and use the same head with their number of ways.
    solver
        Any solver of the library that supports a box; default `DMLCBO(upper_step=0.1)`. Rules that compare f from step
        to step (step_rule="adaptive", upper_step="auto") do not work with fresh tasks.
    optimizer
        A function from parameters to an optimiser of torch, such as `lambda parameters: torch.optim.Adam(parameters,
        lr=1e-3)`. It then takes the steps, with the hypergradient in `.grad`, and only the estimator `hypergradient` of
        the solver is used.
    scheduler
        A function from the optimiser to a scheduler, which is stepped after every step.
    about
        Texts and numbers by name to store in the files of this learner; a file with different ones cannot be resumed.
    tasks_per_step
        The number of tasks of each step.
    fixed_tasks
        Use the first tasks for all steps. Their dual variables, and the solver's state of them such as the momentum of
        the lower level, are then kept from step to step. Not with an optimizer.
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
        self.network = network
        self.head = head
        self.tasks_per_step = tasks_per_step
        self.seed = seed
        self.fixed_tasks = fixed_tasks
        self.solver: Any = DMLCBO(upper_step=0.1) if solver is None else solver
        self.ranks: Ranks = Ranks() if ranks is None else ranks
        seeds = Seeds.from_seed(seed)
        self._updates: Updates
        if optimizer is None:
            self._updates = SolverUpdates(self.solver, seeds, fixed=fixed_tasks)
        else:
            estimator = getattr(self.solver, "estimator", getattr(self.solver, "hypergradient", None))
            self._updates = OptimizerUpdates(network, optimizer, scheduler, estimator, seeds)
        self.identity: dict[str, Any] = {**(about or {}), **self._settings()}
        self.costs: Costs = Costs()
        tensors = {name: value.detach().clone() for name, value in named_tensors(network).items()}
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
        """Train up to a total number of steps or a total time, whichever is reached first.

        Parameters
        ----------
        episodes
            The training tasks, of as many ways as the head.
        steps, minutes
            The totals, counted from the first step of this learner, also if it is resumed. Minutes are the time of the
            steps, without evaluations.
        halve_every
            Halve the step size of the solver after every `halve_every` steps (with an optimizer, use a scheduler
            instead). Like `steps`, it may be changed when a training is resumed.
        validate, validate_count
            Tasks of other classes for validation, and how many per record. At the end the network is that of the best
            record.
        evaluate_every
            The number of steps between records, at which callbacks are called. There is a record at the end too.
        checkpoint
            A file, or `Checkpoint(path, every=...)`, written at every record (or every `every` steps) and at the end;
            the previous one is kept. An existing file is an error unless it is resumed or may be overwritten.
        resume
            A file from which to continue, with the same bits as an uninterrupted run. True means `checkpoint`, if it
            exists.
        overwrite
            Replace the file of another training, when the first checkpoint is written.
        progress
            Show a progress bar.
        callbacks
            Functions of (record, learner); a callback that returns a true value ends the training.
        clock
            Measures the seconds. `time.process_time` counts processor time only, so that a busy machine does not
            shorten a training with `minutes`.
        """
        with self.ranks.guard("checking the arguments of fit"):
            check_default_device()
            check_modes(next(self.network.parameters()).device)
            stage = MetaTraining(self, self._updates, episodes, validate, validate_count)
            self._updates.set_schedule(halve_every)
            limits = _limits(steps, minutes, evaluate_every, clock)
            self._resume(checkpoint, resume)
        plan = {"steps": steps, "minutes": minutes, "halve_every": halve_every, "evaluate_every": evaluate_every}
        plan["validate_count"] = validate_count
        self._check_ranks(plan, episodes, validate)
        files: Any = {"checkpoint": checkpoint, "resume": self._document, "overwrite": overwrite}
        run = Run(KIND, identity=self.identity, ranks=self.ranks, callbacks=callbacks, progress=progress, **files)
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
        record = self.state.best_so_far(self.history)
        best = None if record is None else record[0].validation_accuracy
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
        check_states(ranks, self.state)

    def evaluate(self, episodes: EpisodeSource, *, count: int = 600, seed: int = 0) -> Accuracy:
        """The accuracy on `count` fresh tasks, with its 95 % interval; see `bilevel.few_shot.evaluate`."""
        return evaluate(self.network, self.head, episodes, count=count, seed=seed, ranks=self.ranks)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the network and the state of training to one safetensors file, atomically."""
        with self.ranks.guard(f"writing {path}"):
            return self._document.save(Path(path), overwrite=overwrite) if self.ranks.rank == 0 else Path(path)

    def load(self, path: str | Path) -> MetaLearner:
        """Load the network and the state of training from a file of a learner with the same settings."""
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
        networks = [named_tensors(self.network), document.state.network, *(best[1:] if best else ())]
        shapes = [{name: value.shape for name, value in network.items()} for network in networks]
        if any(shape != shapes[0] for shape in shapes) or not matches(document.history, list[TrainingRecord]):
            raise InvalidInputError(f"{path} holds a network of other tensors, or records that are none of a training")
        self._document = document
        self._place_best()

    def _place_best(self) -> None:
        """Give the network the parameters of the best record, or the latest ones if there was no validation."""
        best = self.state.best_so_far(self.history)
        place(self.network, self.state.network if best is None else best[1])

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


def _limits(steps: int | None, minutes: float | None, evaluate_every: int, clock: Callable[[], float]) -> Limits:
    if steps is None and minutes is None:
        raise InvalidInputError("set the length of training: fit(episodes, steps=...) or fit(episodes, minutes=...)")
    if steps is not None:
        check_count("steps", steps)
    if minutes is not None:
        check_number("minutes", minutes)
    check_count("evaluate_every", evaluate_every)
    return Limits(steps or math.inf, 60 * (minutes or math.inf), evaluate_every, clock)


def _images(source: EpisodeSource | None) -> str:
    """A fingerprint of the tensors that a source of tasks holds."""
    return fingerprint([value for value in getattr(source, "__dict__", {}).values() if isinstance(value, Tensor)])
