"""The problem and its linearisation: who is called, how often, and what comes back."""

import pytest
import torch

import bilevel
from bilevel import sets
from bilevel.hypergradients import LinearSolve, Neumann, Unrolled
from bilevel.random import RandomStreams


class Counted:
    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *arguments):
        self.calls += 1
        return self.function(*arguments)


def counted_problem(**options):
    upper = Counted(lambda x, y, *batch: (y - 1).square().sum() + x.square().sum())
    lower = Counted(lambda x, y, *batch: (y - x).pow(4).sum() + (y - x).square().sum() + x.exp() @ y)
    return bilevel.Problem(upper, lower, sets.L1Ball(1.0), **options), upper, lower


def point():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, generator=generator).double(), torch.zeros(4).double()


def test_each_function_is_called_once_per_point_whatever_is_asked():
    problem, upper, lower = counted_problem()
    x, y = point()
    lin = problem.linearize(x, y)
    assert (upper.calls, lower.calls) == (0, 0)  # lazy
    v = torch.ones(4).double()
    for _ in range(3):
        lin.upper_value, lin.upper_grad_x, lin.upper_grad_y
        lin.lower_value, lin.lower_grad_x, lin.lower_grad_y
        lin.lower_hvp(v), lin.lower_cross(v)
    assert (upper.calls, lower.calls) == (1, 1)
    costs = problem.costs.as_dict()
    assert costs == {
        "upper_gradients": 1, "lower_gradients": 2, "hessian_products": 3, "cross_products": 3, "projections": 0,
        "inequality_products": 0,
    }  # fmt: skip


@pytest.mark.parametrize("method", [LinearSolve(), Neumann(terms=8, truncation="full")], ids=repr)
def test_a_hypergradient_calls_each_function_once(method):
    problem, upper, lower = counted_problem()
    method.estimate(problem.linearize(*point()), RandomStreams())
    assert (upper.calls, lower.calls) == (1, 1)


def test_unrolled_calls_lower_once_per_point_of_its_path():
    problem, upper, lower = counted_problem()
    Unrolled(steps=7, eta=0.1).estimate(problem.linearize(*point()), RandomStreams())
    assert (upper.calls, lower.calls) == (1, 7)


def test_a_dmlcbo_step_calls_each_function_once():
    problem, upper, lower = counted_problem()
    x, y = point()
    solver = bilevel.DMLCBO(upper_step=0.1)
    state = solver.init(problem, x, y, bilevel.Seeds())
    before = upper.calls, lower.calls
    for _ in range(5):
        state = solver.step(problem, state)
    assert (upper.calls - before[0], lower.calls - before[1]) == (5, 5)


def test_lower_grad_calls_only_g():
    problem, upper, lower = counted_problem()
    x, y = point()
    gradient = problem.lower_grad(x, y)
    assert (upper.calls, lower.calls) == (0, 1)
    assert torch.equal(gradient, problem.linearize(x, y).lower_grad_y)
    assert not gradient.requires_grad


def test_products_agree_with_explicit_second_derivatives():
    problem, _, lower = counted_problem()
    x, y = point()
    y = y + 0.3
    lin, v = problem.linearize(x, y), torch.randn(4, generator=torch.Generator().manual_seed(1)).double()
    hessian = torch.autograd.functional.hessian(lambda x, y: lower.function(x, y), (x, y))
    assert torch.allclose(lin.lower_hvp(v), hessian[1][1] @ v, rtol=1e-12, atol=1e-12)
    assert torch.allclose(lin.lower_cross(v), hessian[0][1] @ v, rtol=1e-12, atol=1e-12)


def test_functions_that_ignore_an_argument_give_zero_derivatives():
    problem = bilevel.Problem(lambda x, y: y.sum(), lambda x, y: y @ y + x.sum())
    lin = problem.linearize(torch.zeros(3), torch.zeros(2))
    assert torch.equal(lin.upper_grad_x, torch.zeros(3))
    assert torch.equal(lin.lower_cross(torch.ones(2)), torch.zeros(3))


def test_works_inside_no_grad():
    problem, _, _ = counted_problem()
    x, y = point()
    with torch.no_grad():
        inside = bilevel.hypergradient(problem, x, y)
    assert torch.equal(inside, bilevel.hypergradient(problem, x, y))


