"""An independent projection: cvxpy with Clarabel at a tolerance of 1e-12, with its own KKT residual."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import MissingExtraError

RESIDUAL = 1e-9
"""An oracle answer with a larger KKT residual than this is not used."""

# The objective is strongly convex: a gap g leaves an error of sqrt(2 g), attained at points on the boundary of the set,
# and so do residuals of feasibility, behind which a gap may hide. So gaps below 1e-12 are asked for, in several
# attempts, since the last digits cost dual feasibility:
# (gap, regularisation of the linear systems, longest step, with refinement of the linear systems to 1e-15).
_ATTEMPTS = (
    (1e-14, 1e-10, 0.99, True),
    (1e-14, 1e-8, 0.5, False),  # short steps keep primal feasibility where many eigenvalues vanish at once
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
            raise MissingExtraError("the oracle of SetTestCase", "dev") from None
        self._solver = cvxpy.CLARABEL
        self._variable = y = cvxpy.Variable(shape)
        self._point = z = cvxpy.Parameter(shape)
        size = cvxpy.sum_squares(y) / 2
        # min |y|^2/2 - z.y over y, or min |d|^2/2 over d = y - z: the same in two ways, for the solver's sake.
        plain = cvxpy.Problem(cvxpy.Minimize(size - cvxpy.sum(cvxpy.multiply(z, y))), constraints(y))
        shifted = cvxpy.Problem(cvxpy.Minimize(size), constraints(y + z))
        self._attempts: Any = ((plain, False, _ATTEMPTS), (shifted, True, _ATTEMPTS[:7]))

    def answers(self, z: Tensor) -> Iterator[tuple[Tensor, float]]:
        """Projections of one point, each with the error that its residuals allow; large ones are left out."""
        self._point.value = z.detach().double().numpy()
        for problem, shifted, settings in self._attempts:
            data, chain, inverse = problem.get_problem_data(self._solver, solver_opts=_ACCEPT)
            for gap, regularisation, longest, refine in settings:
                options = {
                    "tol_gap_abs": gap,
                    "tol_gap_rel": gap,
                    "tol_feas": 1e-12,
                    "max_iter": 200,
                    "max_step_fraction": longest,
                    "static_regularization_constant": regularisation,
                    **(_REFINE if refine else {}),
                    **_ACCEPT,
                }
                try:
                    raw = chain.solve_via_data(problem, data, False, False, solver_opts=options)
                except BaseException as panic:  # Clarabel's eigenvalue routine may panic, which is no Exception
                    if type(panic).__name__ != "PanicException":
                        raise
                    continue
                solution = chain.invert(raw, inverse)
                gap = abs(float(raw.obj_val) - float(raw.obj_val_dual))
                if self._variable.id in solution.primal_vars and max(raw.r_prim, raw.r_dual, gap) <= RESIDUAL:
                    value = np.array(solution.primal_vars[self._variable.id], dtype=np.float64)
                    answer = torch.from_numpy(value.reshape(z.shape))
                    # What the residuals of feasibility hide from the gap, and its own rounding.
                    hidden = raw.r_prim * np.linalg.norm(raw.z) + raw.r_dual * np.linalg.norm(raw.x)
                    hidden += 16 * np.finfo(np.float64).eps * abs(float(raw.obj_val))
                    yield z + answer if shifted else answer, math.sqrt(2 * (gap + hidden))
