"""The rows that hold the nearest point of a polyhedron back, factored: products with B^+ and I - B^+ B."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import can_look_at_values


class HeldRows:
    """The active rows B (..., k, n) of each point, B' = QR; zero rows fill up where a point has fewer than others.

    Not B B', which would square the angles between the rows.
    """

    def __init__(self, rows: Tensor, mask: Tensor) -> None:
        self.mask = mask
        most = min(rows.shape)
        if can_look_at_values():
            most = min(most, int(mask.sum(-1).max()) if mask.numel() else 0)
        self.index = mask.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[..., :most]
        self.used = mask.gather(-1, self.index)
        self.B = self.take_rows(rows)
        Q, R = torch.linalg.qr(self.B.mT)
        self._Q = Q * self.used.unsqueeze(-2)
        self._R = R + torch.diag_embed((~self.used).to(R)) * (1 - R.diagonal(dim1=-2, dim2=-1)).unsqueeze(-1)

    def take(self, side: Tensor) -> Tensor:
        """The entries (..., k) of the active rows."""
        return side.expand(self.mask.shape).gather(-1, self.index) * self.used

    def take_rows(self, rows: Tensor) -> Tensor:
        return rows[self.index] * self.used.unsqueeze(-1)

    def tangent(self, v: Tensor) -> Tensor:
        """(I - B^+ B) v."""
        for _ in range(2):
            v = v - product(self._Q, adjoint(self._Q, v))
        return v

    def pseudo(self, f: Tensor) -> Tensor:
        """B^+ f."""
        return product(self._Q, torch.linalg.solve_triangular(self._R.mT, f.unsqueeze(-1), upper=False).squeeze(-1))

    def along(self, v: Tensor) -> Tensor:
        """(B^+)' v, shape (..., k)."""
        inner = adjoint(self._Q, v).unsqueeze(-1)
        return torch.linalg.solve_triangular(self._R, inner, upper=True).squeeze(-1) * self.used

    def spread(self, entries: Tensor) -> Tensor:
        """Entries (..., k) of the active rows in the places of all rows, zero elsewhere."""
        index = self.index.expand(entries.shape)
        empty = entries.new_zeros(*entries.shape[:-1], self.mask.shape[-1])
        return empty.scatter(-1, index, entries * self.used)

    def nearest(self, z: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """y = z - B^+ (Bz - c) and the multipliers m, z - y = B'm."""
        y = z
        for _ in range(3):  # the second and third rounds remove the rounding of the first
            y = y - self.pseudo(product(self.B, y) - c)
        return y, self.along(z - y)

    def newton(self, y: Tensor, multipliers: Tensor, off: Tensor, gap: Tensor) -> tuple[Tensor, Tensor]:
        """One Newton step for z = y + B'm, c = By, with what is missing in the two equations."""
        dy = self.tangent(off) + self.pseudo(gap)
        return y + dy, multipliers + self.along(off - dy)


def product(matrix: Tensor, v: Tensor) -> Tensor:
    return (matrix @ v.unsqueeze(-1)).squeeze(-1)


def adjoint(matrix: Tensor, v: Tensor) -> Tensor:
    return (matrix.mT @ v.unsqueeze(-1)).squeeze(-1)
