"""The stages that learn the x of a noise model and train the final model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .._fingerprint import fingerprint
from .._krylov import largest_curvature
from .._projected_gradient import LowerSolution, solve_from
from ..errors import NonFiniteError
from ..hypergradients import LinearSolve
from ..random import Seeds
from ..ranks import Ranks
from ..run._serialization import serializable
from ..run.engine import Limits, Run, Stage
from ..run.solution import Status
from ..sets.base import ConvexSet
from ..solvers import DMLCBO, Approx, Solver
from ..solvers.base import State, check_compatible
from .design import CentredDesign, Design, replicated
from .losses import Loss
from .noise import BY_NAME, ClassMatrix, NoiseModel, Transition, noise_of, sum_by_label
from .problem import CleaningProblem
from .row_mean import Model

if TYPE_CHECKING:
    from .training import Training

POLISHING, POLISHED, STRIDE = 100, 1e-3, 25
"""The last training: steps at most, the residual to reach per root of the number of classes, steps at a time."""


class Effort(NamedTuple):
    """The upper-level steps of a noise model, and the approximate number of passes over the rows of a step.

    The first step also measures the curvature and may train a first model, so that it has its own number of passes.
    """

    steps: int
    first: int
    each: int

    def passes(self, steps: int) -> int:
        """The number of passes over the rows of this many steps."""
        return self.first + (steps - 1) * self.each if steps else 0


EFFORT = {"transition": Effort(20, 60, 14), "class-pairs": Effort(10, 30, 14), "rows": Effort(20, 30, 5)}


@dataclass(frozen=True)
class Rows:
    """A design and its labels 0, 1, ..."""

    design: Design
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> Rows:
        """Some of the rows."""
        return Rows(self.design.rows(index), self.labels[index])

    def replicated(self, ranks: Ranks) -> Rows:
        """The rows of all ranks, concatenated, on every rank."""
        if ranks.size == 1:
            return self
        design: Any = self.design
        return Rows(Design.of(replicated(design.array, ranks)), replicated(self.labels, ranks))

    def centred(self, means: Tensor) -> Rows:
        """The same rows with these numbers subtracted from their columns."""
        return Rows(CentredDesign(self.design, means), self.labels)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a cleaner; see `HyperCleaner`."""

    classes: int
    noise: str | NoiseModel = "auto"
    loss: Loss
    radius: float | str = "auto"
    constraint: ConvexSet | None = None
    ridge: float = 1e-3
    intercept: bool = True
    solver: Solver | None = None
    steps: int | None = None
    batch_size: int | None = None
    seed: int = 0

    @property
    def candidates(self) -> dict[str, NoiseModel]:
        """The names of the candidate noise models."""
        if self.noise != "auto":
            noise = noise_of(self.noise)
            return {noise.name: noise}
        return {name: kind() for name, kind in BY_NAME.items() if isinstance(self.loss, kind.takes)}

    @property
    def identity(self) -> dict[str, Any]:
        """The settings, objects by their fingerprints; a resumed training must have the same settings."""
        values = {name: value for name, value in vars(self).items() if name not in ("classes", "seed")}
        plain = str | int | float | bool | None
        facts = {name: value if isinstance(value, plain) else fingerprint(value) for name, value in values.items()}
        return {**facts, "random_state": self.seed}

    def steps_of(self, name: str) -> int:
        """Upper-level steps of a noise model."""
        return self.steps or EFFORT[name].steps


@dataclass(frozen=True)
class TrainingEvent:
    """The progress of training, passed to a callback."""

    stage: str
    share: float  # of the work, from 0 to 1: what is left is estimated
    loss: float  # on the trusted rows held out; NaN in the last stage


@serializable
@dataclass(frozen=True)
class Learned:
    """The x learned by one noise model: the last one, or for weights of rows the best one on the held-out rows."""

    x: Any
    y: Any
    loss: float = math.inf  # on the trusted rows held out
    step: int = 0


@serializable
@dataclass(frozen=True)
class Start:
    """The start of learning: a model of the validation rows, its radius, and the reason if the model is poor."""

    model: Model
    radius: float
    poor: str


@serializable
@dataclass(frozen=True)
class LearningState:
    """The state of a solver, its loss, and the result so far."""

    solver: State
    loss: float
    learned: Learned

    @property
    def step(self) -> int:
        """How many steps were taken."""
        return self.solver.step

    def is_finite(self) -> bool:
        """Whether the solver's state has no NaN and no infinity."""
        return self.solver.is_finite()


