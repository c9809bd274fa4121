"""A first look at a problem: do the derivatives of f, g and the sets agree with differences?

    <grad f, d>  and  (f(p + h d) - f(p - h d)) / 2h,  likewise g, grad_y g, P_Y and its motion with x

Only gross errors are reported (a cut graph, a wrong sign, a missing term): a slope counts as wrong if it differs
by 0.1 % (2 % in float32) from the differences of every step that was tried, the differences agree among themselves and
on both sides, and all of that along two of three directions. `bilevel.check_hypergradient` looks closer.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._checks import CALL_ERRORS
from .errors import BilevelError, ProblemWarning
from .problem import Problem
from .sets.from_projection import ProjectionSet
from .spaces import Space, Vector, leaves, tree_map

FINE, COARSE = (1e-3, 1e-5, 1e-7), (1e-1, 1e-2, 1e-3)
"""Lengths of differences, relative to the point, in float64 and in other dtypes."""
WRONG = {FINE: 1e-3, COARSE: 2e-2}
"""The relative errors from which a slope counts as wrong."""
COARSER = 0.02
"""The relative difference to float64 from which derivatives in a coarser dtype count as wrong."""
CUT = ": look for detach(), item(), numpy(), torch.no_grad(), a wrong backward, a product written by hand, or rounding"
RANDOM = ": use model.eval() against dropout, and a sampler for batches"


class SlopeTest(NamedTuple):
    """A function of a length, the slope at 0 that a derivative predicts, and the size of such slopes."""

    what: str
    function: Callable[[float], float]
    predicted: float
    typical: float


def warn_of_flaws(
    problem: Problem, x: Vector, y: Vector, *, upper: bool = True, beside: bool = False, stacklevel: int = 3
) -> bool:
    """Warn (`ProblemWarning`) if f, g or the set is random, or a derivative grossly wrong; once per problem and shape.

    Whether that is so is returned every time. Problems of bilevel itself, on several ranks or with function
    constraints are not looked at.

    Parameters
    ----------
    problem
        One whose calls are not counted.
    x, y
        The point: x, and a random point of Y near y.
    upper
        Look at f too.
    beside
        Look at a point right beside y instead: a product may be wrong there only.
    """
    key = (upper, beside, *(tuple(u.shape) for u in (*leaves(x), *leaves(y))))
    own = type(problem) is not Problem and type(problem).__module__.startswith("bilevel.")
    if own or problem.ranks.size > 1 or problem.inequality is not None or problem.looked_at is None:
        return False
    if key not in problem.looked_at:
        with torch.random.fork_rng(devices=[]):  # a run that draws from the generator finds it as it was
            found = problem.looked_at[key] = _first_flaw(problem, x, y, upper, beside)
        if found:
            message = f"{found}; bilevel.check_hypergradient(problem, x) looks closer"
            warnings.warn(message, ProblemWarning, stacklevel=stacklevel)
    return bool(problem.looked_at[key])


def _first_flaw(problem: Problem, x: Vector, y: Vector, upper: bool, beside: bool) -> str:
    """The first flaw, in words; empty if there is none, or none can be told."""
    parts = [partial(_Look.random, upper=upper), partial(_Look.wrong_slope, upper=upper)]
    for part in [*parts, *([_Look.too_coarse] if upper else []), _Look.unlike_projection]:
        with contextlib.suppress(BilevelError, *CALL_ERRORS):  # not a word about points where a run may never go
            found = part(_Look(problem, x, y, beside))
            if found:
                return found
    return ""


class _Look:
    """The tests at one point."""

    def __init__(self, problem: Problem, x: Vector, y: Vector, beside: bool) -> None:
        self.problem, self.space, self.generator = problem, Space(), torch.Generator().manual_seed(0)
        self.x, y = tree_map(Tensor.detach, x), tree_map(Tensor.detach, y)
        self.set = problem.constraint_at(self.x)
        self.length = {"x": self._size(self.x), "y": self._size(y)}
        if beside:
            self.y = self.space.add(y, self._unit(y), 1e-3 * self.length["y"])
        else:
            drawn = self.set.project(self.space.add(y, self._unit(y), self.length["y"]))
            self.y = self.space.lerp(y, drawn, 0.5)
        self.lin = problem.linearize(self.x, self.y)
        dtypes = {u.dtype for u in (*leaves(x), *leaves(y))}
        self.steps = FINE if dtypes == {torch.float64} else COARSE
        self.eps = max(torch.finfo(dtype).eps for dtype in dtypes)

    def _size(self, point: Vector) -> float:
        """The length of a point whose entries are all of the usual size, which a few large ones do not change."""
        entries = self.space.ravel(point)
        return math.sqrt(len(entries)) * (float(entries[entries != 0].abs().median()) if entries.any() else 1.0)

    def _unit(self, like: Vector) -> Any:
        """A random direction of length 1."""
        draw = tree_map(lambda u: torch.randn(u.shape, generator=self.generator, dtype=torch.float64).to(u), like)
        return self.space.scaled(draw, 1.0 / float(self.space.norm(draw)))

    def random(self, upper: bool) -> str:
        """Whether f or g differ between two calls at one point: dropout, say, or a counter."""
        again = self.problem.linearize(self.x, self.y)
        for name, value in {"f": "upper_value", "g": "lower_value"}.items() if upper else [("g", "lower_value")]:
            first, second = float(getattr(self.lin, value)), float(getattr(again, value))
            if first != second:
                return f"{name} differs between two calls at one point, {first:.9g} and {second:.9g}{RANDOM}"
        return ""

    # --- slopes -------------------------------------------------------------------------------------------------------

    def wrong_slope(self, upper: bool) -> str:
        """The first derivative that is wrong along two directions, or two of three."""
        tests = [self._lower_y, self._gradient_y, self._gradient_x]
        tests += [self._motion] if self.problem.moving else []
        tests += [self._upper_x, self._upper_y, self._lower_x] if upper else []
        for test in tests:
            found = [self._wrong(test()), self._wrong(test())]
            if any(found) and not all(found):
                found.append(self._wrong(test()))
            found = [text for text in found if text]
            if len(found) > 1:
                return found[0]
        return ""

    def _upper_x(self) -> SlopeTest:
        d = self._unit(self.x)
        value = lambda t: self.problem.linearize(self.space.add(self.x, d, t), self.y).upper_value  # noqa: E731
        return self._test("f along a direction of x", value, self.lin.upper_grad_x, d)

    def _upper_y(self) -> SlopeTest:
        e = self._unit(self.y)
        value = lambda t: self.problem.linearize(self.x, self.space.add(self.y, e, t)).upper_value  # noqa: E731
        return self._test("f along a direction of y", value, self.lin.upper_grad_y, e)

    def _lower_y(self) -> SlopeTest:
        e = self._unit(self.y)
        value = lambda t: self.problem.linearize(self.x, self.space.add(self.y, e, t)).lower_value  # noqa: E731
        return self._test("g along a direction of y", value, self.lin.lower_grad_y, e)

    def _lower_x(self) -> SlopeTest:
        d = self._unit(self.x)
        value = lambda t: self.problem.linearize(self.space.add(self.x, d, t), self.y).lower_value  # noqa: E731
        return self._test("g along a direction of x", value, self.lin.lower_grad_x, d)

    def _gradient_y(self) -> SlopeTest:
        r, e = self._unit(self.y), self._unit(self.y)
        value = lambda t: self.space.dot(r, self.problem.lower_grad(self.x, self.space.add(self.y, e, t)))  # noqa: E731
        return self._test("grad_y g along a direction of y", value, self.lin.lower_hvp(r), e)

    def _gradient_x(self) -> SlopeTest:
        r, d = self._unit(self.y), self._unit(self.x)
        value = lambda t: self.space.dot(r, self.problem.lower_grad(self.space.add(self.x, d, t), self.y))  # noqa: E731
        return self._test("grad_y g along a direction of x", value, self.lin.lower_cross(r), d)

    def _motion(self) -> SlopeTest:
        u, d = self._unit(self.y), self._unit(self.x)
        z = self.space.add(self.y, self._unit(self.y), 3 * self.length["y"])
        value = lambda t: self.space.dot(  # noqa: E731
            u, self.problem.constraint_at(self.space.add(self.x, d, t)).project(z)
        )
        return self._test(
            "the projection on Y along a direction of x", value, self.problem.constraint_vjp(self.x, z, u), d
        )

    def _test(self, what: str, value: Callable[[float], Tensor], gradient: Vector, direction: Vector) -> SlopeTest:
        typical = float(self.space.norm(gradient)) / math.sqrt(self.space.size(gradient))
        return SlopeTest(what, lambda t: float(value(t)), float(self.space.dot(gradient, direction)), typical)

    def _wrong(self, test: SlopeTest) -> str:
        """The numbers if the slope is wrong: it agrees with no step, and the steps agree with one another."""
        middle, before = test.function(0.0), math.nan
        length = self.length["x" if test.what.endswith("x") else "y"]
        for step in (length * part for part in self.steps):
            ahead, behind = test.function(step), test.function(-step)
            slope, bend = (ahead - behind) / (2 * step), abs(ahead - 2 * middle + behind) / step
            rounding = 20 * self.eps * max(abs(ahead), abs(middle), abs(behind)) / step
            miss = abs(slope - test.predicted)
            if not miss > WRONG[self.steps] * max(abs(slope), abs(test.predicted), test.typical) + rounding:
                return ""
            if abs(slope - before) <= 0.1 * miss and bend <= 0.5 * miss:
                return f"{test.what}: its derivative is {test.predicted:.4g}, differences give {slope:.4g}{CUT}"
            before = slope
        return ""

    def too_coarse(self) -> str:
        """Whether derivatives differ much from those in float64, where f and g take that."""
        if self.steps is FINE:
            return ""
        x, y = (tree_map(Tensor.double, point) for point in (self.x, self.y))
        wide = self.problem.linearize(x, y)
        for name in ("upper_grad_x", "upper_grad_y", "lower_grad_y"):
            exact = getattr(wide, name)
            off = self.space.norm(self.space.add(tree_map(Tensor.double, getattr(self.lin, name)), exact, -1.0))
            if float(off) > COARSER * float(self.space.norm(exact)):
                return f"{name} in the dtype of x and y is {float(off / self.space.norm(exact)):.0%} off: use float64"
        return ""

    # --- sets of users ------------------------------------------------------------------------------------------------

    def unlike_projection(self) -> str:
        """Why the projection of a user's own set is none, or its Jacobian is not its derivative; empty if they are."""
        own = type(self.set).__module__.startswith("bilevel.") and not isinstance(self.set, ProjectionSet)
        if own or isinstance(self.y, dict):
            return ""
        around: Any = self.y
        points = [around + part * self.length["y"] * self._unit(around) for part in (0.3, 1, 1, 3, 3, 10)]
        feet = [self.set.project(z).detach() for z in points]
        near = [self.set.project(p + 0.3 * self.length["y"] * self._unit(p)).detach() for p in feet]
        slack = 1e3 * self.eps**0.5
        for z, p in zip(points, feet, strict=True):
            size = float(z.norm())
            if float((self.set.project(p) - p).norm()) > slack * size:
                return f"{self.set!r} has no projection: applied to its own answer it moves the point"
            if not self.set.contains(p):
                return f"{self.set!r} has no projection: the projected point is outside, {self.set.contains(p).reason}"
            if any(float(((z - p) * (q - p)).sum()) > slack * size * (size + float(q.norm())) for q in feet + near):
                return f"{self.set!r} has no projection: another of its points is nearer than the projected one"
        return next(filter(None, map(self._wrong_jacobian, points)), "")

    def _wrong_jacobian(self, z: Tensor) -> str:
        v, h = self._unit(z), self.steps[1] * self.length["y"]
        product = self.set.jacobian(z).apply(v)
        ahead, here, behind = (self.set.project(z + t * v) for t in (h, 0.0, -h))
        miss = float((product - (ahead - behind) / (2 * h)).norm())
        smooth = float((ahead - 2 * here + behind).norm()) <= 0.1 * miss * h
        return (
            f"the Jacobian of {self.set!r} is not the derivative of its projection"
            if smooth and miss > WRONG[COARSE]
            else ""
        )
