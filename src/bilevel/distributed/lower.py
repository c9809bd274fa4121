"""Bilevel problems whose lower variable is divided among ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..checks import check_vector
from ..errors import InvalidInput
from ..problem import AutogradLinearization, Objective, Problem
from ..sets.base import ConvexSet
from ..sets.free_space import FreeSpace
from ..spaces import Space, Vector, leaves, like
from .loop import Pulse
from .product import ShardedProduct
from .ranks import Ranks
from .sets import ShardedSet
from .sharding import sharded
from .spaces import ShardedSpace
from .sums import added_up
from .vector_space import DividedSpace


class ShardedLowerProblem(Problem):
    """min_x sum_r f_r(x, y_r) with y = argmin over (y_0, y_1, ...) in Y of sum_r g_r(x, y_r), y_r on rank r.

    Each rank writes down its part of f and of g. Parts may be coupled: what all ranks must know, such as A y with the
    columns of A divided, is `sum_over_ranks(A_r @ y_r, ranks)` within f_r or g_r. Derivatives in an x that every rank
    holds are summed over ranks, one round each; the projection on Y takes the rounds that `sharded` says. Solvers see y
    through its space and its set alone, so they take it as it is; those that look at single coordinates refuse it.

    Parameters
    ----------
    upper, lower
        f_r(x, y_r) and g_r(x, y_r) -> scalar tensors: the parts of this rank, which add up to f and g.
    constraint
        Y, a set that `sharded` takes, or a function x -> such a set; None for no constraint.
    ranks
        Who holds the parts; default: those of torch.distributed's default group, or this process alone.
    y0
        This rank's part of where y starts, of shape (n_r,) or (batch, n_r) with n_r >= 1, or a dictionary of such.
    x0
        Where x starts, a tensor or a dictionary of tensors of any shape: the same on every rank, unless it is divided.
    x_divided
        Whether x is divided likewise: rank r then holds x_r, and only f_r and g_r depend on it.
    upper_constraint
        The convex set X of x; divided, if x is.

    References
    ----------
    Shi, Chang & Gu (2024), the paper of DMLCBO, section 2.1 (the problem); the division is ours.

    Examples
    --------
    y = (y_0, y_1, ...) is the point of the simplex nearest to A x, and x shall bring it to a target:

    >>> import torch
    >>> from bilevel import sets
    >>> from bilevel.distributed import Ranks, minimize
    >>> ranks, A, target = Ranks(), torch.eye(4), torch.tensor([0.7, 0.3, 0.0, 0.0])
    >>> mine = slice(ranks.rank, None, ranks.size)  # with one rank: all rows
    >>> problem = ShardedLowerProblem(
    ...     upper=lambda x, y: (y - target[mine]).square().sum(),
    ...     lower=lambda x, y: (y - A[mine] @ x).square().sum(),
    ...     constraint=sets.Simplex(),
    ...     y0=torch.full((4,), 0.25)[mine],
    ...     ranks=ranks,
    ... )
    >>> solution = minimize(problem, torch.zeros(4), steps=200)
    >>> [round(value, 2) for value in solution.y.tolist()]
    [0.7, 0.3, 0.0, 0.0]
    """

    y_divided = True

    def __init__(
        self,
        upper: Objective,
        lower: Objective,
        constraint: ConvexSet | Callable[[Any], ConvexSet] | None = None,
        *,
        y0: Vector,
        ranks: Ranks | None = None,
        x0: Vector | None = None,
        x_divided: bool = False,
        upper_constraint: ConvexSet | None = None,
    ) -> None:
        self.ranks = Ranks() if ranks is None else ranks
        self.pulse, self.x_divided = Pulse(self.ranks), x_divided
        with self.ranks.together("looking at its part of the lower variable"):
            y0 = check_vector("y0", y0)
            if x_divided and constraint is not None and not isinstance(constraint, ConvexSet):
                raise InvalidInput("a set that moves with x needs all of x on every rank: leave x_divided out")
            if x_divided:
                upper_constraint = self._divided(FreeSpace() if upper_constraint is None else upper_constraint)
            if isinstance(constraint, ConvexSet) or constraint is None:
                divided = self._divided(FreeSpace() if constraint is None else constraint)
            else:
                divided = lambda x: self._divided(constraint(x))  # noqa: E731
            super().__init__(upper, lower, divided, upper_constraint=upper_constraint, x0=x0, y0=y0)
        alike = {"the kind of set": repr(type(self.constraint)), "x_divided": x_divided}
        alike |= {"the dtypes of y0": [str(u.dtype) for u in leaves(y0)]}
        alike |= {"the batch of y0": [list(u.shape[:-1]) for u in leaves(y0)]}
        self.ranks.agree(alike, "every rank must state its part of the same problem")

    def _divided(self, constraint: ConvexSet) -> ConvexSet:
        return constraint if isinstance(constraint, ShardedSet | ShardedProduct) else sharded(constraint, self.ranks)

    @cached_property
    def x_space(self) -> Space:
        return _space(self.upper_constraint, self.ranks) if self.x_divided else super().x_space

    def y_space(self, constraint: ConvexSet) -> Space:
        return _space(constraint, self.ranks)

    def linearize(self, x: Vector, y: Vector, batch: Any = None) -> DividedLinearization:
        return DividedLinearization(self, x, y, batch)

    def is_finite(self, state: Any) -> bool:
        """On all ranks, in one round."""
        return self.pulse.all_finite(state)

    def of_all(self, part: Vector) -> Vector:
        """What a vector of the shape of x is in all, given the parts of ranks: their sum, or x's own parts."""
        if self.x_divided:
            return part
        first = leaves(part)[0]
        flat = added_up(torch.cat([u.reshape(-1).to(first) for u in leaves(part)]), self.ranks)
        pieces = zip(flat.split([u.numel() for u in leaves(part)]), leaves(part), strict=True)
        return like(part, [piece.reshape(u.shape).to(u) for piece, u in pieces])


