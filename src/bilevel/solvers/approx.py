"""Approx: HOAG, hyperparameter optimisation with approximate gradient (Pedregosa, ICML 2016), with a set.

At step k, with tolerances eps_k that decrease and are summable,

    y_k:  |y_k - P_Y(y_k - grad_y g(x_k, y_k))| <= eps_k                    from y_{k-1}, see `inner`
    w_k:  w = eta H [I - (I - eta G_yy) H]^{-1} grad_y f  to eps_k          Krylov method from w_{k-1}
    x_{k+1} = P_X(x_k - step_k (grad_x f - G_xy w_k))

Differs from the paper's algorithm 1 in: 1. the projection and its Jacobian H, for a lower level with a set (on the
face of a polyhedral set the system is the paper's, restricted to the face); 2. a trial step that increases F is
rejected at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .._checks import setting
from ..hypergradients import Hypergradient
from ._double_loop import Arrival, DoubleLoopState, ToleranceLoop
from .base import JACOBIAN, PROJECTION, Need
from .implicit import implicit_derivative


@dataclass(frozen=True, kw_only=True)
class Approx(ToleranceLoop):
    """Inexact lower levels with a decreasing tolerance, one linear system per step.

    Parameters
    ----------
    upper_step
        The (first) step of x.
    step_rule
        "adaptive": the step grows while f(x, y(x)) decreases, and shrinks when a trial is rejected; "fixed".
    tolerance, decay
        eps_k = tolerance * decay^k, down to the default tolerance of the dtype.
    lower_step
        The first length of a lower-level step; "auto" for 1/L. A longer step is shortened when two gradients show that
        it overshoots.
    inner
        "accelerated": accelerated projected gradients, followed by Newton steps if 60 of them do not reach the
        tolerance (not with mini-batches). "plain": projected gradients, which are slower, but whose inexact solutions
        let entries enter the support that stay out of it when the lower level is solved exactly (erratum 9).
    inner_steps, linear_steps
        The maximal number of lower-level steps and of Hessian products per step.
    refresh
        The curvature behind the inner step size is estimated again after this number of steps.

    Examples
    --------
    >>> round(Approx(tolerance=0.1).tolerance_at(2), 6)
    0.081
    """

    needs: ClassVar[tuple[Need, ...]] = (PROJECTION, JACOBIAN)

    tolerance: float = 1e-2
    decay: float = setting(0.9, high=1.0, remedy=", so that the tolerances are summable")
    inner_steps: int = 1000
    linear_steps: int = 200

    def tolerance_at(self, k: int) -> float:
        return self.tolerance * self.decay**k

    def derivative(self, state: DoubleLoopState, arrival: Arrival) -> Hypergradient:
        """Solve for w_k to eps_k; the gradient of g is kept in case this point has to be solved more exactly."""
        state.slope = arrival.lin.lower_grad_y
        return implicit_derivative(state, arrival, self.linear_steps)
