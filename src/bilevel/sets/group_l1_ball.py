"""The ball of the l1,2 norm: the sum of the Euclidean norms of groups of entries."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from ..errors import InvalidInputError, InvalidTypeError
from .base import ConvexSet, ProjectionJacobian, can_look_at_values, parameter, show, validated
from .simplex import L1Ball, onto_simplex, within


class GroupL1Ball(ConvexSet):
    """{y : sum_g |y_g|_2 <= radius}; P(z)_g = p_g z_g/|z_g|, p the projection of the norms on the l1 ball.

    Inside the ball (and on its boundary) H = I. Outside, with S the groups of P(z) that are not zero and
    n_g = z_g/|z_g|, group g of H v is p_g/|z_g| (v_g - n_g (n_g.v_g)) + n_g (n_g.v_g - mean_{h in S} n_h.v_h); groups
    at the threshold count as outside S.

    Parameters
    ----------
    groups
        The size of contiguous groups of equal size, or an integer tensor (n,) with a group number for each entry.
    radius
        Non-negative: a number, or a tensor with one value per batch element.

    References
    ----------
    Yuan & Lin (2006), for the norm; van den Berg, Schmidt, Friedlander & Murphy (2008), for the projection.

    Examples
    --------
    >>> GroupL1Ball(2, radius=1.0).project(torch.tensor([3.0, 4.0, 0.6, 0.8]))
    tensor([0.6000, 0.8000, 0.0000, 0.0000])
    """

    parameters: tuple[str, ...] = ("groups", "radius")

    def __init__(self, groups: int | Tensor, radius: float | Tensor = 1.0) -> None:
        if isinstance(groups, Tensor):
            if groups.is_floating_point() or groups.ndim != 1 or groups.numel() == 0:
                raise InvalidTypeError(
                    f"groups must be an integer tensor (n,), got {groups.dtype} of shape {tuple(groups.shape)}"
                )
        elif isinstance(groups, bool) or not isinstance(groups, int):
            raise InvalidTypeError(f"groups must be an integer or an integer tensor, got {groups!r}")
        elif groups < 1:
            raise InvalidInputError(f"a group has at least 1 entry, got groups={groups}")
        names, labels = groups.unique(return_inverse=True) if isinstance(groups, Tensor) else ((), groups)
        self._layout = Groups(type(self).__name__, labels, len(names))
        self.groups = groups
        self.radius: float | Tensor = parameter("radius", radius, low=0.0)

    @validated
    def project(self, z: Tensor) -> Tensor:
        wide = z.double()  # in float32, the norms of a far z would round by more than the radius
        radius = self.per_point("radius", wide)
        norms = self._layout.norms(wide)
        factor = onto_simplex(norms, radius) / torch.where(norms > 0, norms, 1)
        return torch.where(within(norms, radius), z, (wide * self._layout.spread(factor)).to(z.dtype))

    @validated
    def jacobian(self, z: Tensor) -> ProjectionJacobian:
        radius = self.per_point("radius", z).detach()
        norms = self._layout.norms(z)
        return GroupJacobian(self._layout, z, norms, onto_simplex(norms, radius), within(norms, radius))

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        radius = self.per_point("radius", y, keepdim=False)
        amount = (self._layout.norms(y).sum(-1) - radius).clamp_min(0)
        return amount, radius.detach(), f"the sum of the group norms exceeds the radius {show(self.radius)}"

    @validated
    def margin(self, z: Tensor) -> Tensor:
        """That of the norms on the l1 ball: a norm changes no faster than z, and as fast along its group."""
        return L1Ball(self.radius).margin(self._layout.norms(z))


class Groups:
    """Which entry belongs to which group: contiguous groups of one size, or a number below `count` for each entry."""

    def __init__(self, owner: str, labels: int | Tensor, count: int = 0) -> None:
        self._owner, self._labels, self._count = owner, labels, count

    def sum(self, x: Tensor) -> Tensor:
        """Sums over the entries of each group, (..., n) -> (..., groups)."""
        n, labels = x.shape[-1], self._labels
        if isinstance(labels, int):
            if n % labels:
                raise InvalidInputError(f"{self._owner}: {n} entries cannot be split into groups of {labels}")
            return x.unflatten(-1, (n // labels, labels)).sum(-1)
        if len(labels) != n:
            raise InvalidInputError(f"{self._owner}: {len(labels)} group numbers for a point of {n} entries")
        return x.new_zeros((*x.shape[:-1], self._count)).index_add(-1, labels.to(x.device), x)

    def norms(self, z: Tensor) -> Tensor:
        """|z_g| for each group, with derivative 0 at 0."""
        scale = z.detach().abs().amax(-1, keepdim=True)
        scale = torch.where(scale > 0, scale, 1)
        square = self.sum((z / scale).square())
        return torch.where(square > 0, torch.where(square > 0, square, 1).sqrt(), 0) * scale

    def spread(self, t: Tensor) -> Tensor:
        """The value of its group for each entry, (..., groups) -> (..., n)."""
        if isinstance(self._labels, int):
            return t.unsqueeze(-1).expand(*t.shape, self._labels).flatten(-2)
        return t.index_select(-1, self._labels.to(t.device))


class GroupJacobian(ProjectionJacobian):
    """H v = shrink (v - n (n.v)) + n (n.v - mean), group by group; v itself where `inside`.

    The mean is that of n.v over the support for a ball, and 0 for a penalty.
    """

    def __init__(
        self, groups: Groups, z: Tensor, norms: Tensor, projected: Tensor, inside: Tensor, *, ball: bool = True
    ) -> None:
        self._groups, self._inside, self._ball = groups, inside, ball
        on = projected.sign()
        safe = torch.where(norms > 0, norms, 1)
        self._shrink = groups.spread(projected / safe)
        self._normal = z * groups.spread(on / safe)
        self._count = on.sum(-1, keepdim=True)
        self.is_projector: bool = can_look_at_values() and bool(inside.all())

    @cached_property
    def support(self) -> Tensor:
        return (self._shrink > 0) | self._inside

    @cached_property
    def dimension(self) -> Tensor:
        size = self.support.sum(-1)
        return size - (~self._inside & (self._count > 0)).squeeze(-1).to(torch.int64) if self._ball else size

    def apply(self, v: Tensor) -> Tensor:
        along = self._groups.sum(v * self._normal)
        mean = along.sum(-1, keepdim=True) / self._count.clamp_min(1) if self._ball else 0.0
        radial = self._groups.spread(along)
        turned = self._shrink * (v - self._normal * radial) + self._normal * (radial - mean)
        return torch.where(self._inside, v, turned.to(v.dtype))
