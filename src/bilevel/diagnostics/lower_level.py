"""The lower level at its solution: curvature on the face, distance to the nearest kink."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._krylov import largest_eigenvalue
from ..problem import Linearization
from ..sets.base import ProjectionJacobian
from .finite_differences import SPACE, Probe, dense_matrix
from .report import Cause

DENSE = 1000
"""Up to this dimension of y curvatures come from a matrix, beyond it from Lanczos steps."""
LANCZOS = 300
"""So many of them: the smallest curvature of an ill-conditioned g shows late."""
STEPS = (500, 20_000)
"""Steps of a lower-level solve: after the first number without a solution it is asked why."""
NO_CURVATURE = 1e-9
"""A curvature below this part of the largest one counts as none."""


@dataclass(frozen=True)
class Curvature:
    """mu and L: the smallest and largest curvature of g in y, on the whole space or on a face."""

    mu: float
    largest: float

    @property
    def condition(self) -> float:
        """L / mu; infinite without strong convexity."""
        return self.largest / self.mu if self.mu > 0 else math.inf

    @property
    def negative(self) -> bool:
        """Whether g bends down somewhere, beyond rounding."""
        return self.mu < -1e-7 * max(abs(self.largest), abs(self.mu))

    @property
    def singular(self) -> bool:
        """Whether g is flat somewhere, up to rounding."""
        return not self.negative and self.mu <= NO_CURVATURE * self.largest

    def __str__(self) -> str:
        return f"mu = {self.mu:.3g}, L = {self.largest:.3g}, condition number {self.condition:.3g}"


def curvature(lin: Linearization, face: ProjectionJacobian | None = None) -> Curvature:
    """The extreme eigenvalues of grad^2_yy g, on the range of H when a face is given (inf, 0 when that is a point)."""
    if SPACE.size(lin.y) <= DENSE:
        return _dense(lin, face)
    apply = (lambda v: v) if face is None else face.apply
    L = largest_eigenvalue(lambda v: apply(lin.lower_hvp(v)), lin.y, SPACE, start=apply, steps=LANCZOS)
    turned = lambda v: SPACE.add(SPACE.scaled(v, L), apply(lin.lower_hvp(v)), -1.0)  # noqa: E731
    return Curvature(L - largest_eigenvalue(turned, lin.y, SPACE, start=apply, steps=LANCZOS), L)


def _dense(lin: Linearization, face: ProjectionJacobian | None) -> Curvature:
    G = dense_matrix(lin.lower_hvp, lin.y).double()
    if face is not None:
        H = dense_matrix(face.apply, lin.y).double()
        values, vectors = torch.linalg.eigh((H + H.T) / 2)
        basis = vectors[:, values > 1e-8]
        G = basis.T @ G @ basis
    if not G.numel():
        return Curvature(math.inf, 0.0)
    values = torch.linalg.eigvalsh((G + G.T) / 2)
    return Curvature(float(values[0]), float(values[-1]))


@dataclass(frozen=True)
class FaceFacts:
    """Where z = y - eta grad_y g lies with respect to the kinks of P_Y.

    Parameters
    ----------
    eta
        The step 1/L in z.
    dimension
        The dimension of the face of y; NaN when the set does not say.
    ambient
        The dimension of y.
    margin
        Strict complementarity: the distance from z to the nearest kink of P_Y; NaN when the set has no formula.
    """

    eta: float
    dimension: float
    ambient: int
    margin: float

    def __str__(self) -> str:
        face = (
            f"a face of dimension {self.dimension:g} of {self.ambient}"
            if self.dimension >= 0
            else "the boundary or inside"
        )
        margin = "unknown for this set" if math.isnan(self.margin) else f"{self.margin:.3g}"
        return f"y* lies on {face}; strict-complementarity margin {margin}"


@dataclass(frozen=True)
class SolvedLower:
    """The lower level behind a certificate.

    Parameters
    ----------
    y, residual
        The point, flat, and its residual |y - P_Y(y - grad_y g)|.
    whole, on_face
        mu and L of g in y on the whole space, and on the face of y.
    facts, z
        Where z = y - eta grad_y g lies, and z itself.
    """

    y: Tensor
    residual: float
    whole: Curvature
    on_face: Curvature
    facts: FaceFacts
    z: Tensor

    @property
    def error(self) -> float:
        """(1 + L)/mu times the residual and its rounding, a bound on |y - y*(x)|; where g is flat off the face, mu is
        that of the face.

        From <grad g(y) - grad g(y*), y - y*> >= mu |y - y*|^2 and the optimality of P(y - grad_y g) and y*.
        """
        mu = self.on_face.mu if self.whole.singular else self.whole.mu
        rounding = torch.finfo(self.y.dtype).eps * float(self.y.norm())
        return (1 + self.whole.largest) / mu * (self.residual + rounding) if mu > 0 else math.inf

    @property
    def flaw(self) -> Cause | None:
        """Why no hypergradient is to be had here."""
        if self.whole.negative:
            return Cause.NOT_STRONGLY_CONVEX
        return Cause.SINGULAR_HESSIAN if self.on_face.singular else None


def solved_lower(probe: Probe, x: Tensor, start: Tensor, eta: float | None = None) -> SolvedLower:
    """The lower level at x; the solve is not carried on where g is seen to be flat or to bend down."""
    for steps in STEPS:
        solved = probe.solve(x, start, max_steps=steps)
        start = SPACE.ravel(solved.y)
        lin = probe.linearize(x, start)
        whole = curvature(lin)
        facts, face, z = face_facts(probe, x, start, 1.0 / eta if eta else whole.largest)
        found = SolvedLower(start, solved.residual, whole, curvature(lin, face), facts, z)
        if solved.converged or found.flaw is not None:
            break
    return found


def face_facts(probe: Probe, x: Tensor, y: Tensor, largest: float) -> tuple[FaceFacts, ProjectionJacobian, Tensor]:
    """The facts, the face and z at a solved lower level."""
    eta = 1.0 / largest if largest > 0 else 1.0
    z = y - eta * probe.lower_grad(x, y)
    constraint = probe.set_at(x)
    face = constraint.jacobian(probe.as_y(z))
    margin = all_parts(constraint.margin(probe.as_y(z))).min()
    return FaceFacts(eta, float(all_parts(face.dimension).sum()), y.numel(), float(margin)), face, z


def all_parts(value: Any) -> Tensor:
    """The numbers of all batch elements and entries of a dictionary; NaN where a set has no formula."""
    parts = value.values() if isinstance(value, dict) else [value]
    return torch.cat([torch.as_tensor(math.nan if part is None else part).double().reshape(-1) for part in parts])
