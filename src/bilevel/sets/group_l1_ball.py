"""The ball of the l1,2 norm: the sum of the Euclidean norms of groups of entries."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InvalidInput, InvalidType
from .base import ConvexSet, Face, can_look_at_values, parameter, per_point, show
from .simplex import HALF, L1Ball, onto_simplex


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

    Examples
    --------
    >>> GroupL1Ball(2, radius=1.0).project(torch.tensor([3.0, 4.0, 0.6, 0.8]))
    tensor([0.6000, 0.8000, 0.0000, 0.0000])
    """

    parameters = ("groups", "radius")

    def __init__(self, groups: int | Tensor, radius: float | Tensor = 1.0) -> None:
        if isinstance(groups, Tensor):
            if groups.is_floating_point() or groups.ndim != 1 or groups.numel() == 0:
                raise InvalidType(f"groups must be an integer tensor (n,), got {groups.dtype} of shape {tuple(groups.shape)}")
            names, self._labels = groups.unique(return_inverse=True)
            self._count = len(names)
        elif isinstance(groups, bool) or not isinstance(groups, int):
            raise InvalidType(f"groups must be an integer or an integer tensor, got {groups!r}")
        elif groups < 1:
            raise InvalidInput(f"a group has at least 1 entry, got groups={groups}")
        self.groups, self.radius = groups, parameter("radius", radius, low=0.0)

    def tensor_parameters(self) -> dict[str, Tensor]:
        return {"radius": self.radius} if isinstance(self.radius, Tensor) else {}

    def _layout(self, z: Tensor) -> tuple[Tensor, int]:
        """The group number of each entry, and how many groups there are."""
        n = z.shape[-1]
        if isinstance(self.groups, int):
            if n % self.groups:
                raise InvalidInput(f"GroupL1Ball: {n} entries cannot be split into groups of {self.groups}")
            return torch.arange(n, device=z.device) // self.groups, n // self.groups
        if len(self._labels) != n:
            raise InvalidInput(f"GroupL1Ball: {len(self._labels)} group numbers for a point of {n} entries")
        return self._labels.to(z.device), self._count

    def _norms(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """|z_g| for each group (derivative 0 at 0), and the group number of each entry."""
        labels, count = self._layout(z)
        scale = z.detach().abs().amax(-1, keepdim=True)
        scale = torch.where(scale > 0, scale, 1)
        square = group_sum((z / scale).square(), labels, count)
        return torch.where(square > 0, torch.where(square > 0, square, 1).sqrt(), 0) * scale, labels

    def project(self, z: Tensor) -> Tensor:
        z = self.checked(z)
        if z.dtype in HALF:
            return self.project(z.float()).to(z.dtype)
        radius = per_point(self.radius, z)
        norms, labels = self._norms(z)
        inside = norms.detach().sum(-1, keepdim=True) <= radius.detach()
        factor = onto_simplex(norms, radius) / torch.where(norms > 0, norms, 1)
        return torch.where(inside, z, z * factor[..., labels])

    def jacobian(self, z: Tensor) -> Face:
        z = self.checked(z.detach())
        radius = per_point(self.radius, z).detach()
        norms, labels = self._norms(z)
        inside = norms.sum(-1, keepdim=True) <= radius
        return GroupFace(self, z, norms, onto_simplex(norms, radius), labels, inside)

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        radius = per_point(self.radius, y, 0)
        amount = (self._norms(y)[0].sum(-1) - radius).clamp_min(0)
        return amount, radius.detach(), f"the sum of the group norms exceeds the radius {show(self.radius)}"

    def margin(self, z: Tensor) -> Tensor:
        """That of the norms on the l1 ball: a norm changes no faster than z, and as fast along its group."""
        return L1Ball(self.radius).margin(self._norms(z)[0])

    def __repr__(self) -> str:
        groups = self.groups if isinstance(self.groups, int) else f"{self._count} groups"
        return f"GroupL1Ball({groups}, radius={show(self.radius)})"


def group_sum(x: Tensor, labels: Tensor, count: int) -> Tensor:
    """Sums over the entries of each group."""
    return x.new_zeros((*x.shape[:-1], count)).index_add(-1, labels, x)


class GroupFace(Face):
    """H v = shrink (v - n (n.v)) + n (n.v - mean over the support of n.v), group by group."""

    def __init__(
        self, owner: GroupL1Ball, z: Tensor, norms: Tensor, projected: Tensor, labels: Tensor, inside: Tensor
    ) -> None:
        self._owner, self._labels, self._inside = owner, labels, inside
        self._on = (projected > 0).to(z.dtype)
        safe = torch.where(norms > 0, norms, 1)
        self._shrink = (projected / safe)[..., labels]
        self._normal = z / safe[..., labels] * self._on[..., labels]
        self._per_count = self._on.sum(-1, keepdim=True).clamp_min(1).reciprocal()
        self.support = (self._on[..., labels] > 0) | inside
        self.is_projector = can_look_at_values() and bool(inside.all())
        self.dimension = self.support.sum(-1) - (~inside & (projected > 0).any(-1, keepdim=True)).squeeze(-1).to(torch.int64)

    def _along(self, v: Tensor) -> Tensor:
        """n_g . v_g for each group of the support."""
        return group_sum(v * self._normal, self._labels, self._on.shape[-1])

    def apply(self, v: Tensor) -> Tensor:
        along = self._along(v)
        mean = along.sum(-1, keepdim=True) * self._per_count
        turned = self._shrink * (v - self._normal * along[..., self._labels])
        return torch.where(self._inside, v, turned + self._normal * (along - mean)[..., self._labels])

    def parameter_vjp(self, u: Tensor) -> dict[str, Tensor]:
        """dP/dradius = n/|S|: growing the ball moves every group of the support outwards alike."""
        if not isinstance(self._owner.radius, Tensor):
            return {}
        rate = self._along(u).sum(-1, keepdim=True) * self._per_count * ~self._inside
        return {"radius": rate.squeeze(-1).sum_to_size(self._owner.radius.shape)}
