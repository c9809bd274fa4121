"""Data hyper-cleaning as a bilevel problem with derivatives in closed form."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from .._checks import check_count, check_number
from .._fingerprint import fingerprint
from ..errors import InvalidInputError, InvalidTypeError
from ..problem import Linearization, Problem
from ..ranks import Ranks
from ..sets.base import ConvexSet
from ..sets.free_space import FreeSpace
from ..sets.product import ProductSet
from ..sets.simplex import L1Ball
from ..sets.transformed import Flattened
from ..spaces import Vector
from ._working_set import used_columns
from .design import Design
from .linearization import CleaningLinearization
from .losses import Loss, loss_of
from .noise import Certain, NoiseModel, noise_of
from .row_mean import Means, RowLoss, scores_of


class CleaningProblem(Problem):
    """Hyper-cleaning as a bilevel problem: learn weights of labels so that the model does best on the trusted rows.

        f(x, y) = mean over trusted rows of l_b(s)  +  evidence_weight * mean over evidence rows of phi_i(x, s_i)
        g(x, y) = mean over noisy rows of phi_i(x, s_i)  +  trusted_in_lower * mean over trusted rows of l_b(s)
        + ridge |weight|^2 + intercept_ridge |bias|^2

    with the scores s = weight a + bias of a row a, over the models whose weight lies in a convex set. `noise` defines x
    and phi. With noise="rows", intercept=False this is the problem of the paper.

    The model is y = {"weight": (columns, d), "bias": (columns,)}, with one score column for two classes (class 1
    against class 0) and one per class otherwise; without an intercept there is no "bias".

    Parameters
    ----------
    design, labels
        The noisy rows: a matrix (n, d) that `Design.of` accepts, and labels (n,) from 0, 1, ..., classes - 1.
    trusted_design, trusted_labels
        The trusted rows, likewise.
    loss
        "logistic" (two classes), "softmax", "squared" or "smoothed hinge", or an object of `losses`; "auto" is
        logistic for two classes and softmax for more.
    noise
        "rows", "class-pairs" or "transition", or a model such as `RowWeights()`.
    radius
        The radius of the l1 ball of the weight; "auto" makes it a part of x, which is then {"noise": ...,
        "log_radius": ()}.
    ball
        "class": one ball for each class, so that the radius has the same meaning for any number of classes. "all": one
        ball for all classes together.
    constraint
        Another convex set for "weight", instead of the ball. A set of vectors applies to each class, a set of matrices
        to all classes together.
    ridge, intercept_ridge
        c of the paper, and a tiny counterpart for the bias, which keeps g strongly convex when all weights vanish.
    intercept
        Whether the model has a bias; the set does not constrain it.
    classes
        The number of classes; default one more than the largest label.
    trusted_in_lower
        The weight of the mean loss of the trusted rows in the lower level; if positive, they are training rows too.
    evidence_weight
        The weight of the fit of noisy rows in the upper level; with 0, x is judged by the trusted rows only. Use it
        with a noise model that has a likelihood (`Transition`).
    evidence_rows
        (design, labels): noisy rows for the upper level that are not used for training, so that f remains a validation
        loss, which can also determine a radius. Default: the noisy rows themselves.
    batch_size
        The number of noisy rows per step, drawn with replacement; None for all. All trusted rows are always used.
    ranks
        The processes among which the noisy rows (and evidence rows) are divided, from `bilevel.distributed.connect`:
        design, labels and, if each row has a weight, x are those of this rank. Every rank holds all trusted rows and
        all of y. A gradient in y or a Hessian product needs one sum over ranks of the size of y or of the face;
        derivatives in weights of rows stay on their rank. Not with `batch_size`.

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
        loss: str | Loss = "auto",
        noise: str | NoiseModel = "rows",
        radius: float | Literal["auto"] = 1.0,
        ball: Literal["class", "all"] = "class",
        constraint: ConvexSet | None = None,
        ridge: float = 1e-3,
        intercept: bool = True,
        intercept_ridge: float = 1e-6,
        classes: int | None = None,
        trusted_in_lower: float = 0.0,
        evidence_weight: float = 0.0,
        evidence_rows: tuple[Any, Any] | None = None,
        batch_size: int | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        ranks = Ranks() if ranks is None else ranks
        with ranks.guard("making its part of the problem"):
            self.design: Design = Design.of(design)
            self.trusted_design: Design = Design.of(trusted_design, dtype=self.design.dtype)
            self.labels: Tensor = _labels("labels", labels, self.design)
            self.trusted_labels: Tensor = _labels("trusted_labels", trusted_labels, self.trusted_design)
            _check_designs(self.design, self.trusted_design)
            if ranks.size > 1 and batch_size is not None:
                raise InvalidInputError(
                    f"batch_size={batch_size!r}: every step uses all rows that are divided among ranks; omit it"
                )
            self.classes: int = _class_count(classes, ranks, self.labels, self.trusted_labels)
            self.loss: Loss = loss_of(loss, self.classes)
            self.noise: NoiseModel = noise_of(noise)
            self.noise.check(self.loss)
            self.ridges: dict[str, float] = {
                "weight": float(check_number("ridge", ridge, closed="left")),
                "bias": float(check_number("intercept_ridge", intercept_ridge, closed="left")),
            }
            self.trusted_in_lower: float = float(check_number("trusted_in_lower", trusted_in_lower, closed="left"))
            self.evidence_weight: float = float(check_number("evidence_weight", evidence_weight, closed="left"))
            if batch_size is not None:
                batch_size = check_count("batch_size", batch_size, remedy="; None takes all rows")
            self.batch_size = batch_size
            self._rows = RowLoss(self.design, self.labels, self.loss, self.noise, ranks)
            self._trusted_rows = RowLoss(self.trusted_design, self.trusted_labels, self.loss, Certain())
            self._evidence_rows = self._rows_of_evidence(evidence_rows, ranks)
            super().__init__(
                self._upper_by_autograd,
                self._lower_by_autograd,
                _constraint(radius, ball, constraint, intercept=intercept),
                y0=self._zero_model(intercept),
                sampler=None if batch_size is None else self._draw,
                ranks=ranks,
                divided=(("x.noise",) if radius == "auto" else ("x",)) if self.noise.per_row else (),
            )
        if ranks.size > 1:
            ranks.agree(self._facts(), "give every rank the same trusted rows, columns and settings")

    def _zero_model(self, intercept: bool) -> Any:
        columns, (_, d) = self.loss.columns(self.classes), self.design.shape
        zeros = torch.zeros(columns, d, dtype=self.design.dtype, device=self.design.device)
        return {"weight": zeros, "bias": zeros[:, 0].clone()} if intercept else {"weight": zeros}

    def _facts(self) -> dict[str, Any]:
        """The facts that must be the same on every rank, because every rank computes y and all decisions."""
        constraint = self.constraint_at(self.start())
        return {
            "the number of columns": self.design.shape[1],
            "the dtype": str(self.design.dtype),
            "the kind of rows": type(self.design).__name__,
            "classes": self.classes,
            "loss": repr(self.loss),
            "noise": repr(self.noise),
            "the set of the model": repr(constraint),
            "the parameters of the set": fingerprint(constraint),
            "the ridges": self.ridges,
            "the entries of the model": {name: list(entry.shape) for name, entry in self.y0.items()},  # type: ignore[union-attr]
            "trusted_in_lower": self.trusted_in_lower,
            "evidence_weight": self.evidence_weight,
            "the trusted rows (by their fingerprint)": fingerprint(self.trusted_design, self.trusted_labels),
        }

    def start(self, *, radius: float = 1.0) -> Vector:
        """The starting value of x; `radius` is the start for radius="auto"."""
        noise = self.noise.start(self.labels, self.classes, self.design.dtype)
        if not self.moving:
            return noise
        if not 0 < radius < math.inf:
            raise InvalidInputError(f"radius must be a positive number to start from, got {radius!r}")
        return {"noise": noise, "log_radius": noise.new_tensor(radius).log()}

    def scores(self, y: Any, rows: Any = None) -> Tensor:
        """The scores of the model y, shape (n, columns), for the noisy rows or for others (n, d)."""
        return scores_of(self.design if rows is None else Design.of(rows, dtype=self.design.dtype), y)

    def probabilities(self, y: Any, rows: Any = None) -> Tensor:
        """The class probabilities of the model y, shape (n, classes), for the noisy rows or for others."""
        return self.loss.probabilities(self.scores(y, rows))

    def linearize(self, x: Vector, y: Vector, batch: Any = None) -> Linearization:
        return CleaningLinearization(self, x, y, batch)

    def _draw(self, generator: torch.Generator) -> Tensor:
        """Row numbers of one batch, sorted, so that rows of a file are read in order."""
        drawn = torch.randint(len(self.labels), (self.batch_size or 0,), generator=generator)
        return drawn.sort().values.to(self.labels.device)

    def noise_part(self, x: Vector) -> Tensor:
        """The part of x that describes the labels, without the radius."""
        return x["noise"] if isinstance(x, dict) else x

    def means(self, x: Vector, y: Any, batch: Tensor | None = None) -> tuple[Means, Means]:
        """The means over rows in f and g at one point, with their weights; the first has the weight 1.

        f: the trusted rows, then the evidence, the only part that depends on x. g: the noisy rows (or a batch), the
        only part that depends on x, then the trusted rows; the ridges are added to these.
        """
        weight = y["weight"]
        used, noise = used_columns(weight.detach()), self.noise_part(x)
        noisy = self._rows.at(noise, y, used, batch, self._read)
        trusted = self._trusted_rows.at(weight.new_zeros(()), y, used, None, self._read)
        upper, lower = [(1.0, trusted)], [(1.0, noisy)]
        if self.evidence_weight:
            rows = self._evidence_rows
            upper.append((self.evidence_weight, rows.at(noise, y, used, None, self._read) if rows else noisy))
        if self.trusted_in_lower:
            lower.append((self.trusted_in_lower, trusted))
        return upper, lower

    def _read(self, entries: int) -> None:
        """Count the entries of A that were read, in units of the noisy rows."""
        self.costs.data_passes += entries / (self.design.shape[0] * self.design.shape[1])

    def _rows_of_evidence(self, rows: tuple[Any, Any] | None, ranks: Ranks) -> RowLoss | None:
        if rows is None:
            return None
        if self.noise.per_row:
            raise InvalidInputError(f"evidence_rows need a noise model without weights of rows, got {self.noise!r}")
        design = Design.of(rows[0])
        _check_designs(self.design, design)
        return RowLoss(design, _labels("evidence_rows", rows[1], design), self.loss, self.noise, ranks)

    def _upper_by_autograd(self, x: Vector, y: Vector, batch: Any = None) -> Tensor:
        return self.upper_total(self.means(x, y, batch)[0])

    def _lower_by_autograd(self, x: Vector, y: Vector, batch: Any = None) -> Tensor:
        return self.lower_total(self.means(x, y, batch)[1], y)

    def upper_total(self, upper: Means) -> Tensor:
        """f from its means."""
        (_, first), *others = upper
        return _add(first.value(), others)

    def lower_total(self, lower: Means, y: Any) -> Tensor:
        """g from its means, and the model."""
        (_, first), *others = lower
        value = sum((self.ridges[name] * entry.square().sum() for name, entry in y.items()), start=first.value())
        return _add(value, others)


