"""Episodic training of a network under the SVM head, with any solver of the library or any optimiser of torch."""

from __future__ import annotations

import hashlib
import math
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from ...checkpoints import Checkpoint, CheckpointWarning
from ...checks import check_count, check_positive
from ...errors import Incompatible, InvalidInput, InvalidType, NotFinite
from ...files import Damaged, FileExists, FileMissing, NotWritten, check_writable
from ...progress import ProgressBar, Silent
from ...randomness import Noise, Seeds
from ...solution import Status
from ...solvers import DMLCBO, Solver
from .evaluation import TRAINING, VALIDATION, Accuracy, EpisodeSource, check_episodes, evaluate
from .head import SVMHead
from .problem import FewShotProblem
from .training_state import TrainingRecord, TrainingState, load_state, save_state
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
    """

    status: Status
    history: list[TrainingRecord] = field(repr=False)
    step: int
    seconds: float
    best: Accuracy | None = None
    message: str = ""


class MetaLearner:
    """Learns features with which a support vector machine does well on tasks of a few examples per class.

    Every step draws fresh tasks, a function of the seed and the step number alone. (A fixed pool of tasks, each with its
    own dual variables carried along, would be seen again and again: a network learns it by heart, and most of the y would
    be stale.) The dual variables of fresh tasks start from a few projected Newton steps; the solver's knowledge of x, its
    momentum, moments and step sizes, is carried from step to step.

    Batch normalisation and dropout work as usual: the network trains in training mode, where statistics are those of all
    images of a step, its running statistics follow, and it is evaluated in evaluation mode.

    Parameters
    ----------
    network
        From images (N, ...) to features (N, d); its parameters are learned in place.
    head
        `SVMHead(ways=...)`.
    solver
        Any solver of the library that takes a box; default `DMLCBO(upper_step=0.03)`. Rules that compare f from step to
        step (step_rule="adaptive") do not go with fresh tasks.
    optimizer
        parameters -> optimiser of torch, such as `lambda parameters: torch.optim.Adam(parameters, lr=1e-3)`: it then
        takes the steps, with the hypergradient in `.grad`; of the solver only its estimator `hypergradient` is used.
    scheduler
        optimiser -> scheduler, stepped after every step.
    tasks_per_step
        Tasks drawn for each step.
    seed
        Of the tasks and of everything else that is drawn.

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
    ) -> None:
        if not isinstance(network, nn.Module):
            raise InvalidType(f"network must be a torch.nn.Module, got {type(network).__name__}")
        if not isinstance(head, SVMHead):
            raise InvalidType(f"head must be an SVMHead, got {type(head).__name__}")
        if scheduler is not None and optimizer is None:
            raise InvalidInput("scheduler goes with optimizer: a solver of the library has its own step sizes")
        check_count("tasks_per_step", tasks_per_step)
        self.network, self.head, self.tasks_per_step, self.seed = network, head, tasks_per_step, seed
        self.solver = DMLCBO(upper_step=0.03) if solver is None else solver
        seeds = Seeds.of(seed)
        self._updates: Updates
        if optimizer is None:
            self._updates = SolverUpdates(network, self.solver, seeds)
        else:
            estimator = getattr(self.solver, "hypergradient", None)
            self._updates = OptimizerUpdates(network, optimizer, scheduler, estimator, seeds)
        self.state = TrainingState(settings=self._settings())
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
        progress: bool = False,
        callbacks: Iterable[Callback] = (),
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
            A file, or `Checkpoint(path, every=...)`: written at every record (or every so many steps) and at the end; the
            one before it is kept. An existing file is refused unless it is resumed.
        resume
            Go on from `checkpoint` if it exists, with the same bits as a run that was never interrupted.
        progress
            Show a progress bar.
        callbacks
            Functions of (record, learner); one that returns something true ends the training.
        """
        if steps is None and minutes is None:
            raise InvalidInput("say how long to train: fit(episodes, steps=...) or fit(episodes, minutes=...)")
        if steps is not None:
            check_count("steps", steps)
        if minutes is not None:
            check_positive("minutes", minutes)
        check_count("evaluate_every", evaluate_every)
        check_episodes("episodes", episodes, self.head.ways)
        if validate is not None:
            check_episodes("validate", validate, self.head.ways)
        files = None if checkpoint is None else _Files(Checkpoint.of(checkpoint), resume=resume)
        if files is not None and files.found:
            self.load(files.path)
        plan = _Plan(steps, minutes, evaluate_every, validate, validate_count, files)
        with _progress(progress) as bar:
            return self._train(episodes, plan, [*callbacks, lambda record, _: _show(bar, record, plan)])

    def evaluate(self, episodes: EpisodeSource, *, count: int = 600, seed: int = 0) -> Accuracy:
        """The accuracy on `count` fresh tasks, with its 95 % interval; see `evaluate`."""
        return evaluate(self.network, self.head, episodes, count=count, seed=seed, batch=self.tasks_per_step)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write network and training to one safetensors file, complete or not at all."""
        return save_state(self._snapshot(), path, overwrite=overwrite)

    def load(self, path: str | Path) -> MetaLearner:
        """Go on from a file of a learner with the same settings, and give its network to this one."""
        state = _load_newest(Path(path))
        self._check_settings(state, path)
        place(self.network, state.parameters)
        place_buffers(self.network, state.buffers)
        self._updates.restore(state)
        self.state = state
        self._show_best()
        return self

    def _train(self, episodes: EpisodeSource, plan: _Plan, callbacks: list[Callback]) -> Training:
        status, message, was_training = Status.STEPS, "", self.network.training
        place(self.network, self.state.parameters)  # the latest, not the best
        place_buffers(self.network, self.state.buffers)
        self.network.train()
        try:
            while not plan.is_done(self.state):
                self._advance(episodes)
                if plan.is_due(self.state):
                    record = self._record(plan)
                    asked = [callback(record, self) for callback in callbacks]
                    if any(answer is not None and bool(answer) for answer in asked):
                        status = Status.STOPPED
                        break
                plan.write(self._snapshot)
        except NotFinite as error:
            status = Status.DIVERGED
            message = (
                f"step {self.state.step + 1} was not finite ({error}); the network is that of step {self.state.step}"
            )
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
        finally:
            self.network.train(was_training)
        if self.state.recent[2] and status is not Status.DIVERGED:
            self._record(plan)
        if plan.files is not None:
            plan.files.write(self._snapshot())
        self._show_best()
        best = None if self.state.best is None else Accuracy(**self.state.best["accuracy"])
        return Training(status, self.history, self.state.step, self.state.seconds, best, message)

    def _advance(self, episodes: EpisodeSource) -> None:
        """One step, on fresh tasks."""
        began, k = time.perf_counter(), self.state.step + 1
        judged = self._updates.step(lambda step: self._draw(episodes, step), k)
        loss, accuracy, count = self.state.recent
        self.state.recent = (loss + judged.loss, accuracy + judged.accuracy, count + 1)
        self.state.step = k
        self.state.seconds += time.perf_counter() - began
        self._take_parameters()

    def _draw(self, episodes: EpisodeSource, step: int) -> FewShotProblem:
        """The problem of a step: a function of seed and step."""
        generator = Noise(Seeds.of(self.seed), step).generator("data", TRAINING)
        tasks = episodes.sample(self.tasks_per_step, generator)
        return FewShotProblem(self.network, self.head, tasks, seed=generator.initial_seed() % (1 << 63))

    def _record(self, plan: _Plan) -> TrainingRecord:
        loss, accuracy, count = self.state.recent
        found = None
        if plan.validate is not None:
            found = evaluate(
                self.network, self.head, plan.validate, count=plan.validate_count, seed=self.seed,
                batch=self.tasks_per_step, stream=VALIDATION,
            )  # fmt: skip
            self._keep_if_best(found)
        record = TrainingRecord(
            self.state.step, self.state.seconds, loss / max(count, 1), accuracy / max(count, 1),
            None if found is None else found.mean, None if found is None else found.interval,
        )  # fmt: skip
        self.state.history.append(record)
        self.state.recent = (0.0, 0.0, 0)
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

    def _snapshot(self) -> TrainingState:
        return TrainingState(**{**vars(self.state), **self._updates.saved()})

    def _settings(self) -> dict[str, Any]:
        """What a file must agree with."""
        shapes = [(name, tuple(value.shape)) for name, value in self.network.named_parameters()]
        by = "optimizer" if isinstance(self._updates, OptimizerUpdates) else repr(self.solver)
        return {
            "network": hashlib.sha256(repr(shapes).encode()).hexdigest()[:16],
            "head": self.head.extra_repr(),
            "updates": type(self._updates.optimizer).__name__ if by == "optimizer" else by,  # type: ignore[union-attr]
            "tasks_per_step": self.tasks_per_step,
            "seed": self.seed,
        }

    def _check_settings(self, state: TrainingState, path: str | Path) -> None:
        ours = self._settings()
        different = [name for name in ours if state.settings.get(name) != ours[name]]
        if different:
            name = different[0]
            raise Incompatible(
                f"{path} holds a learner with {name} = {state.settings.get(name)!r}, and this one has {ours[name]!r}: "
                "make a learner with the same settings, or start anew"
            )


