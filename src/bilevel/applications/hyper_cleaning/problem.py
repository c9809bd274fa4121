"""Data hyper-cleaning as a bilevel problem with derivatives in closed form."""

from __future__ import annotations

import math
import operator
import threading
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ...errors import InvalidInput, InvalidType
from ...problem import Linearization, Problem
from ...sets.base import ConvexSet
from ...sets.flattened import Flattened
from ...sets.free_space import FreeSpace
from ...sets.product import ProductSet
from ...sets.simplex import L1Ball
from ...spaces import Vector
from .design import Design
from .fused import FusedStep, suits, written_out
from .linearization import CleaningLinearization
from .losses import Loss, loss_of
from .noise import Certain, NoiseModel, noise_of
from .row_mean import RowMean, scores_of


class CleaningProblem(Problem):
    """Which labels to believe, so that the model trained on them does best on the trusted rows?

        f(x, y) = mean over trusted rows of l_b(s)  +  evidence * mean over witness rows of phi_i(x, s_i)
        g(x, y) = mean over noisy rows of phi_i(x, s_i)  +  trusted_in_lower * mean over trusted rows of l_b(s)
        + ridge |weight|^2 + intercept_ridge |bias|^2

    with the scores s = weight a + bias of a row a, over the models whose weight lies in a convex set. What x is and
    how it enters phi is said by `noise`. With noise="rows", intercept=False this is the problem of the paper.

    The model is y = {"weight": (columns, d), "bias": (columns,)}, with one score column for two classes (class 1
    against class 0) and one per class otherwise; without an intercept there is no "bias".

    Parameters
    ----------
    design, labels
        The noisy rows: a matrix (n, d), as `Design.of` takes it, and labels (n,) from 0, 1, ..., classes - 1.
    trusted_design, trusted_labels
        The trusted rows, likewise.
    loss
        "logistic" (two classes), "softmax", "squared" or "smoothed hinge", or an object of `losses`; default
        logistic for two classes and softmax for more.
    noise
        "rows", "class-pairs" or "transition", or a model such as `RowWeights()`.
    radius
        Of the l1 ball that the weight lies in; "auto" makes it part of x: x is then {"noise": ..., "log_radius": ()}.
    ball
        "class": one ball for each class, so that each keeps its own budget of features, none can use up that of
        another and the radius means the same for any number of classes. "all": one ball for all classes together,
        which then share one budget.
    constraint
        Another convex set for "weight", instead of the ball: a set of vectors holds for each class, one of matrices
        for all classes together.
    ridge, intercept_ridge
        c of the paper, and its tiny counterpart for the bias, which keeps g strongly convex when all weights fade.
    intercept
        Whether the model has a bias; it lies outside of the set.
    classes
        How many classes there are; default one more than the largest label.
    trusted_in_lower
        How much the mean loss of the trusted rows counts in the lower level: above zero they also train.
    evidence
        How much the fit of noisy rows counts in the upper level: without it x is judged by the trusted rows alone.
        Only for a noise model with a likelihood (`Transition`) does that fit say which x is right.
    witnesses
        (design, labels): noisy rows for the evidence that take no part in training, so that f remains a validation
        loss, by which a radius can be chosen too. Default: the noisy rows themselves.
    batch_size
        Noisy rows per step, drawn with replacement; None for all. The trusted rows are always all used.
    fused
        Whether a solver may take its steps as `FusedStep` writes them out, where it can: the same up to rounding. Such
        a problem holds its rows by columns, so rows that are not (`np.asfortranarray`, `.T` of a contiguous tensor)
        are copied once.

    Examples
    --------
    >>> import bilevel
    >>> rows, labels = torch.tensor([[1.0], [2.0], [-1.0]]), torch.tensor([1, 0, 0])
    >>> problem = CleaningProblem(rows, labels, torch.tensor([[1.5], [-1.5]]), torch.tensor([1, 0]))
    >>> solution = bilevel.minimize(problem, problem.start(), steps=100)
    >>> int(solution.x.argmin())  # the row whose label misleads
    1
    """

    def __init__(
        self,
        design: Any,
        labels: Any,
        trusted_design: Any,
        trusted_labels: Any,
        *,
        loss: str | Loss | None = None,
        noise: str | NoiseModel = "rows",
        radius: float | Literal["auto"] = 1.0,
        ball: Literal["class", "all"] = "class",
        constraint: ConvexSet | None = None,
        ridge: float = 1e-3,
        intercept: bool = True,
        intercept_ridge: float = 1e-6,
        classes: int | None = None,
        trusted_in_lower: float = 0.0,
        evidence: float = 0.0,
        witnesses: tuple[Any, Any] | None = None,
        batch_size: int | None = None,
        fused: bool = True,
    ) -> None:
        self.design = Design.of(design)
        self.trusted_design = Design.of(trusted_design, dtype=self.design.dtype)
        self.labels = _labels("labels", labels, self.design)
        self.trusted_labels = _labels("trusted_labels", trusted_labels, self.trusted_design)
        self.classes = _class_count(classes, self.labels, self.trusted_labels)
        _check_designs(self.design, self.trusted_design)
        self.loss = loss_of(("logistic" if self.classes == 2 else "softmax") if loss is None else loss)
        self.noise = noise_of(noise)
        self.noise.check(self.loss)
        for name, value in (
            ("ridge", ridge),
            ("intercept_ridge", intercept_ridge),
            ("trusted_in_lower", trusted_in_lower),
            ("evidence", evidence),
        ):
            if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < math.inf:
                raise InvalidInput(f"{name} must be a number of at least 0, got {value!r}")
        self.ridges = {"weight": float(ridge), "bias": float(intercept_ridge)}
        self.trusted_in_lower, self.evidence = float(trusted_in_lower), float(evidence)
        self.witnesses = self._checked_witnesses(witnesses)
        self.batch_size = _batch_size(batch_size)
        self.fused = bool(fused)
        self._fused = threading.local()  # each thread has a step of its own, with its own working memory
        columns = self.loss.columns(self.classes)
        options: Any = {"dtype": self.design.dtype, "device": self.design.device}
        y0 = {"weight": torch.zeros(columns, self.design.shape[1], **options)}
        if intercept:
            y0["bias"] = torch.zeros(columns, **options)
        super().__init__(
            self._plain_upper,
            self._plain_lower,
            _constraint(radius, ball, constraint, intercept=intercept),
            y0=y0,  # type: ignore[arg-type]
            sampler=None if batch_size is None else self._draw,
        )
        if self.fused and written_out(self):
            self.design, self.trusted_design = self.design.by_columns(), self.trusted_design.by_columns()  # type: ignore[attr-defined]

    def start(self, *, radius: float = 1.0) -> Vector:
        """x before anything is known; `radius` is where radius="auto" starts."""
        noise = self.noise.start(self.labels, self.classes, self.design.dtype)
        if not self.moving:
            return noise
        if not 0 < radius < math.inf:
            raise InvalidInput(f"radius must be a positive number to start from, got {radius!r}")
        return {"noise": noise, "log_radius": noise.new_tensor(radius).log()}

    def scores(self, y: Any, rows: Any = None) -> Tensor:
        """The scores of the model y, shape (n, columns), for the noisy rows or for others (n, d)."""
        return scores_of(self.design if rows is None else Design.of(rows, dtype=self.design.dtype), y)

    def linearize(self, x: Vector, y: Vector, batch: Any = None) -> Linearization:
        return CleaningLinearization(self, x, y, batch)

    def fused_step(self, solver: Any) -> Any:
        if not self.fused:
            return None
        asked = (solver, self.design, self.trusted_design, self.labels, self.trusted_labels)
        known = getattr(self._fused, "asked", ())
        if not (known and all(map(operator.is_, asked, known))):
            self._fused.asked, self._fused.step = asked, self._written_out(solver) if suits(self, solver) else None
        return self._fused.step

    def _written_out(self, solver: Any) -> FusedStep:
        return FusedStep(self, solver)

    def __getstate__(self) -> dict[str, Any]:
        """Without the fused step, which copies make anew."""
        return {name: value for name, value in vars(self).items() if name != "_fused"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _fused=threading.local())

    def lower_grad(self, x: Vector, y: Vector, batch: Any = None) -> Vector:
        return CleaningLinearization(self, x, y, batch, keep=False).lower_grad_y

    def _draw(self, generator: torch.Generator) -> Tensor:
        """Row numbers of one batch, in order: rows of a file are then read from its beginning to its end."""
        drawn = torch.randint(len(self.labels), (self.batch_size or 0,), generator=generator)
        return drawn.sort().values.to(self.labels.device)

    def noise_part(self, x: Vector) -> Tensor:
        """What x says about the labels, without the radius."""
        return x["noise"] if isinstance(x, dict) else x

    def noisy_mean(self, x: Vector, y: Any, batch: Tensor | None = None, **known: Any) -> RowMean:
        """The mean of phi over the noisy rows, or over the rows of a batch, at one point; `known` as in `RowMean`."""
        design, labels, noise = self.design, self.labels, self.noise_part(x)
        if batch is not None:
            design, labels = design.rows(batch), labels[batch]
            noise = noise[batch] if self.noise.per_row else noise
        return RowMean(design, labels, self.loss, self.noise, noise, y, **known)

    def evidence_mean(self, x: Vector, y: Any, batch: Tensor | None = None, **known: Any) -> RowMean:
        """The mean of phi over the rows that bear witness in the upper level."""
        if self.witnesses is None:
            return self.noisy_mean(x, y, batch, **known)
        return RowMean(*self.witnesses, self.loss, self.noise, self.noise_part(x), y, **known)

    def _checked_witnesses(self, witnesses: Any) -> tuple[Design, Tensor] | None:
        if witnesses is None:
            return None
        if self.noise.per_row:
            raise InvalidInput(f"witnesses need a noise model that holds for all rows, got {self.noise!r}")
        design = Design.of(witnesses[0])
        _check_designs(self.design, design)
        return design, _labels("witnesses", witnesses[1], design)

    def trusted_mean(self, y: Any, **known: Any) -> RowMean:
        """The mean loss of the trusted rows at one model; `known` as in `RowMean`."""
        nothing = self.labels.new_zeros((), dtype=self.design.dtype)
        return RowMean(self.trusted_design, self.trusted_labels, self.loss, Certain(), nothing, y, **known)

    def _plain_upper(self, x: Vector, y: Vector, batch: Any = None) -> Tensor:
        """f as autograd can follow it."""
        return self.upper_mean(self.trusted_mean(y, keep=False), self.evidence_mean(x, y, batch, keep=False))

    def _plain_lower(self, x: Vector, y: Vector, batch: Any = None) -> Tensor:
        """g as autograd can follow it."""
        return self.lower_mean(self.noisy_mean(x, y, batch, keep=False), self.trusted_mean(y, keep=False), y)

    def upper_mean(self, trusted: RowMean, witnesses: RowMean) -> Tensor:
        """f from the means over the two kinds of rows."""
        return trusted.value() + self.evidence * witnesses.value() if self.evidence else trusted.value()

    def lower_mean(self, noisy: RowMean, trusted: RowMean, y: Any) -> Tensor:
        """g from the means over the two kinds of rows, and the model."""
        value = sum((self.ridges[name] * entry.square().sum() for name, entry in y.items()), start=noisy.value())
        return value + self.trusted_in_lower * trusted.value() if self.trusted_in_lower else value


