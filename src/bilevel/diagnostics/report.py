"""What `check_hypergradient` returns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .causes import Cause
from .lower_level import Curvature, FaceFacts
from .probe import Slope


@dataclass(frozen=True, kw_only=True)
class HypergradientCheck:
    """The verdict of `check_hypergradient`: the cause, its numbers, and what was measured on the way.

    Parameters
    ----------
    cause
        `Cause.CORRECT`, or what is wrong; `cause.remedy` says what to do.
    detail
        The numbers behind the cause.
    error
        The largest |<h, d> - slope of F along d|, relative to the largest of these slopes and |<h, d>|; NaN when the
        check ended before F was looked at.
    slopes
        For each direction what h predicts, the one-sided slopes of F and the central one.
    curvature
        mu and L of g in y at y*(x), on the whole space; None when the check ended before.
    face
        The face of y*(x) and its strict-complementarity margin; None when the check ended before.
    kink_distance
        How far x can move, to first order along the directions looked at, before the face changes; NaN: not known.
    lower_residual
        |y - P_Y(y - grad_y g)| of the solved lower level.
    notes
        What is worth knowing beside the verdict.
    line, reach
        t -> F(x + t d) along the direction that `plot` shows, and how far; None when F was not looked at.

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

    @property
    def ok(self) -> bool:
        """Whether the hypergradient is the gradient of F."""
        return self.cause is Cause.CORRECT

    def __str__(self) -> str:
        head = f"correct to {self.error:.1e}" if self.ok else f"{self.cause.name}: {self.cause.text}"
        lines = [head if not self.detail else f"{head} ({self.detail})"]
        if not self.ok:
            lines.append(f"remedy: {self.cause.remedy}")
        if self.face is not None:
            lines.append(f"face: {self.face}")
        if not math.isnan(self.kink_distance):
            lines.append(f"nearest kink: {_distance(self.kink_distance)}")
        if self.curvature is not None:
            lines.append(f"g in y: {self.curvature}; lower level solved to {self.lower_residual:.1e}")
        lines += [
            f"direction {k}: <h, d> = {s.predicted:.6g}; F has slope {s.backward:.6g} behind, {s.forward:.6g} ahead"
            for k, s in enumerate(self.slopes)
        ]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def plot(self, path: str | Path | None = None) -> Any:
        """F along the direction with the largest jump of its slope, with the line that h predicts."""
        from .picture import plot_line

        return plot_line(self, path)


def _distance(value: float) -> str:
    return "none in sight" if math.isinf(value) else f"about {value:.2e} from x"
