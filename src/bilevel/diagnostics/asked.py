"""What is to be judged: a gradient given, or the mean of a method's draws, with what noise leaves open."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..hypergradients import Estimator, LinearSolve
from ..problem import Linearization
from ..randomness import Noise, Seeds
from ..spaces import leaves, tree_map
from .probe import SPACE, Probe

DRAWS = (200, 1000)
"""How many draws of a random estimator are averaged; the second number when the first does not decide."""
SURE = 5.0
"""So many standard errors are what noise leaves open."""


class Averaged(NamedTuple):
    """A hypergradient as the mean of independent draws, (size,) and (draws, size)."""

    mean: Tensor
    draws: Tensor

    @property
    def random(self) -> bool:
        """Whether the draws differ."""
        return len(self.draws) > 1

    def doubt(self, directions: list[Tensor]) -> float:
        """The largest of SURE standard errors of <mean, d> over the directions d."""
        if not self.random:
            return 0.0
        spread = (self.draws @ torch.stack(directions, -1)).std(0) / math.sqrt(len(self.draws))
        return SURE * float(spread.max())

    @property
    def noise(self) -> float:
        """What noise may leave of |mean - expectation|."""
        return 2 * float(self.draws.var(0).sum().sqrt()) / math.sqrt(len(self.draws)) if self.random else 0.0


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is to be judged: a gradient of the user's own, or that of a method at the user's x and y, in their dtype."""

    x: Any
    y: Any
    method: Estimator | None
    gradient: Tensor | None
    seeds: Seeds

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the user works in."""
        return leaves(self.x)[0].dtype

    def flat_y(self, probe: Probe) -> Tensor:
        """The user's y, flat."""
        return SPACE.ravel(self.y).to(probe.dtype)

    def hypergradient(self, probe: Probe, y: Tensor, draws: int) -> Averaged:
        """The hypergradient to be judged, flat."""
        if self.gradient is not None:
            return Averaged(self.gradient, self.gradient[None])
        point = probe.as_y(y) if self.y is None else self.y
        lin = probe.problem.linearize(self.x, tree_map(lambda u: u.to(self.dtype), point))
        return self.averaged(lin, probe, draws)

    def averaged(self, lin: Linearization, probe: Probe, draws: int) -> Averaged:
        """The mean of the method's draws; one draw when they are the same up to rounding."""
        method = LinearSolve() if self.method is None else self.method
        draw = lambda k: SPACE.ravel(method.estimate(lin, Noise(self.seeds, k)).gradient).to(probe.dtype)  # noqa: E731
        drawn = [draw(k) for k in range(4)]
        # A Krylov method whose eta comes from a random start differs in the last digits, and is not random for that.
        rounding = max(100 * torch.finfo(self.dtype).eps, 1e-9) * float(drawn[0].norm())
        if all(float((drawn[0] - other).norm()) <= rounding for other in drawn[1:]):
            return Averaged(drawn[0], drawn[0][None])
        stack = torch.stack([*drawn, *(draw(k) for k in range(4, draws))])
        return Averaged(stack.mean(0), stack)
