"""RMD-PCD: coordinate steps on separable sets, full steps elsewhere."""

import pytest
import torch
from tests.solver_contract import assert_feasible_path, assert_reproducible, run_known

import bilevel
from bilevel import sets
from bilevel.random import Seeds
from bilevel.testing.known_problems import known_problems

KNOWN = known_problems()
BY_NAME = {known.name: known for known in KNOWN}
each = pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name.replace(" ", "-"))
modes = pytest.mark.parametrize("mode", ["reverse", "implicit-forward"])


@each
@modes
def test_reaches_the_minimum(known, mode):
    """All ten problems: 6 rounds or full steps per upper step, 20 upper steps (50 for three simplices)."""
    steps = 50 if known.name == "batch of simplices" else 20
    run = run_known(known, bilevel.solvers.RMDPCD(steps=6, mode=mode), steps=steps)
    assert run.gap <= 0.01
    separable = known.problem.constraint.separable
    assert run.solution.state.ran == ("proximal coordinate descent" if separable else "projected gradient")
    assert run.solution.state.stats["coordinate"] == float(separable)


@each
@modes
def test_the_hypergradient_is_the_closed_form(known, mode):
    state = bilevel.solvers.RMDPCD(steps=60, mode=mode).init(known.problem, known.x0, known.y0, Seeds())
    truth = known.gradient(known.x0)
    assert float((known.flat(state.gradient) - truth).norm() / truth.norm()) < 1e-6


@modes
def test_reverse_mode_is_the_derivative_of_what_was_run(mode):
    """After 2 rounds from a fixed y0, y_K(x) is far from y*(x): reverse mode still differentiates y_K itself."""
    known = BY_NAME["free space"]
    solver = bilevel.solvers.RMDPCD(steps=2, mode=mode)

    def value(x):
        return solver.init(known.problem, x, known.y0, Seeds()).value

    x, width = known.x0 + 0.5, 1e-5
    state = solver.init(known.problem, x, known.y0, Seeds())
    differences = torch.stack([
        torch.tensor((value(x + width * e) - value(x - width * e)) / (2 * width)).double()
        for e in torch.eye(len(x), dtype=x.dtype)
    ])  # fmt: skip
    agree = float((state.gradient - differences).norm() / differences.norm())
    assert agree < 1e-6  # g is quadratic, so that the steps linearised at the end are the steps themselves


def test_coordinate_steps_would_stall_on_a_ball():
    """Why balls get full steps: from (0, 1) no coordinate can move alone towards y* = (0.55, 0.45)."""
    target, ball = torch.tensor([2.0, 1.9]).double(), sets.L1Ball(1.0)
    y = torch.tensor([0.0, 1.0]).double()
    for j in (0, 1, 0, 1):
        room = 1.0 - float(y.abs().sum() - y[j].abs())
        y[j] = float(target[j].clamp(-room, room))
    assert y.tolist() == [0.0, 1.0]
    problem = bilevel.Problem(lambda x, y: y.sum() + x, lambda x, y: (y - target).square().sum() + 0 * x, ball, y0=y)
    state = bilevel.solvers.RMDPCD(steps=30).init(problem, torch.tensor(0.0).double(), y, Seeds())
    assert state.y.tolist() == pytest.approx([0.55, 0.45])
    assert state.ran == "projected gradient"
    with pytest.raises(
        bilevel.IncompatibleError, match=r"RMDPCD cannot use set L1Ball.*separable.*inner='full' takes all"
    ):
        bilevel.minimize(
            problem, torch.tensor(0.0).double(), y, solver=bilevel.solvers.RMDPCD(inner="coordinate"), steps=1
        )


@modes
def test_the_lasso_by_its_positive_and_negative_parts(mode):
    """|A y - b|^2/2 + e^x |y|_1: on the support S, dy/dx = -e^x (A_S'A_S)^-1 sign(y_S)."""
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(20, 5, generator=generator).double()
    b = A @ torch.tensor([1.0, -2.0, 0.0, 0.0, 0.5]).double() + 0.1 * torch.randn(20, generator=generator)

    def signed(y):
        return y[:5] - y[5:]

    problem = bilevel.Problem(
        upper=lambda x, y: (signed(y) - 1).square().sum() / 2,
        lower=lambda x, y: (A @ signed(y) - b).square().sum() / 2 + x.exp() * y.sum(),
        constraint=sets.NonNegative(),
        y0=torch.zeros(10).double(),
    )
    x = torch.tensor(1.0).double()
    state = bilevel.solvers.RMDPCD(steps=60, mode=mode).init(problem, x, problem.y0, Seeds())
    y = signed(state.y)
    support = y != 0
    assert 0 < int(support.sum()) < 5
    # Optimality of the lasso: A'(b - A y) = e^x sign(y) on the support, at most e^x elsewhere.
    correlation = A.T @ (b - A @ y)
    assert torch.allclose(correlation[support], x.exp() * y[support].sign())
    assert float(correlation.abs().max()) <= float(x.exp()) * (1 + 1e-9)
    inverse = torch.linalg.inv(A[:, support].T @ A[:, support])
    truth = -x.exp() * (inverse @ y[support].sign()) @ (y[support] - 1)
    assert float(state.gradient) == pytest.approx(float(truth), rel=1e-6)


