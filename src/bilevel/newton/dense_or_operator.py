"""Dense linear algebra where y is small, products elsewhere."""

from __future__ import annotations

import math

from ..problem import Problem
from ..spaces import Vector, leaves
from .base import LowerLevel
from .dense import DenseLevel
from .operator import OperatorLevel
from .smoothed_set import Smoothing

DENSE_LIMIT = 600
"""Up to so many entries of y the linear systems are matrices."""


def lower_level(
    problem: Problem, x: Vector, y: Vector, smoothing: Smoothing | None = None, limit: float = math.inf
) -> LowerLevel:
    """The lower level of a problem, its linear algebra chosen by the size of y; arguments as in `LowerLevel`."""
    kind = DenseLevel if sum(u.numel() for u in leaves(y)) <= DENSE_LIMIT else OperatorLevel
    return kind(problem, x, y, smoothing, limit)
