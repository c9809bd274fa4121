"""Intersections: an augmented Lagrangian with Newton's method inside, ended by Newton's method on the KKT equations."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from ..errors import EmptySetError, IncompatibleError, InvalidInputError, InvalidTypeError, NotConvergedError
from .base import ConvexSet, ProjectionJacobian, can_look_at_values, event_norm, tracked, validated, with_value
from .jacobians import Matrix

ROUNDING, GOOD = 1e-14, 1e-11
"""Relative errors: Newton steps aim at the first; no more multipliers are tried below the second."""
INNER, HALVINGS, POLISH, PATIENCE = 30, 30, 40, 2
"""Newton steps for given multipliers, halvings of a step; Newton steps on the KKT equations, those without gain."""
NEARBY, CHANGED = 1e-8, 1e-4
"""At a kink H is that of a point so far away, relative; entries of Jacobians that differ by more tell of a kink."""
FLAT, PARALLEL = 1e-9, 1e-10
"""Eigenvalues of a Jacobian that count as 0; sines of angles between normals that count as 0."""
FAR = 1e6
"""No common point within this many times the size of the problem: the intersection counts as empty."""


class Intersection(ConvexSet):
    """C_1 n ... n C_k; P(z) = y with y + sum u_i = z and y = P_i(y + u_i), u_i normal to C_i at y.

    The multipliers u come from the augmented Lagrangian method, whose inner problem
    min |y - z|^2/2 + (weight/2) sum dist(y + u_i/weight, C_i)^2 is solved by semismooth Newton steps (Li, Sun & Toh,
    2018): no common interior is needed. Newton steps on the equations above then end at rounding accuracy.
    With J_i the Jacobian of P_i, the linearised equations give H. At a kink of some P_i the choices of the sets need
    not belong together: there H is that of the point z + 1e-8 max(|z|, |y|) d, where d is a fixed direction without
    symmetries, so that H is one of its own limits. Meant for up to a few hundred entries per point: all matrices
    are n x n.

    If the sets only touch (two balls with one common point, a ball and its tangent), the multipliers are infinite, and
    an error of e in the sets changes the result by sqrt(e): the best possible relative accuracy is then about 1e-8 in
    float64. If the estimated error exceeds `tol`, an error with the numbers is raised.

    Parameters
    ----------
    *sets
        Convex sets of points of the same kind, with a common point.
    tol
        The largest accepted estimate of the error of y, relative to max(|z|, |y|); usually the error is about 1e-14.
    max_rounds
        The maximal number of updates of the multipliers.

    Examples
    --------
    >>> from bilevel.sets import Box, L2Ball
    >>> Intersection(L2Ball(1.0), Box(0.0, 2.0)).project(torch.tensor([3.0, -1.0]))
    tensor([1., 0.])
    """

    def __init__(self, *sets: ConvexSet, tol: float = 1e-7, max_rounds: int = 15) -> None:
        if not sets or not all(isinstance(part, ConvexSet) for part in sets):
            raise InvalidTypeError(f"Intersection takes one or more convex sets, got {sets!r}")
        kinds = {str(part.event_ndim) for part in sets}
        if len(kinds) > 1 or not isinstance(sets[0].event_ndim, int):
            raise IncompatibleError(f"the sets must have points of the same kind, got event_ndim {sorted(kinds)}")
        if not 0 < tol < 1:
            raise InvalidInputError(f"tol must lie between 0 and 1, got {tol}")
        if max_rounds < 1:
            raise InvalidInputError(f"max_rounds must be at least 1, got {max_rounds}")
        self.tol = tol
        self.max_rounds = max_rounds
        self.sets = sets
        self.event_ndim: Any = sets[0].event_ndim
        self.separable: bool = all(part.separable for part in sets)
        self.polyhedral: bool = all(part.polyhedral for part in sets)

    def __repr__(self) -> str:
        return f"Intersection({', '.join(map(repr, self.sets))})"

    def parts(self) -> dict[str, ConvexSet]:
        return {str(k): part for k, part in enumerate(self.sets)}

    def with_parts(self, parts: dict[str, ConvexSet]) -> Self:
        return type(self)(*parts.values(), tol=self.tol, max_rounds=self.max_rounds)

    @validated
    def project(self, z: Tensor) -> Tensor:
        wide = z.double()
        with torch.no_grad():
            y, normals, weight = self._solve(wide.detach())
        if tracked(z, *self.tensor_parameters().values()):
            kkt, kink = self._derivative(wide.detach(), y, normals, weight)
            fixed = torch.zeros_like(kink)
            for _ in range(2):  # each step makes one more derivative of the fixed point exact; the values stay
                step = kkt.newton(y, normals, y - wide + normals.sum(0), self._gaps(y, normals, weight))
                y = torch.where(fixed, y, with_value(y, step[0]))
                normals = torch.where(fixed, normals, with_value(normals, step[1]))
                fixed = kink  # where there is no second derivative
        return y.to(z)

    @validated
    def jacobian(self, z: Tensor) -> ProjectionJacobian:
        wide = z.double()
        with torch.no_grad():
            kkt = self._derivative(wide, *self._solve(wide))[0]
            H = kkt.factors[3]  # which makes kkt.rank known as well
            return Matrix(H, self.event_ndim, kkt.rank, kkt.projectors)

    def _derivative(self, z: Tensor, y: Tensor, normals: Tensor, weight: Tensor) -> tuple[LinearisedKKT, Tensor]:
        """The linearised equations, those of a point nearby where some P_i has a kink; and where that is so."""
        ndim = self.event_ndim
        with torch.no_grad():
            here, shift = self._linearised(y, normals, weight), _direction(y, ndim)
            size = _size(torch.cat([y[None], normals / weight]), ndim)
            sides = [self._linearised(y + step * size * shift, normals, weight) for step in (NEARBY, -NEARBY)]
            changes = torch.stack([(side.J - here.J).abs().amax((-2, -1)) for side in sides])
            kink = (changes > CHANGED).any(0).any(0).reshape(size.shape)
            if bool(kink.any()):
                size = _size(torch.stack([z.expand_as(y), y]), ndim)
                y, normals, _ = self._solve(torch.where(kink, z + NEARBY * size * shift, z))
                here = self._linearised(y, normals, weight)
        return here, kink

    def _gaps(self, y: Tensor, normals: Tensor, weight: Tensor) -> Tensor:
        """y - P_i(y + u_i/weight), zero for every weight at the solution; the parts are dimension 0."""
        return torch.stack([y - part.project(y + u / weight) for part, u in zip(self.sets, normals, strict=True)])

    def _linearised(self, y: Tensor, normals: Tensor, weight: Tensor) -> LinearisedKKT:
        with torch.no_grad():
            jacobians = [part.jacobian(y + u / weight) for part, u in zip(self.sets, normals, strict=True)]
            return LinearisedKKT(jacobians, y, weight, self.event_ndim)

    def _solve(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """y, the normals u (k, ...) and a weight for which u/weight is no larger than z or y; without gradients."""
        if not can_look_at_values():
            raise IncompatibleError("Intersection iterates on values: give leading batch dimensions instead of vmap")
        nearest = torch.stack(torch.broadcast_tensors(*(part.project(z) for part in self.sets)))
        z = z.expand_as(nearest[0])  # a parameter may have one value per batch element
        best = Best(z, nearest, self.event_ndim)
        if not z.numel():
            return best.answer()
        self._try_each_alone(best, nearest)
        if best.worst() <= ROUNDING:
            return best.answer()
        y, normals, weight = z, torch.zeros_like(nearest), best.first_weight
        for step in range(self.max_rounds):
            y, normals = self._augmented_lagrangian(z, y, normals, 4.0**step * weight, best.error > GOOD)
            self._polish(best, y, normals)
            if best.worst() <= GOOD:
                break
            if step >= 5 and best.worst() > self.tol:
                self._check_not_empty(best, y)
                self._check_not_empty(best, best.y)
        self._check_accuracy(best)
        # The tip of a cone, without the rounding of z.
        self._try(best, torch.zeros_like(z), best.normals, angle=best.angle)
        return best.answer()

    def _try_each_alone(self, best: Best, nearest: Tensor) -> None:
        """No set, or one set alone, may hold the point back."""
        self._try(best, best.z, torch.zeros_like(nearest), worse=ROUNDING)
        for k, y in enumerate(nearest):
            alone = torch.zeros_like(nearest)
            alone[k] = best.z - y
            self._try(best, y, alone, worse=ROUNDING)

    def _check_accuracy(self, best: Best) -> None:
        error = max(best.worst(), float(best.rounding.max()))
        if error > self.tol:
            apart = float(event_norm(self._gaps(best.y, 0 * best.normals, best.weight), best.ndim).max())
            raise NotConvergedError(
                f"Intersection: the estimated error is {error:.2g} of the size of the point and a gap of {apart:.2g} "
                f"is left between the sets, which hardly touch: enlarge one of them, or raise tol (now {self.tol:.2g})"
            )

    def _try(
        self,
        best: Best,
        y: Tensor,
        normals: Tensor,
        *,
        moved: Tensor | float = 0.0,
        angle: Tensor | float = 1.0,
        worse: float = torch.inf,
    ) -> Tensor:
        """The error of (y, u), which is kept where that is smaller than before and no `worse`."""
        weight = best.balance(y, normals)
        error = best.kkt_error(y, normals, self._gaps(y, normals, weight), moved)
        best.keep(y, normals, weight, torch.where(error <= worse, error, torch.inf), angle)
        return error

    def _polish(self, best: Best, y: Tensor, normals: Tensor) -> None:
        """Newton steps on the KKT equations, kept where they help; the size of a step estimates the error."""
        record, idle = torch.inf, 0
        for _ in range(POLISH):
            weight = best.balance(y, normals)
            kkt = self._linearised(y, normals, weight)
            y_new, normals_new = kkt.newton(y, normals, y - best.z + normals.sum(0), self._gaps(y, normals, weight))
            fine = torch.isfinite(y_new) & torch.isfinite(normals_new).all(0)
            y_new, normals_new = torch.where(fine, y_new, y), torch.where(fine, normals_new, normals)
            done = best.error <= ROUNDING
            error = self._try(best, y_new, normals_new, moved=event_norm(y_new - y, best.ndim), angle=kkt.angle)
            y, normals = y_new, normals_new
            now = float(torch.where(done, 0.0, error).max())
            idle = 0 if now < 0.75 * record else idle + 1
            record = min(record, now)
            if best.worst() <= ROUNDING or idle == PATIENCE:
                return

    def _augmented_lagrangian(
        self, z: Tensor, y: Tensor, normals: Tensor, weight: Tensor, todo: Tensor
    ) -> tuple[Tensor, Tensor]:
        """y = argmin |y - z|^2/2 + (weight/2) sum dist(y + u_i/weight, C_i)^2, then u_i = weight times the i-th gap,
        for the elements of the batch still to do.
        """
        ndim = self.event_ndim
        stiff = weight.reshape(weight.shape[: weight.ndim - ndim])

        def look(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            """The value, its gradient and the new multipliers."""
            gaps = self._gaps(y, normals, weight) + normals / weight
            value = event_norm(y - z, ndim).square() / 2 + stiff / 2 * event_norm(gaps, ndim).square().sum(0)
            return value, y - z + weight * gaps.sum(0), weight * gaps

        value, slope, updated = look(y)
        for _ in range(INNER):
            size = event_norm(slope, ndim)
            # No exact minimum is needed (Li, Sun & Toh, criterion B): a tenth of the change of the multipliers will do.
            change = event_norm(updated - normals, ndim).amax(0)
            rounding = 1e-13 * event_norm(updated, ndim).amax(0) + 1e-15 * stiff * event_norm(y, ndim)
            left = todo & (size > torch.maximum(0.1 * change / stiff, rounding))
            if not bool(left.any()):
                break
            step = -self._linearised(y, normals, weight).descent(slope)
            descent = (slope * step).flatten(y.ndim - ndim).sum(-1)
            length = left.to(y)
            for _ in range(HALVINGS):
                trial = y + length.reshape(length.shape + (1,) * ndim) * step
                there, slope, updated = look(trial)
                bad = left & (there > value + 1e-4 * length * descent) & (event_norm(slope, ndim) > 0.5 * size)
                if not bool(bad.any()):
                    break
                length = torch.where(bad, length / 2, length)
            y, value = trial, there
        return y, updated

    def _check_not_empty(self, best: Best, y: Tensor) -> None:
        """EmptySetError if normals n_i at points q_i of the sets show that every common point w is far away:
        <n_i, w - q_i> <= 0 for all i gives <sum n_i, w - y> <= sum <n_i, q_i - y> = -g, so |w - y| >= g/|sum n_i|.
        """
        ndim, eps, one = best.ndim, torch.finfo(y.dtype).eps, y.new_ones(())
        gaps = self._gaps(y, torch.zeros_like(best.normals), one)
        pull = (1e-3 / eps) * (gaps - gaps.mean(0))  # the longer the better, as long as P_i rounds less than the gap
        normals = self._gaps(y, pull, one) + pull
        g = (normals * (normals - pull)).flatten(y.ndim - ndim + 1).sum(-1).sum(0)
        total, reach = event_norm(normals, ndim).sum(0), event_norm(pull, ndim).amax(0)
        far = g > FAR * best.set_size(y) * event_norm(normals.sum(0), ndim)
        empty = far & (g > 100 * eps * total * torch.maximum(reach, best.set_size(y)))
        if bool(empty.any()):
            raise EmptySetError(
                f"Intersection: the sets have no common point within {FAR:g} times their size: "
                f"every point is at least {float((g / total)[empty].max()):.3g} away from one of them"
            )

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        """The part that is furthest outside, in units of its own scale."""
        parts = []
        for k, part in enumerate(self.sets):
            amount, scale, what = part.excess(y)
            scale = torch.as_tensor(scale).detach().to(amount).clamp_min(torch.finfo(amount.dtype).tiny)
            parts.append(((amount.detach() / scale).max(), amount.detach() / scale, f"in set {k}: {what}"))
        _, worst, what = max(parts, key=lambda entry: float(entry[0].nan_to_num(torch.inf)))
        return worst, worst.new_ones(()), what


def _size(points: Tensor, event_ndim: int) -> Tensor:
    """The largest norm along dimension 0, in a shape that broadcasts against one of the points."""
    largest = event_norm(points, event_ndim).amax(0).clamp_min(1e-100)
    return largest.reshape(largest.shape + (1,) * event_ndim)


def _direction(y: Tensor, event_ndim: int) -> Tensor:
    """A fixed unit vector in general position."""
    event = y.shape[y.ndim - event_ndim :]
    d = torch.randn(event, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (d / d.norm().clamp_min(1e-300)).to(y)


class Best:
    """For each point of a batch, the (y, u) of smallest error so far."""

    def __init__(self, z: Tensor, nearest: Tensor, ndim: int) -> None:
        """`nearest` has the P_i(z) along dimension 0."""
        self.z = z
        self.ndim = ndim
        self.y, self.normals = z.clone(), torch.zeros_like(nearest)
        self.weight = z.new_ones(z.shape[: z.ndim - ndim] + (1,) * ndim)
        self.error = torch.full_like(event_norm(z, ndim), torch.inf)
        self.angle = torch.ones_like(self.error)
        self._away = event_norm(z - nearest, ndim).amax(0)  # y is at least as far from z
        self._reach = torch.maximum(event_norm(nearest, ndim).amin(0), self._away - event_norm(z, ndim))

    @property
    def first_weight(self) -> Tensor:
        """Large enough to bring y from a far z to the sets."""
        return (self._away / self._reach.clamp_min(1e-300)).clamp(1.0, 1e15).reshape(self.weight.shape)

    def set_size(self, y: Tensor) -> Tensor:
        """|y|, or the part of it that is known from the P_i(z): what gaps between the sets are measured by."""
        return torch.maximum(self._reach, event_norm(y, self.ndim)).clamp_min(1e-300)

    def size(self, y: Tensor) -> Tensor:
        """max(|z|, |y|): what errors of y are measured by."""
        return torch.maximum(event_norm(self.z, self.ndim), event_norm(y, self.ndim)).clamp_min(1e-300)

    def balance(self, y: Tensor, normals: Tensor) -> Tensor:
        """At least 1, and such that |u_i|/weight is at most the size of the sets: P_i then rounds no more than y."""
        largest = (event_norm(normals, self.ndim).amax(0) / self.set_size(y)).clamp_min(1.0)
        return largest.reshape(largest.shape + (1,) * self.ndim)

    def kkt_error(self, y: Tensor, normals: Tensor, gaps: Tensor, moved: Tensor | float) -> Tensor:
        """The KKT residual of (y, u) or, if larger, the last move of y; relative."""
        left = torch.maximum(self.imbalance(y, normals), torch.as_tensor(moved, dtype=y.dtype)) / self.size(y)
        return torch.maximum(left, event_norm(gaps, self.ndim).amax(0) / self.set_size(y))

    def keep(self, y: Tensor, normals: Tensor, weight: Tensor, error: Tensor, angle: Tensor | float) -> None:
        """Keep (y, u) where the error is smaller than before."""
        better = error < self.error
        mask = better.reshape(better.shape + (1,) * self.ndim)
        self.error: Tensor = torch.where(better, error, self.error)
        self.y, self.normals = torch.where(mask, y, self.y), torch.where(mask, normals, self.normals)
        self.weight: Tensor = torch.where(mask, weight, self.weight)
        self.angle: Tensor = torch.where(better, torch.as_tensor(angle, dtype=y.dtype), self.angle)

    @property
    def rounding(self) -> Tensor:
        """How far rounding moves y, relative to its size: eps over the smallest angle between the sets."""
        return torch.finfo(self.y.dtype).eps / self.angle * self.set_size(self.y) / self.size(self.y)

    def imbalance(self, y: Tensor, normals: Tensor) -> Tensor:
        """|y + sum u - z| beyond the rounding of the sum."""
        off = event_norm(y - self.z + normals.sum(0), self.ndim)
        rounding = 4 * torch.finfo(y.dtype).eps * event_norm(normals, self.ndim).sum(0)
        return (off - rounding).clamp_min(0)

    def worst(self) -> float:
        """The largest error of the batch."""
        return float(self.error.max())

    def answer(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.y, self.normals, self.weight


class LinearisedKKT:
    """The equations y + sum u_i = z, y = P_i(y + u_i/weight) with P_i replaced by its Jacobian J_i.

    Where J_i = 0 the set fixes y (projectors Q_i on these directions); elsewhere it acts as a spring of stiffness
    weight J_i^+ (I - J_i). So y moves in the common null space of all Q_i, against M = I + the springs.
    """

    def __init__(self, jacobians: list[ProjectionJacobian], y: Tensor, weight: Tensor, event_ndim: int) -> None:
        self.event_ndim: Any = event_ndim
        self.projectors: bool = all(jacobian.is_projector for jacobian in jacobians)
        batch, event = y.shape[: y.ndim - event_ndim], y.shape[y.ndim - event_ndim :]
        n = event.numel()
        self.eye: Tensor = torch.eye(n, dtype=y.dtype, device=y.device)
        points = self.eye.reshape(n, *(1,) * len(batch), *event).expand(n, *batch, *event)
        J = torch.stack([jacobian.apply(points).reshape(n, *batch, n).movedim(0, -1) for jacobian in jacobians])
        self.J = (J + J.mT) / 2
        self.weight: Tensor = weight.reshape((*weight.shape[: weight.ndim - event_ndim], 1, 1))

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
            self.angle: Tensor = torch.where(held, angles, 1.0).amin(-1)
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
