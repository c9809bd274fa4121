"""RMD-PCD: reverse mode through proximal coordinate descent (Bertrand et al., JMLR 2022).

One coordinate step, with the interval [l_j, u_j] of coordinate j and L_j the curvature of g along it:

    y_j <- clip(y_j - grad_j g(x, y) / L_j, l_j, u_j)

and its adjoint, with a the derivative of f in y after the step and s_j = 1 inside the interval, 0 at its ends:

    u = s_j a_j / L_j,     a <- a - u G e_j  (a_j <- 0 first when s_j = 0),     h <- h - u G_xy e_j

Coordinate steps need a separable set: on a ball they stall (min |y - (2, 1.9)|^2 over |y|_1 <= 1 never leaves (0, 1)).
On other sets reverse mode runs through full steps y <- P_Y(y - grad_y g / L) (`Unrolled`); `State.ran` says which.
An l1 penalty lambda |y|_1 is the separable set {p, q >= 0} with y = p - q and lambda sum(p + q) in g.

Coordinate steps pay off where one coordinate of the gradient costs one n-th of it: `Problem.coordinates` is where a
problem with structure says so, and n such questions count as one gradient. Any other g is asked for a whole gradient
after each move, which "auto" does for a small y only.

mode="implicit-forward" is the paper's second algorithm: y is computed first, without derivatives, and the derivative
follows the same steps linearised at the final y, on the support alone: one Hessian column per coordinate of the
support instead of one per coordinate step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from ..hypergradients import Hypergradient, Neumann, Unrolled
from ..problem import Coordinates, Linearization, Problem
from ..randomness import Seeds
from ..smoothing import Exact
from ..spaces import Space, Vector
from .base import FIXED_SET, JACOBIAN, PROJECTION, SEPARABLE, Need, State, batch_of, check_choice, check_count
from .inner import (
    StepRule,
    check_sampler,
    check_step_rule,
    estimate_curvature,
    moved_by,
    rounding,
    safe_step,
    upper_move,
)
from .settings import check_positive_or_auto

WHOLE_GRADIENTS = 32
"""Up to so many coordinates "auto" takes coordinate steps although each of them costs a whole gradient."""


@dataclass(kw_only=True, repr=False)
class RMDPCDState(State):
    """The state of RMD-PCD."""

    gradient: Any = None  # h
    value: float = math.nan  # f(x, y_K)
    slack: float = math.inf  # |f_y| times the last move of y: how far f(x, y_K) may be from F
    upper_step: float = math.nan
    curvature: float = math.nan  # L
    curvatures: Any = None  # L_j, flat
    coordinate: int = 0  # 1: coordinate steps
    stats: dict[str, float] = field(default_factory=dict)

    @property
    def ran(self) -> str:
        """What reverse mode ran through."""
        return "proximal coordinate descent" if self.coordinate else "projected gradient"


class _Move(NamedTuple):
    """One coordinate step: which coordinate, its value before, s_j / L_j."""

    index: int
    before: float
    weight: float


class _Trace(NamedTuple):
    """A lower level that was run: its last point, how far the last round moved it, and what reverse mode needs."""

    last: Linearization
    moved: float
    moves: list[_Move]
    path: list[Linearization]


@dataclass(frozen=True, kw_only=True)
class RMDPCD:
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
        "auto": coordinate steps where the set is separable and they are cheap (`Problem.coordinates`) or y has at most
        32 entries, full steps elsewhere; "coordinate" or "full" to insist. `state.ran` says which ran.
    upper_step, step_rule
        As in `Approx`.
    lower_step
        The length of a full step; "auto" for 1/L. Coordinate steps have their own lengths.
    refresh
        Curvatures are estimated again every so many steps.

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

    steps: int = 100
    mode: Literal["reverse", "implicit-forward"] = "reverse"
    inner: Literal["auto", "coordinate", "full"] = "auto"
    upper_step: float = 1.0
    step_rule: Literal["adaptive", "fixed"] = "adaptive"
    lower_step: float | Literal["auto"] = "auto"
    refresh: int = 100

    def __post_init__(self) -> None:
        check_count("steps", self.steps)
        check_count("refresh", self.refresh)
        check_choice("mode", self.mode, ("reverse", "implicit-forward"))
        check_choice("inner", self.inner, ("auto", "coordinate", "full"))
        check_step_rule(self.step_rule, self.upper_step)
        check_positive_or_auto(lower_step=self.lower_step)

    @property
    def needs_of_settings(self) -> tuple[Need, ...]:
        """Coordinate steps on a set that stands still."""
        return (SEPARABLE, FIXED_SET) if self.inner == "coordinate" else ()

    def init(self, problem: Problem, x: Vector, y: Vector, seeds: Seeds) -> RMDPCDState:
        """The lower level run once, and its derivative."""
        check_sampler(problem, self.step_rule, "RMDPCD")
        state = RMDPCDState(x=x, y=y, seeds=seeds, upper_step=self.upper_step)
        state.coordinate = int(self._coordinate(problem, x, y))
        lin = problem.linearize(x, y, batch_of(problem, state.noise(), y))
        self._estimate(lin, state, 0)
        return self._settle(state, self._run(lin, state), accepted=True)

    def next_x(self, problem: Problem, state: RMDPCDState) -> Vector:
        """Where the next step of x leads."""
        return upper_move(problem, state.x, state.gradient, state.upper_step)

    def step(self, problem: Problem, state: RMDPCDState) -> RMDPCDState:
        """One trial step of x, the lower level there, and its derivative when the trial is kept."""
        k = state.step + 1
        rule = StepRule(kind=self.step_rule, first=self.upper_step)
        x, y = self.next_x(problem, state), state.y
        if problem.moving:
            y = problem.project(problem.constraint_at(x), y)
        new = RMDPCDState(**{**vars(state), "step": k})
        lin = problem.linearize(x, y, batch_of(problem, state.noise(k), y))
        self._estimate(lin, new, k)
        trace = self._run(lin, new)
        drop = state.value - float(trace.last.upper_value)
        slack = state.slack + self._slack(trace) if rule.kind == "adaptive" else 0.0
        moved, step, again = moved_by(problem, x, state.x), state.upper_step, None
        accepted = rule.accepts(drop, moved, step, slack)
        if not accepted and state.slack > 10.0 * rounding(trace.last):
            # An unsolved lower level may have flattered the old point: as many steps there make a fair comparison.
            again = self._run(problem.linearize(state.x, state.y, lin.batch), new)
            drop = float(again.last.upper_value) - float(trace.last.upper_value)
            accepted = rule.accepts(drop, moved, step, rounding(trace.last))
        new.upper_step = rule.following(step, accepted)
        if accepted:
            return self._settle(new, trace, accepted=True)
        if again is not None:
            return self._settle(new, again, accepted=False)
        new.stats = {**state.stats, "accepted": 0.0}
        return new

    def _coordinate(self, problem: Problem, x: Vector, y: Vector) -> bool:
        """Whether to take coordinate steps."""
        if self.inner != "auto":
            return self.inner == "coordinate"
        constraint = problem.constraint_at(x)
        able = constraint.separable and not problem.moving
        return able and (
            problem.y_space(constraint).size(y) <= WHOLE_GRADIENTS or problem.coordinates(x, y) is not None
        )

    def _estimate(self, lin: Linearization, state: RMDPCDState, k: int) -> None:
        """L for full steps, L_j for coordinate steps, at fixed step numbers."""
        if not state.coordinate:
            state.curvature = estimate_curvature(lin, state, k, self.refresh, state.curvature, self.lower_step)
        elif k % self.refresh == 0:
            space = _y_space(lin)
            diagonal = torch.stack([column[j] for j, column in enumerate(_columns(lin, range(space.size(lin.y))))])
            top = float(diagonal.max())
            state.curvatures = diagonal.clamp_min(1e-12 * top if top > 0 else 1.0)
            state.curvature = top

    def _run(self, lin: Linearization, state: RMDPCDState) -> _Trace:
        """The lower level from the point of `lin`."""
        if state.coordinate:
            return self._sweeps(lin, state)
        eta, space = safe_step(state.curvature), _y_space(lin)
        if self.mode == "reverse":
            path = Unrolled(steps=self.steps, eta=eta).forward(lin, eta)
            moved = float(space.norm(space.add(path[-1].y, path[-2].y, -1.0)))
            return _Trace(path[-1], moved / eta, [], path)
        problem, y, previous = lin.problem, lin.y, lin.y
        for _ in range(self.steps):
            previous = y
            y = problem.project(lin.constraint, space.add(y, problem.lower_grad(lin.x, y, lin.batch), -eta))
        moved = float(space.norm(space.add(y, previous, -1.0)))
        return _Trace(problem.linearize(lin.x, y, lin.batch), moved / eta, [], [])

    def _sweeps(self, lin: Linearization, state: RMDPCDState) -> _Trace:
        """Rounds of coordinate steps; L_j grows when a move shows a larger curvature."""
        problem, space = lin.problem, _y_space(lin)
        low, high = _intervals(lin)
        y, g = space.ravel(lin.y).clone(), _coordinates(lin)
        curvatures = state.curvatures.tolist()
        moves: list[_Move] = []
        moved = 0.0
        for _ in range(self.steps):
            problem.costs.projections += 1
            moved = 0.0
            for j in range(len(y)):
                before, slope = float(y[j]), g.gradient(j)
                target = before - slope / curvatures[j]
                y[j] = min(max(target, low[j]), high[j])
                inside = low[j] < target < high[j]
                moves.append(_Move(j, before, (1.0 if inside else 0.0) / curvatures[j]))
                distance = float(y[j]) - before
                if distance != 0.0:
                    g.move(j, float(y[j]))
                    moved += (distance * curvatures[j]) ** 2
                    if abs(distance) > 1e-6 * (1.0 + abs(before)):
                        curvatures[j] = max(curvatures[j], (g.gradient(j) - slope) / distance)
        state.curvatures = torch.tensor(curvatures, dtype=y.dtype, device=y.device)
        last = problem.linearize(lin.x, space.unravel(y, lin.y), lin.batch)
        return _Trace(last, moved**0.5, moves, [])

    def _settle(self, state: RMDPCDState, trace: _Trace, *, accepted: bool) -> RMDPCDState:
        last = trace.last
        state.x, state.y, state.value, state.slack = last.x, last.y, float(last.upper_value), self._slack(trace)
        state.gradient = self._derivative(state, trace).gradient
        state.stats = {"accepted": float(accepted), "coordinate": float(state.coordinate), "moved": trace.moved}
        return state

    def _slack(self, trace: _Trace) -> float:
        lin = trace.last
        return trace.moved * float(_y_space(lin).norm(lin.upper_grad_y)) + rounding(lin)

    def _derivative(self, state: RMDPCDState, trace: _Trace) -> Hypergradient:
        eta = safe_step(state.curvature)
        if self.mode == "reverse":
            return (
                _reverse(trace) if state.coordinate else Unrolled(steps=self.steps, eta=eta).backward(trace.path, eta)
            )
        if state.coordinate:
            return self._implicit_forward(trace.last, state.curvatures)
        # Projected-gradient steps linearised at one point: the Neumann series with as many terms.
        series = Neumann(terms=self.steps, eta=eta, truncation="full", smoothing=Exact())
        return series.estimate(trace.last, state.noise())

    def _implicit_forward(self, lin: Linearization, curvatures: Tensor) -> Hypergradient:
        """w on the support by the adjoint rounds, all at one point: Gauss-Seidel on G_SS w = f_y."""
        space, (low, high) = _y_space(lin), _intervals(lin)
        target = space.ravel(lin.y) - space.ravel(lin.lower_grad_y) / curvatures
        support = [j for j, z in enumerate(target.tolist()) if low[j] < z < high[j]]
        w = torch.zeros_like(target)
        if support:
            matrix = torch.stack([column[support] for column in _columns(lin, support)])  # symmetric
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
    """The ends of the intervals of a separable set: the projections of two very far points."""
    space, far = _y_space(lin), torch.finfo(_y_space(lin).ravel(lin.y).dtype).max ** 0.5 / 4
    ends = []
    for side in (-far, far):
        corner = space.unravel(torch.full_like(space.ravel(lin.y), side), lin.y)
        ends.append(space.ravel(lin.constraint.project(corner)).tolist())
    return ends[0], ends[1]


def _columns(lin: Linearization, indices: Any) -> list[Tensor]:
    """Columns of G_yy, flat."""
    space = _y_space(lin)
    flat = space.ravel(space.zeros_like(lin.y))
    columns = []
    for j in indices:
        unit = flat.clone()
        unit[j] = 1.0
        columns.append(space.ravel(lin.lower_hvp(space.unravel(unit, lin.y))))
    return columns


def _reverse(trace: _Trace) -> Hypergradient:
    """The adjoint of the coordinate steps; y is walked back by undoing them, so memory is one number per step."""
    last = trace.last
    space, x_space, g = _y_space(last), last.problem.x_space, _coordinates(last)
    y, a, h = space.ravel(last.y).clone(), space.ravel(last.upper_grad_y).clone(), last.upper_grad_x
    for j, before, weight in reversed(trace.moves):
        if float(y[j]) != before:
            y[j] = before
            g.move(j, before)
        u = weight * float(a[j])
        if weight == 0.0:
            a[j] = 0.0
        elif u != 0.0:
            a = a - u * g.column(j)
            h = x_space.add(h, g.cross(j), -u)
    return Hypergradient(h, None, {})


def _coordinates(lin: Linearization) -> Coordinates:
    """g along coordinate moves: the problem's own way, counted, or by autograd."""
    own = lin.problem.coordinates(lin.x, lin.y, lin.batch)
    return _Autograd(lin) if own is None else _Counted(own, lin.problem, _y_space(lin).size(lin.y))


