"""Implicit: implicit differentiation of the projected-gradient fixed point (JaxOpt; Blondel et al., NeurIPS 2022).

y*(x) is the fixed point of T(x, y) = P_Y(y - eta grad_y g(x, y)). With H the Jacobian of P_Y at y* - eta grad_y g,

    (I - d_y T)' q = grad_y f,    d_y T = H (I - eta G_yy)
    h = grad_x f + (d_x T)' q,    d_x T = -eta H G_yx
    x_{k+1} = P_X(x_k - step h)

At every step the lower level is solved to the same small tolerance, from the last y, and so is the linear system.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from .. import tolerances
from ..problem import Problem
from ..randomness import Seeds
from ..spaces import Vector, leaves
from .base import JACOBIAN, PROJECTION, Need, check_choice, check_count, check_positive
from .implicit_loop import ImplicitState, init_loop, next_x, step_loop
from .inner import check_step_rule
from .settings import check_positive_or_auto


@dataclass(frozen=True, kw_only=True)
class Implicit:
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

    upper_step: float = 1.0
    step_rule: Literal["adaptive", "fixed"] = "adaptive"
    tol: float = 1e-6
    lower_step: float | Literal["auto"] = "auto"
    inner: Literal["accelerated", "plain"] = "accelerated"
    inner_steps: int = 10_000
    linear_steps: int = 1000
    refresh: int = 100

    def __post_init__(self) -> None:
        check_step_rule(self.step_rule, self.upper_step)
        check_positive_or_auto(lower_step=self.lower_step)
        check_positive("tol", self.tol)
        check_choice("inner", self.inner, ("accelerated", "plain"))
        for name in ("inner_steps", "linear_steps", "refresh"):
            check_count(name, getattr(self, name))

    def tolerance_at(self, k: int, y: Vector) -> float:
        """The same at every step."""
        return max(self.tol, tolerances.lower_residual(leaves(y)[0].dtype))

    def init(self, problem: Problem, x: Vector, y: Vector, seeds: Seeds) -> ImplicitState:
        """y*(x_0) and its hypergradient."""
        return init_loop(self, problem, x, y, seeds)

    def next_x(self, problem: Problem, state: ImplicitState) -> Vector:
        """Where the next step of x leads."""
        return next_x(problem, state)

    def step(self, problem: Problem, state: ImplicitState) -> ImplicitState:
        """One step of x, and y* with its derivative at the new point."""
        return step_loop(self, problem, state)
