"""The hypergradient by a linear system solved to a tolerance: the limit Q -> infinity of the Neumann series."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .. import tolerances
from .._checks import Settings, check_object, setting
from .._krylov import LinearSolution, conjugate_gradients
from ..errors import InvalidInputError
from ..linearization import Linearization
from ..random import RandomStreams
from ..sets.base import ProjectionJacobian
from ..spaces import Space, Vector, leaves
from .base import Hypergradient, Smoothing, assemble, draw, gradient_step, resolve_eta, space_of
from .smoothing import Exact, TwoPoint


@dataclass(frozen=True, kw_only=True)
class LinearSolve(Settings):
    """h = f_x - G_xy w with w = eta H [I - (I - eta G_yy) H]^{-1} f_y, by conjugate gradients.

    If H is the orthogonal projector Pi onto a face (polyhedral sets), w = Pi (Pi G_yy Pi)^+ Pi f_y, which does not
    depend on eta, and the system is solved on the face. Otherwise w = eta H q, where q solves the symmetric system
    (H (I - H) + eta H G_yy H) q = H f_y.

    Parameters
    ----------
    tol
        Relative residual of the linear system; default 1e-10 in float64, 2e-5 in float32.
    max_iterations
        The maximal number of Hessian products.
    eta
        The step of the fixed-point map, or "auto" for 1/L. As long as y is not y*(x), the face of z = y - eta grad_y g
        depends on it.
    smoothing
        Exact(), or Perturbed(radius=...) to use the face at a random nearby point.

    References
    ----------
    Shi, Chang & Gu (2024), the paper of DMLCBO, section 3.1, with the series summed; Pedregosa (2016) and Blondel et
    al. (2022) without kinks. Conjugate gradients: Hestenes & Stiefel (1952).

    Examples
    --------
    >>> LinearSolve(tol=1e-6)
    LinearSolve(tol=1e-06, max_iterations=1000, eta='auto', smoothing=Exact())
    """

    tol: float | None = setting(None, high=1.0)
    max_iterations: int = 1000
    eta: float | Literal["auto"] = "auto"
    smoothing: Smoothing = Exact()  # noqa: RUF009  (frozen)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_object("smoothing", self.smoothing, "Exact()", "sample", "point")
        if isinstance(self.smoothing, TwoPoint):
            raise InvalidInputError(
                "LinearSolve cannot use smoothing=TwoPoint(): its draws are not symmetric and may exceed norm 1; "
                "use Exact() or Perturbed(), or Neumann with TwoPoint"
            )

    def estimate(
        self,
        lin: Linearization,
        streams: RandomStreams,
        *,
        curvature: float | None = None,
        start: Vector | None = None,
    ) -> Hypergradient:
        """See `Estimator.estimate`; `start` is the adjoint of a nearby point."""
        eta, moving = resolve_eta(self.eta, lin, streams, curvature), lin.problem.moving
        space, z = space_of(lin), gradient_step(lin, eta)
        face = draw(self.smoothing, lin, z, space, streams)
        tol = tolerances.linear_residual(leaves(lin.y)[0].dtype) if self.tol is None else self.tol
        near = lin
        if face.is_projector:
            near = lin.restrict(face)
            f_y = (lin if moving else near).upper_grad_y
            solution = solve_on_face(near, face, f_y, start, tol=tol, max_iterations=self.max_iterations)
            w = solution.value
        else:
            solution = self._general(lin, face, space, eta, start, tol)
            w = space.scaled(solution.value, eta)
        stats = {
            "eta": eta,
            "residual": solution.residual,
            "iterations": float(solution.iterations),
            "indefinite": float(solution.indefinite),
        }
        drawn_at = self.smoothing.point(lin.constraint, z, space, streams) if moving else z
        return Hypergradient(assemble(lin, w, drawn_at, eta, near=near), w, stats)

    def _general(
        self, lin: Linearization, face: ProjectionJacobian, space: Space, eta: float, start: Vector | None, tol: float
    ) -> LinearSolution:
        """A q = H f_y with A = H (I - H) + eta H G_yy H; H q is the unique part of the solution."""

        def operator(q: Vector) -> Vector:
            turned = face.apply(q)
            return face.apply(space.add(space.add(q, turned, -1.0), lin.lower_hvp(turned), eta))

        solution = conjugate_gradients(
            operator,
            face.apply(lin.upper_grad_y),
            None if start is None else space.scaled(start, 1.0 / eta),
            space,
            tol=tol,
            max_iterations=self.max_iterations,
        )
        return solution._replace(value=face.apply(solution.value))


def solve_on_face(
    lin: Linearization, face: ProjectionJacobian, b: Vector, start: Vector | None, *, tol: float, max_iterations: int
) -> LinearSolution:
    """Solve Pi G_yy Pi w = Pi b with Pi the projector onto the face, directly if the problem can."""
    direct = lin.solve_on_face(face, b)
    if direct is not None:
        return LinearSolution(direct, 0.0, 0)
    near = None if start is None else face.apply(start)
    return conjugate_gradients(
        lambda v: face.apply(lin.lower_hvp(v)), face.apply(b), near, space_of(lin), tol=tol,
        max_iterations=max_iterations,
    )  # fmt: skip
