"""The Goldstein measure: the smallest element of the convex hull of gradients of F around a point."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._checks import check_count, check_number, check_set_only
from ..errors import NonFiniteError
from ..problem import Problem
from ..random import RandomStreams, Seeds
from ..spaces import Vector, tree_map
from .finite_differences import SPACE, Probe
from .jacobian_hull import descend, nearest_combination
from .lower_level import solved_lower
from .report import Cause
from .sampled_jacobians import stationarity_measure

SOLVED = 1e-6
"""Residuals above this, relative for linear systems and to max(1, |y|) for lower levels, are worth a word."""


@dataclass(frozen=True, kw_only=True)
class Goldstein:
    """The result of `goldstein_measure`.

    Parameters
    ----------
    radius, samples
        The radius around x, and the number of gradients.
    value
        An upper bound on min { |v| : v in the hull of gradients of F }; with a set X of x, of |x - P_X(x - v)|.
    gradient_norm
        The same measure of the gradient at x alone.
    lower_residual, linear_residual
        The largest lower-level residual and linear residual of the gradients.
    flaw
        Why the value is not valid, or None: `Cause.NOT_STRONGLY_CONVEX` or `Cause.SINGULAR_HESSIAN` at x, where the
        value is NaN, or `Cause.UNSOLVED` when a lower level or a linear system was not solved.

    References
    ----------
    Goldstein (1977).

    Examples
    --------
    F(x) = |x|, near its kink:

    >>> import bilevel, torch
    >>> problem = bilevel.Problem(
    ...     lambda x, y: (2 * y - x).sum(),
    ...     lambda x, y: (y - x).square().sum() / 2,
    ...     bilevel.sets.NonNegative(),
    ...     y0=torch.zeros(1).double(),
    ... )
    >>> found = bilevel.diagnostics.goldstein_measure(problem, torch.tensor([0.004]).double(), radius=0.01)
    >>> round(found.value, 6), round(found.gradient_norm, 6), found.flaw
    (0.0, 1.0, None)
    """

    radius: float
    value: float
    gradient_norm: float
    samples: int
    lower_residual: float = 0.0
    linear_residual: float = 0.0
    flaw: Cause | None = None

    @property
    def valid(self) -> bool:
        """Whether the gradients are those of F."""
        return self.flaw is None

    def __str__(self) -> str:
        if self.flaw is not None:
            return f"no Goldstein measure: {self.flaw.text}; remedy: {self.flaw.remedy}"
        return (
            f"Goldstein measure of F: at most {self.value:.3g} within {self.radius:g} of x "
            f"({self.samples} gradients; at x itself {self.gradient_norm:.3g})"
        )


def goldstein_measure(
    problem: Problem, x: Vector, radius: float, y: Vector | None = None, *, samples: int = 40, seed: int = 0
) -> Goldstein:
    """min |v| over v in the hull of { grad F(x') : |x' - x| <= radius }, the lower level solved at each x'.

    Unlike the certificate, this is a property of F itself: at random points x' F is almost surely differentiable, and
    the hull of its gradients is that of the definition. It costs one lower-level solve per sample. With a set X of x,
    the points x' are in X, and the measure is |x - P_X(x - v)|.

    Parameters
    ----------
    problem
        f, g and the set.
    x
        The point, a tensor or a dictionary of tensors of any shape.
    radius
        The radius, in the units of x.
    y
        The start of lower-level solves, of the shape of y; default `problem.y0`.
    samples
        The number of points x' to draw.
    seed
        The seed of the samples.

    Returns
    -------
    Goldstein
        The measure, the norm of the gradient at x, and the residuals.

    References
    ----------
    Goldstein (1977); Zhang, Lin, Jegelka, Sra & Jadbabaie (2020).

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
    check_number("radius", radius)
    check_count("samples", samples)
    probe = Probe.checked(problem, x, y)
    lower = solved_lower(probe, probe.x, probe.y)
    if lower.flaw is not None:
        nothing = {"value": math.nan, "gradient_norm": math.nan, "lower_residual": lower.residual}
        return Goldstein(radius=radius, samples=samples, flaw=lower.flaw, **nothing)
    # That at x is not among them: x may be a kink, where h need not lie in Clarke's gradient (erratum 11).
    around = [
        _gradient(probe, point, lower.y)
        for point in _around(probe, radius, samples, RandomStreams(Seeds.from_seed(seed)))
    ]
    here = _gradient(probe, probe.x, lower.y)
    residuals = [max(column) for column in zip(*(g[1:] for g in (here, *around)), strict=True)]
    unsolved = residuals[0] > SOLVED * max(1.0, float(lower.y.norm())) or residuals[1] > SOLVED
    return Goldstein(
        radius=radius,
        value=_smallest(torch.stack([g.value for g in around], -1), stationarity_measure(probe)),
        gradient_norm=float(stationarity_measure(probe)(here.value)[0].norm()),
        samples=samples,
        lower_residual=residuals[0],
        linear_residual=residuals[1],
        flaw=Cause.UNSOLVED if unsolved else None,
    )


def _around(probe: Probe, radius: float, samples: int, streams: RandomStreams) -> Iterator[Tensor]:
    """Points of X within the radius: P_X does not lead farther away from a point of X."""
    for k in range(samples):
        draw: Any = SPACE.ball(probe.as_x(probe.x), streams.generator("smoothing", k))
        point = probe.as_x(probe.x + radius * SPACE.ravel(draw))
        yield SPACE.ravel(tree_map(Tensor.detach, probe.problem.upper_constraint.project(point)))


def _smallest(J: Tensor, measure: Any) -> float:
    """min over l in the simplex of |measure(J l)|."""

    def at(weights: Tensor) -> tuple[Tensor, Tensor]:
        value, derivative = measure(J @ weights)
        return value, derivative(J)

    corners = torch.eye(J.shape[1], dtype=J.dtype)
    norms = [float(at(corner)[0].norm()) for corner in corners]
    starts = [corners[norms.index(min(norms))], nearest_combination(J, torch.zeros(len(J), dtype=J.dtype))]
    return min([*norms, *(float(at(start)[0].norm()) for start in starts), *(descend(at, s)[0] for s in starts)])


class _Gradient(NamedTuple):
    value: Tensor
    lower_residual: float
    linear_residual: float


def _gradient(probe: Probe, x: Tensor, start: Tensor) -> _Gradient:
    """grad F(x), with the lower level and the linear system as tight as the numbers allow."""
    solved = probe.solve(x, start)
    value, residual = probe.hypergradient(x, SPACE.ravel(solved.y))
    if not bool(torch.isfinite(value).all()):
        apart = float((x - probe.x).norm())
        raise NonFiniteError(
            f"the gradient of F is not finite {apart:.3g} from x: take a smaller radius, or give "
            "Problem(..., upper_constraint=...) the domain of f and g"
        )
    return _Gradient(value, solved.residual, residual)
