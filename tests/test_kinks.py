"""Where the projection is not differentiable: the hypergradient stays in the set it must be in."""

import itertools

import pytest
import torch

import bilevel
from bilevel import sets

DOUBLE = torch.float64


def vector(*entries):
    return torch.tensor(entries, dtype=DOUBLE)


METRIC = torch.tensor([[2.0, 0.6], [0.6, 1.0]], dtype=DOUBLE)
CROSS = torch.tensor([[1.0, 0.3], [-0.2, 1.0]], dtype=DOUBLE)


def corner_problem():
    """g = y'Gy/2 - (Bx)'y on y >= 0, at an x where y* = 0 with both multipliers zero: two kinks at once."""
    return bilevel.Problem(
        upper=lambda x, y: vector(1.0, 0.4) @ y + 0.5 * x.square().sum() + 0.3 * x[0],
        lower=lambda x, y: y @ METRIC @ y / 2 - (CROSS @ x) @ y,
        constraint=sets.NonNegative(),
        y0=vector(0.0, 0.0),
    )


def h_of(mask, x, y):
    """h(H) for H = diag(mask), from the formula with matrices: grad_x f - G_xy w with (H G H) w = H f_y."""
    upper_y, upper_x = vector(1.0, 0.4), x + vector(0.3, 0.0)
    chosen = [i for i, m in enumerate(mask) if m]
    w = torch.zeros(2, dtype=DOUBLE)
    if chosen:
        w[chosen] = torch.linalg.solve(METRIC[chosen][:, chosen], upper_y[chosen])
    return upper_x + CROSS.T @ w


def test_value_at_a_kink_is_in_the_set_of_h():
    x, y = vector(0.0, 0.0), vector(0.0, 0.0)
    h = bilevel.hypergradient(corner_problem(), x, y)
    candidates = [h_of(mask, x, y) for mask in itertools.product((0, 1), repeat=2)]
    assert min(float((h - candidate).norm()) for candidate in candidates) < 1e-12


def test_where_the_cross_derivative_has_full_rank_h_is_a_limit_of_gradients():
    """Then every h(H) with H a limit Jacobian is a limit of gradients of F, hence in Clarke's gradient."""
    problem, origin = corner_problem(), vector(0.0, 0.0)
    for mask in itertools.product((0, 1), repeat=2):
        # x with y*(x) strictly positive exactly on the mask, and strictly positive multipliers elsewhere.
        wanted = vector(*[1.0 if m else 0.0 for m in mask])
        multiplier = vector(*[0.0 if m else 1.0 for m in mask])
        nearby = 1e-7 * torch.linalg.solve(CROSS, METRIC @ wanted - multiplier)
        gradient = bilevel.hypergradient(problem, nearby, bilevel.solve_lower(problem, nearby, tol=1e-16).y)
        assert float((gradient - h_of(mask, origin, origin)).norm()) < 1e-6


