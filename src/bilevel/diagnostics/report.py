"""The results of a check: causes with their remedies, the report, and its plot."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInputError, MissingExtraError

if TYPE_CHECKING:
    from .finite_differences import Finding, Slope
    from .lower_level import Curvature, FaceFacts

TEXTS: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("causes.toml").read_text(encoding="utf-8"))
"""Of each cause: what it is, and its remedy."""
POINTS = 41
"""The points of the line in `HypergradientCheck.plot`."""


class Cause(Enum):
    """The possible results of `check_hypergradient`, with cause and remedy.

    Examples
    --------
    >>> print(Cause.KINK.remedy)
    accept a one-sided derivative, smooth with Perturbed(radius=...), or use bilevel.certificate
    """

    CORRECT = auto()
    KINK = auto()
    NOT_STRONGLY_CONVEX = auto()
    SINGULAR_HESSIAN = auto()
    UPPER_NOT_DIFFERENTIABLE = auto()
    LOWER_NOT_DIFFERENTIABLE = auto()
    UPPER_IGNORES_Y = auto()
    LOWER_IGNORES_X = auto()
    DETACHED_UPPER = auto()
    DETACHED_LOWER = auto()
    DETACHED_SET = auto()
    WRONG_UPPER_GRADIENT = auto()
    WRONG_LOWER_GRADIENT = auto()
    WRONG_HESSIAN = auto()
    WRONG_CROSS = auto()
    NOT_A_PROJECTION = auto()
    WRONG_SET_JACOBIAN = auto()
    WRONG_SIGN = auto()
    WRONG_METHOD = auto()
    SERIES_DIVERGES = auto()
    INCOMPATIBLE = auto()
    INFEASIBLE = auto()
    UNSOLVED = auto()
    PRECISION = auto()
    UNDECIDED = auto()
    NOT_DETERMINISTIC = auto()
    NOT_FINITE = auto()
    UNEXPLAINED = auto()

    @property
    def text(self) -> str:
        """The cause in words."""
        return TEXTS[self.name]["text"]

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return TEXTS[self.name]["remedy"]

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class HypergradientCheck:
    """The result of `check_hypergradient`: the cause, its numbers and further measurements.

    Parameters
    ----------
    cause
        `Cause.CORRECT`, or the error that was detected; `cause.remedy` is its remedy.
    detail
        The numbers for the cause.
    error
        The largest |<h, d> - slope of F along d|, relative to the largest of these slopes and |<h, d>|; NaN if the
        check ended before F was evaluated.
    slopes
        For each direction: the prediction of h, the one-sided slopes of F and the central slope.
    curvature
        mu and L of g in y at y*(x), on the whole space; None if the check ended before.
    face
        The face of y*(x) and its strict-complementarity margin; None if the check ended before.
    kink_distance
        The first-order distance that x can move along the sampled directions before the face changes; NaN if unknown.
    lower_residual
        |y - P_Y(y - grad_y g)| of the solved lower level.
    notes
        Further remarks.
    line, reach
        t -> F(x + t d) along the direction that `plot` shows, and the largest t; None if F was not evaluated, and after
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
                f"there is no line to plot: the check ended with {self.cause.name} before F was evaluated"
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
