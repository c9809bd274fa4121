"""DMLCBO: the double momentum method for lower-level constrained bilevel optimisation (Shi, Chang & Gu, ICML 2024).

A single loop updates both levels; v and w are momentum estimates of grad_y g and of the hypergradient:

    x_{k+1} = P_X( x_k - eta_k gamma / clip(sqrt(m2_k) + G0, 1/c_u, 1/c_l) w_k )
    y_{k+1} = (1 - eta_k) y_k + eta_k P_Y( y_k - tau / clip(sqrt(m1_k) + G0, 1/c_u, 1/c_l) v_k )
    w_{k+1} = (1 - c1 eta_k) w_k + c1 eta_k h(x_{k+1}, y_{k+1})
    v_{k+1} = (1 - c2 eta_k) v_k + c2 eta_k grad_y g(x_{k+1}, y_{k+1})
    m_i     = 0.99 m_i + 0.01 (raw estimate)^2,        eta_k = t / sqrt(m + k)

y stays in Y because it is a convex combination of points of Y. With upper_step="auto", the default, no setting depends
on the units of x, y, f or g:

    x_{k+1} = P_X( x_k - r_k^2 / sqrt(sum_i r_i^2 |h_i|^2) w_k ),    r_k = max_i |x_i - x_1|  (DoWG)
    y_{k+1}: accelerated projected steps 1/L, followed by Newton steps if they are not enough, until they change f by
             less than the predicted change of the step of x
    h       = f_x - G_xy w with H at z + delta_k u,    delta_k = sqrt(n) max|z - P_Y(z)| (1 + k/60)^(-3/2)

Khaled, Mishchenko & Jin (2023), DoWG: the step is proportional to the distance r from the first point, which grows from
the first small step to the distance of the solution. Here r grows only with steps that decrease f. After 240 steps,
when the radius delta is small, a run that finds no lower f within 30 steps returns to the point of the lowest one and
starts again from there, with 0.3 r for r. With batches or noise, which hide whether f decreases,

    r_{k+1} = max(r_k, sum_i r_i^2 <h_i, x_1 - x_i> / |sum_i r_i^2 h_i|)  (D-adaptation, Defazio & Mishchenko 2023)

to which noise contributes nothing on average; w averages with weight eta_k, and y takes averaged steps on batches.
"""

from __future__ import annotations

import functools
import math
import warnings
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from .._checks import Settings, check_object, setting
from .._krylov import Eigenpair, update_curvature
from .._projected_gradient import safe_step
from ..errors import AdaptivityWarning, InvalidInputError
from ..hypergradients import AveragedAdjoint, Estimator, LinearSolve, Neumann
from ..hypergradients.smoothing import ANNEALING, Exact, Perturbed, TwoPoint
from ..linearization import Linearization
from ..lower import solve_near
from ..newton import DENSE_LIMIT
from ..problem import Problem
from ..random import RandomStreams, Seeds
from ..spaces import Space, Vector, leaves, tree_map
from .base import JACOBIAN, PROJECTION, Need, State, batch_of, changes_between_calls, like_x, like_y

FIRST_DECREASE = 1e-2
"""The first automatic step of x has a predicted decrease of this fraction of |f|."""
LARGEST_GROWTH = 2.0
"""The distance behind automatic steps grows by at most this factor per step."""
PATIENCE, SHORTENED = 30, 0.3
"""After this many steps without a lower f the run returns to the lowest one, and the distance is multiplied by this."""
LEAST = torch.finfo(torch.float64).eps
"""The distance is shortened to this fraction of |x| at least."""
SEARCHING = 4 * ANNEALING
"""Not in the first steps, until the radius has fallen to a tenth: the smoothed F falls, and f need not."""
PACE_SHARE = 0.3
"""The lower level may change f by this fraction of the predicted change of a step of x."""
PACE_GRADIENTS, LEAST_GRADIENTS = 25, 3
"""If y lags behind after this many gradients, Newton steps follow, for up to DENSE_LIMIT entries of y. The next step
then takes half as many gradients, and twice as many after a step at which they were enough."""
FIRST_STEPS, FIRST_RESIDUAL = 300, 1e-3
"""Before the first automatic step y takes this many steps, or until its gradient mapping has fallen by this factor."""
LAGGING, LAG_STEPS = 0.5, 50
"""The run has a remark if y lagged behind at more than this fraction of about this many steps."""
NOISY_STEPS, NOISY_REFRESH, NOISY_FALL = 10, 10, 0.98
"""With batches: steps of y per step of x, each on a batch of its own, steps between estimates of L, and the factor by
which L falls at most per step: that of one batch may be far too small."""
NOISY_GROWTH = 0.5
"""With batches the distance behind automatic steps grows by at most this multiple of eta_k per step."""
OUTLIER = 3.0
"""With batches a hypergradient is shortened to this multiple of the usual length."""
SETTLING = 20
"""After this number of steps y0 has little effect, and estimates have the size that "auto" bounds refer to."""


