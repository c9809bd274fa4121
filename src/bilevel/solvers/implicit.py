"""Implicit: implicit differentiation of the projected-gradient fixed point (JaxOpt; Blondel et al., NeurIPS 2022).

y*(x) is the fixed point of T(x, y) = P_Y(y - eta grad_y g(x, y)). With H the Jacobian of P_Y at y* - eta grad_y g,

    (I - d_y T)' q = grad_y f,    d_y T = H (I - eta G_yy)
    h = grad_x f + (d_x T)' q,    d_x T = -eta H G_yx
    x_{k+1} = P_X(x_k - step h)

At every step the lower level is solved to the same small tolerance, from the last y, and so is the linear system.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..hypergradients import Hypergradient, LinearSolve
from ._double_loop import Arrival, DoubleLoopState, ToleranceLoop
from .base import JACOBIAN, PROJECTION, Need


@dataclass(frozen=True, kw_only=True)
class Implicit(ToleranceLoop):
    """The lower level solved at every step, and its solution differentiated implicitly.

    Parameters
    ----------
    upper_step, step_rule
        As in `Approx`.
    tol
        Residual of the lower level and relative residual of the linear system (never below the dtype's own). An exact
        hypergradient can be trapped on a face (erratum 9); `Approx(inner="plain")` and DMLCBO are less exact.
    lower_step, inner, inner_steps, linear_steps, refresh
        As in `Approx`.

    Examples
    --------
    >>> Implicit(tol=1e-8).tol
    1e-08
    """

    needs: ClassVar[tuple[Need, ...]] = (PROJECTION, JACOBIAN)

    tol: float = 1e-6

    def tolerance_at(self, k: int) -> float:
        return self.tol

    def derivative(self, state: DoubleLoopState, arrival: Arrival) -> Hypergradient:
        """q by a Krylov method."""
        return implicit_derivative(state, arrival, self.linear_steps)


def implicit_derivative(state: DoubleLoopState, arrival: Arrival, linear_steps: int) -> Hypergradient:
    """The linear system solved as exactly as the lower level was, from the last adjoint."""
    method = LinearSolve(tol=min(arrival.tolerance, 0.1), max_iterations=linear_steps)
    return method.estimate(arrival.lin, state.streams(), curvature=arrival.curvature, start=state.adjoint)
