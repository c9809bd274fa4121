"""The solution of the duals as a differentiable layer: from G to y*(G), with any hypergradient of the library.

At y* on the face F, dy = -Pi (Pi G Pi)^+ Pi dG y, so that a cotangent v of y becomes -w y' of G with w solving
Pi G Pi w = Pi v: in closed form for `LinearSolve()`, and by the estimator's own way for any other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...hypergradients import Estimator, LinearSolve
from ...problem import Linearization, Problem
from ...randomness import Noise
from ...spaces import Space, Vector
from .dual import Dual


def solved(dual: Dual, quadratic: Tensor, method: Estimator, noise: Noise, *, tol: float) -> Tensor:
    """y* (t, n, p) as a function of `quadratic`, whose values are those of the dual."""
    return _Solution.apply(quadratic, dual, dual.solve(tol=tol).y, method, noise)  # type: ignore[return-value]


class _Solution(torch.autograd.Function):
    """y*(G) forwards; -w y' backwards."""

    @staticmethod
    def forward(ctx: Any, quadratic: Tensor, dual: Dual, y: Tensor, method: Estimator, noise: Noise) -> Tensor:
        ctx.dual, ctx.method, ctx.noise = dual, method, noise
        ctx.save_for_backward(y)
        return y.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Any, ...]:
        (y,) = ctx.saved_tensors
        if ctx.method == LinearSolve():
            return -adjoint(ctx.dual, y, cotangent) @ y.mT, None, None, None, None
        problem, plain = DualProblem(ctx.dual, cotangent), ctx.dual.coded.plain
        lin = problem.linearize(ctx.dual.quadratic, plain(y))
        return ctx.method.estimate(lin, ctx.noise).gradient, None, None, None, None


def adjoint(dual: Dual, y: Tensor, cotangent: Tensor) -> Tensor:
    """w = Pi (Pi G Pi)^+ Pi v on the face of y: one small system per task."""
    return dual.on_face(dual.free(y - dual.gradient(y) / dual.bound), cotangent)


class DualProblem(Problem):
    """The duals with x = G and an upper function <cotangent, y>, in the terms of the library."""

    def __init__(self, dual: Dual, cotangent: Tensor) -> None:
        self.dual, self.cotangent = dual, dual.coded.plain(cotangent)
        super().__init__(self._plain_upper, self._plain_lower, dual.coded.constraint())

    def y_space(self, constraint: Any) -> Space:
        return Space(self.cotangent.ndim - 1)

    def linearize(self, x: Vector, y: Vector, batch: Any = None) -> Linearization:
        return _DualLinearization(self, x, y, batch)

    def _plain_upper(self, x: Any, y: Any) -> Tensor:
        return (self.cotangent * y).sum()

    def _plain_lower(self, x: Any, y: Any) -> Tensor:
        y = self.dual.coded.columns(y)
        return (y * (0.5 * (x @ y) - self.dual.coded.indicator)).sum()


class _DualLinearization(Linearization):
    """grad_y g = G y - b, G_yy v = G v and G_xy v = v y'."""

    problem: DualProblem
    x: Any

    def _upper_value(self) -> Tensor:
        return self.problem._plain_upper(self.x, self.y)

    def _lower_value(self) -> Tensor:
        return self.problem._plain_lower(self.x, self.y)

    def _upper_gradients(self) -> tuple[Vector, Vector]:
        return torch.zeros_like(self.x), self.problem.cotangent

    def _lower_gradient_x(self) -> Vector:
        return 0.5 * self._lower_cross(self.y)  # type: ignore[operator]

    def _lower_gradient_y(self) -> Vector:
        coded = self.problem.dual.coded
        return coded.plain(self.x @ coded.columns(self.y) - coded.indicator)  # type: ignore[arg-type]

    def _lower_hvp(self, v: Any) -> Vector:
        coded = self.problem.dual.coded
        return coded.plain(self.x @ coded.columns(v))

    def _lower_cross(self, v: Any) -> Vector:
        columns = self.problem.dual.coded.columns
        return columns(v) @ columns(self.y).mT  # type: ignore[arg-type]
