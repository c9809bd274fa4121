"""RMD-PCD: reverse mode through proximal coordinate descent (Bertrand et al., JMLR 2022).

One coordinate step, with the interval [l_j, u_j] of coordinate j and L_j the curvature of g along it:

    y_j <- clip(y_j - grad_j g(x, y) / L_j, l_j, u_j)

and its adjoint, with a the derivative of f in y after the step and s_j = 1 inside the interval, 0 at its ends:

    u = s_j a_j / L_j,     a <- a - u G e_j  (a_j <- 0 first when s_j = 0),     h <- h - u G_xy e_j

Coordinate steps need a separable set: on a ball they stall (min |y - (2, 1.9)|^2 over |y|_1 <= 1 never leaves (0, 1)).
On other sets reverse mode differentiates full steps y <- P_Y(y - grad_y g / L) (`Unrolled`); `State.ran` says which.
An l1 penalty lambda |y|_1 is the separable set {p, q >= 0} with y = p - q and lambda sum(p + q) in g.

Each coordinate step needs a full gradient of g, so "auto" takes coordinate steps for a small y only.

mode="implicit-forward" is the paper's second algorithm: y is computed first, without derivatives, and the derivative
follows the same steps linearised at the final y, on the support alone: one Hessian column per coordinate of the
support instead of one per coordinate step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from .._projected_gradient import safe_step
from ..hypergradients import Hypergradient, Neumann, Unrolled
from ..hypergradients.smoothing import Exact
from ..linearization import Linearization
from ..problem import Problem
from ..spaces import Space, Vector
from ._double_loop import Arrival, DoubleLoop, DoubleLoopState, rounding
from .base import FIXED_SET, JACOBIAN, PROJECTION, SEPARABLE, Need, batch_of, estimate_curvature

WHOLE_GRADIENTS = 32
"""Up to this number of coordinates, "auto" takes coordinate steps although each of them costs a whole gradient."""


@dataclass(kw_only=True, repr=False)
class RMDPCDState(DoubleLoopState):
    """The state of RMD-PCD."""

    curvatures: Any = None  # L_j, flat
    coordinate: int = 0  # 1: coordinate steps

    @property
    def ran(self) -> str:
        """The kind of steps that were differentiated."""
        return "proximal coordinate descent" if self.coordinate else "projected gradient"


class _Move(NamedTuple):
    """One coordinate step: which coordinate, its value before, s_j / L_j."""

    index: int
    before: float
    weight: float


@dataclass(frozen=True)
class _Trace(Arrival):
    """The steps of a lower level, as reverse mode needs them; the residual is the change of y in the last round."""

    moves: Sequence[_Move]
    path: list[Linearization]

    def hidden_change(self, adjoint: Any) -> float:
        """|f_y| times the last move of y."""
        return self.residual * float(_y_space(self.lin).norm(self.lin.upper_grad_y))


@dataclass(frozen=True, kw_only=True)
class RMDPCD(DoubleLoop):
    """Reverse mode through a fixed number of lower-level steps, warm-started.

    d/dx f(x, y_K(x)), where y_j <- clip(y_j - grad_j g / L_j, l_j, u_j) for one coordinate after the other, K times
    over; on sets that are not separable y <- P_Y(y - grad_y g / L).

    Parameters
    ----------
    steps
        Rounds over all coordinates, or full projected-gradient steps; 100 in the hyper-cleaning of the DMLCBO paper.
    mode
        "reverse", or "implicit-forward".
    inner
        "auto": coordinate steps where the set is separable and y has at most 32 entries, full steps elsewhere;
        "coordinate" or "full" sets the kind of steps. `state.ran` says which was used.
    upper_step, step_rule
        As in `Approx`.
    lower_step
        The length of a full step; "auto" for 1/L. Coordinate steps have their own lengths.
    refresh
        Curvatures are estimated again after this number of steps.

    References
    ----------
    Bertrand, Klopfenstein, Massias, Blondel, Vaiter, Gramfort & Salmon (2022), Implicit differentiation for fast
    hyperparameter selection in non-smooth convex learning, JMLR.

    Examples
    --------
    >>> RMDPCD(steps=20, mode="implicit-forward").mode
    'implicit-forward'
    """

    needs: ClassVar[tuple[Need, ...]] = (PROJECTION, JACOBIAN)
    state_class: ClassVar[type[DoubleLoopState]] = RMDPCDState

    steps: int = 100
    mode: Literal["reverse", "implicit-forward"] = "reverse"
    inner: Literal["auto", "coordinate", "full"] = "auto"
    lower_step: float | Literal["auto"] = "auto"

    @property
    def needs_of_settings(self) -> tuple[Need, ...]:
        """A fixed separable set, if coordinate steps are taken."""
        return (SEPARABLE, FIXED_SET) if self.inner == "coordinate" else ()

    def arrive(self, problem: Problem, state: RMDPCDState, x: Vector, k: int, *, again: bool = False) -> _Trace:
        """Run the lower level at x from the last y, with the same number of steps as at the old point."""
        y = state.y
        if k == 0:
            state.coordinate = int(self._takes_coordinates(problem, state))
        if problem.moving and k > 0 and not again:
            y = problem.project(problem.constraint_at(x), y)
        lin = problem.linearize(x, y, batch_of(problem, state.streams(k)))
        if not again:
            self._estimate(lin, state, k)
        return self._run(lin, state)

    def _takes_coordinates(self, problem: Problem, state: RMDPCDState) -> bool:
        constraint = problem.constraint_at(state.x)
        small = problem.y_space(constraint).size(state.y) <= WHOLE_GRADIENTS
        cheap = constraint.separable and not problem.moving and small
        return cheap if self.inner == "auto" else self.inner == "coordinate"

    def was_flattered(self, state: RMDPCDState, arrival: _Trace) -> bool:
        """Whether the lower level of the old point was far from solved."""
        return state.slack > 10.0 * rounding(arrival.lin)

    def derivative(self, state: RMDPCDState, arrival: _Trace) -> Hypergradient:
        """Reverse mode, or the linearised steps at the last point."""
        eta = safe_step(state.curvature)
        if self.mode == "reverse":
            return _reverse(arrival) if state.coordinate else self._unrolled(eta).backward(arrival.path, eta)
        if state.coordinate:
            return self._implicit_forward(arrival.lin, state.curvatures)
        # Projected-gradient steps linearised at one point: the Neumann series with as many terms.
        series = Neumann(terms=self.steps, eta=eta, truncation="full", smoothing=Exact())
        return series.estimate(arrival.lin, state.streams())

    def _unrolled(self, eta: float) -> Unrolled:
        return Unrolled(steps=self.steps, eta=eta)

    def _estimate(self, lin: Linearization, state: RMDPCDState, k: int) -> None:
        """L for full steps, L_j for coordinate steps, at fixed step numbers."""
        if not state.coordinate:
            state.curvature = estimate_curvature(lin, state, k, self.refresh, self.lower_step)
        elif k % self.refresh == 0:
            space = _y_space(lin)
            diagonal = torch.stack([_column(lin, j)[j] for j in range(space.size(lin.y))])
            top = float(diagonal.max())
            state.curvatures = diagonal.clamp_min(1e-12 * top if top > 0 else 1.0)
            state.curvature = top

    def _run(self, lin: Linearization, state: RMDPCDState) -> _Trace:
        """The lower level from the point of `lin`."""
        if state.coordinate:
            return self._sweeps(lin, state)
        eta, space = safe_step(state.curvature), _y_space(lin)
        if self.mode == "reverse":
            path = self._unrolled(eta).forward(lin, eta)
            return self._trace(
                state, path[-1], float(space.norm(space.add(path[-1].y, path[-2].y, -1.0))) / eta, path=path
            )
        problem, y, previous = lin.problem, lin.y, lin.y
        for _ in range(self.steps):
            previous = y
            y = problem.project(lin.constraint, space.add(y, problem.lower_grad(lin.x, y, lin.batch), -eta))
        moved = float(space.norm(space.add(y, previous, -1.0))) / eta
        return self._trace(state, problem.linearize(lin.x, y, lin.batch), moved)

    def _trace(self, state: RMDPCDState, lin: Linearization, moved: float, moves: Any = (), path: Any = ()) -> _Trace:
        stats = {"coordinate": float(state.coordinate), "moved": moved}
        return _Trace(lin, moved, 0.0, state.curvature, stats, moves, path)

    def _sweeps(self, lin: Linearization, state: RMDPCDState) -> _Trace:
        """Rounds of coordinate steps; L_j grows when a move shows a larger curvature."""
        problem, space = lin.problem, _y_space(lin)
        low, high = _intervals(lin)
        g, curvatures = _Coordinates(lin), state.curvatures.tolist()
        moves: list[_Move] = []
        moved = 0.0
        for _ in range(self.steps):
            problem.costs.projections += 1
            moved = 0.0
            for j in range(len(g.y)):
                before, slope = float(g.y[j]), g.gradient(j)
                target = before - slope / curvatures[j]
                inside = low[j] < target < high[j]
                moves.append(_Move(j, before, (1.0 if inside else 0.0) / curvatures[j]))
                after = float(g.y.new_tensor(min(max(target, low[j]), high[j])))  # rounded as y is
                distance = after - before
                if distance != 0.0:
                    g.move(j, after)
                    moved += (distance * curvatures[j]) ** 2
                    if abs(distance) > 1e-6 * (1.0 + abs(before)):
                        curvatures[j] = max(curvatures[j], (g.gradient(j) - slope) / distance)
        state.curvatures = torch.tensor(curvatures, dtype=g.y.dtype, device=g.y.device)
        last = problem.linearize(lin.x, space.unravel(g.y, lin.y), lin.batch)
        return self._trace(state, last, moved**0.5, moves)

    def _implicit_forward(self, lin: Linearization, curvatures: Tensor) -> Hypergradient:
        """w on the support by the adjoint rounds, all at one point: Gauss-Seidel on G_SS w = f_y."""
        space, (low, high) = _y_space(lin), _intervals(lin)
        target = space.ravel(lin.y) - space.ravel(lin.lower_grad_y) / curvatures
        support = [j for j, z in enumerate(target.tolist()) if low[j] < z < high[j]]
        w = torch.zeros_like(target)
        if support:
            matrix = torch.stack([_column(lin, j)[support] for j in support])  # symmetric
            a, weights = space.ravel(lin.upper_grad_y)[support].clone(), (1.0 / curvatures[support]).tolist()
            small = 1e-15 * float(a.abs().max())
            for _ in range(self.steps):
                for i in range(len(support) - 1, -1, -1):
                    u = weights[i] * float(a[i])
                    w[support[i]] += u
                    a -= u * matrix[i]
                if float(a.abs().max()) <= small:
                    break
        w = space.unravel(w, lin.y)
        h = lin.reduced_gradient(w)
        return Hypergradient(h, w, {"support": float(len(support))})


def _y_space(lin: Linearization) -> Space:
    return lin.problem.y_space(lin.constraint)


def _intervals(lin: Linearization) -> tuple[list[float], list[float]]:
    """The ends of the intervals of a separable set, as projections of two distant points."""
    space, far = _y_space(lin), torch.finfo(_y_space(lin).ravel(lin.y).dtype).max ** 0.5 / 4
    ends = []
    for side in (-far, far):
        corner = space.unravel(torch.full_like(space.ravel(lin.y), side), lin.y)
        ends.append(space.ravel(lin.constraint.project(corner)).tolist())
    return ends[0], ends[1]


def _unit(lin: Linearization, j: int) -> Vector:
    space = _y_space(lin)
    flat = torch.zeros_like(space.ravel(lin.y))
    flat[j] = 1.0
    return space.unravel(flat, lin.y)


def _column(lin: Linearization, j: int) -> Tensor:
    """Column j of G_yy, flat."""
    return _y_space(lin).ravel(lin.lower_hvp(_unit(lin, j)))


def _reverse(trace: _Trace) -> Hypergradient:
    """The adjoint of the coordinate steps; earlier y are recovered by undoing steps, from one number per step."""
    last = trace.lin
    space, x_space, g = _y_space(last), last.problem.x_space, _Coordinates(last)
    a, h = space.ravel(last.upper_grad_y).clone(), last.upper_grad_x
    for j, before, weight in reversed(trace.moves):
        if float(g.y[j]) != before:
            g.move(j, before)
        u = weight * float(a[j])
        if weight == 0.0:
            a[j] = 0.0
        elif u != 0.0:
            a = a - u * _column(g.lin, j)
            h = x_space.add(h, g.lin.lower_cross(_unit(last, j)), -u)
    return Hypergradient(h, None, {})


class _Coordinates:
    """g along moves of single coordinates: a whole gradient after each, a linearisation for each second derivative."""

    def __init__(self, lin: Linearization) -> None:
        self._start, self._lin, self._gradient = lin, lin, None
        self.y = _y_space(lin).ravel(lin.y).clone()

    def _point(self) -> Vector:
        return _y_space(self._start).unravel(self.y.clone(), self._start.y)

    def gradient(self, j: int) -> float:
        if self._gradient is None:
            at = self._start
            self._gradient = _y_space(at).ravel(at.problem.lower_grad(at.x, self._point(), at.batch))
        return float(self._gradient[j])

    def move(self, j: int, value: float) -> None:
        self.y[j] = value
        self._gradient = self._lin = None

    @property
    def lin(self) -> Linearization:
        if self._lin is None:
            self._lin = self._start.problem.linearize(self._start.x, self._point(), self._start.batch)
        return self._lin
