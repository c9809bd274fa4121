"""The columns of A in use: a sparse model, and a face of its set, need few of them.

With S the columns in use and A_S a copy of them, one column after the other (and ones, for the intercept),

    scores of a model without weights outside of S           A_S W_S'
    G_yy v on S, for v without weights outside of S          A_S' (curvatures * A_S v_S) / n + 2 ridge v_S

the second by its Gram matrix if that is small. The columns in use depend on the model and on the Jacobian of the
projection, never on earlier steps, so that a resumed run multiplies the same shapes and has the same bits. The last
copy is cached as long as the same columns are in use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..spaces import Vector
from .design import DenseDesign, Design
from .noise import RowTerms

FEW = 0.25
"""Up to this fraction of the columns, copying them from A is cheaper than a product with all columns."""
COPIED_BYTES = 1 << 26
"""The largest size of a copy of columns; beyond it, products use the whole matrix, which needs no memory."""
SMALL, GRAM_ROWS = 64, 1 << 12
"""The maximal number of weights with a Gram matrix, and the number of rows over which it is summed at a time."""


def used_columns(weight: Tensor) -> Tensor:
    """The numbers of the columns that some row of a weight or support (k, d) has, in order."""
    return (weight[0] if weight.shape[0] == 1 else weight.any(0)).nonzero().view(-1)


class Columns(NamedTuple):
    """Some columns of A, one after the other.

    A model of these columns is packed: one matrix (k, s), or (k, s + 1) with the intercept as its last column.
    """

    index: Tensor  # (s,)
    values: Tensor  # (s, n), or (s + 1, n) with ones in the last row for an intercept

    def pack(self, v: Any) -> Tensor:
        """The weights of a model in these columns, and its intercept."""
        weight = v["weight"].detach().index_select(1, self.index)
        return torch.cat([weight, v["bias"].detach()[:, None]], 1) if "bias" in v else weight

    def unpack(self, V: Tensor, y: Any) -> Vector:
        """The inverse of `pack` for models like y, without weights outside of these columns."""
        if "bias" not in y:
            return {"weight": torch.zeros_like(y["weight"]).index_copy_(1, self.index, V)}
        weight = torch.zeros_like(y["weight"]).index_copy_(1, self.index, V[:, :-1])
        return {"weight": weight, "bias": V[:, -1].clone()}

    def rows(self, some: slice) -> Design:
        """The design of these columns and of some rows."""
        values = self.values if some.stop == self.values.shape[1] and some.start == 0 else self.values[:, some]
        return DenseDesign(values.T)


class WorkingSet:
    """The columns of a design in use.

    Parameters
    ----------
    design
        A.
    largest
        The largest number of rows on a rank, so that all ranks decide in the same way whether a copy fits into memory.
    """

    def __init__(self, design: Design, largest: int) -> None:
        self._design = design
        self._most = min(FEW * design.shape[1], COPIED_BYTES / (largest * design.dtype.itemsize))
        self._kept: dict[str, Columns] = {}

    def columns(self, use: str, index: Tensor, *, intercept: bool, read: Callable[[int], None]) -> Columns | None:
        """The columns `index`; None if they are too many.

        The copies for each use, "model" or "face", are cached until other columns are requested.
        """
        if index.shape[0] > self._most:
            return None
        last = self._kept.get(use)
        if last is None or not torch.equal(index, last.index):
            last = self._kept[use] = Columns(index, self._copied(index, intercept))
            read(last.values.numel())
        return last

    def _copied(self, index: Tensor, intercept: bool) -> Tensor:
        model = self._kept.get("model")
        if model is not None and model.index.numel():  # the columns of most faces are among those of the model
            places = torch.searchsorted(model.index, index).clamp_max_(model.index.numel() - 1)
            if torch.equal(model.index[places], index):
                return model.values[pad(places, (0, 1), value=model.index.numel()) if intercept else places]
        values = self._design.columns(index)
        return torch.cat([values, values.new_ones(1, self._design.shape[0])]) if intercept else values

    def __getstate__(self) -> dict[str, Any]:
        """Without the copies."""
        return {**vars(self), "_kept": {}}


def gram(values: Tensor, terms: RowTerms, k: int) -> Tensor:
    """The Hessian of sum_i phi_i in packed models as a matrix (k s, k s), for the columns (s, n) and k scores a row.

    The block of the scores a and b is A_S' diag(C_ab) A_S, with C_ab the second derivatives of each phi_i.
    """
    n, blocks = values.shape[1], []
    for unit in [values.new_ones(1)] if k == 1 else torch.eye(k, dtype=values.dtype, device=values.device):
        bend = terms.curvature(unit.expand(n, k)).T  # C_ab of all a, shape (k, n)
        blocks.append(_weighted_products(values, bend))
    return torch.cat(blocks, 1) if k > 1 else blocks[0]


def _weighted_products(values: Tensor, weights: Tensor) -> Tensor:
    """A_S' diag(w) A_S for each row w of the weights, one below the other."""
    if values.shape[1] > GRAM_ROWS:
        parts = zip(values.split(GRAM_ROWS, 1), weights.split(GRAM_ROWS, 1), strict=True)
        return torch.stack([_weighted_products(*part) for part in parts]).sum(0)
    weighted = weights * values if len(weights) == 1 else (weights[:, None] * values).reshape(-1, values.shape[1])
    return weighted @ values.T
