"""From noisy and trusted rows to a cleaned model: learn x on trusted rows, then train on everything.

1. The trusted rows are split: two thirds judge x in the upper level, one third is held out.
2. Each noise model in question learns its x, and with radius="auto" the radius of the ball, by gradient. One weight
   per row can fit any judges: there the loss on the rows held out says when to stop. With x fixed, a model is then
   trained on the noisy rows and the judges, and the rows held out decide between the noise models
   (`simplest_of_the_best`, by Brier scores).
3. With the x of the winner, the model is trained on all noisy rows and all trusted rows.

Each part is a stage of a `Journal`: "start", "learning NAME" and "trial NAME" for each noise model, "all rows",
"training". A training that is resumed repeats no stage that was finished, and no step of the one it was in.

Models with one matrix for all rows learn it from a sample (`sample_size`), in which a third of the noisy rows do not
train but bear witness in the upper level: it stays a validation loss, by which a radius can be chosen too.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ...curvature import largest_curvature
from ...errors import InvalidInput, NotFinite
from ...hypergradients import LinearSolve
from ...journal import Journal
from ...loop import iterate
from ...sets.base import ConvexSet
from ...solvers import DMLCBO, Approx, Solver
from ...solvers.inner import InnerSolution, solve_to
from .centred import CentredDesign, column_means
from .design import Design
from .losses import LogLikelihood, Loss
from .noise import Certain, ClassPairs, NoiseModel, RowWeights, Transition, noise_of, one_hot, sum_by_label
from .problem import CleaningProblem
from .row_mean import Model
from .work import FIRST, STEP, expected, strides_left

ROWS_PER_CLASS, SMALLEST_SAMPLE = 200, 2000
"""A matrix of class pairs is learned from so many noisy rows per class, and from no fewer than so many in all."""
STEPS = {"transition": 20, "class-pairs": 10, "rows": 20}
"""Upper-level steps of each noise model."""
POOR = 10
"""Times the residual to reach: more than that is said."""
REMEDY = "scale the columns, for example with sklearn.preprocessing.StandardScaler"
WIDE, SMALLEST = 1e4, 1e-3
"""The radius of a ball that holds nobody back, and the smallest that learning starts from."""
POLISHING, POLISHED, STRIDE = 100, 1e-3, 25
"""The last training: steps at most, the residual to reach per root of the number of classes, steps at a time."""


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


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a cleaner is told; see `HyperCleaner`."""

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
        if isinstance(self.noise, NoiseModel):
            return {name_of(self.noise): self.noise}
        if self.noise != "auto":
            return {self.noise: noise_of(self.noise)}
        likely = {"transition": Transition()} if isinstance(self.loss, LogLikelihood) else {}
        return {**likely, "class-pairs": ClassPairs(), "rows": RowWeights()}  # simpler ones first

    @property
    def identity(self) -> dict[str, str | int]:
        """The settings as texts: a training that is resumed must have the same ones."""
        texts = {name: _without_address(value) for name, value in vars(self).items() if name not in ("classes", "seed")}
        texts["noise"] = self.noise if isinstance(self.noise, str) else name_of(self.noise)
        return {**texts, "random_state": self.seed}

    def problem(self, noisy: Rows, trusted: Rows, **options: Any) -> CleaningProblem:
        """The bilevel problem of these rows."""
        kept = {"radius": self.radius, "constraint": self.constraint, "batch_size": self.batch_size}
        return CleaningProblem(
            noisy.design, noisy.labels, trusted.design, trusted.labels,
            **{**kept, "loss": self.loss, "ridge": self.ridge, "intercept": self.intercept, "classes": self.classes,
               **options},
        )  # fmt: skip

    def count(self, noisy: Rows) -> int:
        """How many noisy rows there are in all, of which these may be a part."""
        return len(noisy)

    def means(self, noisy: Rows) -> Tensor:
        """The mean of each column over all noisy rows."""
        return column_means(noisy.design)


@dataclass(frozen=True)
class Moment:
    """Where training stands, for whoever shows it."""

    stage: str
    share: float  # of the work, from 0 to 1: what is left is estimated
    loss: float  # on the trusted rows held out; NaN in the last stage


