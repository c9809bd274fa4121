"""check_hypergradient: the right cause, the right numbers, in words."""

import math
import pickle

import pytest
import torch
from tests.wrong_setups import HARD_SETUPS, WRONG_SETUPS, right_setup

import bilevel
from bilevel import check_hypergradient, sets
from bilevel.diagnostics import Cause
from bilevel.diagnostics.lower_level import curvature
from bilevel.testing.known_problems import known_problems

SLOW = {
    "lower level stopped early", "absolute value in the lower level", "lower level only once differentiable",
    "wrong sign under some noise", "zero under some noise",
}  # fmt: skip


def vector(*entries):
    return torch.tensor(entries, dtype=torch.float64)


@pytest.mark.parametrize("wrong", [w for w in WRONG_SETUPS if w.name not in SLOW], ids=lambda wrong: wrong.name)
def test_the_right_cause_is_named(wrong):
    """One seed that the full-size test does not use, and one direction."""
    setup = wrong.draw(77)
    check = check_hypergradient(setup.problem, setup.x, directions=1, **setup.options)
    assert check.cause is wrong.cause, str(check)
    assert not check.ok
    assert check.cause.remedy in str(check)


@pytest.mark.parametrize("seed", range(100, 107))
def test_correct_problems_are_correct(seed):
    setup = right_setup(seed)
    check = check_hypergradient(setup.problem, setup.x, directions=1)
    assert check.ok, str(check)
    assert check.error < 1e-5
    assert str(check).startswith("correct to ")


@pytest.mark.parametrize("make", HARD_SETUPS, ids=lambda make: make.__name__)
def test_correct_problems_that_need_short_steps_are_correct(make):
    setup = make(101)
    check = check_hypergradient(setup.problem, setup.x, directions=1)
    assert check.ok, str(check)
    assert check.error < 1e-4


def test_f_that_ends_at_x_is_not_finite_beyond():
    """sqrt(x - 1) has no values on the left of x = 1, and no derivative there."""
    problem = bilevel.Problem(
        lambda x, y: y.sum() + (x - 1).clamp_min(-1).sqrt().sum(), lambda x, y: (y - x).square().sum(), y0=vector(0.0)
    )
    assert check_hypergradient(problem, vector(1.0), directions=1).cause is Cause.NOT_FINITE


def test_slopes_are_those_of_the_closed_form():
    """What the check measures is the gradient that is known; mu and L are those of the matrix in g."""
    known = next(k for k in known_problems() if k.name == "half-space")
    check = check_hypergradient(known.problem, known.x0, gradient=known.gradient(known.x0), directions=2)
    assert check.ok
    assert check.error < 1e-8
    assert check.curvature.mu == pytest.approx(0.5)
    assert check.curvature.largest == pytest.approx(2.0)


def test_single_precision_is_correct_to_its_own_accuracy():
    known = next(k for k in known_problems(torch.float32) if k.name == "l1 ball")
    check = check_hypergradient(known.problem, known.x0, directions=1)
    assert check.ok
    assert check.error < 1e-3
    assert any("cannot take float64" in note for note in check.notes)


def test_data_in_single_precision_raise_no_false_alarm():
    """Means over rows in float32 at an ill-conditioned lower level: rounding is named, not the graph of g."""
    torch.manual_seed(0)
    A = torch.randn(80, 6)
    b = A @ torch.tensor([1.0, -0.5, 0.0, 0.0, 2.0, 0.0]) + 0.3 * torch.randn(80)
    problem = bilevel.Problem(
        lambda x, y: (A[50:] @ y - b[50:]).square().mean(),
        lambda x, y: (A[:50] @ y - b[:50]).square().mean() + (x.exp() * y.square()).sum(),
        sets.Box(-1.5, 1.5),
    )
    solution = bilevel.minimize(problem, torch.zeros(6), torch.zeros(6))
    check = check_hypergradient(problem, solution.x, solution.y)
    assert check.cause in (Cause.CORRECT, Cause.PRECISION, Cause.UNSOLVED), str(check)


def kink_at(x_position):
    """F(x) = max(x, 0): the kink is at 0."""
    problem = bilevel.Problem(
        lambda x, y: y.sum(), lambda x, y: (y - x).square().sum() / 2, sets.NonNegative(), y0=vector(0.0)
    )
    return check_hypergradient(problem, vector(x_position), directions=1)


def test_the_distance_to_the_kink_is_known():
    """At x > 0 both the margin of z (eta = 1) and the distance in x are x itself."""
    for x in (0.3, 1e-2, -0.2):
        check = kink_at(x)
        assert check.ok
        assert check.face.margin == pytest.approx(abs(x))
        assert check.kink_distance == pytest.approx(abs(x), rel=1e-3)
    assert check.face.dimension == 0
    assert any("vertex" in note for note in check.notes)


