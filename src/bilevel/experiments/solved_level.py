"""The lower level of the paper's hyper-cleaning solved exactly: on the few columns that matter, checked on all of them.

A column j outside the support S of y enters only if |grad_j g| exceeds the largest |grad g| on S. So y*(x) is solved on
a growing set of columns until none would enter: on MNIST on about 10 of 784.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..applications.hyper_cleaning import CleaningProblem
from ..lower import lower_residual, solve_lower, uncounted
from .cleaning_data import Task, cleaning_problem
from .configuration import CleaningData

TOLERANCE = 1e-7
"""Residual of the lower level on its columns."""
ROUNDS, ENTERING = 50, 30
"""How often columns may enter, and how many at once."""


class SolvedLevel:
    """x -> y*(x), shape (1, d), and its residual on all columns; each call starts from the columns of the last."""

    def __init__(self, data: CleaningData, task: Task, problem: CleaningProblem) -> None:
        self._data, self._task, self._problem = data, task, uncounted(problem)
        self._columns = np.array([], int)

    def __call__(self, x: Tensor) -> tuple[Tensor, float]:
        columns, y = self._columns, torch.zeros_like(self._problem.y0["weight"])  # type: ignore[index, call-overload]
        for _ in range(ROUNDS):
            y = torch.zeros_like(y)
            if len(columns):
                y[0, columns] = self._on(columns, x)
            self._columns = np.flatnonzero(y[0].numpy())
            gradient = np.abs(self._problem.lower_grad(x, {"weight": y})["weight"][0].numpy())  # type: ignore[call-overload]
            level = gradient[self._columns].max(initial=0.0) + TOLERANCE
            entering = [j for j in np.argsort(-gradient)[:ENTERING] if gradient[j] > level and j not in columns]
            if not entering:
                break
            columns = np.union1d(self._columns, entering)
        return y, lower_residual(self._problem, x, {"weight": y})

    def _on(self, columns: np.ndarray, x: Tensor) -> Tensor:
        problem = cleaning_problem(self._data, self._task, columns)
        return solve_lower(problem, x, tol=TOLERANCE).y["weight"][0]  # type: ignore[call-overload]