def _add(value: Tensor, means: Means) -> Tensor:
    return sum((weight * mean.value() for weight, mean in means), start=value)


def _constraint(radius: Any, ball: Any, weight_set: ConvexSet | None, *, intercept: bool) -> Any:
    """The set of the model, or for radius="auto" a function of x that returns it."""
    if ball not in ("class", "all"):
        raise InvalidInputError(f'ball must be "class" or "all", got {ball!r}')

    def of(part: ConvexSet) -> ProductSet:
        return ProductSet({"weight": part, **({"bias": FreeSpace()} if intercept else {})})

    def of_radius(value: float | Tensor) -> ProductSet:
        return of(L1Ball(value) if ball == "class" else Flattened(L1Ball(value)))

    if weight_set is not None:
        if not isinstance(weight_set, ConvexSet):
            raise InvalidTypeError(
                f"constraint must be a convex set of bilevel.sets for the weight, got {weight_set!r}"
            )
        return of(weight_set)
    radius = check_number("radius", radius, or_auto=True)
    return (lambda x: of_radius(x["log_radius"].exp())) if radius == "auto" else of_radius(float(radius))


def _labels(name: str, labels: Any, design: Design) -> Tensor:
    """Labels as int64 on the device of their rows."""
    labels = labels if isinstance(labels, Tensor) else np.array(labels)
    whole = (not labels.is_floating_point()) if isinstance(labels, Tensor) else labels.dtype.kind in "iu"
    if not whole or labels.dtype == torch.bool:
        raise InvalidTypeError(
            f"{name} must be whole numbers 0, 1, ..., got dtype {labels.dtype}: encode the classes first"
        )
    labels = torch.as_tensor(labels)
    if labels.shape != (design.shape[0],):
        raise InvalidInputError(
            f"{name} must have one entry per row, shape ({design.shape[0]},), got {tuple(labels.shape)}"
        )
    if int(labels.min()) < 0:
        raise InvalidInputError(f"{name} must be numbered from 0, got {int(labels.min())}")
    return labels.to(device=design.device, dtype=torch.int64)


def _class_count(classes: int | None, ranks: Ranks, *labels: Tensor) -> int:
    largest = max(ranks.gather(max(int(part.max()) for part in labels)))
    count = largest + 1 if classes is None else classes
    if isinstance(count, bool) or not isinstance(count, int) or count < 2:
        raise InvalidInputError(f"there must be at least 2 classes, got {count!r}: are all labels the same?")
    if largest >= count:
        raise InvalidInputError(f"labels must be below classes={count}, got {largest}")
    return count


def _check_designs(noisy: Design, trusted: Design) -> None:
    if noisy.shape[1] != trusted.shape[1]:
        raise InvalidInputError(
            f"noisy and trusted rows must have the same columns, got {noisy.shape[1]} and {trusted.shape[1]}"
        )
    if noisy.dtype != trusted.dtype or noisy.device != trusted.device:
        raise InvalidTypeError(
            f"noisy and trusted rows must have the same dtype and device, got {noisy.dtype} on {noisy.device} and "
            f"{trusted.dtype} on {trusted.device}: use Design.of(rows, dtype=...)"
        )