def test_perturbed_draws_at_a_kink_visit_all_faces():
    """With smoothing, draws fall on both sides; their hypergradients are exactly the elements h(H)."""
    problem, origin = corner_problem(), vector(0.0, 0.0)
    method = bilevel.LinearSolve(smoothing=bilevel.hypergradients.Perturbed(radius=1e-3))
    candidates = [h_of(mask, origin, origin) for mask in itertools.product((0, 1), repeat=2)]
    seen = set()
    for seed in range(40):
        h = bilevel.hypergradient(problem, origin, origin, method=method, seed=seed)
        distances = [float((h - candidate).norm()) for candidate in candidates]
        assert min(distances) < 1e-12
        seen.add(distances.index(min(distances)))
    assert seen == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("constraint", "center"),
    [
        (sets.L1Ball(1.0), vector(1.0, 0.0)),  # on the sphere, at a vertex
        (sets.L1Ball(1.0), vector(2.0, 1.0)),  # an entry exactly at the threshold
        (sets.Simplex(1.0), vector(1.5, 0.5)),  # likewise
        (sets.L2Ball(1.0), vector(0.6, 0.8)),  # on the sphere
        (sets.HalfSpace(vector(1.0, 1.0), 1.0), vector(0.5, 0.5)),  # on the boundary
        (sets.Box(0.0, 1.0), vector(1.0, 0.0)),  # a corner
    ],
    ids=repr,
)
def test_gradient_at_a_kink_lies_between_its_limits(constraint, center):
    """g = |y - x|^2 / 2 has G_xy = -I, of full rank: h is in the hull of gradients around x."""
    target = vector(0.3, -0.7)
    problem = bilevel.Problem(
        upper=lambda x, y: target @ y, lower=lambda x, y: (y - x).square().sum() / 2, constraint=constraint,
        y0=constraint.project(center),
    )  # fmt: skip
    h = bilevel.hypergradient(problem, center)
    angles = torch.linspace(0, 2 * torch.pi, 48, dtype=DOUBLE)
    around = [bilevel.hypergradient(problem, center + 1e-7 * torch.stack([a.cos(), a.sin()])) for a in angles]
    assert distance_to_hull(h, torch.stack(around)) < 1e-5


def distance_to_hull(point, corners):
    """|point - nearest point of the hull| by minimising over the simplex."""
    problem = bilevel.Problem(
        upper=lambda x, y: y.sum() + x.sum(),
        lower=lambda x, y: (corners.T @ y - point).square().sum() / 2 + 1e-9 * y.square().sum() + 0 * x.sum(),
        constraint=sets.Simplex(1.0),
    )
    start = torch.full((len(corners),), 1 / len(corners), dtype=DOUBLE)
    weights = bilevel.solve_lower(problem, vector(0.0), start, tol=1e-8, max_steps=3000).y
    return float((corners.T @ weights - point).norm())


@pytest.mark.parametrize(
    "solver", [bilevel.DMLCBO(), bilevel.Approx(), bilevel.Implicit()], ids=lambda s: type(s).__name__
)
def test_a_vanishing_hypergradient_at_a_kink_is_not_believed(solver):
    """y >= 0, f = |y - t|^2, g = |y - x|^2 at x = y = 0: h = 0, and F falls in every direction into the set."""
    target, origin = vector(1.0, 0.5), vector(0.0, 0.0)
    problem = bilevel.Problem(
        lambda x, y: (y - target).square().sum(), lambda x, y: (y - x).square().sum(), sets.NonNegative()
    )
    solution = bilevel.minimize(problem, origin, origin, solver=solver, steps=20, evaluate_every=5, tol=1e-6)
    assert solution.status is not bilevel.Status.STATIONARY
    away = bilevel.minimize(problem, target, target, solver=solver, steps=20, evaluate_every=5, tol=1e-6)
    assert away.status is bilevel.Status.STATIONARY


@pytest.mark.parametrize("unit", [1.0, 1e-6])
@pytest.mark.parametrize("solver", ["auto", "given steps"])
def test_a_kink_nearby_is_noticed_in_any_unit_of_x(solver, unit):
    """y* = max(x/s - 1.0001, 0) is 0 at x0 = s, and F falls from a ten thousandth of x0 on."""
    problem = bilevel.Problem(
        lambda x, y: (y - 1).square().sum(),
        lambda x, y: (y - (x / unit - 1 - 1e-4)).square().sum(),
        sets.NonNegative(),
    )
    chosen = "auto" if solver == "auto" else bilevel.DMLCBO(upper_step=1e-3 * unit**2)
    found = bilevel.minimize(problem, vector(unit), vector(0.0), solver=chosen, steps=200, tol=1e-3)
    claimed = found.status in (bilevel.Status.CONVERGED, bilevel.Status.STATIONARY)
    assert not claimed or float(found.history[-1].upper) < 1e-2


