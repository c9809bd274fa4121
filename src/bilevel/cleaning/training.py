"""From noisy and trusted rows to a cleaned model: learn x on trusted rows, then train on everything.

1. The trusted rows are split: two thirds judge x in the upper level, one third is held out.
2. Each noise model in question learns its x, and with radius="auto" the radius of the ball, by gradient. One weight
   per row can fit any validation rows: there the loss on the rows held out says when to stop. With x fixed, a model is
   then trained on the noisy rows and the validation rows, and the rows held out decide between the noise models
   (`simplest_of_the_best`, by Brier scores).
3. With the x of the winner, the model is trained on all noisy rows and all trusted rows.

Each part is a stage of a `Run`: "start", "learning NAME" and "trial NAME" for each noise model, "all rows", "training".

Noise models compete on a sample of the noisy rows (`SMALLEST_SAMPLE`), which every rank has, as it has the trusted
rows: all ranks compute the same numbers. Only "all rows" and the last training divide the rows. Models with one matrix
for all rows learn it from the sample, in which a third of the noisy rows do not train but are evidence in the upper
level: it stays a validation loss, by which a radius can be chosen too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._fingerprint import fingerprint
from ..curvature import largest_curvature
from ..errors import NonFiniteError
from ..hypergradients import LinearSolve
from ..projected_gradient import LowerSolution, solve_from
from ..random import Seeds
from ..ranks import Ranks
from ..run._serialization import serializable
from ..run.engine import Limits, Run, Stage
from ..run.solution import Status
from ..sets.base import ConvexSet
from ..solvers import DMLCBO, Approx, Solver
from ..solvers.base import State, check_compatible
from .design import CentredDesign, Design, column_means, replicated
from .losses import Loss, one_hot
from .noise import BY_NAME, Certain, ClassMatrix, NoiseModel, Transition, noise_of, sum_by_label
from .problem import CleaningProblem
from .row_mean import Model

ROWS_PER_CLASS, SMALLEST_SAMPLE = 200, 2000
"""A matrix of class pairs is learned from so many noisy rows per class, and from no fewer than so many in all."""
TRIAL_PASSES, TRAINING_PASSES = 35, 35
"""Passes over the rows of the trial of a candidate and of the last training, about."""
PROBLEM_SETTINGS = ("radius", "constraint", "batch_size", "loss", "ridge", "intercept", "classes")
"""Settings of a cleaner that are those of its problems."""
POOR = 10
"""Times the residual to reach: more than that is said."""
REMEDY = "scale the columns, for example with sklearn.preprocessing.StandardScaler"
WIDE, SMALLEST = 1e4, 1e-3
"""The radius of a ball that holds nobody back, and the smallest that learning starts from."""
POLISHING, POLISHED, STRIDE = 100, 1e-3, 25
"""The last training: steps at most, the residual to reach per root of the number of classes, steps at a time."""


class Effort(NamedTuple):
    """The upper-level steps of a noise model, and about how many passes over the rows the first and each other takes.

    The first also measures the curvature, and may train a first model.
    """

    steps: int
    first: int
    each: int

    def passes(self, steps: int) -> int:
        """Passes over the rows of so many steps."""
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
        """Copied rows of all ranks below each other, on every rank."""
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
        """The noise models in question, by name."""
        if self.noise != "auto":
            noise = noise_of(self.noise)
            return {noise.name: noise}
        return {name: kind() for name, kind in BY_NAME.items() if isinstance(self.loss, kind.takes)}

    @property
    def identity(self) -> dict[str, Any]:
        """The settings, objects by their fingerprints: a training that is resumed must have the same ones."""
        values = {name: value for name, value in vars(self).items() if name not in ("classes", "seed")}
        plain = str | int | float | bool | None
        facts = {name: value if isinstance(value, plain) else fingerprint(value) for name, value in values.items()}
        return {**facts, "random_state": self.seed}

    def steps_of(self, name: str) -> int:
        """Upper-level steps of a noise model."""
        return self.steps or EFFORT[name].steps


@dataclass(frozen=True)
class TrainingEvent:
    """Where training stands, for whoever shows it."""

    stage: str
    share: float  # of the work, from 0 to 1: what is left is estimated
    loss: float  # on the trusted rows held out; NaN in the last stage


@dataclass(frozen=True)
class CleaningFit:
    """The result of training; `model` acts on the columns as they were given."""

    model: Model
    weights: Tensor  # of the noisy rows
    noise: str
    matrix: Tensor | None  # of class-pairs and transition
    radius: float | None
    selection: dict[str, float]
    history: list[dict[str, float | str]]
    steps: int
    status: str  # "finished" or "interrupted"
    poor: str  # why the model is not to be trusted; empty if nothing is wrong


@serializable
@dataclass(frozen=True)
class Learned:
    """What one noise model learned: the last x, or where x has weights of rows the best on the rows held out."""

    x: Any
    y: Any
    loss: float = math.inf  # on the trusted rows held out
    step: int = 0


@serializable
@dataclass(frozen=True)
class Start:
    """Where learning starts: the validation rows' own model, the radius that goes with it, and why it is poor."""

    model: Model
    radius: float
    poor: str


