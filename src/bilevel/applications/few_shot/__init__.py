"""Few-shot meta-learning: a network whose last layer is a support vector machine, solved anew for every task."""

from .head import SVMHead
from .problem import FewShotProblem, few_shot_problem

__all__ = ["SVMHead", "FewShotProblem", "few_shot_problem"]