def test_at_the_kink_both_slopes_are_reported():
    check = kink_at(0.0)
    assert check.cause is Cause.KINK
    assert sorted(abs(s) for s in (check.slopes[0].forward, check.slopes[0].backward)) == pytest.approx([0.0, 1.0])
    assert check.face.margin == pytest.approx(0.0, abs=1e-12)
    assert "kink" in str(check)


def test_several_kinks_that_cancel_are_kinks():
    """Erratum 11: F(x) = x is smooth, but h at x = 0 is an element of a set that contains 0, 1 and 2."""
    problem = bilevel.Problem(
        lambda x, y: y[0] - y[1], lambda x, y: (y - torch.cat([x, -x])).square().sum() / 2, sets.NonNegative(),
        y0=vector(0.0, 0.0),
    )  # fmt: skip
    check = check_hypergradient(problem, vector(0.0), directions=1)
    assert float(bilevel.hypergradient(problem, vector(0.0))) != 1.0
    assert check.cause is Cause.KINK


def test_the_picture_shows_the_kink(tmp_path):
    figure = kink_at(0.0).plot(tmp_path / "kink.png")
    values = torch.tensor(figure.axes[0].lines[0].get_ydata())
    rises = sorted(float(half.max() - half.min()) for half in (values[:21], values[20:]))
    assert rises[0] == pytest.approx(0.0, abs=1e-12)
    assert rises[1] == pytest.approx(float(figure.axes[0].lines[0].get_xdata()[-1]))
    assert (tmp_path / "kink.png").stat().st_size > 1000


def test_there_is_no_picture_before_f_was_looked_at():
    check = bilevel.diagnostics.HypergradientCheck(cause=Cause.NOT_FINITE)
    assert math.isnan(check.error)
    with pytest.raises(bilevel.InvalidInputError, match="NOT_FINITE before F was evaluated"):
        check.plot()


def test_where_f_is_flat_zero_is_correct():
    """Erratum 9: y* = (1, 0) does not move; h = 0 is the gradient, and the note says what that may hide."""
    stiffness = vector(0.1, 1.0)
    problem = bilevel.Problem(
        lambda x, y: (y - 0.5).square().sum() / 2, lambda x, y: (stiffness * (y - x).square()).sum() / 2,
        sets.L1Ball(1.0), y0=vector(0.0, 0.0),
    )  # fmt: skip
    check = check_hypergradient(problem, vector(1.5, 0.03), directions=2)
    assert check.ok
    assert any("flat" in note for note in check.notes)
    assert check.face.dimension == 0


@pytest.mark.parametrize("name", ["free space", "l1 ball"])
def test_at_a_minimum_zero_is_correct(name):
    """F* = 0 at x_bar, with f_x = f_y = 0 there."""
    known = next(k for k in known_problems() if k.name == name)
    assert check_hypergradient(known.problem, known.optimum, directions=2).ok


def test_a_random_method_is_averaged():
    """Random truncation is unbiased: its mean over draws is the full sum, here exact to 1e-8."""
    known = next(k for k in known_problems() if k.name == "batch of simplices")
    method = bilevel.Neumann(terms=12, eta=0.4, truncation="random", smoothing=bilevel.hypergradients.Exact())
    check = check_hypergradient(known.problem, known.x0, method=method, directions=1, tol=0.3)
    assert check.ok
    assert check.error <= 0.3
    assert any("the mean of 1000 draws" in note for note in check.notes)  # 200 do not tell
    # What 1000 draws cannot tell either is not called correct.
    check = check_hypergradient(known.problem, known.x0, method=method, directions=1)
    assert check.cause is Cause.UNDECIDED
    assert "tol is 0.0001" in check.detail


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_is_not_randomness(dtype):
    """The step of the fixed-point map has a random start: draws of a linear solve differ in the last digit."""
    ball = sets.from_projection(lambda z: z / z.norm(dim=-1, keepdim=True).clamp_min(1.0), name="ball")
    problem = bilevel.Problem(
        upper=lambda x, y: (y - 0.3).square().sum(),
        lower=lambda x, y: (torch.tensor([1.0, 2.0, 5.0]).to(y) * (y - x).square()).sum(),
        constraint=ball,
        y0=torch.zeros(3, dtype=dtype),
    )
    check = check_hypergradient(problem, torch.tensor([2.0, -0.5, 1.0], dtype=dtype))
    assert check.ok, str(check)
    assert "random" not in str(check)


