"""Data hyper-cleaning: find wrong training labels with the help of a few trusted rows.

Names are loaded when first used: `bilevel clean --help` loads no torch, and the estimator needs no pandas.
"""

from .._lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__, extra="apps")
