"""F(x) of the paper's hyper-cleaning problem at the exactly solved lower level, and the least it can be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

import bilevel
from bilevel.cleaning import CleaningProblem
from bilevel.cleaning.noise import Certain

from .contestants import cleaning
from .paper_data import Task

SOLVED = 1e-5
"""The residual up to which a lower level counts as solved."""


def lower_bound(task: Task) -> float:
    """The minimum of the trusted rows' loss over the ball: a convex problem."""
    X, y = task.trusted_X, task.trusted_y
    problem = CleaningProblem(X, y, X, y, noise=Certain(), loss="logistic", radius=1.0, ridge=0.0, intercept=False)
    solved = bilevel.solve_lower(problem, problem.start(), tol=1e-7)
    return float(problem.linearize(problem.start(), solved.y).upper_value)


class Value:
    """F(x), with the lower level solved."""

    def __init__(self, task: Task) -> None:
        self.problem = cleaning(task)

    def __call__(self, x: Any) -> float:
        """F(x), or infinity where x is not finite."""
        x = torch.as_tensor(np.asarray(x))
        if not bool(torch.isfinite(x).all()):
            return math.inf
        found = bilevel.solve_lower(self.problem, x, tol=1e-7)
        if found.residual > SOLVED:
            raise RuntimeError(f"the lower level is solved to {found.residual:.1e} only")
        return float(self.problem.linearize(x, found.y).upper_value)
