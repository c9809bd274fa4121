"""Certificates: bounds that hold, kinks that count as stationary, Jacobians combined and never hypergradients."""

import itertools
import pickle

import numpy as np
import pytest
import torch
from scipy.optimize import minimize as scipy_minimize
from tests.known_stationarity import COUPLED, KNOWN_STATIONARITY, coupled

import bilevel
from bilevel import Status, certificate, sets
from bilevel.diagnostics import BoundEvidence, goldstein_measure
from bilevel.diagnostics.jacobian_hull import least_norm_weights
from bilevel.testing.known_problems import known_problems


def vector(*entries):
    return torch.tensor(entries, dtype=torch.float64)


def absolute_value():
    """F(x) = |x|, as f = 2 y - x with y* = max(x, 0)."""
    return bilevel.Problem(
        lambda x, y: (2 * y - x).sum(), lambda x, y: (y - x).square().sum() / 2, sets.NonNegative(), y0=vector(0.0)
    )


@pytest.mark.parametrize("make", KNOWN_STATIONARITY, ids=lambda make: make.__name__)
def test_the_smallest_norm_is_in_the_interval(make):
    known = make(1)
    found = certificate(known.problem, known.x, known.delta, eta=known.eta, samples=60, seed=1)
    low, high = found.interval
    assert low - 1e-6 <= known.smallest <= high + 1e-6
    assert found.eps == high <= found.gradient_norm


def test_a_kink_in_one_of_twenty_dimensions_is_met():
    """F = |x_1| at x_1 = delta/2: random points of the ball in R^20 hardly ever move y_1 that far."""
    problem = bilevel.Problem(
        lambda x, y: 2 * y[0] - x[0], lambda x, y: (y - x).square().sum() / 2, sets.NonNegative(),
        y0=torch.ones(20).double(),
    )  # fmt: skip
    x = torch.ones(20).double()
    x[0] = 0.05
    found = certificate(problem, x, 0.1, samples=20)
    assert found.eps < 1e-7
    assert found.evidence is BoundEvidence.ALL_FACES
    far = certificate(problem, x, 0.04, samples=20)
    assert far.interval == (pytest.approx(1.0, rel=1e-5), pytest.approx(1.0))


def test_the_lower_end_is_zero_where_nothing_is_known_of_it():
    """Twenty bounds in reach at once, and an l1 ball in R^10: eps is an upper bound, and more is not claimed."""
    for d, constraint in ((20, sets.NonNegative()), (10, sets.L1Ball(1.0))):
        a = torch.randn(d, generator=torch.Generator().manual_seed(d)).double()
        problem = bilevel.Problem(
            lambda x, y, a=a: a @ y + x.sum(), lambda x, y: (y - x).square().sum() / 2, constraint,
            y0=torch.zeros(d).double(),
        )  # fmt: skip
        found = certificate(problem, a / 20, 0.2, samples=20)
        assert found.evidence is BoundEvidence.UPPER_BOUND
        assert found.interval[0] == 0.0
        assert "an upper bound only" in str(found)


def h_of(p, q):
    """Erratum 11 by matrices: h(diag(p, q))."""
    G, a, c, H = np.array([[1, 0.8], [0.8, 1]]), np.array([1, 0.2]), np.array([0.5, -0.3]), np.diag([p, q])
    return c - 0.5 * H @ np.linalg.solve(np.eye(2) - (np.eye(2) - 0.5 * G) @ H, a)


def test_hypergradients_are_never_combined():
    """Erratum 11: the hull of the h(H) contains 0, which no H gives: the certificate stays at 0.078."""
    grid = [(p, q) for p in np.linspace(0, 1, 21) for q in np.linspace(0, 1, 21)]
    start = min(grid, key=lambda pair: float(np.linalg.norm(h_of(*pair))))
    options = {"xatol": 1e-10, "fatol": 1e-12}
    truth = scipy_minimize(
        lambda v: float(np.linalg.norm(h_of(*v))), start, method="Nelder-Mead", bounds=[(0, 1)] * 2, options=options
    )
    assert truth.fun == pytest.approx(COUPLED, rel=1e-7)
    values = np.array([h_of(*pair) for pair in grid]).T
    assert np.linalg.norm(values @ least_norm_weights(values.T @ values)) < 1e-7
    known = coupled(0)
    found = certificate(known.problem, vector(0.0, 0.0), known.delta, eta=0.5, samples=40)
    assert found.eps == pytest.approx(truth.fun, rel=1e-6)
    assert found.faces == 4


