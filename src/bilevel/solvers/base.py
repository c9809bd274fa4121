"""The contract of a solver: settings in a frozen dataclass, what it needs, `init` and `step` from State to State."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

from ..checks import check_count as check_count
from ..checks import check_positive as check_positive
from ..errors import Incompatible, InvalidInput
from ..problem import Problem
from ..randomness import Noise, Seeds
from ..sets.affine import AffineSet, HalfSpace, Hyperplane
from ..sets.base import ConvexSet
from ..sets.box import Box
from ..sets.free_space import FreeSpace
from ..sets.polyhedron import Polyhedron
from ..sets.simplex import Simplex
from ..spaces import Vector, leaves


@dataclass(kw_only=True, repr=False)
class State:
    """Where a run stands: tensors and numbers only, so that a checkpoint is its content.

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

    x: Vector
    y: Vector
    step: int = 0
    seeds: Seeds = field(default_factory=Seeds)

    def renewed(self, y: Vector) -> Self:
        """This state for a new draw of lower levels of the same shape, such as fresh tasks, that starts at y.

        What is known about x is kept (momentum, moments, steps); what belonged to the old y is begun anew.
        """
        same = [u.shape == v.shape for u, v in zip(leaves(y), leaves(self.y), strict=True)]
        if not all(same):
            raise InvalidInput(f"y is {_shape(y)}, but the state has {_shape(self.y)}: draw lower levels of one shape")
        return replace(self, y=y, **self._begun_anew(y))

    def _begun_anew(self, y: Vector) -> dict[str, Any]:
        """The fields that belong to y, as at the start of a run from y; a solver that has some overrides this."""
        return {}

    def noise(self, step: int | None = None) -> Noise:
        """The randomness of a step (default: the current one)."""
        return Noise(self.seeds, self.step if step is None else step)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(step={self.step}, x={_shape(self.x)}, y={_shape(self.y)})"


def _shape(vector: Vector) -> str:
    if isinstance(vector, dict):
        return "{" + ", ".join(f"{name!r}: {_shape(entry)}" for name, entry in vector.items()) + "}"
    return f"{str(vector.dtype).removeprefix('torch.')}{list(vector.shape)}"


class Solver(Protocol):
    """A method for bilevel problems.

    A class attribute `needs`, a tuple of `Need`, says what the problem and its set must offer; without one the
    method takes everything but function constraints, for which it says `takes_inequality = True`. What only some
    settings need is a property `needs_of_settings`. `check_compatible` looks at them before the first iteration.

    A method that moves x before it looks at y may say where to, `next_x(problem, state)`: fresh lower levels are then
    begun at their solutions there.

    Examples
    --------
    The least that a solver is: plain alternating steps (wrong as a method: it ignores that y follows x).

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
        """The state after one more step; the state given is left as it was."""
        ...


@dataclass(frozen=True)
class Need:
    """One thing a solver asks of a problem.

    Parameters
    ----------
    what
        Ends the sentence "it needs ...".
    met
        (problem, set at the start, y at the start) -> whether it is there.
    """

    what: str
    met: Callable[[Problem, ConvexSet, Vector], bool]


def _has_jacobian(constraint: ConvexSet, y: Vector) -> bool:
    try:
        constraint.jacobian(y)
    except (Incompatible, NotImplementedError):
        return False
    return True


def _is_affine(constraint: ConvexSet) -> bool:
    return isinstance(constraint, AffineSet | Hyperplane | FreeSpace)


def _is_linear(constraint: ConvexSet) -> bool:
    return _is_affine(constraint) or isinstance(constraint, HalfSpace | Box | Simplex | Polyhedron)


def _single_vector(y: Vector) -> bool:
    return not isinstance(y, dict) and y.ndim == 1


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
    lambda problem, constraint, y: _is_affine(constraint),
)
LINEAR = Need(
    "linear inequalities and equations (HalfSpace, Box, NonNegative, Simplex, Polyhedron or an affine set)",
    lambda problem, constraint, y: _is_linear(constraint),
)
SEPARABLE = Need(
    "a separable set (a box or a product of boxes) for coordinate steps, where inner='full' takes all sets",
    lambda problem, constraint, y: constraint.separable,
)
FIXED_SET = Need(
    "a set that does not move with x (Translated and Scaled sets are rewritten as fixed ones)",
    lambda problem, constraint, y: not problem.moving,
)
SINGLE_VECTOR = Need("one vector y (no batch and no dictionary)", lambda problem, constraint, y: _single_vector(y))
NO_FUNCTION_CONSTRAINTS = Need(
    "a lower level without function constraints (write h as a set of bilevel.sets)",
    lambda problem, constraint, y: problem.inequality is None,
)


def needs_of(solver: Any) -> tuple[Need, ...]:
    """What a solver needs: of its class, and of the settings of an object (`needs_of_settings`).

    Only a solver with `takes_inequality = True` may be given h(x, y) <= 0: any other would ignore it.
    """
    needs = tuple(getattr(solver, "needs", ()))
    if not isinstance(solver, type):
        needs += tuple(getattr(solver, "needs_of_settings", ()))
    return needs if getattr(solver, "takes_inequality", False) else (*needs, NO_FUNCTION_CONSTRAINTS)


def unmet(solver: Any, problem: Problem, constraint: ConvexSet, y: Vector) -> list[Need]:
    """What the solver (an object or its class) needs and the problem does not offer."""
    return [need for need in needs_of(solver) if not need.met(problem, constraint, y)]


def solver_classes() -> list[type]:
    """Every solver of the library."""
    from .. import solvers

    classes = (getattr(solvers, name) for name in solvers.__all__)
    return [cls for cls in classes if hasattr(cls, "init") and cls is not Solver]


def check_compatible(solver: Any, problem: Problem, constraint: ConvexSet, y: Vector) -> None:
    """The solver can take this problem and its set at the start; says what is missing and who could."""
    missing = unmet(solver, problem, constraint, y)
    if not missing:
        return
    able = [cls.__name__ for cls in solver_classes() if not unmet(cls, problem, constraint, y)]
    motion = " that moves with x" if problem.moving else ""
    functions = " with function constraints (inequality=h)" if problem.inequality is not None else ""
    raise Incompatible(
        f"{type(solver).__name__} cannot use set {constraint!r}{motion}{functions}: it needs "
        f"{' and '.join(need.what for need in missing)}; solvers that can: {', '.join(able) or 'none'}"
    )


def batch_of(problem: Problem, noise: Noise, y: Vector, index: int = 0) -> Any:
    """Batch `index` of a step: a pure function of the seed and the step number; None means all the data."""
    if problem.sampler is None:
        return None
    return problem.sampler(noise.generator("data", index))


def device_of(y: Vector) -> Any:
    """The device of the first tensor of a vector."""
    return leaves(y)[0].device


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """One of a few words."""
    if value not in choices:
        raise InvalidInput(f"{name} must be one of {', '.join(repr(choice) for choice in choices)}, got {value!r}")
