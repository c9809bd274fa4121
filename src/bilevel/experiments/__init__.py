"""The paper's tables and figures: configurations, the sweep, the store of results and the report.

Names are loaded when first used, so that `bilevel reproduce --help` loads neither torch nor pydantic.
"""

from .._lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
