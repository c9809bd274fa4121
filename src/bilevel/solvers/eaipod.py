"""E-AiPOD: AiPOD with lazy projections (Xiao, Shen, Yin & Chen, AISTATS 2023).

Lower level: projections are skipped with probability 1 - p, as in ProxSkip (Mishchenko et al. 2022); r learns the part
of grad_y g that a projection would remove, so that the fixed point is y*(x) all the same:

    y_hat = y - beta (grad_y g(x_k, y) - r)
    y <- P_Y(x_k)( y_hat - (beta/p) r )  with probability p,   else y_hat
    r <- r + (p/beta) (y - y_hat)

Upper level: x is projected on X at every T-th step only, and q learns the part of the hypergradient h that goes:

    x_hat = x - alpha (h - q)
    x <- P_X( x_hat - T alpha q )  at every T-th step,   else x_hat
    q <- q + (x - x_hat) / (T alpha)  at every T-th step

Differs from the paper and the authors' code in: 1. the last of the S lower steps always projects, so that
the y of every state is feasible; 2. y and w follow x at each of the T steps, where the authors hold them and renew
grad_x f alone; 3. q, which is 0 in the paper: x then drifts off X along the normal part of h, and where X is active the
answer is off by O(alpha (T - 1)). With q the fixed point is that of T = 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from .._checks import check_count, check_fields, check_number
from ..hypergradients import Estimator, LinearSolve
from ..problem import Problem
from ..random import RandomStreams, Seeds
from ..spaces import Vector
from .aipod import AiPODState, length, start, upper_step
from .base import AFFINE, PROJECTION, Need, batch_of


@dataclass(frozen=True, kw_only=True)
class EAiPOD:
    """AiPOD for expensive projections: p S + 1 instead of S of them per step in the lower level, 1/T in the upper.

    y_hat = y - beta (grad_y g - r);  y <- P_Y(y_hat - (beta/p) r) with probability p, else y_hat;  r learns the rest.

    Parameters
    ----------
    upper_step, lower_step, lower_steps, hypergradient, refresh
        As in `AiPOD`.
    probability
        p in (0, 1].
    upper_interval
        T: x lies in its set X after every T-th step, and perhaps not in between.

    References
    ----------
    Xiao, Shen, Yin & Chen (2023), Alternating projected SGD for equality-constrained bilevel optimization, AISTATS.

    Examples
    --------
    >>> EAiPOD(probability=0.25).probability
    0.25
    """

    needs: ClassVar[tuple[Need, ...]] = (PROJECTION, AFFINE)

    upper_step: float = 0.1
    lower_step: float | Literal["auto"] = "auto"
    lower_steps: int = 5
    probability: float = 0.2
    upper_interval: int = 1
    hypergradient: Estimator = LinearSolve(tol=1e-3, max_iterations=30)
    refresh: int = 100

    def __post_init__(self) -> None:
        check_fields(self, "upper_step")
        check_fields(self, "lower_step", or_auto=True)
        check_number("probability", self.probability, high=1.0, closed="right", remedy="; 1 projects at every step")
        check_fields(self, "lower_steps", "upper_interval", "refresh", check=check_count)

    def init(self, problem: Problem, x: Vector, y: Vector, seeds: Seeds) -> AiPODState:
        """r starts at zero."""
        return start(problem, x, y, seeds, self.refresh)

    def step(self, problem: Problem, state: AiPODState) -> AiPODState:
        """S lower steps, few of them projected, then one implicit step of x."""
        k, streams = state.step + 1, state.streams(state.step + 1)
        constraint = problem.constraint_at(state.x)
        space, beta, p = problem.y_space(constraint), length(self.lower_step, state), float(self.probability)
        y, r = state.y, state.correction
        for s in range(self.lower_steps):
            gradient = problem.lower_grad(state.x, y, batch_of(problem, streams, y, s))
            y_hat = space.add(space.add(y, gradient, -beta), r, beta)
            if s < self.lower_steps - 1 and _skips(streams, s, p):
                y = y_hat  # and r stays
                continue
            y = problem.project(constraint, space.add(y_hat, r, -beta / p))
            r = space.add(r, space.add(y, y_hat, -1.0), p / beta)
        lin = problem.linearize(state.x, y, batch_of(problem, streams, y, self.lower_steps))
        q = state.upper_correction
        x_space, alpha, period = problem.x_space, self.upper_step, self.upper_interval

        def move(x: Vector, h: Vector) -> Vector:
            nonlocal q
            x_hat = x_space.add(x_space.add(x, h, -alpha), q, alpha)
            if k % period != 0:
                return x_hat
            x = problem.project_x(x_space.add(x_hat, q, -period * alpha))
            q = x_space.add(q, x_space.add(x, x_hat, -1.0), 1.0 / (period * alpha))
            return x

        new = upper_step(replace(state, correction=r), lin, k, self.hypergradient, self.refresh, move)
        return replace(new, upper_correction=q)


def _skips(streams: RandomStreams, index: int, p: float) -> bool:
    """Whether the projection of lower step `index` is left out; its draw belongs to the stream "truncation"."""
    generator = streams.generator("truncation", index + 1)
    return float(torch.rand((), generator=generator, dtype=torch.float64)) >= p