@serializable
@dataclass(frozen=True)
class LearningState:
    """A solver's state, the loss there, and what was learned so far."""

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
    """The model, its residual and a curvature that was safe, after so many strides of the last training."""

    y: Model
    residual: float = math.inf
    curvature: float | None = None
    step: int = 0

    def is_finite(self) -> bool:
        """Whether the model has no NaN and no infinity."""
        return all(bool(entry.isfinite().all()) for entry in self.y.values())


class Training:
    """All three acts; Ctrl-C ends the second early. Ranks have their own noisy rows, and the same trusted ones."""

    def __init__(self, noisy: Rows, trusted: Rows, settings: Settings, run: Run) -> None:
        self.settings, self.run, self.ranks, self.own_rows = settings, run, run.ranks, len(noisy)
        # Whatever is finished already, draws come in one order: the split, the sample, the split of each Transition.
        self.generator: torch.Generator = torch.Generator().manual_seed(settings.seed)
        validation, held_out = split(trusted.labels, self.generator)
        sample, many = self._sample(noisy)
        self.divided: bool = many and self.ranks.size > 1
        self.noisy, self.trusted, self.sample = noisy if many else sample, trusted, sample
        if settings.intercept:
            means = column_means(self.noisy.design, self.total)
            self.means: Tensor = self.ranks.sum(means) if self.divided else means
            self.noisy, self.trusted = self.noisy.centred(self.means), trusted.centred(self.means)
            self.sample: Rows = sample.centred(self.means) if many else self.noisy
        self.validation, self.held_out = self.trusted.take(validation), self.trusted.take(held_out)

    def _sample(self, noisy: Rows) -> tuple[Rows, bool]:
        """A sample of the noisy rows of all ranks, which every rank has, and whether there are more of them."""
        counts = self.ranks.gather(len(noisy))
        self.total, size = sum(counts), max(SMALLEST_SAMPLE, ROWS_PER_CLASS * self.settings.classes)
        if self.total <= size and self.ranks.size == 1:
            return noisy, False
        index = torch.arange(self.total)
        if self.total > size:
            index = torch.randperm(self.total, generator=self.generator)[:size].sort().values
        first = sum(counts[: self.ranks.rank])
        mine = noisy.take(index[(index >= first) & (index < first + len(noisy))] - first)
        return mine.replicated(self.ranks), self.total > size

    def fit(self) -> CleaningFit:
        """The cleaned model, and what was learned about the labels."""
        winner, selection = self._learn()
        y, poor = self._finish(winner)
        learned, noise, x, model = winner.learned, winner.problem.noise, winner.noise_part, y
        if self.settings.intercept:  # back to the columns as they were
            model = {**y, "bias": y["bias"] - y["weight"] @ self.means}
        rows = self.noisy
        weights = noise.belief(x, rows.labels, lambda: winner.problem.probabilities(y, rows.design))
        return CleaningFit(
            model=model,
            weights=weights if self.divided else self.ranks.part(weights, self.own_rows),
            noise=noise.name,
            matrix=noise.matrix(x),
            radius=None if self.settings.constraint is not None else self._radius(learned),
            selection=selection,
            history=[row for row in self.run.document.history if "noise" in row],
            steps=learned.step,
            status="interrupted" if self.run.interrupted else "finished",
            poor=poor,
        )

    def problem(self, noisy: Rows, trusted: Rows, **options: Any) -> CleaningProblem:
        """The bilevel problem of these rows, which are divided among ranks if they are all the noisy ones."""
        own = {name: getattr(self.settings, name) for name in PROBLEM_SETTINGS}
        if self.divided and noisy is self.noisy:
            own["ranks"] = self.ranks
        return CleaningProblem(noisy.design, noisy.labels, trusted.design, trusted.labels, **{**own, **options})

    # --- learning x ---------------------------------------------------------------------------------------------------

    def _learn(self) -> tuple[Learning, dict[str, float]]:
        """The noise model that does best on the trusted rows held out, and the loss of each there."""
        candidates, run = self.settings.candidates, self.run
        alone = len(candidates) == 1
        self._expect_work(candidates)
        self.start: Start = run.once("start", self._start)
        learned: dict[str, Learning] = {}
        scores: dict[str, Tensor] = {}
        for name, noise in candidates.items():
            if run.interrupted:
                break
            rows = self.noisy if alone and noise.per_row else self.sample
            learned[name] = Learning(self, f"learning {name}", noise, rows)
            learned[name].do()
            scores[name] = self._trial(learned[name])
        if not learned:
            raise KeyboardInterrupt("before there was anything to keep")
        best = simplest_of_the_best(scores)
        self.ranks.agree({"the noise model": best}, "ranks on machines of one kind compute the same numbers")
        winner = learned[best]
        if winner.problem.noise.per_row and winner.rows is not self.noisy:
            winner = Learning(self, "all rows", winner.problem.noise, self.noisy)  # a weight for every row
            winner.do()
        run.expect("all rows", 0.0)
        if not (math.isfinite(winner.learned.loss) or run.interrupted):
            raise NonFiniteError(f"training left the numbers behind (noise={best!r}): {REMEDY}, or give a larger ridge")
        return winner, {name: float(score.mean()) for name, score in scores.items()}

    def _expect_work(self, names: Any) -> None:
        """Passes over rows of each stage, about: a gradient or a product with second derivatives is one pass."""
        alone, size = len(names) == 1, len(self.sample)
        for name in names:
            passes = EFFORT[name].passes(self.settings.steps_of(name))
            self.run.expect(f"learning {name}", passes * (self.total if alone and name == "rows" else size))
            self.run.expect(f"trial {name}", TRIAL_PASSES * size)
            if name == "rows" and not alone and self.total > size:
                self.run.expect("all rows", passes * self.total)
        self.run.expect("training", TRAINING_PASSES * self.total)

    def _start(self) -> Start:
        problem = self._trusting(self.validation, WIDE)
        model: Any = trained(problem, problem.start(), problem.y0, steps=60).y
        size = float(model["weight"].abs().sum(-1).mean())
        if not math.isfinite(size):
            raise NonFiniteError(f"a model of the trusted rows has coefficients of {size}: {REMEDY}")
        poor = f"its columns are so small that coefficients of size {size:.1g} are all that the ridge allows"
        radius = self._first_radius(max(size / 2, SMALLEST))
        return Start(model, radius, poor if size < SMALLEST else "")

    def _first_radius(self, radius: float) -> float:
        """Half the size that the validation rows ask for: held back, the model shows if it wants more.

        Where columns are many, they ask for too much: then a quarter as long as that serves the rows held out.
        """
        if self.settings.radius != "auto" or self.settings.constraint is not None:
            return radius
        scores = self._scores_within(radius)
        while radius / 4 >= SMALLEST:
            smaller = self._scores_within(radius / 4)
            if simplest_of_the_best({"as it is": scores, "smaller": smaller}) == "as it is":
                break
            radius, scores = radius / 4, smaller
        return radius

    def _scores_within(self, radius: float) -> Tensor:
        """Brier scores of the validation rows' model in a ball."""
        problem = self._trusting(self.validation, radius)
        return self._brier(problem, trained(problem, problem.start(), problem.y0, steps=60).y)  # type: ignore[arg-type]

    def _trusting(self, rows: Rows, radius: float) -> CleaningProblem:
        """The problem that trusts these rows and has no others."""
        return self.problem(rows, rows, noise=Certain(), radius=radius, batch_size=None)

    def _trial(self, stage: Learning) -> Tensor:
        """The Brier score of each trusted row held out, by a model trained as x says and on the validation rows.

        A few confident mistakes among a few dozen rows do not decide here, as they would with a loss.
        """

        def tried() -> dict[str, Any]:
            learned = stage.learned
            if not math.isfinite(learned.loss):
                return {"y": learned.y, "scores": torch.full((len(self.held_out),), math.inf)}
            problem, x = self._last_problem(stage, stage.rows, self.validation)
            y = trained(problem, x, problem.constraint_at(x).project(learned.y), steps=25).y
            return {"y": y, "scores": self._brier(problem, y)}

        found = self.run.once(f"trial {stage.problem.noise.name}", tried)
        stage.learned = replace(stage.learned, y=found["y"])
        return found["scores"]

    def _brier(self, problem: CleaningProblem, y: Any) -> Tensor:
        """(1 - p)^2 + the squares of the other probabilities, for each trusted row held out."""
        chances = problem.probabilities(y, self.held_out.design)
        return (chances - one_hot(self.held_out.labels, problem.classes, chances.new_ones(()))).square().sum(-1)

    # --- the model ----------------------------------------------------------------------------------------------------

    def _finish(self, winner: Learning) -> tuple[Model, str]:
        """Train on all noisy rows as x says and on all trusted rows; and why the model is poor, if it is."""
        problem, x = self._last_problem(winner, self.noisy, self.trusted)
        stage = LastTraining(problem, x, winner.learned.y, self.run)
        outcome = self.run.do(stage, stage.limits)
        residual, poor = outcome.result.residual, self.start.poor
        if residual > POOR * stage.tol and outcome.status is not Status.INTERRUPTED:
            poor = f"it ended at a residual of {residual:.2g}, where {stage.tol:.2g} was wanted"
        return outcome.result.y, poor

    def _last_problem(self, stage: Learning, noisy: Rows, trusted: Rows) -> tuple[CleaningProblem, Tensor]:
        """The problem whose lower level trains on noisy and trusted rows, each row counting the same, and its x."""
        count = self.total if noisy is self.noisy else len(noisy)
        problem = self.problem(
            noisy, trusted, noise=stage.problem.noise, radius=self._radius(stage.learned),
            trusted_in_lower=len(trusted) / count, batch_size=None,
        )  # fmt: skip
        return problem, stage.noise_part

    def _radius(self, learned: Learned) -> Any:
        """As it was learned, or else as it was given."""
        return float(learned.x["log_radius"].exp()) if isinstance(learned.x, dict) else self.settings.radius


