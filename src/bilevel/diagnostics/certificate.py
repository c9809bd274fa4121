"""(delta, eps)-stationarity: the smallest element of the smoothed set of hypergradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import torch

from .._checks import check_count, check_number, check_set_only
from ..problem import Problem
from ..random import Seeds
from ..spaces import Vector
from .finite_differences import Probe
from .goldstein import Goldstein, goldstein_measure
from .jacobian_hull import JacobianHull
from .lower_level import FaceFacts, solved_lower
from .report import Cause
from .sampled_jacobians import BATCHES, Faces, all_faces_met, batches, draws

CONFIDENCE = 0.95
"""Of the interval."""
CALIBRATED = 4
"""Up to this dimension of y the interval from samples was compared with known answers."""


class BoundEvidence(Enum):
    """The evidence for the lower end of a certificate's interval.

    Examples
    --------
    >>> print(BoundEvidence.SAMPLES.value)
    95 %, from samples
    """

    ALL_FACES = "all faces within delta are known"
    SAMPLES = "95 %, from samples"
    UPPER_BOUND = "an upper bound only"


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The result of `certificate`.

    Parameters
    ----------
    delta, eta
        The radius around z = y*(x) - eta grad_y g, and the step in it.
    eps
        The smallest |h(H)| found over convex combinations H of Jacobians within delta of z: an upper bound on the
        smallest norm in the set, even if the sampling missed some.
    interval, evidence
        The interval of the smallest norm, with eps as its upper end, and what the lower end is based on:
        `BoundEvidence.ALL_FACES`, `BoundEvidence.SAMPLES` (confidence 95 %), or `BoundEvidence.UPPER_BOUND`, where it
        is 0 and says nothing.
    gradient_norm
        |h| with the Jacobian at z itself, which a plain stopping rule uses.
    samples, faces
        The number of Jacobians that were drawn, and the number of different ones.
    lower_residual, lower_error
        |y - P_Y(y - grad_y g)| of the solved lower level, and the bound (1 + L)/mu times that on |y - y*(x)|.
    face
        The face of y*(x) and its strict-complementarity margin.
    contraction
        The largest |eigenvalue| of (I - eta G_yy) H at z: below 1 the fixed-point map of the lower level contracts.
    goldstein
        The Goldstein measure of F itself, if requested.
    flaw
        Why this is not a certificate, or None: g is not strongly convex in y (`Cause.NOT_STRONGLY_CONVEX`) or flat on
        the face (`Cause.SINGULAR_HESSIAN`), where eps is NaN; or y may be farther than delta from y*(x)
        (`Cause.UNSOLVED`).

    References
    ----------
    Shi, Chang & Gu (2024), the paper of DMLCBO, section 3.1; erratum 11.

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
    >>> found = bilevel.certificate(problem, torch.tensor([0.004]).double(), delta=0.01)
    >>> found.valid, found.evidence.name, round(found.eps, 9), found.gradient_norm
    (True, 'ALL_FACES', 0.0, 1.0)
    """

    delta: float
    eta: float
    eps: float
    interval: tuple[float, float]
    evidence: BoundEvidence
    gradient_norm: float
    samples: int
    faces: int
    lower_residual: float
    face: FaceFacts
    contraction: float
    lower_error: float = 0.0
    goldstein: Goldstein | None = None
    flaw: Cause | None = None

    @property
    def valid(self) -> bool:
        """Whether eps is a bound: the lower level is strongly convex and solved."""
        return self.flaw is None

    def __str__(self) -> str:
        low, high = self.interval
        head = (
            f"({self.delta:g}, {self.eps:.3g})-stationary: the smallest |h| within delta lies in "
            f"[{low:.3g}, {high:.3g}] ({self.evidence.value}); at the point itself |h| = {self.gradient_norm:.3g}"
        )
        if self.flaw is not None:
            head = f"no certificate: {self.flaw.text}; remedy: {self.flaw.remedy}"
        lines = [
            head,
            f"{self.faces} different Jacobians in {self.samples} samples; {self.face}",
            f"lower level solved to {self.lower_residual:.1e}, so y* is within {self.lower_error:.1e}; "
            f"contraction factor {self.contraction:.3g}",
        ]
        return "\n".join(lines if self.goldstein is None else [*lines, str(self.goldstein)])


