"""The formulas of the theory against quantities that can be computed, and against what is printed."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from scipy.special import betainc

import bilevel
from bilevel import Neumann, Problem, sets
from bilevel.diagnostics import Constants, Theory, dmlcbo_from_theory, estimate_constants, smoothing_lipschitz
from bilevel.random import RandomStreams
from bilevel.testing.known_problems import known_problems

UNIT = Constants(mu=1, smoothness=1, cross=1, upper_slope=1, upper_smoothness=0, dimension=1)


def vector(*entries):
    return torch.tensor(entries, dtype=torch.float64)


@pytest.mark.parametrize("dimension", [1, 2, 3, 10, 100])
def test_the_smoothing_constant_is_sharp_for_a_half_space(dimension):
    """E H = I - p n n' with p = P(u_1 > -s/delta) and u_1^2 ~ Beta(1/2, (d+1)/2): dp/ds is the constant at s = 0."""
    delta, s = 0.3, 1e-5
    slope = betainc(0.5, (dimension + 1) / 2, (s / delta) ** 2) / (2 * s)
    assert smoothing_lipschitz(dimension, delta) == pytest.approx(float(slope), rel=1e-3)
    assert smoothing_lipschitz(dimension, delta) <= math.sqrt((dimension + 1) / (2 * math.pi)) / delta


def wide_cross(x, y, delta):
    """The smoothed hypergradient of g = (y - 3x)^2/2 on y >= 0, f = y, eta = 1: 3 E H(z), z = 3x, H = [z > 0]."""
    z = y - (y - 3 * x)
    return 3 * min(max((z + delta) / (2 * delta), 0.0), 1.0)


def test_lipschitz_constants_hold_and_are_sharp_where_the_printed_one_fails():
    """Correction E4: C_gxy = 3 and L_g = 1. In x the slope is 9/(2 delta); print says L_g C_gxy/(2 delta)."""
    delta = 0.2
    constants = Constants(mu=1, smoothness=1, cross=3, upper_slope=1, upper_smoothness=0, dimension=1)
    theory = Theory(constants=constants, delta=delta)
    slope = (wide_cross(1e-4, 0.0, delta) - wide_cross(-1e-4, 0.0, delta)) / 2e-4
    assert slope == pytest.approx(theory.lipschitz_x, rel=1e-9)
    assert slope > 2.9 * (3 * 1 / (2 * delta))
    assert theory.lipschitz_solution == 3  # y*(x) = max(3x, 0)
    assert theory.lipschitz == pytest.approx(math.hypot(theory.lipschitz_x, theory.lipschitz_y))


def test_the_lipschitz_constant_in_y_bounds_the_slope():
    """g = y^2 - x y (mu = L = 2) on y >= 0 and f = y: h = eta H/(1 - (1 - 2 eta) H), z = (1 - 2 eta) y + eta x."""
    delta, eta = 0.2, 0.3
    constants = Constants(mu=2, smoothness=2, cross=1, upper_slope=1, upper_smoothness=0, dimension=1)
    theory = Theory(constants=constants, delta=delta, eta=eta)

    def h(x, y):
        z = (1 - 2 * eta) * y + eta * x
        H = min(max((z + delta) / (2 * delta), 0.0), 1.0)
        return eta * H / (1 - (1 - 2 * eta) * H)

    grid = [k / 100 for k in range(-60, 60)]
    in_y = max(abs(h(x, y + 1e-5) - h(x, y)) / 1e-5 for x in grid[::10] for y in grid)
    in_x = max(abs(h(x + 1e-5, y) - h(x, y)) / 1e-5 for x in grid for y in grid[::10])
    assert 0 < in_y <= theory.lipschitz_y
    assert 0 < in_x <= theory.lipschitz_x


def test_random_truncation_has_a_variance_that_grows_with_the_terms():
    """Correction E3: h is Q eta (1 - eta)^c with c uniform in {0..Q-1}; at Q = 200 print is too small by far."""
    problem = Problem(lambda x, y: y.sum(), lambda x, y: (y - x).square().sum() / 2, y0=vector(0.0))
    lin, eta, terms = problem.linearize(vector(0.0), vector(0.0)), 0.05, 200
    values = terms * eta * (1 - eta) ** torch.arange(terms).double()
    method = Neumann(terms=terms, eta=eta, truncation="random")
    for k in range(10):
        drawn = float(method.estimate(lin, RandomStreams(step=k)).gradient)
        assert float((values - drawn).abs().min()) < 1e-9
    theory = Theory(constants=UNIT, delta=1e-6, eta=eta, truncation="random")
    steps = next(k for k in range(1, 10**6, 100) if theory.terms(k) >= terms)
    printed = eta**2 / (1 - theory.contraction**2)
    assert 100 * printed < float(values.var(correction=0)) <= theory.variance(steps)
    assert Theory(constants=UNIT, delta=1e-6, eta=eta).variance(steps) == 1.0


