"""The hypergradient by reverse mode through projected-gradient steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from .._checks import Settings
from ..linearization import Linearization
from ..random import RandomStreams
from ..spaces import Vector, leaves
from .base import Hypergradient, gradient_step, resolve_eta, space_of


@dataclass(frozen=True, kw_only=True)
class Unrolled(Settings):
    """d/dx f(x, y_K(x)) with y_{t+1} = P_Y(y_t - eta grad_y g(x, y_t)), y_0 held fixed.

    Backwards, with a = f_y(x, y_K): u = H_t a; h -= eta G_xy u; a = u - eta G_yy u. Memory grows with `steps`.

    Parameters
    ----------
    steps
        K >= 1.
    eta
        The step size, or "auto" for 1/L.

    References
    ----------
    Franceschi, Donini, Frasconi & Pontil (2017), reverse mode; here with the Jacobian H_t of each projection.

    Examples
    --------
    >>> Unrolled(steps=100)
    Unrolled(steps=100, eta='auto')
    """

    steps: int = 100
    eta: float | Literal["auto"] = "auto"

    def estimate(
        self,
        lin: Linearization,
        streams: RandomStreams,
        *,
        curvature: float | None = None,
        start: Vector | None = None,
    ) -> Hypergradient:
        """See `Estimator.estimate`; the steps start at the point of `lin`, and `start` is not used."""
        eta = resolve_eta(self.eta, lin, streams, curvature)
        return self.backward(self.forward(lin, eta), eta)

    def forward(self, lin: Linearization, eta: float) -> list[Linearization]:
        """The points y_0, ..., y_K, each with its linearisation."""
        path = [lin]
        for _ in range(self.steps):
            y = lin.problem.project(lin.constraint, gradient_step(path[-1], eta))
            if all(torch.equal(u, v) for u, v in zip(leaves(y), leaves(path[-1].y), strict=True)):
                return path + path[-1:] * (self.steps + 1 - len(path))  # the fixed point: all further steps stay there
            path.append(lin.problem.linearize(lin.x, y, lin.batch))
        return path

    def backward(self, path: list[Linearization], eta: float) -> Hypergradient:
        """The adjoint of the steps of `forward`."""
        *points, last = path
        problem, space, x_space = last.problem, space_of(last), last.problem.x_space
        constraint = path[0].constraint
        h, a = last.upper_grad_x, last.upper_grad_y
        for point in reversed(points):
            z = gradient_step(point, eta)
            u = constraint.jacobian(z).apply(a)
            h = x_space.add(h, point.lower_cross(u), -eta)
            if problem.moving:
                h = x_space.add(h, problem.constraint_vjp(last.x, z, a))
            a = space.add(u, point.lower_hvp(u), -eta)
        return Hypergradient(h, None, {"eta": eta, "steps": float(len(points))})
