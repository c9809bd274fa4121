"""An independent projection: cvxpy with Clarabel at a tolerance of 1e-12, with its own KKT residual."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import MissingExtra

RESIDUAL = 1e-9
"""An oracle answer with a larger KKT residual than this is not used."""

# The objective is strongly convex: a gap g leaves an error of sqrt(2 g), attained at points on the boundary of
# the set. So the gap is driven to 1e-16; the other residuals to 1e-12.
_TOLERANCES = {"tol_gap_abs": 1e-16, "tol_gap_rel": 1e-16, "tol_feas": 1e-12, "max_iter": 100}
_ACCEPT = {"accept_unknown": True}  # a stop short of 1e-16 is no failure: the residual is the judge
_GAP_WEIGHT = 1e5
"""A gap counts this much in the residual, so that 1e-9 stands for a gap of 1e-14 and an error of 1e-7."""


class Oracle:
    """argmin |y|^2/2 - z.y over the constraints, compiled once for many z.

    Parameters
    ----------
    constraints
        From a cvxpy variable of the given shape to a list of cvxpy constraints.
    shape
        The shape of one point.
    """

    def __init__(self, constraints: Callable[[Any], list[Any]], shape: tuple[int, ...]) -> None:
        try:
            import cvxpy
        except ImportError:
            raise MissingExtra("the oracle of SetTestCase", "dev") from None
        self._solver = cvxpy.CLARABEL
        self._variable = cvxpy.Variable(shape)
        self._point = cvxpy.Parameter(shape)
        gain = cvxpy.sum(cvxpy.multiply(self._point, self._variable))
        objective = cvxpy.Minimize(cvxpy.sum_squares(self._variable) / 2 - gain)
        self._problem = cvxpy.Problem(objective, constraints(self._variable))

    def project(self, z: Tensor) -> tuple[Tensor, float]:
        """The projection of one point, and its KKT residual (inf: no answer)."""
        self._point.value = z.detach().double().numpy()
        data, chain, inverse = self._problem.get_problem_data(self._solver, solver_opts=_ACCEPT)
        options = {**_TOLERANCES, **_ACCEPT}
        answer = chain.solve_via_data(self._problem, data, warm_start=False, verbose=False, solver_opts=options)
        solution = chain.invert(answer, inverse)
        if self._variable.id not in solution.primal_vars:
            return torch.full_like(z, math.nan), math.inf
        gap = abs(answer.obj_val - answer.obj_val_dual) / max(1.0, float(z.square().sum()))
        residual = max(float(answer.r_prim), float(answer.r_dual), _GAP_WEIGHT * float(gap))
        value = np.array(solution.primal_vars[self._variable.id], dtype=np.float64)
        return torch.from_numpy(value.reshape(z.shape)), residual
