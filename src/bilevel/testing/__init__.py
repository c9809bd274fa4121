"""Contract suites, shipped for the sets that users write themselves (they need pytest, cvxpy and Clarabel)."""

from .sets import SetTestCase

__all__ = ["SetTestCase"]
