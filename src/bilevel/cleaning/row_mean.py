"""The mean of the row losses of a linear model, with its derivatives: over rows, blocks of rows and ranks.

    mean(x, y) = (1/n) sum_i phi_i(x, s_i),        s = A W' + 1 b',        y = {"weight": W, "bias": b}

A gradient in y is A' R / n with R the gradients in the scores; a Hessian product is the same with R the curvatures
times the scores of a vector. Each takes one pass over the rows of this rank and one sum over ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..linearization import lazy
from ..ranks import Ranks
from ..sets.base import tracked
from ._working_set import Columns, WorkingSet, gram, used_columns
from .design import Design
from .losses import Loss
from .noise import NoiseModel, RowTerms

Model = dict[str, Tensor]
"""weight (columns, d) and, with an intercept, bias (columns,)."""

KEPT_BYTES = 1 << 26
"""Up to this size, values of rows at a point (four numbers per score) are cached; beyond, they are recomputed."""


def ignore(count: int) -> None:
    """Do not count the entries of A that are read."""


class RowLoss:
    """The mean of phi_i(x, s_i) over some rows, as a function of x and the model.

    Parameters
    ----------
    design, labels
        A of shape (n, d), and the labels (n,) of int64.
    loss, noise
        The definition of phi_i.
    ranks
        The processes that divide the rows; a single process for rows that every rank has.
    """

    def __init__(
        self, design: Design, labels: Tensor, loss: Loss, noise: NoiseModel, ranks: Ranks | None = None
    ) -> None:
        self.design = design
        self.labels = labels
        self.loss = loss
        self.noise = noise
        self.ranks: Ranks = Ranks() if ranks is None else ranks
        counts = self.ranks.gather(design.shape[0])
        self.total: int = sum(counts)
        self.largest: int = max(counts)
        self.working_set: WorkingSet = WorkingSet(design, self.largest)

    def at(
        self, x: Tensor, y: Model, used: Tensor, batch: Tensor | None = None, read: Callable[[int], None] = ignore
    ) -> RowMean:
        """The mean at one point, over all rows or a batch of them.

        `used` are the columns in which y has weights, and `read` is called with the number of entries of A that are
        read.
        """
        if batch is None:
            return RowMean(self, x, y, used, read)
        rows = RowLoss(self.design.rows(batch), self.labels[batch], self.loss, self.noise)
        return RowMean(rows, x[batch] if self.noise.per_row else x, y, used, read)


class _Part:
    """Some neighbouring rows at one point."""

    def __init__(self, whole: RowLoss, rows: slice, design: Design, x: Tensor, scores: Tensor) -> None:
        self.rows = rows
        self.design = design
        self._noise = whole.noise
        labels = whole.labels
        if design is not whole.design:
            x, labels = x[rows] if whole.noise.per_row else x, labels[rows]
        self._point = whole.loss, x, scores, labels

    def value(self) -> Tensor:
        return self._noise.value(*self._point)

    @lazy
    def terms(self) -> RowTerms:
        return self._noise.terms(*self._point)

    def on_columns(self, columns: Columns) -> _Part:
        """The same rows as a function of packed models."""
        return _changed(self, design=columns.rows(self.rows), terms=self.terms)


class RowMean:
    """(1/n) sum_i phi_i(x, s_i) at one x and one model y, over the rows of all ranks.

    If x has one entry per row, x and derivatives in x are those of the rows of this rank.
    """

    def __init__(self, rows: RowLoss, x: Tensor, y: Model, used: Tensor, read: Callable[[int], None]) -> None:
        self._rows, self._x, self._y, self._used, self._read = rows, x, y, used, read
        size = rows.largest * y["weight"].shape[0] * rows.design.dtype.itemsize
        self._keep = 4 * size <= KEPT_BYTES
        self._kept: list[_Part] = []
        self._working_set: WorkingSet | None = rows.working_set

    def value(self) -> Tensor:
        """The mean itself."""
        return self._averaged([part.value().sum() for part in self._parts()])

    def gradient_y(self) -> Model:
        """Its gradient in the model: A' R / n and 1' R / n with R the gradients in the scores."""
        return self._pulled_back((part.design, part.terms.residual) for part in self._parts())

    def hvp(self, v: Model) -> Model:
        """Its second derivative in the model times v: the same with R the curvatures times the scores of v."""
        return self._pulled_back((part.design, part.terms.curvature(scores)) for part, scores in self._scored(v))

    def gradient_x(self) -> Tensor:
        """Its gradient in x."""
        return self._collected([part.terms.gradient_x() for part in self._parts()])

    def cross(self, v: Model) -> Tensor:
        """Its mixed second derivative times v, of the shape of x."""
        return self._collected([part.terms.cross(scores) for part, scores in self._scored(v)])

    def columns(self, index: Tensor) -> Columns | None:
        """Copies of the columns `index`; None if working on them is not cheaper."""
        return self._columns("face", index) if self._keep else None

    def on_columns(self, columns: Columns) -> RowMean:
        """The same mean as a function of models that are packed for these columns."""
        parts = [part.on_columns(columns) for part in self._parts()]
        return _changed(self, _kept=parts, _y={"weight": self._y["weight"]}, _working_set=None)

    def gram(self) -> Tensor:
        """Its second derivative as a matrix (k s, k s), for a mean `on_columns`."""
        k = self._y["weight"].shape[0]
        for part in self._kept:
            self._read(k * part.design.shape[0] * part.design.shape[1])
        return self._averaged([gram(part.design.array.T, part.terms, k) for part in self._kept])  # type: ignore[attr-defined]

    def _averaged(self, parts: list[Tensor]) -> Tensor:
        """The mean over all rows, from sums over the rows of this rank."""
        total = parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)
        if total.requires_grad and self._rows.ranks.size > 1:
            raise InvalidInputError(
                "autograd does not follow sums over ranks: use problem.linearize(x, y) for values and derivatives"
            )
        return self._rows.ranks.sum(total) / self._rows.total

    def _collected(self, parts: list[Tensor]) -> Tensor:
        """Derivatives in x from blocks of rows: put side by side, or added up."""
        if self._rows.noise.per_row:
            return (parts[0] if len(parts) == 1 else torch.cat(parts)) / self._rows.total
        return self._averaged(parts)

    def _columns(self, use: str, index: Tensor) -> Columns | None:
        """The columns in use; all of them if y needs a graph, so that no derivative is lost."""
        if self._working_set is None or tracked(self._y["weight"]):
            return None
        return self._working_set.columns(use, index, intercept="bias" in self._y, read=self._read)

    def _parts(self) -> Iterator[_Part]:
        """Blocks of rows; each is used for its scores and, while it is in the cache, for the following product."""
        if self._kept:
            yield from self._kept
            return
        rows, columns, found = self._rows, self._columns("model", self._used), []
        whole = slice(0, rows.design.shape[0])
        for some, design in rows.design.blocks() if columns is None else [(whole, rows.design)]:
            scores = self._scores(design, self._y) if columns is None else self._few_scores(columns, self._y)
            found.append(_Part(rows, some, design, self._x, scores))
            yield found[-1]
            if not self._keep:
                found.clear()
        self._kept = found

    def _scored(self, v: Model) -> Iterator[tuple[_Part, Tensor]]:
        """Blocks of rows with their scores by another model."""
        columns = None if self._working_set is None else self._columns("face", used_columns(v["weight"]))
        scores = None if columns is None else self._few_scores(columns, v)
        for part in self._parts():
            yield part, self._scores(part.design, v) if scores is None else scores[part.rows]

    def _scores(self, design: Design, y: Model) -> Tensor:
        self._read(design.shape[0] * design.shape[1])
        return scores_of(design, y)

    def _few_scores(self, columns: Columns, y: Model) -> Tensor:
        self._read(columns.values.numel())
        return (columns.pack(y) @ columns.values).T

    def _pulled_back(self, parts: Iterator[tuple[Design, Tensor]]) -> Model:
        """From one vector per row in the space of scores to the space of models: A' R / n and 1' R / n."""
        total, intercept = None, "bias" in self._y
        for design, residual in parts:
            self._read(design.shape[0] * design.shape[1])
            pulled = design.rmatmul(residual).T
            if intercept:
                pulled = torch.cat([pulled, residual.sum(0)[:, None]], 1)
            total = pulled if total is None else total.add_(pulled)
        mean = self._averaged([total])  # type: ignore[list-item]  (there are rows)
        return {"weight": mean[:, :-1].contiguous(), "bias": mean[:, -1].clone()} if intercept else {"weight": mean}


Means = list[tuple[float, RowMean]]
"""Means with their weights."""


def _changed(value: Any, **changes: Any) -> Any:
    """A copy with other attributes; `copy.copy` takes several times as long."""
    new = object.__new__(type(value))
    vars(new).update(vars(value), **changes)
    return new


def scores_of(design: Design, y: Model) -> Tensor:
    """A W' + 1 b', shape (n, columns)."""
    scores = design.matmul(y["weight"].T)
    return scores + y["bias"] if "bias" in y else scores
