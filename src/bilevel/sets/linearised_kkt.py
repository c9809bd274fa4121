"""The equations of the nearest point of several sets, linearised: Newton steps, and the derivative of that point."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import Face

FLAT, PARALLEL = 1e-9, 1e-10
"""Eigenvalues of a Jacobian that count as 0; sines of angles between normals that count as 0."""


class LinearisedKKT:
    """The equations y + sum u_i = z, y = P_i(y + u_i/weight) with P_i replaced by its Jacobian J_i.

    Where J_i = 0 the set fixes y (projectors Q_i on these directions); elsewhere it acts as a spring of stiffness
    weight J_i^+ (I - J_i). So y moves in the common null space of all Q_i, against M = I + the springs.
    """

    def __init__(self, faces: list[Face], y: Tensor, weight: Tensor, event_ndim: int) -> None:
        self.faces, self.event_ndim, self.shape = faces, event_ndim, y.shape
        batch, event = y.shape[: y.ndim - event_ndim], y.shape[y.ndim - event_ndim :]
        n = event.numel()
        self.eye = torch.eye(n, dtype=y.dtype, device=y.device)
        points = self.eye.reshape(n, *(1,) * len(batch), *event).expand(n, *batch, *event)
        J = torch.stack([face.apply(points).reshape(n, *batch, n).movedim(0, -1) for face in faces])
        self.J = (J + J.mT) / 2
        self.weight = weight.reshape((*weight.shape[: weight.ndim - event_ndim], 1, 1))

    def descent(self, slope: Tensor) -> Tensor:
        """(I + weight sum (I - J_i))^-1 slope: the Newton direction of the augmented Lagrangian."""
        hessian = self.eye + self.weight * (self.eye - self.J).sum(0)
        return torch.linalg.solve(hessian, self.column(slope)).reshape(slope.shape)

    def column(self, v: Tensor) -> Tensor:
        return v.flatten(v.ndim - self.event_ndim).unsqueeze(-1)

    @property
    def factors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """weight J_i^+, the springs weight J_i^+ (I - J_i), M, H and the pseudo-inverse of the stacked Q_i."""
        if not hasattr(self, "_factors"):
            values, vectors = torch.linalg.eigh(self.J)
            values = values.clamp(0, 1)
            fixed = values <= FLAT
            inverse = torch.where(fixed, 0.0, 1 / torch.where(fixed, 1.0, values))
            give = self.weight * (vectors * inverse.unsqueeze(-2)) @ vectors.mT
            spring = self.weight * (vectors * ((1 - values) * inverse).unsqueeze(-2)) @ vectors.mT
            Q = (vectors * fixed.unsqueeze(-2)) @ vectors.mT
            left, angles, right = torch.linalg.svd(Q.movedim(0, -3).flatten(-3, -2), full_matrices=False)
            held = angles > PARALLEL
            back = (right.mT * torch.where(held, 1 / angles, 0.0).unsqueeze(-2)) @ left.mT
            free = (right.mT * (~held).unsqueeze(-2)) @ right
            M = self.eye + spring.sum(0)
            H = free @ torch.linalg.solve(free @ M @ free + self.eye - free, free)
            self.rank = (~held).sum(-1)
            self.angle = torch.where(held, angles, 1.0).amin(-1)
            self._factors = give, Q, M, (H + H.mT) / 2, back
        return self._factors

    def newton(self, y: Tensor, normals: Tensor, off: Tensor, gaps: Tensor) -> tuple[Tensor, Tensor]:
        """(y, u) after one Newton step, for off = y + sum u - z and gaps = y - P_i(y + u_i/weight)."""
        give, Q, M, H, back = self.factors
        off, F = self.column(off), gaps.flatten(y.ndim + 1 - self.event_ndim).unsqueeze(-1)
        # Q_i dy = -Q_i F_i;  M dy + sum weight J_i^+ F_i + sum Q_i nu_i = -off
        right = -off - (give @ F).sum(0)
        start = -back @ (Q @ F).movedim(0, -3).flatten(-3, -2)
        dy = start + H @ (right - M @ start)
        nu = (back.mT @ (right - M @ dy)).unflatten(-2, (len(Q), -1)).movedim(-3, 0)
        du = give @ ((self.eye - self.J) @ dy + F) + Q @ nu
        return y + dy.reshape(y.shape), normals + du.reshape(normals.shape)


class KKTFace(Face):
    """H = T (T'MT)^-1 T', T the directions that no set fixes, M = I + the stiffness of the sets."""

    def __init__(self, kkt: LinearisedKKT) -> None:
        self._kkt = kkt
        self._matrix = kkt.factors[3]
        self.dimension = kkt.rank
        self.is_projector = all(face.is_projector for face in kkt.faces)

    def _product(self, matrix: Tensor, v: Tensor) -> Tensor:
        return (matrix @ self._kkt.column(v.double())).reshape(v.shape)

    def apply(self, v: Tensor) -> Tensor:
        return self._product(self._matrix, v).to(v)

    def parameter_vjp(self, u: Tensor) -> dict[str, Tensor]:
        """A change dp_i of P_i moves the gap F_i by -dp_i: the part i sees weight J_i^+ H u + nu_i,
        with sum Q_i nu_i = u - M H u.
        """
        give, Q, M, H, back = self._kkt.factors
        column = self._kkt.column(u.double())
        a = H @ column
        nu = (back.mT @ (column - M @ a)).unflatten(-2, (len(Q), -1)).movedim(-3, 0)
        return {
            f"{k}.{name}": value
            for k, (face, part) in enumerate(zip(self._kkt.faces, give @ a + Q @ nu, strict=True))
            for name, value in face.parameter_vjp(part.reshape(u.shape).to(u)).items()
        }
