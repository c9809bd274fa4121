"""Few-shot meta-learning: a network whose last layer is a support vector machine, solved for every task.

Names are loaded when first used: `bilevel fewshot --help` loads no torch.
"""

import importlib
from typing import Any

_HOME = {
    "MetaLearner": "learner",
    "Training": "training",
    "TrainingRecord": "training",
    "SVMHead": "head",
    "FewShotProblem": "problem",
    "evaluate": "evaluation",
    "Accuracy": "evaluation",
    "Episodes": "episodes",
    "Tasks": "episodes",
    "generated_images": "episodes",
    "ConvNet": "networks",
    "ResNet12": "networks",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
