"""f and g of hyper-cleaning at one point, with derivatives in closed form and on few columns of the data."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...problem import Linearization
from ...spaces import Space, Vector
from .design import FEW
from .row_mean import RowMean, on_columns

if TYPE_CHECKING:
    from .problem import CleaningProblem

VECTORS = Space()


class CleaningLinearization(Linearization):
    """f and g of a `CleaningProblem` at one point: a few products with the data, no graph."""

    problem: CleaningProblem

    def __init__(
        self, problem: CleaningProblem, x: Vector, y: Vector, batch: Any = None, *,
        keep: bool = True, scores: dict[str, Tensor] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(problem, x, y, batch)
        self._keep, self._scores = keep, scores or {}

    def _known(self, rows: str) -> dict[str, Any]:
        return {"keep": self._keep, "scores": self._scores.get(rows)}

    @cached_property
    def _noisy(self) -> RowMean:
        return self.problem.noisy_mean(self.x, self.y, self.batch, **self._known("noisy"))

    @cached_property
    def _trusted(self) -> RowMean:
        return self.problem.trusted_mean(self.y, **self._known("trusted"))

    @cached_property
    def _evidence(self) -> RowMean:
        """The noisy rows themselves, with what is already known of them, unless others bear witness."""
        if self.problem.witnesses is None:
            return self._noisy
        return self.problem.evidence_mean(self.x, self.y, **self._known("evidence"))

    @property
    def _means(self) -> dict[str, RowMean]:
        """The means that f and g are made of, by the rows they run over."""
        means = {"noisy": self._noisy, "trusted": self._trusted}
        return {**means, "evidence": self._evidence} if self.problem.witnesses is not None else means

    @property
    def carried(self) -> dict[str, Tensor] | None:
        """The scores A W' + 1 b' of all rows."""
        if self.problem.moving or self.batch is not None:
            return None
        scores = {rows: mean.scores() for rows, mean in self._means.items()}
        return None if any(s is None for s in scores.values()) else scores  # type: ignore[return-value]

    def carrying(self, carried: dict[str, Tensor]) -> CleaningLinearization:
        return CleaningLinearization(self.problem, self.x, self.y, scores=carried)

    @torch.no_grad()
    def step_to(self, x: Vector, y_hat: Any, weight: float) -> Linearization:
        """Scores are linear in the model, and those of a sparse y_hat need few columns of A."""
        new: Any = super().step_to(x, y_hat, weight)
        columns = few_columns(y_hat["weight"] != 0)
        if columns is not None:
            scores = {rows: mean.scores_towards(y_hat, columns, weight) for rows, mean in self._means.items()}
            if all(s is not None for s in scores.values()):
                return new.carrying(scores)
        return new

    @torch.no_grad()
    def restrict(self, *faces: Any) -> Linearization:
        supports = [face.support["weight"] if isinstance(face.support, dict) else None for face in faces]
        if any(support is None for support in supports):
            return self
        columns = few_columns(torch.stack(supports).any(0))  # type: ignore[arg-type]
        if columns is None:
            return self
        means = {rows: mean.on_columns(columns) for rows, mean in self._means.items()}
        return self if any(mean is None for mean in means.values()) else OnColumns(self, columns, means)

    @torch.no_grad()
    def _upper_value(self) -> Tensor:
        return self.problem.upper_mean(self._trusted, self._evidence)

    @torch.no_grad()
    def _upper_gradients(self) -> tuple[Vector, Vector]:
        evidence, in_y = self.problem.evidence, self._trusted.gradient_y()
        if not evidence:
            return VECTORS.zeros_like(self.x), in_y
        in_x = self._placed(self._evidence.gradient_x())
        return VECTORS.scaled(in_x, evidence), VECTORS.add(in_y, self._evidence.gradient_y(), evidence)

    @torch.no_grad()
    def _lower_value(self) -> Tensor:
        return self.problem.lower_mean(self._noisy, self._trusted, self.y)

    @torch.no_grad()
    def _lower_gradient_x(self) -> Vector:
        return self._placed(self._noisy.gradient_x())

    @torch.no_grad()
    def _lower_gradient_y(self) -> Vector:
        gradient, weight = self._noisy.gradient_y(), self.problem.trusted_in_lower
        if weight:
            gradient = VECTORS.add(gradient, self._trusted.gradient_y(), weight)
        return VECTORS.add(gradient, self.y, self._ridge_slopes)

    @torch.no_grad()
    def _lower_hvp(self, v: Any) -> Vector:
        product, weight = self._noisy.hvp(v), self.problem.trusted_in_lower
        if weight:
            product = VECTORS.add(product, self._trusted.hvp(v), weight)
        return VECTORS.add(product, v, self._ridge_slopes)

    @torch.no_grad()
    def _lower_cross(self, v: Any) -> Vector:
        return self._placed(self._noisy.cross(v))

    @property
    def _ridge_slopes(self) -> dict[str, float]:
        """d/dy of ridge |y|^2 is 2 ridge y."""
        return {name: 2.0 * ridge for name, ridge in self.problem.ridges.items()}

    def _placed(self, change: Tensor) -> Vector:
        """A derivative in the rows of the batch as one in x: other rows and the radius have none."""
        noise = self.problem.noise_part(self.x)
        if self.batch is not None and self.problem.noise.per_row:
            change = torch.zeros_like(noise).index_add_(0, self.batch, change)
        return (
            {"noise": change, "log_radius": torch.zeros_like(self.x["log_radius"])}
            if isinstance(self.x, dict)
            else change
        )


class OnColumns(CleaningLinearization):
    """The same for vectors whose weights are zero outside of a few columns: their products need only these of A.

    Weights outside of the columns are left out of what is returned.
    """

    def __init__(self, lin: CleaningLinearization, columns: Tensor, means: dict[str, Any]) -> None:
        super().__init__(lin.problem, lin.x, on_columns(lin.y, columns), lin.batch)  # type: ignore[arg-type]
        self._columns, self._shape = columns, lin.y["weight"].shape  # type: ignore[call-overload]
        vars(self).update({f"_{rows}": mean for rows, mean in means.items()})

    def _upper_gradients(self) -> tuple[Vector, Vector]:
        in_x, in_y = super()._upper_gradients()
        return in_x, self._everywhere(in_y)

    def _lower_gradient_y(self) -> Vector:
        return self._everywhere(super()._lower_gradient_y())

    def _lower_hvp(self, v: Any) -> Vector:
        return self._everywhere(super()._lower_hvp(on_columns(v, self._columns)))

    def _lower_cross(self, v: Any) -> Vector:
        return super()._lower_cross(on_columns(v, self._columns))

    def restrict(self, *faces: Any) -> Linearization:
        return self

    def _everywhere(self, y: Any) -> Vector:
        weight = y["weight"].new_zeros(self._shape)
        weight[:, self._columns] = y["weight"]
        return {**y, "weight": weight}


def few_columns(support: Tensor) -> Tensor | None:
    """The columns that some row of a mask (rows, d) has, in order; None when they are not few."""
    columns = support.any(0).nonzero()[:, 0]
    return columns if len(columns) <= FEW * support.shape[1] else None
