"""AiPOD and E-AiPOD: affine lower levels, also coupled with x."""

import pytest
import torch
from tests.solver_contract import assert_feasible_path, assert_reproducible, run_known

import bilevel
from bilevel import sets
from bilevel.random import Seeds
from bilevel.testing.known_problems import known_problems

BY_NAME = {known.name: known for known in known_problems()}
SOLVERS = [bilevel.solvers.AiPOD(upper_step=0.3), bilevel.solvers.EAiPOD(upper_step=0.3)]
both = pytest.mark.parametrize("solver", SOLVERS, ids=["AiPOD", "EAiPOD"])
affine = pytest.mark.parametrize("name", ["free space", "affine set"])

DRAW = torch.Generator().manual_seed(2)


def normal(*shape):
    return torch.randn(shape, generator=DRAW).double()


A, H, c, M, t = normal(2, 5), normal(2, 3), normal(2), normal(5, 3), normal(5)
G = torch.diag(torch.linspace(0.5, 2.0, 5).double())


def coupled(upper_constraint=None):
    """A y + H x = c; g = (y - M x)' G (y - M x)/2, f = |y - t|^2/2 + 0.05 |x|^2."""
    return bilevel.Problem(
        upper=lambda x, y: (y - t).square().sum() / 2 + 0.05 * x.square().sum(),
        lower=lambda x, y: (y - M @ x) @ G @ (y - M @ x) / 2,
        constraint=lambda x: sets.AffineSet(A, c - H @ x),
        upper_constraint=upper_constraint,
    )


def closed_form(x):
    """y* = M x - B (A M x + H x - c), B = G^-1 A' (A G^-1 A')^-1; then y* is affine in x."""
    B = torch.linalg.solve(G, A.T) @ torch.linalg.inv(A @ torch.linalg.solve(G, A.T))
    J = M - B @ (A @ M + H)
    return J @ x + B @ c, J


X0 = normal(3) / 3
Y0 = closed_form(X0)[0]


@both
@affine
def test_reaches_the_minimum(solver, name):
    """The known problems in its class; step 0.3, S = 5, 40 steps."""
    assert run_known(BY_NAME[name], solver, steps=40).gap <= 0.01


@both
def test_coupled_constraints_reach_the_closed_form_minimum(solver):
    y0, J = closed_form(torch.zeros(3).double())
    best = torch.linalg.solve(J.T @ J + 0.1 * torch.eye(3).double(), J.T @ (t - y0))
    problem = coupled()
    step = 1.0 / float(torch.linalg.eigvalsh(J.T @ J)[-1] + 0.1)
    tuned = type(solver)(upper_step=step)
    solution = bilevel.minimize(problem, X0, Y0, solver=tuned, steps=80, evaluate_every=80)
    start, end, least = (float(bilevel.upper_value(problem, x, closed_form(x)[0])) for x in (X0, solution.x, best))
    assert end - least <= 0.01 * (start - least)


def test_the_coupled_hypergradient_is_the_papers_formula():
    """h = f_x - G_xy w - H' A^+' (f_y - G w), w = V (V' G V)^-1 V' f_y with V a basis of the null space of A."""
    state = bilevel.solvers.AiPOD(lower_steps=200, hypergradient=bilevel.LinearSolve()).init(coupled(), X0, Y0, Seeds())
    lin = coupled().linearize(X0, Y0)
    sample = bilevel.LinearSolve().estimate(lin, state.streams())
    V = torch.linalg.svd(A).Vh[2:].T
    f_y = Y0 - t
    w = V @ torch.linalg.solve(V.T @ G @ V, V.T @ f_y)
    paper = 0.1 * X0 + M.T @ (G @ w) - H.T @ (torch.linalg.pinv(A).T @ (f_y - G @ w))
    assert torch.allclose(sample.gradient, paper, atol=1e-8)
    assert torch.allclose(closed_form(X0)[1].T @ f_y + 0.1 * X0, paper, atol=1e-10)