def test_a_claim_needs_a_convex_lower_level():
    """Here g has two minima in y: that of the run is a point where it stands, not a solution."""
    problem = bilevel.Problem(
        lambda x, y: (y - 0.5).square().sum() + x.square().sum(),
        lambda x, y: (y.square() - 1).square().sum() + x.sum() * y.sum(),
    )
    solution = bilevel.minimize(problem, vector(0.1), vector(0.1))
    assert solution.status is bilevel.Status.STALLED
    assert "not convex" in solution.message or "local minimum" in solution.message
    corner = bilevel.Problem(  # g is concave: two corners of the box are local minima
        lambda x, y: y.sum() + x.square().sum(), lambda x, y: x.sum() * y.sum() - y.square().sum(), sets.Box(-1.0, 1.0)
    )
    solution = bilevel.minimize(corner, vector(0.0), vector(1.0), solver=bilevel.DMLCBO(), steps=50, tol=1e-3)
    assert solution.status is not bilevel.Status.STATIONARY


def mixed(size):
    """A symmetric matrix with eigenvalues around 1 that mixes all coordinates."""
    ramp = torch.arange(size * size, dtype=DOUBLE).reshape(size, size).sin()
    return torch.eye(size, dtype=DOUBLE) + 0.2 * (ramp + ramp.T) / size


PSD_TARGET = torch.tensor([[1.0, 0.3], [0.3, 0.8]], dtype=DOUBLE)
KINK_STARTS = {
    "orthant": (sets.NonNegative(), vector(0.0, 0.0, 0.0), vector(1.0, 0.5, 0.3)),
    "corner of a box": (sets.Box(0.0, 1.0), vector(0.0, 1.0, 0.0), vector(0.5, 0.3, 0.6)),
    "vertex of the l1 ball": (sets.L1Ball(1.0), vector(1.0, 0.0, 0.0), vector(0.2, 0.3, -0.2)),
    "vertex of the simplex": (sets.Simplex(1.0), vector(1.0, 0.0, 0.0), vector(0.2, 0.5, 0.3)),
    "apex of the PSD cone": (sets.PSDCone(), torch.zeros(2, 2, dtype=DOUBLE), PSD_TARGET),
    "apex of the second-order cone": (sets.SecondOrderCone(), vector(0.0, 0.0, 0.0), vector(1.0, 0.5, 0.2)),
}


def kink_problem(name, mix):
    """f = |y - t|^2, g = |y - x|^2_M from x = y on a kink, where h may vanish."""
    constraint, start, target = KINK_STARTS[name]
    matrix = mixed(start.numel()) if mix else torch.eye(start.numel(), dtype=DOUBLE)
    problem = bilevel.Problem(
        lambda x, y: (y - target).square().sum(),
        lambda x, y: (y - x).reshape(-1) @ matrix @ (y - x).reshape(-1) / 2,
        constraint,
    )
    return problem, start


@pytest.mark.parametrize("mix", [False, True], ids=["separate", "mixed"])
@pytest.mark.parametrize("name", KINK_STARTS)
def test_the_default_solves_problems_that_start_on_kinks(name, mix):
    problem, start = kink_problem(name, mix)
    solution = bilevel.minimize(problem, start, start)
    first, last = (float(bilevel.upper_value(problem, x, start)) for x in (start, solution.x))
    assert last < 1e-6 * first
    assert solution.status is bilevel.Status.CONVERGED


@pytest.mark.parametrize("mix", [False, True], ids=["separate", "mixed"])
@pytest.mark.parametrize("name", KINK_STARTS)
def test_dmlcbo_leaves_kinks(name, mix):
    """F at least halves."""
    problem, start = kink_problem(name, mix)
    solution = bilevel.minimize(problem, start, start, solver=bilevel.DMLCBO(), steps=300)
    first, last = (float(bilevel.upper_value(problem, x, start)) for x in (start, solution.x))
    assert last < 0.5 * first
