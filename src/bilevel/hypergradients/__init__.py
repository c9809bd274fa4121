"""Hypergradients: estimators of the gradient of F from the derivatives of f and g at a point, and a set."""

from .averaged_adjoint import AveragedAdjoint
from .base import Estimator, Hypergradient
from .linear_solve import LinearSolve
from .neumann import Neumann
from .smoothing import Exact, Perturbed, TwoPoint
from .unrolled import Unrolled

__all__ = [
    "AveragedAdjoint",
    "Estimator",
    "Exact",
    "Hypergradient",
    "LinearSolve",
    "Neumann",
    "Perturbed",
    "TwoPoint",
    "Unrolled",
]
