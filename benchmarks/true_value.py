"""F(x) of the paper's hyper-cleaning problem at the exactly solved lower level, and the least it can be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

import bilevel
from bilevel.cleaning import CleaningProblem
from bilevel.cleaning.noise import Certain
from bilevel.experiments.configuration import CleaningData
from bilevel.experiments.run import SolvedLevel

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
    """F(x): the lower level on a growing set of columns, until no column outside of it would enter."""

    def __init__(self, task: Task) -> None:
        self.problem = cleaning(task)
        data = CleaningData(rows=len(task.given), trusted=len(task.trusted_y), scaling="unit")
        self._solve = SolvedLevel(data, task, self.problem)

    def __call__(self, x: Any) -> float:
        """F(x), or infinity where x is not finite."""
        x = torch.as_tensor(np.asarray(x))
        if not bool(torch.isfinite(x).all()):
            return math.inf
        y, residual = self._solve(x)
        if residual > SOLVED:
            raise RuntimeError(f"the lower level is solved to {residual:.1e} only")
        return float(self.problem.linearize(x, {"weight": y}).upper_value)
