"""Checks of hypergradients, certificates of stationarity, and the constants of the theory."""

from .certificate import BoundEvidence as BoundEvidence
from .certificate import Certificate as Certificate
from .certificate import certificate as certificate
from .check import check_hypergradient as check_hypergradient
from .constants import Constants as Constants
from .constants import estimate_constants as estimate_constants
from .goldstein import Goldstein as Goldstein
from .goldstein import goldstein_measure as goldstein_measure
from .report import Cause as Cause
from .report import HypergradientCheck as HypergradientCheck
from .theory import Theory as Theory
from .theory import dmlcbo_from_theory as dmlcbo_from_theory
from .theory import printed_eta_range as printed_eta_range
from .theory import smoothing_lipschitz as smoothing_lipschitz
