"""Checks of what users pass in, made before the first iteration; each error names argument, value and remedy."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, fields
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from .errors import (
    BilevelError,
    IncompatibleError,
    InvalidInputError,
    InvalidTypeError,
    NonFiniteError,
    ProblemWarning,
)
from .linearization import AutogradLinearization, Linearization, check_default_device
from .problem import Problem
from .sets.base import ConvexSet, check_holds_values
from .sets.from_projection import ProjectionSet
from .spaces import Vector, all_finite, leaves, tree_map

CALL_ERRORS = (RuntimeError, TypeError, IndexError, AttributeError, KeyError)
"""Errors that a user's function raises for an argument of an unexpected type, shape or name."""


def check_vector(name: str, value: Any) -> Vector:
    """A non-empty, finite, floating-point tensor, or a dictionary of such tensors."""
    if isinstance(value, Mapping):
        if not value:
            raise InvalidInputError(f"{name} is an empty dictionary: give at least one tensor")
        return {str(key): _check_tensor(f"{name}[{key!r}]", entry) for key, entry in value.items()}
    return _check_tensor(name, value)


def _check_tensor(name: str, value: Any) -> Tensor:
    if value is None:
        raise InvalidTypeError(f"{name} is missing (NoneType): pass a tensor or a dictionary of tensors")
    if not isinstance(value, Tensor):
        raise InvalidTypeError(
            f"{name} must be a torch tensor or a dictionary of tensors, got {type(value).__name__}: "
            f"use torch.as_tensor({name})"
        )
    check_holds_values(name, value)
    check_default_device()
    if not value.is_floating_point():
        raise InvalidTypeError(f"{name} has dtype {value.dtype}: convert it, for example {name}.double()")
    if value.dtype.itemsize < 4:
        raise InvalidTypeError(
            f"{name} has dtype {value.dtype}, whose rounding is larger than the errors that are tested: use float32 or "
            "float64 (torch.autocast within f and g is fine)"
        )
    if value.numel() == 0:
        raise InvalidInputError(f"{name} is empty (shape {tuple(value.shape)}): give at least one entry")
    finite = torch.isfinite(value.detach())
    if not bool(finite.all()):
        bad = (~finite).nonzero()[0].tolist()
        raise InvalidInputError(
            f"{name} has {int((~finite).sum())} NaN or infinite entries, the first at index {bad}: "
            "replace them before optimising"
        )
    return value.clone() if value.is_inference() else value  # autograd takes no tensor of torch.inference_mode


def check_lower_start(problem: Problem, constraint: ConvexSet, y0: Vector | None) -> Vector:
    """Return the starting point of y (`y0`, or that of the problem), detached and checked against the set."""
    if y0 is None:
        y0 = problem.y0
    if y0 is None:
        raise InvalidInputError(
            "the lower level has no start: pass y (in minimize and solve_lower y0), or give the problem "
            "one with Problem(..., y0=...)"
        )
    y0 = check_vector("y0", y0)
    named = isinstance(constraint.event_ndim, dict)
    free = type(constraint).__name__ == "FreeSpace"
    if isinstance(y0, Mapping) and not named and not free:
        raise IncompatibleError(
            f"y0 is a dictionary with entries {sorted(y0)} but {constraint!r} takes one tensor: "
            "use bilevel.sets.ProductSet({name: set, ...})"
        )
    if named and not isinstance(y0, Mapping):
        raise IncompatibleError(f"y0 is a tensor but {constraint!r} takes a dictionary of tensors")
    return tree_map(lambda u: u.detach().clone(), y0)


def check_feasible(name: str, constraint: ConvexSet, point: Vector) -> None:
    """The point lies in the set."""
    outside = _why_outside(name, constraint, point)
    if outside:
        raise InvalidInputError(f"{outside}. Start from its projection, constraint.project({name})")


def _why_outside(name: str, constraint: ConvexSet, point: Vector) -> str:
    """Why the point is not in the set; empty if it is."""
    try:
        member = constraint.contains(point)
    except (InvalidInputError, InvalidTypeError, RuntimeError, AttributeError) as error:  # the last two: users' sets
        raise InvalidInputError(f"{name} does not fit {constraint!r}: {error}") from error
    return "" if member else f"{name} is not in {constraint!r}: {member.reason}"