@dataclass(kw_only=True, repr=False)
class DMLCBOState(State):
    """The state of DMLCBO."""

    upper_momentum: Any = like_x()  # w_k
    lower_momentum: Any = like_y(reset="zero")  # v_k
    upper_moment: Any = like_x()  # m2_k
    lower_moment: Any = like_y(reset="keep")  # m1_k: lower levels of one kind have one scale
    upper_floor: Any = like_x()  # 1/c_u for x
    lower_floor: Any = like_y(reset="keep")  # 1/c_u for y
    adjoint: Any = like_y(reset="none")  # warm start of the linear solve
    curvature: float  # L, refreshed at fixed step numbers
    curvature_direction: Any = like_y(reset="none", default=None)  # where g curves by L: the start of the next refresh
    first_x: Any = like_x(default=None)  # x_1, for automatic steps
    distance: float = 0.0  # r_k
    weighted_squares: float = 0.0  # sum of r_i^2 |h_i|^2
    lowest: float = math.inf  # the lowest f so far
    lowest_x: Any = like_x(default=None)  # where it was
    waited: int = 0  # steps since then
    price: float = math.nan  # how much f may change with a residual of the lower level
    gradients: int = PACE_GRADIENTS  # steps of y before Newton steps follow
    lag: float = 0.0  # the share of the last steps at which y was not in pace with x
    noisy: bool = False  # whether f and g differ from call to call, as with batches; then:
    descent: float = 0.0  # sum of r_i^2 <h_i, x_1 - x_i>
    gradient_sum: Any = like_x(default=None)  # sum of r_i^2 h_i
    usual_length: float = 0.0  # of h
    stats: dict[str, float] = field(default_factory=dict)

    @property
    def remark(self) -> str:
        """Whether the lower level lags behind x."""
        if self.lag <= LAGGING:
            return ""
        return (
            f"the lower level lagged behind x at {100 * self.lag:.0f} % of the last steps, so that hypergradients were "
            "inexact: raise pace, or give g more curvature"
        )


