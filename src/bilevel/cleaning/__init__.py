"""Data hyper-cleaning: learn which training labels to believe from a few rows that are trusted.

Names are loaded when first used: `bilevel clean --help` loads no torch, and the estimator needs no pandas.
"""

from .._lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__, extra="apps")