def test_the_map_contracts_up_to_the_end_of_the_range_of_eta_and_not_beyond():
    """Correction E1: |I - eta G| <= 1 - eta mu for G = diag(1, 4) up to 2/5; at 0.9 < 1/mu, as printed, it is 2.6."""
    constants = Constants(mu=1, smoothness=4, cross=1, upper_slope=1, upper_smoothness=0, dimension=2)
    last = Theory(constants=constants, delta=0.1).eta_range[1]

    def norm(eta):
        return max(abs(1 - eta), abs(1 - 4 * eta))

    assert norm(last) == pytest.approx(Theory(constants=constants, delta=0.1, eta=last).contraction)
    assert norm(1.01 * last) > 1 - 1.01 * last
    with pytest.raises(bilevel.InvalidInputError, match="the series may diverge"):
        Theory(constants=constants, delta=0.1, eta=0.9)


def test_the_lower_gradient_moves_with_x_by_its_cross_derivative():
    """Correction E4: v follows grad_y g = y - 3x, x moves by d a step. Its error settles at (1 - beta) 3d/beta.

    The Lyapunov function then needs beta |error|^2 <= c (eta_k d'^2) with d = eta_k d'; the printed c has L_g = 1.
    """
    constants = Constants(mu=1, smoothness=1, cross=3, upper_slope=1, upper_smoothness=0, dimension=1)
    theory = Theory(constants=constants, delta=0.2)
    average = 1e-3 / theory.lower_momentum  # eta_k, late in a run
    needed = momentum_error(theory.lower_momentum * average, 3 * average) ** 2 * theory.lower_momentum
    assert needed <= theory.lower_drift - 2 / 3 * theory.lipschitz**2
    assert needed > 6 / (125 * theory.lipschitz**2)


def momentum_error(weight, drift):
    """|h_k - w_k| in the limit, for w_{k+1} = (1 - weight) w_k + weight h_{k+1} and h_{k+1} = h_k + drift."""
    error = 0.0
    for _ in range(int(20 / weight)):
        error = (1 - weight) * (error + drift)
    return error


def test_the_joint_lipschitz_constant_is_not_the_larger_of_the_two():
    """Correction E5: g = y^2/2 - 10 x y on y >= 0, f = y, eta = 0.1: h = H/(1 - 0.9 H), z = 0.9 y + x."""
    delta, eta, cross = 0.2, 0.1, 10
    constants = Constants(mu=1, smoothness=1, cross=cross, upper_slope=1, upper_smoothness=0, dimension=1)
    theory = Theory(constants=constants, delta=delta, eta=eta)

    def h(x, y):
        z = (1 - eta) * y + eta * cross * x
        H = min(max((z + delta) / (2 * delta), 0.0), 1.0)
        return eta * cross * H / (1 - (1 - eta) * H)

    near_one, step = delta / (2 * 0.9), 1e-7  # z = delta where 0.9 y = x = delta/2
    along_x, along_y = 1 / math.hypot(1, 0.9), 0.9 / math.hypot(1, 0.9)
    slope = (h(delta / 2, near_one) - h(delta / 2 - step * along_x, near_one - step * along_y)) / step
    assert max(theory.lipschitz_x, theory.lipschitz_y) < 0.9 * slope
    assert slope <= theory.lipschitz


def test_the_descent_lemma_needs_the_same_factor_above_and_below():
    """Correction E6: <w, x~ - x> <= -|x~ - x|^2/(gamma c_l) with x_{k+1} = x_k + eta_k (x~ - x_k)."""
    problem = Problem(
        lambda x, y: (2 * y - x).sum() / 20, lambda x, y: (y - x).square().sum() / 2, sets.NonNegative(), y0=vector(0.2)
    )
    constants = Constants(mu=1, smoothness=1, cross=1, upper_slope=0.1, upper_smoothness=0, dimension=1)
    of_theory, _ = dmlcbo_from_theory(Theory(constants=constants, delta=0.5), eps=1e4, gap=0.3)

    def holds(solver):
        before, after = itertools.islice(bilevel.iterate(problem, vector(0.2), solver=solver), 2)
        move = float(after.x - before.x) / solver.averaging(before.step + 1)
        assert move != 0
        gain, lemma = float(before.upper_momentum) * move, -(move**2) / (solver.upper_step * solver.smallest_scale)
        return gain <= lemma * (1 - 1e-6)

    assert holds(of_theory)
    assert not holds(replace(of_theory, smallest_scale=0.1, largest_scale=10.0))  # c_l < c_u


