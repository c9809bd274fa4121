"""A problem on which penalty methods are biased, with the biased answer in closed form."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import sets
from ..lower import upper_value
from ..problem import Problem


class BiasedProblem:
    """A problem on which a value-function penalty is biased, with the biased answer in closed form.

    g = |y - x|^2 / 2 over the box [-1, 1]^3, f = |y - a|^2 / 2 + rho |x - b|^2 / 2. Two coordinates end inside the box,
    where F is smallest at (a + rho b) / (1 + rho); the third ends outside, with y = 1 and x = b. The penalty
    f + (g - min g) / sigma is smallest at (s a + rho b) / (s + rho) with s = 1 / (1 + sigma) in the first two. A
    Moreau envelope of width gamma replaces g - min g by kappa (g - min g), kappa = gamma / (1 + gamma), on this g.
    """

    rho = 0.1
    a = torch.tensor([0.9, -0.5, 3.0], dtype=torch.float64)
    b = torch.tensor([0.0, 0.5, 2.5], dtype=torch.float64)
    x0 = torch.tensor([0.2, 0.2, 2.5], dtype=torch.float64)

    def __init__(self) -> None:
        self.problem = Problem(
            lambda x, y: (y - self.a).square().sum() / 2 + self.rho * (x - self.b).square().sum() / 2,
            lambda x, y: (y - x).square().sum() / 2,
            sets.Box(-1.0, 1.0),
            y0=self.x0.clamp(-1.0, 1.0),
        )

    def answer(self, sigma: float) -> Tensor:
        """The x of the penalty 1/sigma; sigma = 0 is the true minimiser."""
        s = 1.0 / (1.0 + sigma)
        x = (s * self.a + self.rho * self.b) / (s + self.rho)
        return torch.cat([x[:2], self.b[2:]])

    def bias(self, sigma: float) -> float:
        """F(x_sigma) - F*."""
        return float(upper_value(self.problem, self.answer(sigma)) - upper_value(self.problem, self.answer(0.0)))