@serializable
@dataclass(frozen=True)
class FitState:
    """The model, its residual and a safe curvature after some strides of the last training."""

    y: Model
    residual: float = math.inf
    curvature: float | None = None
    step: int = 0

    def is_finite(self) -> bool:
        """Whether the model has no NaN and no infinity."""
        return all(bool(entry.isfinite().all()) for entry in self.y.values())


class Learning(Stage):
    """Upper-level steps that learn the x of one noise model, which is then in `learned`."""

    def __init__(self, training: Training, name: str, noise: NoiseModel, rows: Rows) -> None:
        self.training, self.rows = training, rows
        self.name: str = name
        self.limits: Limits = Limits(steps=training.settings.steps_of(noise.name), record_every=1)
        self.problem: CleaningProblem = self._problem(noise)
        self.solver: Solver = training.settings.solver or self._default_solver()
        self.learned: Learned = Learned(None, None)

    def do(self) -> None:
        """Take the steps; a non-finite one ends them."""
        try:
            self.learned = self.training.run.do(self, self.limits).result
        except NonFiniteError:  # before the first step
            self.learned = Learned(*self._start())

    @property
    def noise_part(self) -> Tensor:
        """The part of x that describes the labels."""
        return self.problem.noise_part(self.learned.x)

    def _problem(self, noise: NoiseModel) -> CleaningProblem:
        training, validation = self.training, self.training.validation
        if not isinstance(noise, Transition):
            return training.problem(self.rows, validation, noise=noise)
        train, evidence = (self.rows.take(index) for index in split(self.rows.labels, training.generator))
        weight = len(evidence) / len(validation)  # every row, trusted or evidence, counts the same
        return training.problem(
            train, validation, noise=noise, evidence_weight=weight, evidence_rows=(evidence.design, evidence.labels)
        )

    def _default_solver(self) -> Solver:
        problem = self.problem
        if problem.noise.per_row:
            return DMLCBO(upper_step=1.0, hypergradient=LinearSolve(tol=1e-2, max_iterations=5))
        # Each row of the matrix sees a share 1/classes of the rows: its gradient is that much smaller.
        step = problem.classes / (1.0 + problem.evidence_weight)
        return Approx(upper_step=step, step_rule="fixed", tolerance=1e-3, decay=0.999, inner_steps=5, linear_steps=5)

    def _start(self) -> tuple[Any, Any]:
        problem, start = self.problem, self.training.start
        x = problem.start(radius=start.radius)
        if isinstance(problem.noise, ClassMatrix):  # classes, as the trusted rows' model sees them, beside given labels
            seen = problem.noise.start_at(sum_by_label(problem.probabilities(start.model), problem.labels))
            x = {**x, "noise": seen} if isinstance(x, dict) else seen
        return x, problem.constraint_at(x).project(start.model)

    def init(self) -> LearningState:
        x, y = self._start()
        learned = Learned(x, y)
        if isinstance(self.problem.noise, Transition):  # far from its lower level the radius would be misled
            y = trained(self.problem, x, y, steps=40).y
        check_compatible(self.solver, self.problem, self.problem.constraint_at(x), y)
        seeds = Seeds.from_seed(self.training.settings.seed)
        return LearningState(self.solver.init(self.problem, x, y, seeds), math.inf, learned)

    def step(self, state: LearningState) -> LearningState:
        new = self.solver.step(self.problem, state.solver)
        loss = self._held_out_loss(new.y)
        learned = state.learned
        if not math.isfinite(loss):
            learned = replace(learned, loss=math.inf)
        elif not self.problem.noise.per_row or loss < learned.loss:
            learned = Learned(new.x, new.y, loss, new.step)
        return LearningState(new, loss, learned)

    def _held_out_loss(self, y: Any) -> float:
        """The mean loss on the held-out trusted rows."""
        rows = self.training.held_out
        losses = self.problem.loss.per_label(self.problem.scores(y, rows.design))
        return float(losses.gather(1, rows.labels[:, None]).mean())

    def stop(self, state: LearningState, row: Any) -> Status | None:
        return None if math.isfinite(state.loss) else Status.DIVERGED

    def record(self, state: LearningState, seconds: float) -> dict[str, Any] | None:
        if not math.isfinite(state.loss):
            return None
        row = {"noise": self.problem.noise.name, "step": state.step, "seconds": seconds, "held_out_loss": state.loss}
        x = state.solver.x
        return {**row, "radius": float(x["log_radius"].exp())} if isinstance(x, dict) else row

    def share(self, state: LearningState, reached: float) -> float:
        effort = EFFORT[self.problem.noise.name]
        return effort.passes(state.step) / effort.passes(int(self.limits.steps))

    def describe(self, state: LearningState, row: Any) -> str:
        return f"learning {self.problem.noise.name}, held-out loss {state.loss:.4g}"

    def view(self, state: LearningState) -> TrainingEvent:
        share = self.training.run.share(self, self.limits)
        return TrainingEvent(f"learning {self.problem.noise.name}", share, state.loss)

    def result(self, state: LearningState) -> Learned:
        return state.learned

    def gather(self, state: Any) -> Any:
        return self._moved(state, self.training.ranks.concat)

    def divide(self, state: Any) -> Any:
        count = len(self.rows)
        return self._moved(state, lambda whole: self.training.ranks.part(whole, count))

    def _moved(self, value: LearningState | Learned, move: Callable[[Tensor], Any]) -> Any:
        """A state or result, with the tensors that ranks divide moved to rank 0 or back."""
        moved = partial(self.problem.x_space.map_divided, move)
        if isinstance(value, Learned):
            return replace(value, x=moved(value.x))
        return replace(value, solver=value.solver.map_like_x(moved), learned=self._moved(value.learned, move))