@dataclass(frozen=True, kw_only=True)
class DMLCBO(Settings):
    """Single loop, momentum at both levels, a hypergradient through the projection.

    Parameters
    ----------
    upper_step
        gamma, the step of x relative to its scaled hypergradient. "auto" is chosen from the gradients of the run and
        does not depend on the units of x, y, f and g, with and without a `sampler`; f and g that differ between two
        calls at the start are treated like batches.
    lower_step
        tau, the same for y. "auto" is 1/(eta_k L), with L the largest curvature of g in y, so that y moves by 1/L times
        its gradient for any averaging weight eta_k. With a `sampler` it is 1/L, so that the noise of the batches is
        averaged out as eta_k decreases.
    pace
        With both steps "auto": the maximal number of gradients and Hessian products of y per step of x (with batches,
        ten).
    hypergradient
        The estimator of h, which defines Q, eta and delta: `LinearSolve`, `Neumann(terms=Q, eta=...,
        smoothing=Perturbed(radius=delta))` or `Unrolled`. "auto" is `LinearSolve`; if the upper step is automatic too,
        it is smoothed by `Perturbed(radius="auto")`, so that runs leave kinks. With batches, f, g and all products of a
        step share one batch, and the inverse Hessian of a small batch is biased; if the upper step is automatic, "auto"
        is then `AveragedAdjoint`, which has no such bias.
    rate, delay
        t and m of eta_k = t / sqrt(m + k).
    upper_momentum, lower_momentum
        c1 and c2: the weights of a new estimate are c1 eta_k and c2 eta_k (with automatic steps and batches c1 is 1).
    smallest_scale, largest_scale
        c_l and c_u: bounds of the adaptive factor 1/(sqrt(m_i) + G0). "auto" limits the factor to ten times its value
        at the start (at the first step, and again after 20 steps): otherwise normalised steps would not decrease with
        the gradient, and the iterates would cycle.
    offset
        G0 > 0.
    moment_decay
        0.99 in the paper.
    adaptivity
        "scalar": m_i is a mean square, one number per factor of a product set (default); "elementwise": one number per
        entry, correct only when Y is a box or free (erratum 3), with a warning elsewhere.
    refresh
        The curvature behind "auto" is estimated again after this number of steps.

    Examples
    --------
    >>> DMLCBO(upper_step=0.1).upper_step
    0.1
    """

    needs: ClassVar[tuple[Need, ...]] = (PROJECTION, JACOBIAN)

    upper_step: float | Literal["auto"] = "auto"
    lower_step: float | Literal["auto"] = "auto"
    pace: int = 100
    hypergradient: Estimator | Literal["auto"] = "auto"
    rate: float = 1.0
    delay: float = setting(100.0, closed="left")
    upper_momentum: float = 10.0
    lower_momentum: float = 10.0
    smallest_scale: float = 1e-6
    largest_scale: float | Literal["auto"] = "auto"
    offset: float = 1e-8
    moment_decay: float = setting(0.99, high=1.0, closed="left")
    adaptivity: Literal["scalar", "elementwise"] = "scalar"
    refresh: int = 100

    def __post_init__(self) -> None:
        if self.hypergradient != "auto":
            check_object("hypergradient", self.hypergradient, "LinearSolve()", "estimate")
        super().__post_init__()
        if self.largest_scale != "auto" and self.smallest_scale > self.largest_scale:
            raise InvalidInputError(
                f"smallest_scale (c_l) is {self.smallest_scale:g}, above largest_scale (c_u) {self.largest_scale:g}"
            )
        first = self.averaging(1)
        for name, weight in (
            ("rate (t)", first),
            ("upper_momentum (c1)", self.upper_momentum * first),
            ("lower_momentum (c2)", self.lower_momentum * first),
        ):
            if not 0 < weight <= 1:
                raise InvalidInputError(
                    f"{name} gives a first averaging weight of {weight:.4g}: it must lie in (0, 1], "
                    f"where eta_1 = t/sqrt(m + 1) = {first:.4g}; y would leave its set otherwise"
                )

    @classmethod
    def as_published(cls, gamma: float, tau: float, *, eta: float = 0.5, terms: int = 3, delta: float = 1e-6) -> DMLCBO:
        """The paper's box and settings with errata 1 (sphere), 6 (moments) and 12 (means) only.

        Q = 3 terms truncated at random, eta = 0.5, two-point estimates with d2 directions and delta = 1e-6,
        eta_k = 1/sqrt(100 + k), c1 = c2 = 10, elementwise moments. The paper prints no G0, c_l and c_u: here
        G0 = 1e-8, c_l = 1e-3 and c_u = 1e3, so that the clip acts only on vanishing or exploding estimates.

        Examples
        --------
        >>> DMLCBO.as_published(gamma=0.1, tau=0.01).hypergradient.terms
        3
        """
        return cls(
            upper_step=gamma,
            lower_step=tau,
            hypergradient=Neumann(terms=terms, eta=eta, truncation="random", smoothing=TwoPoint(radius=delta)),
            rate=1.0,
            delay=100.0,
            upper_momentum=10.0,
            lower_momentum=10.0,
            smallest_scale=1e-3,
            largest_scale=1e3,
            offset=1e-8,
            adaptivity="elementwise",
        )

    def averaging(self, k: int) -> float:
        """eta_k = t / sqrt(m + k)."""
        return self.rate / math.sqrt(self.delay + k)

    @property
    def estimator(self) -> Estimator:
        """The estimator of h, also where `hypergradient` is "auto"; for f and g that batches do not change."""
        return self._estimator(noisy=False)

    def _estimator(self, noisy: bool) -> Estimator:
        if not isinstance(self.hypergradient, str):
            return self.hypergradient
        return _automatic_estimator(smoothed=self.upper_step == "auto", noisy=noisy)

    def init(self, problem: Problem, x: Vector, y: Vector, seeds: Seeds) -> DMLCBOState:
        """v_1 = grad_y g, w_1 = one sample of the hypergradient, m_i = their squares."""
        self._warn_if_elementwise(problem, x)
        streams = RandomStreams(seeds, 0)
        lin = problem.linearize(x, y, batch_of(problem, streams))
        curvature, direction = self._curvature(lin, streams, Eigenpair(math.nan, None))
        noisy = self._is_noisy(lin)
        estimator, v = self._estimator(noisy), lin.lower_grad_y
        if self.keeps_pace and not noisy:
            tol = FIRST_RESIDUAL * float(problem.y_space(lin.constraint).norm(lin.lower_grad_y))
            solved = solve_near(problem, x, y, curvature=curvature, tol=tol, max_steps=FIRST_STEPS)
            y, curvature = solved.y, solved.curvature
            lin = problem.linearize(x, y)
        elif noisy and self.keeps_pace:
            weight = self.lower_momentum * self.averaging(1)
            y, v = self._noisy_steps(problem, streams, x, y, v, curvature=curvature, weight=weight, count=FIRST_STEPS)
            lin = problem.linearize(x, y, batch_of(problem, streams))
        sample = estimator.estimate(lin, streams, curvature=curvature)
        h, v = sample.gradient, lin.lower_grad_y if not noisy else v
        x_space, y_space = problem.x_space, problem.y_space(lin.constraint)
        distance = self._first_distance(lin, h, curvature) if self.upper_step == "auto" else 0.0
        return DMLCBOState(
            x=x,
            y=y,
            seeds=seeds,
            upper_momentum=h,
            lower_momentum=v,
            upper_moment=self._square(x_space, h),
            lower_moment=self._square(y_space, v),
            upper_floor=self._floor(x_space, h),
            lower_floor=self._floor(y_space, v),
            adjoint=sample.adjoint,
            curvature=curvature,
            curvature_direction=direction,
            stats=sample.stats,
            price=self._price(lin, sample.adjoint, curvature),
            noisy=noisy,
            usual_length=float(x_space.norm(h)) if noisy else 0.0,
            **_started(lin, h, distance, noisy=noisy),
        )

    def _is_noisy(self, lin: Linearization) -> bool:
        return self.upper_step == "auto" and (lin.problem.sampler is not None or changes_between_calls(lin))

    def next_x(self, problem: Problem, state: DMLCBOState) -> Vector:
        """x_{k+1}, which does not depend on y_k."""
        return self._next_x(problem, state, self.averaging(state.step + 1))

    def _next_x(self, problem: Problem, state: DMLCBOState, average: float) -> Vector:
        """P_X(x - scale w); the point of the lowest f after PATIENCE steps in vain."""
        if state.waited >= PATIENCE:
            return state.lowest_x
        if self.upper_step != "auto":
            scale = self._scale(state.upper_moment, state.upper_floor, -average * float(self.upper_step))
        elif state.weighted_squares > 0:
            scale = -(state.distance**2) / math.sqrt(state.weighted_squares)
        else:
            return state.x
        space = problem.x_space
        return problem.project_x(space.add(state.x, space.scaled(state.upper_momentum, scale)))

    def step(self, problem: Problem, state: DMLCBOState) -> DMLCBOState:
        """One iteration."""
        k = state.step + 1
        average, streams = self.averaging(k), RandomStreams(state.seeds, k)
        if self.upper_step == "auto" and state.distance == 0.0:  # the steps before had a given length
            state = replace(
                state, noisy=self._is_noisy(problem.linearize(state.x, state.y, batch_of(problem, streams)))
            )
        x = self._next_x(problem, state, average)
        y, lower_momentum, curvature, lag, gradients = self._next_y(problem, state, streams, x, average)
        lin = problem.linearize(x, y, batch_of(problem, streams))
        known = Eigenpair(curvature, state.curvature_direction)
        curvature, direction = self._curvature(lin, streams, known, noisy=state.noisy)
        sample = self._estimator(state.noisy).estimate(lin, streams, curvature=curvature, start=state.adjoint)
        h, v = sample.gradient, lin.lower_grad_y
        x_space, y_space, settled = problem.x_space, problem.y_space(lin.constraint), k == SETTLING
        upper_weight, usual_length = self.upper_momentum * average, state.usual_length
        if state.waited >= PATIENCE:  # x has jumped
            upper_weight = 1.0
        if state.noisy:
            upper_weight, curvature = average, max(curvature, NOISY_FALL * state.curvature)
            if self.hypergradient == "auto":  # the adjoint has seen more
                curvature = max(curvature, 1.0 / sample.stats["eta"])
            h, usual_length = _shortened(x_space, h, usual_length)
        lower_moment = state.lower_moment  # of the start; steps 1/L need none
        if self.lower_step != "auto":
            lower_moment = self._moment(y_space, v, lower_moment)
        automatic = {}
        if self.upper_step == "auto" and state.distance == 0.0:
            automatic = _started(lin, h, self._first_distance(lin, h, curvature), noisy=state.noisy)
        elif self.upper_step == "auto":
            automatic = _noisy_distance(state, lin, h, average) if state.noisy else _distance(state, lin, h)
        return DMLCBOState(
            x=x,
            y=y,
            step=k,
            seeds=state.seeds,
            upper_momentum=x_space.lerp(state.upper_momentum, h, upper_weight),
            lower_momentum=y_space.lerp(lower_momentum, v, self.lower_momentum * average),
            upper_moment=self._moment(x_space, h, state.upper_moment),
            lower_moment=lower_moment,
            upper_floor=self._floor(x_space, h) if settled else state.upper_floor,
            lower_floor=self._floor(y_space, v) if settled else state.lower_floor,
            adjoint=sample.adjoint,
            curvature=curvature,
            curvature_direction=direction,
            stats=sample.stats,
            price=self._price(lin, sample.adjoint, curvature),
            lag=state.lag + (lag - state.lag) / min(k, LAG_STEPS),
            gradients=gradients,
            noisy=state.noisy,
            usual_length=usual_length,
            **automatic,
        )

    def _first_distance(self, lin: Linearization, h: Vector, curvature: float) -> float:
        """r_1, the step with a predicted decrease of 1 % of |f|, also where h is 0 only because of the constraints."""
        x_space, y_space = lin.problem.x_space, lin.problem.y_space(lin.constraint)
        free = lin.reduced_gradient(y_space.scaled(lin.upper_grad_y, safe_step(curvature)))
        size, value = max(float(x_space.norm(h)), float(x_space.norm(free))), abs(float(lin.upper_value))
        if size == 0.0 or value == 0.0:
            return FIRST_DECREASE * (float(x_space.norm(lin.x)) or 1.0)
        return FIRST_DECREASE * value / size

    @property
    def keeps_pace(self) -> bool:
        """Whether y takes as many steps as it needs."""
        return self.upper_step == self.lower_step == "auto"

    def _price(self, lin: Linearization, adjoint: Vector | None, curvature: float) -> float:
        """|w| + |f_y|/L, how much f may change with the residual of the lower level (`_double_loop.hidden_change`)."""
        if not self.keeps_pace or adjoint is None:
            return math.nan
        space = lin.problem.y_space(lin.constraint)
        return float(space.norm(adjoint)) + float(space.norm(lin.upper_grad_y)) * safe_step(curvature)

    def _next_y(
        self, problem: Problem, state: DMLCBOState, streams: RandomStreams, x: Vector, average: float
    ) -> tuple[Vector, Vector, float, float, int]:
        """y_{k+1}, v, the curvature along the steps of y, 1 if y lags behind x, and the next `gradients`."""
        y, v = state.y, state.lower_momentum
        if not self.keeps_pace:
            y = self._averaged_y(problem, state, average)
        if problem.moving:  # brought back into the set that x has moved
            y = problem.project(problem.constraint_at(x), y)
        if not self.keeps_pace:
            return y, v, state.curvature, 0.0, state.gradients
        if state.noisy:
            weight, count = self.lower_momentum * average, min(NOISY_STEPS, self.pace)
            y, v = self._noisy_steps(problem, streams, x, y, v, curvature=state.curvature, weight=weight, count=count)
            return y, v, state.curvature, 0.0, state.gradients
        space = problem.x_space
        promise = abs(float(space.dot(space.add(x, state.x, -1.0), state.upper_momentum)))
        tol = max(PACE_SHARE * promise / state.price, 1e-300) if state.price > 0 else 1e-300
        first = state.gradients if sum(u.numel() for u in leaves(y)) <= DENSE_LIMIT else self.pace
        solved = solve_near(problem, x, y, curvature=state.curvature, tol=tol, max_steps=self.pace, first=first)
        enough = solved.steps <= first
        gradients = min(2 * first, PACE_GRADIENTS) if enough else max(first // 2, LEAST_GRADIENTS)
        return solved.y, v, solved.curvature, float(not solved.converged), gradients

    def _noisy_steps(
        self,
        problem: Problem,
        streams: RandomStreams,
        x: Vector,
        y: Vector,
        v: Vector,
        *,
        curvature: float,
        weight: float,
        count: int,
    ) -> tuple[Vector, Vector]:
        """y <- (1 - a) y + a P_Y(y - v/L),  v <- (1 - a) v + a grad_y g(x, y),  each time with a new batch."""
        constraint = problem.constraint_at(x)
        space, step = problem.y_space(constraint), safe_step(curvature)
        for i in range(1, count + 1):
            y = space.lerp(y, problem.project(constraint, space.add(y, v, -step)), weight)
            v = space.lerp(v, problem.lower_grad(x, y, batch_of(problem, streams, i)), weight)
        return y, v

    def _averaged_y(self, problem: Problem, state: DMLCBOState, average: float) -> Vector:
        """(1 - eta_k) y + eta_k P_Y(y - scale v) in the set at x_k."""
        constraint = problem.constraint_at(state.x)
        space = problem.y_space(constraint)
        if self.lower_step == "auto":
            weight = average if problem.sampler is None else 1.0
            scale = -1.0 / (weight * state.curvature) if state.curvature > 0 else -1.0
        else:
            scale = self._scale(state.lower_moment, state.lower_floor, -float(self.lower_step))
        y_hat = problem.project(constraint, space.add(state.y, space.scaled(state.lower_momentum, scale)))
        return space.lerp(state.y, y_hat, average)

    def _curvature(
        self, lin: Linearization, streams: RandomStreams, known: Eigenpair, *, noisy: bool = False
    ) -> Eigenpair:
        """L for the "auto" settings, refreshed at fixed step numbers so that a resumed run agrees."""
        if self.lower_step != "auto" and getattr(self.hypergradient, "eta", "auto") != "auto":
            return Eigenpair(math.nan, None)
        refresh = min(self.refresh, NOISY_REFRESH) if noisy else self.refresh
        return known if streams.step % refresh else update_curvature(lin, streams, known.vector)

    def _scale(self, moment: Any, floor: Any, step: float) -> Any:
        """step / clip(sqrt(moment) + G0, 1/c_u, 1/c_l), the clip being the P_[1/c_u, 1/c_l] of the box."""

        def scale(m: Tensor, low: Tensor) -> Tensor:
            return (m.sqrt() + self.offset).clamp(low).clamp(max=1.0 / self.smallest_scale).reciprocal() * step

        return tree_map(scale, moment, floor)

    def _floor(self, space: Space, estimate: Vector) -> Any:
        """1/c_u; for "auto", a tenth of the root mean square of an early estimate."""
        first = space.mean_square(estimate)
        if self.largest_scale == "auto":
            return tree_map(lambda m: 0.1 * m.sqrt(), first)
        return tree_map(lambda m: torch.full_like(m, 1.0 / float(self.largest_scale)), first)

    def _moment(self, space: Space, estimate: Vector, moment: Any) -> Any:
        return space.lerp(self._square(space, estimate), moment, self.moment_decay)

    def _square(self, space: Space, estimate: Vector) -> Any:
        if self.adaptivity == "elementwise":
            return tree_map(torch.square, estimate)
        return space.mean_square(estimate)

    def _warn_if_elementwise(self, problem: Problem, x: Vector) -> None:
        if self.adaptivity != "elementwise":
            return
        sets = (
            [problem.upper_constraint]
            if self.lower_step == "auto"
            else [problem.upper_constraint, problem.constraint_at(x)]
        )
        for constraint in sets:
            if not constraint.separable:
                warnings.warn(
                    f"adaptivity='elementwise' with {constraint!r}: a different step per entry and a Euclidean "
                    "projection do not have the solution as their fixed point (erratum 3); use adaptivity='scalar'",
                    AdaptivityWarning,
                    stacklevel=4,
                )


def _started(lin: Linearization, h: Vector, distance: float, *, noisy: bool = False) -> dict[str, Any]:
    """The fields for automatic steps of x that start at the point of `lin`."""
    return {
        "first_x": lin.x,
        "distance": distance,
        "weighted_squares": (distance * float(lin.problem.x_space.norm(h))) ** 2,
        "gradient_sum": lin.problem.x_space.zeros_like(h) if noisy else None,
        "lowest": float(lin.upper_value),
        "lowest_x": lin.x,
    }


def _distance(state: DMLCBOState, lin: Linearization, h: Vector) -> dict[str, Any]:
    """The fields for automatic steps of x, after a step to the point of `lin`."""
    space, value, distance = lin.problem.x_space, float(lin.upper_value), state.distance
    size = float(space.norm(h))
    if state.waited >= PATIENCE:
        least = max(LEAST * float(space.norm(lin.x)), LEAST**8)  # its square is not to underflow
        return _started(lin, h, max(distance * SHORTENED, least))
    lower = value < state.lowest
    if lower:  # steps do not grow where F is flat
        away = float(space.norm(space.add(lin.x, state.first_x, -1.0)))
        distance = min(max(away, distance), LARGEST_GROWTH * distance)
    return {
        "first_x": state.first_x,
        "distance": distance,
        "weighted_squares": state.weighted_squares + (distance * size) ** 2,
        "lowest": min(value, state.lowest),
        "lowest_x": lin.x if lower else state.lowest_x,
        "waited": 0 if lower or state.step < SEARCHING else state.waited + 1,
    }


def _noisy_distance(state: DMLCBOState, lin: Linearization, h: Vector, average: float) -> dict[str, Any]:
    """The same for f and g with noise."""
    space, distance = lin.problem.x_space, state.distance
    weight, away = distance**2, space.add(lin.x, state.first_x, -1.0)
    descent = state.descent - weight * float(space.dot(h, away))
    gradient_sum = space.add(state.gradient_sum, h, weight)
    size, most = float(space.norm(gradient_sum)), (1.0 + NOISY_GROWTH * average) * distance
    distance = min(max(descent / size, distance), most) if size > 0 else distance
    return {
        "first_x": state.first_x,
        "distance": distance,
        "weighted_squares": state.weighted_squares + (distance * float(space.norm(h))) ** 2,
        "descent": descent,
        "gradient_sum": gradient_sum,
    }


@functools.cache
def _automatic_estimator(*, smoothed: bool, noisy: bool) -> Estimator:
    smoothing = Perturbed(radius="auto") if smoothed else Exact()
    if noisy:
        return AveragedAdjoint(smoothing=smoothing)
    return LinearSolve(tol=1e-3, max_iterations=30, smoothing=smoothing)


def _shortened(space: Space, h: Vector, usual: float) -> tuple[Vector, float]:
    """h, clipped to OUTLIER times its usual length, and the updated usual length."""
    length = float(space.norm(h))
    if length > OUTLIER * usual > 0.0:
        h, length = space.scaled(h, OUTLIER * usual / length), OUTLIER * usual
    return h, math.sqrt(0.99 * usual**2 + 0.01 * length**2)
