"""Estimates of the Jacobian of a projection under randomised smoothing.

P_delta(z) = E[P_Y(z + delta u)] with u uniform in the unit ball is differentiable, and its Jacobian is
E[H(z + delta u)] (the proof of Proposition 1 of the paper). Each class draws one estimate of it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch

from .errors import InvalidInput
from .randomness import Noise
from .sets.base import ConvexSet, Face
from .spaces import Space, Vector, leaves, tree_map


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

    def point(self, z: Vector, space: Space, noise: Noise, index: int = 0) -> Vector:
        """z itself."""
        return z

    def sample(self, constraint: ConvexSet, z: Vector, space: Space, noise: Noise, index: int = 0) -> Face:
        """H(z)."""
        return constraint.jacobian(z)


@dataclass(frozen=True, kw_only=True)
class Perturbed:
    """The analytic Jacobian at z + radius * u, u uniform in the unit ball: unbiased, norm <= 1, one product.

    Parameters
    ----------
    radius
        delta, in the units of y.

    References
    ----------
    Shi, Chang & Gu (2024), the paper of DMLCBO, proposition 1 (its proof): the smoothed Jacobian is E[grad P_Y(z +
    delta u)].

    Examples
    --------
    >>> Perturbed(radius=1e-3)
    Perturbed(radius=0.001)
    """

    radius: float = 1e-6

    def __post_init__(self) -> None:
        _check_radius(self.radius)

    def point(self, z: Vector, space: Space, noise: Noise, index: int = 0) -> Vector:
        """z + radius u for draw `index` of this step."""
        generator = noise.generator("smoothing", index, leaves(z)[0].device)
        return space.add(z, space.ball(z, generator), self.radius)

    def sample(self, constraint: ConvexSet, z: Vector, space: Space, noise: Noise, index: int = 0) -> Face:
        """H(z + radius u)."""
        return constraint.jacobian(self.point(z, space, noise, index))


@dataclass(frozen=True, kw_only=True)
class TwoPoint:
    """The paper's estimator: (d/n) sum_i (P(z + delta u_i) - P(z - delta u_i)) u_i' / (2 delta).

    The directions are uniform on the unit *sphere* (in the ball the mean would be d/(d+2) of the truth: erratum 1).
    It needs no analytic Jacobian, costs 2n projections, is very noisy (erratum 4), and needs float64 when the radius
    is small (erratum 5).

    Parameters
    ----------
    radius
        delta, in the units of y.
    directions
        n; None takes the dimension of y, as in the paper.
    orthonormal
        Draw the directions as the orthonormal factor of a Gaussian matrix: less noise, n <= d.
    block
        How many directions are held in memory at once (iid directions only).

    References
    ----------
    Shi, Chang & Gu (2024), the paper of DMLCBO, section 3.3 and lemma 3.10.

    Examples
    --------
    >>> TwoPoint(directions=32)
    TwoPoint(radius=1e-06, directions=32, orthonormal=False, block=64)
    """

    radius: float = 1e-6
    directions: int | None = None
    orthonormal: bool = False
    block: int = 64

    def __post_init__(self) -> None:
        _check_radius(self.radius)
        for name in ("directions", "block"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise InvalidInput(f"{name} must be a positive integer, got {value!r}")

    def point(self, z: Vector, space: Space, noise: Noise, index: int = 0) -> Vector:
        """z: the differences are centred there."""
        return z

    def sample(self, constraint: ConvexSet, z: Vector, space: Space, noise: Noise, index: int = 0) -> Face:
        """H-bar for draw `index` of this step."""
        dimension = space.size(z)
        count = dimension if self.directions is None else self.directions
        if self.orthonormal and count > dimension:
            raise InvalidInput(
                f"directions={count} orthonormal directions do not fit in dimension {dimension}: use at most that many"
            )
        self._warn_if_unresolved(z, dimension)
        return TwoPointJacobian(self, constraint, z, space, noise, index, count)

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


class PrecisionWarning(UserWarning):
    """A finite difference that the dtype cannot resolve.

    Examples
    --------
    >>> import bilevel, torch, warnings
    >>> problem = bilevel.Problem(
    ...     lambda x, y: y.sum(), lambda x, y: (y - x).square().sum(), bilevel.sets.L1Ball(1.0), y0=torch.zeros(2)
    ... )
    >>> method = bilevel.Neumann(smoothing=TwoPoint(radius=1e-9))
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     h = bilevel.hypergradient(problem, torch.ones(2), torch.tensor([0.5, 0.5]), method=method)
    >>> caught[0].category.__name__
    'PrecisionWarning'
    """


class TwoPointJacobian(Face):
    """One draw of H-bar. `apply` is the *transposed* product H-bar' v, the one the hypergradient needs.

    The directions are drawn again from (seed, step, index) at each product, so none of them is stored.
    """

    def __init__(
        self,
        settings: TwoPoint,
        constraint: ConvexSet,
        z: Vector,
        space: Space,
        noise: Noise,
        index: int,
        count: int,
    ) -> None:
        self._settings, self._constraint, self._z, self._space = settings, constraint, z, space
        self._noise, self._index, self._count = noise, index, count

    def _blocks(self) -> list[Vector] | _DirectionBlocks:
        if self._settings.orthonormal:
            return [_orthonormal(self._space, self._z, self._generator(), self._count)]
        return _DirectionBlocks(self)

    def _generator(self) -> torch.Generator:
        return self._noise.generator("smoothing", self._index, leaves(self._z)[0].device)

    def apply(self, v: Vector) -> Vector:
        space, radius = self._space, self._settings.radius
        total = space.zeros_like(self._z)
        for u in self._blocks():
            ahead = self._constraint.project(space.add(self._z, u, radius))
            behind = self._constraint.project(space.add(self._z, u, -radius))
            slope = space.dots(space.add(ahead, behind, -1.0), v) / (2.0 * radius)
            total = space.add(total, tree_map(lambda w: torch.tensordot(slope.to(w), w, 1), u))  # noqa: B023
        return space.scaled(total, space.size(self._z) / self._count)


class _DirectionBlocks:
    """Blocks of iid directions on the sphere, one after the other."""

    def __init__(self, jacobian: TwoPointJacobian) -> None:
        self._jacobian = jacobian

    def __iter__(self):
        jacobian = self._jacobian
        generator, left = jacobian._generator(), jacobian._count
        while left > 0:
            size = min(left, jacobian._settings.block)
            yield jacobian._space.sphere(jacobian._z, generator, size)
            left -= size


def _orthonormal(space: Space, z: Vector, generator: torch.Generator, count: int) -> Vector:
    first = leaves(z)[0]
    gaussian = torch.randn((space.size(z), count), generator=generator, dtype=first.dtype, device=first.device)
    # Column signs of the QR factor are fixed by LAPACK; u and -u give the same term, so that does not matter.
    return space.unravel(torch.linalg.qr(gaussian).Q.T.contiguous(), z)


def _check_radius(radius: float) -> None:
    if isinstance(radius, bool) or not isinstance(radius, int | float) or not 0 < radius < float("inf"):
        raise InvalidInput(f"radius must be positive, got {radius!r}; for no smoothing use Exact()")