class Learning(Stage):
    """Upper-level steps that learn the x of one noise model; `learned` has it in the end."""

    def __init__(self, training: Training, name: str, noise: NoiseModel, rows: Rows) -> None:
        self.training = training
        self.name: str = name
        self.rows = rows
        self.limits: Limits = Limits(steps=training.settings.steps_of(noise.name), record_every=1)
        self.problem: CleaningProblem = self._problem(noise)
        self.solver: Solver = training.settings.solver or self._default_solver()
        self.learned: Learned = Learned(None, None)

    def do(self) -> None:
        """Take the steps; one that leaves the numbers behind ends them."""
        try:
            self.learned = self.training.run.do(self, self.limits).result
        except NonFiniteError:  # before the first step
            self.learned = Learned(*self._start())

    @property
    def noise_part(self) -> Tensor:
        """What was learned about the labels."""
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
        """The mean loss on the trusted rows held out."""
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
        """A state or result with the tensors that ranks divide moved to rank 0, or back."""
        moved = partial(self.problem.x_space.map_divided, move)
        if isinstance(value, Learned):
            return replace(value, x=moved(value.x))
        return replace(value, solver=value.solver.map_like_x(moved), learned=self._moved(value.learned, move))


class LastTraining(Stage):
    """Accelerated steps on all rows, `STRIDE` at a time, from a model that was learned."""

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
    """The lower level from y, by so many accelerated steps at most; the curvature found serves the next call."""
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
