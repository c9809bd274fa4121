"""All numerical tolerances, as functions of the dtype, in one place."""

from __future__ import annotations

import torch


def feasibility(dtype: torch.dtype) -> float:
    """How far, relative to the scale of the set, a point may lie outside it and still count as inside.

    eps^(3/4): 2e-12 in float64, 6e-6 in float32.
    """
    return torch.finfo(dtype).eps ** 0.75


def rounding(dtype: torch.dtype) -> float:
    """The relative error after a few operations: 8 eps."""
    return 8 * torch.finfo(dtype).eps


def solved(dtype: torch.dtype) -> float:
    """The fraction of |y| by which a projected gradient step 1/L may move a solution of the lower level: eps^(3/4)."""
    return torch.finfo(dtype).eps ** 0.75


def lower_residual(dtype: torch.dtype) -> float:
    """Tolerance of the lower levels inside methods: 1e-10 in float64, 2e-5 in float32 (about eps^(2/3))."""
    return max(1e-10, torch.finfo(dtype).eps ** (2 / 3))


def linear_residual(dtype: torch.dtype) -> float:
    """Default relative residual of the linear system in a hypergradient, same rule as `lower_residual`."""
    return lower_residual(dtype)


def hypergradient(dtype: torch.dtype) -> float:
    """Up to which relative error a checked hypergradient counts as correct: 1e-4 in float64, 5e-3 in float32.

    In float32 the limit is the accuracy of central differences, eps^(1/3).
    """
    return max(1e-4, torch.finfo(dtype).eps ** (1 / 3))
