"""Inequalities that hold with equality throughout a cone: at a degenerate vertex more rows hold back than one answer
of the multipliers shows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import MissingExtra

Array = NDArray[Any]


def with_implicit_equations(held: Array, tight: Array, smallest: float) -> Array:
    """Mask of the `tight` rows t, independent of the `held` rows B and of each other, that span what is fixed on

        {d : B d = 0, t d <= 0 for all tight rows}        (rows of unit length).

    By duality a row is fixed there exactly if some choice of the multipliers makes its own positive. Directions of
    length below `smallest` count as 0.
    """
    chosen = np.zeros(len(tight), dtype=bool)
    basis = np.linalg.qr(held.T)[0]
    rest = _orthogonal(tight, basis)
    length = np.linalg.norm(rest, axis=-1)
    open_ = np.flatnonzero(length > smallest)
    fixed = open_[_always_zero(rest[open_] / length[open_, None])] if len(open_) else open_
    for k in fixed:
        row = _orthogonal(tight[k], basis)
        if np.linalg.norm(row) > smallest:
            chosen[k] = True
            basis = np.column_stack([basis, row / np.linalg.norm(row)])
    return chosen


def _orthogonal(rows: Array, basis: Array) -> Array:
    for _ in range(2):  # the second round removes the rounding of the first
        rows = rows - rows @ basis @ basis.T
    return rows


def _always_zero(rows: Array) -> Array:
    """Which rows r have r d = 0 for all d with rows d <= 0: max sum s, rows d + s <= 0, 0 <= s <= 1 leaves s = 0."""
    try:
        from scipy.optimize import linprog
    except ImportError:
        raise MissingExtra("the derivative of a projection on a polyhedron", "sets") from None
    m, n = rows.shape
    cost = np.concatenate([np.zeros(n), -np.ones(m)])
    bounds = [(-1e4, 1e4)] * n + [(0.0, 1.0)] * m
    answer = linprog(cost, np.hstack([rows, np.eye(m)]), np.zeros(m), bounds=bounds)
    return answer.x[n:] < 0.5 if answer.status == 0 else np.zeros(m, dtype=bool)
