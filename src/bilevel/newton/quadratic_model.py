"""The quadratic model of g around a point, minimised over Y without a call of g.

m(v) = slope . (v - y) + (v - y)' G~ (v - y) / 2,   G~ = the known rows of G, their largest eigenvalue elsewhere
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..sets.base import ConvexSet
from .base import LowerPoint

if TYPE_CHECKING:
    from .operator import OperatorLevel

BURSTS, BURST_STEPS, NEWTON_STEPS = 16, 25, 6


class QuadraticModel:
    """m on the set `hard`, with what `level` knows of G."""

    def __init__(self, level: OperatorLevel, hard: ConvexSet, point: LowerPoint, eta: float) -> None:
        self.level, self.hard, self.eta, self.known = level, hard, eta, level.known
        self.y, self.base = point.y.double(), point.slope.double()
        self.largest = _largest(self.known.rows)

    def minimum(self, tol: float) -> Tensor:
        """argmin of m over Y, to a residual of tol: Newton steps, and accelerated gradient steps where they fail."""
        v = ahead = self.y
        t = 1.0
        for burst in range(BURSTS):
            for _ in range(BURST_STEPS if burst else 0):
                following = self._project(ahead - self._slope(ahead) / self.largest)
                jump, move = ahead - following, following - v
                if float(jump @ move) > 0:
                    ahead, t = following, 1.0
                else:
                    later = (1.0 + math.sqrt(1.0 + 4.0 * t * t)) / 2.0
                    ahead, t = following + (t - 1.0) / later * move, later
                v = following
            v, done = self._newton(v, tol)
            if done:
                break
            ahead, t = v, 1.0
        return v

    def _newton(self, v: Tensor, tol: float) -> tuple[Tensor, bool]:
        """Newton steps, dense on the support; whether the residual is within tol."""
        for _ in range(NEWTON_STEPS):
            z = v - self.eta * self._slope(v)
            residual = v - self._project(z)
            size = float(residual.norm())
            if size <= tol:
                return v, True
            d = self._newton_direction(z, residual)
            if d is None:
                return v, False
            trial = self._project(v + d)
            after = float((trial - self._project(trial - self.eta * self._slope(trial))).norm())
            if after > 0.5 * size:
                return v, False
            v = trial
        return v, False

    def _newton_direction(self, z: Tensor, residual: Tensor) -> Tensor | None:
        level, known = self.level, self.known
        jacobian = level.jacobian(self.hard, z)
        support = jacobian.support
        if not jacobian.projector or support is None or not len(support):
            return None
        if bool((known.places(level.size)[support] < 0).any()):
            return None
        block = level.jacobian_block(jacobian, support)
        identity = torch.eye(len(support), dtype=torch.float64, device=level.device)
        matrix = self.eta * block @ known.block(support, level.size) @ block + identity - block
        cholesky = torch.linalg.cholesky_ex((matrix + matrix.T) / 2)
        if int(cholesky.info):
            return None
        along = jacobian.apply(residual)
        across = residual - along
        b = self.eta * jacobian.apply(self._product(across)) - along
        d = -across
        d[support] += torch.cholesky_solve(b[support][:, None], cholesky.L)[:, 0]
        return d

    def _slope(self, v: Tensor) -> Tensor:
        return self.base + self._product(v - self.y)

    def _product(self, d: Tensor) -> Tensor:
        product = self.largest * d
        product[self.known.index] = self.known.rows @ d[self.known.index]
        return product

    def _project(self, v: Tensor) -> Tensor:
        return self.level.project(self.hard, v).double()


def _largest(matrix: Tensor) -> float:
    """The largest eigenvalue, a little from above, by power steps."""
    v = torch.ones(len(matrix), dtype=matrix.dtype, device=matrix.device)
    for _ in range(15):
        v = matrix @ (v / v.norm())
    return max(1.05 * float(v.norm()), 1e-300)
