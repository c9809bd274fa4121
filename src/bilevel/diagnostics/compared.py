"""<h, d> beside the slopes of F from both sides along random directions d, and what noise leaves open."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import EmptySet, NotFinite
from .asked import DRAWS, Averaged
from .causes import Cause
from .judge import Finding
from .lower_level import curvature
from .probe import SPACE, Probe, slope

STEPS = 5
"""How many steps of differences are tried, each a tenth of the one before."""
NEAR = 1e-4
"""The step where x is of size 1: a kink within it is a verdict."""


class Path:
    """F and z along lines through x, each lower level started from y*(x)."""

    def __init__(self, probe: Probe, y: Tensor) -> None:
        self.probe, self.y, self._solved = probe, y, {}

    def solution(self, d: Tensor, t: float) -> Tensor:
        """y*(x + t d)."""
        if t == 0.0:
            return self.y
        key = (id(d), t)
        if key not in self._solved:
            self._solved[key] = self._solve(self.probe.x + t * d)
        return self._solved[key]

    def _solve(self, x: Tensor) -> Tensor:
        try:
            return SPACE.ravel(self.probe.solve(x, self.y).y)
        except (NotFinite, EmptySet):  # beyond the domain of g or of the set
            return torch.full_like(self.y, math.nan)

    def value(self, d: Tensor, t: float) -> float:
        """F(x + t d), NaN where it is not defined."""
        return self.probe.upper(self.probe.x + t * d, self.solution(d, t))

    def distance(self, margin: float, drawn: list[Tensor], step: float) -> float:
        """margin / (the speed of z): how far x can move before z meets a kink, to first order."""
        if math.isnan(margin) or math.isinf(margin):
            return margin
        eta = 1.0 / max(curvature(self.probe.linearize(self.probe.x, self.y)).largest, 1e-300)
        speeds = [self._speed(d, step, eta) for d in drawn]
        return margin / max(speeds) if max(speeds) > 0 else math.inf

    def _speed(self, d: Tensor, step: float, eta: float) -> float:
        ends = []
        for t in (step, -step):
            x, y = self.probe.x + t * d, self.solution(d, t)
            ends.append(y - eta * self.probe.lower_grad(x, y))
        return float((ends[0] - ends[1]).norm()) / (2 * step)


class Compared:
    """<h, d> beside the slopes of F along each d; all errors are relative to `scale`, the largest of these numbers."""

    def __init__(self, path: Path, drawn: list[Tensor], step: float, noise: float, h: Averaged, tol: float) -> None:
        self.drawn, self.step, self.h, self.tol = drawn, step, h, tol
        self.slopes = tuple(slope(lambda t, d=d: path.value(d, t), float(h.mean @ d), step, noise) for d in drawn)
        numbers = torch.tensor([(s.predicted, s.central, s.forward, s.backward) for s in self.slopes]).double()
        self.scale = float(numbers.abs().max())  # NaN if one of them is
        size = self.scale if self.scale > 0 else 1.0
        self.error = max(s.error for s in self.slopes) / size if math.isfinite(self.scale) else math.nan
        self.blur = 10 * noise / step / size  # of the differences
        self.spread = h.doubt(drawn) / size  # of the draws

    @property
    def doubt(self) -> float:
        """What noise leaves open."""
        return self.blur + self.spread

    @property
    def correct(self) -> bool:
        """The error and what noise leaves open are within tol."""
        return self.error <= self.tol and self.doubt <= self.tol

    @property
    def kinked(self) -> bool:
        """F has different slopes on the two sides."""
        return any(s.kinked and s.jump > 1e-3 * self.scale for s in self.slopes)

    @property
    def settled(self) -> bool:
        """A shorter step would not tell more."""
        return self.correct or self.undecided or (self.kinked and self.step <= NEAR)

    @property
    def undecided(self) -> bool:
        """The true error may lie on either side of tol."""
        return not self.correct and self.error <= self.tol + self.doubt

    @property
    def worth_more_draws(self) -> bool:
        """With more draws the spread would fall below tol, or below the error."""
        spread = self.spread * math.sqrt(DRAWS[0] / DRAWS[1])
        would_decide = self.blur + spread <= self.tol or self.error > self.tol + self.blur + spread
        return self.h.random and self.undecided and would_decide

    def why_undecided(self) -> Finding:
        """The larger of the two kinds of noise."""
        if self.blur >= self.spread:
            return Finding(Cause.PRECISION, f"the differences of F are known to {self.blur:.1e}, tol is {self.tol:g}")
        known = f"the mean of {len(self.h.draws)} draws is known to {self.spread:.1e}"
        return Finding(Cause.UNDECIDED, f"{known}, its error is {self.error:.1e}, tol is {self.tol:g}")


def with_the_best_step(path: Path, drawn: list[Tensor], step: float, noise: float, h: Averaged, tol: float) -> Compared:
    """The first step that agrees: F may bend on a shorter scale than that of x, or end nearby. Else a kink that stays.

    A long step can take a wave for a kink, so that kinks count from NEAR on.
    """
    tried = [Compared(path, drawn, step, noise, h, tol)]
    while not tried[-1].settled and len(tried) < STEPS:
        shorter = Compared(path, drawn, tried[-1].step / 10, noise, h, tol)
        if shorter.blur > tol:
            break
        tried.append(shorter)
    if tried[-1].correct or tried[-1].kinked:
        return tried[-1]
    return next((t for t in tried if math.isfinite(t.error)), tried[0])