def _start_in(name: str, constraint: ConvexSet, point: Vector) -> Vector:
    """The point, or with a warning its projection on the set."""
    outside = _why_outside(name, constraint, point)
    if not outside:
        return point
    warnings.warn(f"{outside}. The run starts from its projection", ProblemWarning, stacklevel=4)
    return tree_map(Tensor.detach, constraint.project(point))


def check_start(problem: Problem, x0: Any, y0: Any) -> tuple[Vector, Vector]:
    """Check the starting point of a run for every error that can be detected before the first step; move it into X and
    Y if it is outside."""
    x0 = problem.x0 if x0 is None else x0
    if x0 is None:
        raise InvalidTypeError(
            "x0 is missing (NoneType): pass x0=..., or give the problem one with Problem(..., x0=...)"
        )
    x = tree_map(lambda u: u.detach().clone(), check_vector("x0", x0))
    x = _start_in("x0", problem.upper_constraint, x)
    constraint = problem.constraint_at(x)
    y = _start_in("y0", constraint, check_lower_start(problem, constraint, y0))
    _check_shape(constraint, y)
    if problem.moving:
        _check_moving(problem, x)
    _check_sampler(problem, x, y)
    _check_functions(check_calls(problem, x, y, "x0, y0"))
    return x, y


def check_fits(problem: Problem, x: Vector, y: Vector) -> None:
    """A point of an earlier run belongs to this problem: its functions take it, and y lies in its set."""
    check_feasible("y", problem.constraint_at(x), y)
    check_calls(problem, x, y)


def check_calls(problem: Problem, x: Vector, y: Vector, point: str = "x, y") -> Linearization:
    """f and g can be called at (x, y), whatever their values; the linearisation there."""
    lin = problem.linearize(x, y)
    for name in ("upper", "lower"):
        call_function(lin, name, point)
    return lin


def call_function(lin: Linearization, name: str, point: str) -> Tensor:
    """f(x, y) if `name` is "upper", g(x, y) if it is "lower"; an error within them is explained."""
    first, second = point.split(", ")
    advice = (
        f"{first} is {_describe(lin.x)} and {second} is {_describe(lin.y)}: do shapes, names and dtypes fit the data?"
    )
    if lin.problem.sampler is not None:
        advice += " With a sampler, batch=None means all the data."
    given = lin.arguments if isinstance(lin, AutogradLinearization) else (lin.x, lin.y)
    before = [tree_map(lambda u: u.detach().clone(), point) for point in given]
    with _explained(f"{name}({point})", advice):
        value = getattr(lin, f"{name}_value")
    for argument, was, now in zip("xy", before, given, strict=True):
        if not all(map(torch.equal, leaves(was), leaves(now))):
            raise InvalidInputError(f"{name} changes {argument} in place: let it work on a copy, {argument}.clone()")
    return value


def check_finite(value: Tensor) -> Tensor:
    """Return f(x, y); raise if it is not finite."""
    if not math.isfinite(value):
        raise NonFiniteError(
            f"upper(x, y) is {float(value)}: check the data for NaN or infinite values, and logarithms"
        )
    return value


@contextmanager
def _explained(call: str, advice: str) -> Iterator[None]:
    """Say which call of a user's function failed, and what to look at."""
    try:
        yield
    except BilevelError:
        raise
    except CALL_ERRORS as error:
        raise InvalidInputError(f"{call} failed with {type(error).__name__}: {error}. {advice}") from error


def _check_sampler(problem: Problem, x: Vector, y: Vector) -> None:
    """A batch can be drawn, and f and g take it as their third argument."""
    if problem.sampler is None:
        return
    with _explained("sampler(generator)", "A sampler takes one torch.Generator and returns a batch"):
        batch = problem.sampler(torch.Generator().manual_seed(0))
    for name, call in (("upper", problem.call_upper), ("lower", problem.call_lower)):
        third = f"With a sampler, {name} takes three arguments, the third a batch from the sampler or None"
        with _explained(f"{name}(x0, y0, batch)", third):
            call(x, y, batch)


