"""What a check found: causes with their remedies, the report, and its picture."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInputError, MissingExtraError

if TYPE_CHECKING:
    from .finite_differences import Finding, Slope
    from .lower_level import Curvature, FaceFacts


POINTS = 41
"""The points of the line in `HypergradientCheck.plot`."""


class Cause(Enum):
    """The possible results of `check_hypergradient`, with cause and remedy.

    Examples
    --------
    >>> print(Cause.KINK.remedy)
    accept a one-sided derivative, smooth with Perturbed(radius=...), or use bilevel.certificate
    """

    CORRECT = ("the hypergradient agrees with differences of F", "nothing to do")
    KINK = (
        "F has a kink here: the projection onto Y is not differentiable at y - eta grad_y g",
        "accept a one-sided derivative, smooth with Perturbed(radius=...), or use bilevel.certificate",
    )
    NOT_STRONGLY_CONVEX = (
        "g is not convex in y: it has negative curvature, and y*(x) may jump or be a saddle",
        "write g as a convex function of y, or add a ridge c |y|^2 larger than the negative curvature",
    )
    SINGULAR_HESSIAN = (
        "g is flat in some direction of the face: y*(x) is not unique, and the linear system is singular",
        "give g curvature in y, for example + 1e-3 * y.square().sum()",
    )
    UPPER_NOT_DIFFERENTIABLE = (
        "f is not differentiable at (x, y*(x))",
        "replace abs, relu, max or a rounding in f by a smooth function",
    )
    LOWER_NOT_DIFFERENTIABLE = (
        "g is not twice differentiable at (x, y*(x))",
        "replace abs, relu or max in g by a smooth function; a penalty |y|_1 is better written as an l1 ball",
    )
    UPPER_IGNORES_Y = (
        "y does not matter: f does not depend on y, so F(x) = f(x)",
        "check which variables f uses; if this is intended, minimise f with torch.optim",
    )
    LOWER_IGNORES_X = (
        "y does not matter: neither grad_y g nor the set depends on x, so y*(x) is constant",
        "check which variables g uses, and that x occurs in a term together with y",
    )
    DETACHED_UPPER = (
        "the graph of f is cut: f changes in a way that autograd does not see",
        "look for detach(), item(), float(), numpy(), .data or torch.no_grad() in f, or a wrong custom backward",
    )
    DETACHED_LOWER = (
        "the graph of g is cut: g changes in a way that autograd does not see",
        "look for detach(), item(), float(), numpy(), .data or torch.no_grad() in g, or a wrong custom backward",
    )
    DETACHED_SET = (
        "the graph of the set is cut: constraint(x) moves with x in a way that autograd does not see",
        "build the parameters of the set from x with torch operations, without float(), item() or detach()",
    )
    WRONG_UPPER_GRADIENT = (
        "the linearisation's gradient of f is wrong",
        "correct Linearization._upper_gradients: (grad_x f, grad_y f)",
    )
    WRONG_LOWER_GRADIENT = (
        "the linearisation's gradient of g, in y or in x, is wrong",
        "correct Linearization._lower_gradient_y (or Problem.lower_grad), or _lower_gradient_x",
    )
    WRONG_HESSIAN = (
        "the linearisation's product with the second derivative of g in y is wrong",
        "correct Linearization._lower_hvp: grad^2_yy g . v",
    )
    WRONG_CROSS = (
        "the linearisation's product with the mixed second derivative of g is wrong",
        "correct Linearization._lower_cross: the gradient in x of <grad_y g, v>, of the shape of x",
    )
    NOT_A_PROJECTION = (
        "the set's `project` is not the projection onto a convex set",
        "return the nearest point of one fixed convex set; bilevel.testing.SetTestCase checks your own",
    )
    WRONG_SET_JACOBIAN = (
        "the set's `jacobian` is not the derivative of its `project`",
        "correct ConvexSet.jacobian (and ProjectionJacobian.is_projector), "
        "or use sets.from_projection, which differentiates for you",
    )
    WRONG_SIGN = (
        "the hypergradient has the wrong sign",
        "h = grad_x f - G_xy w: check the minus sign, and that x moves against h",
    )
    WRONG_METHOD = (
        "every part is correct, but the method's hypergradient is not the gradient of F",
        "use LinearSolve(), more terms of the series, or correct the method; compare its adjoint with LinearSolve's",
    )
    SERIES_DIVERGES = (
        "the method's Neumann series diverges: eta is at or beyond 2/L on the face",
        'use eta="auto", a smaller eta, or LinearSolve()',
    )
    INCOMPATIBLE = (
        "the method does not support the set",
        "choose a solver that supports this set (the page 'How to choose a solver'), or another set",
    )
    INFEASIBLE = (
        "y is not in the set Y",
        "project y after each step: constraint.project(y)",
    )
    UNSOLVED = (
        "y is not the lower-level solution y*(x)",
        "solve the lower level further: more steps, a smaller tol, or a better conditioned g",
    )
    PRECISION = (
        "rounding hides the derivative: its error cannot be measured to tol",
        "compute in float64 (x, y and the data), subtract large constants from f and g, or pass a larger tol",
    )
    UNDECIDED = (
        "the method is too noisy to decide whether its mean is the gradient of F",
        "pass a larger tol=..., or check a variant with less noise (truncation='full', Perturbed instead of TwoPoint)",
    )
    NOT_DETERMINISTIC = (
        "f or g gives two values at one point",
        "fix the noise: no dropout or fresh draws in f and g; pass batches through Problem(..., sampler=...)",
    )
    NOT_FINITE = (
        "f, g or one of their derivatives is NaN or infinite here",
        "check the data and the domain of f and g (log, sqrt, division), or choose another x",
    )
    UNEXPLAINED = (
        "the hypergradient and the differences disagree, and no part was found to be wrong",
        "repeat with another seed and more directions; if it stays, please report the problem",
    )

    @property
    def text(self) -> str:
        """The cause in words."""
        return self.value[0]

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return self.value[1]

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class HypergradientCheck:
    """The result of `check_hypergradient`: the cause, its numbers and further measurements.

    Parameters
    ----------
    cause
        `Cause.CORRECT`, or what is wrong; `cause.remedy` says what to do.
    detail
        The numbers behind the cause.
    error
        The largest |<h, d> - slope of F along d|, relative to the largest of these slopes and |<h, d>|; NaN if the
        check ended before F was evaluated.
    slopes
        For each direction what h predicts, the one-sided slopes of F and the central one.
    curvature
        mu and L of g in y at y*(x), on the whole space; None when the check ended before.
    face
        The face of y*(x) and its strict-complementarity margin; None when the check ended before.
    kink_distance
        How far x can move, to first order along the sampled directions, before the face changes; NaN if unknown.
    lower_residual
        |y - P_Y(y - grad_y g)| of the solved lower level.
    notes
        Further remarks.
    line, reach
        t -> F(x + t d) along the direction that `plot` shows, and how far; None if F was not evaluated, and after
        pickling.

    Examples
    --------
    >>> import bilevel, torch
    >>> problem = bilevel.Problem(
    ...     lambda x, y: y.square().sum(), lambda x, y: (y - x).square().sum(), y0=torch.zeros(2).double()
    ... )
    >>> check = bilevel.check_hypergradient(problem, torch.tensor([1.0, 2.0]).double())
    >>> check.ok, check.cause.name, check.error < 1e-6
    (True, 'CORRECT', True)
    """

    cause: Cause
    detail: str = ""
    error: float = math.nan
    slopes: tuple[Slope, ...] = ()
    curvature: Curvature | None = None
    face: FaceFacts | None = None
    kink_distance: float = math.nan
    lower_residual: float = math.nan
    notes: tuple[str, ...] = ()
    line: Callable[[float], float] | None = field(default=None, repr=False, compare=False)
    reach: float = field(default=1e-3, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:  # f and g of a user need not be picklable
        return {**vars(self), "line": None}

    @property
    def ok(self) -> bool:
        """Whether the hypergradient is the gradient of F."""
        return self.cause is Cause.CORRECT

    def found(self, finding: Finding | None) -> HypergradientCheck:
        """The same with this cause; itself where nothing was found."""
        return self if finding is None else replace(self, cause=finding.cause, detail=finding.detail)

    def __str__(self) -> str:
        head = f"correct to {self.error:.1e}" if self.ok else f"{self.cause.name}: {self.cause.text}"
        lines = [head if not self.detail else f"{head} ({self.detail})"]
        if not self.ok:
            lines.append(f"remedy: {self.cause.remedy}")
        if self.face is not None:
            lines.append(f"face: {self.face}")
        if not math.isnan(self.kink_distance):
            far = "none in sight" if math.isinf(self.kink_distance) else f"about {self.kink_distance:.2e} from x"
            lines.append(f"nearest kink: {far}")
        if self.curvature is not None:
            lines.append(f"g in y: {self.curvature}; lower level solved to {self.lower_residual:.1e}")
        lines += [
            f"direction {k}: <h, d> = {s.predicted:.6g}; F has slope {s.backward:.6g} behind, {s.forward:.6g} ahead"
            for k, s in enumerate(self.slopes)
        ]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def plot(self, path: str | Path | None = None) -> Any:
        """F(x + t d) along the direction d with the largest jump of its slope, and the line F(x) + t <h, d>."""
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise MissingExtraError("Plotting", "apps") from None
        if self.line is None or not self.slopes:
            raise InvalidInputError(
                f"there is no line to plot: the check ended with {self.cause.name} before F was looked at"
            )
        times = [self.reach * (2 * k / (POINTS - 1) - 1) for k in range(POINTS)]
        found = max(self.slopes, key=lambda s: s.jump)
        middle = self.line(0.0)
        figure = Figure(figsize=(6, 3.6), layout="constrained")
        axis = figure.subplots()
        axis.plot(times, [self.line(t) for t in times], label="F, lower level solved")
        axis.plot(times, [middle + t * found.predicted for t in times], "--", label="what h predicts")
        axis.axvline(0.0, color="0.8", linewidth=1, zorder=0)
        axis.set(
            xlabel="t", ylabel="F(x + t d)", title=f"{self.cause.name.lower().replace('_', ' ')}: F along a direction"
        )
        axis.legend(frameon=False)
        if path is not None:
            figure.savefig(path)
        return figure
