"""The solution of the duals as a differentiable layer: from G to y*(G), with any hypergradient of the library.

At y* on the face F, dy = -Pi (Pi G Pi)^+ Pi dG y, so that a cotangent v of y becomes -w y' of G with w solving
Pi G Pi w = Pi v: in closed form for `LinearSolve()`, and otherwise by the estimator, which gives the symmetric form
-(w y' + y w')/2. Both agree for every symmetric G(t).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..hypergradients import Estimator, LinearSolve
from ..problem import Problem
from ..random import RandomStreams
from ..spaces import Space
from .svm_dual import Dual


def solved(dual: Dual, quadratic: Tensor, method: Estimator, streams: RandomStreams, *, tol: float) -> Tensor:
    """y* (t, n, p) as a function of `quadratic`, whose values are those of the dual."""
    return _Solution.apply(quadratic, dual, dual.solve(tol=tol).y, method, streams)


class _Solution(torch.autograd.Function):
    """y*(G) forwards; -w y' backwards."""

    @staticmethod
    def forward(ctx: Any, quadratic: Tensor, dual: Dual, y: Tensor, method: Estimator, streams: Any) -> Tensor:
        ctx.dual, ctx.method, ctx.streams = dual, method, streams
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
        return ctx.method.estimate(lin, ctx.streams).gradient, None, None, None, None


def adjoint(dual: Dual, y: Tensor, cotangent: Tensor) -> Tensor:
    """w = Pi (Pi G Pi)^+ Pi v on the face of y: one small system per task."""
    return dual.on_face(dual.free(y - dual.gradient(y) / dual.bound), cotangent)


class DualProblem(Problem):
    """The duals with x = G and an upper function <cotangent, y>, in the terms of the library."""

    def __init__(self, dual: Dual, cotangent: Tensor) -> None:
        coded = dual.coded
        v = coded.plain(cotangent)
        self._space = Space(v.ndim - 1)
        super().__init__(
            lambda x, y: (v * y).sum(), lambda x, y: Dual(coded, x).value(coded.columns(y)), coded.constraint()
        )

    def y_space(self, constraint: Any) -> Space:
        return self._space
