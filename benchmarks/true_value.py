"""F(x) of the paper's hyper-cleaning problem at the exactly solved lower level, and the least it can be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

import bilevel
from bilevel.applications.hyper_cleaning import CleaningProblem
from bilevel.applications.hyper_cleaning.noise import Certain

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
        self.task, self.problem = task, cleaning(task)
        self.columns = np.array([], int)

    def __call__(self, x: Any) -> float:
        """F(x), or infinity where x is not finite."""
        x = torch.as_tensor(np.asarray(x))
        if not bool(torch.isfinite(x).all()):
            return math.inf
        y = {"weight": self._solved(x)}
        residual = bilevel.lower_residual(self.problem, x, y)
        if residual > SOLVED:
            raise RuntimeError(f"the lower level is solved to {residual:.1e} only")
        return float(self.problem.linearize(x, y).upper_value)

    def _solved(self, x: torch.Tensor) -> torch.Tensor:
        columns = self.columns  # of the last support
        for _ in range(50):
            y = torch.zeros_like(self.problem.y0["weight"])  # type: ignore[index,call-overload]
            if len(columns):
                y[0, columns] = bilevel.solve_lower(cleaning(self.task, columns), x, tol=1e-7).y["weight"][0]  # type: ignore[call-overload]
            self.columns = np.flatnonzero(y[0].numpy())
            gradient = self.problem.lower_grad(x, {"weight": y})["weight"][0].abs().numpy()  # type: ignore[call-overload]
            level = gradient[self.columns].max(initial=0.0) + 1e-7
            entering = [j for j in np.argsort(-gradient)[:30] if gradient[j] > level and j not in columns]
            if not entering:
                break
            columns = np.union1d(self.columns, entering)
        return y
