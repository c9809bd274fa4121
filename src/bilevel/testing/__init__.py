"""Contract suites and problems with known answers, shipped for the parts that users write themselves.

`SetTestCase` needs pytest, cvxpy and Clarabel; `KnownProblem` needs nothing more than the library.
"""

from .._lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
