"""The theorem of the paper as formulas of a problem's constants, with its corrections.

What differs from print (docs/trust.md gives the reasons; E1 to E7 below refer to that list):

E1  |I - eta G_yy| <= 1 - eta mu holds for 0 < eta <= 2/(mu + L), not for eta < 1/mu (erratum 2).
E2  Perturbed draws H(z + delta u) have norm <= 1: no lower bound on eta, and an explicit smoothing constant.
E3  E |Q prod ...|^2 of the randomly truncated series has a factor Q that the print lost.
E4  grad_y g is C_gxy-Lipschitz in x (not L_g): L_y = C_gxy/mu, and L_2 has C_gxy and one eta less.
E5  L_0^2 = L_1^2 + L_2^2: a joint Lipschitz constant, not the larger of the two.
E6  c_l = c_u = 1: the descent lemma needs the same factor above and below.
E7  c_1 >= 9/2 (not 9 gamma/2), and the noise term of G is c_1^2 t^2 sigma^2 ln((m + K)/m) / gamma.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from .._checks import check_choice, check_count, check_number
from ..errors import InvalidInputError, InvalidTypeError
from ..hypergradients import Neumann
from ..hypergradients.smoothing import Perturbed
from ..solvers.dmlcbo import DMLCBO
from .constants import Constants

MOST_STEPS = 10**100
"""The bound is not asked for more steps than this."""
LARGEST = 1e100
"""Constants that follow from others stay below this, and steps above its inverse: their powers are then finite."""


def smoothing_lipschitz(dimension: int, delta: float) -> float:
    """Lipschitz constant of z -> E[H(z + delta u)], u uniform in the ball: V_{d-1} / (V_d delta) (E2).

    Two balls whose centres are r apart share all but a part r V_{d-1}/(V_d delta) of their volume, and 0 <= H <= I.
    About sqrt(d / 2 pi) / delta, where the paper has c d / delta; sharp for half-spaces: 1/(2 delta) for max(z, 0).

    Parameters
    ----------
    dimension
        d, the number of entries of y.
    delta
        The radius of the ball.

    Returns
    -------
    float
        The constant.

    Examples
    --------
    >>> round(smoothing_lipschitz(1, 0.1), 12)
    5.0
    """
    check_count("dimension", dimension)
    check_number("delta", delta)
    log_ratio = math.lgamma(dimension / 2 + 1) - math.lgamma((dimension + 1) / 2) - 0.5 * math.log(math.pi)
    return math.exp(log_ratio) / delta


def printed_eta_range(mu: float, dimension: int) -> tuple[float, float]:
    """(1/mu) (1 - 1/(4 (2 pi)^{1/4} sqrt(d))) <= eta < 1/mu, the range of eta in the theorem as printed.

    Together with eta < 2/L it is empty from condition number 2.4 (theorem 4.1 of the paper; erratum 2).

    Parameters
    ----------
    mu
        Strong convexity of g in y.
    dimension
        d_2, the number of entries of y.

    Returns
    -------
    tuple of float
        The lower and the upper end.

    Examples
    --------
    >>> low, high = printed_eta_range(1.0, 784)
    >>> round(low, 3), high
    (0.994, 1.0)
    """
    check_number("mu", mu)
    check_count("dimension", dimension)
    return (1 - 1 / (4 * (2 * math.pi) ** 0.25 * math.sqrt(dimension))) / mu, 1 / mu


def _check_steps(steps: Any) -> None:
    """A whole number of steps; bounds ask for more of them than anyone can take."""
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= MOST_STEPS:
        raise InvalidInputError(f"steps must be an integer from 1 to {MOST_STEPS:.0e}, got {steps!r}")


@dataclass(frozen=True, kw_only=True)
class Theory:
    """Constants, ranges and the bound of Theorem 4.1 (appendix K.2), corrected.

    Parameters
    ----------
    constants
        The constants of the problem: `Constants(...)`, or `estimate_constants(problem, x)`.
    delta
        The smoothing radius, in the units of y.
    eta
        The step of the fixed-point map; default 1/L_g. At most 2/(mu + L_g) (E1).
    exponent
        a in [0, 2]: the weight of the lower level in the Lyapunov function is L_0^a.
    rate
        t of eta_k = t / sqrt(m + k).
    truncation
        "full": all terms of the series; "random": the paper's estimator.

    Examples
    --------
    >>> constants = Constants(mu=1, smoothness=1, cross=1, upper_slope=1, upper_smoothness=0, dimension=1)
    >>> theory = Theory(constants=constants, delta=1.0)
    >>> round(theory.lipschitz_y, 3), round(theory.lipschitz_x, 3), theory.steps_for(0.1, gap=1.0) > 1e8
    (1.0, 0.5, True)
    """

    constants: Constants
    delta: float
    eta: float | None = None
    exponent: float = 2.0
    rate: float = 1.0
    truncation: Literal["full", "random"] = "full"

    def __post_init__(self) -> None:
        if not isinstance(self.constants, Constants):
            raise InvalidTypeError(f"constants must be bilevel.diagnostics.Constants(...), got {self.constants!r}")
        for name in ("delta", "rate", "eta"):
            if not (name == "eta" and self.eta is None):
                check_number(name, getattr(self, name))
        check_number("exponent", self.exponent, high=2.0, closed="both")
        check_choice("truncation", self.truncation, ("full", "random"))
        low, high = self.eta_range
        if not low < self.step <= high:
            raise InvalidInputError(
                f"eta = {self.step:g} is outside (0, 2/(mu + L)] = (0, {high:g}]: the series may diverge"
            )
        self._check_sizes()

    def _check_sizes(self) -> None:
        """What follows from the constants are numbers that float64 has."""
        try:
            large = (self.lipschitz_gradient, self.delay, self.terms(MOST_STEPS), self.variance(MOST_STEPS))
            fits = max(large) < LARGEST and min(self.lower_step, self.upper_step) > 1 / LARGEST
        except (OverflowError, ZeroDivisionError):
            fits = False
        if not fits:
            raise InvalidInputError(
                f"{self.constants} and delta = {self.delta:g}, rate = {self.rate:g} lead to numbers that float64 does "
                "not have: measure f, g, x and y in other units"
            )

    @property
    def step(self) -> float:
        """eta."""
        return 1 / self.constants.smoothness if self.eta is None else self.eta

    @property
    def eta_range(self) -> tuple[float, float]:
        """0 < eta <= 2/(mu + L) (E1)."""
        return 0.0, 2 / (self.constants.mu + self.constants.smoothness)

    @property
    def contraction(self) -> float:
        """|(I - eta G_yy) H| <= 1 - eta mu."""
        return 1 - self.step * self.constants.mu

    @property
    def lipschitz_solution(self) -> float:
        """L_y = C_gxy / mu of y*(x) (E4)."""
        return self.constants.cross / self.constants.mu

    @property
    def lipschitz_y(self) -> float:
        """L_1, of the smoothed hypergradient h(x, y) in y."""
        return self._lipschitz(1 + self.step * self.constants.smoothness)

    @property
    def lipschitz_x(self) -> float:
        """L_2, of the smoothed hypergradient h(x, y) in x (E4)."""
        return self._lipschitz(self.step * self.constants.cross)

    def _lipschitz(self, speed: float) -> float:
        """L_f (1 + C_gxy/mu) + C_fy (L_gxy/mu + C_gxy (D/mu + (1 - eta mu) D/(eta mu^2) + L_gyy/mu^2)).

        D is the Lipschitz constant of H along a variable that moves z with `speed`.
        """
        c, eta = self.constants, self.step
        D = smoothing_lipschitz(c.dimension, self.delta) * speed
        through_inverse = self.contraction * D / (eta * c.mu**2) + c.hessian_smoothness / c.mu**2
        bent = c.cross_smoothness / c.mu + c.cross * (D / c.mu + through_inverse)
        return c.upper_smoothness * (1 + c.cross / c.mu) + c.upper_slope * bent

    @property
    def lipschitz(self) -> float:
        """L_0 = sqrt(L_1^2 + L_2^2), at least 1 (E5)."""
        return max(1.0, math.hypot(self.lipschitz_y, self.lipschitz_x))

    @property
    def lipschitz_gradient(self) -> float:
        """L_F = L_y L_1 + L_2, of the gradient of the smoothed F."""
        return self.lipschitz_solution * self.lipschitz_y + self.lipschitz_x

    def bias(self, terms: int) -> float:
        """|E h_Q - h| <= C_gxy C_fy / mu (1 - eta mu)^Q."""
        check_count("terms", terms)
        c = self.constants
        return c.cross * c.upper_slope / c.mu * self.contraction**terms

    def terms(self, steps: int) -> int:
        """Q = ln(C_gxy C_fy K / mu) / (eta mu): enough for a bias of 1/K."""
        _check_steps(steps)
        c = self.constants
        needed = math.log(max(c.cross * c.upper_slope * steps / c.mu, 1.0)) / (self.step * c.mu)
        return max(1, math.ceil(needed))

    def variance(self, steps: int) -> float:
        """sigma^2 >= E |h_Q - E h_Q|^2 with perturbed draws.

        (C_gxy C_fy / mu)^2 for the full sum, eta^2 C_gxy^2 C_fy^2 Q / (1 - (1 - eta mu)^2) with random truncation (E3).
        """
        _check_steps(steps)
        c = self.constants
        if self.truncation == "full":
            return (c.cross * c.upper_slope / c.mu) ** 2
        size = self.step * c.cross * c.upper_slope
        return size**2 * self.terms(steps) / (1 - self.contraction**2)

    @property
    def lower_drift(self) -> float:
        """2/3 L_0^2 + 6 mu^2 L^2 / (125 L_0^2), L the joint Lipschitz constant of grad_y g (E4)."""
        c = self.constants
        joint = max(c.smoothness, c.cross)
        return 2 / 3 * self.lipschitz**2 + 6 * c.mu**2 * joint**2 / (125 * self.lipschitz**2)

    @property
    def lower_step(self) -> float:
        """The largest tau: min of 1/(6 L_g) and 15 L_0^a / (2 mu (2/3 L_0^2 + ...))."""
        c = self.constants
        return min(1 / (6 * c.smoothness), 15 * self.lipschitz**self.exponent / (2 * c.mu * self.lower_drift))

    @property
    def upper_step(self) -> float:
        """The largest gamma of the four bounds of the theorem."""
        c, L, a = self.constants, self.lipschitz, self.exponent
        drift = 125 * L**a * self.lipschitz_solution**2 / (3 * self.lower_step**2 * c.mu**2)
        first = self.rate / math.sqrt(self.delay + 1)
        return min(
            L ** (a - 2),
            1 / (2 * max(self.lipschitz_gradient, 1e-300) * first),
            1 / (4 * (drift + self.lower_drift)),
            2 * math.sqrt(self.delay) / (9 * self.rate),
        )

    @property
    def upper_momentum(self) -> float:
        """The smallest c_1 (E7)."""
        return 4.5

    @property
    def lower_momentum(self) -> float:
        """The smallest c_2 = 125 L_0^2 / (3 mu^2)."""
        return 125 * self.lipschitz**2 / (3 * self.constants.mu**2)

    @property
    def delay(self) -> float:
        """The smallest m = max(1, c_1, c_2)^2 t^2."""
        return (max(1.0, self.upper_momentum, self.lower_momentum) * self.rate) ** 2

    def bound(self, steps: int, *, gap: float, lower_error: float = 0.0) -> float:
        """E |h| at an iterate drawn uniformly from K steps is at most sqrt(12 G sqrt(m + K) / (t K)).

        G = (Phi_1 - Phi*)/gamma + 17/(4 K^2) sum eta_k + 6/(gamma c_1 K^2) sum 1/eta_k
        + c_1^2 t^2 sigma^2 ln((m + K)/m)/gamma. As in the paper, the smoothed hypergradient is taken for a gradient.
        sigma^2 is the noise of smoothing and truncation alone: for problems with `sampler=None`.

        Parameters
        ----------
        steps
            K.
        gap
            F(x_1) - min F.
        lower_error
            |y_1 - y*(x_1)|.
        """
        _check_steps(steps)
        check_number("gap", gap, closed="left")
        check_number("lower_error", lower_error, closed="left")
        m, t, gamma, K = self.delay, self.rate, self.upper_step, float(steps)
        distance = float(lower_error) * lower_error
        start = 10 * self.lipschitz**self.exponent / (self.lower_step * self.constants.mu) * distance
        first = (gap + start + self.variance(steps)) / gamma
        averaging = 17 / (4 * K**2) * 2 * t * (math.sqrt(m + K) - math.sqrt(m))
        biases = 6 / (gamma * self.upper_momentum * t * K**2) * 2 / 3 * ((m + K + 1) ** 1.5 - m**1.5)
        noise = (self.upper_momentum * t) ** 2 * self.variance(steps) * math.log1p(K / m) / gamma
        bound = math.sqrt(12 * (first + averaging + biases + noise) * math.sqrt(m + K) / (t * K))
        if bound == math.inf:
            raise InvalidInputError(f"the bound for gap = {gap:g} and lower_error = {lower_error:g} is beyond float64")
        return bound

    def steps_for(self, eps: float, *, gap: float, lower_error: float = 0.0) -> int:
        """The number of steps after which the bound is at most eps."""
        check_number("eps", eps)
        low, high = 0, 1
        while self.bound(high, gap=gap, lower_error=lower_error) > eps:
            low, high = high, 2 * high
            if high > MOST_STEPS:
                raise InvalidInputError(f"eps = {eps:g} needs more than {MOST_STEPS:.0e} steps: take a larger one")
        while high - low > max(1, high // 1000):
            middle = (low + high) // 2
            enough = self.bound(middle, gap=gap, lower_error=lower_error) <= eps
            low, high = (low, middle) if enough else (middle, high)
        return high

    def __str__(self) -> str:
        c = self.constants
        return "\n".join(
            [
                f"condition number {c.condition:.3g}; eta = {self.step:.3g} of (0, {self.eta_range[1]:.3g}]",
                f"L_1 = {self.lipschitz_y:.3g}, L_2 = {self.lipschitz_x:.3g}, L_F = {self.lipschitz_gradient:.3g}",
                f"gamma <= {self.upper_step:.3g}, tau <= {self.lower_step:.3g}",
                f"c_1 >= {self.upper_momentum:.3g}, c_2 >= {self.lower_momentum:.3g}, m >= {self.delay:.3g}",
            ]
        )


def dmlcbo_from_theory(theory: Theory, *, eps: float, gap: float, lower_error: float = 0.0) -> tuple[DMLCBO, int]:
    """DMLCBO with the settings of the theorem at its largest steps, and the steps its bound needs for |h| <= eps.

    The factors are fixed (c_l = c_u = 1), and the series has perturbed draws; see `Theory` for the corrections. The
    bound is far from sharp: expect an impractical number of steps. It does not include the noise of batches and
    therefore holds only for problems with `sampler=None`.

    Parameters
    ----------
    theory
        `Theory(constants=..., delta=...)`.
    eps
        The target for the norm of the smoothed hypergradient, in expectation at an iterate drawn uniformly.
    gap, lower_error
        F(x_1) - min F, and |y_1 - y*(x_1)|.

    Examples
    --------
    >>> constants = Constants(mu=1, smoothness=2, cross=1, upper_slope=1, upper_smoothness=1, dimension=3)
    >>> solver, steps = dmlcbo_from_theory(Theory(constants=constants, delta=0.1), eps=0.1, gap=1.0)
    >>> solver.hypergradient.terms, f"{steps:.0e}"
    (124, '7e+26')
    """
    if not isinstance(theory, Theory):
        raise InvalidTypeError(f"theory must be bilevel.diagnostics.Theory(...), got {theory!r}")
    steps = theory.steps_for(eps, gap=gap, lower_error=lower_error)
    series = Neumann(
        terms=theory.terms(steps),
        eta=theory.step,
        truncation=theory.truncation,
        smoothing=Perturbed(radius=theory.delta),
    )
    solver = DMLCBO(
        upper_step=theory.upper_step,
        lower_step=theory.lower_step,
        hypergradient=series,
        rate=theory.rate,
        delay=theory.delay,
        upper_momentum=theory.upper_momentum,
        lower_momentum=theory.lower_momentum,
        smallest_scale=1.0,
        largest_scale=1.0,
    )
    return solver, steps
