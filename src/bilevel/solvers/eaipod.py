"""E-AiPOD: AiPOD with lazy projections (Xiao, Shen, Yin & Chen, AISTATS 2023).

Lower level: projections are skipped with probability 1 - p, as in ProxSkip (Mishchenko et al. 2022); r learns the part
of grad_y g that a projection would remove, so that the fixed point is y*(x) all the same:

    y_hat = y - beta (grad_y g(x_k, y) - r)
    y <- P_Y(x_k)( y_hat - (beta/p) r )  with probability p,   else y_hat
    r <- r + (p/beta) (y - y_hat)

Upper level: x is projected on X at every T-th step only, and q learns the part of the hypergradient h that the
projection removes:

    x_hat = x - alpha (h - q)
    x <- P_X( x_hat - T alpha q )  at every T-th step,   else x_hat
    q <- q + (x - x_hat) / (T alpha)  at every T-th step

Differs from the paper and the authors' code in: 1. the last of the S lower steps always projects, so that
the y of every state is feasible; 2. y and w are updated at each of the T steps, where the authors fix them and update
grad_x f only; 3. q, which is 0 in the paper: x then drifts off X along the normal part of h, and where X is active the
result has an error of O(alpha (T - 1)). With q the fixed point is that of T = 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .._checks import setting
from ..problem import Problem
from ..random import RandomStreams
from ..spaces import Vector
from .aipod import AiPOD, AiPODState
from .base import batch_of


@dataclass(frozen=True, kw_only=True)
class EAiPOD(AiPOD):
    """AiPOD for expensive projections: p S + 1 instead of S projections per step in the lower level, 1/T in the upper.

    y_hat = y - beta (grad_y g - r);  y <- P_Y(y_hat - (beta/p) r) with probability p, else y_hat;  r learns the rest.

    Parameters
    ----------
    upper_step, lower_step, lower_steps, hypergradient, refresh
        As in `AiPOD`.
    probability
        p in (0, 1].
    upper_interval
        T: x lies in its set X after every T-th step, but not always in between.

    References
    ----------
    Xiao, Shen, Yin & Chen (2023), Alternating projected SGD for equality-constrained bilevel optimization, AISTATS.

    Examples
    --------
    >>> EAiPOD(probability=0.25).probability
    0.25
    """

    probability: float = setting(0.2, high=1.0, closed="right", remedy="; 1 projects at every step")
    upper_interval: int = 1

    def _solve_lower(self, problem: Problem, state: AiPODState, streams: RandomStreams) -> tuple[Vector, Vector]:
        """S steps, few of them projected."""
        constraint = problem.constraint_at(state.x)
        space, beta, p = problem.y_space(constraint), self._beta(state), float(self.probability)
        y, r = state.y, state.correction
        for s in range(self.lower_steps):
            gradient = problem.lower_grad(state.x, y, batch_of(problem, streams, s))
            y_hat = space.add(space.add(y, gradient, -beta), r, beta)
            if s < self.lower_steps - 1 and _skips(streams, s, p):
                y = y_hat  # and r stays
                continue
            y = problem.project(constraint, space.add(y_hat, r, -beta / p))
            r = space.add(r, space.add(y, y_hat, -1.0), p / beta)
        return y, r

    def _move(self, problem: Problem, state: AiPODState, h: Vector) -> tuple[Vector, Vector]:
        space, alpha, period = problem.x_space, self.upper_step, self.upper_interval
        q = state.upper_correction
        x_hat = space.add(space.add(state.x, h, -alpha), q, alpha)
        if (state.step + 1) % period != 0:
            return x_hat, q
        x = problem.project_x(space.add(x_hat, q, -period * alpha))
        return x, space.add(q, space.add(x, x_hat, -1.0), 1.0 / (period * alpha))


def _skips(streams: RandomStreams, index: int, p: float) -> bool:
    """Whether the projection of lower step `index` is left out; its draw belongs to the stream "truncation"."""
    generator = streams.generator("truncation", index + 1)
    return float(torch.rand((), generator=generator, dtype=torch.float64)) >= p
