"""Data hyper-cleaning: learn which training labels to believe from a few rows that are trusted.

Names are loaded when first used: `bilevel clean --help` loads no torch, and the estimator needs no pandas.
"""

import importlib
from typing import Any

from ..errors import MissingExtraError

_HOME = {
    "HyperCleaner": "estimator",
    "CleaningProblem": "problem",
    "CentredDesign": "design",
    "Design": "design",
    "ClassPairs": "noise",
    "RowWeights": "noise",
    "Transition": "noise",
    "SavedCleaner": "model_file",
    "load_cleaner": "model_file",
    "save_cleaner": "model_file",
    "losses": "losses",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f".{_HOME[name]}", __name__)
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"{name} ({error})", "apps") from None
    return getattr(module, name, module)  # the module itself: `losses`
