"""The interface of hypergradient estimators, their result, and common formulas.

With z = y - eta grad_y g(x, y) and H in the (smoothed) Jacobian of P_Y at z,

    h = grad_x f - G_xy w,      w = eta H' [I - (I - eta G_yy) H']^{-1} grad_y f.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from .._krylov import largest_curvature
from ..linearization import Linearization
from ..random import RandomStreams
from ..sets.base import ProjectionJacobian
from ..spaces import Space, Vector
from .smoothing import Exact, Perturbed, TwoPoint

Smoothing = Exact | Perturbed | TwoPoint


@dataclass(frozen=True)
class Hypergradient:
    """A hypergradient with its adjoint and statistics.

    Parameters
    ----------
    gradient
        h, of the shape of x.
    adjoint
        w of the shape of y with h = grad_x f - G_xy w (plus the term of a set that moves with x); the warm start of
        the next linear solve.
    stats
        Statistics of the estimator: residual, iterations, eta, ...

    References
    ----------
    Shi, Chang & Gu (2024), the paper of DMLCBO, section 3.1.

    Examples
    --------
    >>> import bilevel, torch
    >>> problem = bilevel.Problem(lambda x, y: y.square().sum() / 2, lambda x, y: (y - x).square().sum() / 2)
    >>> found = bilevel.hypergradient(problem, torch.tensor([2.0]), torch.tensor([2.0]), details=True)
    >>> found.gradient, found.adjoint
    (tensor([2.]), tensor([2.]))
    """

    gradient: Vector
    adjoint: Vector | None = None
    stats: dict[str, float] = field(default_factory=dict)


class Estimator(Protocol):
    """The interface of estimators of h = grad_x f - G_xy w: `LinearSolve`, `Neumann`, `Unrolled`, or your own.

    References
    ----------
    Shi, Chang & Gu (2024), the paper of DMLCBO, sections 3.1 and 3.3.

    Examples
    --------
    An estimator that ignores the lower level, and is therefore wrong:

    >>> import bilevel, torch
    >>> class Direct:
    ...     eta = "auto"
    ...
    ...     def estimate(self, lin, streams, *, curvature=None, start=None):
    ...         return Hypergradient(lin.upper_grad_x)
    >>> problem = bilevel.Problem(lambda x, y: (x * y).sum(), lambda x, y: (y - x).square().sum())
    >>> x = torch.tensor([3.0])
    >>> bilevel.hypergradient(problem, x, x, method=Direct()), bilevel.hypergradient(problem, x, x)
    (tensor([3.]), tensor([6.]))
    """

    @property
    def eta(self) -> float | str:
        """The step of the fixed-point map, or "auto"."""
        ...

    def estimate(
        self,
        lin: Linearization,
        streams: RandomStreams,
        *,
        curvature: float | None = None,
        start: Vector | None = None,
    ) -> Hypergradient:
        """The hypergradient at the point of `lin`.

        Parameters
        ----------
        lin
            f, g and their derivatives at (x, y).
        streams
            The randomness of this step.
        curvature
            A known bound on the largest curvature of g in y, for eta = "auto"; estimated when None.
        start
            A guess of the adjoint, for estimators that iterate.
        """
        ...


def resolve_eta(eta: float | str, lin: Linearization, streams: RandomStreams, curvature: float | None) -> float:
    """The value of eta: "auto" is 1/L with L the largest curvature of g in y (so 0 < eta < 2/L, see erratum 2)."""
    if not isinstance(eta, str):
        return float(eta)
    if curvature is None:
        curvature = largest_curvature(lin, streams=streams)
    return 1.0 / curvature if curvature > 0 else 1.0


def gradient_step(lin: Linearization, eta: float) -> Vector:
    """z = y - eta grad_y g(x, y), the point whose projection is the fixed point of the lower level."""
    return space_of(lin).add(lin.y, lin.lower_grad_y, -eta)


def space_of(lin: Linearization) -> Space:
    """The space of y at this point."""
    return lin.problem.y_space(lin.constraint)


def draw(
    smoothing: Smoothing, lin: Linearization, z: Vector, space: Space, streams: RandomStreams, index: int = 0
) -> ProjectionJacobian:
    """Draw `index` of the smoothed Jacobian at z."""
    if isinstance(smoothing, TwoPoint):
        lin.problem.costs.projections += 2 * (smoothing.directions or space.size(z))
    return smoothing.sample(lin.constraint, z, space, streams, index)


def assemble(
    lin: Linearization, w: Vector, z: Vector, eta: float, *, u: Vector | None = None, near: Linearization | None = None
) -> Vector:
    """h = grad_x f - G_xy w + theta_x' P_theta(z)' u, with u = [I - (I - eta G_yy) H']^{-1} grad_y f.

    z is the point at which H was drawn: the derivatives of P in z and in its parameters belong together. Without u it
    is f_y + w/eta - G_yy w, the whole of it, not only its part on a face; `near` is `lin` on that face.
    """
    h, problem, space = (near or lin).reduced_gradient(w), lin.problem, space_of(lin)
    if not problem.moving:
        return h
    if u is None:
        u = space.add(space.add(lin.upper_grad_y, w, 1.0 / eta), lin.lower_hvp(w), -1.0)
    return problem.x_space.add(h, problem.constraint_vjp(lin.x, z, u))
