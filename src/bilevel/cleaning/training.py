"""From noisy and trusted rows to a cleaned model: learn x on trusted rows, then train on all rows.

1. The trusted rows are split: two thirds are the validation rows of the upper level, one third is held out.
2. Each candidate noise model learns its x, and with radius="auto" the radius of the ball, by gradient. One weight per
   row can fit any validation rows, so that for it the loss on the held-out rows decides when to stop. With x fixed, a
   model is then trained on the noisy rows and the validation rows, and the held-out rows decide between the noise
   models (`simplest_of_the_best`, by Brier scores).
3. With the x of the winner, the model is trained on all noisy rows and all trusted rows.

Each part is a stage of a `Run`: "start", "learning NAME" and "trial NAME" for each noise model, "all rows", "training".

Noise models are compared on a sample of the noisy rows (`SMALLEST_SAMPLE`). Every rank has this sample and the trusted
rows, so that all ranks compute the same numbers. Only "all rows" and the last training divide the rows. Models with one
matrix for all rows learn it from the sample, of which a third is not used for training but is evidence in the upper
level. The upper level thus remains a validation loss, which can also determine a radius.
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
"""The number of noisy rows per class from which a matrix of class pairs is learned, and the minimal total number."""
TRIAL_PASSES, TRAINING_PASSES = 35, 35
"""The approximate numbers of passes over the rows in the trial of a candidate and in the last training."""
PROBLEM_SETTINGS = ("radius", "constraint", "batch_size", "loss", "ridge", "intercept", "classes")
"""Settings of a cleaner that are passed to its problems."""
POOR = 10
"""The user is warned if the final residual exceeds this multiple of the wanted one."""
REMEDY = "scale the columns, for example with sklearn.preprocessing.StandardScaler"
WIDE, SMALLEST = 1e4, 1e-3
"""The radius of a ball that constrains no model, and the smallest starting radius."""


@dataclass(frozen=True)
class CleaningFit:
    """The result of training; `model` acts on the original columns."""

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
    """The whole training; Ctrl-C ends learning early. Ranks have different noisy rows and the same trusted ones."""

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
        """A sample of the noisy rows of all ranks, on every rank, and whether there are further rows."""
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
        """The cleaned model and the learned noise model."""
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
        """The bilevel problem of these rows, which are divided among ranks if they are all noisy rows."""
        own = {name: getattr(self.settings, name) for name in PROBLEM_SETTINGS}
        if self.divided and noisy is self.noisy:
            own["ranks"] = self.ranks
        return CleaningProblem(noisy.design, noisy.labels, trusted.design, trusted.labels, **{**own, **options})

    # --- learning x ---------------------------------------------------------------------------------------------------

    def _learn(self) -> tuple[Learning, dict[str, float]]:
        """The best noise model on the held-out trusted rows, and the score of each."""
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
            raise KeyboardInterrupt("before there was a first result")
        best = simplest_of_the_best(scores)
        self.ranks.agree({"the noise model": best}, "ranks on machines of one kind compute the same numbers")
        winner = learned[best]
        if winner.problem.noise.per_row and winner.rows is not self.noisy:
            winner = Learning(self, "all rows", winner.problem.noise, self.noisy)  # a weight for every row
            winner.do()
        run.expect("all rows", 0.0)
        if not (math.isfinite(winner.learned.loss) or run.interrupted):
            raise NonFiniteError(f"training diverged (noise={best!r}): {REMEDY}, or set a larger ridge")
        return winner, {name: float(score.mean()) for name, score in scores.items()}

    def _expect_work(self, names: Any) -> None:
        """The approximate number of passes over rows of each stage; a gradient or a Hessian product is one pass."""
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
        poor = f"its columns are so small that the ridge limits its coefficients to a size of {size:.1g}"
        radius = self._first_radius(max(size / 2, SMALLEST))
        return Start(model, radius, poor if size < SMALLEST else "")

    def _first_radius(self, radius: float) -> float:
        """Half the norm of an unconstrained model of the validation rows, from which the radius is learned.

        With many columns that norm is too large; it is then divided by four as long as the held-out score improves.
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
        """The problem in which all rows are these trusted ones."""
        return self.problem(rows, rows, noise=Certain(), radius=radius, batch_size=None)

    def _trial(self, stage: Learning) -> Tensor:
        """The Brier score of each held-out trusted row, by a model trained with this x and on the validation rows.

        Unlike a log loss, the score is not dominated by a few confident errors.
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
        """(1 - p)^2 + the squares of the other probabilities, for each held-out trusted row."""
        chances = problem.probabilities(y, self.held_out.design)
        return (chances - one_hot(self.held_out.labels, problem.classes, chances.new_ones(()))).square().sum(-1)

    # --- the model ----------------------------------------------------------------------------------------------------

    def _finish(self, winner: Learning) -> tuple[Model, str]:
        """Train with this x on all noisy rows and on all trusted rows; also return why the model is poor, if it is."""
        problem, x = self._last_problem(winner, self.noisy, self.trusted)
        stage = LastTraining(problem, x, winner.learned.y, self.run)
        outcome = self.run.do(stage, stage.limits)
        residual, poor = outcome.result.residual, self.start.poor
        if residual > POOR * stage.tol and outcome.status is not Status.INTERRUPTED:
            poor = f"it ended at a residual of {residual:.2g}, above the tolerance of {stage.tol:.2g}"
        return outcome.result.y, poor

    def _last_problem(self, stage: Learning, noisy: Rows, trusted: Rows) -> tuple[CleaningProblem, Tensor]:
        """The problem whose lower level trains on noisy and trusted rows with equal weights of rows, and its x."""
        count = self.total if noisy is self.noisy else len(noisy)
        problem = self.problem(
            noisy, trusted, noise=stage.problem.noise, radius=self._radius(stage.learned),
            trusted_in_lower=len(trusted) / count, batch_size=None,
        )  # fmt: skip
        return problem, stage.noise_part

    def _radius(self, learned: Learned) -> Any:
        """The learned radius, or else the given one."""
        return float(learned.x["log_radius"].exp()) if isinstance(learned.x, dict) else self.settings.radius
