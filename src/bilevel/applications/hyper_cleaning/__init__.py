"""Data hyper-cleaning: learn which training labels to believe from a few rows that are trusted."""

from . import losses
from .centred import CentredDesign
from .design import Design
from .estimator import HyperCleaner, TrustWarning
from .noise import ClassPairs, RowWeights, Transition
from .problem import CleaningProblem

__all__ = [
    "HyperCleaner",
    "CleaningProblem",
    "CentredDesign",
    "ClassPairs",
    "Design",
    "RowWeights",
    "Transition",
    "TrustWarning",
    "losses",
]
