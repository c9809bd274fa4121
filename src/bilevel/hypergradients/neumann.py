"""The Neumann series of the inverse, truncated at random (as in the paper) or summed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from .._checks import Settings, check_object
from .._krylov import largest_curvature
from ..linearization import Linearization
from ..random import RandomStreams
from ..sets.base import ProjectionJacobian
from ..spaces import Vector, leaves
from .base import Hypergradient, Smoothing, assemble, draw, gradient_step, resolve_eta, space_of
from .smoothing import Perturbed


@dataclass(frozen=True, kw_only=True)
class Neumann(Settings):
    """h = f_x - eta G_xy H_0 sum_{q<Q} prod_{i<=q} [(I - eta G_yy) H_i] f_y.

    With truncation="random" (equation for the stochastic hypergradient, section 3.3 of the paper) c is drawn uniformly
    from {0, ..., Q-1} and the sum is estimated by Q times the c-th term; each H_i has its own draw. With
    truncation="full" all Q terms are summed, which has the same expectation and far less noise. The series converges
    for 0 < eta < 2/L, with L the largest curvature of g on the current face (erratum 2), and is far from its limit for
    small Q (erratum 8). To compute the gradient rather than a cheap direction, use `LinearSolve`.

    Parameters
    ----------
    terms
        Q >= 1.
    eta
        The step of the fixed-point map, or "auto" for 1/L.
    truncation
        "random" or "full".
    smoothing
        How the Jacobian of the projection is estimated.

    Examples
    --------
    >>> Neumann(terms=3, eta=0.5)
    Neumann(terms=3, eta=0.5, truncation='random', smoothing=Perturbed(radius=1e-06))
    """

    terms: int = 3
    eta: float | Literal["auto"] = "auto"
    truncation: Literal["random", "full"] = "random"
    smoothing: Smoothing = Perturbed()  # noqa: RUF009  (frozen)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_object("smoothing", self.smoothing, "Exact()", "sample", "point")

    def estimate(
        self,
        lin: Linearization,
        streams: RandomStreams,
        *,
        curvature: float | None = None,
        start: Vector | None = None,
    ) -> Hypergradient:
        """See `Estimator.estimate`; `start` is not used."""
        eta = resolve_eta(self.eta, lin, streams, curvature)
        z, space = gradient_step(lin, eta), space_of(lin)
        products, weight = self.length(streams)
        faces = [draw(self.smoothing, lin, z, space, streams, i) for i in range(products + 1)]
        near = lin if lin.problem.moving else lin.restrict(*faces)
        term = total = near.upper_grad_y
        for face in faces[1:]:
            turned = face.apply(term)
            term = space.add(turned, near.lower_hvp(turned), -eta)
            total = space.add(total, term) if self.truncation == "full" else term
        u = space.scaled(total, weight)
        w = space.scaled(faces[0].apply(u), eta)
        stats = {"eta": eta, "terms": float(products + 1)}
        drawn_at = self.smoothing.point(lin.constraint, z, space, streams, 0) if lin.problem.moving else z
        return Hypergradient(assemble(near, w, drawn_at, eta, u=u), w, stats)

    def length(self, streams: RandomStreams) -> tuple[int, float]:
        """The number of factors, and the weight of the result."""
        if self.truncation == "full":
            return self.terms - 1, 1.0
        drawn = torch.randint(self.terms, (), generator=streams.generator("truncation"))
        return int(drawn), float(self.terms)

    def contraction(self, lin: Linearization, streams: RandomStreams, *, curvature: float | None = None) -> float:
        """The asymptotic factor by which terms of the series grow; it diverges if this is at least 1.

        On a face (H a projector) that is eta L - 1 with L the largest curvature on it (below 1 the series converges;
        how fast also depends on the smallest curvature). Elsewhere: the spectral radius of (I - eta G_yy) H.
        """
        eta = resolve_eta(self.eta, lin, streams, curvature)
        face = lin.constraint.jacobian(gradient_step(lin, eta))
        if face.is_projector:
            return eta * largest_curvature(lin, face=face, streams=streams) - 1.0
        return _spectral_radius(lin, face, eta, streams)


def _spectral_radius(
    lin: Linearization, face: ProjectionJacobian, eta: float, streams: RandomStreams, steps: int = 40
) -> float:
    """The growth per product of (I - eta G_yy) H, by power iteration (its eigenvalues are real)."""
    space = space_of(lin)
    v = space.random_like(lin.y, streams.generator("curvature", device=leaves(lin.y)[0].device))
    growth = 0.0
    for _ in range(steps):
        length = float(space.norm(v))
        if not 0.0 < length < math.inf:
            return growth
        turned = face.apply(space.scaled(v, 1.0 / length))
        v = space.add(turned, lin.lower_hvp(turned), -eta)
        growth = float(space.norm(v))
    return growth
