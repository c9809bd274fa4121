"""Data hyper-cleaning: learn which training labels to believe from a few rows that are trusted."""

from . import losses
from .design import Design
from .noise import ClassPairs, RowWeights, Transition
from .problem import CleaningProblem

__all__ = ["CleaningProblem", "ClassPairs", "Design", "RowWeights", "Transition", "losses"]
