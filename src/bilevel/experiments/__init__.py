"""The paper's tables and figures: configurations, the sweep, the store of results and the report.

Names are loaded when first used: `bilevel reproduce --help` loads neither torch nor pydantic.
"""

import importlib
from typing import Any

_HOME = {
    "RunRecord": "run_folder",
    "ResultsStore": "store",
    "StoreLockedError": "store",
    "Configuration": "configuration",
    "load_configuration": "configuration",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
