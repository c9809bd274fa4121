"""The interface of solvers: settings in a frozen dataclass, requirements, and `init` and `step` from State to State."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Literal, Protocol, Self, cast

import torch
from torch import Tensor

from .._krylov import largest_curvature
from .._serializable import serializable
from ..errors import IncompatibleError, InvalidInputError
from ..linearization import Linearization
from ..problem import Problem
from ..random import RandomStreams, Seeds
from ..sets.affine import AffineSet, HalfSpace, Hyperplane
from ..sets.base import ConvexSet
from ..sets.box import Box
from ..sets.free_space import FreeSpace
from ..sets.polyhedron import Polyhedron
from ..sets.simplex import Simplex
from ..spaces import Vector, all_finite, leaves, tree_map


def like_x(*, default: Any = MISSING) -> Any:
    """A field of a state with the structure of x: each tensor has the shape of that of x, or is one number."""
    return field(default=default, metadata={"like": "x"})


def like_y(*, reset: Literal["zero", "none", "y", "keep"], default: Any = MISSING) -> Any:
    """A field of a state with the structure of y; for new lower levels it becomes 0, None or their y, or is kept."""
    return field(default=default, metadata={"like": "y", "reset": RESETS[reset]})


def of_lower_level(*, default: Any) -> Any:
    """A number about the lower level, which returns to its default for a new one."""
    return field(default=default, metadata={"reset": lambda old, y: default})


AFFINE_SETS = (AffineSet, Hyperplane, FreeSpace)
LINEAR_SETS = (*AFFINE_SETS, HalfSpace, Box, Simplex, Polyhedron)

UNCHANGING = {int, float, bool, str, type(None), Seeds}
"""What a copy of a state has in common with it."""
RESETS: dict[str, Callable[[Any, Vector], Any]] = {
    "zero": lambda old, y: tree_map(torch.zeros_like, y),
    "none": lambda old, y: None,
    "y": lambda old, y: y,
    "keep": lambda old, y: old,
}


@serializable
@dataclass(kw_only=True, repr=False)
class State:
    """The state of a solver: tensors and numbers only, so that a checkpoint can store it.

    A subclass declares fields as `like_x()` or `like_y(reset=...)`; every rank holds all of a field without a
    declaration. Files identify the class by its name, so that defining it is enough.

    Parameters
    ----------
    x, y
        The current point, of the shapes of x and y.
    step
        How many steps have been taken.
    seeds
        The seeds of the run.

    Examples
    --------
    >>> import torch
    >>> State(x=torch.zeros(3), y=torch.zeros(2), step=7).step
    7
    """

    x: Vector = like_x()
    y: Vector = like_y(reset="y")
    step: int = 0
    seeds: Seeds = field(default_factory=Seeds)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        serializable(cls)

    def reset_lower(self, y: Vector) -> Self:
        """This state for a new draw of lower levels of the same shape, such as fresh tasks, that starts at y.

        Fields about x are kept (momentum, moments, steps); fields about the old y are reset.
        """
        same = [u.shape == v.shape for u, v in zip(leaves(y), leaves(self.y), strict=True)]
        if not all(same):
            raise InvalidInputError(
                f"y is {_shape(y)}, but the state has {_shape(self.y)}: draw lower levels of one shape"
            )
        declared = {each.name: each.metadata["reset"] for each in fields(self) if "reset" in each.metadata}
        return replace(self, **{name: reset(getattr(self, name), y) for name, reset in declared.items()})

    def is_finite(self) -> bool:
        """Whether x, y and all fields like x or y are free of NaN and infinity."""
        values = vars(self)
        vectors = [values[name] for name in _declared(type(self)) if values[name] is not None]
        return all_finite(
            [u for vector in vectors for u in (vector.values() if isinstance(vector, dict) else (vector,))]
        )

    def map_like_x(self, function: Callable[[Vector], Vector]) -> Self:
        """This state with `function` applied to x and to every field like x that has a value."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.metadata.get("like") == "x"}
        return replace(self, **{name: function(value) for name, value in values.items() if value is not None})

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy with cloned tensors, which takes a tenth of the time of deep copies."""
        new, values = object.__new__(type(self)), cast("dict[str, Any]", self.__getstate__())
        copies = {name: v if type(v) in UNCHANGING else _copied(v, memo) for name, v in values.items()}
        vars(new).update(copies)
        return new

    @property
    def ended(self) -> str:
        """Why the method takes no more steps, "converged" or "stalled"; empty while it does."""
        return ""

    @property
    def falling(self) -> bool:
        """Whether the method expects F to decrease further: a run that ends here is unfinished."""
        return False

    @property
    def remark(self) -> str:
        """One sentence about the run for its user."""
        return ""

    def streams(self, step: int | None = None) -> RandomStreams:
        """The randomness of a step (default: the current one)."""
        return RandomStreams(self.seeds, self.step if step is None else step)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(step={self.step}, x={_shape(self.x)}, y={_shape(self.y)})"


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, dict):
        return {name: _copied(entry, memo) for name, entry in value.items()}
    if isinstance(value, Tensor):
        return value.detach().clone()
    return copy.deepcopy(value, memo)


@functools.cache
def _declared(state_class: type[State]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(state_class) if "like" in each.metadata)


def _shape(vector: Vector) -> str:
    if isinstance(vector, dict):
        return "{" + ", ".join(f"{name!r}: {_shape(entry)}" for name, entry in vector.items()) + "}"
    return f"{str(vector.dtype).removeprefix('torch.')}{list(vector.shape)}"


class Solver(Protocol):
    """A method for bilevel problems.

    The class attribute `needs`, a tuple of `Need`, declares what the problem and its set must provide. Without it, the
    solver supports everything except function constraints; a solver that supports these has `takes_inequality = True`.
    Requirements that depend on the settings are returned by a property `needs_of_settings`. All are checked before the
    first step.

    A solver whose last point is not its best one defines `result(problem, state) -> (x, y)`. A solver can end a run by
    `State.ended`. A solver that updates x before y may define `next_x(problem, state)`; fresh lower levels then start
    at their solutions for that x.

    Examples
    --------
    A minimal solver: plain alternating steps. (As a method it is wrong, because it ignores that y depends on x.)

    >>> import bilevel, torch
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Alternating:
    ...     step_size: float = 0.1
    ...
    ...     def init(self, problem, x, y, seeds):
    ...         return State(x=x, y=y, seeds=seeds)
    ...
    ...     def step(self, problem, state):
    ...         lin = problem.linearize(state.x, state.y)
    ...         x = state.x - self.step_size * lin.upper_grad_x
    ...         y = problem.project(lin.constraint, state.y - self.step_size * lin.lower_grad_y)
    ...         return State(x=x, y=y, step=state.step + 1, seeds=state.seeds)
    >>> problem = bilevel.Problem(lambda x, y: (x - 1).square().sum() + y.sum(), lambda x, y: (y - x).square().sum())
    >>> bilevel.minimize(problem, torch.zeros(1), torch.zeros(1), solver=Alternating(), steps=100).x
    tensor([1.0000])
    """

    def init(self, problem: Problem, x: Vector, y: Vector, seeds: Seeds) -> Any:
        """The state before the first step."""
        ...

    def step(self, problem: Problem, state: Any) -> Any:
        """The state after one more step; the given state is not modified."""
        ...


@dataclass(frozen=True)
class Need:
    """One requirement of a solver on the problem.

    Parameters
    ----------
    what
        Ends the sentence "it needs ...".
    met
        (problem, set at the start, y at the start) -> whether the requirement is met.
    """

    what: str
    met: Callable[[Problem, ConvexSet, Vector], bool]


def _has_jacobian(constraint: ConvexSet, y: Vector) -> bool:
    try:
        constraint.jacobian(y)
    except (IncompatibleError, NotImplementedError):
        return False
    return True


PROJECTION = Need("a convex set with a projection", lambda problem, constraint, y: isinstance(constraint, ConvexSet))
JACOBIAN = Need(
    "a projection with a Jacobian (`ConvexSet.jacobian`)",
    lambda problem, constraint, y: _has_jacobian(constraint, y),
)
PROJECTOR = Need(
    "a projection whose Jacobian is an orthogonal projector (a polyhedral set)",
    lambda problem, constraint, y: constraint.polyhedral,
)
AFFINE = Need(
    "an affine set (AffineSet, Hyperplane or FreeSpace; the right-hand side may depend on x)",
    lambda problem, constraint, y: isinstance(constraint, AFFINE_SETS),
)
LINEAR = Need(
    "linear inequalities and equations (HalfSpace, Box, NonNegative, Simplex, Polyhedron or an affine set)",
    lambda problem, constraint, y: isinstance(constraint, LINEAR_SETS),
)
SEPARABLE = Need(
    "a separable set (a box or a product of boxes) for coordinate steps, where inner='full' takes all sets",
    lambda problem, constraint, y: constraint.separable,
)
FIXED_SET = Need(
    "a set that does not move with x (Translated and Scaled sets are rewritten as fixed ones)",
    lambda problem, constraint, y: not problem.moving,
)
SINGLE_VECTOR = Need(
    "one vector y (no batch and no dictionary)", lambda problem, constraint, y: not isinstance(y, dict) and y.ndim == 1
)
ONE_PROCESS = Need("one process", lambda problem, constraint, y: problem.ranks.size == 1)
NO_FUNCTION_CONSTRAINTS = Need(
    "a lower level without function constraints (write h as a set of bilevel.sets)",
    lambda problem, constraint, y: problem.inequality is None,
)


def needs_of(solver: Any) -> tuple[Need, ...]:
    """The requirements of a solver: those of its class, and those of its settings (`needs_of_settings`).

    Only solvers with `takes_inequality = True` accept h(x, y) <= 0: all others would ignore it.
    """
    needs = tuple(getattr(solver, "needs", ()))
    if not isinstance(solver, type):
        needs += tuple(getattr(solver, "needs_of_settings", ()))
    return needs if getattr(solver, "takes_inequality", False) else (*needs, NO_FUNCTION_CONSTRAINTS)


def unmet(solver: Any, problem: Problem, constraint: ConvexSet, y: Vector) -> list[Need]:
    """The requirements of the solver (an object or its class) that the problem does not meet."""
    return [need for need in needs_of(solver) if not need.met(problem, constraint, y)]


def solver_classes() -> list[type]:
    """Every solver of the library."""
    from .. import solvers

    classes = (value for value in vars(solvers).values() if isinstance(value, type))
    return [cls for cls in classes if hasattr(cls, "init") and cls is not Solver]


def check_compatible(solver: Any, problem: Problem, constraint: ConvexSet, y: Vector) -> None:
    """Raise if the solver does not support this problem and its set; name the missing property and other solvers."""
    missing = unmet(solver, problem, constraint, y)
    if not missing:
        return
    able = [cls.__name__ for cls in solver_classes() if not unmet(cls, problem, constraint, y)]
    motion = " that moves with x" if problem.moving else ""
    functions = " with function constraints (inequality=h)" if problem.inequality is not None else ""
    raise IncompatibleError(
        f"{type(solver).__name__} cannot use set {constraint!r}{motion}{functions}: it needs "
        f"{' and '.join(need.what for need in missing)}; solvers that can: {', '.join(able) or 'none'}"
    )


def batch_of(problem: Problem, streams: RandomStreams, index: int = 0) -> Any:
    """Batch `index` of a step: a pure function of the seed and the step number; None means all the data."""
    if problem.sampler is None:
        return None
    return problem.sampler(streams.generator("data", index))


def changes_between_calls(lin: Linearization) -> bool:
    """Whether f, g or their gradients in y at one point differ from one call to the next by more than rounding."""
    first, second = (
        [each.upper_value, each.lower_value, *leaves(each.upper_grad_y), *leaves(each.lower_grad_y)]
        for each in (lin, lin.problem.linearize(lin.x, lin.y, lin.batch))
    )
    rounding = (1e3 * torch.finfo(u.dtype).eps * float(u.abs().max()) for u in first)
    return not all(bool(((u - v).abs() <= r).all()) for u, v, r in zip(first, second, rounding, strict=True))


def estimate_curvature(
    lin: Linearization, state: Any, k: int, refresh: int, lower_step: float | Literal["auto"] = "auto"
) -> float:
    """L, or 1/step for a given step; estimated again at fixed step numbers so that a resumed run has the same bits."""
    if k % refresh:
        return state.curvature
    return largest_curvature(lin, streams=state.streams(k)) if isinstance(lower_step, str) else 1.0 / lower_step


def step_or(setting: float | str, automatic: float) -> float:
    """The length of a step: `automatic` for "auto"."""
    return automatic if isinstance(setting, str) else float(setting)


def upper_move(problem: Problem, x: Vector, h: Vector, step: float) -> Vector:
    """P_X(x - step h)."""
    return problem.project_x(problem.x_space.add(x, h, -step))
