"""The bilevel problem, and all that any method may ask of it at one point."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from .errors import InvalidInput, InvalidType
from .sets.base import ConvexSet, Face
from .sets.free_space import FreeSpace
from .sets.inequality_set import InequalitySet
from .spaces import Space, Vector, leaves, like, tree_map

Objective = Callable[..., Tensor]


@dataclass
class Costs:
    """What a run has asked for so far; the same counts for every method.

    Parameters
    ----------
    upper_gradients, lower_gradients
        Gradients of f and of g.
    hessian_products, cross_products
        Products of G_yy and of G_xy with a vector.
    projections
        Projections on Y.
    inequality_products
        Products with derivatives of h, for function constraints.

    Examples
    --------
    >>> Costs(lower_gradients=3).as_dict()["lower_gradients"]
    3
    """

    upper_gradients: int = 0
    lower_gradients: int = 0
    hessian_products: int = 0
    cross_products: int = 0
    projections: int = 0
    inequality_products: int = 0  # with first and second derivatives of h, for methods with function constraints

    def as_dict(self) -> dict[str, int]:
        """The counts by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


class Linearization(ABC):
    """f, g and their derivatives at one point (x, y), for one batch; everything is computed when first asked.

    The default, `AutogradLinearization`, works for any f and g. A problem with structure supplies its own by the
    six `_...` methods and returns it from `Problem.linearize`; every method of the library then uses it. What more its
    structure allows it offers by `carried`, `carrying`, `step_to` and `restrict`.

    Parameters
    ----------
    problem
        f and g.
    x, y
        The point: tensors, or dictionaries of tensors, of any shape.
    batch
        What `problem.sampler` has drawn, or None for all the data.

    Examples
    --------
    >>> import bilevel, torch
    >>> problem = bilevel.Problem(lambda x, y: (x * y).sum(), lambda x, y: (y - x).square().sum())
    >>> lin = problem.linearize(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    >>> lin.lower_grad_y, lin.lower_hvp(torch.tensor([1.0, 0.0])), lin.lower_cross(torch.tensor([1.0, 0.0]))
    (tensor([4., 4.]), tensor([2., 0.]), tensor([-2., -0.]))
    """

    def __init__(self, problem: Problem, x: Vector, y: Vector, batch: Any = None) -> None:
        self.problem, self.x, self.y, self.batch = problem, x, y, batch

    @property
    def carried(self) -> dict[str, Tensor] | None:
        """What `step_to` can use at the next point, such as the margins A y: a part of a solver's state; or None."""
        return None

    def carrying(self, carried: dict[str, Tensor]) -> Linearization:
        """This linearisation, given what it had `carried` when it was made."""
        return self

    def step_to(self, x: Vector, y_hat: Vector, weight: float) -> Linearization:
        """The linearisation of all data at (x, (1 - weight) y + weight y_hat)."""
        y_space = self.problem.y_space(self.constraint)
        return self.problem.linearize(x, y_space.lerp(self.y, y_hat, weight))

    def restrict(self, *faces: Face) -> Linearization:
        """The same for vectors on the supports of the faces alone, where that is cheaper: upper_grad_y, lower_hvp(v)
        and lower_cross(v) for v that is zero outside of the supports, in vectors that are right on the supports.
        """
        return self

    @cached_property
    def constraint(self) -> ConvexSet:
        """The set Y at this x."""
        return self.problem.constraint_at(self.x)

    @cached_property
    def upper_value(self) -> Tensor:
        """f(x, y), a 0-dimensional tensor."""
        return self._upper_value()

    @cached_property
    def lower_value(self) -> Tensor:
        """g(x, y), a 0-dimensional tensor."""
        return self._lower_value()

    @cached_property
    def _upper_grads(self) -> tuple[Vector, Vector]:
        self.problem.costs.upper_gradients += 1
        return self._upper_gradients()

    @property
    def upper_grad_x(self) -> Vector:
        """grad_x f(x, y)."""
        return self._upper_grads[0]

    @property
    def upper_grad_y(self) -> Vector:
        """grad_y f(x, y)."""
        return self._upper_grads[1]

    @cached_property
    def lower_grad_x(self) -> Vector:
        """grad_x g(x, y)."""
        self.problem.costs.lower_gradients += 1
        return self._lower_gradient_x()

    @cached_property
    def lower_grad_y(self) -> Vector:
        """grad_y g(x, y)."""
        self.problem.costs.lower_gradients += 1
        return self._lower_gradient_y()

    def lower_hvp(self, v: Vector) -> Vector:
        """grad^2_yy g . v, of the shape of y."""
        self.problem.costs.hessian_products += 1
        return self._lower_hvp(v)

    def lower_cross(self, v: Vector) -> Vector:
        """grad^2_xy g . v, of the shape of x."""
        self.problem.costs.cross_products += 1
        return self._lower_cross(v)

    def solve_on_face(self, support: Any, v: Vector) -> Vector | None:
        """Pi (Pi G_yy Pi)^+ Pi v, Pi the projector on the face with this support; None where it takes an iteration.

        A problem with structure overrides this: many small lower levels, say, are factored at once.
        """
        return None

    def reduced_gradient(self, w: Vector) -> Vector:
        """grad_x f - grad^2_xy g . w: a hypergradient, once its adjoint w is known.

        Where x is a network's parameters, one vector-Jacobian product gives both terms together.
        """
        return self.problem.x_space.add(self.upper_grad_x, self.lower_cross(w), -1.0)

    @cached_property
    def _inequality_graph(self) -> tuple[Vector, Vector, Tensor]:
        x, y = _as_leaves(self.x), _as_leaves(self.y)
        return x, y, self.problem.call_inequality(x, y, self.batch)

    @property
    def inequality_value(self) -> Tensor:
        """h(x, y), one number per function constraint."""
        return self._inequality_graph[2].detach()

    def inequality_vjp(self, multipliers: Tensor) -> tuple[Vector, Vector]:
        """The gradients of multipliers . h(x, y) in x and in y."""
        self.problem.costs.inequality_products += 1
        x, y, value = self._inequality_graph
        gradients = _vjp([value], leaves(x) + leaves(y), [multipliers])
        count = len(leaves(x))
        return like(x, gradients[:count]), like(y, gradients[count:])

    def inequality_hvp(self, multipliers: Tensor, v: Vector) -> Vector:
        """The second derivative of multipliers . h(x, y) in y, times v."""
        self.problem.costs.inequality_products += 1
        _, y, value = self._inequality_graph
        slope = _vjp([value], leaves(y), [multipliers], create_graph=True)
        return like(y, _vjp(slope, leaves(y), leaves(v)))

    @abstractmethod
    def _upper_value(self) -> Tensor: ...

    @abstractmethod
    def _lower_value(self) -> Tensor: ...

    @abstractmethod
    def _upper_gradients(self) -> tuple[Vector, Vector]: ...

    @abstractmethod
    def _lower_gradient_x(self) -> Vector: ...

    @abstractmethod
    def _lower_gradient_y(self) -> Vector: ...

    @abstractmethod
    def _lower_hvp(self, v: Vector) -> Vector: ...

    @abstractmethod
    def _lower_cross(self, v: Vector) -> Vector: ...


