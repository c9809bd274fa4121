"""Intersections: ADMM, ended by Newton's method, with the derivative of the fixed point."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from ..errors import EmptySet, Incompatible, InvalidInput, InvalidType, NotConverged
from .base import ConvexSet, Face, can_look_at_values, event_norm
from .spectral import tracked


class Intersection(ConvexSet):
    """C_1 n ... n C_k; P(z) = y = z - sum u_i with y = P_i(y + u_i), u_i normal to C_i at y.

    With J_i the Jacobian of P_i at y + u_i, differentiating these equations gives H. ADMM (Boyd et al.,
    2011, section 7) comes near the solution; semismooth Newton steps end at rounding accuracy. Meant for up
    to a few hundred entries per point: the Newton matrix has (k n)^2 entries.

    Parameters
    ----------
    sets
        Convex sets of points of the same kind, with a common point.
    tol
        Largest |y - P_i(y + u_i)| relative to max(|z|, |y|).
    max_rounds
        Rounds of Newton steps and ADMM cycles (5, 10, 20, ...) before giving up.

    Examples
    --------
    >>> from bilevel.sets import Box, L2Ball
    >>> Intersection(L2Ball(1.0), Box(0.0, 2.0)).project(torch.tensor([3.0, -1.0]))
    tensor([1., 0.])
    """

    def __init__(self, *sets: ConvexSet, tol: float = 1e-14, max_rounds: int = 12) -> None:
        if not sets or not all(isinstance(part, ConvexSet) for part in sets):
            raise InvalidType(f"Intersection takes one or more convex sets, got {sets!r}")
        kinds = {str(part.event_ndim) for part in sets}
        if len(kinds) > 1 or not isinstance(sets[0].event_ndim, int):
            raise Incompatible(f"the sets must have points of the same kind, got event_ndim {sorted(kinds)}")
        if not 0 < tol < 1:
            raise InvalidInput(f"tol must lie between 0 and 1, got {tol}")
        self.sets, self.tol, self.max_rounds = sets, tol, max_rounds
        self.event_ndim = sets[0].event_ndim  # type: ignore[misc]
        self.separable = all(part.separable for part in sets)  # type: ignore[misc]
        self.polyhedral = all(part.polyhedral for part in sets)  # type: ignore[misc]

    def tensor_parameters(self) -> dict[str, Tensor]:
        parts = enumerate(part.tensor_parameters() for part in self.sets)
        return {f"{k}.{name}": value for k, part in parts for name, value in part.items()}

    def replace(self, **values: Any) -> Self:
        sets = list(self.sets)
        for name, value in values.items():
            k, _, inner = name.partition(".")
            if not k.isdigit() or int(k) >= len(sets):
                raise InvalidInput(f"Intersection has no parameter {name!r}; it has {list(self.tensor_parameters())}")
            sets[int(k)] = sets[int(k)].replace(**{inner: value})
        return type(self)(*sets, tol=self.tol, max_rounds=self.max_rounds)

    def _residual(self, z: Tensor, normals: Tensor) -> Tensor:
        """F_i = y - P_i(y + u_i) with y = z - sum u_i; the parts are dimension 0 of `normals`."""
        y = z - normals.sum(0)
        return torch.stack([y - part.project(y + u) for part, u in zip(self.sets, normals, strict=True)])

    def _faces(self, z: Tensor, normals: Tensor) -> list[Face]:
        y = z - normals.sum(0)
        return [part.jacobian(y + u) for part, u in zip(self.sets, normals, strict=True)]

    def _newton(self, faces: list[Face], z: Tensor) -> tuple[Tensor, Tensor]:
        """J_i as matrices (k, batch, n, n), and the pseudo-inverse of dF/du, (batch, k n, k n)."""
        batch, event = _split(z, self.event_ndim)
        n, k = event.numel(), len(faces)
        eye = torch.eye(n, dtype=z.dtype, device=z.device)
        points = eye.reshape(n, *(1,) * len(batch), *event).expand(n, *batch, *event)
        J = torch.stack([face.apply(points).reshape(n, *batch, n).movedim(0, -1) for face in faces])
        # dF_i = -(I - J_i) sum_j du_j - J_i du_i
        blocks = -(eye - J).movedim(0, -3).unsqueeze(-2).expand(*batch, k, n, k, n)
        own = torch.einsum("k...ab,kl->...kalb", J, torch.eye(k, dtype=z.dtype, device=z.device))
        return J, torch.linalg.pinv((blocks - own).reshape(*batch, k * n, k * n), rtol=1e-10)

    def _chord(self, z: Tensor, normals: Tensor, inverse: Tensor) -> Tensor:
        """u - (dF/du)^+ F(u)."""
        left = self._residual(z, normals).flatten(z.ndim + 1 - int(self.event_ndim)).movedim(0, -2)  # type: ignore[arg-type]
        step = inverse @ left.flatten(-2).unsqueeze(-1)
        return normals - step.reshape(*left.shape).movedim(-2, 0).reshape(normals.shape)

    def _solve(self, z: Tensor) -> Tensor:
        """The normals u (k, ...) at the nearest point, without gradients."""
        if not can_look_at_values():
            raise Incompatible("Intersection iterates on values: give leading batch dimensions instead of vmap")
        ndim = int(self.event_ndim)  # type: ignore[arg-type]
        normals = z.new_zeros(len(self.sets), *z.shape)
        if not z.numel():
            return normals

        def error(normals: Tensor) -> Tensor:
            size = torch.maximum(event_norm(z, ndim), event_norm(z - normals.sum(0), ndim)).clamp_min(1e-300)
            return event_norm(self._residual(z, normals), ndim).amax(0) / size

        answer, best = normals.clone(), error(normals)

        def keep(trial: Tensor) -> None:
            nonlocal answer, best
            left = error(trial)
            answer = torch.where((left < best).reshape(left.shape + (1,) * ndim), trial, answer)
            best = torch.minimum(left, best)

        for k, part in enumerate(self.sets):  # one set alone may hold the point back
            alone = torch.zeros_like(normals)
            alone[k] = z - part.project(z)
            keep(alone)
        y, weight = z, z.new_ones(z.shape[: z.ndim - ndim] + (1,) * ndim)
        for cycles in (5 * 2**k for k in range(self.max_rounds)):
            trial = normals
            for _ in range(6):
                if float(best.max()) <= self.tol / 10:
                    return answer
                trial = self._chord(z, trial, self._newton(self._faces(z, trial), z)[1])
                trial = torch.where(trial.isfinite(), trial, normals)
                keep(trial)
            if float(best.max()) <= self.tol:
                return answer
            # Newton started too far away for some point: twice as many cycles of ADMM, then again. The weight
            # of the constraints balances the two residuals (Boyd et al., section 3.4.1).
            for _ in range(cycles):
                parts = torch.stack([p.project(y + u / weight) for p, u in zip(self.sets, normals, strict=True)])
                last, y = y, (z + weight * parts.sum(0) - normals.sum(0)) / (1 + weight * len(self.sets))
                normals = normals + weight * (y - parts)
                primal = event_norm(y - parts, ndim, keepdim=True).amax(0)
                dual = weight * event_norm(y - last, ndim, keepdim=True)
                weight = torch.where(primal > 10 * dual, 2 * weight, weight)
                weight = torch.where(dual > 10 * primal, weight / 2, weight)
        # Far apart after thousands of cycles: empty. Close: slow convergence at a kink.
        raise (EmptySet if float(best.max()) > 1e-3 else NotConverged)(
            f"Intersection: after {self.max_rounds} rounds the sets are still {float(best.max()):.2g} of the "
            f"size of z apart; they may have no common point (else raise max_rounds or tol)"
        )

    def project(self, z: Tensor) -> Tensor:
        wide = self.checked(z).double()
        with torch.no_grad():
            normals = self._solve(wide.detach())
        if tracked(z, *self.tensor_parameters().values()):
            inverse = self._newton(self._faces(wide.detach(), normals), wide.detach())[1].detach()
            for _ in range(2):  # each step makes one more derivative of the fixed point exact
                normals = self._chord(wide, normals, inverse)
        return (wide - normals.sum(0)).to(z)

    def jacobian(self, z: Tensor) -> Face:
        wide = self.checked(z).detach().double()
        with torch.no_grad():
            normals = self._solve(wide)
            faces = self._faces(wide, normals)
            return FixedPointFace(faces, *self._newton(faces, wide), int(self.event_ndim))  # type: ignore[arg-type]

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        """The part that is furthest outside, in units of its own scale."""
        judged = []
        for k, part in enumerate(self.sets):
            amount, scale, what = part.excess(y)
            scale = torch.as_tensor(scale).detach().to(amount).clamp_min(torch.finfo(amount.dtype).tiny)
            judged.append(((amount.detach() / scale).max(), amount.detach() / scale, f"in set {k}: {what}"))
        _, worst, what = max(judged, key=lambda entry: float(entry[0].nan_to_num(torch.inf)))
        return worst, worst.new_ones(()), what

    def __repr__(self) -> str:
        return f"Intersection({', '.join(map(repr, self.sets))})"


class FixedPointFace(Face):
    """H = I + sum_i [K (I - J)]_i with K the inverse of dF/du."""

    def __init__(self, faces: list[Face], J: Tensor, inverse: Tensor, event_ndim: int) -> None:
        self._faces, self._inverse, self._event_ndim = faces, inverse, event_ndim
        n = J.shape[-1]
        eye = torch.eye(n, dtype=J.dtype, device=J.device)
        moved = inverse @ (eye - J).movedim(0, -3).flatten(-3, -2)
        H = eye + moved.unflatten(-2, (len(faces), n)).sum(-3)
        self._matrix = (H + H.mT) / 2
        self.is_projector = all(face.is_projector for face in faces)

    def apply(self, v: Tensor) -> Tensor:
        flat = v.double().flatten(v.ndim - self._event_ndim)
        return (self._matrix @ flat.unsqueeze(-1)).reshape(v.shape).to(v)

    def parameter_vjp(self, u: Tensor) -> dict[str, Tensor]:
        """F_i moves by -dP_i: the part i sees -(K' (u, ..., u))_i."""
        flat = u.double().flatten(u.ndim - self._event_ndim)
        seen = -self._inverse.mT @ flat.repeat(*(1,) * (flat.ndim - 1), len(self._faces)).unsqueeze(-1)
        parts = seen.squeeze(-1).unflatten(-1, (len(self._faces), flat.shape[-1])).unbind(-2)
        return {
            f"{k}.{name}": value
            for k, (face, part) in enumerate(zip(self._faces, parts, strict=True))
            for name, value in face.parameter_vjp(part.reshape(u.shape).to(u)).items()
        }


def _split(z: Tensor, event_ndim: Any) -> tuple[torch.Size, torch.Size]:
    return z.shape[: z.ndim - event_ndim], z.shape[z.ndim - event_ndim :]
