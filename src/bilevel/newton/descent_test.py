"""A test whether F decreases nearby, by one-sided differences of F: at a kink, h = 0 is not sufficient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..sets.base import ConvexSet
from .base import Evaluation, LowerLevel, flat
from .smoothed_set import Smoothing

DIRECTIONS = 8
"""The number of random directions, each tried with its opposite."""
RADII = (0.3, 0.1, 0.03)
"""Smoothing radii, relative to the distance to the kinks, along whose gradients F is tested too."""
PARTS = (1.0, 0.03)
"""Steps along those gradients are tried in full and shortened."""


def find_descent(
    level: Callable[[Smoothing | None], LowerLevel],
    constraint: ConvexSet,
    here: Evaluation,
    *,
    length: float,
    gain: float,
    draws: int = 16,
    parts: tuple[float, ...] = PARTS,
) -> Evaluation | None:
    """The first point at the distance `length` where F is lower by more than `gain`; None if none is found.

    F is evaluated along eight random directions and their opposites, always the same, and along minus the gradients of
    the smoothed F.

    Parameters
    ----------
    level
        The lower level with a smoothing; None for the problem itself.
    constraint
        The set X.
    here
        F at the point.
    parts
        The parts of `length` by which the point is moved along minus these gradients.
    """
    exact, doubt = level(None), here.error if math.isfinite(here.error) else 0.0
    for move in _moves(level, exact, here, length, draws, parts):
        x = flat(constraint.project(exact.tree_x(here.x + move))).double()
        there = exact.evaluate(x, 0.1 * gain, here)
        if there.ok and there.value + there.error + doubt < here.value - gain:
            return there
    return None


def _moves(
    level: Callable[[Smoothing | None], LowerLevel],
    exact: LowerLevel,
    here: Evaluation,
    length: float,
    draws: int,
    parts: tuple[float, ...],
) -> Iterator[Tensor]:
    distance, eta = exact.kink_distance(here), exact.smoothing_eta(here)
    for radius in RADII if distance > 0 else ():
        smoothed = level(Smoothing(radius * distance, eta, draws)).evaluate(here.x, 1e-3 * abs(here.value), here)
        size = float(smoothed.gradient.norm()) if smoothed.ok else 0.0
        if size > 0:
            yield from (-part * length / size * smoothed.gradient for part in parts)
    directions = torch.randn(
        DIRECTIONS, here.x.numel(), generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    for d in directions:
        yield length / float(d.norm()) * d
        yield -length / float(d.norm()) * d
