"""DMLCBO: the double momentum method for lower-level constrained bilevel optimisation (Shi, Chang & Gu, ICML 2024).

One loop moves both levels; v and w are momentum estimates of grad_y g and of the hypergradient:

    x_{k+1} = P_X( x_k - eta_k gamma / clip(sqrt(m2_k) + G0, 1/c_u, 1/c_l) w_k )
    y_{k+1} = (1 - eta_k) y_k + eta_k P_Y( y_k - tau / clip(sqrt(m1_k) + G0, 1/c_u, 1/c_l) v_k )
    w_{k+1} = (1 - c1 eta_k) w_k + c1 eta_k h(x_{k+1}, y_{k+1})
    v_{k+1} = (1 - c2 eta_k) v_k + c2 eta_k grad_y g(x_{k+1}, y_{k+1})
    m_i     = 0.99 m_i + 0.01 (raw estimate)^2,        eta_k = t / sqrt(m + k)

y stays in Y because it is a convex combination of points of Y.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch

from ..curvature import largest_curvature
from ..diagnostics.theory import Theory
from ..errors import InvalidInput, InvalidType
from ..hypergradients import Estimator, Hypergradient, LinearSolve, Neumann
from ..problem import Linearization, Problem
from ..randomness import Seeds
from ..smoothing import Perturbed, TwoPoint
from ..spaces import Vector, tree_map
from .base import JACOBIAN, PROJECTION, Need, State, batch_of

SETTLING = 20
"""After so many steps an arbitrary y0 is forgotten, and the estimates have the size that "auto" bounds refer to."""


class AdaptivityWarning(UserWarning):
    """Elementwise steps with a projection that does not act entry by entry: fixed points are not solutions.

    Examples
    --------
    >>> import bilevel, torch, warnings
    >>> problem = bilevel.Problem(
    ...     lambda x, y: y.sum(), lambda x, y: (y - x).square().sum(), bilevel.sets.L1Ball(1.0), y0=torch.zeros(2)
    ... )
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     solver = DMLCBO(adaptivity="elementwise", lower_step=0.1)
    ...     solution = bilevel.minimize(problem, torch.ones(2), solver=solver, steps=1)
    >>> caught[0].category.__name__
    'AdaptivityWarning'
    """


@dataclass(kw_only=True, repr=False)
class DMLCBOState(State):
    """The state of DMLCBO."""

    upper_momentum: Any  # w_k
    lower_momentum: Any  # v_k
    upper_moment: Any  # m2_k
    lower_moment: Any  # m1_k
    upper_floor: Any  # 1/c_u for x
    lower_floor: Any  # 1/c_u for y
    adjoint: Any  # warm start of the linear solve
    curvature: float  # L, refreshed at fixed step numbers
    carried: Any = None  # what the linearisation carries along, likewise
    stats: dict[str, float] = field(default_factory=dict)

    def _begun_anew(self, y: Vector) -> dict[str, Any]:
        """No momentum of y yet, and no adjoint; scale and floor of its steps are those of lower levels like it."""
        return {"lower_momentum": tree_map(torch.zeros_like, y), "adjoint": None, "carried": None}


@dataclass(frozen=True, kw_only=True)
class DMLCBO:
    """Single loop, momentum at both levels, a hypergradient through the projection.

    Parameters
    ----------
    upper_step
        gamma: how far x moves in units of its own scaled hypergradient.
    lower_step
        tau: likewise for y. "auto" needs no scale of its own: it takes 1/(eta_k L), L the largest curvature of g in y,
        so that y moves by 1/L of its gradient whatever the averaging weight eta_k. With a `sampler` it takes 1/L, so
        that the noise of the batches is averaged out as eta_k falls.
    hypergradient
        The estimator h, which carries Q, eta and delta: `LinearSolve`, `Neumann(terms=Q, eta=...,
        smoothing=Perturbed(radius=delta))` or `Unrolled`. With a `sampler`, f, g and all products of a step share
        one batch: on small batches (not many times the dimension of y) any inverse of a batch's Hessian is biased.
    rate, delay
        t and m of eta_k = t / sqrt(m + k).
    upper_momentum, lower_momentum
        c1 and c2: the weights of a new estimate are c1 eta_k and c2 eta_k.
    smallest_scale, largest_scale
        c_l and c_u: bounds of the adaptive factor 1/(sqrt(m_i) + G0). "auto" lets the factor grow to ten times what
        the estimates give at the start (at the first step, and again after 20 steps) and no further: normalised steps
        would otherwise never shrink with the gradient, and circle.
    offset
        G0 > 0.
    moment_decay
        0.99 in the paper.
    adaptivity
        "scalar": m_i is a mean square, one number per factor of a product set (default); "elementwise": one number per
        entry, correct only when Y is a box or free (erratum 3), with a warning elsewhere.
    refresh
        The curvature behind "auto", and what a linearisation carries along, are computed anew every so many steps.

    Examples
    --------
    >>> DMLCBO(upper_step=0.1).upper_step
    0.1
    """

    needs: ClassVar[tuple[Need, ...]] = (PROJECTION, JACOBIAN)

    upper_step: float = 0.1
    lower_step: float | Literal["auto"] = "auto"
    hypergradient: Estimator = LinearSolve(tol=1e-3, max_iterations=30)  # noqa: RUF009  (frozen)
    rate: float = 1.0
    delay: float = 100.0
    upper_momentum: float = 10.0
    lower_momentum: float = 10.0
    smallest_scale: float = 1e-6
    largest_scale: float | Literal["auto"] = "auto"
    offset: float = 1e-8
    moment_decay: float = 0.99
    adaptivity: Literal["scalar", "elementwise"] = "scalar"
    refresh: int = 100

    def __post_init__(self) -> None:
        if isinstance(self.hypergradient, type) or not hasattr(self.hypergradient, "estimate"):
            raise InvalidType(f"hypergradient must be an object such as LinearSolve(), got {self.hypergradient!r}")
        positive = ("upper_step", "lower_step", "rate", "smallest_scale", "largest_scale", "offset")
        for name in (*positive, "upper_momentum", "lower_momentum"):
            if not (name in ("lower_step", "largest_scale") and getattr(self, name) == "auto"):
                _positive(name, getattr(self, name))
        if not (isinstance(self.delay, int | float) and self.delay >= 0):
            raise InvalidInput(f"delay (m) must be at least 0, got {self.delay!r}")
        if not (isinstance(self.moment_decay, int | float) and 0 <= self.moment_decay < 1):
            raise InvalidInput(f"moment_decay must lie in [0, 1), got {self.moment_decay!r}")
        if self.largest_scale != "auto" and self.smallest_scale > self.largest_scale:
            raise InvalidInput(
                f"smallest_scale (c_l) is {self.smallest_scale:g}, above largest_scale (c_u) {self.largest_scale:g}"
            )
        if self.adaptivity not in ("scalar", "elementwise"):
            raise InvalidInput(f'adaptivity must be "scalar" or "elementwise", got {self.adaptivity!r}')
        if not isinstance(self.refresh, int) or self.refresh < 1:
            raise InvalidInput(f"refresh must be a positive integer, got {self.refresh!r}")
        first = self.averaging(1)
        for name, weight in (
            ("rate (t)", first),
            ("upper_momentum (c1)", self.upper_momentum * first),
            ("lower_momentum (c2)", self.lower_momentum * first),
        ):
            if not 0 < weight <= 1:
                raise InvalidInput(
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

    @classmethod
    def from_theory(cls, theory: Theory, *, eps: float, gap: float, lower_error: float = 0.0) -> tuple[DMLCBO, int]:
        """The settings of the theorem at its largest steps, and how many steps its bound needs for |h| <= eps.

        The factors are fixed (c_l = c_u = 1), and the series has perturbed draws; see `bilevel.Theory` for the
        corrections. The bound is far from sharp: expect a number of steps that nobody can take. It counts no noise of
        batches: for problems with `sampler=None`.

        Parameters
        ----------
        theory
            `Theory(constants=..., delta=...)`.
        eps
            The norm of the smoothed hypergradient to reach, in expectation at an iterate drawn uniformly.
        gap, lower_error
            F(x_1) - min F, and |y_1 - y*(x_1)|.

        Examples
        --------
        >>> import bilevel
        >>> constants = bilevel.Constants(mu=1, smoothness=2, cross=1, upper_slope=1, upper_smoothness=1, dimension=3)
        >>> solver, steps = DMLCBO.from_theory(bilevel.Theory(constants=constants, delta=0.1), eps=0.1, gap=1.0)
        >>> solver.hypergradient.terms, f"{steps:.0e}"
        (124, '7e+26')
        """
        if not isinstance(theory, Theory):
            raise InvalidType(f"theory must be bilevel.Theory(...), got {theory!r}")
        steps = theory.steps_for(eps, gap=gap, lower_error=lower_error)
        solver = cls(
            upper_step=theory.upper_step,
            lower_step=theory.lower_step,
            hypergradient=Neumann(
                terms=theory.terms(steps),
                eta=theory.step,
                truncation=theory.truncation,  # type: ignore[arg-type]
                smoothing=Perturbed(radius=theory.delta),
            ),
            rate=theory.rate,
            delay=theory.delay,
            upper_momentum=theory.upper_momentum,
            lower_momentum=theory.lower_momentum,
            smallest_scale=1.0,
            largest_scale=1.0,
        )
        return solver, steps

    def averaging(self, k: int) -> float:
        """eta_k = t / sqrt(m + k)."""
        return self.rate / math.sqrt(self.delay + k)

    def init(self, problem: Problem, x: Vector, y: Vector, seeds: Seeds) -> DMLCBOState:
        """v_1 = grad_y g, w_1 = one hypergradient sample, m_i = their squares."""
        self._warn_if_elementwise(problem, x)
        state = DMLCBOState(
            x=x, y=y, seeds=seeds, step=0, upper_momentum=None, lower_momentum=None, upper_moment=None,
            lower_moment=None, upper_floor=None, lower_floor=None, adjoint=None, curvature=math.nan,
        )  # fmt: skip
        lin = problem.linearize(x, y, batch_of(problem, state.noise(), y))
        state.curvature, state.carried = self._curvature(lin, state, 0), lin.carried
        sample = self._sample(lin, state, 0)
        state.adjoint, state.stats = sample.adjoint, sample.stats
        state.upper_momentum, state.lower_momentum = sample.gradient, lin.lower_grad_y
        state.upper_moment = self._square(problem.x_space, sample.gradient)
        state.lower_moment = self._square(problem.y_space(lin.constraint), lin.lower_grad_y)
        y_space = problem.y_space(lin.constraint)
        self._set_floors(state, problem.x_space.mean_square(sample.gradient), y_space.mean_square(lin.lower_grad_y))
        return state

    def next_x(self, problem: Problem, state: DMLCBOState) -> Vector:
        """x_{k+1}, which does not depend on y_k."""
        scale = self._scale(state.upper_moment, state.upper_floor, self.averaging(state.step + 1) * self.upper_step)
        return problem.upper_constraint.project(problem.x_space.add(state.x, state.upper_momentum, _negative(scale)))

    def step(self, problem: Problem, state: DMLCBOState) -> DMLCBOState:
        """One pass through the box."""
        fused = problem.fused_step(self)
        after = None if fused is None else fused(problem, state)
        return self._step(problem, state) if after is None else after

    def _step(self, problem: Problem, state: DMLCBOState) -> DMLCBOState:
        k = state.step + 1
        average = self.averaging(k)
        x_space, x = problem.x_space, self.next_x(problem, state)
        constraint = problem.constraint_at(state.x)
        y_space, y = problem.y_space(constraint), state.y

        lower_scale = self._lower_scale(state, average if problem.sampler is None else 1.0)
        y_hat = problem.project(constraint, y_space.add(y, state.lower_momentum, _negative(lower_scale)))
        lin = self._linearize(problem, state, x, y_hat, average)
        curvature = self._curvature(lin, state, k)
        state = DMLCBOState(
            **{**vars(state), "x": x, "y": lin.y, "step": k, "curvature": curvature, "carried": lin.carried}
        )
        sample = self._sample(lin, state, k)
        decay = self.moment_decay
        state.upper_moment = x_space.lerp(self._square(x_space, sample.gradient), state.upper_moment, decay)
        state.lower_moment = y_space.lerp(self._square(y_space, lin.lower_grad_y), state.lower_moment, decay)
        state.upper_momentum = x_space.lerp(state.upper_momentum, sample.gradient, self.upper_momentum * average)
        state.lower_momentum = y_space.lerp(state.lower_momentum, lin.lower_grad_y, self.lower_momentum * average)
        state.adjoint, state.stats = sample.adjoint, sample.stats
        if k == SETTLING:
            self._set_floors(state, x_space.mean_square(sample.gradient), y_space.mean_square(lin.lower_grad_y))
        return state

    def _linearize(self, problem: Problem, state: DMLCBOState, x: Vector, y_hat: Vector, average: float) -> Any:
        """At x and (1 - eta_k) y + eta_k y_hat, brought back into a set that x has moved."""
        k = state.step + 1
        if state.carried is not None and k % self.refresh != 0:
            return problem.linearize(state.x, state.y).carrying(state.carried).step_to(x, y_hat, average)
        y = problem.y_space(problem.constraint_at(x)).lerp(state.y, y_hat, average)
        if problem.moving:
            y = problem.project(problem.constraint_at(x), y)
        return problem.linearize(x, y, batch_of(problem, state.noise(k), y))

    def _sample(self, lin: Linearization, state: DMLCBOState, k: int) -> Hypergradient:
        return self.hypergradient.estimate(lin, state.noise(k), curvature=state.curvature, start=state.adjoint)

    def _curvature(self, lin: Linearization, state: DMLCBOState, k: int) -> float:
        """L for the "auto" settings, refreshed at fixed step numbers so that a resumed run agrees."""
        if self.lower_step != "auto" and self.hypergradient.eta != "auto":
            return math.nan
        if k % self.refresh != 0:
            return state.curvature
        return largest_curvature(lin, noise=state.noise(k))

    def _lower_scale(self, state: DMLCBOState, average: float) -> Any:
        if self.lower_step == "auto":
            return 1.0 / (average * state.curvature) if state.curvature > 0 else 1.0
        return self._scale(state.lower_moment, state.lower_floor, float(self.lower_step))

    def _scale(self, moment: Any, floor: Any, step: float) -> Any:
        """step / clip(sqrt(moment) + G0, 1/c_u, 1/c_l), the clip being the P_[1/c_u, 1/c_l] of the box."""
        ceiling = 1.0 / self.smallest_scale
        return tree_map(
            lambda m, low: step / torch.minimum(torch.maximum(m.sqrt() + self.offset, low), low.new_tensor(ceiling)),
            moment,
            floor,
        )

    def _set_floors(self, state: DMLCBOState, upper: Any, lower: Any) -> None:
        state.upper_floor, state.lower_floor = self._floor(upper), self._floor(lower)

    def _floor(self, first: Any) -> Any:
        """1/c_u; for "auto", a tenth of the root mean square of an early estimate."""
        if self.largest_scale == "auto":
            return tree_map(lambda m: 0.1 * m.sqrt(), first)
        return tree_map(lambda m: torch.full_like(m, 1.0 / float(self.largest_scale)), first)

    def _square(self, space: Any, estimate: Vector) -> Any:
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


def _negative(scale: Any) -> Any:
    return tree_map(lambda s: -s, scale)


def _positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InvalidInput(f"{name} must be a positive number, got {value!r}")