@dataclass
class Learned:
    """What one noise model learned."""

    name: str
    problem: CleaningProblem
    rows: Rows  # the noisy rows it was learned from
    loss: float = math.inf  # on the trusted rows held out
    x: Any = None
    y: Any = None
    step: int = 0

    @property
    def values(self) -> dict[str, Any]:
        """What was learned, without the rows: all that a checkpoint keeps of it."""
        return {name: getattr(self, name) for name in ("loss", "x", "y", "step")}

    @property
    def matrix(self) -> Tensor | None:
        """T or Q; None when every row has a weight of its own."""
        noise = self.problem.noise
        return None if noise.per_row else noise.matrix(self.problem.noise_part(self.x))  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Cleaned:
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


class Interruption:
    """Ctrl-C ends learning, not the program: what was learned until then is kept."""

    def __init__(self, journal: Journal) -> None:
        self.happened, self.journal = False, journal

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Code that Ctrl-C may end early."""
        try:
            yield
        except KeyboardInterrupt:
            self.happened = True
            self.journal.stop()


def train(
    noisy: Rows,
    trusted: Rows,
    settings: Settings,
    show: Callable[[Moment], None] | None = None,
    journal: Journal | None = None,
) -> Cleaned:
    """All three acts; Ctrl-C ends the second early."""
    if settings.intercept:
        means = settings.means(noisy)
        noisy, trusted = (Rows(CentredDesign(rows.design, means), rows.labels) for rows in (noisy, trusted))
    run = _Training(noisy, trusted, settings, show or (lambda moment: None), journal or Journal())
    winner, selection = run.learn()
    y, radius = run.finish(winner)
    weights = run.weights(winner, y)
    if settings.intercept:  # back to the columns as they were
        y = {**y, "bias": y["bias"] - y["weight"] @ means}
    return Cleaned(
        model=y,
        weights=weights,
        noise=winner.name,
        matrix=winner.matrix,
        radius=radius,
        selection=selection,
        history=run.history,
        steps=winner.step,
        status="interrupted" if run.interruption.happened else "finished",
        poor=run.poor,
    )


class _Training:
    def __init__(
        self, noisy: Rows, trusted: Rows, settings: Settings, show: Callable[[Moment], None], journal: Journal
    ) -> None:
        self.noisy, self.trusted, self.settings, self.show, self.journal = noisy, trusted, settings, show, journal
        self.generator = torch.Generator().manual_seed(settings.seed)
        judges, held_out = split(trusted.labels, self.generator)
        self.judges, self.held_out = trusted.take(judges), trusted.take(held_out)
        self.interruption = Interruption(journal)
        self.poor = ""
        self.history: list[dict[str, float | str]] = journal.progress.get("history", [])
        self.began = time.perf_counter() - journal.progress.get("seconds", 0.0)
        self.sample_size = min(len(noisy), sample_size(settings.classes))
        self.work = expected({name: self._steps(name) for name in settings.candidates}, self.sample_size, len(noisy))
        self.work.resume(journal.progress.get("work", {}))

    # --- learning x -----------------------------------------------------------------------------------------------

    def learn(self) -> tuple[Learned, dict[str, float]]:
        """The noise model that does best on the trusted rows held out, and the loss of each there."""
        candidates = self.settings.candidates
        size = self.sample_size
        sample = self.noisy.take(some(len(self.noisy), size, self.generator)) if len(self.noisy) > size else self.noisy
        start = self.journal.once("start", self._begin)
        self.start_model: Any = start["model"]
        self.start_radius, self.poor = start["radius"], start["poor"]
        learned: list[Learned] = []
        scores: dict[str, Tensor] = {}
        for name, noise in candidates.items():
            rows = self.noisy if len(candidates) == 1 and noise.per_row else sample
            if not self.interruption.happened:
                learned.append(self._run(f"learning {name}", name, noise, rows))
                scores[name] = self._trial(learned[-1])
                self.work.expect(name, 0.0)
        best = simplest_of_the_best(scores)
        winner = next(result for result in learned if result.name == best)
        if winner.problem.noise.per_row and len(winner.problem.labels) < len(self.noisy):
            winner = self._run("all rows", winner.name, winner.problem.noise, self.noisy)  # a weight for every row
        self.work.expect("all rows", 0.0)
        if not (math.isfinite(winner.loss) or self.interruption.happened):
            raise NotFinite(
                f"training left the numbers behind (noise={winner.name!r}): {REMEDY}, or give a larger ridge"
            )
        return winner, {name: float(score.mean()) for name, score in scores.items()}

    def _begin(self) -> dict[str, Any]:
        """Where learning starts: the judges' own model, and the radius that goes with it."""
        problem = self._trusting(self.judges)
        self.start_model = trained(problem, problem.start(), problem.y0, steps=60).y
        return {"model": self.start_model, "radius": self._first_radius(), "poor": self.poor}

    def _trial(self, result: Learned) -> Tensor:
        """The Brier score of each trusted row held out, by a model trained as x says and on the judges.

        A few confident mistakes among a few dozen rows do not decide here, as they would with a loss.
        """
        found = self.journal.once(f"trial {result.name}", lambda: self._tried(result))
        result.y = found["y"]
        return found["scores"]

    def _tried(self, result: Learned) -> dict[str, Any]:
        if not math.isfinite(result.loss):
            return {"y": result.y, "scores": torch.full((len(self.held_out),), math.inf)}
        problem, x = self._last_problem(result, result.rows, self.judges)
        with self.interruption.caught():
            result.y = trained(problem, x, problem.constraint_at(x).project(result.y), steps=25).y
        return {"y": result.y, "scores": self._brier(problem, result.y)}

    def _brier(self, problem: CleaningProblem, y: Model) -> Tensor:
        """(1 - p)^2 + the squares of the other probabilities, for each trusted row held out."""
        chances = problem.loss.probabilities(problem.scores(y, self.held_out.design))
        return (chances - one_hot(self.held_out.labels, problem.classes, chances.new_ones(()))).square().sum(-1)

    def _trusting(self, rows: Rows, radius: float = WIDE) -> CleaningProblem:
        """The problem that trusts these rows and has no others."""
        return self.settings.problem(rows, rows, noise=Certain(), radius=radius, batch_size=None)

    def _first_radius(self) -> float:
        """Half the size that the judges ask for: held back, the model shows if it wants more.

        Where columns are many, the judges ask for too much: then a quarter as long as that serves the rows held out.
        """
        size = float(self.start_model["weight"].abs().sum(-1).mean())
        if not math.isfinite(size):
            raise NotFinite(f"a model of the trusted rows has coefficients of {size}: {REMEDY}")
        if size < SMALLEST:
            self.poor = f"its columns are so small that coefficients of size {size:.1g} are all that the ridge allows"
        radius = max(size / 2, SMALLEST)
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
        """Brier scores of the judges' model in a ball."""
        problem = self._trusting(self.judges, radius)
        return self._brier(problem, trained(problem, problem.start(), problem.y0, steps=60).y)  # type: ignore[arg-type]

    def _run(self, stage: str, name: str, noise: NoiseModel, rows: Rows) -> Learned:
        """Learn the x of one noise model."""
        result = Learned(name, self._problem(noise, rows), rows)
        values = self.journal.once(stage, lambda: self._learned(stage, result))
        return replace(result, **values)

    def _learned(self, stage: str, result: Learned) -> dict[str, Any]:
        left = self._steps(result.name)
        if reached := self.journal.reached(stage):
            vars(result).update(reached["learned"])
            left -= reached["state"].step
        else:
            result.x, result.y = self._start(result.problem)
        with self.interruption.caught(), suppress(NotFinite):  # a run that diverges keeps an infinite loss
            states = self._states(result, reached["state"] if reached else None)
            for state in islice(states, left):
                self._note(stage, result, state)
        return result.values

    def _states(self, result: Learned, state: Any) -> Iterator[Any]:
        """The states after this one, or from the start if there is none."""
        problem, solver = result.problem, self._solver(result.problem)
        if state is not None:
            return steps_from(state, problem, solver)
        y = result.y
        if isinstance(problem.noise, Transition):  # far from its lower level the radius would be misled
            y = trained(problem, result.x, y, steps=40).y
        return iterate(problem, result.x, y, solver=solver, seed=self.settings.seed)

    def _problem(self, noise: NoiseModel, rows: Rows) -> CleaningProblem:
        if not isinstance(noise, Transition):
            return self.settings.problem(rows, self.judges, noise=noise)
        train, witness = (rows.take(index) for index in split(rows.labels, self.generator))
        # Every row, trusted or witness, counts the same.
        return self.settings.problem(
            train, self.judges, noise=noise,
            evidence=len(witness) / len(self.judges), witnesses=(witness.design, witness.labels),
        )  # fmt: skip

    def _start(self, problem: CleaningProblem) -> tuple[Any, Any]:
        y = self.start_model
        x = problem.start(radius=self.start_radius)
        seen = self._pairs_seen(problem)
        if seen is not None:
            x = {**x, "noise": seen} if isinstance(x, dict) else seen
        return x, problem.constraint_at(x).project(y)

    def _pairs_seen(self, problem: CleaningProblem) -> Tensor | None:
        """Logits of the class pairs as the trusted rows' model sees them: classes beside given labels, counted."""
        if problem.noise.per_row:
            return None
        probabilities = problem.loss.probabilities(problem.scores(self.start_model))
        pairs = sum_by_label(probabilities, problem.labels)  # row: given label, column: class
        pairs = pairs.T if isinstance(problem.noise, Transition) else pairs
        doubt = 1.0 + 9.0 * torch.eye(len(pairs), dtype=pairs.dtype, device=pairs.device)  # labels are right at first
        return ((pairs + doubt) / (pairs + doubt).sum(-1, keepdim=True)).log()

    def _solver(self, problem: CleaningProblem) -> Solver:
        if self.settings.solver is not None:
            return self.settings.solver
        if problem.noise.per_row:
            return DMLCBO(upper_step=1.0, hypergradient=LinearSolve(tol=1e-2, max_iterations=5))
        # Each row of the matrix sees a share 1/classes of the rows: its gradient is that much smaller.
        step = problem.classes / (1.0 + problem.evidence)
        return Approx(upper_step=step, step_rule="fixed", tolerance=1e-3, decay=0.999, inner_steps=5, linear_steps=5)

    def _note(self, stage: str, result: Learned, state: Any) -> None:
        loss = self._loss(result.problem, state.y)
        if not math.isfinite(loss):
            result.loss = math.inf
            raise NotFinite(f"the loss of noise={result.name!r} is {loss} at step {state.step}")
        if not result.problem.noise.per_row or loss < result.loss:
            result.loss, result.x, result.y, result.step = loss, state.x, state.y, state.step
        entry: dict[str, float | str] = {
            "noise": result.name, "step": state.step, "seconds": time.perf_counter() - self.began,
            "held_out_loss": loss,
        }  # fmt: skip
        if isinstance(state.x, dict):
            entry["radius"] = float(state.x["log_radius"].exp())
        self.history.append(entry)
        again = len(result.rows) > self.sample_size and self.work.left.get("all rows")
        passes = (FIRST if state.step == 1 else STEP)[result.name]
        self.work.advance("all rows" if again else result.name, passes * len(result.rows))
        self.journal.step(stage, state.step, {"learned": result.values, "state": state}, self._progress())
        self.show(Moment(f"learning {result.name}", self.work.share, loss))

    def _progress(self) -> dict[str, Any]:
        seconds = time.perf_counter() - self.began
        return {"history": list(self.history), "seconds": seconds, "work": self.work.values}

    def _loss(self, problem: CleaningProblem, y: Model) -> float:
        """The mean loss on the trusted rows held out."""
        scores = problem.scores(y, self.held_out.design)
        return float(problem.loss.per_label(scores).gather(1, self.held_out.labels[:, None]).mean())

    def _steps(self, name: str) -> int:
        return self.settings.steps or STEPS.get(name, STEPS["rows"])

    # --- the model ------------------------------------------------------------------------------------------------

    def finish(self, winner: Learned) -> tuple[Model, float | None]:
        """Train on all noisy rows as x says and on all trusted rows; and the radius of the ball."""
        found = self.journal.once("training", lambda: self._finished(winner))
        self.poor = found["poor"]
        return found["y"], None if self.settings.constraint is not None else self._radius(winner)

    def _finished(self, winner: Learned) -> dict[str, Any]:
        problem, x = self._last_problem(winner, self.noisy, self.trusted)
        tol, most = POLISHED * self.settings.classes**0.5, POLISHING // STRIDE
        now = self.journal.reached("training") or {"y": winner.y, "residual": math.inf, "curvature": None, "stride": 0}
        with self.interruption.caught():
            if now["stride"] == 0:
                now["y"] = problem.constraint_at(x).project(now["y"])
            while now["stride"] < most and not now["residual"] <= tol:
                now = self._stride(problem, x, now, tol, most)
            if now["residual"] > POOR * tol:
                self.poor = f"it ended at a residual of {now['residual']:.2g}, where {tol:.2g} was wanted"
        return {"y": now["y"], "poor": self.poor}

    def _stride(self, problem: CleaningProblem, x: Any, now: dict[str, Any], tol: float, most: int) -> dict[str, Any]:
        """A few steps of the last training."""
        y, residual, _, curvature = trained(problem, x, now["y"], steps=STRIDE, tol=tol, curvature=now["curvature"])
        stride, before = now["stride"] + 1, now["residual"]
        now = {"y": y, "residual": residual, "curvature": curvature, "stride": stride}
        self.work.advance("training", STRIDE * len(self.noisy))
        self.work.expect("training", strides_left(before, residual, tol, most - stride) * STRIDE * len(self.noisy))
        self.journal.step("training", stride, now, self._progress())
        self.show(Moment("training", self.work.share, math.nan))
        return now

    def _last_problem(self, result: Learned, noisy: Rows, trusted: Rows) -> tuple[CleaningProblem, Tensor]:
        """The problem whose lower level trains on noisy and trusted rows, each row counting the same, and its x."""
        problem = self.settings.problem(
            noisy, trusted, noise=result.problem.noise, radius=self._radius(result),
            trusted_in_lower=len(trusted) / self.settings.count(noisy), batch_size=None,
        )  # fmt: skip
        return problem, result.problem.noise_part(result.x)

    def _radius(self, result: Learned) -> Any:
        """As it was learned, or else as it was given."""
        return float(result.x["log_radius"].exp()) if isinstance(result.x, dict) else self.settings.radius

    def weights(self, winner: Learned, y: Model) -> Tensor:
        """How far each noisy row is believed: its weight, or the probability that its label is right."""
        problem, x, labels = winner.problem, winner.problem.noise_part(winner.x), self.noisy.labels
        noise = problem.noise
        if isinstance(noise, RowWeights):
            return noise.weights(x)
        matrix = noise.matrix(x)  # type: ignore[attr-defined]
        if isinstance(noise, ClassPairs):
            return matrix.diagonal()[labels]
        joint = problem.loss.probabilities(problem.scores(y, self.noisy.design)) * matrix.T[labels]
        return joint.gather(1, labels[:, None])[:, 0] / joint.sum(-1)