def test_the_momentum_follows_the_hypergradient_as_the_proof_has_it():
    """Correction E7: h moves by L_0 eta_k d' a step. The Lyapunov function needs c_1 |error|^2 <= 2/3 (L_0 d')^2.

    The error settles at (1 - alpha) L_0 d'/c_1: the printed c_1 = 9 gamma/2 is too small, since gamma is.
    """
    theory, average = Theory(constants=UNIT, delta=1.0), 1e-2

    def needed(momentum):
        return momentum * momentum_error(momentum * average, average) ** 2

    assert needed(theory.upper_momentum) <= 2 / 3
    assert 3 / theory.upper_momentum <= 2 / 3  # what the proof uses
    assert needed(4.5 * theory.upper_step) > 100 * 2 / 3


def test_the_noise_of_the_bound_is_that_of_the_momentum():
    """Correction E7: Phi gains E |w_1 - h|^2 <= sigma^2 and then alpha_k^2 sigma^2 a step, and G is Phi/gamma.

    Random truncation and the full sum differ in sigma^2 alone.
    """
    K = 20_000
    full, drawn = (Theory(constants=UNIT, delta=1.0, truncation=name, eta=0.2) for name in ("full", "random"))

    def G(theory):
        return theory.bound(K, gap=1.0) ** 2 * theory.rate * K / (12 * math.sqrt(theory.delay + K))

    alphas = full.upper_momentum * full.rate / torch.sqrt(full.delay + torch.arange(1, K + 1).double())
    gained = (1 + float(alphas.square().sum())) / full.upper_step
    assert drawn.variance(K) > 2 * full.variance(K)
    assert (G(drawn) - G(full)) / (drawn.variance(K) - full.variance(K)) == pytest.approx(gained, rel=1e-3)
    assert (G(drawn) - G(full)) / (drawn.variance(K) - full.variance(K)) >= gained


def test_settings_of_the_theorem_keep_its_inequalities():
    constants = Constants(
        mu=0.5, smoothness=2, cross=1.5, upper_slope=2, upper_smoothness=1, dimension=7, hessian_smoothness=0.3
    )
    for a in (0.0, 1.0, 2.0):
        theory = Theory(constants=constants, delta=0.1, exponent=a)
        solver, steps = dmlcbo_from_theory(theory, eps=1.0, gap=1.0)
        assert solver.upper_momentum * solver.averaging(1) <= 1
        assert solver.lower_momentum * solver.averaging(1) <= 1
        assert solver.lower_step <= 1 / (6 * constants.smoothness)
        assert solver.upper_step <= theory.lipschitz ** (a - 2)
        assert theory.bias(solver.hypergradient.terms) <= 1 / steps
        assert theory.bound(steps, gap=1.0) <= 1.0 < theory.bound(int(0.99 * steps), gap=1.0)


def test_sixteen_times_the_steps_halve_the_bound():
    """K^(-1/4), up to the logarithm."""
    theory = Theory(constants=UNIT, delta=1.0)
    ratio = theory.bound(10**22, gap=1.0) / theory.bound(16 * 10**22, gap=1.0)
    assert ratio == pytest.approx(2.0, rel=0.05)


