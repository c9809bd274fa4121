"""Checks of what users pass in, made before the first iteration; each error names argument, value and remedy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .errors import BilevelError, Incompatible, InvalidInput, InvalidType
from .problem import AutogradLinearization, Linearization, Problem
from .sets.base import ConvexSet, check_holds_values
from .sets.from_projection import ProjectionSet
from .spaces import Vector, leaves, tree_map

CALL_ERRORS = (RuntimeError, TypeError, IndexError, AttributeError, KeyError)
"""What a user's function raises when it is given what it does not expect."""


def check_vector(name: str, value: Any) -> Vector:
    """A non-empty, finite, floating-point tensor, or a dictionary of such tensors."""
    if isinstance(value, Mapping):
        if not value:
            raise InvalidInput(f"{name} is an empty dictionary: give at least one tensor")
        return {str(key): _check_tensor(f"{name}[{key!r}]", entry) for key, entry in value.items()}
    return _check_tensor(name, value)


def _check_tensor(name: str, value: Any) -> Tensor:
    if value is None:
        raise InvalidType(f"{name} is missing (NoneType): pass a tensor or a dictionary of tensors")
    if not isinstance(value, Tensor):
        raise InvalidType(
            f"{name} must be a torch tensor or a dictionary of tensors, got {type(value).__name__}: "
            f"use torch.as_tensor({name})"
        )
    check_holds_values(name, value)
    if not value.is_floating_point():
        raise InvalidType(f"{name} has dtype {value.dtype}: convert it, for example {name}.double()")
    if value.numel() == 0:
        raise InvalidInput(f"{name} is empty (shape {tuple(value.shape)}): give at least one entry")
    finite = torch.isfinite(value.detach())
    if not bool(finite.all()):
        bad = (~finite).nonzero()[0].tolist()
        raise InvalidInput(
            f"{name} has {int((~finite).sum())} NaN or infinite entries, the first at index {bad}: "
            "replace them before optimising"
        )
    return value


def check_lower_start(problem: Problem, constraint: ConvexSet, y0: Vector | None) -> Vector:
    """A starting point for y: `y0` or the problem's own, detached, of the kind the set takes."""
    if y0 is None:
        y0 = problem.y0
    if y0 is None:
        raise InvalidInput("y0 is missing: pass y0=..., or give the problem one with Problem(..., y0=...)")
    y0 = check_vector("y0", y0)
    named = isinstance(constraint.event_ndim, dict)
    free = type(constraint).__name__ == "FreeSpace"
    if isinstance(y0, Mapping) and not named and not free:
        raise Incompatible(
            f"y0 is a dictionary with entries {sorted(y0)} but {constraint!r} takes one tensor: "
            "use bilevel.sets.ProductSet({name: set, ...})"
        )
    if named and not isinstance(y0, Mapping):
        raise Incompatible(f"y0 is a tensor but {constraint!r} takes a dictionary of tensors")
    return tree_map(lambda u: u.detach().clone(), y0)


def check_feasible(name: str, constraint: ConvexSet, point: Vector) -> None:
    """The point lies in the set."""
    try:
        member = constraint.contains(point)
    except (InvalidInput, InvalidType, RuntimeError, AttributeError) as error:  # the last two from sets of users
        raise InvalidInput(f"{name} does not fit {constraint!r}: {error}") from error
    if not member:
        raise InvalidInput(
            f"{name} is not in {constraint!r}: {member.reason}. Start from its projection, constraint.project({name})"
        )


def check_start(problem: Problem, x0: Any, y0: Any) -> tuple[Vector, Vector]:
    """The starting point of a run: everything that can be seen to be wrong before the first step."""
    x0 = problem.x0 if x0 is None else x0
    if x0 is None:
        raise InvalidType("x0 is missing (NoneType): pass x0=..., or give the problem one with Problem(..., x0=...)")
    x = tree_map(lambda u: u.detach().clone(), check_vector("x0", x0))
    check_feasible("x0", problem.upper_constraint, x)
    constraint = problem.constraint_at(x)
    y = check_lower_start(problem, constraint, y0)
    check_feasible("y0", constraint, y)
    _check_shape(constraint, y)
    if problem.moving:
        _check_moving(problem, x)
    _check_functions(problem, x, y)
    return x, y


