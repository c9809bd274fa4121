"""Can the numbers be trusted: checked hypergradients, certificates of stationarity, the constants of the theory."""

from __future__ import annotations

from .causes import Cause
from .certificate import Certificate, certificate
from .check import check_hypergradient
from .goldstein import Goldstein, goldstein_measure
from .report import HypergradientCheck

__all__ = [
    "Cause",
    "Certificate",
    "Goldstein",
    "HypergradientCheck",
    "certificate",
    "check_hypergradient",
    "goldstein_measure",
]
