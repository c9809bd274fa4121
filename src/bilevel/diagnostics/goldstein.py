"""The Goldstein measure of F itself: the smallest norm in the hull of gradients around x (Goldstein 1977)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..checks import check_calls, check_count, check_lower_start, check_positive, check_set_only, check_vector
from ..hypergradients import LinearSolve
from ..problem import Problem
from ..randomness import Noise, Seeds
from ..spaces import Vector, tree_map
from .jacobian_hull import nearest_combination
from .probe import SPACE, Probe


@dataclass(frozen=True, kw_only=True)
class Goldstein:
    """What `goldstein_measure` returns: `value` is an upper bound on min { |v| : v in the hull of gradients of F }."""

    radius: float
    value: float
    gradient_norm: float
    samples: int

    def __str__(self) -> str:
        return (
            f"Goldstein measure of F: at most {self.value:.3g} within {self.radius:g} of x "
            f"({self.samples} gradients; at x itself {self.gradient_norm:.3g})"
        )


def goldstein_measure(
    problem: Problem, x: Vector, radius: float, y: Vector | None = None, *, samples: int = 40, seed: int = 0
) -> Goldstein:
    """min |v| over v in the hull of { grad F(x') : |x' - x| <= radius }, the lower level solved at each x'.

    Unlike the certificate it speaks of F itself, at points x' where F is almost surely differentiable, and the hull of
    gradients is what the definition asks for; it costs one lower-level solve per sample.

    Parameters
    ----------
    problem, x
        The problem and the point.
    radius
        In the units of x.
    y
        Where lower-level solves start; default `problem.y0`.
    samples
        How many x' are drawn.
    seed
        Of the samples.

    Examples
    --------
    >>> import bilevel, torch
    >>> problem = bilevel.Problem(
    ...     upper=lambda x, y: (2 * y - x).sum(),
    ...     lower=lambda x, y: (y - x).square().sum() / 2,
    ...     constraint=bilevel.sets.NonNegative(),
    ...     y0=torch.zeros(1).double(),
    ... )
    >>> round(goldstein_measure(problem, torch.zeros(1).double(), 1e-3).value, 6)
    0.0
    """
    check_set_only("goldstein_measure", problem)
    check_positive("radius", radius)
    check_count("samples", samples)
    noise = Noise(Seeds.of(seed))
    x = tree_map(Tensor.detach, check_vector("x", x))
    first = check_lower_start(problem, problem.constraint_at(x), y)
    check_calls(problem, x, first)
    probe = Probe(problem, x, first)
    start = SPACE.ravel(probe.solve(probe.x, probe.y).y)
    gradients = []  # not that at x, which may be a kink: there h need not lie in Clarke's gradient (erratum 11)
    for k in range(samples):
        draw: Any = SPACE.ball(probe.as_x(probe.x), noise.generator("smoothing", k))
        gradients.append(_gradient(probe, probe.x + radius * SPACE.ravel(draw), start))
    J = torch.stack(gradients, -1)
    weights = nearest_combination(J, torch.zeros(len(J), dtype=J.dtype))
    value = min(float((J @ weights).norm()), float(J.norm(dim=0).min()))
    here = float(_gradient(probe, probe.x, start).norm())
    return Goldstein(radius=radius, value=value, gradient_norm=here, samples=samples)


def _gradient(probe: Probe, x: Tensor, start: Tensor) -> Tensor:
    y = SPACE.ravel(probe.solve(x, start).y)
    return SPACE.ravel(LinearSolve().estimate(probe.linearize(x, y), Noise()).gradient)
