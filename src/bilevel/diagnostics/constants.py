"""The constants of a problem in the theorem of the paper, given or estimated at random points."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from .._checks import check_count, check_number, check_problem
from .._derivative_check import unit
from ..errors import InvalidInputError, NonFiniteError
from ..problem import Problem
from ..random import Seeds, plain_generator
from ..spaces import Vector
from .finite_differences import Probe, dense_matrix
from .lower_level import DENSE


@dataclass(frozen=True, kw_only=True)
class Constants:
    """The constants of Assumptions 2.1 and 2.2 of the paper.

    Parameters
    ----------
    mu, smoothness
        mu_g and L_g: g is mu_g-strongly convex in y, and grad_y g is L_g-Lipschitz in y.
    cross
        C_gxy, a bound on |grad^2_xy g|; it is also the Lipschitz constant of grad_y g in x.
    cross_smoothness, hessian_smoothness
        L_gxy and L_gyy: Lipschitz constants of grad^2_xy g and grad^2_yy g.
    upper_slope, upper_smoothness
        C_fy, a bound on |grad_y f|; L_f, the Lipschitz constant of the gradient of f.
    dimension
        d_2, the dimension of y.

    Examples
    --------
    >>> Constants(mu=1, smoothness=4, cross=2, upper_slope=1, upper_smoothness=0, dimension=3).condition
    4.0
    """

    mu: float
    smoothness: float
    cross: float
    upper_slope: float
    upper_smoothness: float
    dimension: int
    cross_smoothness: float = 0.0
    hessian_smoothness: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            check_number(field.name, getattr(self, field.name), closed="left")
        check_count("dimension", self.dimension)
        if not 0 < self.mu <= self.smoothness:
            raise InvalidInputError(
                f"mu = {self.mu:g} and smoothness = {self.smoothness:g}: the theory needs 0 < mu <= smoothness; "
                "give g more curvature in y, for example + 1e-3 * y.square().sum()"
            )

    @property
    def condition(self) -> float:
        """L_g / mu_g."""
        return self.smoothness / self.mu


def estimate_constants(
    problem: Problem, x: Vector, y: Vector | None = None, *, radius: float = 1.0, samples: int = 8, seed: int = 0
) -> Constants:
    """mu = min |G_yy|, L = max |G_yy|, C = max |G_xy|, ... at random points within `radius` of (x, y), y in Y.

    Sampled values are at most (for mu: at least) the true constants: they are estimates, not bounds.

    Parameters
    ----------
    problem
        f, g and the set.
    x, y
        A point: tensors, or dictionaries of tensors, of any shape; y defaults to `problem.y0`.
    radius
        The radius around the point.
    samples
        The number of points.
    seed
        The seed of the points.

    Returns
    -------
    Constants
        The estimates, for `Theory`.

    References
    ----------
    Shi, Chang & Gu (2024), the paper of DMLCBO, assumptions 2.1 and 2.2.

    Examples
    --------
    >>> import bilevel, torch
    >>> problem = bilevel.Problem(
    ...     upper=lambda x, y: y.sum(), lower=lambda x, y: (y - x).square().sum(), y0=torch.zeros(2).double()
    ... )
    >>> found = estimate_constants(problem, torch.zeros(2).double())
    >>> round(found.mu, 6), round(found.smoothness, 6), round(found.cross, 6), round(found.upper_slope, 6)
    (2.0, 2.0, 2.0, 1.414214)
    """
    check_problem(problem)
    check_number("radius", radius)
    check_count("samples", samples, least=2)
    generator = plain_generator(Seeds.from_seed(seed).smoothing)
    probe = Probe.checked(problem, x, y)
    if probe.y.numel() > DENSE:
        raise InvalidInputError(f"y has {probe.y.numel()} entries, more than {DENSE}: give Constants(...) yourself")
    points = [_Local(probe, probe.x, probe.y)]
    for _ in range(samples - 1):
        moved = probe.x + radius * unit(probe.x, generator)
        points.append(_Local(probe, moved, probe.project(probe.y + radius * unit(probe.y, generator), moved)))
    pairs = [(p, q, d) for i, p in enumerate(points) for q in points[:i] if (d := float((p.at - q.at).norm())) > 0]
    curvatures = torch.stack([torch.linalg.eigvalsh((p.hessian + p.hessian.T) / 2) for p in points])
    return Constants(
        mu=float(curvatures.min()),
        smoothness=float(curvatures.max()),
        cross=max(_spectral(p.cross) for p in points),
        upper_slope=max(float(p.f_y.norm()) for p in points),
        upper_smoothness=max(
            max(float((p.f_x - q.f_x).norm()), float((p.f_y - q.f_y).norm())) / d for p, q, d in pairs
        ),
        cross_smoothness=max(_spectral(p.cross - q.cross) / d for p, q, d in pairs),
        hessian_smoothness=max(_spectral(p.hessian - q.hessian) / d for p, q, d in pairs),
        dimension=probe.y.numel(),
    )


class _Local:
    """Derivatives at one point, as matrices."""

    def __init__(self, probe: Probe, x: Tensor, y: Tensor) -> None:
        lin = probe.linearize(x, y)
        self.at = torch.cat([x, y])
        self.f_x, self.f_y = probe.upper_grads(x, y)
        self.hessian, self.cross = (dense_matrix(product, lin.y) for product in (lin.lower_hvp, lin.lower_cross))
        parts = (self.at, self.f_x, self.f_y, self.hessian, self.cross)
        if not all(bool(torch.isfinite(part).all()) for part in parts):
            raise NonFiniteError(
                "the derivatives of f and g are not finite at a point within radius: take a smaller one"
            )


def _spectral(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix, 2))
