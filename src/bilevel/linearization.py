"""f, g and their derivatives at one point, and a count of the evaluations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor

from .errors import IncompatibleError
from .sets.base import ConvexSet, ProjectionJacobian
from .spaces import Vector, in_order, leaves, like, sum_whole, tree_map

if TYPE_CHECKING:
    from .problem import Problem


Value = TypeVar("Value")


class lazy(Generic[Value]):
    """A property that is computed when it is first used: `cached_property` without the lock of Python 3.11."""

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Value:
        if instance is None:
            return self  # type: ignore[return-value]
        value = instance.__dict__[self._name] = self._compute(instance)
        return value


@dataclass
class Costs:
    """The cost of a run so far, counted in the same way for every method.

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
    data_passes
        How often the numbers of the data were read, where a problem counts that.

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
    data_passes: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """The counts by name; `data_passes` only if they were counted."""
        counts = dict(vars(self))
        if not self.data_passes:
            del counts["data_passes"]
        return counts


class Linearization(ABC):
    """f, g and their derivatives at one point (x, y), for one batch; everything is computed when first used.

    The default, `AutogradLinearization`, works for any f and g. A problem with structure can implement its own
    subclass, with the `_...` methods, and return it from `Problem.linearize`; every method of the library then uses it.
    Faster operations that the structure allows are implemented by overriding `restrict`, `solve_on_face` and
    `reduced_gradient`.

    Parameters
    ----------
    problem
        f and g.
    x, y
        The point: tensors, or dictionaries of tensors, of any shape.
    batch
        The batch drawn by `problem.sampler`, or None for all the data.

    Examples
    --------
    >>> import bilevel, torch
    >>> problem = bilevel.Problem(lambda x, y: (x * y).sum(), lambda x, y: (y - x).square().sum())
    >>> lin = problem.linearize(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    >>> lin.lower_grad_y, lin.lower_hvp(torch.tensor([1.0, 0.0])), lin.lower_cross(torch.tensor([1.0, 0.0]))
    (tensor([4., 4.]), tensor([2., 0.]), tensor([-2., -0.]))
    """

    def __init__(self, problem: Problem, x: Vector, y: Vector, batch: Any = None) -> None:
        self.problem: Problem = problem
        self.x: Vector = x
        self.y: Vector = y
        self.batch: Any = batch

    def restrict(self, *faces: ProjectionJacobian) -> Linearization:
        """A linearisation on the supports of the faces, if that is cheaper: upper_grad_y, lower_hvp(v) and
        lower_cross(v) for v that is zero outside the supports. Entries of the results outside them are undefined.
        """
        return self

    @lazy
    def constraint(self) -> ConvexSet:
        """The set Y at this x."""
        return self.problem.constraint_at(self.x)

    @lazy
    def upper_value(self) -> Tensor:
        """f(x, y), a 0-dimensional tensor."""
        return self._upper_value()

    @lazy
    def lower_value(self) -> Tensor:
        """g(x, y), a 0-dimensional tensor."""
        return self._lower_value()

    @lazy
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

    @lazy
    def lower_grad_x(self) -> Vector:
        """grad_x g(x, y)."""
        self.problem.costs.lower_gradients += 1
        return self._lower_gradient_x()

    @lazy
    def lower_grad_y(self) -> Vector:
        """grad_y g(x, y)."""
        self.problem.costs.lower_gradients += 1
        return self._lower_gradient_y()

    def lower_hvp(self, v: Vector) -> Vector:
        """grad^2_yy g . v, of the shape of y."""
        self.problem.costs.hessian_products += 1
        return self._lower_hvp(v)

    def lower_hvps(self, stack: Vector) -> Vector:
        """grad^2_yy g . v for each v of a stack, at once where that is cheaper than one by one."""
        self.problem.costs.hessian_products += len(leaves(stack)[0])
        return self._lower_hvps(stack)

    def lower_cross(self, v: Vector) -> Vector:
        """grad^2_xy g . v, of the shape of x."""
        self.problem.costs.cross_products += 1
        return self._lower_cross(v)

    def solve_on_face(self, face: ProjectionJacobian, v: Vector) -> Vector | None:
        """Pi (Pi G_yy Pi)^+ Pi v, with Pi the projector onto the face; None if it has to be computed iteratively.

        A problem with structure overrides this, for example to factorise many small lower levels at once.
        """
        return None

    def reduced_gradient(self, w: Vector) -> Vector:
        """grad_x f - grad^2_xy g . w, the hypergradient for a given adjoint w.

        If x holds the parameters of a network, one vector-Jacobian product gives both terms together.
        """
        return self.problem.x_space.add(self.upper_grad_x, self.lower_cross(w), -1.0)

    @lazy
    def _inequality_graph(self) -> tuple[Vector, Vector, Tensor]:
        x, y = as_leaves(self.x), as_leaves(self.y)
        return x, y, self.problem.call_inequality(x, y, self.batch)

    @property
    def inequality_value(self) -> Tensor:
        """h(x, y), one number per function constraint."""
        return self._inequality_graph[2].detach()

    def inequality_vjp(self, multipliers: Tensor) -> tuple[Vector, Vector]:
        """The gradients of multipliers . h(x, y) in x and in y."""
        self.problem.costs.inequality_products += 1
        x, y, value = self._inequality_graph
        gradients, count = _gradients([value], leaves(x) + leaves(y), [multipliers]), len(leaves(x))
        return like(x, gradients[:count]), like(y, gradients[count:])

    def inequality_hvp(self, multipliers: Tensor, v: Vector) -> Vector:
        """The second derivative of multipliers . h(x, y) in y, times v."""
        self.problem.costs.inequality_products += 1
        _, y, value = self._inequality_graph
        return vjp(vjp(value, y, multipliers.detach(), create_graph=True), y, v)

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

    def _lower_hvps(self, stack: Vector) -> Vector:
        products = [self._lower_hvp(tree_map(lambda u, i=i: u[i], stack)) for i in range(len(leaves(stack)[0]))]
        return tree_map(lambda *parts: torch.stack(parts), products[0], *products[1:])

    @abstractmethod
    def _lower_cross(self, v: Vector) -> Vector: ...


