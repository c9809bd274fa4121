"""An independent projection: cvxpy with Clarabel at a tolerance of 1e-12, with its own KKT residual."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import MissingExtra

RESIDUAL = 1e-9
"""An oracle answer with a larger KKT residual than this is not used."""

# The objective is strongly convex: a gap g leaves an error of sqrt(2 g), attained at points on the boundary of
# the set. So gaps below 1e-12 are asked for, in several attempts, since the last digits cost dual feasibility:
# (gap, regularisation of the linear systems, longest step, with refinement of the linear systems to 1e-15).
_ATTEMPTS = (
    (1e-14, 1e-10, 0.99, True),
    (1e-14, 1e-8, 0.9, False),
    (1e-14, 1e-8, 0.99, True),
    (1e-15, 1e-12, 0.99, False),
    (1e-14, 1e-10, 0.9, False),
    (1e-15, 1e-8, 0.99, False),
    (1e-14, 1e-8, 0.8, True),
    (1e-16, 1e-8, 0.99, False),
    (1e-13, 1e-8, 0.95, False),
    (1e-15, 1e-10, 0.9, True),
)
_REFINE = {
    "iterative_refinement_reltol": 1e-15,
    "iterative_refinement_abstol": 1e-15,
    "iterative_refinement_max_iter": 50,
}
_ACCEPT = {"accept_unknown": True}  # a stop short of 1e-16 is no failure: the residual is the judge


class Oracle:
    """argmin |y - z|^2/2 over the constraints, compiled once for many z.

    Parameters
    ----------
    constraints
        From a cvxpy expression of the given shape to a list of cvxpy constraints.
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
        self._problem: Any = cvxpy.Problem(objective, constraints(self._variable))

    def answers(self, z: Tensor) -> Iterator[tuple[Tensor, float]]:
        """Projections of one point, each with the error that its gap allows; those of a large residual are left out."""
        self._point.value = z.detach().double().numpy()
        data, chain, inverse = self._problem.get_problem_data(self._solver, solver_opts=_ACCEPT)
        for gap, regularisation, longest, refine in _ATTEMPTS:
            options = {
                "tol_gap_abs": gap,
                "tol_gap_rel": gap,
                "tol_feas": 1e-12,
                "max_iter": 100,
                "max_step_fraction": longest,
                "static_regularization_constant": regularisation,
                **(_REFINE if refine else {}),
                **_ACCEPT,
            }
            raw = chain.solve_via_data(self._problem, data, warm_start=False, verbose=False, solver_opts=options)
            solution = chain.invert(raw, inverse)
            gap = abs(float(raw.obj_val) - float(raw.obj_val_dual))
            if self._variable.id in solution.primal_vars and max(raw.r_prim, raw.r_dual, gap) <= RESIDUAL:
                value = np.array(solution.primal_vars[self._variable.id], dtype=np.float64)
                yield torch.from_numpy(value.reshape(z.shape)), math.sqrt(2 * gap)
