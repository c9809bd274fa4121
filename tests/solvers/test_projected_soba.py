"""ProjectedSOBA: its linear system is exact at the fixed point, and it solves all ten known problems."""

import pytest
import torch
from tests.solver_contract import assert_feasible_path, assert_reproducible, run_known

import bilevel
from bilevel import sets
from bilevel.testing.known_problems import known_problems

KNOWN = known_problems()
each = pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name.replace(" ", "-"))


@each
def test_reaches_the_minimum(known):
    """upper_step 0.4, eta = 1/L, 80 steps."""
    assert run_known(known, bilevel.solvers.ProjectedSOBA(upper_step=0.4), 80).gap <= 0.01


@each
def test_with_x_at_rest_the_adjoint_is_that_of_the_hypergradient(known):
    """w -> eta H [I - (I - eta G) H]^{-1} f_y, on curved sets too: no truncation bias."""
    for state in bilevel.iterate(
        known.problem, known.x0, known.y0, solver=bilevel.solvers.ProjectedSOBA(upper_step=1e-300)
    ):
        if state.step == 150:
            break
    space = known.problem.y_space(known.problem.constraint)
    lin = known.problem.linearize(known.x0, state.y)
    h = known.problem.x_space.add(lin.upper_grad_x, lin.lower_cross(state.adjoint), -1.0)
    truth = known.gradient(known.x0)
    assert float((space.ravel(h) - truth).norm()) <= 1e-7 * float(truth.norm())


@each
def test_every_iterate_is_feasible(known):
    assert_feasible_path(known.problem, known.x0, known.y0, bilevel.solvers.ProjectedSOBA(upper_step=0.4), 30)


def test_same_bits_and_resume():
    known = KNOWN[3]
    solver = bilevel.solvers.ProjectedSOBA(refresh=7)
    assert_reproducible(known.problem, known.x0, known.y0, solver)


def test_costs_per_step():
    known = KNOWN[3]
    stats = bilevel.minimize(
        known.problem, known.x0, solver=bilevel.solvers.ProjectedSOBA(lower_step=0.5), steps=30
    ).stats
    names = ("upper_gradients", "lower_gradients", "hessian_products", "cross_products", "projections")
    assert [stats[name] for name in names] == [30] * 5


def moving_problem():
    """y* = min(3, x): F = |x - t|^2/2 + 0.05 |x|^2, smallest at t / 1.1."""
    target = torch.tensor([1.0, 2.0]).double()
    return target / 1.1, bilevel.Problem(
        lambda x, y: (y - target).square().sum() / 2 + 0.05 * x.square().sum(),
        lambda x, y: (y - 3.0).square().sum() / 2,
        lambda x: sets.Box(torch.full((2,), -10.0).double(), x),
        y0=torch.zeros(2).double(),
    )


@pytest.mark.parametrize(
    "solver",
    [bilevel.solvers.ProjectedSOBA(upper_step=0.5), bilevel.solvers.SIGD(upper_step=0.5, perturbation=1e-4)],
    ids=["soba", "sigd"],
)
def test_a_set_that_moves_with_x(solver):
    answer, problem = moving_problem()
    solution = bilevel.minimize(problem, torch.full((2,), 0.5).double(), solver=solver, steps=60)
    assert float((solution.x - answer).norm()) < 1e-3
    assert problem.constraint_at(solution.x).contains(solution.y)


def least_squares_problem():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(200, 4, generator=generator).double()
    labels = rows @ torch.tensor([1.0, 0.0, -1.0, 0.5]).double() + 0.1 * torch.randn(200, generator=generator)
    best = float((rows @ torch.linalg.lstsq(rows, labels[:, None]).solution - labels[:, None]).square().mean())

    def part(batch):
        return slice(None) if batch is None else batch

    return best, bilevel.Problem(
        upper=lambda x, y, batch: (rows[part(batch)] @ y - labels[part(batch)]).square().mean(),
        lower=lambda x, y, batch: (rows[part(batch)] @ (y - x)).square().mean() + 0.1 * (y - x) @ (y - x),
        constraint=sets.L1Ball(3.0),
        sampler=lambda generator: torch.randint(200, (16,), generator=generator),
        y0=torch.zeros(4).double(),
    )


@pytest.mark.parametrize(
    ("solver", "steps"),
    [
        (bilevel.solvers.ProjectedSOBA(upper_step=0.05, lower_step=0.1), 250),
        (bilevel.solvers.PenaltyMomentum(upper_step=0.1, penalty=5.0, lower_step=0.2, momentum=0.3), 150),
    ],
    ids=["soba", "penalty-momentum"],
)
def test_batches_of_16_of_200_rows(solver, steps):
    """F within 2 % of the start's gap."""
    best, problem = least_squares_problem()
    x0 = torch.zeros(4).double()
    solution = bilevel.minimize(problem, x0, solver=solver, steps=steps, evaluate_every=steps)
    start, end = (float(bilevel.upper_value(problem, x)) for x in (x0, solution.x))
    assert end - best < 0.02 * (start - best)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"upper_step": 0.0}, "upper_step must be a positive number, got 0.0"),
        ({"lower_step": "fast"}, "lower_step must be a positive number or \"auto\", got 'fast'"),
        ({"decay": 2.0}, r"decay must lie in \[0, 1\], got 2.0"),
        ({"refresh": 0}, "refresh must be an integer of at least 1, got 0"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(bilevel.InvalidInputError, match=message):
        bilevel.solvers.ProjectedSOBA(**settings)
