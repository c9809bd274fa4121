"""What is known from earlier evaluations of F: their mean work, and rows of G = grad^2_yy g."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from .._serializable import serializable


@serializable
@dataclass(frozen=True)
class Effort:
    """How many evaluations there were, and their mean work."""

    evaluations: int = 0
    usual_work: float = 0.0

    def after(self, work: float) -> Self:
        """With one more evaluation."""
        count = self.evaluations + 1
        return replace(self, evaluations=count, usual_work=self.usual_work + (work - self.usual_work) / count)


@serializable
@dataclass(frozen=True)
class KnownHessian(Effort):
    """Known parts of G: its largest and mean curvature, and rows on the coordinates `index`.

    The rows are updated without products when x and y change. They depend on all points so far and are therefore a part
    of the state of a run. `debt` is the work, in products and gradients, since rows were computed; `diagonal` is true
    if x changes only the diagonal of G.
    """

    largest: float = math.nan
    mean: float = math.nan
    eta: float = math.nan
    index: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    rows: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.float64))
    debt: float = 0.0
    diagonal: bool | None = None

    def places(self, size: int) -> Tensor:
        """Where each coordinate is among the rows; -1 where it is not."""
        places = torch.full((size,), -1, dtype=torch.long, device=self.index.device)
        places[self.index] = torch.arange(len(self.index), device=self.index.device)
        return places

    def block(self, support: Tensor, size: int) -> Tensor:
        """G on a support; the mean of the diagonal where a coordinate is not known."""
        places = self.places(size)[support]
        if bool((places >= 0).all()):
            return self.rows[places][:, places]
        block = torch.zeros(len(support), len(support), dtype=torch.float64, device=support.device)
        known, new = (places >= 0).nonzero()[:, 0], (places < 0).nonzero()[:, 0]
        block[known[:, None], known[None]] = self.rows[places[known]][:, places[known]]
        block[new, new] = float(self.rows.diagonal().mean())
        return block

    def extended(self, new: Tensor, values: Tensor) -> KnownHessian:
        """With rows of G (over all coordinates) for new indices."""
        index, old = torch.cat([self.index, new]), len(self.index)
        grown = torch.zeros(len(index), len(index), dtype=torch.float64, device=new.device)
        grown[:old, :old] = self.rows
        grown[old:] = values[:, index]
        grown[:old, old:] = grown[old:, :old].T
        grown[old:, old:] = (grown[old:, old:] + grown[old:, old:].T) / 2
        return replace(self, index=index, rows=grown, debt=0.0)

    def restricted(self, support: Tensor, size: int) -> KnownHessian:
        """With the rows on this support alone."""
        places = self.places(size)[support]
        places = places[places >= 0]
        return replace(self, index=self.index[places], rows=self.rows[places][:, places])

    def learned(self, step: Tensor, change: Tensor, slope: Tensor, eps: float) -> KnownHessian:
        """The BFGS update by a step in y and the change of grad_y g, where the step lies in the known coordinates."""
        if not len(self.index) or self.diagonal:
            return self
        s, c = step[self.index].double(), change[self.index].double()
        outside = float(step.double().norm()) ** 2 - float(s @ s)
        if outside > 0.01 * float(s @ s) or float(change.norm()) < 1e4 * eps * float(slope.norm()):
            return self
        product, gs = float(s @ c), self.rows @ s
        curvature = float(s @ gs)
        if not (product > 1e-8 * float(s.norm()) * float(c.norm()) and curvature > 0):
            return self
        return replace(self, rows=self.rows + torch.outer(c, c) / product - torch.outer(gs, gs) / curvature)
