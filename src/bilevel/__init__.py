"""Bilevel optimisation with a convex set in the lower level.

    min_x f(x, y*(x))    with    y*(x) = argmin over y in Y of g(x, y)

Names are loaded when first used, so that `import bilevel` does not load torch; `__init__.pyi` has their types.
"""

import importlib
from typing import Any

from ._version import __version__

_HOME = {
    "Problem": "problem",
    "Linearization": "linearization",
    "Seeds": "random",
    "minimize": "run.minimize",
    "iterate": "run.minimize",
    "Solution": "run",
    "Status": "run",
    "Record": "run",
    "Checkpoint": "run",
    "solve_lower": "lower",
    "lower_residual": "lower",
    "upper_value": "lower",
    "hypergradient": "layers",
    "argmin": "layers",
    "compare": "run.comparison",
    "DMLCBO": "solvers",
    "Implicit": "solvers",
    "Approx": "solvers",
    "LinearSolve": "hypergradients",
    "Neumann": "hypergradients",
    "Unrolled": "hypergradients",
    "HyperCleaner": "cleaning",
    "MetaLearner": "few_shot",
    "SVMHead": "few_shot",
    "check_hypergradient": "diagnostics",
    "certificate": "diagnostics",
    "BilevelError": "errors",
    "InvalidInputError": "errors",
    "InvalidTypeError": "errors",
    "IncompatibleError": "errors",
    "EmptySetError": "errors",
    "NonFiniteError": "errors",
    "NotConvergedError": "errors",
    "MissingExtraError": "errors",
}
_MODULES = (
    "sets",
    "solvers",
    "hypergradients",
    "run",
    "diagnostics",
    "cleaning",
    "few_shot",
    "distributed",
    "experiments",
    "datasets",
    "testing",
    "errors",
)

__all__ = ["__version__", *_HOME, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    elif name in _MODULES:
        value = importlib.import_module(f".{name}", __name__)
    elif name[:1].isupper() and hasattr(importlib.import_module(".solvers", __name__), name):
        value = getattr(importlib.import_module(".solvers", __name__), name)  # any solver by its name
    else:
        raise AttributeError(f"module 'bilevel' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