def check_fits(problem: Problem, x: Vector, y: Vector) -> None:
    """A point of an earlier run belongs to this problem: its functions take it, and y lies in its set."""
    check_feasible("y", problem.constraint_at(x), y)
    _call_functions(problem.linearize(x, y))


def _check_functions(problem: Problem, x: Vector, y: Vector) -> None:
    _check_sampler(problem, x, y)
    lin = problem.linearize(x, y)
    values = _call_functions(lin)
    for name, value in values.items():
        if not bool(torch.isfinite(value)):
            raise InvalidInput(
                f"{name}(x0, y0) is {float(value)}: check the data for NaN or infinite values, or start elsewhere"
            )
    if isinstance(lin, AutogradLinearization):
        check_dependence(lin.depends(), moving=problem.moving)
    gradients = {
        "the gradient of upper in x": lin.upper_grad_x,
        "the gradient of upper in y": lin.upper_grad_y,
        "the gradient of lower in y": lin.lower_grad_y,
    }
    for name, gradient in gradients.items():
        if not all(bool(torch.isfinite(u).all()) for u in leaves(gradient)):
            raise InvalidInput(f"{name} is not finite at (x0, y0): is the function differentiable there?")


def _call_functions(lin: Linearization) -> dict[str, Tensor]:
    """f(x, y) and g(x, y); an error within them is explained."""
    return {name: call_function(lin, name) for name in ("upper", "lower")}


def call_function(lin: Linearization, name: str, point: str = "x0, y0") -> Tensor:
    """f(x, y) if `name` is "upper", g(x, y) if it is "lower"; an error within them is explained."""
    try:
        return getattr(lin, f"{name}_value")
    except CALL_ERRORS as error:
        if isinstance(error, BilevelError):
            raise
        first, second = point.split(", ")
        raise InvalidInput(
            f"{name}({point}) failed with {type(error).__name__}: {error}. {first} is {_describe(lin.x)} and "
            f"{second} is {_describe(lin.y)}: do shapes, names and dtypes fit the data?"
            + ("" if lin.problem.sampler is None else " With a sampler, batch=None asks for all the data.")
        ) from error


def _check_sampler(problem: Problem, x: Vector, y: Vector) -> None:
    """A batch can be drawn, and f and g take it as their third argument."""
    if problem.sampler is None:
        return
    try:
        batch = problem.sampler(torch.Generator().manual_seed(0))
    except CALL_ERRORS as error:
        raise InvalidInput(
            f"sampler(generator) failed with {type(error).__name__}: {error}. "
            "A sampler takes one torch.Generator and returns a batch"
        ) from error
    for name, call in (("upper", problem.call_upper), ("lower", problem.call_lower)):
        try:
            call(x, y, batch)
        except CALL_ERRORS as error:
            if isinstance(error, BilevelError):
                raise
            raise InvalidInput(
                f"{name}(x0, y0, batch) failed with {type(error).__name__}: {error}. "
                f"With a sampler, {name} takes three arguments, the third a batch from the sampler or None"
            ) from error


def _describe(vector: Vector) -> str:
    if isinstance(vector, dict):
        return "{" + ", ".join(f"{name!r}: {_describe(entry)}" for name, entry in vector.items()) + "}"
    return f"{vector.dtype} of shape {tuple(vector.shape)}"


def _check_shape(constraint: ConvexSet, y: Vector) -> None:
    """A parameter of shape (1,) means a batch of one, and would turn a vector into a batch."""
    for point, nearest in zip(leaves(y), leaves(constraint.project(y)), strict=True):
        if nearest.shape != point.shape:
            raise InvalidInput(
                f"{constraint!r} projects y0 of shape {tuple(point.shape)} to shape {tuple(nearest.shape)}: "
                "a parameter with dimensions is one value per batch element; for a single value use a 0-dimensional "
                "tensor, as in x[0]"
            )


def _check_moving(problem: Problem, x: Vector) -> None:
    """A set given as a function of x depends on x in a way that autograd can follow."""
    point = tree_map(lambda u: u.detach().requires_grad_(), x)
    with torch.enable_grad():
        constraint = problem.constraint_at(point)
    parameters = constraint.tensor_parameters()
    if isinstance(constraint, ProjectionSet):
        raise InvalidInput(
            f"constraint(x) gives {constraint!r}: how a function given to from_projection depends on x is not seen. "
            "Use a set of bilevel.sets with parameters built from x, Translated or Scaled, or write your own set "
            "with parameter_vjp"
        )
    if not any(value.requires_grad for value in parameters.values()):
        raise InvalidInput(
            "constraint(x) does not depend on x (or its graph is cut: look for float(), item() or detach()): "
            "pass the set itself, or build its parameters from x with torch operations"
        )


