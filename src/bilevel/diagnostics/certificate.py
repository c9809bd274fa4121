"""(delta, eps)-stationarity: how small is the smallest element of the smoothed set of hypergradients?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..checks import check_calls, check_count, check_lower_start, check_positive, check_set_only, check_vector
from ..problem import Problem
from ..randomness import Seeds
from ..spaces import Vector, tree_map
from .goldstein import Goldstein, goldstein_measure
from .jacobian_hull import JacobianHull
from .lower_level import FaceFacts, curvature, face_facts
from .probe import SPACE, Probe
from .sampled_faces import BATCHES, distinct_faces, draws

CONFIDENCE = 0.95
"""Of the interval."""


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What `certificate` returns.

    Parameters
    ----------
    delta, eta
        The radius around z = y*(x) - eta grad_y g, and the step in it.
    eps
        The smallest |h(H)| found over convex combinations H of Jacobians within delta of z: an upper bound on the
        smallest norm in the set, whatever the sampling missed.
    interval
        A 95 % confidence interval of the smallest norm; its upper end is eps.
    gradient_norm
        |h| with the Jacobian at z itself: what a plain stopping rule looks at.
    samples, faces
        How many Jacobians were drawn, and how many of them differ.
    lower_residual
        |y - P_Y(y - grad_y g)| of the lower level behind it.
    face
        The face of y*(x) and its strict-complementarity margin.
    contraction
        The largest |eigenvalue| of (I - eta G_yy) H at z: below 1 the fixed-point map of the lower level contracts.
    goldstein
        The Goldstein measure of F itself, when it was asked for.
    """

    delta: float
    eta: float
    eps: float
    interval: tuple[float, float]
    gradient_norm: float
    samples: int
    faces: int
    lower_residual: float
    face: FaceFacts
    contraction: float
    goldstein: Goldstein | None = None

    def __str__(self) -> str:
        low, high = self.interval
        lines = [
            f"({self.delta:g}, {self.eps:.3g})-stationary: the smallest |h| within delta lies in "
            f"[{low:.3g}, {high:.3g}] (95 %); at the point itself |h| = {self.gradient_norm:.3g}",
            f"{self.faces} different Jacobians in {self.samples} samples; {self.face}",
            f"lower level solved to {self.lower_residual:.1e}; contraction factor {self.contraction:.3g}",
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

    h(H) = f_x - eta G_xy H [I - (I - eta G_yy) H]^{-1} f_y. Jacobians are sampled at z, in the ball and on its sphere,
    and |h(sum_i l_i H_i)| is minimised over the weights l; with a set X of x the measure is |x - P_X(x - h)|.

    The interval follows Robson & Whitlock (1964): ten batches of samples give ten minima, each at least the true one;
    with the two smallest e_1 <= e_2, the true minimum lies in [e_1 - 19 (e_2 - e_1), e_1] with confidence 95 %, if
    near-minimal combinations are not rare. All samples together give eps <= e_1; since the hull goes on growing, the
    lower end is at least 2 (e_1 - eps) below eps. The interval cannot know of a face that no sample met.

    Parameters
    ----------
    problem, x
        The problem and the point.
    delta
        The radius, in the units of y.
    y
        Where the lower-level solve starts; default `problem.y0`.
    samples
        How many Jacobians are drawn.
    eta
        The step in z; default 1/L. The set depends on it wherever delta > 0.
    goldstein_radius
        When given, also the Goldstein measure of F in a ball of that radius around x (`goldstein_measure`).
    seed
        Of the samples.

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
    check_positive("delta", delta)
    check_count("samples", samples, least=2 * BATCHES)
    if eta is not None:
        check_positive("eta", eta, " or None for 1/L")
    if goldstein_radius is not None:
        check_positive("goldstein_radius", goldstein_radius, " or None")
    seeds = Seeds.of(seed)
    x = tree_map(Tensor.detach, check_vector("x", x))
    start = check_lower_start(problem, problem.constraint_at(x), y)
    check_calls(problem, x, start)
    probe = Probe(problem, x, start)
    solved = probe.solve(probe.x, probe.y)
    point = SPACE.ravel(solved.y)
    lin = probe.linearize(probe.x, point)
    facts, _, z = face_facts(probe, probe.x, point, 1.0 / eta if eta else curvature(lin).largest)
    drawn = draws(probe, z, delta, samples, seeds)
    hull, batches = distinct_faces(probe, lin, drawn, facts.eta)
    minima = sorted(hull.restricted(members).smallest()[0] for members in batches)
    eps = min(hull.smallest()[0], minima[0])
    return Certificate(
        delta=delta,
        eta=facts.eta,
        eps=eps,
        interval=(endpoint_below(eps, minima), eps),
        gradient_norm=hull.norm(torch.eye(len(hull.faces), dtype=probe.dtype)[0]),
        samples=samples,
        faces=len(hull.faces),
        lower_residual=solved.residual,
        face=facts,
        contraction=_contraction(hull),
        goldstein=None if goldstein_radius is None else goldstein_measure(problem, x, goldstein_radius, y, seed=seed),
    )


def endpoint_below(eps: float, minima: list[float]) -> float:
    """The lower end of the interval, from the minimum of all samples and the sorted minima of the batches."""
    odds = CONFIDENCE / (1 - CONFIDENCE)
    below = max(odds * (minima[1] - minima[0]), 2 * (minima[0] - eps))
    return max(0.0, eps - below - 1e-6 * eps)


def _contraction(hull: JacobianHull) -> float:
    """The spectral radius of (I - eta G) H at z."""
    if not hull.hessian.numel():
        return 0.0
    step = torch.eye(len(hull.hessian), dtype=hull.hessian.dtype) - hull.eta * hull.hessian
    return float(torch.linalg.eigvals(step @ hull.faces[0]).abs().max())
