"""Default calls say so when f, g or a set is not what it seems: cut graphs, wrong products, random values."""

import time
import warnings

import pytest
import torch
from tests.wrong_setups import HARD_SETUPS, WRONG_SETUPS, Parts, right_setup

import bilevel
from bilevel import sets
from bilevel.diagnostics import Cause
from bilevel.errors import ProblemWarning

WRONG = {
    Cause.DETACHED_UPPER, Cause.DETACHED_LOWER, Cause.DETACHED_SET, Cause.WRONG_UPPER_GRADIENT,
    Cause.WRONG_LOWER_GRADIENT, Cause.WRONG_HESSIAN, Cause.WRONG_CROSS, Cause.NOT_A_PROJECTION,
    Cause.WRONG_SET_JACOBIAN, Cause.NOT_DETERMINISTIC,
}  # fmt: skip
ZERO = torch.zeros(3).double()


@pytest.mark.parametrize("way", [way for way in WRONG_SETUPS if way.cause in WRONG], ids=lambda way: way.name)
def test_a_hypergradient_of_a_wrong_problem_comes_with_a_warning(way):
    for seed in range(2):
        setup = way.draw(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", bilevel.errors.LowerLevelWarning)
            warnings.simplefilter("ignore", bilevel.errors.LinearSystemWarning)
            with pytest.warns(ProblemWarning):
                bilevel.hypergradient(setup.problem, setup.x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("make", [right_setup, *HARD_SETUPS], ids=lambda make: make.__name__)
def test_a_hypergradient_of_a_right_problem_comes_without_one(make, dtype):
    for seed in range(7):  # one of each kind of set
        setup = make(seed)
        given = setup.problem
        if dtype == torch.float32:
            upper, lower = given.upper, given.lower
            given = bilevel.Problem(
                lambda x, y, f=upper: f(x.double(), y.double()).float(),
                lambda x, y, g=lower: g(x.double(), y.double()).float(),
                given.constraint,
                upper_constraint=given.upper_constraint,
                y0=given.y0.float(),
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", ProblemWarning)
            bilevel.hypergradient(given, setup.x.to(dtype))


def cut():
    return bilevel.Problem(
        lambda x, y: (y - 1).square().sum(), lambda x, y: (y - x.detach()).square().sum() + 0 * x.sum() * y.sum(),
        x0=ZERO, y0=ZERO,
    )  # fmt: skip


CALLS = {
    "minimize": lambda p: bilevel.minimize(p, steps=2),
    "DMLCBO": lambda p: bilevel.minimize(p, steps=2, solver=bilevel.DMLCBO()),
    "iterate": lambda p: next(iter(bilevel.iterate(p))),
    "solve_lower": lambda p: bilevel.solve_lower(p, ZERO),
    "upper_value": lambda p: bilevel.upper_value(p, ZERO),
    "argmin": lambda p: bilevel.argmin(p, ZERO),
    "certificate": lambda p: bilevel.certificate(p, ZERO, 0.1),
    "goldstein_measure": lambda p: bilevel.diagnostics.goldstein_measure(p, ZERO, 0.1),
    "estimate_constants": lambda p: bilevel.diagnostics.estimate_constants(p, ZERO),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_call_warns_once_for_each_problem(call):
    given = cut()
    with pytest.warns(ProblemWarning, match="grad_y g along a direction of x: its derivative is 0, differences give"):
        CALLS[call](given)
    CALLS[call](given)  # a second warning would be an error here


@pytest.mark.parametrize("part", ["f", "g", "h in x", "h in y", "none"])
def test_problems_with_function_constraints_are_looked_at(part):
    def maybe(name, u):
        return u.detach() + 0 * u if part == name else u

    problem = bilevel.Problem(
        lambda x, y: (maybe("f", y) - 1).square().sum(),
        lambda x, y: (y - maybe("g", x)).square().sum(),
        inequality=lambda x, y: torch.stack([maybe("h in y", y).square().sum() - 1, maybe("h in x", x) @ y - 2]),
        y0=ZERO,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bilevel.minimize(problem, ZERO + 0.1, steps=3)
    named = [str(each.message)[0] for each in caught if issubclass(each.category, ProblemWarning)]
    assert named == [part[0]] * (part != "none")


@pytest.mark.parametrize("solver", [None, bilevel.DMLCBO()], ids=["default", "DMLCBO"])
@pytest.mark.parametrize(
    ("mistake", "options"),
    [
        ("a detached term", {}),
        ("a detached term", {"tol": 1e-2}),
        ("a detached term", {"tol": 1e-2, "delta": 1e-2}),
        ("dropout of x", {}),
    ],
)
def test_a_mistake_that_does_not_show_at_a_start_of_zeros(mistake, solver, options):
    """The derivative of |x|^2 is 0 at x = 0, and so is a dropout of x."""
    drop = torch.nn.Dropout(0.5)
    torch.manual_seed(0)

    def upper(x, y):
        return (y - 1).square().sum() + ((x.detach() if mistake == "a detached term" else x) - 3).square().sum()

    def lower(x, y):
        shown = drop(x) if mistake == "dropout of x" else x
        return (y - shown).square().sum() + (0 if mistake == "dropout of x" else x.detach().square().sum() * y.sum())

    problem = bilevel.Problem(upper, lower, x0=ZERO, y0=ZERO)
    with pytest.warns(ProblemWarning):
        solution = bilevel.minimize(problem, solver=solver or "auto", steps=60, evaluate_every=20, **options)
    assert solution.status not in (bilevel.Status.CONVERGED, bilevel.Status.STATIONARY, bilevel.Status.CERTIFIED)


def test_the_check_names_the_cause_and_warns_of_nothing():
    assert bilevel.check_hypergradient(cut(), ZERO + 0.5).cause is Cause.DETACHED_LOWER


def test_float32_that_loses_its_digits():
    parts = Parts(0)
    large = 1e7 * (1 + torch.rand(parts.n, generator=parts.generator, dtype=torch.float64))
    given = bilevel.Problem(
        lambda x, y: (y + large.to(y) - large.to(y) - parts.t.to(y)).square().sum() + x.sum(),
        lambda x, y: (y - parts.A.to(x) @ x - parts.b.to(x)).square().sum(),
        sets.Box(-9.0, 9.0),
        y0=parts.y0.float(),
    )
    with pytest.warns(ProblemWarning):
        bilevel.hypergradient(given, parts.x.float())
    bilevel.hypergradient(given, parts.x, parts.y0)


def test_a_value_that_is_not_finite_is_an_error():
    given = bilevel.Problem(lambda x, y: y.sum().log(), lambda x, y: (y - x).square().sum(), y0=ZERO)
    for call in (bilevel.upper_value, bilevel.hypergradient):
        with pytest.raises(bilevel.NonFiniteError, match=r"upper\(x, y\) is nan"):
            call(given, ZERO - 1)


def test_looking_counts_nothing():
    given = right_setup(0).problem
    bilevel.hypergradient(given, given.x0)
    assert not any(given.costs.as_dict().values())


@pytest.mark.parametrize("options", [{}, {"tol": 1e-3}, {"tol": 1e-3, "delta": 1e-2}], ids=str)
@pytest.mark.filterwarnings("ignore::bilevel.errors.ProblemWarning")
def test_nothing_is_claimed_of_a_wrong_problem(options):
    """A term is missing in grad_y g, so that y is not y*(x) whatever F seems to be."""
    (way,) = (way for way in WRONG_SETUPS if way.name == "term missing in the lower gradient")
    given = way.draw(7).problem
    for _ in range(2):  # the second call warns of nothing, and still knows
        status = bilevel.minimize(given, seconds=2, clock=time.process_time, **options).status
        assert status not in (bilevel.Status.CONVERGED, bilevel.Status.STATIONARY, bilevel.Status.CERTIFIED)


@pytest.mark.parametrize("grid", [1e-1, 1e-2, 1e-4, 1e-7])
@pytest.mark.parametrize("part", ["y in f", "x in f", "x in g"])
def test_a_step_function_is_noticed_although_short_differences_agree_with_its_derivative(part, grid):
    """Values from a table, say, or rounded ones: the derivative is 0, and so are differences within a step."""

    def rounded(name, u):
        return (u / grid).round() * grid if name == part else u

    problem = bilevel.Problem(
        lambda x, y: (rounded("y in f", y) - 1).square().sum() + (rounded("x in f", x) - 2).square().sum(),
        lambda x, y: (y - rounded("x in g", x)).square().sum(),
        x0=ZERO + 0.7,
        y0=ZERO,
    )
    with pytest.warns(ProblemWarning, match=f"{part[-1]} along a direction of {part[0]}: its derivative is 0"):
        assert bilevel.minimize(problem, steps=50).status is not bilevel.Status.CONVERGED


def test_flat_parts_of_a_function_are_no_steps():
    problem = bilevel.Problem(
        lambda x, y: (y - 1).relu().square().sum() + (-1 - y).relu().square().sum(),
        lambda x, y: (y - x).square().sum(),
        x0=ZERO + 0.97,
        y0=ZERO,
    )
    bilevel.upper_value(problem, problem.x0)  # no warning
    assert bilevel.minimize(problem).status is bilevel.Status.CONVERGED


@pytest.mark.parametrize("x0", [0.0, 1e-30, 1e-10])
@pytest.mark.parametrize("solver", ["auto", bilevel.DMLCBO()], ids=["default", "DMLCBO"])
def test_no_claim_near_the_origin_where_every_length_relative_to_x_is_tiny(solver, x0):
    """F falls along x, the gradient does not say so, and nothing is claimed: lengths are not relative to |x| alone."""
    problem = bilevel.Problem(
        lambda x, y: (y.detach() + 0.0 * y - 1).square().sum() + x.square().sum() / 20,
        lambda x, y: (y - x).square().sum(),
        x0=ZERO + x0,
        y0=ZERO,
    )
    problem.flaws = None  # as if the derivatives had not been compared
    solution = bilevel.minimize(problem, steps=300, tol=1e-3, solver=solver)
    assert solution.status not in (bilevel.Status.CONVERGED, bilevel.Status.STATIONARY)
