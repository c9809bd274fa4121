"""The lower level by semismooth Newton steps: F, its error and its gradient from one linear system."""

from .base import CURVATURE_LIMIT as CURVATURE_LIMIT
from .base import Evaluation as Evaluation
from .base import LowerLevel as LowerLevel
from .base import flat as flat
from .cached_hessian import KnownHessian as KnownHessian
from .dense import DenseLevel as DenseLevel
from .dense_or_operator import DENSE_LIMIT as DENSE_LIMIT
from .dense_or_operator import lower_level as lower_level
from .descent_test import find_descent as find_descent
from .operator import OperatorLevel as OperatorLevel
from .smoothed_set import Smoothing as Smoothing