def test_at_a_stationary_kink_eps_is_zero_and_the_gradient_norm_is_not():
    for delta in (1e-1, 1e-3, 1e-6):
        found = certificate(absolute_value(), vector(0.0), delta, samples=20)
        assert found.eps < 1e-7
        assert found.gradient_norm == pytest.approx(1.0)
        assert found.face.margin == 0.0


def test_far_from_the_kink_eps_is_the_gradient_norm():
    """|x| = 0.01 is seen from delta = 0.1 and not from 0.001: z = x here."""
    assert certificate(absolute_value(), vector(0.01), 0.1, samples=20).eps < 1e-7
    far = certificate(absolute_value(), vector(0.01), 0.001, samples=20)
    assert far.eps == pytest.approx(1.0)
    assert far.interval == (pytest.approx(1.0, rel=1e-5), pytest.approx(1.0))
    assert far.faces == 1


@pytest.mark.parametrize("known", known_problems(), ids=lambda known: known.name)
def test_without_a_kink_in_reach_eps_is_the_norm_of_the_closed_form(known):
    truth = float(known.gradient(known.x0).norm())
    found = certificate(known.problem, known.x0, 1e-7, samples=20)
    assert found.eps == pytest.approx(truth, rel=1e-5)
    assert found.gradient_norm == pytest.approx(truth, rel=1e-7)
    assert found.contraction < 1.0


def test_a_set_that_moves_with_x():
    """y* = clamp(1, max = x) and f = y^2/2: F = x^2/2 for x < 1, so |h| = x where the bound is active."""
    problem = bilevel.Problem(
        lambda x, y: y.square().sum() / 2,
        lambda x, y: (y - 1).square().sum() / 2 + 0 * x.sum(),
        constraint=lambda x: sets.Box(vector(-5.0), x),
        y0=vector(0.0),
    )
    assert certificate(problem, vector(0.6), 1e-3, samples=20).eps == pytest.approx(0.6, rel=1e-6)
    # From x = 0.9 a radius of 0.2 sees the free side, where F does not depend on x.
    assert certificate(problem, vector(0.9), 0.2, samples=20).eps < 1e-6


def test_a_constrained_x_is_measured_by_the_projected_step():
    """F = x on x >= 0: x = 0 is stationary although h = 1."""
    problem = bilevel.Problem(
        lambda x, y: y.sum(), lambda x, y: (y - x).square().sum(), upper_constraint=sets.NonNegative(), y0=vector(0.0)
    )
    assert certificate(problem, vector(0.0), 1e-3, samples=20).eps < 1e-9
    assert certificate(problem, vector(0.4), 1e-3, samples=20).eps == pytest.approx(0.4)


def test_the_goldstein_measure_is_that_of_f_itself():
    """Erratum 11, the other way round: F(x) = x is not stationary although a set of h contains 0."""
    problem = bilevel.Problem(
        lambda x, y: y[0] - y[1], lambda x, y: (y - torch.cat([x, -x])).square().sum() / 2, sets.NonNegative(),
        y0=vector(0.0, 0.0),
    )  # fmt: skip
    found = certificate(problem, vector(0.0), 1e-2, samples=40, goldstein_radius=1e-2)
    assert found.eps < 1e-7
    assert found.goldstein.value == pytest.approx(1.0)
    assert "Goldstein measure of F" in str(found)
    assert goldstein_measure(absolute_value(), vector(0.0), 1e-3, samples=10).value < 1e-7
    assert goldstein_measure(absolute_value(), vector(0.5), 1e-3, samples=5).value == pytest.approx(1.0)


