"""The mean of projections at perturbed points: again a proximal map, without the kinks of the set."""

from __future__ import annotations

from dataclasses import dataclass

from .._serializable import serializable
from ..sets.base import ConvexSet
from ..spaces import Vector, leaves, tree_map


@serializable
@dataclass(frozen=True)
class Smoothing:
    """How much the projection is smoothed: a radius in units of z, the eta it was chosen for, the number of draws."""

    radius: float
    eta: float
    draws: int = 16


class SmoothedSet:
    """P_bar(z) = mean_k P_Y(z + radius u_k), u_k fixed antithetic normal draws; H_bar is the mean of the Jacobians.

    A mean of proximal maps is a proximal map (Moreau 1965), so y = P_bar(y - eta grad_y g) is the solution of a convex
    lower level without the kinks of Y below the size of `radius`.
    """

    def __init__(self, constraint: ConvexSet, radius: float, draws: Vector) -> None:
        self.constraint, self.radius, self.draws = constraint, radius, draws
        self.count: int = leaves(draws)[0].shape[0]

    def points(self, z: Vector) -> Vector:
        """z + radius u_k, stacked along a first dimension."""
        return tree_map(lambda u, draw: u.unsqueeze(0) + self.radius * draw, z, self.draws)

    def project(self, z: Vector) -> Vector:
        """P_bar(z)."""
        return tree_map(lambda u: u.mean(0), self.constraint.project(self.points(z)))

    def apply(self, z: Vector, rows: Vector) -> Vector:
        """H_bar v for each v of a stack."""
        wide = tree_map(lambda u: u.unsqueeze(1).expand(u.shape[0], self.count, *u.shape[1:]).contiguous(), rows)
        jacobian = self.constraint.jacobian(self.points(z))
        return tree_map(lambda u: u.mean(1), jacobian.apply(wide))

    def spread(self, u: Vector) -> Vector:
        """The transpose of the mean: u / K at each of the points."""
        return tree_map(lambda v: (v / self.count).unsqueeze(0).expand(self.count, *v.shape).contiguous(), u)
