"""Functions of eigenvalues and singular values with exact derivatives, also where values repeat.

All come from one function, the positive part (A)_+ of a symmetric matrix. A rectangular Z is read off its
dilation [[0, Z], [Z', 0]], whose eigenvalues are plus and minus the singular values of Z: soft-thresholding
the singular values at theta >= 0 gives twice the upper right block of (dilation - theta I)_+.

bfloat16 and float16 matrices are decomposed in float32, which LAPACK needs, and the answer is rounded once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .base import ProjectionJacobian


def positive_part(values: Tensor, change: Tensor | None) -> Tensor:
    """(diag(values) + change)_+ up to and including second order in the symmetric matrix `change`.

    Autograd through it gives exact first and second derivatives where `change` has the value 0, also for
    repeated eigenvalues. With a = values, R_ij = 1/(a_i - a_j) for a_i > 0 >= a_j, else 0, X = R o change,
    the terms are G o change and X a- X' + X' a+ X + Y + Y', Y = R o (change X a- + a+ X change): the second
    divided differences of the positive part, which factorise.
    """
    plus, minus = values.clamp_min(0), (-values).clamp_min(0)
    if change is None:
        return torch.diag_embed(plus)
    top = values > 0
    mixed = top.unsqueeze(-1) & ~top.unsqueeze(-2)
    gap = (values.unsqueeze(-1) - values.unsqueeze(-2)).clamp_min(torch.finfo(values.dtype).tiny)
    inverse = torch.where(mixed, 1 / gap, torch.zeros_like(gap))
    rise, fall = plus.unsqueeze(-1), minus.unsqueeze(-2)
    x = inverse * change
    y = inverse * (change @ x * fall + rise * (x @ change))
    second = (x * fall) @ x.mT + (x * rise).mT @ x + y + y.mT
    return torch.diag_embed(plus) + divided_differences(values) * change + second


def divided_differences(values: Tensor) -> Tensor:
    """(max(a_i, 0) - max(a_j, 0))/(a_i - a_j): 1 for two positive values, 0 for two non-positive ones."""
    top, plus = values > 0, values.clamp_min(0)
    both = top.unsqueeze(-1) & top.unsqueeze(-2)
    gap = plus.unsqueeze(-1) + plus.unsqueeze(-2) + (-values).clamp_min(0).unsqueeze(-1)
    gap = gap + (-values).clamp_min(0).unsqueeze(-2)
    ratio = (plus.unsqueeze(-1) + plus.unsqueeze(-2)) / gap.clamp_min(torch.finfo(values.dtype).tiny)
    return torch.where(both, torch.ones_like(ratio), ratio)


class SoftThresholdJacobian(ProjectionJacobian):
    """The derivative of Z = U diag(s) V' -> U max(diag(s) - theta, 0) V'.

    With f the soft threshold, M = U'DV, its symmetric part M_s and its antisymmetric part M_a,
    H D = U (G- o M_s + G+ o M_a) V' + (I - UU') D V diag(f/s) V' + U diag(f/s) U' D (I - VV'),
    G-_ij = (f_i - f_j)/(s_i - s_j), G+_ij = (f_i + f_j)/(s_i + s_j).
    """

    def __init__(self, left: Tensor, values: Tensor, right: Tensor, shrunk: Tensor) -> None:
        self.left = left
        self.right = right
        self.top: Tensor = shrunk > 0
        kept = shrunk.clamp_min(0)
        total = values.unsqueeze(-1) + values.unsqueeze(-2)
        tiny = torch.finfo(values.dtype).tiny
        self._difference = divided_differences(shrunk)
        self._sum = (kept.unsqueeze(-1) + kept.unsqueeze(-2)) / total.clamp_min(tiny)
        self._ratio = kept / values.clamp_min(tiny)

    def apply(self, v: Tensor) -> Tensor:
        left, right, ratio = self.left, self.right, self._ratio.unsqueeze(-2)
        v = v.to(left)
        rows, columns = left.mT @ v, v @ right.mT
        inner = rows @ right.mT
        core = self._difference * (inner + inner.mT) / 2 + self._sum * (inner - inner.mT) / 2
        beyond_left = (columns - left @ inner) * ratio
        beyond_right = (rows - inner @ right) * ratio.mT
        return (left @ core + beyond_left) @ right + left @ beyond_right

    def edge(self) -> Tensor:
        """E = sum of u_i v_i' over the singular values above the threshold."""
        return (self.left * self.top.unsqueeze(-2)) @ self.right


class Dilation:
    """The eigenbasis of [[0, Z], [Z', 0]] at the value of Z, and Z as a change from that value."""

    def __init__(self, z: Tensor) -> None:
        rows, columns = z.shape[-2:]
        small = min(rows, columns)
        left, self.values, right = torch.linalg.svd(z.detach(), full_matrices=True)
        self._rest = abs(rows - columns)
        pad, half = torch.nn.functional.pad, 0.5**0.5
        self.left, self.right = left[..., :small], right[..., :small, :]
        first, second = self.left * half, self.right.mT * half
        # Columns: (u, v)/sqrt 2 for s, (u, -v)/sqrt 2 for -s, and the null vectors of the longer side.
        self._upper = pad(torch.cat([first, first, left[..., small:]], -1), (0, columns - small))
        self._lower = torch.cat([second, pad(-second, (0, rows - small)), right.mT[..., small:]], -1)
        product = self._upper.mT @ (z - z.detach()) @ self._lower
        self._change = product + product.mT

    def _positive_part(self, level: Tensor, moved: Tensor) -> Tensor:
        """(A - moved I)_+ in the eigenbasis, where `moved` has the value of `level`; both of shape (..., 1)."""
        values = self.values
        spectrum = torch.cat([without_rounding(values - level, values), -values - level], -1)
        rest = -level.expand(*spectrum.shape[:-1], self._rest)
        identity = torch.eye(self._upper.shape[-1], dtype=values.dtype, device=values.device)
        shift = (moved - moved.detach()).unsqueeze(-1) * identity
        return positive_part(torch.cat([spectrum, rest], -1), self._change - shift)

    def shrink(self, level: Tensor, moved: Tensor) -> Tensor:
        """Z with its singular values soft-thresholded at `moved`."""
        return 2 * self._upper @ self._positive_part(level, moved) @ self._lower.mT

    def surplus(self, level: Tensor) -> Tensor:
        """The sum of max(s - level, 0), shape (..., 1)."""
        return self._positive_part(level, level).diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)


def without_rounding(values: Tensor, spectrum: Tensor) -> Tensor:
    """`values`, those within rounding of their spectrum set to 0: the same choice at every kink."""
    size = 4 * spectrum.shape[-1] * torch.finfo(values.dtype).eps * spectrum.abs().amax(-1, keepdim=True)
    return torch.where(values.abs() <= size, torch.zeros_like(values), values)


def symmetric(z: Tensor) -> Tensor:
    return (z + z.mT) / 2
