"""One part of a problem judged by differences: what is wrong, with its numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .causes import Cause
from .probe import Probe, Slope, noise_of, slope

WRONG = 1e-5
"""Relative error from which a derivative counts as wrong; central differences of a right one are a thousandth of it."""


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
    """A predicted slope against differences, in view of the rounding noise of the function."""
    length = max(1.0, float(probe.x.norm()))
    value = abs(function(0.0))
    noise = max(noise_of(function), probe.eps * value)
    step = length * max(1e-4, min(0.1, (noise / max(value, size, 1e-300)) ** (1 / 3)))
    found = slope(function, predicted, step, noise)
    scale = max(abs(predicted), abs(found.central), size)
    wrong = not found.error <= WRONG * scale + 10 * noise / step
    return Judged(found, wrong)