class AutogradLinearization(Linearization):
    """The linearisation of any f and g written in torch: one graph each, one vector-Jacobian product per derivative.

    On several ranks f and g are sums over ranks, and so are their derivatives. Derivatives with respect to a divided x
    stay on the rank of the respective part of x.
    """

    def __init__(self, problem: Problem, x: Vector, y: Vector, batch: Any = None) -> None:
        super().__init__(problem, x, y, batch)
        self._x, self._y = as_leaves(x), as_leaves(y)
        check_modes(leaves(y)[0].device)

    @property
    def arguments(self) -> tuple[Vector, Vector]:
        """x and y as f and g get them."""
        return self._x, self._y

    @lazy
    def _upper_graph(self) -> Tensor:
        return self.problem.call_upper(self._x, self._y, self.batch)

    @lazy
    def _lower_graph(self) -> Tensor:
        return self.problem.call_lower(self._x, self._y, self.batch)

    @lazy
    def _lower_gradient_graph(self) -> Vector:
        """This rank's part of grad_y g with its own graph: second derivatives are vector-Jacobian products of it."""
        return vjp(self._lower_graph, self._y, create_graph=True)

    def _upper_value(self) -> Tensor:
        return self.problem.ranks.sum(self._upper_graph.detach())

    def _lower_value(self) -> Tensor:
        return self.problem.ranks.sum(self._lower_graph.detach())

    def _upper_gradients(self) -> tuple[Vector, Vector]:
        of_x, of_y = leaves(self._x), leaves(self._y)
        gradients = _gradients([self._upper_graph], of_x + of_y, None)
        if self.problem.ranks.size > 1:
            divided = self.problem.x_space.flags(self.x) + [False] * len(of_y)
            gradients = sum_whole(gradients, divided, self.problem.ranks)
        return like(self.x, gradients[: len(of_x)]), like(self.y, gradients[len(of_x) :])

    def _lower_gradient_x(self) -> Vector:
        return self._sum_x(vjp(self._lower_graph, self._x))

    def _lower_gradient_y(self) -> Vector:
        return self._sum_y(tree_map(Tensor.detach, self._lower_gradient_graph))

    def _lower_hvp(self, v: Vector) -> Vector:
        return self._sum_y(vjp(self._lower_gradient_graph, self._y, v))

    def _lower_hvps(self, stack: Vector) -> Vector:
        outputs, stacks = leaves(self._lower_gradient_graph), leaves(in_order(self.y, stack))
        try:
            return self._sum_y(like(self.y, _batched_vjp(outputs, leaves(self._y), stacks)))
        except RuntimeError:  # an operation of g without a batching rule
            return super()._lower_hvps(stack)

    def _lower_cross(self, v: Vector) -> Vector:
        return self._sum_x(vjp(self._lower_gradient_graph, self._x, v))

    def _sum_x(self, part: Vector) -> Vector:
        if self.problem.ranks.size == 1:
            return part
        return like(part, sum_whole(leaves(part), self.problem.x_space.flags(self.x), self.problem.ranks))

    def _sum_y(self, part: Vector) -> Vector:
        if self.problem.ranks.size == 1:
            return part
        return like(part, sum_whole(leaves(part), [False] * len(leaves(part)), self.problem.ranks))

    def depends(self) -> dict[str, bool]:
        """Which of "upper x", "upper y", "lower y", "lower cross" reach the value through differentiable operations."""
        x, y = leaves(self._x), leaves(self._y)
        gradient = leaves(self._lower_gradient_graph) if _reaches([self._lower_graph], y) else []
        found = {
            "upper x": _reaches([self._upper_graph], x),
            "upper y": _reaches([self._upper_graph], y),
            "lower y": bool(gradient),
            "lower cross": _reaches(gradient, x),
        }
        everywhere = self.problem.ranks.gather(found)
        return {name: any(each[name] for each in everywhere) for name in found}


