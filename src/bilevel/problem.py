"""The bilevel problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .errors import InvalidInputError, InvalidTypeError
from .linearization import AutogradLinearization, Costs, Linearization, as_leaves, vjp
from .ranks import Ranks
from .sets.base import ConvexSet
from .sets.free_space import FreeSpace
from .sets.inequality_set import InequalitySet
from .spaces import Space, Vector, all_finite, leaves, like, sum_whole, tree_map

Objective = Callable[..., Tensor]


class Problem:
    """A bilevel problem, min_x f(x, y*(x)) with y*(x) = argmin over y in Y of g(x, y).

    Parameters
    ----------
    upper
        f(x, y) -> scalar tensor, differentiable. With a `sampler`, f(x, y, batch).
    lower
        g(x, y) -> scalar tensor, twice differentiable and strongly convex in y. With a `sampler`, g(x, y, batch).
    constraint
        The convex set Y, or a function x -> set when Y moves with x; None for no constraint.
    upper_constraint
        The convex set X of x; None for no constraint.
    x0, y0
        The starting points of runs and of lower-level solves; y0 has the shape, dtype and device of y. They can also be
        passed to `minimize` and `compare`.
    sampler
        generator -> batch. If given, f and g take a third argument: the batch, or None for all the data.
    inequality
        h(x, y) -> tensor of shape (m,), convex in y: the lower level is then also subject to h(x, y) <= 0. Only for
        solvers that support function constraints (`BiCGAFFA`, `LVHBA`); use a set with a projection where possible,
        which is faster.
    ranks
        The processes of the run, from `bilevel.distributed.connect`; by default a single process. On several ranks f
        and g are sums over ranks: `upper` and `lower` return the part of this rank. Derivatives with respect to
        variables that every rank holds are summed over the ranks; derivatives with respect to divided variables stay on
        their rank.
    divided
        ("x",) if each rank holds its own rows of x (its first dimension), on which only its own parts of f and g
        depend; ("x.name", ...) for entries of a dictionary. Every rank holds all of y.

    References
    ----------
    Shi, Chang & Gu (2024), the paper of DMLCBO, section 2.1.

    Examples
    --------
    >>> import bilevel, torch
    >>> target = torch.tensor([2.0, 0.5])
    >>> problem = bilevel.Problem(
    ...     upper=lambda x, y: (y - target).square().sum(),
    ...     lower=lambda x, y: (y - x).square().sum(),
    ...     constraint=bilevel.sets.L1Ball(radius=1.0),
    ...     y0=torch.zeros(2),
    ... )
    >>> bilevel.upper_value(problem, torch.tensor([3.0, 0.0]))
    tensor(1.2500)
    """

    def __init__(
        self,
        upper: Objective,
        lower: Objective,
        constraint: ConvexSet | Callable[[Any], ConvexSet] | None = None,
        *,
        upper_constraint: ConvexSet | None = None,
        x0: Vector | None = None,
        y0: Vector | None = None,
        sampler: Callable[[torch.Generator], Any] | None = None,
        inequality: Objective | None = None,
        ranks: Ranks | None = None,
        divided: Sequence[str] = (),
    ) -> None:
        for name, function in (("upper", upper), ("lower", lower)):
            if not callable(function):
                raise InvalidTypeError(f"{name} must be a function of (x, y), got {function!r}")
        for name, given in (("constraint", constraint), ("upper_constraint", upper_constraint)):
            if isinstance(given, type):
                raise InvalidTypeError(f"{name} is the class {given.__name__}: pass an instance, {given.__name__}(...)")
            if isinstance(given, dict):
                raise InvalidTypeError(f"{name} is a dictionary: use bilevel.sets.ProductSet({{name: set, ...}})")
        if not (constraint is None or isinstance(constraint, ConvexSet) or callable(constraint)):
            raise InvalidTypeError(
                f"constraint must be a convex set of bilevel.sets or a function x -> set, got {constraint!r}"
            )
        if not (upper_constraint is None or isinstance(upper_constraint, ConvexSet)):
            raise InvalidTypeError(f"upper_constraint must be a convex set of bilevel.sets, got {upper_constraint!r}")
        if not (sampler is None or callable(sampler)):
            raise InvalidTypeError(f"sampler must be a function generator -> batch, got {sampler!r}")
        if not (inequality is None or callable(inequality)):
            raise InvalidTypeError(f"inequality must be a function of (x, y), got {inequality!r}")
        self.upper: Objective = upper
        self.lower: Objective = lower
        self.inequality: Objective | None = inequality
        self.constraint: Any = FreeSpace() if constraint is None else constraint
        self.upper_constraint: FreeSpace | ConvexSet = FreeSpace() if upper_constraint is None else upper_constraint
        self.moving: bool = not isinstance(self.constraint, ConvexSet)
        """Whether the set Y depends on x."""
        self.x0: Vector | None = x0
        self.y0: Vector | None = y0
        self.sampler = sampler
        self.ranks: Ranks = Ranks() if ranks is None else ranks
        self._x_divided = self._check_divided((divided,) if isinstance(divided, str) else tuple(divided))
        self.costs: Costs = Costs()
        self.flaws: dict[Any, str] | None = {}
        """Flaws of the derivatives (see `_derivative_check`), by shapes; None: not to be checked."""

    def _check_divided(self, divided: tuple[str, ...]) -> bool | tuple[str, ...]:
        """Which entries of x are divided, in the form that `Space` expects."""
        for name in divided:
            if name.partition(".")[0] == "y":
                raise InvalidInputError(
                    f"divided={divided!r}: projections and linear systems need all of y, so every rank holds it as a "
                    "whole; divide the rows of the data, and x with them: divided=('x',)"
                )
            if name.partition(".")[0] != "x":
                raise InvalidInputError(
                    f"divided={divided!r}: write ('x',), or ('x.name',) for an entry of a dictionary"
                )
        if "x" in divided and self.moving:
            raise InvalidInputError("a set that moves with x needs all of x on every rank: omit divided")
        if divided and self.inequality is not None:
            raise InvalidInputError("function constraints need all of x on every rank: omit divided")
        if divided and not (isinstance(self.upper_constraint, FreeSpace) or self.upper_constraint.separable):
            raise InvalidInputError(
                f"projecting x on {self.upper_constraint!r} needs all of x on every rank: use a box, or leave "
                "divided out"
            )
        return "x" in divided or tuple(name.partition(".")[2] for name in divided)

    def constraint_at(self, x: Vector) -> ConvexSet:
        """The set Y at x."""
        if not self.moving:
            return self.constraint  # type: ignore[return-value]
        constraint = self.constraint(x)  # type: ignore[operator]
        if not isinstance(constraint, ConvexSet):
            raise InvalidTypeError(f"constraint(x) must return a convex set of bilevel.sets, got {constraint!r}")
        return constraint

    def feasible_set(self, x: Vector) -> ConvexSet:
        """The set of the lower level at x: Y, cut by h(x, y) <= 0 when there are function constraints."""
        constraint = self.constraint_at(x)
        if self.inequality is None:
            return constraint
        x = tree_map(Tensor.detach, x)
        return InequalitySet(lambda y: self.call_inequality(x, y), constraint)

    @cached_property
    def x_space(self) -> Space:
        """The space of x; a scalar step is one number per tensor."""
        return Space(_event_ndim(self.upper_constraint), self.ranks, self._x_divided)

    def y_space(self, constraint: ConvexSet) -> Space:
        """The space of y; a scalar step is one number per factor of the set."""
        return self._y_space if constraint is self.constraint else Space(_event_ndim(constraint))

    @cached_property
    def _y_space(self) -> Space:
        return Space(_event_ndim(self.constraint))  # type: ignore[arg-type]

    def project(self, constraint: ConvexSet, z: Vector) -> Vector:
        """P_Y(z), counted."""
        self.costs.projections += 1
        return constraint.project(z)

    def project_x(self, x: Vector) -> Vector:
        """P_X(x); x itself if it is free and finite."""
        tensors = list(x.values()) if isinstance(x, dict) else [x]
        free = isinstance(self.upper_constraint, FreeSpace)
        return x if free and all_finite(tensors) else self.upper_constraint.project(x)

    def linearize(self, x: Vector, y: Vector, batch: Any = None) -> Linearization:
        """The linearisation of f and g at (x, y), computed lazily; a problem with structure overrides this."""
        return AutogradLinearization(self, x, y, batch)

    def lower_grad(self, x: Vector, y: Vector, batch: Any = None) -> Vector:
        """grad_y g(x, y) without a call of f, for inner loops; from `linearize` if the problem overrides that."""
        if type(self).linearize is not Problem.linearize:
            return self.linearize(x, y, batch).lower_grad_y
        self.costs.lower_gradients += 1
        point = as_leaves(y)
        value = self.call_lower(tree_map(Tensor.detach, x), point, batch)
        parts = leaves(vjp(value, point, retain_graph=False))
        return like(y, sum_whole(parts, [False] * len(parts), self.ranks))

    def constraint_vjp(self, x: Vector, z: Vector, u: Vector) -> Vector:
        """theta_x' P_theta' u: the vector-Jacobian product of the projection on a set that moves with x."""
        point = as_leaves(x)
        with torch.enable_grad():
            projected = self.constraint_at(point).project(tree_map(Tensor.detach, z))
        return vjp(projected, point, u, retain_graph=False)

    def call_upper(self, x: Vector, y: Vector, batch: Any = None) -> Tensor:
        """f(x, y), checked to be a scalar tensor."""
        return self._scalar("upper", self.upper, x, y, batch)

    def call_lower(self, x: Vector, y: Vector, batch: Any = None) -> Tensor:
        """g(x, y), checked to be a scalar tensor."""
        return self._scalar("lower", self.lower, x, y, batch)

    def call_inequality(self, x: Vector, y: Vector, batch: Any = None) -> Tensor:
        """h(x, y), checked to be a vector."""
        if self.inequality is None:
            raise InvalidInputError("this problem has no function constraints: give Problem(..., inequality=h)")
        value = self._call(self.inequality, x, y, batch)
        if not isinstance(value, Tensor) or value.ndim != 1 or value.numel() == 0 or not value.is_floating_point():
            shown = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise InvalidTypeError(
                f"inequality returned {shown}: return a tensor of shape (m,), one entry per constraint"
            )
        return value

    def _scalar(self, name: str, function: Objective, x: Vector, y: Vector, batch: Any) -> Tensor:
        value = self._call(function, x, y, batch)
        if not isinstance(value, Tensor):
            raise InvalidTypeError(
                f"{name} returned {type(value).__name__} {value!r}: return a scalar torch tensor that autograd can "
                "follow"
            )
        if value.ndim and value.numel() == 1:
            value = value.reshape(())
        if value.ndim:
            raise InvalidInputError(
                f"{name} returned a tensor of shape {tuple(value.shape)}: return one number, for example loss.mean()"
            )
        if not value.dtype.is_floating_point:
            raise InvalidTypeError(f"{name} returned dtype {value.dtype}: return a floating-point tensor")
        return value

    def _call(self, function: Objective, x: Vector, y: Vector, batch: Any) -> Any:
        if not torch.is_grad_enabled():
            with torch.enable_grad():
                return self._call(function, x, y, batch)
        return function(x, y) if self.sampler is None and batch is None else function(x, y, batch)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(constraint={self.constraint!r}, upper_constraint={self.upper_constraint!r})"


def _event_ndim(constraint: ConvexSet) -> int | dict[str, int] | None:
    return None if isinstance(constraint, FreeSpace) else constraint.event_ndim
