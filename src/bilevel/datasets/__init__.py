"""Public data sets: a catalogue with checksums, and readers for the official files.

data = load("omniglot")                     # from the data folder; `fetch("omniglot")` puts its files there
train = omniglot_split(data, "train")       # images (1200, 20, 1, 28, 28)
"""

from .._lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
