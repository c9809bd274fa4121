"""Few-shot meta-learning: a network whose last layer is a support vector machine, solved anew for every task."""

from .episodes import Episodes, Tasks, generated_images
from .evaluation import Accuracy, evaluate
from .head import SVMHead
from .learner import MetaLearner, Training, meta_train
from .networks import ConvNet, ResNet12
from .problem import FewShotProblem
from .training_state import TrainingRecord

__all__ = [
    "MetaLearner",
    "meta_train",
    "SVMHead",
    "FewShotProblem",
    "evaluate",
    "Accuracy",
    "Training",
    "TrainingRecord",
    "Episodes",
    "Tasks",
    "generated_images",
    "ConvNet",
    "ResNet12",
]
