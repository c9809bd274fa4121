"""Few-shot meta-learning: a network whose last layer is a support vector machine, solved anew for every task."""

from .episodes import Episodes, Tasks, generated_images
from .head import SVMHead
from .networks import ConvNet, ResNet12
from .problem import FewShotProblem, few_shot_problem

__all__ = [
    "SVMHead",
    "FewShotProblem",
    "few_shot_problem",
    "Episodes",
    "Tasks",
    "generated_images",
    "ConvNet",
    "ResNet12",
]
