"""Hypergradients: from the derivatives of f and g at a point, and a set, to the gradient of F."""

from .base import Estimator, Hypergradient
from .linear_solve import LinearSolve
from .neumann import Neumann
from .unrolled import Unrolled

__all__ = ["Estimator", "Hypergradient", "LinearSolve", "Neumann", "Unrolled"]