class Coordinates(Protocol):
    """g(x, .) at a point y that moves one (flat) coordinate at a time, each question at the price of one coordinate.

    Examples
    --------
    g(x, y) = |y - x|^2, whose coordinates cost nothing:

    >>> import torch
    >>> class Distance:
    ...     def __init__(self, x, y):
    ...         self.x, self.y = x, y.clone()
    ...
    ...     def gradient(self, j):
    ...         return 2 * float(self.y[j] - self.x[j])
    ...
    ...     def move(self, j, value):
    ...         self.y[j] = value
    ...
    ...     def column(self, j):
    ...         return 2 * torch.eye(len(self.y))[j]
    ...
    ...     def cross(self, j):
    ...         return -2 * torch.eye(len(self.x))[j]
    >>> point = Distance(torch.tensor([1.0, 2.0]), torch.zeros(2))
    >>> point.move(1, 5.0)
    >>> point.gradient(1)
    6.0
    """

    def gradient(self, j: int) -> float:
        """The derivative of g in y_j."""
        ...

    def move(self, j: int, value: float) -> None:
        """y_j <- value."""
        ...

    def column(self, j: int) -> Tensor:
        """G_yy e_j, flat."""
        ...

    def cross(self, j: int) -> Vector:
        """G_xy e_j, of the shape of x."""
        ...


