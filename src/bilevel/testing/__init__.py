"""Test suites and problems with known solutions, for sets and solvers that users write themselves.

`SetTestCase` needs pytest, cvxpy and Clarabel; `KnownProblem` needs only the library.
"""

from .._lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