@dataclass
class _Plan:
    """How long to train, and what to do on the way."""

    steps: int | None
    minutes: float | None
    evaluate_every: int
    validate: EpisodeSource | None
    validate_count: int
    files: _Files | None

    def share(self, state_step: int, seconds: float) -> float:
        """How much of the plan is done, from 0 to 1."""
        parts = [state_step / self.steps if self.steps else 0.0, seconds / (60 * self.minutes) if self.minutes else 0.0]
        return min(max(parts), 1.0)

    def is_done(self, state: TrainingState) -> bool:
        return self.share(state.step, state.seconds) >= 1.0

    def is_due(self, state: TrainingState) -> bool:
        return state.step % self.evaluate_every == 0 or self.is_done(state)

    def write(self, snapshot: Callable[[], TrainingState]) -> None:
        """Write a checkpoint if one is due."""
        if self.files is not None:
            state = snapshot()
            if state.step % (self.files.settings.every or self.evaluate_every) == 0:
                self.files.write(state)


class _Files:
    """The checkpoint on disk, and the one before it."""

    def __init__(self, settings: Checkpoint, *, resume: bool) -> None:
        self.settings, self.path = settings, Path(settings.path)
        check_writable(self.path, overwrite=True)
        self.found = self.path.exists() or settings.previous.exists()
        if self.found and not resume:
            raise FileExists(
                f"{self.path} exists and was left as it is: fit(..., resume=True) goes on from it; to start anew, choose "
                "another name or delete it"
            )
        self._keep = False

    def write(self, state: TrainingState) -> None:
        """A full disk is a warning, and leaves what was there."""
        try:
            save_state(state, self.path, overwrite=True, previous=self.settings.previous if self._keep else None)
            self._keep = True
        except NotWritten as error:
            warnings.warn(f"{error}. The training goes on", CheckpointWarning, stacklevel=2)


