"""For outer loops of your own: the hypergradient at a point, and argmin as a differentiable layer."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from ._checks import (
    check_calls,
    check_feasible,
    check_finite,
    check_lower_start,
    check_method,
    check_set_only,
    check_vector,
)
from ._derivative_check import warn_of_flaws
from .errors import IncompatibleError, InvalidInputError, LinearSystemWarning
from .hypergradients import Estimator, Hypergradient, LinearSolve
from .linearization import Linearization
from .lower import solve_lower, uncounted, warn_if_unsolved
from .problem import Problem
from .random import RandomStreams, Seeds
from .spaces import Vector, leaves, like, tree_map


def hypergradient(
    problem: Problem,
    x: Vector,
    y: Vector | None = None,
    *,
    method: Estimator | None = None,
    seed: int | Seeds = 0,
    details: bool = False,
) -> Any:
    """The gradient of F(x) = f(x, y*(x)), or its estimate at a given y.

    h = grad_x f - eta G_xy H [I - (I - eta G_yy) H]^{-1} grad_y f with H in the generalised Jacobian of P_Y at
    z = y - eta grad_y g.

    Parameters
    ----------
    problem
        f, g and the set.
    x
        The upper variable, a tensor or a dictionary of tensors of any shape.
    y
        The lower variable in Y at which h is estimated: usually y*(x) or an iterate near it, since h is the gradient of
        F only at y*(x). If None, the lower level is solved first, from `problem.y0`.
    method
        `LinearSolve()` (default), `Neumann(...)` or `Unrolled(...)`.
    seed
        The seed of random methods.
    details
        Return the `Hypergradient` with its adjoint and statistics instead of only the gradient.

    Returns
    -------
    Tensor or dictionary of tensors
        The gradient h, of the shape of x; with `details` a `Hypergradient`.

    References
    ----------
    Shi, Chang & Gu (2024), the paper of DMLCBO, section 3.1. Erratum 11 states where h is the gradient of F.

    Examples
    --------
    >>> import bilevel, torch
    >>> problem = bilevel.Problem(
    ...     upper=lambda x, y: y.square().sum(),
    ...     lower=lambda x, y: (y - x).square().sum(),
    ...     constraint=bilevel.sets.NonNegative(),
    ...     y0=torch.zeros(2),
    ... )
    >>> hypergradient(problem, torch.tensor([1.0, -1.0]))
    tensor([2., 0.])
    """
    check_set_only("hypergradient and argmin", problem)
    problem = uncounted(problem)
    check_method(method)
    x = tree_map(Tensor.detach, check_vector("x", x))
    if y is None:
        solution = solve_lower(problem, x)
        warn_if_unsolved(solution)
        y = solution.y
    else:
        constraint = problem.constraint_at(x)
        y = check_lower_start(problem, constraint, y)
        check_feasible("y", constraint, y)
    lin = check_calls(problem, x, y)
    check_finite(lin.upper_value)
    warn_of_flaws(problem, x, y)
    warn_of_flaws(problem, x, y, beside=True)
    result: Hypergradient = (method or LinearSolve()).estimate(lin, RandomStreams(Seeds.from_seed(seed)))
    _warn_if_loose(result)
    return result if details else result.gradient


def _warn_if_loose(result: Hypergradient) -> None:
    residual = result.stats.get("residual", 0.0)
    if residual > 1e-3 or result.stats.get("indefinite"):
        kind = "g has no or negative curvature on the face" if result.stats.get("indefinite") else "ill-conditioned?"
        warnings.warn(
            f"the linear system of the hypergradient was only solved to relative residual {residual:.1e} ({kind}): "
            "give g more curvature in y, for example + 1e-3 * y.square().sum(), or raise max_iterations",
            LinearSystemWarning,
            stacklevel=3,
        )


def argmin(
    problem: Problem,
    x: Vector,
    y0: Vector | None = None,
    *,
    tol: float | None = None,
    max_steps: int = 20_000,
    method: LinearSolve | None = None,
) -> Any:
    """y*(x) = argmin over y in Y of g(x, y), differentiable in x: loss(argmin(problem, x)).backward() works.

    The backward pass is one implicit linear solve at the solution, for first derivatives with respect to x only (not to
    tensors that `lower` captures). Only `lower` and `constraint` of the problem are used.

    Parameters
    ----------
    problem
        f, g and the set.
    x
        The upper variable, a tensor or a dictionary of tensors of any shape.
    y0, tol, max_steps
        As in `solve_lower`.
    method
        The linear solve of the backward pass.

    Returns
    -------
    Tensor or dictionary of tensors
        The solution y*(x), of the shape of y0, with a graph to x.

    References
    ----------
    Shi, Chang & Gu (2024), the paper of DMLCBO, section 3.1, as a layer: Blondel et al. (2022).

    Examples
    --------
    >>> import bilevel, torch
    >>> problem = bilevel.Problem(
    ...     upper=lambda x, y: y.sum(),
    ...     lower=lambda x, y: (y - x).square().sum(),
    ...     constraint=bilevel.sets.L1Ball(1.0),
    ...     y0=torch.zeros(2),
    ... )
    >>> x = torch.tensor([2.0, 0.5], requires_grad=True)
    >>> argmin(problem, x).square().sum().backward()
    >>> x.grad
    tensor([0., 0.])
    """
    check_set_only("hypergradient and argmin", problem)
    problem = uncounted(problem)
    solution = solve_lower(problem, check_vector("x", x), y0, tol=tol, max_steps=max_steps)
    warn_if_unsolved(solution)
    at, y = tree_map(Tensor.detach, x), solution.y

    def pull_back(cotangents: tuple[Tensor, ...]) -> list[Tensor]:
        lin = _Cotangent(problem.linearize(at, y), like(y, cotangents))
        result = (method or LinearSolve()).estimate(lin, RandomStreams())
        _warn_if_loose(result)
        return leaves(result.gradient)

    return like(y, _ArgminFunction.apply(pull_back, leaves(y), *leaves(x)))  # type: ignore[arg-type]


class _ArgminFunction(torch.autograd.Function):
    """y*(x) forwards; -G_xy w backwards."""

    @staticmethod
    def forward(ctx: Any, pull_back: Any, y: list[Tensor], *x: Tensor) -> tuple[Tensor, ...]:
        ctx.pull_back = pull_back
        ctx.save_for_backward(*x)
        return tuple(u.clone() for u in y)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        with torch.no_grad():
            gradients = ctx.pull_back(cotangents)
        return (None, None, *_FirstDerivative.apply(len(gradients), *gradients, *ctx.saved_tensors, *cotangents))


class _FirstDerivative(torch.autograd.Function):
    """Return the first tensors unchanged, with a graph to the others that raises an error if it is differentiated."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(u.clone() for u in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        raise IncompatibleError(
            "argmin has first derivatives only: take differences of its gradients, or unroll the lower level yourself"
        )


class _Cotangent(Linearization):
    """The lower level of `lin` under the upper function <cotangent, y>."""

    def __init__(self, lin: Linearization, cotangent: Vector) -> None:
        super().__init__(lin.problem, lin.x, lin.y, lin.batch)
        self._lin, self._cotangent = lin, cotangent

    def _upper_value(self) -> Tensor:
        raise InvalidInputError("argmin has no upper value")

    def _upper_gradients(self) -> tuple[Vector, Vector]:
        return tree_map(torch.zeros_like, self.x), self._cotangent

    def _lower_value(self) -> Tensor:
        return self._lin.lower_value

    def _lower_gradient_x(self) -> Vector:
        return self._lin.lower_grad_x

    def _lower_gradient_y(self) -> Vector:
        return self._lin.lower_grad_y

    def _lower_hvp(self, v: Vector) -> Vector:
        return self._lin.lower_hvp(v)

    def _lower_cross(self, v: Vector) -> Vector:
        return self._lin.lower_cross(v)
