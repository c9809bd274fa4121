"""Bilevel optimisation with a convex set in the lower level.

    min_x f(x, y*(x))    with    y*(x) = argmin over y in Y of g(x, y)

Names are loaded when first used, so that `import bilevel` does not load torch; `__init__.pyi` lists them.
"""

from ._lazy import lazy_names
from ._version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__, fallback="solvers")  # any solver by its name
