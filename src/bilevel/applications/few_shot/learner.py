"""Episodic training of a network under the SVM head, with any solver of the library or any optimiser of torch."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from ...checkpoints import Checkpoint, CheckpointFiles
from ...checks import check_count, check_positive
from ...errors import Incompatible, InvalidInput, InvalidType, NotConverged, NotFinite
from ...problem import Costs
from ...randomness import Noise, Seeds
from ...solution import Status
from ...solvers import DMLCBO, Solver
from .evaluation import EVALUATION, TRAINING, VALIDATION, Accuracy, EpisodeSource, check_episodes, in_mode
from .head import SVMHead
from .problem import FewShotProblem
from .schedule import Plan, interrupts_after_the_step, load_training, progress_bar, show, write
from .team import Team
from .training_state import TrainingRecord, TrainingState, save_state
from .updates import OptimizerUpdates, SolverUpdates, Updates, copied, place, place_buffers

Callback = Callable[[TrainingRecord, "MetaLearner"], Any]


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
    >>> from bilevel.applications.few_shot import ConvNet, Episodes, MetaLearner, SVMHead, generated_images
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
    """Learns features with which a support vector machine does well on tasks of a few examples per class.

    min_x E_task[ loss of the queries at (x, y*(x)) ], y* the machine of the task's support examples.

    Every step draws fresh tasks, a function of the seed and the step number alone. (A fixed pool of tasks, each with
    dual variables that are carried along, would be seen again and again: a network learns it by heart, and most of the
    dual variables would be stale.) Those of fresh tasks start at their solution for the network that the step leads
    to: a handful of Newton steps, far cheaper than one pass of the network, where a start that is a step behind spoils
    the hypergradient. What the solver knows of x, its momentum, moments and step sizes, is carried from step to step.

    Batch normalisation and dropout work as usual: the network trains in training mode, where statistics are those of
    all images of a step; its running statistics follow, and it is evaluated in evaluation mode.

    Parameters
    ----------
    network
        From images (N, ...) to features (N, d); its parameters are learned in place.
    head
        `SVMHead(ways=...)`, of as many ways as the training tasks. Tasks to validate and evaluate on may have another
        number of ways: they are given the same head of theirs. Training on tasks of more ways teaches more per image.
    solver
        Any solver of the library that takes a box; default `DMLCBO()`. Rules that compare f from step to step
        (step_rule="adaptive") do not go with fresh tasks.
    optimizer
        parameters -> optimiser of torch, such as `lambda parameters: torch.optim.Adam(parameters, lr=1e-3)`: it then
        takes the steps, with the hypergradient in `.grad`; of the solver only its estimator `hypergradient` is used.
    scheduler
        optimiser -> scheduler, stepped after every step.
    about
        Plain values by name that files of this learner keep; a file with others is not resumed.
    tasks_per_step
        Tasks drawn for each step.
    seed
        Of the tasks and of everything else that is drawn.
    team
        Who trains: this process alone, or `bilevel.distributed.TaskParallel(ranks)`, which divides the tasks of a step
        among several.

    Attributes
    ----------
    costs
        What the steps of this object have asked for: gradients and products over all tasks of a step at once.

    References
    ----------
    Shi, Chang & Gu (2024), the paper of DMLCBO, section 5.2, with fresh tasks; Lee, Maji, Ravichandran & Soatto (2019).

    Examples
    --------
    >>> from bilevel.applications.few_shot import ConvNet, Episodes, generated_images
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
        seed: int = 0,
        about: dict[str, Any] | None = None,
        team: Team | None = None,
    ) -> None:
        if not isinstance(network, nn.Module):
            raise InvalidType(f"network must be a torch.nn.Module, got {type(network).__name__}")
        if not isinstance(head, SVMHead):
            raise InvalidType(f"head must be an SVMHead, got {type(head).__name__}")
        if scheduler is not None and optimizer is None:
            raise InvalidInput("scheduler goes with optimizer: a solver of the library has its own step sizes")
        check_count("tasks_per_step", tasks_per_step)
        self.network, self.head, self.tasks_per_step, self.seed = network, head, tasks_per_step, seed
        self.solver, self.about = DMLCBO() if solver is None else solver, about
        self.team, seeds = Team() if team is None else team, Seeds.of(seed)
        self.team.join(network, solver=optimizer is None)
        self._updates: Updates
        if optimizer is None:
            self._updates = SolverUpdates(network, self.solver, seeds)
        else:
            estimator = getattr(self.solver, "hypergradient", None)
            self._updates = OptimizerUpdates(network, optimizer, scheduler, estimator, seeds)
        self.state = TrainingState(settings=self._settings())
        self.costs = Costs()
        self._take_parameters()

    @property
    def history(self) -> list[TrainingRecord]:
        """The learning curve so far."""
        return self.state.history

    def fit(
        self,
        episodes: EpisodeSource,
        *,
        steps: int | None = None,
        minutes: float | None = None,
        validate: EpisodeSource | None = None,
        validate_count: int = 200,
        evaluate_every: int = 100,
        checkpoint: str | Path | Checkpoint | None = None,
        resume: bool = False,
        overwrite: bool = False,
        progress: bool = False,
        callbacks: Iterable[Callback] = (),
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
        validate, validate_count
            Tasks of other classes for each record, and how many. The network is in the end that of the best record.
        evaluate_every
            A record is made, and callbacks are called, every so many steps and at the end.
        checkpoint
            A file, or `Checkpoint(path, every=...)`: written at every record (or every so many steps) and at the end;
            the one before it is kept. An existing file is refused unless it is resumed or may be overwritten.
        resume
            Go on from `checkpoint` if it exists, with the same bits as a run that was never interrupted.
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
        files, write_every = None, None
        with self.team.together("looking at the arguments of fit"):
            self._check_arguments(episodes, steps, minutes, validate, validate_count, evaluate_every)
            if checkpoint is not None:
                settings = Checkpoint.of(checkpoint)
                write_every = settings.every or evaluate_every
                files = self._opened(settings, resume=resume, overwrite=overwrite)
        sources = {"episodes": episodes} if validate is None else {"episodes": episodes, "validate": validate}
        lengths = {"steps": steps, "minutes": minutes, "evaluate_every": evaluate_every, "write_every": write_every}
        self.team.begin(self, sources, {**lengths, "validate_count": validate_count, "resume": resume})
        plan = Plan(steps, minutes, evaluate_every, validate, validate_count, files, write_every, clock)
        with progress_bar(progress and self.team.writes) as bar:
            return self._train(episodes, plan, list(callbacks), bar)

    def _check_arguments(
        self,
        episodes: EpisodeSource,
        steps: int | None,
        minutes: float | None,
        validate: EpisodeSource | None,
        validate_count: int,
        evaluate_every: int,
    ) -> None:
        if steps is None and minutes is None:
            raise InvalidInput("say how long to train: fit(episodes, steps=...) or fit(episodes, minutes=...)")
        if steps is not None:
            check_count("steps", steps)
        if minutes is not None:
            check_positive("minutes", minutes)
        for name, count in (("evaluate_every", evaluate_every), ("validate_count", validate_count)):
            check_count(name, count)
        check_episodes("episodes", episodes, self.head.ways)
        if validate is not None:
            check_episodes("validate", validate, self._head_for(validate).ways)

    def _opened(self, settings: Checkpoint, *, resume: bool, overwrite: bool) -> CheckpointFiles | None:
        """The files of this training, once they are read; None for those of a team who do not write."""
        if resume and any(path.exists() for path in settings.files):
            self._read(settings.path)
        if not self.team.writes:
            return None
        files = CheckpointFiles(settings, Path(settings.path) if resume else None, replace=overwrite)
        files.remedy = "fit(..., resume=True)"
        return files

    def evaluate(self, episodes: EpisodeSource, *, count: int = 600, seed: int = 0) -> Accuracy:
        """The accuracy on `count` fresh tasks, with its 95 % interval; see `evaluate`."""
        head = self._head_for(episodes)
        return self.team.evaluate(self.network, head, episodes, count=count, seed=seed, stream=EVALUATION)

    def _head_for(self, episodes: EpisodeSource) -> SVMHead:
        ways = getattr(episodes, "ways", self.head.ways)
        return self.head if ways == self.head.ways else self.head.with_ways(ways)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write network and training to one safetensors file, complete or not at all."""
        state = self.snapshot()
        with self.team.together(f"writing {path}"):
            return save_state(state, path, overwrite=overwrite) if self.team.writes else Path(path)

    def load(self, path: str | Path) -> MetaLearner:
        """Go on from a file of a learner with the same settings, and give its network to this one."""
        with self.team.together(f"reading {path}"):
            self._read(path)
        return self

    def _read(self, path: str | Path) -> None:
        state = load_training(path)
        self._check_settings(state, path)
        state = self.team.parts(state, self.network)
        place(self.network, state.parameters)
        place_buffers(self.network, state.buffers)
        self._updates.restore(state)
        self.state = state
        self._show_best()

    def _train(self, episodes: EpisodeSource, plan: Plan, callbacks: list[Callback], bar: Any) -> Training:
        status, message = Status.STEPS, ""
        place(self.network, self.state.parameters)  # the latest, not the best
        place_buffers(self.network, self.state.buffers)
        try:
            with in_mode(self.network, training=True), interrupts_after_the_step() as interrupted:
                while not plan.is_done(self.state) and status is Status.STEPS:
                    stop = self._advance(episodes, plan.clock, interrupted)
                    show(bar, self.state, plan)
                    if plan.is_due(self.state) and self._told(self._record(plan), callbacks):
                        status = Status.STOPPED
                    elif stop:
                        status = Status.INTERRUPTED
                    if plan.is_written(self.state):
                        self._write(plan)
        except (NotFinite, NotConverged) as error:
            status = Status.DIVERGED if isinstance(error, NotFinite) else Status.FAILED
            message = f"step {self.state.step + 1} failed ({error}); the network is that of step {self.state.step}"
        if plan.write_every is not None:
            self._write(plan)
        self._show_best()
        best = None if self.state.best is None else Accuracy(**self.state.best["accuracy"])
        return Training(status, self.history, self.state.step, self.state.seconds, best, message)

    def _told(self, record: TrainingRecord, callbacks: list[Callback]) -> bool:
        """Whether a callback asks to stop."""

        def wish() -> bool:
            answers = [callback(record, self) for callback in callbacks]  # all of them are told
            return any(map(bool, answers))

        return self.team.decide(wish)

    def _write(self, plan: Plan) -> None:
        state = self.snapshot()
        with self.team.together("writing the checkpoint"):
            if plan.files is not None:
                write(plan.files, state)

    def _advance(self, episodes: EpisodeSource, clock: Callable[[], float], interrupted: Callable[[], bool]) -> bool:
        """One step, on fresh tasks; whether training is to end after it."""
        began, k = clock(), self.state.step + 1
        judged = self._updates.step(lambda step: self._draw(episodes, step), k)
        loss, accuracy, count = self.state.recent
        self.state.recent = (loss + judged.loss, accuracy + judged.accuracy, count + 1)
        self.state.step = k
        seconds, stop = self.team.after_step(clock() - began, interrupted())
        self.state.seconds += seconds
        self._take_parameters()
        return stop

    def _draw(self, episodes: EpisodeSource, step: int) -> FewShotProblem:
        """The problem of a step: a function of seed and step."""
        generator = Noise(Seeds.of(self.seed), step).generator("data", TRAINING)
        tasks = self.team.draw(lambda: episodes.sample(self.tasks_per_step, generator), step)
        problem = self.team.problem(self.network, self.head, tasks, generator.initial_seed() % (1 << 63))
        problem.costs = self.costs
        return problem

    def _record(self, plan: Plan) -> TrainingRecord:
        loss, accuracy, count = self.state.recent
        found = None
        if plan.validate is not None:
            found = self.team.evaluate(
                self.network, self._head_for(plan.validate), plan.validate, count=plan.validate_count, seed=self.seed,
                stream=VALIDATION,
            )  # fmt: skip
            self._keep_if_best(found)
        record = TrainingRecord(
            self.state.step, self.state.seconds, loss / max(count, 1), accuracy / max(count, 1),
            None if found is None else found.mean, None if found is None else found.interval,
        )  # fmt: skip
        self.state.history.append(record)
        self.state.recent = (0.0, 0.0, 0)
        self.team.check(self.state)
        return record

    def _keep_if_best(self, found: Accuracy) -> None:
        best = self.state.best
        if best is None or found.mean > best["accuracy"]["mean"]:
            self.state.best = {
                "accuracy": asdict(found),
                "parameters": copied(self.network.named_parameters()),
                "buffers": copied(self.network.named_buffers()),
            }

    def _show_best(self) -> None:
        """Give the network the parameters of the best record, if there was validation."""
        if self.state.best is not None:
            place(self.network, self.state.best["parameters"])
            place_buffers(self.network, self.state.best["buffers"])

    def _take_parameters(self) -> None:
        self.state.parameters = copied(self.network.named_parameters())
        self.state.buffers = copied(self.network.named_buffers())

    def snapshot(self) -> TrainingState:
        """All that a file holds."""
        return self.team.whole(TrainingState(**{**vars(self.state), **self._updates.saved()}))

    def _settings(self) -> dict[str, Any]:
        """What a file must agree with."""
        shapes = [(name, tuple(value.shape)) for name, value in self.network.named_parameters()]
        head = self.head
        return {
            "about": self.about,
            "network": hashlib.sha256(repr(shapes).encode()).hexdigest()[:16],
            "head": f"{head.extra_repr()}, tol={head.tol:g}, hypergradient={head.hypergradient!r}",
            "updates": repr(self._updates),
            "tasks_per_step": self.tasks_per_step,
            "seed": self.seed,
        }

    def _check_settings(self, state: TrainingState, path: str | Path) -> None:
        ours = self._settings()
        for name, own in ours.items():
            theirs = state.settings.get(name)
            if theirs != own:
                if isinstance(own, dict) and isinstance(theirs, dict):
                    name = next(key for key in {**own, **theirs} if own.get(key) != theirs.get(key))
                    own, theirs = own.get(name), theirs.get(name)
                raise Incompatible(
                    f"{path} holds a learner with {name} = {theirs!r}, and this one has {own!r}: make a learner with "
                    "the same settings, or start anew"
                )


def meta_train(
    network: nn.Module,
    episodes: EpisodeSource,
    head: SVMHead | None = None,
    *,
    solver: Solver | None = None,
    optimizer: Callable[[list[nn.Parameter]], Any] | None = None,
    scheduler: Callable[[Any], Any] | None = None,
    tasks_per_step: int = 8,
    seed: int = 0,
    team: Team | None = None,
    **how_long: Any,
) -> tuple[MetaLearner, Training]:
    """Make a `MetaLearner` and fit it; `how_long` and the rest are arguments of `MetaLearner.fit`.

    Parameters
    ----------
    network, head, solver, optimizer, scheduler, tasks_per_step, seed, team
        As in `MetaLearner`; default head `SVMHead` with the ways of the tasks.
    episodes
        Where the training tasks come from.
    **how_long
        `steps`, `minutes` and the other arguments of `MetaLearner.fit`.

    Returns
    -------
    tuple of MetaLearner and Training
        The learner, with the trained network, and its learning curve.

    Examples
    --------
    >>> from bilevel.applications.few_shot import ConvNet, Episodes, generated_images
    >>> episodes = Episodes(generated_images(20, 8, 16), ways=3, shots=2, queries=4)
    >>> learner, training = meta_train(ConvNet(image_size=16, width=4), episodes, tasks_per_step=2, steps=2)
    >>> training.step
    2
    """
    if head is None:
        ways = getattr(episodes, "ways", None)
        if ways is None:
            raise InvalidInput("head is missing: pass head=SVMHead(ways=...), as the episodes do not tell their ways")
        head = SVMHead(ways)
    learner = MetaLearner(
        network, head, solver=solver, optimizer=optimizer, scheduler=scheduler, tasks_per_step=tasks_per_step,
        seed=seed, team=team,
    )  # fmt: skip
    return learner, learner.fit(episodes, **how_long)
