"""A set that moves and stretches with x, rewritten as a set that stands still.

With Y(x) = s(x) Y_0 + t(x) and y = s(x) y' + t(x), y' in Y_0:

    f'(x, y') = f(x, s(x) y' + t(x)),     g'(x, y') = g(x, s(x) y' + t(x))

has the same F, a fixed set, and the motion of the set in the derivatives of f' and g' in x: every solver takes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .problem import Problem
from .sets.base import ConvexSet, per_point
from .sets.transformed import Scaled, Translated
from .spaces import Vector, tree_map


@dataclass(frozen=True)
class FixedForm:
    """The problem in y', and the way there and back.

    Parameters
    ----------
    problem
        With the fixed set Y_0.
    original
        With the set that moves.
    """

    problem: Problem
    original: Problem

    def into(self, x: Vector, y: Any) -> Tensor:
        """y' = (y - t(x)) / s(x)."""
        _, scale, shift = _parts(self.original.constraint_at(x), y)
        return self.problem.constraint_at(x).project((y - shift) / scale)  # to remove rounding

    def back(self, x: Vector, y: Any) -> Tensor:
        """y = s(x) y' + t(x)."""
        _, scale, shift = _parts(self.original.constraint_at(x), y)
        return scale * y + shift


def fixed_form(problem: Problem, x: Vector, y: Vector) -> FixedForm | None:
    """The fixed form of a problem whose set at x is Translated or Scaled (or both) of a base that does not move.

    None when the set stands still already, or moves in another way.

    Examples
    --------
    >>> import bilevel
    >>> problem = bilevel.Problem(
    ...     upper=lambda x, y: (y - 1).square().sum(),
    ...     lower=lambda x, y: y.square().sum(),
    ...     constraint=lambda x: bilevel.sets.Translated(bilevel.sets.L2Ball(1.0), x),
    ... )
    >>> fixed_form(problem, torch.zeros(2), torch.zeros(2)).problem.constraint
    L2Ball(radius=1, center=0)
    """
    if not problem.moving or isinstance(y, dict):
        return None
    point = tree_map(lambda u: u.detach().requires_grad_(), x)
    with torch.enable_grad():
        moved = problem.constraint_at(point)
        if not isinstance(moved, Translated | Scaled):
            return None
        base, _, _ = _parts(moved, y)
    if any(value.requires_grad for value in base.tensor_parameters().values()):
        return None

    def placed(function: Any) -> Any:
        def call(x: Vector, y: Tensor, *batch: Any) -> Tensor:
            _, scale, shift = _parts(problem.constraint_at(x), y)
            return function(x, scale * y + shift, *batch)

        return call

    form = Problem(
        placed(problem.upper),
        placed(problem.lower),
        base,
        upper_constraint=problem.upper_constraint,
        sampler=problem.sampler,
        inequality=None if problem.inequality is None else placed(problem.inequality),
    )
    return FixedForm(form, problem)


def _parts(constraint: ConvexSet, y: Tensor) -> tuple[ConvexSet, Tensor, Tensor]:
    """Y = scale base + shift."""
    if isinstance(constraint, Translated):
        base, scale, shift = _parts(constraint.base, y)
        return base, scale, shift + torch.as_tensor(constraint.shift).to(y)
    if isinstance(constraint, Scaled):
        base, scale, shift = _parts(constraint.base, y)
        factor = per_point(constraint.factor, y, int(constraint.event_ndim))  # type: ignore[arg-type]
        return base, scale * factor, shift * factor
    return constraint, torch.ones((), dtype=y.dtype, device=y.device), torch.zeros((), dtype=y.dtype, device=y.device)
