"""Approx: HOAG, hyperparameter optimisation with approximate gradient (Pedregosa, ICML 2016), with a set.

At step k, with tolerances eps_k that decrease and are summable,

    y_k:  |y_k - P_Y(y_k - grad_y g(x_k, y_k))| <= eps_k                    projected gradient from y_{k-1}
    w_k:  w = eta H [I - (I - eta G_yy) H]^{-1} grad_y f  to eps_k          Krylov method from w_{k-1}
    x_{k+1} = P_X(x_k - step_k (grad_x f - G_xy w_k))

Differs from the paper's algorithm 1 in: 1. the projection and its Jacobian H, for a lower level with a set (on the
face of a polyhedral set the system is the paper's, restricted to the face); 2. a trial step that raises F is taken
back at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from .. import tolerances
from ..errors import InvalidInput
from ..problem import Problem
from ..randomness import Seeds
from ..spaces import Vector, leaves
from .base import JACOBIAN, PROJECTION, Need, check_choice, check_count, check_positive
from .implicit_loop import ImplicitState, init_loop, next_x, step_loop
from .inner import check_step_rule
from .settings import check_positive_or_auto


@dataclass(frozen=True, kw_only=True)
class Approx:
    """Inexact lower levels with a decreasing tolerance, one linear system per step.

    Parameters
    ----------
    upper_step
        The (first) step of x.
    step_rule
        "adaptive": the step grows while f(x, y(x)) falls, and shrinks when a trial is taken back; "fixed".
    tolerance, decay
        eps_k = tolerance * decay^k, down to the default tolerance of the dtype.
    lower_step
        The first length of a lower-level step; "auto" for 1/L. A longer one is cut when two gradients show that it
        overshoots.
    inner
        "accelerated", or "plain" projected gradient: slower, but an inexact plain solve lets entries enter the
        support from which an exactly solved lower level keeps them out (erratum 9).
    inner_steps, linear_steps
        At most so many lower-level steps and Hessian products per step.
    refresh
        The curvature behind the inner step size is estimated again every so many steps.

    Examples
    --------
    >>> import torch
    >>> round(Approx(tolerance=0.1).tolerance_at(2, torch.zeros(1)), 6)
    0.081
    """

    needs: ClassVar[tuple[Need, ...]] = (PROJECTION, JACOBIAN)

    upper_step: float = 1.0
    step_rule: Literal["adaptive", "fixed"] = "adaptive"
    tolerance: float = 1e-2
    decay: float = 0.9
    lower_step: float | Literal["auto"] = "auto"
    inner: Literal["accelerated", "plain"] = "accelerated"
    inner_steps: int = 1000
    linear_steps: int = 200
    refresh: int = 100

    def __post_init__(self) -> None:
        check_step_rule(self.step_rule, self.upper_step)
        check_positive_or_auto(lower_step=self.lower_step)
        check_positive("tolerance", self.tolerance)
        if not (isinstance(self.decay, float) and 0 < self.decay < 1):
            raise InvalidInput(
                f"decay must lie between 0 and 1 so that the tolerances are summable, got {self.decay!r}"
            )
        check_choice("inner", self.inner, ("accelerated", "plain"))
        for name in ("inner_steps", "linear_steps", "refresh"):
            check_count(name, getattr(self, name))

    def tolerance_at(self, k: int, y: Vector) -> float:
        """eps_k."""
        return max(self.tolerance * self.decay**k, tolerances.lower_residual(leaves(y)[0].dtype))

    def init(self, problem: Problem, x: Vector, y: Vector, seeds: Seeds) -> ImplicitState:
        """y_0 and the first hypergradient."""
        return init_loop(self, problem, x, y, seeds)

    def next_x(self, problem: Problem, state: ImplicitState) -> Vector:
        """Where the next step of x leads."""
        return next_x(problem, state)

    def step(self, problem: Problem, state: ImplicitState) -> ImplicitState:
        """One step of x, the lower level and the linear system at the new point."""
        return step_loop(self, problem, state)