def trained(
    problem: CleaningProblem, x: Any, y: Any, *, steps: int, tol: float = 3e-3, curvature: float | None = None
) -> InnerSolution:
    """The lower level from y, by so many accelerated steps at most; the curvature found serves the next call."""
    if curvature is None:
        curvature = largest_curvature(problem.linearize(x, y), steps=10)
    return solve_to(problem, x, y, tol=tol, max_steps=steps, curvature=curvature)


def steps_from(state: Any, problem: CleaningProblem, solver: Solver) -> Iterator[Any]:
    """The states after this one, without end."""
    while True:
        state = solver.step(problem, state)
        yield state


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


def some(count: int, size: int, generator: torch.Generator) -> Tensor:
    """`size` of `count` row numbers, drawn without replacement, in order."""
    return torch.randperm(count, generator=generator)[:size].sort().values


def sample_size(classes: int) -> int:
    """From how many noisy rows a matrix of class pairs is learned."""
    return max(SMALLEST_SAMPLE, ROWS_PER_CLASS * classes)


def _without_address(value: Any) -> str:
    """`repr` of objects that have none of their own shows where in memory they are, which says nothing."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def name_of(noise: NoiseModel) -> str:
    """The name under which `HyperCleaner` knows a noise model."""
    names = {RowWeights: "rows", ClassPairs: "class-pairs", Transition: "transition"}
    if type(noise) not in names:
        raise InvalidInput(f"noise must be RowWeights(), ClassPairs() or Transition(), got {noise!r}")
    return names[type(noise)]