class _Autograd:
    """Any g: a whole gradient after each move, a linearisation for each second derivative."""

    def __init__(self, lin: Linearization) -> None:
        self.problem, self.x, self.batch, self.template = lin.problem, lin.x, lin.batch, lin.y
        self.space = _y_space(lin)
        self.y = self.space.ravel(lin.y).clone()
        self._gradient: Tensor | None = None
        self._lin: Linearization | None = lin

    def gradient(self, j: int) -> float:
        if self._gradient is None:
            point = self.space.unravel(self.y, self.template)
            self._gradient = self.space.ravel(self.problem.lower_grad(self.x, point, self.batch))
        return float(self._gradient[j])

    def move(self, j: int, value: float) -> None:
        self.y[j] = value
        self._gradient = self._lin = None

    def column(self, j: int) -> Tensor:
        return self.space.ravel(self._linearized().lower_hvp(self._unit(j)))

    def cross(self, j: int) -> Vector:
        return self._linearized().lower_cross(self._unit(j))

    def _linearized(self) -> Linearization:
        if self._lin is None:
            point = self.space.unravel(self.y.clone(), self.template)
            self._lin = self.problem.linearize(self.x, point, self.batch)
        return self._lin

    def _unit(self, j: int) -> Vector:
        unit = torch.zeros_like(self.y)
        unit[j] = 1.0
        return self.space.unravel(unit, self.template)


class _Counted:
    """The problem's own coordinates: `size` derivatives in one coordinate cost one gradient."""

    def __init__(self, own: Coordinates, problem: Problem, size: int) -> None:
        self._own, self._costs, self._size, self._asked = own, problem.costs, size, 0

    def gradient(self, j: int) -> float:
        if self._asked % self._size == 0:
            self._costs.lower_gradients += 1
        self._asked += 1
        return self._own.gradient(j)

    def move(self, j: int, value: float) -> None:
        self._own.move(j, value)

    def column(self, j: int) -> Tensor:
        self._costs.hessian_products += 1
        return self._own.column(j)

    def cross(self, j: int) -> Vector:
        self._costs.cross_products += 1
        return self._own.cross(j)