class DividedLinearization(AutogradLinearization):
    """f = sum_r f_r, g = sum_r g_r at one point: derivatives in y stay where y is, those in x are summed."""

    problem: ShardedLowerProblem

    def _upper_value(self) -> Tensor:
        return added_up(super()._upper_value(), self.problem.ranks)

    def _lower_value(self) -> Tensor:
        return added_up(super()._lower_value(), self.problem.ranks)

    @cached_property
    def _upper_parts(self) -> tuple[Vector, Vector]:
        self.problem.costs.upper_gradients += 1
        return super()._upper_gradients()

    @cached_property
    def upper_grad_x(self) -> Vector:  # type: ignore[override]
        return self.problem.of_all(self._upper_parts[0])

    @property
    def upper_grad_y(self) -> Vector:
        return self._upper_parts[1]

    def _lower_gradient_x(self) -> Vector:
        return self.problem.of_all(super()._lower_gradient_x())

    def _lower_cross(self, v: Vector) -> Vector:
        return self.problem.of_all(super()._lower_cross(v))

    def reduced_gradient(self, w: Vector) -> Vector:
        """Both terms in one sum over ranks."""
        self.problem.costs.cross_products += 1
        crossed = super()._lower_cross(w)
        return self.problem.of_all(Space().add(self._upper_parts[0], crossed, -1.0))

    def depends(self) -> dict[str, bool]:
        """What f and g depend on, on some rank."""
        here = super().depends()
        return {name: total > 0 for name, total in zip(here, self.problem.ranks.total(*here.values()), strict=True)}


def _space(constraint: ConvexSet, ranks: Ranks) -> ShardedSpace:
    """One number per factor of the set; of R^n, one per tensor."""
    free = isinstance(getattr(constraint, "base", None), FreeSpace)
    return DividedSpace(None if free else constraint.event_ndim, ranks=ranks)
