"""Few-shot meta-learning: features for tasks with a few examples per class."""

from .episodes import Episodes, Tasks, generated_images
from .networks import ConvNet, ResNet12

__all__ = ["ConvNet", "Episodes", "ResNet12", "Tasks", "generated_images"]