def check_problem(problem: Any) -> None:
    """A `Problem`."""
    if not isinstance(problem, Problem):
        raise InvalidType(f"problem must be a bilevel.Problem, got {type(problem).__name__}")


def check_set_only(who: str, problem: Any) -> None:
    """A `Problem` without function constraints: its lower level has a projection, and that a Jacobian."""
    check_problem(problem)
    if problem.inequality is not None:
        raise Incompatible(
            f"{who} cannot use function constraints (inequality=h): it needs the Jacobian of a projection. "
            "Write h as a set of bilevel.sets"
        )


def check_solver_object(solver: Any) -> None:
    """A solver, not its class; or None."""
    if isinstance(solver, type) or not (solver is None or (hasattr(solver, "init") and hasattr(solver, "step"))):
        forgotten = f": did you forget the brackets, {solver.__name__}()?" if isinstance(solver, type) else ""
        raise InvalidType(f"solver must be an object such as bilevel.DMLCBO(), got {solver!r}{forgotten}")


def check_method(method: Any) -> None:
    """An estimator of hypergradients, not its class; or None."""
    if isinstance(method, type) or not (method is None or hasattr(method, "estimate")):
        raise InvalidType(f"method must be an object such as bilevel.LinearSolve(), got {method!r}")


def check_calls(problem: Problem, x: Vector, y: Vector) -> None:
    """f and g can be called at (x, y), whatever their values."""
    lin = problem.linearize(x, y)
    for name in ("upper", "lower"):
        call_function(lin, name, "x, y")


def check_same_shape(y: Vector, start: Vector) -> None:
    """Two points of one space."""
    if _describe(tree_map(Tensor.double, y)) != _describe(tree_map(Tensor.double, start)):
        raise InvalidInput(f"y is {_describe(y)}, and y0 of the problem {_describe(start)}: give one of its shape")


def check_fraction(name: str, value: Any) -> None:
    """A number between 0 and 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise InvalidInput(f"{name} must lie between 0 and 1, got {value!r}")


def check_non_negative(name: str, value: Any) -> None:
    """A finite number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InvalidInput(f"{name} must be a non-negative number, got {value!r}")
    _check_integer_size(name, value)


def check_positive(name: str, value: Any, otherwise: str = "") -> None:
    """A positive, finite number; `otherwise` says what else may be given."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InvalidInput(f"{name} must be a positive number{otherwise}, got {value!r}")
    _check_integer_size(name, value)


def _check_integer_size(name: str, value: int | float) -> None:
    if isinstance(value, int) and value > 1 << 53:  # torch takes no larger integers beside tensors
        size = f"{float(value):g}" if value < 1 << 1000 else "1e300, at most"
        raise InvalidInput(f"{name} = {str(value)[:40]} is a very large integer: write it as {size}")


def check_count(name: str, value: Any, least: int = 1) -> None:
    """An integer of at least 1 (or `least`); one beyond a billion is a mistake, and would never be reached."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidInput(f"{name} must be an integer of at least {least}, got {value!r}")
    if value > 1_000_000_000:
        raise InvalidInput(f"{name} must be at most a billion, got {value}")


def check_dependence(depends: dict[str, bool], *, moving: bool = False) -> None:
    """f and g depend on what a bilevel problem needs them to depend on."""
    hint = "(or its graph is cut: look for detach(), item(), numpy() or torch.no_grad())"
    if not depends["lower y"]:
        raise InvalidInput(f"lower does not depend on y {hint}: there is nothing to minimise over y")
    if not depends["upper x"] and not depends["upper y"]:
        raise InvalidInput(f"upper depends neither on x nor on y {hint}: F is constant")
    if not depends["upper y"]:
        raise InvalidInput(f"upper does not depend on y {hint}: F(x) is then f(x) alone; minimise it with torch.optim")
    if not (depends["upper x"] or depends["lower cross"] or moving):
        raise InvalidInput(f"neither upper nor the gradient of lower in y depends on x {hint}: F does not depend on x")
