"""Can the numbers be trusted: checked hypergradients, certificates of stationarity, the constants of the theory."""

from __future__ import annotations

from .causes import Cause
from .certificate import Certificate, Ground, certificate
from .check import check_hypergradient
from .constants import Constants, estimate_constants
from .goldstein import Goldstein, goldstein_measure
from .report import HypergradientCheck
from .theory import Theory, printed_eta_range, smoothing_lipschitz

__all__ = [
    "Cause",
    "Certificate",
    "Constants",
    "Goldstein",
    "Ground",
    "HypergradientCheck",
    "Theory",
    "certificate",
    "check_hypergradient",
    "estimate_constants",
    "goldstein_measure",
    "printed_eta_range",
    "smoothing_lipschitz",
]