def test_every_term_of_the_bound_by_hand():
    """mu = L_g = L_f = 1, C_gxy = 1/2, C_fy = 2, d = 1, eta = 1, delta = 1/2: D is the speed of z, 2 in y and 1/2 in x.

    L_1 = 3/2 + 2 (1/2) 2 = 7/2 and L_2 = 3/2 + 2 (1/2) (1/2) = 2, so L_0^2 = 65/4; the sums of G are taken one by one.
    """
    constants = Constants(mu=1, smoothness=1, cross=0.5, upper_slope=2, upper_smoothness=1, dimension=1)
    theory = Theory(constants=constants, delta=0.5)
    both = 2 / 3 * 65 / 4 + 6 * 4 / (125 * 65)
    tau, c_1, c_2 = 1 / 6, 9 / 2, 125 * 65 / 12
    gamma = 1 / (4 * (125 * (65 / 4) * 0.5**2 * 36 / 3 + both))
    for found, by_hand in (
        (theory.lipschitz_y, 3.5), (theory.lipschitz_x, 2.0), (theory.lipschitz**2, 65 / 4),
        (theory.lipschitz_gradient, 3.75), (theory.variance(9), 1.0), (theory.lower_step, tau),
        (theory.upper_step, gamma), (theory.upper_momentum, c_1), (theory.lower_momentum, c_2), (theory.delay, c_2**2),
    ):  # fmt: skip
        assert found == pytest.approx(by_hand, rel=1e-12)
    gap, lower_error = 3.0, 0.1
    for K in (1000, 10**6):
        eta = 1 / torch.sqrt(c_2**2 + torch.arange(1, K + 1).double())
        start = gap + 10 * (65 / 4) / tau * lower_error**2 + 1.0
        lag = 6 / (c_1 * K**2) * float((1 / eta).sum())
        noise = c_1**2 * float(eta.square().sum())
        G = (start + lag + noise) / gamma + 17 / (4 * K**2) * float(eta.sum())
        by_hand = math.sqrt(12 * G * math.sqrt(c_2**2 + K) / K)
        found = theory.bound(K, gap=gap, lower_error=lower_error)
        assert by_hand * (1 - 1e-12) <= found <= by_hand * 1.001  # integrals stand for the sums


def test_the_bound_holds_in_a_run_and_is_near():
    """F = x^2/2 + x/500 from x = 10: with the theorem's own settings x moves, and the bound is within a factor of 5.2.

    F loses gamma eta_k h^2 a step and at most the gap, so |h| is at most sqrt(gap sqrt(m + K)/(gamma K)) on average,
    and not much less while x is on its way. The bound has 12 times that under the root.
    """
    problem = Problem(lambda x, y: (x.square() / 2 + y / 10).sum(), lambda x, y: (y - x / 50).square().sum() / 2)
    constants = Constants(mu=1, smoothness=1, cross=0.02, upper_slope=0.1, upper_smoothness=1, dimension=1)
    theory = Theory(constants=constants, delta=10.0)
    solver, _ = dmlcbo_from_theory(theory, eps=100.0, gap=51.0)
    K, x, y = 1000, vector(10.0), vector(0.2)
    states = itertools.islice(bilevel.iterate(problem, x, y, solver=solver), K)
    iterates = [float(state.x) for state in states]
    mean = sum(abs(x + 1 / 500) for x in iterates) / K
    assert iterates[-1] < 6  # x has moved
    gap = (10 + 1 / 500) ** 2 / 2
    descent = math.sqrt(gap * math.sqrt(theory.delay + K) / (theory.upper_step * K))
    assert mean <= descent <= 1.5 * mean
    assert theory.bound(K, gap=gap) == pytest.approx(math.sqrt(12) * descent, rel=0.01)
    assert mean <= theory.bound(K, gap=gap) <= 5.2 * mean


def test_estimated_constants_are_those_of_the_matrices():
    """A quadratic has the same second derivatives everywhere: the estimates are exact."""
    known = next(k for k in known_problems() if k.name == "half-space")
    found = estimate_constants(known.problem, known.x0)
    lin = known.problem.linearize(known.x0, known.y0)
    cross = torch.stack([lin.lower_cross(e) for e in torch.eye(6).double()], -1)
    assert found.mu == pytest.approx(0.5)
    assert found.smoothness == pytest.approx(2.0)
    assert found.cross == pytest.approx(float(torch.linalg.matrix_norm(cross, 2)))
    assert found.upper_smoothness <= 1.0 + 1e-9  # f = |y - t|^2/2 + 0.1 |x|^2/2
    assert found.cross_smoothness < 1e-9
    assert found.hessian_smoothness < 1e-9
    assert found.dimension == 6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constants(mu=0, smoothness=1, cross=1, upper_slope=1, upper_smoothness=1, dimension=1), "0 < mu"),
        (lambda: Constants(mu=1, smoothness=1, cross=-1, upper_slope=1, upper_smoothness=1, dimension=1), "cross must"),
        (lambda: Theory(constants=UNIT, delta=0.0), "delta must be a positive number, got 0.0"),
        (lambda: Theory(constants=UNIT, delta=1.0, eta=1.5), "outside"),
        (lambda: Theory(constants=UNIT, delta=1.0, exponent=3.0), "exponent"),
        (lambda: Theory(constants=UNIT, delta=1.0).steps_for(0.0, gap=1.0), "eps must be a positive"),
    ],
)
def test_bad_constants_are_refused(make, message):
    with pytest.raises(bilevel.InvalidInputError, match=message):
        make()
