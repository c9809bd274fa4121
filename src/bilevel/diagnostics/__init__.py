"""Can the numbers be trusted: checked hypergradients, certificates of stationarity, the constants of the theory."""

from __future__ import annotations

from .certificate import BoundEvidence, Certificate, certificate
from .check import check_hypergradient
from .constants import Constants, estimate_constants
from .goldstein import Goldstein, goldstein_measure
from .report import Cause, HypergradientCheck
from .theory import Theory, dmlcbo_from_theory, printed_eta_range, smoothing_lipschitz

__all__ = [
    "Cause",
    "Certificate",
    "Constants",
    "Goldstein",
    "BoundEvidence",
    "HypergradientCheck",
    "Theory",
    "certificate",
    "check_hypergradient",
    "dmlcbo_from_theory",
    "estimate_constants",
    "goldstein_measure",
    "printed_eta_range",
    "smoothing_lipschitz",
]
