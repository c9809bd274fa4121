"""Few-shot meta-learning: a network whose last layer is a support vector machine, solved for every task.

Names are loaded when first used, so that `bilevel fewshot --help` does not load torch.
"""

from .._lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