class AutogradLinearization(Linearization):
    """The linearisation of any f and g written in torch: one graph each, one vector-Jacobian product per question."""

    @cached_property
    def _leaves(self) -> tuple[Vector, Vector]:
        return _as_leaves(self.x), _as_leaves(self.y)

    @cached_property
    def _upper_graph(self) -> Tensor:
        return self.problem.call_upper(*self._leaves, self.batch)

    @cached_property
    def _lower_graph(self) -> Tensor:
        return self.problem.call_lower(*self._leaves, self.batch)

    @cached_property
    def _lower_gradient_graph(self) -> list[Tensor]:
        """grad_y g with its own graph: the second derivatives are vector-Jacobian products of it."""
        return _vjp([self._lower_graph], leaves(self._leaves[1]), None, create_graph=True)

    def _upper_value(self) -> Tensor:
        return self._upper_graph.detach()

    def _lower_value(self) -> Tensor:
        return self._lower_graph.detach()

    def _upper_gradients(self) -> tuple[Vector, Vector]:
        x, y = self._leaves
        gradients = _vjp([self._upper_graph], leaves(x) + leaves(y), None)
        count = len(leaves(x))
        return like(x, gradients[:count]), like(y, gradients[count:])

    def _lower_gradient_x(self) -> Vector:
        x, _ = self._leaves
        return like(x, _vjp([self._lower_graph], leaves(x), None))

    def _lower_gradient_y(self) -> Vector:
        return like(self.y, [gradient.detach() for gradient in self._lower_gradient_graph])

    def _lower_hvp(self, v: Vector) -> Vector:
        _, y = self._leaves
        return like(y, _vjp(self._lower_gradient_graph, leaves(y), leaves(v)))

    def _lower_cross(self, v: Vector) -> Vector:
        x, _ = self._leaves
        return like(x, _vjp(self._lower_gradient_graph, leaves(x), leaves(v)))

    def depends(self) -> dict[str, bool]:
        """Which of "upper x", "upper y", "lower y", "lower cross" reach the value through differentiable operations."""
        x, y = (leaves(tree) for tree in self._leaves)
        gradient = self._lower_gradient_graph if _reaches([self._lower_graph], y) else []
        return {
            "upper x": _reaches([self._upper_graph], x),
            "upper y": _reaches([self._upper_graph], y),
            "lower y": bool(gradient),
            "lower cross": _reaches(gradient, x),
        }


