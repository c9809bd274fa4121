"""Contract suites and problems with known answers, shipped for the parts that users write themselves.

`SetTestCase` needs pytest, cvxpy and Clarabel; `known_problems` needs nothing more than the library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .known_problems import KnownProblem

if TYPE_CHECKING:
    from .sets import SetTestCase

__all__ = ["KnownProblem", "SetTestCase"]


def __getattr__(name: str) -> Any:
    if name == "SetTestCase":  # with pytest
        from .sets import SetTestCase

        return SetTestCase
    raise AttributeError(f"module 'bilevel.testing' has no attribute {name!r}")
