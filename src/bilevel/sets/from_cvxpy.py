"""Any convex set that cvxpy can express, as a slow but general fallback."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import EmptySetError, IncompatibleError, MissingExtraError, NotConvergedError
from .base import ConvexSet, ProjectionJacobian, can_look_at_values, event_norm, tracked, validated
from .cones import PSDCone, SecondOrderCone
from .jacobians import Matrix

_TIGHT = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12, "accept_unknown": True}
_ATTEMPTS: tuple[dict[str, Any], ...] = (
    {},
    {"static_regularization_constant": 1e-10, "max_step_fraction": 0.9},
    {"max_step_fraction": 0.5},
)
"""Settings tried in turn until the KKT equations hold to rounding: the last digits are a matter of luck."""


def from_cvxpy(constraints: Callable[[Any], Any], shape: int | tuple[int, ...]) -> ConvexSet:
    """{y : constraints(y) hold}; P(z) by Clarabel, one conic programme per point, refined by Newton's method.

    The programme min x'Px/2 + q'x, Ax + s = b, s in K is optimal if Px + q + A'(P_K(w) - w) = 0 and
    Ax + P_K(w) = b with w = s - multiplier; only q depends on z. H follows from the Jacobians of the cones K
    (Busseti, Moursi & Boyd, 2019): linear, second-order and semidefinite constraints. Results are exact to rounding,
    except where a constraint holds with equality and a zero multiplier; there the error is about 1e-7.

    Parameters
    ----------
    constraints
        A function from a cvxpy variable of the given shape to a convex constraint on it, or to a list of constraints.
    shape
        The shape of one point: n or (n,) for vectors, (m, n) for matrices.

    Examples
    --------
    >>> import cvxpy
    >>> Y = from_cvxpy(lambda y: [cvxpy.norm1(y) <= 1], 2)
    >>> Y.project(torch.tensor([1.0, 2.0], dtype=torch.float64)).round(decimals=6)
    tensor([0., 1.], dtype=torch.float64)
    """
    return ConicSet(constraints, (shape,) if isinstance(shape, int) else tuple(shape))


class ConicSet(ConvexSet):
    """A set given by cvxpy constraints; made by `from_cvxpy`."""

    parameters: tuple[str, ...] = ("constraints", "shape")

    def __init__(self, constraints: Callable[[Any], Any], shape: tuple[int, ...]) -> None:
        try:
            import cvxpy
        except ImportError:
            raise MissingExtraError("from_cvxpy", "sets") from None
        self.constraints = constraints
        self.shape = self.point_shape = shape
        self.event_ndim: Any = len(shape)
        self._solver = cvxpy.CLARABEL
        self._variable, self._point = cvxpy.Variable(shape), cvxpy.Parameter(shape)
        gain = cvxpy.sum(cvxpy.multiply(self._point, self._variable))
        objective = cvxpy.Minimize(cvxpy.sum_squares(self._variable) / 2 - gain)
        rules = constraints(self._variable)
        self._problem = cvxpy.Problem(objective, list(rules) if isinstance(rules, (list, tuple)) else [rules])
        if not self._problem.is_dcp():
            raise IncompatibleError("from_cvxpy: the constraints are not convex by cvxpy's rules (problem.is_dcp())")
        self._read_cones()

    def _read_cones(self) -> None:
        """P, A, b and the cones; where the entries of y sit in x, in row-major order."""
        size = torch.Size(self.shape).numel()
        labels = torch.arange(1.0, size + 1, dtype=torch.float64).reshape(self.shape)
        data = self._data(labels)[0]
        dims = data["dims"]
        if dims.exp or dims.p3d or getattr(dims, "pnd", ()):
            raise IncompatibleError(
                "from_cvxpy takes linear, second-order and semidefinite constraints; these "
                "need an exponential or power cone, whose projection has no derivative here"
            )
        dense = {name: data[name].toarray() if hasattr(data[name], "toarray") else data[name] for name in "PAb"}
        self._P, self._A, self._b = (torch.as_tensor(dense[name], dtype=torch.float64) for name in "PAb")
        q = torch.as_tensor(data["c"], dtype=torch.float64)
        self._place = torch.stack([(q + label).abs().argmin() for label in labels.flatten()])
        self._blocks = [("zero", dims.zero), ("nonneg", dims.nonneg)]
        self._blocks += [("soc", k) for k in dims.soc] + [("psd", k) for k in dims.psd]

    def _data(self, z: Tensor) -> tuple[Any, Any]:
        self._point.value = z.detach().double().cpu().numpy()
        data, chain, _ = self._problem.get_problem_data(self._solver, solver_opts=_TIGHT)
        return data, chain

    def _cone(self, w: Tensor) -> Tensor:
        """P_K(w), differentiable."""
        parts, start = [], 0
        for kind, k in self._blocks:
            length = k * (k + 1) // 2 if kind == "psd" else k
            part = w[start : start + length]
            start += length
            if kind == "zero":
                part = torch.zeros_like(part)
            elif kind == "nonneg":
                part = part.clamp_min(0)
            elif kind == "soc":
                part = SecondOrderCone().project(part)
            else:
                part = _pack(PSDCone().project(_unpack(part, k)))
            parts.append(part)
        return torch.cat(parts) if parts else w

    def _residual(self, q: Tensor, x: Tensor, w: Tensor, far: float) -> Tensor:
        cone = self._cone(w)
        return torch.cat([(self._P @ x + q) / far + self._A.mT @ (cone - w), self._A @ x + cone - self._b])

    def _inverse(self, w: Tensor, far: float) -> Tensor:
        """The pseudo-inverse of the derivative of the residual in (x, w)."""
        D = torch.autograd.functional.jacobian(self._cone, w) if len(w) else w.new_zeros(0, 0)
        eye = torch.eye(len(w), dtype=w.dtype)
        matrix = torch.cat([torch.cat([self._P / far, self._A.mT @ (D - eye)], 1), torch.cat([self._A, D], 1)])
        return torch.linalg.pinv(matrix, rtol=1e-10 / far)

    def _linear(self, z: Tensor) -> Tensor:
        """q for one point."""
        return z.new_zeros(len(self._P)).index_put((self._place,), -z.flatten())

    def _solve(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor, float]:
        """x, w, the inverse and `far` for one point: how many times larger than P(z) it is, if that is a lot."""
        if not can_look_at_values():
            raise IncompatibleError("from_cvxpy calls a solver: give leading batch dimensions instead of vmap")
        size = float(self._b.abs().max()) if len(self._b) else 0.0
        unit = max(float(z.abs().max()), size) or 1.0
        left, solution, status = self._attempts(z, unit, 1.0)
        if solution and size:
            near = max(float(solution[0].abs().max()), size)
            if unit > 100 * near:
                left, solution, status = self._attempts(z, near, unit / near)
        if not left <= 1e-6:
            raise NotConvergedError(
                f"from_cvxpy: the solver ({status}) leaves a KKT residual of {left:.2g} of the size of the answer: "
                f"z has the size {unit:.2g}; bring it nearer, or use a set of bilevel.sets with a closed form"
            )
        return solution

    def _attempts(self, z: Tensor, unit: float, far: float) -> tuple[float, Any, str]:
        """The smallest KKT residual relative to the unit, its (x, w, inverse, far), and what the solver says.

        The objective is divided by `far`, so that multipliers have the size of the unit. Cones have no size:
        (x, w) of the programme divided by a unit are (x, w) divided by it.
        """
        data, chain = self._data(z / unit / far)
        data["b"], data["P"] = data["b"] / unit, data["P"] / far
        best: tuple[float, Any, str] = (math.inf, (), "no answer")
        for options in _ATTEMPTS:
            raw = self._clarabel(data, chain, options)
            if raw is None:
                continue
            x, s, dual = (unit * torch.tensor(list(v), dtype=torch.float64) for v in (raw.x, raw.s, raw.z))
            left, *answer = self._newton(self._linear(z), x, s - dual, far)
            if left < best[0] * unit:
                best = (left / unit, (*answer, far), str(raw.status))
            if best[0] <= 1e-12:
                break
        return best

    def _clarabel(self, data: Any, chain: Any, options: dict[str, Any]) -> Any:
        """The solver's answer, None if it breaks down."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                raw = chain.solve_via_data(self._problem, data, False, False, {**_TIGHT, **options})
            except BaseException as panic:  # Clarabel's eigenvalue routine may panic, which is no Exception
                if type(panic).__name__ != "PanicException":
                    raise
                return None
        if "Infeasible" in str(raw.status):
            raise EmptySetError(f"from_cvxpy: no point satisfies the constraints (solver: {raw.status})")
        return raw

    def _newton(self, q: Tensor, x: Tensor, w: Tensor, far: float) -> tuple[float, Tensor, Tensor, Tensor]:
        """Newton steps on the KKT equations as long as they help: the residual left, x, w and the inverse."""
        inverse, left = self._inverse(w, far), float(self._residual(q, x, w, far).norm())
        for _ in range(5):
            step = inverse @ self._residual(q, x, w, far)
            trial = x - step[: len(x)], w - step[len(x) :]
            moved = float(self._residual(q, *trial, far).norm())
            if not moved < left:
                break
            (x, w), left = trial, moved
            inverse = self._inverse(w, far)
        return left, x, w, inverse

    @validated
    def project(self, z: Tensor) -> Tensor:
        points = z.double().reshape(-1, *self.shape)
        answers = []
        for point in points:
            x, w, inverse, far = self._solve(point.detach())
            if tracked(z):
                for _ in range(2):  # each chord step makes one more derivative exact
                    step = inverse @ self._residual(self._linear(point), x, w, far)
                    x, w = x - step[: len(x)], w - step[len(x) :]
            answers.append(x[self._place])
        return torch.stack(answers).reshape(z.shape).to(z) if answers else z.clone()

    @validated
    def jacobian(self, z: Tensor) -> ProjectionJacobian:
        points = z.double().reshape(-1, *self.shape)
        size = len(self._place)
        blocks = [inverse[self._place][:, self._place] / far for _, _, inverse, far in map(self._solve, points)]
        H = torch.stack(blocks) if blocks else points.new_zeros(0, size, size)
        H = H.reshape(*z.shape[: z.ndim - len(self.shape)], size, size)
        return Matrix((H + H.mT) / 2, len(self.shape))

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor, str]:
        """The largest violation that cvxpy finds in its constraints."""
        amounts = []
        for point in y.detach().double().reshape(-1, *self.shape):
            self._variable.value = point.cpu().numpy()
            amounts.append(max((float(c.violation().max()) for c in self._problem.constraints), default=0.0))
        amount = torch.tensor(amounts, dtype=y.dtype).reshape(y.shape[: y.ndim - len(self.shape)])
        scale = event_norm(y.detach(), len(self.shape)) + float(self._b.abs().max() if len(self._b) else 0)
        return amount, scale, "a cvxpy constraint is violated"


def _unpack(part: Tensor, k: int) -> Tensor:
    """Clarabel's triangle (upper, by columns, off-diagonal times sqrt 2) as a symmetric matrix."""
    column, row = torch.tril_indices(k, k)
    half = torch.where(row == column, 0.5, 0.5**0.5)
    upper = part.new_zeros(k, k).index_put((row, column), part * half)
    return upper + upper.mT


def _pack(matrix: Tensor) -> Tensor:
    column, row = torch.tril_indices(*matrix.shape)
    return matrix[row, column] * torch.where(row == column, 1.0, 2**0.5).to(matrix)
