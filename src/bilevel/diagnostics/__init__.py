"""Can the numbers be trusted: checked hypergradients, certificates of stationarity, the constants of the theory."""

from __future__ import annotations

from .certificate import BoundEvidence, Certificate, Goldstein, certificate, goldstein_measure
from .check import check_hypergradient
from .report import Cause, HypergradientCheck
from .theory import Constants, Theory, dmlcbo_from_theory, estimate_constants, printed_eta_range, smoothing_lipschitz

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