def test_module_parameters_as_dictionaries():
    """x: the parameters of a network that makes features; y: a non-negative readout, by its closed-form derivative."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh()).double()
    inputs, targets = torch.randn(20, 3).double(), torch.randn(20).double()
    x = {name: p.detach() for name, p in network.named_parameters()}

    def features(x):
        return torch.func.functional_call(network, x, (inputs,))

    problem = bilevel.Problem(
        upper=lambda x, y: (features(x)[10:] @ y - targets[10:]).square().mean(),
        lower=lambda x, y: (features(x)[:10] @ y - targets[:10]).square().mean() + 0.05 * y @ y,
        constraint=sets.NonNegative(), y0=torch.zeros(4).double(),
    )  # fmt: skip
    h = bilevel.hypergradient(problem, x)
    assert list(h) == list(x)
    width, name = 1e-6, "0.weight"
    direction = torch.randn(4, 3, generator=torch.Generator().manual_seed(2)).double()
    moved = [bilevel.upper_value(problem, {**x, name: x[name] + s * width * direction}, tol=1e-13) for s in (1, -1)]
    assert float((moved[0] - moved[1]) / (2 * width)) == pytest.approx(float((h[name] * direction).sum()), rel=1e-5)


def test_batches_are_pure_functions_of_seed_and_step():
    data = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)).double()
    seen = []

    def sampler(generator):
        rows = torch.randint(50, (8,), generator=generator)
        seen.append(rows.tolist())
        return rows

    def pick(batch):
        return data if batch is None else data[batch]

    problem = bilevel.Problem(
        upper=lambda x, y, batch: (pick(batch) @ y - 1).square().mean(),
        lower=lambda x, y, batch: (pick(batch) @ y - x.sum()).square().mean() + y @ y,
        sampler=sampler,
    )
    options = {"steps": 5, "evaluate_every": 5}
    first = bilevel.minimize(
        problem,
        torch.zeros(2).double(),
        torch.zeros(3).double(),
        seed=3,
        **options,
        solver=bilevel.DMLCBO(upper_step=0.1),
    )
    drawn, seen[:] = list(seen), []
    second = bilevel.minimize(
        problem,
        torch.zeros(2).double(),
        torch.zeros(3).double(),
        seed=3,
        **options,
        solver=bilevel.DMLCBO(upper_step=0.1),
    )
    assert len(drawn) == 7  # one to look at before the start, the start, and five steps
    assert seen == drawn
    assert torch.equal(first.x, second.x)
    seen[:] = []
    bilevel.minimize(
        problem,
        torch.zeros(2).double(),
        torch.zeros(3).double(),
        seed=bilevel.Seeds(data=4),
        **options,
        solver=bilevel.DMLCBO(upper_step=0.1),
    )
    assert seen != drawn


def test_x_may_have_a_set_of_its_own():
    problem = bilevel.Problem(
        upper=lambda x, y: (y - 2).square().sum(), lower=lambda x, y: (y - x).square().sum(),
        upper_constraint=sets.Box(0.0, 1.0),
    )  # fmt: skip
    solution = bilevel.minimize(
        problem,
        torch.zeros(2).double(),
        torch.zeros(2).double(),
        steps=1000,
        tol=1e-6,
        solver=bilevel.DMLCBO(upper_step=0.1),
    )
    assert solution.status is bilevel.Status.STATIONARY
    assert torch.allclose(solution.x, torch.ones(2).double())


def test_a_radius_that_depends_on_x():
    """Tune the radius: h = P_r' u with the whole u, and finite differences of F agree."""
    generator = torch.Generator().manual_seed(0)
    design, response = torch.randn(30, 6, generator=generator).double(), torch.randn(30, generator=generator).double()
    problem = bilevel.Problem(
        upper=lambda x, y: (design[:15] @ y - response[:15]).square().mean(),
        lower=lambda x, y: (design[15:] @ y - response[15:]).square().mean(),
        constraint=lambda x: sets.L1Ball(radius=x.exp()), y0=torch.zeros(6).double(),
    )  # fmt: skip
    x, width = torch.tensor(-2.0).double(), 1e-6
    ahead, behind = (bilevel.upper_value(problem, x + s * width, tol=1e-13) for s in (1, -1))
    difference = float((ahead - behind) / (2 * width))
    for method in (
        LinearSolve(),
        Unrolled(steps=2000),
        Neumann(terms=2000, truncation="full", smoothing=bilevel.hypergradients.Exact()),
    ):
        assert float(bilevel.hypergradient(problem, x, method=method)) == pytest.approx(difference, rel=1e-5)


@pytest.mark.parametrize(
    "make_set",
    [
        lambda x: sets.L1Ball(radius=x[0].exp()),
        lambda x: sets.AffineSet(torch.ones(1, 4).double(), x),
        pytest.param(lambda x: sets.L2Ball(radius=x[0].exp()), marks=pytest.mark.slow),
        pytest.param(lambda x: sets.Box(-x[0].exp(), x[0].exp()), marks=pytest.mark.slow),
        pytest.param(lambda x: sets.Simplex(radius=x[0].exp()), marks=pytest.mark.slow),
        pytest.param(lambda x: sets.HalfSpace(torch.ones(4).double(), x[0]), marks=pytest.mark.slow),
    ],
    ids=["l1", "affine", "l2", "box", "simplex", "half-space"],
)
def test_dmlcbo_finds_the_parameter_of_a_set(make_set):
    """y* = P_{Y(x)}(c) must meet P_{Y(0.5)}(c): the minimum is x = 0.5, with F* = 0."""
    c = torch.tensor([3.0, -2.5, 2.0, 1.7]).double()
    target = make_set(torch.tensor([0.5]).double()).project(c)
    problem = bilevel.Problem(
        upper=lambda x, y: (y - target).square().sum(), lower=lambda x, y: (y - c).square().sum(), constraint=make_set
    )
    x0 = torch.tensor([-0.5]).double()
    y0 = make_set(x0).project(c)
    solution = bilevel.minimize(problem, x0, y0, steps=600, solver=bilevel.DMLCBO(upper_step=0.1))
    assert float(solution.x) == pytest.approx(0.5, abs=1e-2)
    assert make_set(solution.x).contains(solution.y)


def test_vectors_of_another_order_give_the_same_products():
    def lower(x, y):
        return (y["a"] * x).square().sum() + (y["b"] ** 3 * y["a"]).sum() + 5 * y["b"].square().sum()

    problem = bilevel.Problem(lambda x, y: y["a"].sum() + y["b"].sum(), lower)
    x, y = torch.ones(2).double(), {"a": torch.ones(2).double(), "b": torch.full((2,), 0.5).double()}
    lin, v = problem.linearize(x, y), {"a": torch.tensor([1.0, 2.0]).double(), "b": torch.tensor([3.0, 4.0]).double()}
    turned = {"b": v["b"], "a": v["a"]}
    assert all(torch.equal(lin.lower_hvp(v)[name], lin.lower_hvp(turned)[name]) for name in v)
    assert torch.equal(lin.lower_cross(v), lin.lower_cross(turned))
