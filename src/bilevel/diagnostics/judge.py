"""One part of a problem judged by differences: what is wrong, with its numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from .causes import Cause
from .probe import Probe, Slope, noise_of, slope

WRONG = 1e-5
"""Relative error from which a derivative counts as wrong; central differences of a right one are a thousandth of it."""

SHORTER, SHORTEST = 10.0, 1e-10
"""By how much a step is shortened, and the shortest one, relative to max(1, |x|)."""


class Finding(NamedTuple):
    """What is wrong, with its numbers."""

    cause: Cause
    detail: str


class Judged(NamedTuple):
    slope: Slope
    wrong: bool

    def numbers(self, what: str) -> str:
        return f"{what}: derivative {self.slope.predicted:.6g}, differences {self.slope.central:.6g}"


def judge(function: Callable[[float], float], predicted: float, size: float, probe: Probe) -> Judged:
    """A predicted slope against differences, in view of the rounding noise of the function.

    The step follows the size of x; where that disagrees it is shortened, as long as rounding stays below what counts
    as wrong: a function may bend on a shorter scale than that of x, or end nearby. A wrong slope agrees with no step.
    """
    length = max(1.0, float(probe.x.norm()))
    value = abs(function(0.0))
    noise = max(noise_of(function), probe.eps * value)
    step = length * max(1e-4, min(0.1, (noise / max(value, size, 1e-300)) ** (1 / 3)))
    first = found = _judged(function, predicted, size, step, noise)
    while found.wrong:
        step /= SHORTER
        if step < SHORTEST * length or not 10 * noise / step <= WRONG * max(abs(predicted), size):
            return first if math.isfinite(first.slope.central) else found
        found = _judged(function, predicted, size, step, noise)
    return found


def _judged(function: Callable[[float], float], predicted: float, size: float, step: float, noise: float) -> Judged:
    found = slope(function, predicted, step, noise)
    scale = max(abs(predicted), abs(found.central), size)
    return Judged(found, not found.error <= WRONG * scale + 10 * noise / step)
