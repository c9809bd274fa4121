"""A quick check of a problem: do the derivatives of f, g and the sets agree with finite differences?

    <grad f, d>  and  (f(p + h d) - f(p - h d)) / 2h,  likewise g, grad_y g, P_Y and its motion with x

Only gross errors are reported (a cut graph, a wrong sign, a missing term): a slope counts as wrong if it differs
by 0.1 % (2 % in float32) from the differences of every step that was tried, the differences agree among themselves and
on both sides, and all of that along two of three directions. `bilevel.check_hypergradient` makes the same comparisons
more closely.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._checks import CALL_ERRORS
from .errors import BilevelError, ProblemWarning
from .problem import Problem
from .sets.base import ConvexSet
from .sets.from_projection import ProjectionSet
from .spaces import Space, Vector, leaves, tree_map

SPACE = Space()
FINE, COARSE = (1e-3, 1e-5, 1e-7), (1e-1, 1e-2, 1e-3)
"""Lengths of differences, relative to the point, in float64 and in other dtypes."""
JUMPS = (5e-1, 3e-1, 1e-1, 3e-2)
"""The same where the derivative is exactly 0, as that of a function with steps, such as round(), is."""
WRONG = {FINE: 1e-3, COARSE: 2e-2}
"""The relative errors from which a slope counts as wrong."""
COARSER = 0.02
"""The relative difference to float64 from which derivatives in a coarser dtype count as wrong."""
CUT = ": look for detach(), item(), numpy(), torch.no_grad(), a wrong backward, a product written by hand, or rounding"
CALLS = 4
"""How often f and g are called at one point: a dropout may give the same values twice."""
RANDOM = ": use model.eval() against dropout, and a sampler for batches"
LOWER = [("g", "y"), ("grad_y g", "y"), ("grad_y g", "x")]
UPPER = [("f", "x"), ("f", "y"), ("g", "x")]
INEQUALITY = [("h", "x"), ("h", "y")]
"""The derivatives that are compared: of which function, and in which variable."""


def unit(like: Vector, generator: torch.Generator) -> Any:
    """A random direction of length 1."""
    draw = tree_map(lambda u: torch.randn(u.shape, generator=generator, dtype=torch.float64).to(u), like)
    return SPACE.scaled(draw, 1.0 / float(SPACE.norm(draw)))


class SlopeTest(NamedTuple):
    """A function of a length, the slope at 0 that a derivative predicts, and the size of such slopes."""

    what: str
    function: Callable[[float], float]
    predicted: float
    typical: float


def slope_test(
    problem: Problem, part: str, variable: str, x: Vector, y: Vector, generator: torch.Generator, z: Vector
) -> SlopeTest:
    """f, g, grad_y g, h or the projection of z on Y along a random direction of x or y, and the predicted slope."""
    lin, point = problem.linearize(x, y), x if variable == "x" else y
    d, r = unit(point, generator), unit(y, generator)  # grad_y g and the projection are seen in the direction r
    if part == "f":
        value, gradient = (lambda x, y: problem.linearize(x, y).upper_value), getattr(lin, f"upper_grad_{variable}")
    elif part == "g":
        value = lambda x, y: problem.linearize(x, y).lower_value  # noqa: E731
        gradient = lin.lower_grad_x if variable == "x" else problem.lower_grad(x, y)
    elif part == "grad_y g":
        value = lambda x, y: SPACE.dot(r, problem.lower_grad(x, y))  # noqa: E731
        gradient = lin.lower_cross(r) if variable == "x" else lin.lower_hvp(r)
    elif part == "h":  # seen in the direction u
        u = unit(lin.inequality_value, generator)
        value = lambda x, y: u @ problem.call_inequality(x, y).detach()  # noqa: E731
        gradient = lin.inequality_vjp(u)[variable == "y"]
    else:
        value = lambda x, y: SPACE.dot(r, problem.constraint_at(x).project(z))  # noqa: E731
        gradient = problem.constraint_vjp(x, z, r)

    def along(t: float) -> float:
        moved = SPACE.add(point, d, t)
        return float(value(moved, y) if variable == "x" else value(x, moved))

    typical = float(SPACE.norm(gradient)) / math.sqrt(SPACE.size(gradient))
    return SlopeTest(f"{part} along a direction of {variable}", along, float(SPACE.dot(gradient, d)), typical)


class FlatSet:
    """The projection on a set, its Jacobian and membership at flat points, `like` giving their form."""

    def __init__(self, constraint: ConvexSet, like: Vector) -> None:
        self.constraint, self._like = constraint, like

    def project(self, z: Tensor) -> Tensor:
        """P_Y(z)."""
        return SPACE.ravel(tree_map(Tensor.detach, self.constraint.project(SPACE.unravel(z, self._like))))

    def projection_flaw(self, points: list[Tensor], others: list[Tensor], slack: float, tol: float | None) -> str:
        """Explain, with numbers, why `project` is not the projection on a convex set; empty if no error was detected.

        P(P z) = P z, |P z - P w| <= |z - w|, <z - P z, w - P z> <= 0 for w in Y, and P z in Y.

        Parameters
        ----------
        points, others
            Points to project, and other points of Y.
        slack, tol
            The relative error up to which the three properties hold, and the tolerance of membership.
        """
        feet = [self.project(z) for z in points]
        for z, p in zip(points, feet, strict=True):
            size, moved = max(float(z.norm()), float(p.norm()), 1e-300), float((self.project(p) - p).norm())
            if moved > slack * size:
                return f"not idempotent: P(P(z)) is {moved:.3g} from P(z), |z| = {size:.3g}"
        for (w, q), (z, p) in itertools.combinations(zip(points, feet, strict=True), 2):
            apart, moved = float((z - w).norm()), float((p - q).norm())
            if moved > apart * (1 + slack):
                return f"expansive: |P(z) - P(w)| = {moved:.4g} > |z - w| = {apart:.4g}"
        for (z, p), q in itertools.product(zip(points, feet, strict=True), (*feet, *others)):
            angle, size = float((z - p) @ (q - p)), float((z - p).norm() * (q - p).norm())
            if angle > slack * max(size, 1e-300) and size > slack:
                part = min(angle / float((q - p).square().sum()), 1.0)  # the nearest point to z between P(z) and q
                near, far = float((z - p).norm()), float((z - p - part * (q - p)).norm())
                return f"not nearest: a point of Y on the way from P(z) to P(w) is {far:.4g} from z, P(z) is {near:.4g}"
        members = (self.constraint.contains(SPACE.unravel(p, self._like), tol=tol) for p in feet)
        return next((f"P(z) is not in Y: {member.reason}" for member in members if not member), "")

    def jacobian_flaw(self, z: Tensor, v: Tensor, h: float, wrong: float) -> str:
        """Explain how `jacobian` differs from finite differences of P by more than `wrong`; empty at kinks of P."""
        face = self.constraint.jacobian(SPACE.unravel(z, self._like))
        product = SPACE.ravel(face.apply(SPACE.unravel(v, self._like)))
        ahead, here, behind = (self.project(z + t * v) for t in (h, 0.0, -h))
        if float((ahead - 2 * here + behind).norm()) > 1e-2 * wrong * h:  # a kink, or noise
            return ""
        miss = float((product - (ahead - behind) / (2 * h)).norm())
        if miss > wrong:
            return f"|H v - differences of P| = {miss:.3g} for |v| = 1"
        twice = SPACE.ravel(face.apply(SPACE.unravel(product, self._like))) if face.is_projector else product
        miss = float((twice - product).norm())
        return f"is_projector is claimed, but |H H v - H v| = {miss:.3g} for |v| = 1" if miss > wrong else ""


def warn_of_flaws(
    problem: Problem, x: Vector, y: Vector, *, upper: bool = True, beside: bool = False, end: bool = False,
    stacklevel: int = 3,
) -> bool:  # fmt: skip
    """Warn (`ProblemWarning`) if f, g or the set is random, or a derivative grossly wrong; once per problem and shape.

    Return whether there is a flaw, also when the warning was given before. Problems of bilevel itself and problems on
    several ranks are not checked.

    Parameters
    ----------
    problem
        A problem whose calls are not counted.
    x, y
        The point: x, and a random point of Y near y.
    upper
        Also check f.
    beside
        Check at a point very close to y instead: a product may be wrong only there.
    end
        Check at x although the start was checked: some mistakes do not show there, such as a detached |x|^2 at x = 0.
    """
    key = (upper, beside, end, *(tuple(u.shape) for u in (*leaves(x), *leaves(y))))
    own = type(problem) is not Problem and type(problem).__module__.startswith("bilevel.")
    if own or problem.ranks.size > 1 or problem.flaws is None:
        return False
    if key not in problem.flaws:
        with torch.random.fork_rng(devices=[]):  # a run that draws from the generator finds it as it was
            flaw = problem.flaws[key] = _first_flaw(problem, x, y, upper, beside)
        if flaw:
            message = f"{flaw}; bilevel.check_hypergradient(problem, x) gives details"
            warnings.warn(message, ProblemWarning, stacklevel=stacklevel)
    return bool(problem.flaws[key])


def _first_flaw(problem: Problem, x: Vector, y: Vector, upper: bool, beside: bool) -> str:
    """Describe the first flaw; empty if there is none, or if rounding hides it."""
    for part in (_FirstLook.random, _FirstLook.wrong_slope, _FirstLook.too_coarse, _FirstLook.wrong_set):
        with contextlib.suppress(BilevelError, *CALL_ERRORS):  # not a word about points where a run may never go
            flaw = part(_FirstLook(problem, x, y, upper, beside))
            if flaw:
                return flaw
    return ""


class _FirstLook:
    """The tests at one point."""

    def __init__(self, problem: Problem, x: Vector, y: Vector, upper: bool, beside: bool) -> None:
        self.problem, self.upper, self.generator = problem, upper, torch.Generator().manual_seed(0)
        self.x, y = tree_map(Tensor.detach, x), tree_map(Tensor.detach, y)
        self.set = problem.constraint_at(self.x)
        self.length = {"x": _typical_length(self.x), "y": _typical_length(y)}
        if beside:
            self.y = SPACE.add(y, unit(y, self.generator), 1e-3 * self.length["y"])
        else:
            drawn = self.set.project(SPACE.add(y, unit(y, self.generator), self.length["y"]))
            self.y = SPACE.lerp(y, drawn, 0.5)
        dtypes = {u.dtype for u in (*leaves(x), *leaves(y))}
        self.steps = FINE if dtypes == {torch.float64} else COARSE
        self.eps = max(torch.finfo(dtype).eps for dtype in dtypes)

    def random(self) -> str:
        """Whether f or g differ between calls at one point: dropout, say, or a counter."""
        lins = [self.problem.linearize(self.x, self.y) for _ in range(CALLS)]
        for name, value in {"f": "upper_value", "g": "lower_value"}.items() if self.upper else [("g", "lower_value")]:
            first, *others = (float(getattr(lin, value)) for lin in lins)
            if different := [other for other in others if other != first]:
                return f"{name} differs between two calls at one point, {first:.9g} and {different[0]:.9g}{RANDOM}"
        return ""

    def wrong_slope(self) -> str:
        """Describe the first derivative that is wrong along two directions, or along two of three."""
        motion = [("the projection on Y", "x")] if self.problem.moving else []
        functions = [] if self.problem.inequality is None else INEQUALITY
        for part, variable in [*LOWER, *motion, *functions, *(UPPER if self.upper else [])]:
            wrong = [self._wrong(part, variable) for _ in range(2)]
            if any(wrong) and not all(wrong):
                wrong.append(self._wrong(part, variable))
            texts = [text for text in wrong if text]
            if len(texts) > 1:
                return texts[0]
        return ""

    def _wrong(self, part: str, variable: str) -> str:
        """Describe a wrong slope: it agrees with no finite difference, and the differences agree with one another."""
        z = SPACE.add(self.y, unit(self.y, self.generator), 3 * self.length["y"])
        test = slope_test(self.problem, part, variable, self.x, self.y, self.generator, z)
        middle, before = test.function(0.0), math.nan
        steps, agree = (self.steps, 0.1) if test.typical else (JUMPS, 0.5)  # short differences of steps are 0, too
        for step in (self.length[variable] * each for each in steps):
            ahead, behind = test.function(step), test.function(-step)
            slope, bend = (ahead - behind) / (2 * step), abs(ahead - 2 * middle + behind) / step
            rounding = 20 * self.eps * max(abs(ahead), abs(middle), abs(behind)) / step
            miss = abs(slope - test.predicted)
            if not miss > WRONG[self.steps] * max(abs(slope), abs(test.predicted), test.typical) + rounding:
                return ""
            if abs(slope - before) <= agree * miss and bend <= 0.5 * miss:
                return f"{test.what}: its derivative is {test.predicted:.4g}, differences give {slope:.4g}{CUT}"
            before = slope
        return ""

    def too_coarse(self) -> str:
        """Whether derivatives differ much from those in float64, where f and g take that."""
        if self.steps is FINE or not self.upper:
            return ""
        lin = self.problem.linearize(self.x, self.y)
        wide = self.problem.linearize(tree_map(Tensor.double, self.x), tree_map(Tensor.double, self.y))
        for name in ("upper_grad_x", "upper_grad_y", "lower_grad_y"):
            exact = getattr(wide, name)
            off = SPACE.norm(SPACE.add(tree_map(Tensor.double, getattr(lin, name)), exact, -1.0))
            if float(off) > COARSER * float(SPACE.norm(exact)):
                return f"{name} in the dtype of x and y is wrong by {float(off / SPACE.norm(exact)):.0%}: use float64"
        return ""

    def wrong_set(self) -> str:
        """Explain why the projection of a user's set, or its Jacobian, is wrong; empty if both are right."""
        if type(self.set).__module__.startswith("bilevel.") and not isinstance(self.set, ProjectionSet):
            return ""
        flat, here, length = FlatSet(self.set, self.y), SPACE.ravel(self.y), self.length["y"]
        points = [here + part * length * unit(here, self.generator) for part in (0.3, 1, 1, 3, 3, 10)]
        near = [flat.project(flat.project(z) + 0.3 * length * unit(z, self.generator)) for z in points]
        flaw = flat.projection_flaw(points, near, 1e3 * self.eps**0.5, None)
        if flaw:
            return f"the projection of {self.set!r} is {flaw}"
        for z in points:
            flaw = flat.jacobian_flaw(z, unit(z, self.generator), self.steps[1] * length, WRONG[COARSE])
            if flaw:
                return f"the Jacobian of {self.set!r} is not the derivative of its projection: {flaw}"
        return ""


def _typical_length(point: Vector) -> float:
    """The length of a point with entries of typical size; a few large entries do not change it."""
    entries = SPACE.ravel(point)
    return math.sqrt(len(entries)) * (float(entries[entries != 0].abs().median()) if entries.any() else 1.0)