def _constraint(radius: Any, ball: Any, weight_set: ConvexSet | None, *, intercept: bool) -> Any:
    """The set of the model, or for radius="auto" a function of x that gives it."""
    if ball not in ("class", "all"):
        raise InvalidInput(f'ball must be "class" or "all", got {ball!r}')

    def of(part: ConvexSet) -> ProductSet:
        return ProductSet({"weight": part, **({"bias": FreeSpace()} if intercept else {})})

    def of_radius(value: float | Tensor) -> ProductSet:
        return of(L1Ball(value) if ball == "class" else Flattened(L1Ball(value)))

    if weight_set is not None:
        if not isinstance(weight_set, ConvexSet):
            raise InvalidType(f"constraint must be a convex set of bilevel.sets for the weight, got {weight_set!r}")
        return of(weight_set)
    if radius == "auto":
        return lambda x: of_radius(x["log_radius"].exp())
    if isinstance(radius, bool) or not isinstance(radius, Real) or not 0 < float(radius) < math.inf:
        raise InvalidInput(f'radius must be a positive number or "auto", got {radius!r}')
    return of_radius(float(radius))


def _labels(name: str, labels: Any, design: Design) -> Tensor:
    """Labels as int64 on the device of their rows."""
    labels = labels if isinstance(labels, Tensor) else np.asarray(labels)
    whole = (not labels.is_floating_point()) if isinstance(labels, Tensor) else labels.dtype.kind in "iu"
    if not whole or labels.dtype == torch.bool:
        raise InvalidType(f"{name} must be whole numbers 0, 1, ..., got dtype {labels.dtype}: encode the classes first")
    labels = torch.as_tensor(labels)
    if labels.shape != (design.shape[0],):
        raise InvalidInput(f"{name} must have one entry per row, shape ({design.shape[0]},), got {tuple(labels.shape)}")
    if int(labels.min()) < 0:
        raise InvalidInput(f"{name} must be numbered from 0, got {int(labels.min())}")
    return labels.to(device=design.device, dtype=torch.int64)


def _class_count(classes: int | None, *labels: Tensor) -> int:
    largest = max(int(part.max()) for part in labels)
    count = largest + 1 if classes is None else classes
    if isinstance(count, bool) or not isinstance(count, int) or count < 2:
        raise InvalidInput(f"there must be at least 2 classes, got {count!r}: are all labels the same?")
    if largest >= count:
        raise InvalidInput(f"labels must be below classes={count}, got {largest}")
    return count


def _check_designs(noisy: Design, trusted: Design) -> None:
    if noisy.shape[1] != trusted.shape[1]:
        raise InvalidInput(
            f"noisy and trusted rows must have the same columns, got {noisy.shape[1]} and {trusted.shape[1]}"
        )
    if noisy.dtype != trusted.dtype or noisy.device != trusted.device:
        raise InvalidType(
            f"noisy and trusted rows must have the same dtype and device, got {noisy.dtype} on {noisy.device} and "
            f"{trusted.dtype} on {trusted.device}: use Design.of(rows, dtype=...)"
        )


def _batch_size(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise InvalidInput(f"batch_size must be an integer of at least 1, or None for all rows, got {value!r}")
    return int(value)
