"""A primal-dual interior-point method for the duals that projected Newton steps do not solve at once.

    min over y of  1/2 <y, G y> - <q, y>     with  y >= 0,  and  y <= u  (a box)  or  sum_c y_ic = total_i  (sections)

Features with a large common part make G stiff along a few directions, in which a projection undoes a Newton step;
an interior point meets no bound before the end. Each step is that of Mehrotra (SIAM J. Optim. 1992), with matrices of
n x n alone: G + diag(z_c / y_c) for each column c, and for the sums the Schur complement sum_c (G + diag)^{-1}.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

SHORTEN = 0.995
"""The part of the way to the nearest bound that a step may go."""


class _Point(NamedTuple):
    """y, its multipliers z of y >= 0, v of y <= u (zero without that bound), and of the sums."""

    y: Tensor
    z: Tensor
    v: Tensor
    sums: Tensor


class InteriorPoint:
    """The duals of a batch of tasks with y >= 0; G (t, n, n), q and u or y (t, n, p).

    Parameters
    ----------
    quadratic, linear
        G, positive definite, and q.
    upper
        u > 0 of a box; None for sections.
    total
        The sums (t, n, 1) of sections, positive; None for a box.
    """

    def __init__(
        self, quadratic: Tensor, linear: Tensor, *, upper: Tensor | None = None, total: Tensor | None = None
    ) -> None:
        self.quadratic = quadratic
        self.linear = linear
        self.upper = upper
        self.total = total

    @cached_property
    def point(self) -> _Point:
        """Where the method stands."""
        return self._start()

    @cached_property
    def _first_gap(self) -> Tensor:
        return self._gap(self._start())

    @cached_property
    def diagonal(self) -> Tensor:
        """G_ii, (t, n, 1)."""
        return self.quadratic.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)

    @cached_property
    def ceiling(self) -> Tensor:
        """Of what a barrier adds to G, (t, 1, 1): beyond it an entry stands still."""
        return 1e12 * self.diagonal.amax(-2, keepdim=True)

    def progress(self) -> Tensor:
        """The mean complementarity of each task, relative to the first one, shape (t,)."""
        return self._gap(self.point) / self._first_gap

    def bounds(self) -> tuple[Tensor, Tensor, Tensor]:
        """y, and which entries seem to be 0 and u: those smaller than their multipliers, in units of G_ii."""
        y, z, v, _ = self.point
        high = self._slack(y) * self.diagonal <= v if self.upper is not None else torch.zeros_like(y, dtype=torch.bool)
        return y, y * self.diagonal <= z, high

    def advance(self, open_tasks: Tensor) -> None:
        """One step of the tasks that are still open, booleans (t,)."""
        point, slope, gap = self.point, self._slope(self.point), self._gap(self.point)
        system = _System(self, point)
        affine = system.direction(slope, self._targets(point, torch.zeros_like(gap)))
        ahead = self._gap(self._moved(point, affine, self._length(point, affine)))
        centre = gap * (ahead / gap).clamp(0.0, 1.0) ** 3
        direction = system.direction(slope, self._targets(point, centre, affine))
        moved = self._moved(point, direction, SHORTEN * self._length(point, direction))
        good = open_tasks & torch.stack([part.isfinite().all(-1).all(-1) for part in moved]).all(0)
        self.point = _Point(*(torch.where(good[:, None, None], *pair) for pair in zip(moved, point, strict=True)))

    def _start(self) -> _Point:
        """The centre of the set."""
        like = torch.ones_like(self.linear)
        bound: Any = self.upper  # there where no total is
        centre = like * self.total / like.shape[-1] if self.total is not None else 0.5 * bound
        slope = (self.quadratic @ centre - self.linear).abs().amax((-2, -1), keepdim=True).clamp_min(1.0)
        v = slope * like if self.upper is not None else 0.0 * like
        return _Point(centre, slope * like, v, torch.zeros_like(self.linear[..., :1]))

    def _slope(self, point: _Point) -> Tensor:
        """The derivative of the Lagrangian: G y - q - z + v - sums."""
        return self.quadratic @ point.y - self.linear - point.z + point.v - point.sums

    def _slack(self, y: Tensor) -> Tensor:
        return torch.ones_like(y) if self.upper is None else self.upper - y

    def _gap(self, point: _Point) -> Tensor:
        """The mean of y z and of (u - y) v."""
        both = point.y * point.z + self._slack(point.y) * point.v
        return both.mean((-2, -1)) * (0.5 if self.upper is not None else 1.0)

    def _targets(self, point: _Point, centre: Tensor, affine: _Point | None = None) -> tuple[Tensor, Tensor]:
        """What y dz + z dy and (u - y) dv - v dy should be."""
        goal = centre[:, None, None]
        low, high = goal - point.y * point.z, goal - self._slack(point.y) * point.v
        if affine is not None:
            low, high = low - affine.y * affine.z, high + affine.y * affine.v
        return low, high if self.upper is not None else torch.zeros_like(high)

    def _length(self, point: _Point, direction: _Point) -> Tensor:
        """The largest step, at most 1, that keeps y, u - y, z and v non-negative."""
        pairs = [(point.y, direction.y), (point.z, direction.z)]
        if self.upper is not None:
            pairs += [(self._slack(point.y), -direction.y), (point.v, direction.v)]
        ratios = [torch.where(move < 0, -here / move, torch.inf).amin((-2, -1)) for here, move in pairs]
        return torch.stack(ratios).amin(0).clamp_max(1.0)

    def _moved(self, point: _Point, direction: _Point, length: Tensor) -> _Point:
        step = length[:, None, None]
        return _Point(*(here + step * move for here, move in zip(point, direction, strict=True)))


class _System:
    """The Newton system at one point, factored."""

    def __init__(self, problem: InteriorPoint, point: _Point) -> None:
        self.point = point
        self.slack = problem._slack(point.y)
        self.bounded, self.summed = problem.upper is not None, problem.total is not None
        barrier = point.z / point.y + point.v / self.slack
        ceiling = problem.ceiling
        matrices = problem.quadratic.unsqueeze(1) + torch.diag_embed(barrier.minimum(ceiling).mT)
        self.factors = torch.linalg.cholesky_ex(matrices).L
        if self.summed:
            self.schur = torch.linalg.cholesky_ex(torch.cholesky_inverse(self.factors).sum(1)).L

    def direction(self, slope: Tensor, targets: tuple[Tensor, Tensor]) -> _Point:
        (y, z, v, sums), (low, high) = self.point, targets
        right = low / y - high / self.slack - slope
        move, sums_move = self._solve(right), torch.zeros_like(sums)
        if self.summed:  # sum_c dy_ic = 0
            sums_move = -torch.cholesky_solve(move.sum(-1, keepdim=True), self.schur)
            move = move + self._solve(sums_move.expand_as(right))
        v_move = (high + v * move) / self.slack if self.bounded else torch.zeros_like(v)
        return _Point(move, (low - z * move) / y, v_move, sums_move)

    def _solve(self, right: Tensor) -> Tensor:
        """(G + diag_c)^{-1} right_c for each column c."""
        return torch.cholesky_solve(right.mT.unsqueeze(-1), self.factors).squeeze(-1).mT