@both
def test_feasible_and_reproducible(solver):
    known = BY_NAME["affine set"]
    assert_feasible_path(known.problem, known.x0, known.y0, solver)
    assert_feasible_path(coupled(), X0, Y0, solver)
    assert_reproducible(known.problem, known.x0, known.y0, solver)


def test_lazy_projections_are_fewer_and_lead_to_the_same_lower_solution():
    """p = 0.1, S = 20: about p (S - 1) + 1 = 2.9 projections per step instead of 20, and y*(x) all the same."""
    known = BY_NAME["affine set"]
    counts = {}
    for solver in (
        bilevel.solvers.AiPOD(lower_steps=20, upper_step=1e-12),
        bilevel.solvers.EAiPOD(lower_steps=20, upper_step=1e-12, probability=0.1),
    ):
        start = known.problem.constraint.project(known.y0 + 1.0)
        solution = bilevel.minimize(known.problem, known.x0, start, solver=solver, steps=40, evaluate_every=40)
        assert solution.history[-1].lower_residual < 1e-5
        counts[type(solver).__name__] = solution.stats["projections"]
    assert counts["AiPOD"] == 800
    assert counts["EAiPOD"] < 160


def test_upper_projections_every_few_steps():
    """x may leave X in between, and lies in it after every T-th step."""
    problem = coupled(sets.L2Ball(0.1))
    solver = bilevel.solvers.EAiPOD(upper_step=0.1, upper_interval=4)
    x0 = torch.zeros(3).double()
    state = solver.init(problem, x0, closed_form(x0)[0], Seeds())
    inside = []
    for _ in range(12):
        state = solver.step(problem, state)
        inside.append(bool(problem.upper_constraint.contains(state.x)))
    assert all(inside[3::4])
    assert not all(inside)


@pytest.mark.parametrize("interval", [1, 4])
def test_skipped_upper_projections_lead_to_the_same_answer(interval):
    """y* = x, F = x' Q x/2 - b.x over X = {sum x = 0}, the answer in closed form.

    Unprojected steps alone would drift off X: with T = 4 and this step their fixed point is further from the answer
    than 0 is.
    """
    Q, b = torch.tensor([[2.0, 0.8], [0.8, 0.5]]).double(), torch.tensor([1.0, 2.0]).double()
    problem = bilevel.Problem(
        lambda x, y: y @ Q @ y / 2 - b @ y,
        lambda x, y: (y - x).square().sum() / 2,
        upper_constraint=sets.Hyperplane(torch.ones(2).double(), 0.0),
        x0=torch.zeros(2).double(),
        y0=torch.zeros(2).double(),
    )
    tangent = torch.tensor([1.0, -1.0]).double()
    best = (b @ tangent) / (tangent @ Q @ tangent) * tangent
    solver = bilevel.solvers.EAiPOD(
        upper_step=0.2, upper_interval=interval, lower_steps=1, hypergradient=bilevel.LinearSolve(tol=1e-8)
    )
    end = bilevel.minimize(problem, solver=solver, steps=200, evaluate_every=200)
    assert float((end.x - best).norm()) < 1e-5


def test_other_sets_are_refused_and_settings_checked():
    known = BY_NAME["half-space"]
    with pytest.raises(
        bilevel.IncompatibleError, match="AiPOD cannot use set HalfSpace.*it needs an affine set.*DMLCBO"
    ):
        bilevel.minimize(known.problem, known.x0, known.y0, solver=bilevel.solvers.AiPOD(), steps=1)
    with pytest.raises(bilevel.InvalidInputError, match=r"probability must lie in \(0, 1\], got 0"):
        bilevel.solvers.EAiPOD(probability=0)
    with pytest.raises(bilevel.InvalidInputError, match="lower_steps must be an integer of at least 1, got 0"):
        bilevel.solvers.AiPOD(lower_steps=0)