def test_least_norm_weights_agree_with_all_faces():
    """Wolfe's algorithm against the least norm over every subset of corners."""
    rng = np.random.default_rng(0)
    for _ in range(30):
        points = rng.normal(size=(2, 5)) + rng.normal(size=(2, 1))
        weights = least_norm_weights(points.T @ points)
        assert weights.min() >= 0
        assert weights.sum() == pytest.approx(1.0)
        best = min(np.linalg.norm(point) for point in points.T)
        for i, j in itertools.combinations(range(5), 2):
            p, d = points[:, i], points[:, j] - points[:, i]
            best = min(best, np.linalg.norm(p + np.clip(-(p @ d) / (d @ d), 0, 1) * d))
        inside = any(_holds_zero(points[:, list(three)]) for three in itertools.combinations(range(5), 3))
        assert np.linalg.norm(points @ weights) == pytest.approx(0.0 if inside else best, abs=1e-6)


def _holds_zero(triangle):
    turns = [np.linalg.det(triangle[:, [k, (k + 1) % 3]]) for k in range(3)]
    return min(turns) > 0 or max(turns) < 0


def test_a_run_stops_on_its_certificate():
    """At the kink of F = |x| plain stationarity stays at 1; the certificate ends the run."""
    solver = bilevel.Implicit(upper_step=0.05)
    start = {"x0": vector(0.42), "y0": vector(0.42), "solver": solver, "steps": 40, "evaluate_every": 2, "tol": 1e-3}
    plain = bilevel.minimize(absolute_value(), **start)
    assert plain.status is Status.STEPS
    stopped = bilevel.minimize(absolute_value(), **start, delta=0.06)
    assert stopped.status is Status.CERTIFIED
    assert stopped.status.ok
    assert stopped.stats["steps"] < 12
    assert abs(float(stopped.x)) <= 0.06
    assert stopped.certificate(delta=0.06, samples=20).eps < 1e-7
    assert stopped.certificate(delta=1e-4, samples=20).eps == pytest.approx(1.0)


def test_a_loaded_solution_asks_for_its_problem(tmp_path):
    solution = bilevel.minimize(absolute_value(), vector(0.4), steps=1, solver=bilevel.DMLCBO(upper_step=0.1))
    loaded = bilevel.Solution.load(solution.save(tmp_path / "run.safetensors"))
    for without in (loaded, pickle.loads(pickle.dumps(solution))):
        with pytest.raises(bilevel.InvalidInputError, match="pass certificate"):
            without.certificate(delta=0.1)
    assert loaded.certificate(delta=1e-3, problem=absolute_value(), samples=20).eps == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"delta": 0.0}, "delta must be a positive number, got 0.0"),
        ({"delta": 0.1, "samples": 5}, "samples must be an integer of at least 20, got 5"),
        ({"delta": 0.1, "eta": -1.0}, "eta must be a positive number, got -1.0; None takes 1/L"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(bilevel.InvalidInputError, match=message):
        certificate(absolute_value(), vector(0.0), **settings)


def test_delta_of_a_run_needs_tol():
    with pytest.raises(bilevel.InvalidInputError, match="delta=0.1 needs tol"):
        bilevel.minimize(absolute_value(), vector(0.4), steps=1, delta=0.1)


def test_a_kink_nearer_than_rounding_resolves():
    """In float32 differences of the margin vanish beside z = 1.5: there is then no direction towards the kink."""
    one = torch.ones(1)  # float32 data
    problem = bilevel.Problem(
        lambda x, y: (one @ (y - 2 * x)).square(),
        lambda x, y: (one @ (y - x)).square() / 2,
        bilevel.sets.Box(-1.5, 1.5),
        y0=torch.zeros(1),
    )
    certificate = bilevel.certificate(problem, torch.tensor([1.4999]), delta=1e-3)
    assert certificate.valid
    assert certificate.faces == 2