def check_default_device() -> None:
    """Refuse another default device than the CPU: random numbers are drawn there, by generators of the CPU."""
    if torch.get_default_device().type != "cpu":
        raise IncompatibleError(
            f"the default device of torch is {torch.get_default_device()}: put this call into `with "
            "torch.device('cpu'):`, and x, y and what f and g use on the device of your choice by their device="
        )


def check_modes(device: torch.device) -> None:
    """Raise in modes of torch in which derivatives are missing or have another precision than the user's tensors."""
    if torch.is_inference_mode_enabled():
        raise IncompatibleError(
            "there are no derivatives under torch.inference_mode(): call this outside of it (torch.no_grad() is fine)"
        )
    if torch.is_autocast_enabled(device.type):
        raise IncompatibleError(
            "torch.autocast rounds values and derivatives of f and g: call this outside of it, or use it within f and g"
        )


def as_leaves(tree: Vector) -> Vector:
    """A copy without history, from which autograd can start; a function that changes it changes no state of a run."""
    if not isinstance(tree, dict):
        return tree.detach().clone().requires_grad_()
    return {name: u.detach().clone().requires_grad_() for name, u in tree.items()}


def vjp(
    output: Vector,
    point: Vector,
    vector: Vector | None = None,
    *,
    create_graph: bool = False,
    retain_graph: bool = True,
) -> Vector:
    """The product of a vector like `output` (1 without one) with its Jacobian, of the form of `point`.

    It is zero where an entry of `point` does not matter.
    """
    if isinstance(output, dict) or isinstance(point, dict):
        vectors = None if vector is None else leaves(in_order(output, vector))
        return like(point, _gradients(leaves(output), leaves(point), vectors, retain_graph, create_graph))
    if not output.requires_grad:
        return torch.zeros_like(point)
    options: Any = {"retain_graph": retain_graph or create_graph, "create_graph": create_graph, "allow_unused": True}
    (found,) = torch.autograd.grad(output, point, vector, **options)  # type: ignore[arg-type]
    return torch.zeros_like(point) if found is None else found


def _gradients(
    outputs: list[Tensor],
    inputs: list[Tensor],
    vectors: list[Tensor] | None,
    retain_graph: bool = True,
    create_graph: bool = False,
) -> list[Tensor]:
    """The sum over outputs of their vector-Jacobian products for each input, zero where an input does not matter."""
    kept = [i for i, output in enumerate(outputs) if output.requires_grad]
    if not kept:
        return [torch.zeros_like(u) for u in inputs]
    if len(kept) < len(outputs):
        outputs, vectors = [outputs[i] for i in kept], vectors and [vectors[i] for i in kept]
    found = torch.autograd.grad(outputs, inputs, vectors, retain_graph or create_graph, create_graph, allow_unused=True)
    return [torch.zeros_like(u) if gradient is None else gradient for gradient, u in zip(found, inputs, strict=True)]


def _batched_vjp(outputs: list[Tensor], inputs: list[Tensor], stacks: list[Tensor]) -> list[Tensor]:
    """Vector-Jacobian products for stacks of vectors, zero where an input does not matter."""
    pairs = [(output, stack) for output, stack in zip(outputs, stacks, strict=True) if output.requires_grad]
    found: Any = [None] * len(inputs)
    if pairs:
        options = {"retain_graph": True, "allow_unused": True, "is_grads_batched": True}
        found = torch.autograd.grad([output for output, _ in pairs], inputs, [stack for _, stack in pairs], **options)
    count = len(stacks[0])
    return [u.new_zeros(count, *u.shape) if each is None else each for each, u in zip(found, inputs, strict=True)]


def _reaches(outputs: list[Tensor], inputs: list[Tensor]) -> bool:
    """Whether some input takes part in the graph of some output."""
    outputs = [output for output in outputs if output.requires_grad]
    if not outputs:
        return False
    ones = [torch.ones_like(output) for output in outputs]
    found = torch.autograd.grad(outputs, inputs, ones, retain_graph=True, allow_unused=True)
    return any(gradient is not None for gradient in found)