def _check_functions(lin: Linearization) -> None:
    """f, g and their gradients are finite at the start, and depend on x and y."""
    for name, value in (("upper", lin.upper_value), ("lower", lin.lower_value)):
        if not bool(torch.isfinite(value)):
            raise InvalidInputError(
                f"{name}(x0, y0) is {float(value)}: check the data for NaN or infinite values, or start elsewhere"
            )
    if isinstance(lin, AutogradLinearization):
        check_dependence(lin.depends(), moving=lin.problem.moving)
    for level, variable in (("upper", "x"), ("upper", "y"), ("lower", "y")):
        if not all_finite(leaves(getattr(lin, f"{level}_grad_{variable}"))):
            gradient = f"the gradient of {level} in {variable}"
            raise InvalidInputError(f"{gradient} is not finite at (x0, y0): is the function differentiable there?")


def _describe(vector: Vector) -> str:
    if isinstance(vector, dict):
        return "{" + ", ".join(f"{name!r}: {_describe(entry)}" for name, entry in vector.items()) + "}"
    return f"{vector.dtype} of shape {tuple(vector.shape)}"


def _check_shape(constraint: ConvexSet, y: Vector) -> None:
    """Check that the projection keeps the shape of y0: a parameter of shape (1,) turns a vector into a batch of one."""
    for point, nearest in zip(leaves(y), leaves(constraint.project(y)), strict=True):
        if nearest.shape != point.shape:
            raise InvalidInputError(
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
        raise InvalidInputError(
            f"constraint(x) returns {constraint!r}, but derivatives through from_projection do not reach x. "
            "Use a set of bilevel.sets with parameters built from x, Translated or Scaled, or write your own set "
            "with parameters"
        )
    if not any(value.requires_grad for value in parameters.values()):
        raise InvalidInputError(
            "constraint(x) does not depend on x (or its graph is cut: look for float(), item() or detach()): "
            "pass the set itself, or build its parameters from x with torch operations"
        )


def check_problem(problem: Any) -> None:
    """A `Problem`."""
    if not isinstance(problem, Problem):
        raise InvalidTypeError(f"problem must be a bilevel.Problem, got {type(problem).__name__}")


def check_set_only(who: str, problem: Any) -> None:
    """Require a `Problem` without function constraints, whose projection has a Jacobian."""
    check_problem(problem)
    if problem.inequality is not None:
        raise IncompatibleError(
            f"{who} cannot use function constraints (inequality=h): it needs the Jacobian of a projection. "
            "Write h as a set of bilevel.sets; solve_lower and upper_value take h, without derivatives"
        )


def check_object(name: str, value: Any, example: str, *methods: str, or_none: bool = False) -> None:
    """Require an object with these methods, not its class; None where that is allowed."""
    if value is None and or_none:
        return
    if isinstance(value, type) or not all(hasattr(value, method) for method in methods):
        forgotten = f": did you forget the brackets, {value.__name__}()?" if isinstance(value, type) else ""
        raise InvalidTypeError(f"{name} must be an object such as {example}, got {value!r}{forgotten}")


def check_solver_object(solver: Any, *, auto: bool = True) -> None:
    """A solver or None, or "auto"."""
    if isinstance(solver, str):
        if not (auto and solver == "auto"):
            either = 'pass "auto", or' if auto else "pass"
            raise InvalidInputError(f"solver={solver!r}: {either} a solver such as bilevel.DMLCBO()")
        return
    check_object("solver", solver, "bilevel.DMLCBO()", "init", "step", or_none=True)


def check_method(method: Any) -> None:
    """An estimator of hypergradients, or None."""
    check_object("method", method, "bilevel.LinearSolve()", "estimate", or_none=True)


def check_same_shape(y: Vector, start: Vector) -> None:
    """Two points of one space."""
    if _describe(tree_map(Tensor.double, y)) != _describe(tree_map(Tensor.double, start)):
        raise InvalidInputError(
            f"y is {_describe(y)}, and y0 of the problem {_describe(start)}: pass a y of that shape"
        )


def check_number(
    name: str,
    value: Any,
    low: float = 0.0,
    high: float = math.inf,
    *,
    closed: Literal["neither", "left", "right", "both"] = "neither",
    or_auto: bool = False,
    remedy: str = "",
) -> Any:
    """Require a number between low and high (a positive one without them), or "auto" where that is allowed.

    `closed` says which ends belong to the interval; `remedy` ends the message. Numbers of NumPy become Python's.
    """
    if or_auto and isinstance(value, str) and value == "auto":
        return value
    left, right = closed in ("left", "both"), closed in ("right", "both")
    number: Any = value if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if not (low < number < high or (left and number == low) or (right and number == high)):
        wanted = f"lie in {'[' if left else '('}{low:g}, {high:g}{']' if right else ')'}"
        if (low, high) == (0, math.inf):
            wanted = f"be a {'non-negative' if left else 'positive'} number"
        auto = ' or "auto"' if or_auto else ""
        raise InvalidInputError(f"{name} must {wanted}{auto}, got {value!r}{remedy}")
    if isinstance(value, int) and value > 1 << 53:  # torch takes no larger integers beside tensors
        size = f"{float(value):g}" if value < 1 << 1000 else "1e300, at most"
        raise InvalidInputError(f"{name} = {str(value)[:40]} is a very large integer: write it as {size}")
    return value if isinstance(value, int | float) else float(value)


def check_count(name: str, value: Any, least: int = 1, *, remedy: str = "") -> int:
    """Require an integer of at least 1 (or `least`) and at most a billion: more steps would never end."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InvalidInputError(f"{name} must be an integer of at least {least}, got {value!r}{remedy}")
    if int(value) > 1_000_000_000:
        raise InvalidInputError(f"{name} must be at most a billion, got {value}")
    return int(value)


def check_choice(name: str, value: Any, choices: Sequence[str]) -> Any:
    """Require one of the given values."""
    if value not in choices:
        raise InvalidInputError(f"{name} must be one of {', '.join(repr(choice) for choice in choices)}, got {value!r}")
    return value


def setting(default: Any, **options: Any) -> Any:
    """Declare a field of `Settings` with a range of its own, by the options of `check_number` or `check_count`."""
    return field(default=default, metadata={"range": options})


class Settings:
    """The base of dataclasses whose fields are checked by their types.

    A float is positive, an int at least 1, a Literal one of its words, unless `setting` gives another range. None and
    "auto" are taken where the type names them.
    """

    def __post_init__(self) -> None:
        for name, check in _checks_of(type(self)).items():
            object.__setattr__(self, name, check(name, getattr(self, name)))


@functools.cache
def _checks_of(cls: type) -> dict[str, Callable[[str, Any], Any]]:
    """The check of each field that its type decides."""
    types, checks = get_type_hints(cls), {}
    for each in fields(cls):
        kind = types[each.name]
        parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
        words = [word for part in parts if get_origin(part) is Literal for word in get_args(part)]
        options = each.metadata.get("range", {})
        if float in parts:
            check = functools.partial(check_number, or_auto="auto" in words, **options)
        elif int in parts:
            check = functools.partial(check_count, **options)
        elif all(get_origin(part) is Literal for part in parts):
            check = functools.partial(check_choice, choices=words)
        else:
            continue
        checks[each.name] = _unless_none(check) if NoneType in parts else check
    return checks


def _unless_none(check: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda name, value: None if value is None else check(name, value)


def check_dependence(depends: dict[str, bool], *, moving: bool = False) -> None:
    """Check that f and g depend on the variables on which a bilevel problem needs them to depend."""
    hint = "(or its graph is cut: look for detach(), item(), numpy() or torch.no_grad())"
    if not depends["lower y"]:
        raise InvalidInputError(f"lower does not depend on y {hint}: there is nothing to minimise over y")
    if not depends["upper x"] and not depends["upper y"]:
        raise InvalidInputError(f"upper depends neither on x nor on y {hint}: F is constant")
    if not depends["upper y"]:
        raise InvalidInputError(
            f"upper does not depend on y {hint}: F(x) is then f(x) alone; minimise it with torch.optim"
        )
    if not (depends["upper x"] or depends["lower cross"] or moving):
        raise InvalidInputError(
            f"neither upper nor the gradient of lower in y depends on x {hint}: F does not depend on x"
        )