class LastTraining(Stage):
    """Accelerated steps on all rows, `STRIDE` at a time, starting from a learned model."""

    name = "training"
    limits: Limits = Limits(steps=POLISHING // STRIDE, record_every=1)

    def __init__(self, problem: CleaningProblem, x: Any, y: Any, run: Run) -> None:
        self.problem, self.x, self.y, self.run = problem, x, y, run
        self.tol: Any = POLISHED * problem.classes**0.5

    def init(self) -> FitState:
        return FitState(self.problem.constraint_at(self.x).project(self.y))

    def step(self, state: FitState) -> FitState:
        found = trained(self.problem, self.x, state.y, steps=STRIDE, tol=self.tol, curvature=state.curvature)
        return FitState(found.y, found.residual, found.curvature, state.step + 1)  # type: ignore[arg-type]

    def record(self, state: FitState, seconds: float) -> dict[str, Any]:
        return {"stage": self.name, "step": state.step, "seconds": seconds, "residual": state.residual}

    def stop(self, state: FitState, row: Any) -> Status | None:
        return Status.STATIONARY if state.residual <= self.tol else None

    def share(self, state: FitState, reached: float) -> float:
        return state.step / (state.step + (state.residual > self.tol))  # one more stride, until it is there

    def view(self, state: FitState) -> TrainingEvent:
        return TrainingEvent(self.name, self.run.share(self, self.limits), math.nan)

    def result(self, state: FitState) -> FitState:
        return state


def trained(
    problem: CleaningProblem, x: Any, y: Any, *, steps: int, tol: float = 3e-3, curvature: float | None = None
) -> LowerSolution:
    """Solve the lower level from y by at most this many accelerated steps; the curvature is reused in the next call."""
    if curvature is None:
        curvature = largest_curvature(problem.linearize(x, y), steps=10)
    return solve_from(problem, x, y, tol=tol, max_steps=steps, curvature=curvature)


def split(labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two thirds and one third of the rows, each class divided evenly; a single row goes to both.

    Examples
    --------
    >>> kept, held = split(torch.tensor([0, 0, 0, 1, 1, 1]), torch.Generator().manual_seed(0))
    >>> len(kept), len(held)
    (4, 2)
    """
    order = torch.randperm(len(labels), generator=generator).to(labels.device)
    order = order[labels[order].argsort(stable=True)]
    held = torch.zeros(len(labels), dtype=torch.bool, device=labels.device)
    held[order[1::3]] = True
    if len(labels) < 2:
        everything = torch.arange(len(labels), device=labels.device)
        return everything, everything
    return (~held).nonzero()[:, 0], held.nonzero()[:, 0]


def simplest_of_the_best(scores: dict[str, Tensor]) -> str:
    """The first name whose mean score is within one standard error of the smallest; simpler models come first.

    The rule of Breiman et al. (1984): on a few rows a flexible model is too often ahead by chance.

    Examples
    --------
    >>> close, far = torch.tensor([0.1, 0.4, 0.1]), torch.tensor([0.9, 0.9, 0.8])
    >>> simplest_of_the_best({"simple": close, "flexible": close - torch.tensor([-0.05, 0.1, 0.0])})
    'simple'
    >>> simplest_of_the_best({"simple": far, "flexible": close})
    'flexible'
    """
    best = min(scores, key=lambda name: float(scores[name].mean()))

    def within(name: str) -> bool:
        behind = scores[name] - scores[best]
        return float(behind.mean()) <= float(behind.std()) / math.sqrt(len(behind)) if len(behind) > 1 else False

    return next((name for name in scores if name == best or within(name)), best)
