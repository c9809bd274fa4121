"""Data hyper-cleaning: learn which training labels to believe from a few rows that are trusted."""

from typing import TYPE_CHECKING, Any

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
    "SavedCleaner",
    "load_cleaner",
    "save_cleaner",
    "losses",
]


if TYPE_CHECKING:
    from .model_file import SavedCleaner, load_cleaner, save_cleaner


def __getattr__(name: str) -> Any:
    if name in ("SavedCleaner", "load_cleaner", "save_cleaner"):  # they need pandas, the estimator does not
        from . import model_file

        return getattr(model_file, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