def test_a_start_that_flatters_is_looked_at_again():
    """Too few steps at a condition number of 1,000: f(x, y_K) is far below F at the start, and rises later."""
    scale = torch.logspace(-3, 0, 4).double()
    problem = bilevel.Problem(
        lambda x, y: (y + 0.1).square().sum(), lambda x, y: (scale * (y - x).square()).sum() / 2, sets.L2Ball(3.0)
    )
    x0 = torch.ones(4).double()
    solution = bilevel.minimize(
        problem, x0, torch.zeros(4).double(), solver=bilevel.solvers.RMDPCD(steps=5), steps=80, evaluate_every=80
    )
    assert float(solution.x.norm()) < 0.5 * float(x0.norm())


def test_curvature_that_grows_on_the_way_is_noticed():
    """g = (y - x)^4 + ..: at the first x the curvature is 0.1, on the way to the second 108; no step overshoots."""
    problem = bilevel.Problem(
        lambda x, y: y.square().sum(), lambda x, y: ((y - x) ** 4).sum() + 0.05 * (y - x).square().sum(),
        sets.Box(-10.0, 10.0), y0=torch.zeros(2).double(),
    )  # fmt: skip
    x = torch.tensor([3.0, -3.0]).double()
    state = bilevel.solvers.RMDPCD(steps=100).init(problem, torch.zeros(2).double(), problem.y0, Seeds())
    state.gradient, state.upper_step = -x, 1.0  # the next trial is x
    new = bilevel.solvers.RMDPCD(steps=100, step_rule="fixed").step(problem, state)
    assert float((new.y - x).abs().max()) < 0.5
    assert float(new.curvatures.min()) > 50


@pytest.mark.parametrize("name", ["box", "l1 ball"])
def test_feasible_reproducible_and_counted(name):
    known = BY_NAME[name]
    assert_feasible_path(known.problem, known.x0, known.y0, bilevel.solvers.RMDPCD(steps=3))
    assert_reproducible(known.problem, known.x0, known.y0, bilevel.solvers.RMDPCD(steps=3, refresh=5))
    solution = bilevel.minimize(
        known.problem,
        known.x0,
        known.y0,
        solver=bilevel.solvers.RMDPCD(steps=3, step_rule="fixed", upper_step=0.1),
        steps=4,
    )
    rounds = 5 * 3  # init and four steps
    if name == "box":  # at most one gradient per coordinate step: a coordinate held at its bound costs none
        assert solution.stats["projections"] == rounds
        assert 5 <= solution.stats["lower_gradients"] < 6 * rounds
    else:  # G = 2 I: one step of 1/L solves the lower level, and the next one stays there
        assert 5 <= solution.stats["projections"] <= 2 * 5
        assert 5 <= solution.stats["lower_gradients"] <= 2 * 5


@pytest.mark.parametrize(("n", "coordinate"), [(8, 1), (40, 0)])
def test_auto_takes_coordinate_steps_where_they_are_cheap(n, coordinate):
    """A whole gradient per coordinate of a larger y would not be."""
    matrix = torch.randn(60, n, generator=torch.Generator().manual_seed(0)).double() / 60**0.5
    problem = bilevel.Problem(
        upper=lambda x, y: (y - 0.3).square().sum() / 2,
        lower=lambda x, y: (matrix @ y - x).square().sum() / 2,
        constraint=sets.Box(-0.5, 0.5),
        y0=torch.zeros(n).double(),
    )
    state = bilevel.solvers.RMDPCD(steps=2).init(problem, torch.zeros(60).double(), problem.y0, Seeds())
    assert state.coordinate == coordinate
    assert state.ran == ("proximal coordinate descent" if coordinate else "projected gradient")


def test_bad_settings_are_named():
    with pytest.raises(
        bilevel.InvalidInputError, match="mode must be one of 'reverse', 'implicit-forward', got 'forward'"
    ):
        bilevel.solvers.RMDPCD(mode="forward")
    with pytest.raises(bilevel.InvalidInputError, match="steps must be an integer of at least 1, got 0"):
        bilevel.solvers.RMDPCD(steps=0)
