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
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import NonFiniteError
from ..run.engine import Run
from ..run.solution import Status
from .design import column_means
from .learning import (
    EFFORT,
    LastTraining,
    Learned,
    Learning,
    Rows,
    Settings,
    Start,
    simplest_of_the_best,
    split,
    trained,
)
from .losses import one_hot
from .noise import Certain
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