class Problem:
    """min_x f(x, y*(x)) with y*(x) = argmin over y in Y of g(x, y).

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
        Where runs start, and where lower-level solves start (with the shape, dtype and device of y). `minimize` and
        `compare` can take them instead.
    sampler
        generator -> batch. When given, f and g take a third argument: the batch, or None for all the data.
    inequality
        h(x, y) -> tensor of shape (m,), convex in y: the lower level then also obeys h(x, y) <= 0. For the solvers
        that take function constraints (`BiCGAFFA`, `LVHBA`); a set with a projection is faster wherever there is one.

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
    ) -> None:
        for name, function in (("upper", upper), ("lower", lower)):
            if not callable(function):
                raise InvalidType(f"{name} must be a function of (x, y), got {function!r}")
        for name, given in (("constraint", constraint), ("upper_constraint", upper_constraint)):
            if isinstance(given, type):
                raise InvalidType(f"{name} is the class {given.__name__}: make a set of it, {given.__name__}(...)")
            if isinstance(given, dict):
                raise InvalidType(f"{name} is a dictionary: use bilevel.sets.ProductSet({{name: set, ...}})")
        if not (constraint is None or isinstance(constraint, ConvexSet) or callable(constraint)):
            raise InvalidType(
                f"constraint must be a convex set of bilevel.sets or a function x -> set, got {constraint!r}"
            )
        if not (upper_constraint is None or isinstance(upper_constraint, ConvexSet)):
            raise InvalidType(f"upper_constraint must be a convex set of bilevel.sets, got {upper_constraint!r}")
        if not (sampler is None or callable(sampler)):
            raise InvalidType(f"sampler must be a function generator -> batch, got {sampler!r}")
        if not (inequality is None or callable(inequality)):
            raise InvalidType(f"inequality must be a function of (x, y), got {inequality!r}")
        self.upper, self.lower, self.inequality = upper, lower, inequality
        self.constraint = FreeSpace() if constraint is None else constraint
        self.upper_constraint = FreeSpace() if upper_constraint is None else upper_constraint
        self.x0, self.y0 = x0, y0
        self.sampler = sampler
        self.costs = Costs()

    @property
    def moving(self) -> bool:
        """Whether the set Y depends on x."""
        return not isinstance(self.constraint, ConvexSet)

    def constraint_at(self, x: Vector) -> ConvexSet:
        """The set Y at x."""
        if isinstance(self.constraint, ConvexSet):
            return self.constraint
        constraint = self.constraint(x)
        if not isinstance(constraint, ConvexSet):
            raise InvalidType(f"constraint(x) must return a convex set of bilevel.sets, got {constraint!r}")
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
        return Space(None if isinstance(self.upper_constraint, FreeSpace) else self.upper_constraint.event_ndim)

    def y_space(self, constraint: ConvexSet) -> Space:
        """The space of y; a scalar step is one number per factor of the set."""
        return Space(None if isinstance(constraint, FreeSpace) else constraint.event_ndim)

    def project(self, constraint: ConvexSet, z: Vector) -> Vector:
        """P_Y(z), counted."""
        self.costs.projections += 1
        return constraint.project(z)

    def linearize(self, x: Vector, y: Vector, batch: Any = None) -> Linearization:
        """Everything about f and g at (x, y), lazily; a problem with structure overrides this."""
        return AutogradLinearization(self, x, y, batch)

    def fused_step(self, solver: Any) -> Callable[[Problem, Any], Any] | None:
        """One step of this solver written out for this problem: (problem, state) -> state, or None where the state
        needs the general step. The same mathematics in fewer operations; None when there is no such thing.
        """
        return None

    def is_finite(self, state: Any) -> bool:
        """Whether no entry of a solver's x, y and momenta is NaN or infinite: asked once after every step.

        A problem over several processes answers for all of them.
        """
        names = [name for name in ("x", "y", "upper_momentum", "lower_momentum") if hasattr(state, name)]
        return all(self.x_space.is_finite(getattr(state, name)) for name in names)

    def lower_grad(self, x: Vector, y: Vector, batch: Any = None) -> Vector:
        """grad_y g(x, y) alone: f is not called; inner loops use it. From `linearize` where a problem has its own."""
        if type(self).linearize is not Problem.linearize:
            return self.linearize(x, y, batch).lower_grad_y
        self.costs.lower_gradients += 1
        point = _as_leaves(y)
        with torch.enable_grad():
            value = self.call_lower(tree_map(Tensor.detach, x), point, batch)
        return like(y, _vjp([value], leaves(point), None, retain_graph=False))

    def coordinates(self, x: Vector, y: Vector, batch: Any = None) -> Coordinates | None:
        """g(x, .) along a path from y that moves one coordinate at a time; None when that is no cheaper than g itself.

        A problem with structure overrides this: a least-squares problem, say, keeps its residuals up to date.
        """
        return None

    def constraint_vjp(self, x: Vector, z: Vector, u: Vector) -> Vector | None:
        """theta_x' P_theta' u: how a set that moves with x passes u back to x; None when it stands still."""
        if not self.moving:
            return None
        point = _as_leaves(x)
        with torch.enable_grad():
            projected = self.constraint_at(point).project(tree_map(Tensor.detach, z))
        return like(x, _vjp(leaves(projected), leaves(point), leaves(u), retain_graph=False))

    def call_upper(self, x: Vector, y: Vector, batch: Any = None) -> Tensor:
        """f(x, y), checked to be a scalar tensor."""
        return _scalar("upper", self.upper, x, y, *self._batch(batch))

    def call_lower(self, x: Vector, y: Vector, batch: Any = None) -> Tensor:
        """g(x, y), checked to be a scalar tensor."""
        return _scalar("lower", self.lower, x, y, *self._batch(batch))

    def call_inequality(self, x: Vector, y: Vector, batch: Any = None) -> Tensor:
        """h(x, y), checked to be a vector."""
        if self.inequality is None:
            raise InvalidInput("this problem has no function constraints: give Problem(..., inequality=h)")
        with torch.enable_grad():
            value = self.inequality(x, y, *self._batch(batch))
        if not isinstance(value, Tensor) or value.ndim != 1 or value.numel() == 0 or not value.is_floating_point():
            shown = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise InvalidType(f"inequality returned {shown}: return a tensor of shape (m,), one entry per constraint")
        return value

    def _batch(self, batch: Any) -> tuple[Any, ...]:
        return () if self.sampler is None and batch is None else (batch,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(constraint={self.constraint!r}, upper_constraint={self.upper_constraint!r})"


def _as_leaves(tree: Vector) -> Vector:
    return tree_map(lambda u: u.detach().requires_grad_(), tree)


def _scalar(name: str, function: Objective, *arguments: Any) -> Tensor:
    with torch.enable_grad():
        value = function(*arguments)
        if isinstance(value, Tensor) and value.numel() == 1:
            value = value.reshape(())
    if not isinstance(value, Tensor):
        raise InvalidType(
            f"{name} returned {type(value).__name__} {value!r}: return a scalar torch tensor that autograd can follow"
        )
    if value.numel() != 1:
        raise InvalidInput(
            f"{name} returned a tensor of shape {tuple(value.shape)}: return one number, for example loss.mean()"
        )
    if not value.is_floating_point():
        raise InvalidType(f"{name} returned dtype {value.dtype}: return a floating-point tensor")
    return value


def _vjp(
    outputs: list[Tensor],
    inputs: list[Tensor],
    vectors: list[Tensor] | None,
    *,
    create_graph: bool = False,
    retain_graph: bool = True,
) -> list[Tensor]:
    """Vector-Jacobian products, zero where an input does not matter."""
    kept = [i for i, output in enumerate(outputs) if output.requires_grad]
    if not kept:
        return [torch.zeros_like(u) for u in inputs]
    return list(
        torch.autograd.grad(
            [outputs[i] for i in kept],
            inputs,
            None if vectors is None else [vectors[i].detach() for i in kept],
            create_graph=create_graph,
            retain_graph=retain_graph or create_graph,
            allow_unused=True,
            materialize_grads=True,
        )
    )


def _reaches(outputs: list[Tensor], inputs: list[Tensor]) -> bool:
    """Whether some input takes part in the graph of some output."""
    outputs = [output for output in outputs if output.requires_grad]
    if not outputs:
        return False
    ones = [torch.ones_like(output) for output in outputs]
    found = torch.autograd.grad(outputs, inputs, ones, retain_graph=True, allow_unused=True)
    return any(gradient is not None for gradient in found)
