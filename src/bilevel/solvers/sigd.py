"""SIGD and DS-BLO: a random linear term in the lower level makes F differentiable (linear inequalities).

Khanduri, Tsaknakis, Zhang, Liu & Hong. Adding q . y to g, with q from a continuous distribution, makes strict
complementarity hold almost surely, so that y_q*(x), the solution over {y : A y + B x <= b}, is differentiable:

    grad F_q(x) = f_x - G_xy w,     w = Pi (Pi G_yy Pi)^+ Pi f_y,     |F_q - F| <= |f_y| |q| / mu,

with Pi the projector onto the null space of the active rows at y_q*(x): eliminating the multipliers from the
2025 paper's Jacobians of y_q* and of the multipliers gives this form. A set that moves with x
(B x) adds the term of `hypergradients.base.assemble`.

`SIGD` ("Linearly constrained bilevel optimization: a smoothed implicit gradient approach", ICML 2023) draws q once:

    y_hat = projected gradient on g + q . y, to a tolerance;    x_{k+1} = P_X( x_k - alpha grad F_q(x_k) )

`DSBLO` ("A doubly stochastically perturbed algorithm for linearly constrained bilevel optimization", 2025, Algorithm 1)
draws q afresh at each step, takes the gradient at a random point of the last segment, and averages:

    x_{k+1} = P_X( x_k - m_k / (gamma_1 |m_k| + gamma_2) ),      x_bar uniform in [x_k, x_{k+1}],
    m_{k+1} = beta m_k + (1 - beta) grad F_{q_{k+1}}(x_bar)

Differs from the papers in: 1. any polyhedral set with a projection, by the projector of its face instead of rows and
multipliers; 2. the projected-gradient steps start from the last y; 3. q is uniform in a ball, one of the continuous
distributions the papers allow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from .._checks import Settings, setting
from .._projected_gradient import safe_step
from ..hypergradients.base import assemble
from ..hypergradients.linear_solve import solve_on_face
from ..problem import Problem
from ..random import RandomStreams, Seeds
from ..spaces import Vector, leaves
from .base import PROJECTION, PROJECTOR, Need, State, batch_of, estimate_curvature, like_x, like_y, upper_move


@dataclass(kw_only=True, repr=False)
class SIGDState(State):
    """The state of SIGD; y is the approximate solution of the perturbed lower level."""

    adjoint: Any = like_y(reset="keep")  # w, the warm start of the linear system
    curvature: float


@dataclass(kw_only=True, repr=False)
class DSBLOState(SIGDState):
    """The state of DS-BLO."""

    momentum: Any = like_x()  # m


@dataclass(frozen=True, kw_only=True)
class _Perturbed(Settings):
    """The settings and the gradient that both methods share."""

    needs: ClassVar[tuple[Need, ...]] = (PROJECTION, PROJECTOR)

    upper_step: float = 0.1
    perturbation: float = 1e-3
    inner_steps: int = 100
    inner_tol: float = 1e-4
    linear_tol: float = 1e-4
    linear_iterations: int = 100
    refresh: int = 100

    def _gradient(
        self, problem: Problem, state: Any, x: Vector, streams: RandomStreams
    ) -> tuple[Vector, Vector, Vector, float]:
        """grad F_q(x) with q from `streams`, and the new y, adjoint and curvature."""
        constraint = problem.constraint_at(x)
        space = problem.y_space(constraint)
        y = problem.project(constraint, state.y) if problem.moving else state.y
        batch = batch_of(problem, state.streams())
        first = problem.linearize(x, y, batch)
        curvature = estimate_curvature(first, state, state.step, self.refresh)
        eta = safe_step(curvature)
        q = space.scaled(space.ball(y, streams.generator("smoothing", device=leaves(y)[0].device)), self.perturbation)
        for _ in range(self.inner_steps):
            z = space.add(y, space.add(problem.lower_grad(x, y, batch), q), -eta)
            ahead = problem.project(constraint, z)
            move = float(space.norm(space.add(ahead, y, -1.0)))
            y = ahead
            if move <= self.inner_tol * eta:
                break

        lin = problem.linearize(x, y, batch)
        z = space.add(y, space.add(lin.lower_grad_y, q), -eta)
        face = lin.constraint.jacobian(z)
        limits: Any = {"tol": self.linear_tol, "max_iterations": self.linear_iterations}
        w = solve_on_face(lin, face, lin.upper_grad_y, state.adjoint, **limits).value
        return assemble(lin, w, z, eta), y, w, curvature


@dataclass(frozen=True, kw_only=True)
class SIGD(_Perturbed):
    """Smoothed implicit gradient descent: one random linear term for the whole run, double loop.

    x <- P_X(x - alpha grad F_q(x)), F_q with q . y added to g.

    Parameters
    ----------
    upper_step
        alpha, the step of x.
    perturbation
        The radius of the ball from which q is drawn; y_q* differs from y* by at most |q| / mu.
    inner_steps, inner_tol
        The maximal number of projected-gradient steps per iteration, from the last y, and the residual at which they
        end.
    linear_tol, linear_iterations
        Relative residual and maximal number of Hessian products of the linear system on the face.
    refresh
        L, the largest curvature of g in y, is estimated again after this number of steps.

    References
    ----------
    Khanduri, Tsaknakis, Zhang, Liu, Liu, Zhang & Hong (2023), Linearly constrained bilevel optimization: a smoothed
    implicit gradient approach, ICML.

    Examples
    --------
    >>> SIGD(perturbation=1e-4).inner_steps
    100
    """

    def init(self, problem: Problem, x: Vector, y: Vector, seeds: Seeds) -> SIGDState:
        """w_0 = 0."""
        space = problem.y_space(problem.constraint_at(x))
        return SIGDState(x=x, y=y, seeds=seeds, adjoint=space.zeros_like(y), curvature=math.nan)

    def step(self, problem: Problem, state: SIGDState) -> SIGDState:
        """Solve the perturbed lower level, then move x; q is the draw of step 0 throughout."""
        h, y, w, curvature = self._gradient(problem, state, state.x, state.streams(0))
        x = upper_move(problem, state.x, h, self.upper_step)
        if problem.moving:
            y = problem.project(problem.constraint_at(x), y)
        return replace(state, x=x, y=y, step=state.step + 1, adjoint=w, curvature=curvature)


@dataclass(frozen=True, kw_only=True)
class DSBLO(_Perturbed):
    """Doubly stochastic: a new random linear term and a random point of the last segment at each step.

    x <- P_X(x - m / (|m|/longest_move + 1/upper_step)),  m <- beta m + (1 - beta) grad F_q(x_bar), a new q every time.

    Parameters
    ----------
    upper_step
        1/gamma_2: the step of x while |m| is small.
    longest_move
        1/gamma_1: x never moves further than this in one step.
    momentum
        beta in [0, 1), the weight of the old direction.
    perturbation, inner_steps, inner_tol, linear_tol, linear_iterations, refresh
        As in `SIGD`.

    References
    ----------
    Khanduri, Tsaknakis, Zhang, Liu & Hong (2025), A doubly stochastically perturbed algorithm for linearly constrained
    bilevel optimization, algorithm 1.

    Examples
    --------
    >>> DSBLO(momentum=0.5).longest_move
    1.0
    """

    longest_move: float = 1.0
    momentum: float = setting(0.9, high=1.0, closed="left")

    def init(self, problem: Problem, x: Vector, y: Vector, seeds: Seeds) -> DSBLOState:
        """m_1 = grad F_q(x_1)."""
        space = problem.y_space(problem.constraint_at(x))
        state = DSBLOState(x=x, y=y, seeds=seeds, adjoint=space.zeros_like(y), curvature=math.nan, momentum=None)
        h, y, w, curvature = self._gradient(problem, state, x, state.streams(0))
        return replace(state, y=y, adjoint=w, curvature=curvature, momentum=h)

    def step(self, problem: Problem, state: DSBLOState) -> DSBLOState:
        """A step of x, then a gradient at a random point of the step."""
        space, k = problem.x_space, state.step + 1
        streams = state.streams(k)
        scale = 1.0 / (float(space.norm(state.momentum)) / self.longest_move + 1.0 / self.upper_step)
        x = problem.project_x(space.add(state.x, state.momentum, -scale))
        weight = float(torch.rand((), generator=streams.generator("smoothing", index=1), dtype=torch.float64))
        between = space.lerp(state.x, x, weight)
        h, y, w, curvature = self._gradient(problem, replace(state, step=k), between, streams)
        momentum = space.lerp(h, state.momentum, self.momentum)
        if problem.moving:
            y = problem.project(problem.constraint_at(x), y)
        return replace(state, x=x, y=y, step=k, adjoint=w, curvature=curvature, momentum=momentum)
