"""A problem on which penalty methods are biased, with the biased answer in closed form."""

from __future__ import annotations

import torch
from torch import Tensor

from bilevel import sets
from bilevel.lower import upper_value
from bilevel.problem import Problem


class BiasedProblem:
    """A problem with grad_y f != 0 on an active face, on which a value-function penalty is biased.

    g = |y - x|^2 / 2 over the half-space n . y <= d, |n| = 1, and f = |y - a|^2 / 2 + rho |x - b|^2 / 2. At the answer
    the constraint is active (n . x = n . b = d + 1.5), although f pulls y inwards (n . a = d - 0.5). Along the face,
    with T = I - n n', F is smallest at T x = T (a + rho b) / (1 + rho), where grad_y f is not zero because rho > 0.

    * The penalty f + (g - min g) / sigma is smallest at T x = T (s a + rho b) / (s + rho) with s = 1 / (1 + sigma), and
      keeps y on the face while 1.5 > 0.5 sigma.
    * A Moreau envelope of width gamma replaces g - min g by kappa (g - min g), kappa = gamma / (1 + gamma).
    * With the half-space as h(y) = n . y - d <= 0, a gap function with gamma_2 for the multiplier leaves
      gamma_2 h^2 / 2 of the constraint: under the penalty c, h = -0.5 / (1 + c gamma_2).
    """

    rho = 0.1
    offset = 0.2
    normal = torch.ones(3, dtype=torch.float64) / 3**0.5

    def __init__(self) -> None:
        n, self.pull, self.reach = self.normal, -0.5, 1.5
        self.a = self.along(torch.tensor([0.9, -0.5, 0.3]).double()) + (self.offset + self.pull) * n
        self.b = self.along(torch.tensor([-0.6, 0.5, 0.4]).double()) + (self.offset + self.reach) * n
        self.x0 = self.along(torch.tensor([0.2, 0.2, -0.3]).double()) + (self.offset + self.reach) * n
        self.set = sets.HalfSpace(n, self.offset)
        self.y0 = self.set.project(self.x0)
        self.problem = Problem(self._upper, self._lower, self.set, x0=self.x0, y0=self.y0)
        self.with_functions = Problem(self._upper, self._lower, inequality=self._h, x0=self.x0, y0=self.y0)

    def _upper(self, x: Tensor, y: Tensor) -> Tensor:
        return (y - self.a).square().sum() / 2 + self.rho * (x - self.b).square().sum() / 2

    def _lower(self, x: Tensor, y: Tensor) -> Tensor:
        return (y - x).square().sum() / 2

    def _h(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.normal @ y - self.offset).reshape(1)

    def along(self, v: Tensor) -> Tensor:
        """T v, the part of v along the face."""
        return v - (self.normal @ v) * self.normal

    def answer(self, sigma: float) -> Tensor:
        """The x of the penalty 1/sigma; sigma = 0 is the true minimiser."""
        s = 1.0 / (1.0 + sigma)
        x = (s * self.a + self.rho * self.b) / (s + self.rho)
        return self.along(x) + (self.offset + self.reach) * self.normal

    def bias(self, sigma: float) -> float:
        """F(x_sigma) - F*."""
        return float(upper_value(self.problem, self.answer(sigma)) - upper_value(self.problem, self.answer(0.0)))

    def excess(self, penalty: float, multiplier_gamma: float) -> float:
        """h at the y of a gap function with multipliers."""
        return self.pull / (1.0 + penalty * multiplier_gamma)