def test_correct_means_an_error_within_tol():
    """A gradient that is wrong by 2e-3 is not correct to 1e-3, and is to 3e-3."""
    known = next(k for k in known_problems() if k.name == "l1 ball")
    off = 1.002 * known.gradient(known.x0)
    verdicts = [check_hypergradient(known.problem, known.x0, gradient=off, directions=1, tol=t) for t in (1e-3, 3e-3)]
    assert [check.cause for check in verdicts] == [Cause.WRONG_METHOD, Cause.CORRECT]
    assert all(check.error == pytest.approx(2e-3, rel=0.01) for check in verdicts)


@pytest.mark.parametrize("solver", [bilevel.DMLCBO(upper_step=0.1), bilevel.Approx(), bilevel.Implicit()], ids=repr)
def test_solvers_of_the_library_pass(solver):
    known = next(k for k in known_problems() if k.name == "l1 ball")
    assert check_hypergradient(known.problem, known.x0, solver=solver, directions=1).ok


def test_bad_arguments_are_refused():
    known = known_problems()[0]
    with pytest.raises(bilevel.InvalidInputError, match="directions must be an integer of at least 1, got 0"):
        check_hypergradient(known.problem, known.x0, directions=0)
    with pytest.raises(bilevel.InvalidInputError, match=r"tol must lie in \(0, 1\), got 2"):
        check_hypergradient(known.problem, known.x0, tol=2)
    with pytest.raises(bilevel.InvalidInputError, match="gradient has 2 entries but x has 6"):
        check_hypergradient(known.problem, known.x0, gradient=torch.zeros(2))
    constrained = bilevel.Problem(known.problem.upper, known.problem.lower, inequality=lambda x, y: y, y0=known.y0)
    with pytest.raises(bilevel.IncompatibleError, match="function constraints"):
        check_hypergradient(constrained, known.x0)


@pytest.mark.parametrize(("size", "smallest"), [(500, 0.0), (500, -1e-5), (1200, 0.0)])
def test_one_flat_direction_among_many_is_seen(size, smallest):
    """g = sum w_i y_i^2 / 2 - x.y with one w_i = 0 or below: by a matrix up to 1000 dimensions, then by Lanczos."""
    weights = torch.linspace(0.01, 1.0, size).double()
    weights[7] = smallest
    problem = bilevel.Problem(
        lambda x, y: (y - 1).square().sum(), lambda x, y: (weights * y.square()).sum() / 2 - x @ y,
        sets.Box(-1.0, 1.0), y0=torch.zeros(size).double(),
    )  # fmt: skip
    x = 1e-3 * torch.randn(size, generator=torch.Generator().manual_seed(0)).double()
    x[7] = 0.0
    seen = curvature(problem.linearize(x, problem.y0))
    assert (seen.negative, seen.singular) == (smallest < 0, smallest == 0)
    assert seen.mu == pytest.approx(smallest, abs=1e-9)
    if size == 500 and smallest == 0:
        assert check_hypergradient(problem, x, directions=1).cause is Cause.SINGULAR_HESSIAN


def test_a_check_of_functions_that_cannot_be_pickled_can():
    problem = bilevel.Problem(lambda x, y: (y - 1).square().sum(), lambda x, y: (y - x).square().sum())
    check = bilevel.check_hypergradient(problem, torch.ones(3).double(), torch.ones(3).double())
    assert pickle.loads(pickle.dumps(check)) == check


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("of_g", "of_y"), [(1e-6, 1.0), (1e8, 1.0), (1.0, 1e-5), (1e-9, 1e-4)])
def test_units_of_g_and_y_do_not_change_the_verdict(dtype, of_g, of_y):
    """The lower level is as solved as in other units, whatever the size of its residual."""
    generator = torch.Generator().manual_seed(3)
    A, b, t = (torch.randn(size, generator=generator).to(dtype) for size in ((4, 4), (4,), (4,)))
    problem = bilevel.Problem(
        lambda x, y: (y / of_y - t).square().sum() + 0.05 * x.square().sum(),
        lambda x, y: of_g * (y / of_y - A @ x / 2 - b).square().sum(),
        sets.L1Ball(of_y),
        y0=torch.zeros(4, dtype=dtype),
    )
    check = bilevel.check_hypergradient(problem, torch.ones(4, dtype=dtype))
    assert check.cause is Cause.CORRECT, check


def test_x_and_y_of_different_dtypes_stay_as_they_are():
    A = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).double()
    problem = bilevel.Problem(
        lambda x, y: (A @ y - 1).square().sum(), lambda x, y: (y - x).square().sum(), y0=torch.zeros(3).double()
    )
    assert check_hypergradient(problem, torch.ones(3)).ok
