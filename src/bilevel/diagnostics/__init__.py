"""Can the numbers be trusted: checked hypergradients, certificates of stationarity, the constants of the theory."""

from __future__ import annotations

from .causes import Cause
from .check import check_hypergradient
from .report import HypergradientCheck

__all__ = ["Cause", "HypergradientCheck", "check_hypergradient"]
