"""Few-shot meta-learning: a network whose last layer is a support vector machine, solved anew for every task."""

from .head import SVMHead

__all__ = ["SVMHead"]
