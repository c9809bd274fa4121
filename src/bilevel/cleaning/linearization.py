"""The linearisation of a `CleaningProblem`, in closed form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..linearization import Linearization, lazy
from ..spaces import Vector, tree_map
from ._working_set import SMALL, Columns, used_columns
from .row_mean import RowMean

if TYPE_CHECKING:
    from .problem import CleaningProblem


class CleaningLinearization(Linearization):
    """f and g of a `CleaningProblem` at one point, by a few products with the data and without a graph."""

    problem: CleaningProblem
    y: Any

    def __init__(self, problem: CleaningProblem, x: Vector, y: Vector, batch: Any = None) -> None:
        super().__init__(problem, tree_map(Tensor.detach, x), tree_map(Tensor.detach, y), batch)
        self._upper, self._lower = problem.means(self.x, self.y, batch)

    def restrict(self, *faces: Any) -> Linearization:
        supports: list[Any] = [face.support["weight"] if isinstance(face.support, dict) else None for face in faces]
        if any(support is None for support in supports):
            return self
        index = used_columns(supports[0] if len(supports) == 1 else torch.stack(supports).any(0))
        columns = {mean: mean.columns(index) for _, mean in {*self._upper, *self._lower}}
        return self if None in columns.values() else FaceLinearization(self, columns)

    def _upper_value(self) -> Tensor:
        return self.problem.upper_total(self._upper)

    def _upper_gradients(self) -> tuple[Vector, Vector]:
        parts = [weight * mean.gradient_x() for weight, mean in self._upper[1:]]
        return self.like_x(*parts), _weighted([(weight, mean.gradient_y()) for weight, mean in self._upper])

    def _lower_value(self) -> Tensor:
        return self.problem.lower_total(self._lower, self.y)

    def _lower_gradient_x(self) -> Vector:
        return self.like_x(self._lower[0][1].gradient_x())

    def _lower_gradient_y(self) -> Vector:
        return self._with_ridge([(weight, mean.gradient_y()) for weight, mean in self._lower], self.y)

    @torch.no_grad()
    def _lower_hvp(self, v: Any) -> Any:
        return self._with_ridge([(weight, mean.hvp(v)) for weight, mean in self._lower], v)

    @torch.no_grad()
    def _lower_cross(self, v: Any) -> Vector:
        return self.like_x(self._lower[0][1].cross(v))

    def _with_ridge(self, parts: list[tuple[float, Any]], y: Any) -> Any:
        """A weighted sum, and the derivative 2 ridge y of ridge |y|^2."""
        ridges = self.problem.ridges
        return {name: entry.add(y[name], alpha=2.0 * ridges[name]) for name, entry in _weighted(parts).items()}

    def like_x(self, change: Tensor | None = None) -> Vector:
        """Extend a derivative in the rows of the batch to x; it is zero for other rows and for the radius."""
        noise = self.problem.noise_part(self.x)
        if change is None:
            change = torch.zeros_like(noise)
        elif self.batch is not None and self.problem.noise.per_row:
            change = torch.zeros_like(noise).index_add_(0, self.batch, change)
        if not isinstance(self.x, dict):
            return change
        return {"noise": change, "log_radius": torch.zeros_like(self.x["log_radius"])}


class FaceLinearization(CleaningLinearization):
    """The linearisation for vectors without weights outside some columns; its results have none there either.

    Parameters
    ----------
    lin
        The linearisation on the whole space.
    columns
        Copies of these columns for each of the means.
    """

    def __init__(self, lin: CleaningLinearization, columns: dict[RowMean, Any]) -> None:
        Linearization.__init__(self, lin.problem, lin.x, lin.y, lin.batch)
        self._columns: Columns = columns[lin._lower[0][1]]
        few = {mean: mean.on_columns(copies) for mean, copies in columns.items()}
        self._upper, self._lower = ([(weight, few[mean]) for weight, mean in part] for part in (lin._upper, lin._lower))

    @lazy
    def _ridge(self) -> float | Tensor:
        """The second derivative of the ridges in each column of a packed model, or in all of them."""
        ridges = {name: 2.0 * ridge for name, ridge in self.problem.ridges.items()}
        if "bias" not in self.y:
            return ridges["weight"]
        values = self._columns.values
        return pad(values.new_full((values.shape[0] - 1,), ridges["weight"]), (0, 1), value=ridges["bias"])

    @lazy
    def _gram(self) -> Tensor | None:
        """The second derivative of g in packed models as a matrix, if that is small."""
        k, columns = self.y["weight"].shape[0], self._columns.values.shape[0]
        if k * columns > SMALL:
            return None
        gram = _weighted([(weight, {"weight": mean.gram()}) for weight, mean in self._lower])["weight"]
        gram.diagonal().view(k, columns).add_(self._ridge)
        return gram

    def _upper_gradients(self) -> tuple[Vector, Vector]:
        in_x, in_y = super()._upper_gradients()
        return in_x, self._columns.unpack(in_y["weight"], self.y)  # type: ignore[call-overload]

    def _lower_gradient_y(self) -> Vector:
        packed = {"weight": self._columns.pack(self.y)}
        gradient = self._with_ridge([(weight, mean.gradient_y()) for weight, mean in self._lower], packed)
        return self._columns.unpack(gradient["weight"], self.y)

    def _lower_hvp(self, v: Any) -> Vector:
        V, gram = self._columns.pack(v), self._gram
        product = super()._lower_hvp({"weight": V})["weight"] if gram is None else (V.view(1, -1) @ gram).view_as(V)
        return self._columns.unpack(product, self.y)

    def _lower_cross(self, v: Any) -> Vector:
        return super()._lower_cross({"weight": self._columns.pack(v)})

    def _with_ridge(self, parts: list[tuple[float, Any]], y: Any) -> Any:
        return {"weight": _weighted(parts)["weight"] + self._ridge * y["weight"]}

    def restrict(self, *faces: Any) -> Linearization:
        return self


def _weighted(parts: list[tuple[float, Any]]) -> Any:
    """The sum of weight * model; the first weight is 1."""
    (_, total), *others = parts
    for weight, model in others:
        total = {name: entry.add(model[name], alpha=weight) for name, entry in total.items()}
    return total