def _load_newest(path: Path) -> TrainingState:
    """A file, or if it is damaged or missing the one before it, with a warning."""
    try:
        return load_state(path)
    except (Damaged, FileMissing) as error:
        before = Checkpoint(path).previous
        if not before.exists():
            raise
        warnings.warn(f"{error}. The one before it is used: {before}", CheckpointWarning, stacklevel=3)
        return load_state(before)


def _progress(wanted: bool) -> Any:
    return ProgressBar(100, counter="{done:.0f} %") if wanted else Silent()


def _show(bar: Any, record: TrainingRecord, plan: _Plan) -> None:
    if isinstance(bar, ProgressBar):
        text = f"step {record.step}  loss {record.loss:.4g}  accuracy {100 * record.accuracy:.1f} %"
        if record.validation is not None and record.interval is not None and not math.isnan(record.interval):
            text += f"  validation {100 * record.validation:.1f} +- {100 * record.interval:.1f} %"
        bar.show(100 * plan.share(record.step, record.seconds), text)


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
    **how_long: Any,
) -> tuple[MetaLearner, Training]:
    """Make a `MetaLearner` and fit it; `how_long` and the rest are arguments of `MetaLearner.fit`.

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
        network, head, solver=solver, optimizer=optimizer, scheduler=scheduler, tasks_per_step=tasks_per_step, seed=seed
    )
    return learner, learner.fit(episodes, **how_long)
