"""The mean of the row losses of a linear model at one point, with its derivatives: one walk over the data each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .design import COPIED_BYTES, Design
from .losses import LinearMap, Loss
from .noise import NoiseModel

Model = dict[str, Tensor]
"""weight (columns, d) and, with an intercept, bias (columns,)."""


KEPT_BYTES = 1 << 26
"""Scores up to this size are kept at a point, and curvatures of half as many scores; larger ones are made again."""


@dataclass(frozen=True)
class Share:
    """What the rows at hand are of all rows, where these are divided among processes.

    Parameters
    ----------
    count
        How many rows there are in all.
    largest
        How many of them the largest part has: what is worth its memory is decided alike for all parts.
    total
        The sum of a tensor over the parts.
    """

    count: int
    largest: int
    total: Callable[[Tensor], Tensor] = lambda part: part


class _Block(NamedTuple):
    """Some neighbouring rows."""

    index: int
    design: Design
    labels: Tensor
    x: Tensor  # of these rows, or of all
    scores: Tensor


class RowMean:
    """(1/n) sum_i phi_i(x, s_i) with the scores s = A W' + 1 b', at one x and one model y = (W, b).

    Scores and curvatures are computed when first asked for and then kept, while that takes little memory.

    Parameters
    ----------
    design, labels
        A of shape (n, d), and the labels (n,) of int64.
    loss, noise
        What phi_i is.
    x
        The upper variable; where it has one entry per row, the entries of these rows.
    y
        The model.
    keep
        False when only one question will be asked: then nothing is kept.
    scores
        s, where it is known.
    share
        Where these are a part of the rows: the mean is that of all, x where it has entries per row that of the part.
    """

    def __init__(
        self, design: Design, labels: Tensor, loss: Loss, noise: NoiseModel, x: Tensor, y: Model, *,
        keep: bool = True, scores: Tensor | None = None, share: Share | None = None,
    ) -> None:  # fmt: skip
        self._share = share or Share(design.shape[0], design.shape[0])
        self._design, self._labels, self._loss, self._noise, self._x, self._y = design, labels, loss, noise, x, y
        self._scores = scores
        self._curvatures: dict[int, LinearMap] = {}
        size = self._share.largest * y["weight"].shape[0] * design.dtype.itemsize
        self._keep_scores, self._keep_curvatures = keep and size <= KEPT_BYTES, keep and 2 * size <= KEPT_BYTES

    def value(self) -> Tensor:
        """The mean itself."""
        parts = [self._noise.value(self._loss, b.x, b.scores, b.labels).sum() for b in self._blocks()]
        return self._share.total(torch.stack(parts).sum()) / self._share.count

    def gradient_y(self) -> Model:
        """Its gradient in the model: A' R / n and 1' R / n with R the gradients in the scores."""
        return self._pulled_back(
            (b.design, self._noise.gradient(self._loss, b.x, b.scores, b.labels)) for b in self._blocks()
        )

    def hvp(self, v: Model) -> Model:
        """Its second derivative in the model times v: the same with R the curvatures times the scores of v."""
        return self._pulled_back((b.design, self._curvature(b)(scores_of(b.design, v))) for b in self._blocks())

    def gradient_x(self) -> Tensor:
        """Its gradient in x."""
        return self._collected(self._noise.gradient_x(self._loss, b.x, b.scores, b.labels) for b in self._blocks())

    def cross(self, v: Model) -> Tensor:
        """Its mixed second derivative times v, of the shape of x."""
        return self._collected(
            self._noise.cross(self._loss, b.x, b.scores, b.labels, scores_of(b.design, v)) for b in self._blocks()
        )

    def scores(self) -> Tensor | None:
        """s of shape (n, columns), once and for all; None where it takes too much memory to keep."""
        if self._scores is None and self._keep_scores:
            self._scores = scores_of(self._design, self._y)
        return self._scores

    def scores_towards(self, y_hat: Model, columns: Tensor, weight: float) -> Tensor | None:
        """s at (1 - weight) y + weight y_hat, where y_hat has no weight outside of these columns."""
        few, scores = self._columns(columns), self.scores()
        if few is None or scores is None:
            return None
        return torch.lerp(scores, scores_of(few, on_columns(y_hat, columns)), weight)

    def on_columns(self, columns: Tensor) -> RowMean | None:
        """The same mean as a function of the weights of these columns alone; None where that is no cheaper."""
        few, scores = self._columns(columns), self.scores()
        if few is None or scores is None:
            return None
        y = on_columns(self._y, columns)
        return RowMean(few, self._labels, self._loss, self._noise, self._x, y, scores=scores, share=self._share)

    def _columns(self, columns: Tensor) -> Design | None:
        too_many = len(columns) * self._share.largest * self._design.dtype.itemsize > COPIED_BYTES
        return None if too_many else self._design.columns(columns)

    def _blocks(self) -> Iterator[_Block]:
        kept = self._scores
        if kept is None and self._keep_scores:
            kept = self._y["weight"].new_empty(self._design.shape[0], self._y["weight"].shape[0])
        for index, (rows, design) in enumerate(self._design.blocks()):
            if self._scores is None:
                scores = scores_of(design, self._y)
                if kept is not None:
                    kept[rows] = scores
            else:
                scores = self._scores[rows]
            x = self._x[rows] if self._noise.per_row else self._x
            yield _Block(index, design, self._labels[rows], x, scores)
        self._scores = kept

    def _curvature(self, b: _Block) -> LinearMap:
        curvature = self._curvatures.get(b.index)
        if curvature is None:
            curvature = self._noise.curvature(self._loss, b.x, b.scores, b.labels)
            if self._keep_curvatures:
                self._curvatures[b.index] = curvature
        return curvature

    def _pulled_back(self, parts: Iterator[tuple[Design, Tensor]]) -> Model:
        """From one vector per row in the space of scores to the space of models, divided by n."""
        total: Model = {}
        for design, residual in parts:
            pulled = {"weight": design.rmatmul(residual).T}
            if "bias" in self._y:
                pulled["bias"] = residual.sum(0)
            total = {name: total[name].add_(entry) for name, entry in pulled.items()} if total else pulled
        names, entries = list(total), list(total.values())
        sums = self._share.total(torch.cat([entry.reshape(-1) for entry in entries])).div_(self._share.count)
        pieces = sums.split([entry.numel() for entry in entries])
        return {n: piece.view(entry.shape) for n, piece, entry in zip(names, pieces, entries, strict=True)}

    def _collected(self, parts: Iterator[Tensor]) -> Tensor:
        """Derivatives in x from blocks of rows: put side by side, or added up."""
        if self._noise.per_row:
            return torch.cat(list(parts)).div_(self._share.count)
        return self._share.total(torch.stack(list(parts)).sum(0)).div_(self._share.count)


def scores_of(design: Design, y: Model) -> Tensor:
    """A W' + 1 b', shape (n, columns)."""
    scores = design.matmul(y["weight"].T)
    return scores + y["bias"] if "bias" in y else scores


def on_columns(y: Model, columns: Tensor) -> Model:
    """The model of these columns alone."""
    return {**y, "weight": y["weight"][:, columns]}