def certificate(
    problem: Problem,
    x: Vector,
    delta: float,
    y: Vector | None = None,
    *,
    samples: int = 200,
    eta: float | None = None,
    goldstein_radius: float | None = None,
    seed: int = 0,
) -> Certificate:
    """min |h(H)| over H in the hull of { Jacobians of P_Y at z' : |z' - z| <= delta },  z = y*(x) - eta grad_y g.

    h(H) = f_x - eta G_xy H [I - (I - eta G_yy) H]^{-1} f_y. Jacobians are evaluated at z, at random points of the ball
    and its sphere, and beyond the kinks along the axes, the normal and f_y, one at a time and jointly; |h(sum_i l_i
    H_i)| is minimised over the weights l. With a set X of x the measure is |x - P_X(x - h)|.

    eps is always an upper bound, even if some Jacobians were missed. The lower end of the interval is eps itself if all
    faces within delta are known (a polyhedral set with a margin of at least delta, or a box with at most 7 bounds
    within delta). Otherwise, in up to 4 dimensions of y, it is estimated from samples. Ten batches of random points
    give ten minima, each at least the true one. With the two smallest e_1 <= e_2, the true one lies in [e_1 - 19 (e_2 -
    e_1), e_1] with confidence 95 % if near-minimal combinations are not rare (Robson & Whitlock 1964). All points
    together give eps <= e_1, and the lower end is at least 2 (e_1 - eps) below eps. In more dimensions random points
    miss faces, and the lower end is 0.

    Parameters
    ----------
    problem
        f, g and the set.
    x
        The point, a tensor or a dictionary of tensors of any shape.
    delta
        The radius, in the units of y.
    y
        The start of the lower-level solve, of the shape of y; default `problem.y0`.
    samples
        The number of Jacobians to draw.
    eta
        The step in z; default 1/L. The set depends on it if delta > 0.
    goldstein_radius
        If given, compute also the Goldstein measure of F in a ball of that radius around x (`goldstein_measure`).
    seed
        The seed of the samples.

    Returns
    -------
    Certificate
        The bound eps, its interval with the evidence for it, and further measurements.

    References
    ----------
    Shi, Chang & Gu (2024), the paper of DMLCBO, section 3.1, definition of (delta, eps)-stationarity; erratum 11.

    Examples
    --------
    F(x) = |x|: at x = 0 the gradient has norm 1 on either side, and 0 lies between.

    >>> import bilevel, torch
    >>> problem = bilevel.Problem(
    ...     upper=lambda x, y: (2 * y - x).sum(),
    ...     lower=lambda x, y: (y - x).square().sum() / 2,
    ...     constraint=bilevel.sets.NonNegative(),
    ...     y0=torch.zeros(1).double(),
    ... )
    >>> found = certificate(problem, torch.zeros(1).double(), delta=1e-3)
    >>> found.gradient_norm, round(found.eps, 6)
    (1.0, 0.0)
    """
    check_set_only("certificate", problem)
    check_number("delta", delta)
    check_count("samples", samples, least=2 * BATCHES)
    if eta is not None:
        check_number("eta", eta, remedy="; None takes 1/L")
    if goldstein_radius is not None:
        check_number("goldstein_radius", goldstein_radius)
    probe = Probe.checked(problem, x, y)
    lower = solved_lower(probe, probe.x, probe.y, eta)
    flaw = lower.flaw or (Cause.UNSOLVED if lower.error > delta else None)
    facts = lower.facts
    faces, evidence, met = Faces(probe, probe.linearize(probe.x, lower.y), lower.z), BoundEvidence.UPPER_BOUND, []
    if lower.flaw is None:
        faces.visit_directed(lower.z, delta, facts.eta)
        met = batches(faces, draws(probe, lower.z, delta, samples, Seeds.from_seed(seed)))
        if all_faces_met(faces, facts, lower.z, delta):
            evidence = BoundEvidence.ALL_FACES
        elif probe.y.numel() <= CALIBRATED:
            evidence = BoundEvidence.SAMPLES
    hull = faces.hull(facts.eta)
    eps, low, norm = [math.nan] * 3 if lower.flaw else _bounds(hull, met, evidence)
    return Certificate(
        delta=delta,
        eta=facts.eta,
        eps=eps,
        interval=(low, eps),
        gradient_norm=norm,
        evidence=evidence,
        samples=samples,
        faces=len(faces.known),
        lower_residual=lower.residual,
        lower_error=lower.error,
        face=facts,
        contraction=_contraction(hull),
        goldstein=None if goldstein_radius is None else goldstein_measure(problem, x, goldstein_radius, y, seed=seed),
        flaw=flaw,
    )


def _bounds(hull: JacobianHull, met: list[list[int]], evidence: BoundEvidence) -> tuple[float, float, float]:
    """eps, the lower end of its interval, and the norm at z itself."""
    eps, norm = hull.smallest()[0], hull.norm(torch.eye(len(hull.faces), dtype=hull.faces.dtype)[0])
    if evidence is not BoundEvidence.SAMPLES:
        return eps, (1 - 1e-6) * eps if evidence is BoundEvidence.ALL_FACES else 0.0, norm
    different = {tuple(members): members for members in met}
    smallest = {key: hull.restricted(members).smallest()[0] for key, members in different.items()}
    minima = sorted(smallest[tuple(members)] for members in met)
    eps = min(eps, minima[0])
    return eps, endpoint_below(eps, minima), norm


def endpoint_below(eps: float, minima: list[float]) -> float:
    """The lower end of the interval, from the minimum of all samples and the sorted minima of the batches."""
    below = max(CONFIDENCE / (1 - CONFIDENCE) * (minima[1] - minima[0]), 2 * (minima[0] - eps))
    return max(0.0, eps - below - 1e-6 * eps)


def _contraction(hull: JacobianHull) -> float:
    """The spectral radius of (I - eta G) H at z."""
    if not hull.hessian.numel():
        return 0.0
    step = torch.eye(len(hull.hessian), dtype=hull.hessian.dtype) - hull.eta * hull.hessian
    return float(torch.linalg.eigvals(step @ hull.faces[0]).abs().max())
