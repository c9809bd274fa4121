"""The paper's tables and figures: configurations, the sweep, the store of results and the report.

Names are loaded when first used, so that reading a record loads neither torch nor pydantic.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "RunRecord": "record",
    "ResultsStore": "store",
    "StoreLocked": "lock",
    "Configuration": "configuration",
    "load_configuration": "configuration",
}

__all__ = ["RunRecord", "ResultsStore", "StoreLocked", "Configuration", "load_configuration"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'bilevel.experiments' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)


if TYPE_CHECKING:
    from .configuration import Configuration, load_configuration
    from .lock import StoreLocked
    from .record import RunRecord
    from .store import ResultsStore
