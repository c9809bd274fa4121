"""Bilevel optimisation with a convex set in the lower level.

    min_x f(x, y*(x))    with    y*(x) = argmin over y in Y of g(x, y)

Names are loaded when first used, so that `import bilevel` does not load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__

_HOME = {
    "Problem": "problem",
    "Linearization": "problem",
    "Costs": "problem",
    "Coordinates": "problem",
    "Seeds": "randomness",
    "Exact": "smoothing",
    "Perturbed": "smoothing",
    "TwoPoint": "smoothing",
    "PrecisionWarning": "smoothing",
    "LinearSolve": "hypergradients",
    "Neumann": "hypergradients",
    "Unrolled": "hypergradients",
    "solve_lower": "lower",
    "lower_residual": "lower",
    "upper_value": "lower",
    "LowerLevelWarning": "lower",
    "LinearSystemWarning": "implicit",
    "argmin": "implicit",
    "hypergradient": "implicit",
    "check_hypergradient": "diagnostics",
    "HypergradientCheck": "diagnostics",
    "Cause": "diagnostics",
    "certificate": "diagnostics",
    "Certificate": "diagnostics",
    "Ground": "diagnostics",
    "goldstein_measure": "diagnostics",
    "Goldstein": "diagnostics",
    "Theory": "diagnostics",
    "Constants": "diagnostics",
    "estimate_constants": "diagnostics",
    "DMLCBO": "solvers",
    "BiCGAFFA": "solvers",
    "DSBLO": "solvers",
    "LVHBA": "solvers",
    "MEHA": "solvers",
    "PenaltyMomentum": "solvers",
    "ProjectedSOBA": "solvers",
    "SIGD": "solvers",
    "AiPOD": "solvers",
    "Approx": "solvers",
    "EAiPOD": "solvers",
    "IGAL": "solvers",
    "Implicit": "solvers",
    "RMDPCD": "solvers",
    "VPBGD": "solvers",
    "AdaptivityWarning": "solvers",
    "minimize": "loop",
    "iterate": "loop",
    "compare": "comparison",
    "Comparison": "comparison",
    "Budget": "comparison",
    "Solution": "solution",
    "Status": "solution",
    "Record": "solution",
    "Checkpoint": "checkpoints",
    "CheckpointWarning": "checkpoints",
    "Observer": "observers",
    "CSVFile": "observers",
    "JSONLines": "observers",
    "TensorBoard": "observers",
    "ObserverWarning": "observers",
    "HyperCleaner": "applications.hyper_cleaning",
    "MetaLearner": "applications.few_shot",
    "SVMHead": "applications.few_shot",
    "meta_train": "applications.few_shot",
    "BilevelError": "errors",
    "InvalidInput": "errors",
    "InvalidType": "errors",
    "Incompatible": "errors",
    "EmptySet": "errors",
    "MissingExtra": "errors",
    "NotConverged": "errors",
    "NotFinite": "errors",
}
_MODULES = (
    "applications",
    "datasets",
    "diagnostics",
    "experiments",
    "sets",
    "solvers",
    "smoothing",
    "hypergradients",
    "errors",
    "storage",
    "testing",
)

__all__ = ["__version__", *_HOME, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    elif name in _MODULES:
        value = importlib.import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module 'bilevel' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from . import applications, datasets, diagnostics, errors, experiments, hypergradients, sets, smoothing, solvers
    from .applications.few_shot import MetaLearner, SVMHead, meta_train
    from .applications.hyper_cleaning import HyperCleaner
    from .checkpoints import Checkpoint, CheckpointWarning
    from .comparison import Budget, Comparison, compare
    from .diagnostics import (
        Cause,
        Certificate,
        Constants,
        Goldstein,
        Ground,
        HypergradientCheck,
        Theory,
        certificate,
        check_hypergradient,
        estimate_constants,
        goldstein_measure,
    )
    from .errors import BilevelError, EmptySet, Incompatible, InvalidInput, InvalidType, MissingExtra
    from .hypergradients import LinearSolve, Neumann, Unrolled
    from .implicit import LinearSystemWarning, argmin, hypergradient
    from .loop import iterate, minimize
    from .lower import LowerLevelWarning, lower_residual, solve_lower, upper_value
    from .observers import CSVFile, JSONLines, Observer, ObserverWarning, TensorBoard
    from .problem import Coordinates, Costs, Linearization, Problem
    from .randomness import Seeds
    from .smoothing import Exact, Perturbed, PrecisionWarning, TwoPoint
    from .solution import Record, Solution, Status
    from .solvers import (
        DMLCBO,
        DSBLO,
        IGAL,
        LVHBA,
        MEHA,
        RMDPCD,
        SIGD,
        VPBGD,
        AdaptivityWarning,
        AiPOD,
        Approx,
        BiCGAFFA,
        EAiPOD,
        Implicit,
        PenaltyMomentum,
        ProjectedSOBA,
    )
