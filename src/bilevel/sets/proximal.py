"""Penalties by their proximal maps: the interface of a convex set with a step.

    prox(z, step) = argmin_y |y - z|^2/2 + step * value(y)

The proximal map is the gradient of a convex function, so its Jacobian H is symmetric with eigenvalues in [0, 1],
as for a projection; a convex set is the case of its indicator function, whatever the step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from .. import tolerances
from ..errors import InvalidInputError, InvalidTypeError
from .base import (
    ConvexSet,
    Parameterized,
    ProjectionJacobian,
    can_look_at_values,
    check_finite,
    parameter,
    per_point,
    tensor_of_points,
    widened,
)
from .group_l1_ball import GroupJacobian, Groups
from .jacobians import Diagonal

Step = float | Tensor


class Proximal(Parameterized, ABC):
    """A closed convex penalty r, by prox(z) = argmin over y of r(y) + |y - z|^2 / (2 step).

    The last `event_ndim` dimensions are one point, the leading ones a batch.

    References
    ----------
    Moreau (1965); Parikh & Boyd (2014), Proximal algorithms, section 6.

    Examples
    --------
    >>> import torch
    >>> from bilevel.sets import L1Penalty
    >>> L1Penalty(1.0).prox(torch.tensor([3.0, 0.5]), step=0.5)
    tensor([2.5000, 0.0000])
    """

    event_ndim: int = 1

    @abstractmethod
    def prox(self, z: Tensor, step: Step = 1.0) -> Tensor:
        """argmin_y |y - z|^2/2 + step value(y); differentiable by autograd where it is."""

    @abstractmethod
    def jacobian(self, z: Tensor, step: Step = 1.0) -> ProjectionJacobian:
        """An element of the generalised Jacobian of prox(., step) at z."""

    @abstractmethod
    def value(self, y: Tensor) -> Tensor:
        """The penalty of each batch element."""

    def _checked(self, z: Tensor) -> Tensor:
        z = tensor_of_points(type(self).__name__, z, self.event_ndim)
        if can_look_at_values():
            check_finite(type(self).__name__, z, self.event_ndim)
        return z

    def _step(self, step: Step, z: Tensor) -> Tensor:
        """The step, non-negative, one for all or one per batch element, broadcasting against z."""
        return per_point(parameter("step", step, low=0.0, error=InvalidInputError), z, self.event_ndim, name="step")


class ElasticNetPenalty(Proximal):
    """l1 |y|_1 + l2 |y|^2/2; prox(z) = sign(z) max(|z| - step l1, 0)/(1 + step l2).

    H is diagonal: 1/(1 + step l2) where |z| > step l1 or step l1 = 0, else 0 (also at the kinks |z| = step l1).

    Parameters
    ----------
    l1, l2
        Non-negative weights: numbers, or tensors that broadcast against the point.

    References
    ----------
    Parikh & Boyd (2014), Proximal algorithms, section 6; Zou & Hastie (2005).

    Examples
    --------
    >>> ElasticNetPenalty(1.0, 1.0).prox(torch.tensor([3.0, -0.5]))
    tensor([1., 0.])
    """

    parameters: tuple[str, ...] = ("l1", "l2")

    def __init__(self, l1: float | Tensor = 1.0, l2: float | Tensor = 0.0) -> None:
        self.l1: float | Tensor = parameter("l1", l1, low=0.0, error=InvalidInputError)
        self.l2: float | Tensor = parameter("l2", l2, low=0.0, error=InvalidInputError)

    def _weights(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return self.per_entry("l1", z), self.per_entry("l2", z)

    def prox(self, z: Tensor, step: Step = 1.0) -> Tensor:
        wide = widened(self._checked(z))
        step, (l1, l2) = self._step(step, wide), self._weights(wide)
        kept = _above_threshold(wide.detach().abs(), step * l1)
        shrunk = torch.where(kept, wide - wide.detach().sign() * (step * l1), torch.zeros_like(wide))
        return (shrunk / (1 + step * l2)).to(z.dtype)

    def jacobian(self, z: Tensor, step: Step = 1.0) -> ProjectionJacobian:
        wide = widened(self._checked(z).detach())
        step, (l1, l2) = self._step(step, wide).detach(), (weight.detach() for weight in self._weights(wide))
        gain = None if isinstance(self.l2, float) and self.l2 == 0 else 1 / (1 + step * l2)
        return Diagonal(_above_threshold(wide.abs(), step * l1), gain)

    def value(self, y: Tensor) -> Tensor:
        wide = widened(self._checked(y))
        l1, l2 = self._weights(wide)
        return (l1 * wide.abs() + l2 * wide.square() / 2).sum(-1).to(y.dtype)


class L1Penalty(ElasticNetPenalty):
    """weight |y|_1; prox(z) = sign(z) max(|z| - step weight, 0): soft-thresholding.

    Parameters
    ----------
    l1
        The weight, non-negative: a number, or a tensor that broadcasts against the point.

    References
    ----------
    Parikh & Boyd (2014), Proximal algorithms, section 6; Donoho & Johnstone (1994).

    Examples
    --------
    >>> L1Penalty(1.0).prox(torch.tensor([3.0, -0.5, -2.0]))
    tensor([ 2.,  0., -1.])
    """

    parameters: tuple[str, ...] = ("l1",)

    def __init__(self, l1: float | Tensor = 1.0) -> None:
        super().__init__(l1=l1)


class GroupL1Penalty(Proximal):
    """sum over groups of weight |y_g|_2; prox(z)_g = max(1 - step weight/|z_g|, 0) z_g.

    On a kept group, with n = z_g/|z_g| and r = step weight/|z_g|, H = (1 - r) I + r n n'; on the others (and at the
    kink |z_g| = step weight) H = 0. Without a threshold, step weight = 0, every group is kept, and H = I.

    Parameters
    ----------
    groups
        Integer tensor (n,): the group of each entry, numbered from 0.
    weight
        Non-negative: a number, or a tensor with one value per group.

    Examples
    --------
    >>> GroupL1Penalty(torch.tensor([0, 0, 1]), 1.0).prox(torch.tensor([3.0, 4.0, 0.5]))
    tensor([2.4000, 3.2000, 0.0000])
    """

    parameters: tuple[str, ...] = ("groups", "weight")

    def __init__(self, groups: Tensor, weight: float | Tensor = 1.0) -> None:
        numbers = isinstance(groups, Tensor) and groups.ndim == 1 and not groups.is_floating_point()
        if not numbers or not len(groups) or int(groups.min()) < 0:
            raise InvalidInputError(
                f"groups must be an integer tensor of shape (n,) with values from 0, got {groups!r}"
            )
        self.groups: Tensor = groups.long()
        count = int(groups.max()) + 1
        self._layout = Groups(type(self).__name__, self.groups, count)
        self.weight: float | Tensor = parameter("weight", weight, low=0.0, error=InvalidInputError)
        if isinstance(self.weight, Tensor) and self.weight.ndim and self.weight.shape != (count,):
            raise InvalidInputError(f"weight must have one value per group, {count}, got {tuple(self.weight.shape)}")

    def _shrinkage(self, z: Tensor, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        """|z_g|, 1 - step weight/|z_g| where that is positive, else 0, and whether step weight = 0, for each group."""
        norms, level = self._layout.norms(z), self._step(step, z) * torch.as_tensor(self.weight).to(z)
        kept = _above_threshold(norms.detach(), level.detach())
        shrink = torch.where(kept, 1 - level / torch.where(norms > 0, norms, 1), 0)
        return norms, shrink, (level == 0).expand_as(norms)

    def prox(self, z: Tensor, step: Step = 1.0) -> Tensor:
        wide = widened(self._checked(z))
        return (wide * self._layout.spread(self._shrinkage(wide, step)[1])).to(z.dtype)

    def jacobian(self, z: Tensor, step: Step = 1.0) -> ProjectionJacobian:
        wide = widened(self._checked(z).detach())
        norms, shrink, free = (part.detach() for part in self._shrinkage(wide, step))
        return GroupJacobian(self._layout, wide, norms, shrink * norms, self._layout.spread(free), ball=False)

    def value(self, y: Tensor) -> Tensor:
        wide = widened(self._checked(y))
        return (self._layout.norms(wide) * torch.as_tensor(self.weight).to(wide)).sum(-1).to(y.dtype)


def _above_threshold(size: Tensor, level: Tensor) -> Tensor:
    """What soft-thresholding at the level keeps: all that is larger; without a level there is no kink at 0."""
    return (size > level) | (level == 0)


class Indicator(Proximal):
    """0 on a convex set, infinity elsewhere; prox(z) = P(z) for every step.

    Parameters
    ----------
    constraint
        The convex set.

    References
    ----------
    Parikh & Boyd (2014), Proximal algorithms, section 6.

    Examples
    --------
    >>> from bilevel.sets import NonNegative
    >>> Indicator(NonNegative()).prox(torch.tensor([-1.0, 2.0]), step=0.1)
    tensor([0., 2.])
    """

    parameters: tuple[str, ...] = ("constraint",)

    def __init__(self, constraint: ConvexSet) -> None:
        if not isinstance(constraint, ConvexSet):
            raise InvalidTypeError(f"Indicator takes a convex set, got {constraint!r}")
        self.constraint = constraint
        self.event_ndim: Any = constraint.event_ndim

    def prox(self, z: Tensor, step: Step = 1.0) -> Tensor:
        parameter("step", step, low=0.0, error=InvalidInputError)
        return self.constraint.project(z)

    def jacobian(self, z: Tensor, step: Step = 1.0) -> ProjectionJacobian:
        parameter("step", step, low=0.0, error=InvalidInputError)
        return self.constraint.jacobian(z)

    def value(self, y: Tensor) -> Tensor:
        amount, scale, _ = self.constraint.excess(widened(self.constraint.checked(y)))
        inside = amount <= tolerances.feasibility(y.dtype) * torch.as_tensor(scale).to(amount)
        return torch.where(inside, 0.0, torch.inf).to(y)
