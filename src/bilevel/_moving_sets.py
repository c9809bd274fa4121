"""A set that is translated and scaled with x, rewritten as a fixed set.

With Y(x) = s(x) Y_0 + t(x) and y = s(x) y' + t(x), y' in Y_0:

    f'(x, y') = f(x, s(x) y' + t(x)),     g'(x, y') = g(x, s(x) y' + t(x))

has the same F and a fixed set; the motion of the set is contained in the derivatives of f' and g' in x, so that every
solver supports it. A linearisation of the problem's own is kept, by the chain rule: with M = dy/dx at fixed y',

    f'_y = s f_y,   f'_x = f_x + M' f_y,   G'_yy v = s G_yy s v,
    G'_xy v = G_xy s v + M' G_yy s v + d/dx <s(x) v, g_y>.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .linearization import Costs, Linearization, as_leaves, vjp
from .problem import Problem
from .sets.base import ConvexSet
from .sets.transformed import Scaled, Translated
from .spaces import Vector, leaves


@dataclass(frozen=True)
class MovingSetRewrite:
    """The problem in y', and the maps between y and y'.

    Parameters
    ----------
    problem
        The problem with the fixed set Y_0.
    original
        The problem with the moving set.
    """

    problem: Problem
    original: Problem

    def to_fixed(self, x: Vector, y: Any) -> Tensor:
        """y' = (y - t(x)) / s(x)."""
        _, scale, shift = _parts(self.original.constraint_at(x), y)
        return self.problem.constraint_at(x).project((y - shift) / scale)  # to remove rounding

    def from_fixed(self, x: Vector, y: Any) -> Tensor:
        """y = s(x) y' + t(x)."""
        _, scale, shift = _parts(self.original.constraint_at(x), y)
        return scale * y + shift


def rewrite_moving_set(problem: Problem, x: Vector, y: Vector) -> MovingSetRewrite | None:
    """The fixed form of a problem whose set at x is a fixed set that is Translated or Scaled (or both) by x.

    None if the set is fixed already, or moves in another way.

    Examples
    --------
    >>> import bilevel
    >>> problem = bilevel.Problem(
    ...     upper=lambda x, y: (y - 1).square().sum(),
    ...     lower=lambda x, y: y.square().sum(),
    ...     constraint=lambda x: bilevel.sets.Translated(bilevel.sets.L2Ball(1.0), x),
    ... )
    >>> rewrite_moving_set(problem, torch.zeros(2), torch.zeros(2)).problem.constraint
    L2Ball(radius=1, center=0)
    """
    if not problem.moving or isinstance(y, dict):
        return None
    with torch.enable_grad():
        moved = problem.constraint_at(as_leaves(x))
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

    own = type(problem).linearize is not Problem.linearize
    form = (_Structured if own else Problem)(
        placed(problem.upper),
        placed(problem.lower),
        base,
        upper_constraint=problem.upper_constraint,
        sampler=problem.sampler,
        inequality=None if problem.inequality is None else placed(problem.inequality),
        ranks=problem.ranks,
    )
    if isinstance(form, _Structured):
        form.original = copy.copy(problem)
        form.original.costs = Costs()  # the products are counted once, where they are asked for
    return MovingSetRewrite(form, problem)


class _Structured(Problem):
    """The fixed form of a problem with a linearisation of its own."""

    original: Problem

    def linearize(self, x: Vector, y: Any, batch: Any = None) -> Linearization:
        return _Placed(self, x, y, batch)


class _Placed(Linearization):
    """The original's linearisation at y = s(x) y' + t(x), in terms of y'."""

    problem: _Structured
    y: Tensor

    @cached_property
    def _map(self) -> tuple[Vector, Tensor, Tensor]:
        """x as leaves of a graph, and s(x), s(x) y' + t(x) with that graph."""
        x = as_leaves(self.x)
        with torch.enable_grad():
            _, scale, shift = _parts(self.problem.original.constraint_at(x), self.y)
            return x, scale, scale * self.y.detach() + shift

    @cached_property
    def _at_y(self) -> Linearization:
        return self.problem.original.linearize(self.x, self._map[2].detach(), self.batch)

    def _scaled(self, v: Any) -> Tensor:
        return self._map[1].detach() * v

    def _back(self, output: Tensor, cotangent: Any) -> Vector:
        """The derivative of <output, cotangent> in x, through s(x) and t(x)."""
        return vjp(output, self._map[0], cotangent)

    def _upper_value(self) -> Tensor:
        return self._at_y.upper_value

    def _lower_value(self) -> Tensor:
        return self._at_y.lower_value

    def _upper_gradients(self) -> tuple[Vector, Vector]:
        slope = self._at_y.upper_grad_y
        moved = self._back(self._map[2], slope)
        return self.problem.x_space.add(self._at_y.upper_grad_x, moved), self._scaled(slope)

    def _lower_gradient_x(self) -> Vector:
        moved = self._back(self._map[2], self._at_y.lower_grad_y)
        return self.problem.x_space.add(self._at_y.lower_grad_x, moved)

    def _lower_gradient_y(self) -> Vector:
        return self._scaled(self._at_y.lower_grad_y)

    def _lower_hvp(self, v: Vector) -> Vector:
        return self._scaled(self._at_y.lower_hvp(self._scaled(v)))

    def _lower_cross(self, v: Any) -> Vector:
        add, w = self.problem.x_space.add, self._scaled(v)
        self.problem.costs.hessian_products += 1
        moved = self._back(self._map[2], self._at_y.lower_hvp(w))
        with torch.enable_grad():
            stretched = self._map[1] * leaves(v)[0]  # its derivative in x is that of s alone
        return add(add(self._at_y.lower_cross(w), moved), self._back(stretched, self._at_y.lower_grad_y))


def _parts(constraint: ConvexSet, y: Tensor) -> tuple[ConvexSet, Tensor, Tensor]:
    """Y = scale base + shift."""
    if isinstance(constraint, Translated):
        base, scale, shift = _parts(constraint.base, y)
        return base, scale, shift + torch.as_tensor(constraint.shift).to(y)
    if isinstance(constraint, Scaled):
        base, scale, shift = _parts(constraint.base, y)
        factor = constraint.per_point("factor", y)
        return base, scale * factor, shift * factor
    return constraint, torch.ones((), dtype=y.dtype, device=y.device), torch.zeros((), dtype=y.dtype, device=y.device)
