"""The second-order (Lorentz, ice-cream) cone."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import ConvexSet, Face, can_look_at_values, event_norm, in_float32


class SecondOrderCone(ConvexSet):
    """{(t, x) : |x|_2 <= t}, t the first entry; P(t, x) = (t + |x|)/2 (1, x/|x|) outside.

    In the cone (and on its boundary) H = I; in the polar cone |x| <= -t both P and H are 0; between them
    H = 1/2 [[1, n'], [n, (1 + t/|x|) I - t/|x| n n']] with n = x/|x|. The kinks are the
    boundaries of the two cones.

    References
    ----------
    Parikh & Boyd (2014), Proximal algorithms, section 6; the Jacobian: Fukushima, Luo & Tseng (2002).

    Examples
    --------
    >>> SecondOrderCone().project(torch.tensor([0.0, 3.0, 4.0]))
    tensor([2.5000, 1.5000, 2.0000])
    """

    @in_float32
    def project(self, z: Tensor) -> Tensor:
        z = self.checked(z)
        inside, polar, norm = _regions(z)
        height, tail = z[..., :1], z[..., 1:]
        between = ~inside & ~polar
        safe = torch.where(between, norm, torch.ones_like(norm))
        half = (height + norm) / 2
        edge = torch.cat([half, half * (tail / safe)], -1)
        return torch.where(inside, z, torch.where(between, edge, torch.zeros_like(z)))

    @in_float32
    def jacobian(self, z: Tensor) -> Face:
        return ConeFace(self.checked(z).detach())

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        amount = _regions(y)[2].squeeze(-1) - y[..., 0]
        return amount.clamp_min(0), event_norm(y), "|x| exceeds t, the first entry"

    @in_float32
    def margin(self, z: Tensor) -> Tensor:
        """The distance to the boundary of the cone or of its polar, | |t| - |x| |/sqrt 2."""
        z = self.checked(z).detach()
        gap = (z[..., 0].abs() - _regions(z)[2].squeeze(-1)).abs()
        return gap / 2**0.5 if z.shape[-1] > 1 else gap

    def __repr__(self) -> str:
        return "SecondOrderCone()"


class ConeFace(Face):
    """H = 1/2 [[1, n'], [n, (1 + r) I - r n n']] with n = x/|x|, r = t/|x|; I in the cone, 0 in its polar."""

    def __init__(self, z: Tensor) -> None:
        self._inside, self._polar, norm = _regions(z)
        between = ~self._inside & ~self._polar
        safe = torch.where(between, norm, torch.ones_like(norm))
        self._normal, self._ratio = z[..., 1:] / safe, z[..., :1] / safe
        size = z.shape[-1]
        self.dimension = (size * self._inside + (size - 1) * between).squeeze(-1)
        if can_look_at_values():
            self.is_projector = not bool(between.any())

    def apply(self, v: Tensor) -> Tensor:
        head, tail = v[..., :1], v[..., 1:]
        along = (self._normal * tail).sum(-1, keepdim=True)
        lower = self._normal * (head - self._ratio * along) + (1 + self._ratio) * tail
        edge = torch.cat([head + along, lower], -1) / 2
        return torch.where(self._inside, v, torch.where(self._polar, torch.zeros_like(v), edge))


def _regions(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Whether z lies in the cone, whether in the polar cone (the apex counts as cone), and |x|."""
    height = z[..., :1].detach()
    norm = event_norm(z[..., 1:], keepdim=True) if z.shape[-1] > 1 else torch.zeros_like(height)
    inside = norm.detach() <= height
    return inside, (norm.detach() <= -height) & ~inside, norm
