"""Estimates of the Jacobian of a projection under randomised smoothing.

P_delta(z) = E[P_Y(z + delta u)] with u uniform in the unit ball is differentiable, and its Jacobian is
E[H(z + delta u)] (the proof of Proposition 1 of the paper). Each class draws one estimate of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from .._checks import Settings, setting
from ..errors import PrecisionWarning
from ..random import RandomStreams
from ..sets.base import ConvexSet, ProjectionJacobian
from ..spaces import Space, Vector, leaves, tree_map

ANNEALING = 60
"""The number of steps after which an automatic radius begins to decrease."""
BLOCK = 64
"""Directions of `TwoPoint` that are held in memory at once."""

NO_SMOOTHING = "; for no smoothing use Exact()"


@dataclass(frozen=True, kw_only=True)
class Exact:
    """H = grad P_Y(z), the analytic Jacobian at z itself: one element of the generalised Jacobian, no smoothing.

    References
    ----------
    Shi, Chang & Gu (2024), the paper of DMLCBO, section 3.1: any element of the generalised Jacobian gives a
    hypergradient.

    Examples
    --------
    >>> Exact()
    Exact()
    """

    def point(self, constraint: ConvexSet, z: Vector, space: Space, streams: RandomStreams, index: int = 0) -> Vector:
        """z itself."""
        return z

    def sample(
        self, constraint: ConvexSet, z: Vector, space: Space, streams: RandomStreams, index: int = 0
    ) -> ProjectionJacobian:
        """H(z)."""
        return constraint.jacobian(z)


@dataclass(frozen=True, kw_only=True)
class Perturbed(Settings):
    """The analytic Jacobian at z + radius * u, u uniform in the unit ball: unbiased, norm <= 1, one product.

    Parameters
    ----------
    radius
        delta, in the units of y. "auto" decreases during a run: at step k it is sqrt(n) max|z - P_Y(z)| (1 +
        k/60)^(-3/2), with n the number of entries of y. At first it is large enough to make constraints inactive whose
        multipliers are as large as the largest one, and in the end none. At a kink, where multipliers vanish, it is
        tiny but positive.

    References
    ----------
    Shi, Chang & Gu (2024), the paper of DMLCBO, proposition 1 (its proof): the smoothed Jacobian is E[grad P_Y(z +
    delta u)].

    Examples
    --------
    >>> Perturbed(radius=1e-3)
    Perturbed(radius=0.001)
    """

    radius: float | Literal["auto"] = setting(1e-6, remedy=NO_SMOOTHING)

    def point(self, constraint: ConvexSet, z: Vector, space: Space, streams: RandomStreams, index: int = 0) -> Vector:
        """z + radius u for draw `index` of this step."""
        generator = streams.generator("smoothing", index, leaves(z)[0].device)
        radius = _annealed(constraint, z, space, streams.step) if isinstance(self.radius, str) else self.radius
        return space.add(z, space.ball(z, generator), radius)

    def sample(
        self, constraint: ConvexSet, z: Vector, space: Space, streams: RandomStreams, index: int = 0
    ) -> ProjectionJacobian:
        """H(z + radius u)."""
        return constraint.jacobian(self.point(constraint, z, space, streams, index))


def _annealed(constraint: ConvexSet, z: Vector, space: Space, step: int) -> float:
    """The radius that "auto" means at this step."""
    pairs = zip(leaves(z), leaves(constraint.project(z)), strict=True)
    multiplier = max(float((u - v).abs().max()) for u, v in pairs)
    size, limits = max(float(u.abs().max()) for u in leaves(z)), torch.finfo(leaves(z)[0].dtype)
    annealed = multiplier * space.size(z) ** 0.5 * (1.0 + step / ANNEALING) ** -1.5
    return max(annealed, limits.eps**0.75 * size, limits.tiny**0.25)


@dataclass(frozen=True, kw_only=True)
class TwoPoint(Settings):
    """The paper's estimator: (d/n) sum_i (P(z + delta u_i) - P(z - delta u_i)) u_i' / (2 delta).

    The directions are uniform on the unit *sphere* (in the ball the mean would be d/(d+2) times the true value, see
    erratum 1). The estimator needs no analytic Jacobian, costs 2n projections, is very noisy (erratum 4), and needs
    float64 if the radius is small (erratum 5).

    Parameters
    ----------
    radius
        delta, in the units of y.
    directions
        n; None for the dimension of y, as in the paper.

    References
    ----------
    Shi, Chang & Gu (2024), the paper of DMLCBO, section 3.3 and lemma 3.10.

    Examples
    --------
    >>> TwoPoint(directions=32)
    TwoPoint(radius=1e-06, directions=32)
    """

    radius: float = setting(1e-6, remedy=NO_SMOOTHING)
    directions: int | None = None

    def point(self, constraint: ConvexSet, z: Vector, space: Space, streams: RandomStreams, index: int = 0) -> Vector:
        """z: the differences are centred there."""
        return z

    def sample(
        self, constraint: ConvexSet, z: Vector, space: Space, streams: RandomStreams, index: int = 0
    ) -> ProjectionJacobian:
        """H-bar for draw `index` of this step."""
        self._warn_if_unresolved(z, space.size(z))
        draw = partial(streams.generator, "smoothing", index, leaves(z)[0].device)
        return TwoPointJacobian(self.radius, self.directions or space.size(z), constraint, z, space, draw)

    def _warn_if_unresolved(self, z: Vector, dimension: int) -> None:
        """Each entry of delta * u is about delta/sqrt(d): it must be well above the rounding error of z (erratum 5)."""
        size = max(float(u.abs().max()) for u in leaves(z))
        dtype = leaves(z)[0].dtype
        if self.radius / dimension**0.5 < 1e2 * torch.finfo(dtype).eps * size:
            warnings.warn(
                f"TwoPoint(radius={self.radius:g}) in {dtype}: the differences are lost in rounding at dimension "
                f"{dimension} and entries of size {size:.3g}; use float64, a larger radius, or Perturbed()",
                PrecisionWarning,
                stacklevel=5,
            )


@dataclass(frozen=True)
class TwoPointJacobian(ProjectionJacobian):
    """One draw of H-bar. `apply` is the *transposed* product H-bar' v, the one the hypergradient needs.

    The directions are drawn again from (seed, step, index) at each product, so none of them is stored.
    """

    radius: float
    count: int
    constraint: ConvexSet
    z: Vector
    space: Space
    generator: Callable[[], torch.Generator]

    def apply(self, v: Vector) -> Vector:
        space, z, radius, generator = self.space, self.z, self.radius, self.generator()
        total = space.zeros_like(z)
        for done in range(0, self.count, BLOCK):
            u = space.sphere(z, generator, min(BLOCK, self.count - done))
            ahead = self.constraint.project(space.add(z, u, radius))
            behind = self.constraint.project(space.add(z, u, -radius))
            slope = space.dots(space.add(ahead, behind, -1.0), v) / (2.0 * radius)
            total = space.add(total, tree_map(lambda w: torch.tensordot(slope.to(w), w, 1), u))  # noqa: B023
        return space.scaled(total, space.size(z) / self.count)
