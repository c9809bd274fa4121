"""The data matrix with its columns centred, A - 1 m', without ever forming it.

With an intercept, a model of the centred columns is a model of the columns themselves with another intercept: the
weight, and the set it lies in, stay as they are. What changes is the curvature of the lower level. Where all columns
have a large mean, as pixels do, the direction of that mean rules the largest curvature, and gradient steps towards
everything else are tiny; centred, the same model is reached in several times fewer steps.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .design import Design


class CentredDesign(Design):
    """B = A - 1 m' for a design A and a row m of numbers, one per column.

    Parameters
    ----------
    design
        A, of the shape (n, d).
    means
        m, of the shape (d,).

    References
    ----------
    Ours: sparse rows stay sparse, and products with the centred matrix need one more product with m.

    Examples
    --------
    >>> design = Design.of(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    >>> CentredDesign(design, column_means(design)).matmul(torch.eye(2))
    tensor([[-1.,  0.],
            [ 1.,  0.]])
    """

    def __init__(self, design: Design, means: Tensor) -> None:
        self.design, self.means = design, means
        self.shape, self.dtype, self.device = design.shape, design.dtype, design.device

    def matmul(self, V: Tensor) -> Tensor:
        return self.design.matmul(V) - self.means @ V

    def rmatmul(self, R: Tensor) -> Tensor:
        return self.design.rmatmul(R) - torch.outer(self.means, R.sum(0))

    def rows(self, index: Tensor) -> Design:
        return CentredDesign(self.design.rows(index), self.means)

    def columns(self, index: Tensor) -> Design | None:
        few = self.design.columns(index)
        return None if few is None else CentredDesign(few, self.means[index])

    def blocks(self) -> Iterator[tuple[slice, Design]]:
        for rows, block in self.design.blocks():
            yield rows, CentredDesign(block, self.means)


def column_means(design: Design) -> Tensor:
    """The mean of each column, shape (d,)."""
    count = design.shape[0]
    return design.rmatmul(torch.full((count, 1), 1.0 / count, dtype=design.dtype, device=design.device))[:, 0]
