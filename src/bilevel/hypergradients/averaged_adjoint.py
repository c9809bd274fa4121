"""The hypergradient of noisy problems: one step of the adjoint per step of a run, so that batches average out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .._checks import Settings, check_object
from ..linearization import Linearization
from ..random import RandomStreams
from ..spaces import Vector
from .base import Hypergradient, Smoothing, assemble, draw, gradient_step, resolve_eta, space_of
from .linear_solve import LinearSolve
from .smoothing import Exact


@dataclass(frozen=True, kw_only=True)
class AveragedAdjoint(Settings):
    """h = f_x - G_xy w with w <- (1 - a_k) w + a_k H (w - eta (G_yy w - f_y)),  a_k = min(1, 10 / sqrt(100 + k)).

    The inverse of the Hessian of a batch is a biased estimate of the inverse of the mean Hessian. This step of w is
    linear in the batch and has the adjoint as its fixed point, so that w averages over the batches of many steps. The
    first adjoint comes from a linear solve with the first batch.

    Parameters
    ----------
    eta
        The step of w and of the fixed-point map, or "auto" for 1/L. It is at most |w| / |G_yy w|, so that w does not
        grow if L has grown since it was estimated.
    smoothing
        Exact(), since the noise of batches moves y across kinks anyway, or Perturbed(radius=...), which uses the face
        at a random nearby point.

    References
    ----------
    Dagreou, Ablin, Vaiter & Moreau (2022), SOBA, with the adjoint restricted to the face of the constraint.

    Examples
    --------
    >>> AveragedAdjoint()
    AveragedAdjoint(eta='auto', smoothing=Exact())
    """

    eta: float | Literal["auto"] = "auto"
    smoothing: Smoothing = Exact()  # noqa: RUF009  (frozen)

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
        """See `Estimator.estimate`; `start` is the adjoint of the step before."""
        eta = resolve_eta(self.eta, lin, streams, curvature)
        if start is None:
            first = LinearSolve(tol=1e-3, max_iterations=30, eta=eta)
            return first.estimate(lin, streams, curvature=curvature)
        space, product = space_of(lin), lin.lower_hvp(start)
        longest = float(space.norm(start)) / max(float(space.norm(product)), 1e-300)
        eta = min(eta, longest) if longest > 0 else eta  # a larger step would make w grow where the curvature has
        z = gradient_step(lin, eta)
        face = draw(self.smoothing, lin, z, space, streams)
        slope = space.add(product, lin.upper_grad_y, -1.0)
        weight = min(1.0, 10.0 / (100.0 + streams.step) ** 0.5)
        w = space.lerp(start, face.apply(space.add(start, slope, -eta)), weight)
        drawn_at = self.smoothing.point(lin.constraint, z, space, streams) if lin.problem.moving else z
        return Hypergradient(assemble(lin, w, drawn_at, eta), w, {"eta": eta})
