"""f, g and the set as functions that can be asked at any point, and their slopes by finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from .._checks import CALL_ERRORS, check_calls, check_lower_start, check_vector
from .._derivative_check import SPACE, warn_of_flaws
from .._projected_gradient import LowerSolution
from ..hypergradients import LinearSolve
from ..lower import solve_tightly, uncounted
from ..problem import Linearization, Problem
from ..random import RandomStreams
from ..sets.base import ConvexSet
from ..spaces import Vector, leaves, tree_map
from .report import Cause

PERSISTS = 0.3
"""At a kink the jump between one-sided slopes stays when the step shrinks tenfold; on a smooth piece it shrinks too."""

COARSE = (torch.bfloat16, torch.float16, torch.float32)
"""Dtypes in which a function may have been computed before its value was widened."""


class Probe:
    """f, g, P_Y and their derivatives at flat points x and y; in float64 where the functions can take it."""

    def __init__(self, problem: Problem, x: Vector, y: Vector) -> None:
        self.problem: Problem = uncounted(problem)
        self.problem.flaws = None
        for space, point in ((problem.x_space, x), (problem.y_space(problem.constraint_at(x)), y)):
            space.ravel(point)  # refused where it is divided among processes
        wide_x, wide_y = (tree_map(Tensor.double, v) for v in (x, y))
        self.widened: bool = _takes(self.problem, wide_x, wide_y)
        self._x, self._y = (wide_x, wide_y) if self.widened else (x, y)
        self.dtype: torch.dtype = leaves(self._x)[0].dtype
        self.dtype_of_y: torch.dtype = leaves(y)[0].dtype  # the user's
        self.eps: float = torch.finfo(self.dtype).eps
        self.x: Tensor = SPACE.ravel(self._x)
        self.y: Tensor = SPACE.ravel(self._y)

    @classmethod
    def checked(cls, problem: Problem, x: Vector, y: Vector | None, *, warn: bool = True) -> Self:
        """At a user's x, with a user's start y of the lower level (default `problem.y0`); warns of wrong parts."""
        x = tree_map(Tensor.detach, check_vector("x", x))
        start = check_lower_start(problem, problem.constraint_at(x), y)
        check_calls(uncounted(problem), x, start)
        if warn:
            warn_of_flaws(uncounted(problem), x, start, stacklevel=4)
        return cls(problem, x, start)

    def as_x(self, x: Tensor) -> Any:
        """The flat x in the shape of the problem's x."""
        return SPACE.unravel(x, self._x)

    def as_y(self, y: Tensor) -> Any:
        """The flat y in the shape of the problem's y."""
        return SPACE.unravel(y, self._y)

    def linearize(self, x: Tensor, y: Tensor) -> Linearization:
        """The problem's own linearisation at a flat point."""
        return self.problem.linearize(self.as_x(x), self.as_y(y))

    def upper(self, x: Tensor, y: Tensor) -> float:
        """f(x, y)."""
        return float(self.linearize(x, y).upper_value)

    def lower(self, x: Tensor, y: Tensor) -> float:
        """g(x, y)."""
        return float(self.linearize(x, y).lower_value)

    def upper_grads(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(grad_x f, grad_y f)."""
        lin = self.linearize(x, y)
        return SPACE.ravel(lin.upper_grad_x), SPACE.ravel(lin.upper_grad_y)

    def lower_grad(self, x: Tensor, y: Tensor) -> Tensor:
        """grad_y g(x, y)."""
        return SPACE.ravel(self.problem.lower_grad(self.as_x(x), self.as_y(y)))

    def set_at(self, x: Tensor) -> ConvexSet:
        """Y at x."""
        return self.problem.constraint_at(self.as_x(x))

    def project(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        """P_Y(z), with the set at x (default: the x of the check)."""
        constraint = self.set_at(self.x if x is None else x)
        return SPACE.ravel(tree_map(Tensor.detach, constraint.project(self.as_y(z))))

    def solve(self, x: Tensor, start: Tensor, max_steps: int = 20_000) -> LowerSolution:
        """y*(x) as tightly as the numbers allow, whatever the units of g and y."""
        with torch.no_grad():
            return solve_tightly(self.problem, self.as_x(x), self.as_y(start), 32 * self.eps, max_steps)

    def hypergradient(self, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
        """h at a solved lower level by LinearSolve, and the residual of its linear system."""
        found = LinearSolve().estimate(self.linearize(x, y), RandomStreams())
        return SPACE.ravel(found.gradient), found.stats["residual"]


def _takes(problem: Problem, x: Vector, y: Vector) -> bool:
    """Whether f, g and the set work in float64 (data captured in float32 often does not)."""
    try:
        lin = problem.linearize(x, y)
        _ = lin.upper_value, lin.upper_grad_y, lin.lower_hvp(lin.lower_grad_y), lin.lower_cross(lin.lower_grad_y)
    except CALL_ERRORS:
        return False
    return True


def dense_matrix(product: Callable[[Any], Any], like: Vector, entries: Tensor | None = None) -> Tensor:
    """The matrix of a linear map on vectors like `like`, by its products with unit vectors; some columns, or all."""
    entries = torch.arange(SPACE.size(like)) if entries is None else entries
    chosen = entries if len(entries) else torch.arange(1)  # one product tells the number of rows
    units = torch.nn.functional.one_hot(chosen, SPACE.size(like)).to(leaves(like)[0])
    return torch.stack([SPACE.ravel(product(SPACE.unravel(e, like))) for e in units], -1)[:, : len(entries)]


class Slope(NamedTuple):
    """One direction: what a derivative predicts, and what differences say on either side and across."""

    predicted: float
    forward: float
    backward: float
    central: float
    jump: float
    kinked: bool
    """Whether the jump between the two sides stays when the step shrinks tenfold."""

    @property
    def error(self) -> float:
        """|predicted - central|."""
        return abs(self.predicted - self.central)

    def sides(self, name: str) -> str:
        """The slopes on either side, in words."""
        return (
            f"the slope of {name} along a line is {self.backward:.6g} on one side and {self.forward:.6g} on the other"
        )


def slope(function: Callable[[float], Any], predicted: float, step: float, noise: float = 0.0) -> Slope:
    """Slopes of a function of one number at 0, from steps `step` and `step / 10`.

    The central difference nearer to the prediction counts: the larger step has less noise, the smaller one less
    truncation, and a wrong derivative agrees with neither.
    """
    middle = function(0.0)
    wide, narrow = (_sides(function, middle, h) for h in (step, step / 10))
    jumps = [abs(forward - backward) for forward, backward in (wide, narrow)]
    centrals = [(forward + backward) / 2 for forward, backward in (wide, narrow)]
    largest = max(map(abs, (*wide, *narrow)))
    rounding = max(20 * noise / (step / 10), 1e-6 * largest)
    forward, backward = narrow if rounding <= 1e-3 * largest else wide
    return Slope(
        predicted=predicted,
        forward=forward,
        backward=backward,
        central=min(centrals, key=lambda value: abs(value - predicted)),
        jump=jumps[1],
        kinked=jumps[1] > rounding and jumps[1] > PERSISTS * jumps[0],
    )


def _sides(function: Callable[[float], float], middle: float, h: float) -> tuple[float, float]:
    return (function(h) - middle) / h, (middle - function(-h)) / h


def rounding_noise(function: Callable[[float], float], count: int = 12) -> float:
    """The rounding noise of a function near 0, from third differences of closely spaced values (Hamming's table).

    A smooth part of size step^3 drops out; independent errors of variance s^2 leave 20 s^2. Values that are all
    exact in a coarser dtype were computed in it. The spacing is shortened where the function ends nearby.
    """
    for step in (1e-6, 1e-9, 1e-12):
        values = torch.tensor([function(step * k / count) for k in range(count)], dtype=torch.float64)
        if bool(torch.isfinite(values).all()):
            size = float(values.abs().max())
            coarse = [torch.finfo(kind).eps * size for kind in COARSE if torch.equal(values.to(kind).double(), values)]
            return max([float(values.diff(n=3).abs().median() / (0.6745 * 20**0.5)), *coarse])
    return float("nan")


WRONG = 1e-5
"""Relative error from which a derivative counts as wrong, at least sqrt(eps): derivatives in float32 are rounded."""

SHORTER, SHORTEST = 10.0, 1e-10
"""By how much a step is shortened, and the shortest one, relative to max(1, |x|)."""


class Finding(NamedTuple):
    """What is wrong, with its numbers."""

    cause: Cause
    detail: str


class DerivativeTest(NamedTuple):
    """A predicted slope beside its differences, and whether they disagree by more than rounding."""

    slope: Slope
    wrong: bool

    def numbers(self, what: str) -> str:
        return f"{what}: derivative {self.slope.predicted:.6g}, differences {self.slope.central:.6g}"


def compare_derivative(
    function: Callable[[float], float], predicted: float, size: float, probe: Probe
) -> DerivativeTest:
    """A predicted slope against differences, in view of the rounding noise of the function.

    The step follows the size of x; where that disagrees it is shortened, as long as rounding stays below what counts
    as wrong: a function may bend on a shorter scale than that of x, or end nearby. A wrong slope agrees with no step.
    """
    length = max(1.0, float(probe.x.norm()))
    value, limit = abs(function(0.0)), max(WRONG, probe.eps**0.5)
    noise = max(rounding_noise(function), probe.eps * value)

    def test(step: float) -> DerivativeTest:
        found = slope(function, predicted, step, noise)
        scale = max(abs(predicted), abs(found.central), size)
        return DerivativeTest(found, not found.error <= limit * scale + 10 * noise / step)

    step = length * max(1e-4, min(0.1, (noise / max(value, size, 1e-300)) ** (1 / 3)))
    first = found = test(step)
    while found.wrong:
        step /= SHORTER
        if step < SHORTEST * length or not 10 * noise / step <= limit * max(abs(predicted), size):
            return first if math.isfinite(first.slope.central) else found
        found = test(step)
    return found
