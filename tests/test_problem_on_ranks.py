"""f and g as sums over ranks: runs, values and derivatives of one process."""

import pytest
import torch
from tests.ranks import on_ranks

import bilevel
from bilevel import sets
from bilevel.errors import IncompatibleError, InvalidInputError
from bilevel.ranks import Ranks

ROWS, COLUMNS, TRUSTED = 40, 6, 10
TIGHT = bilevel.LinearSolve(tol=1e-13)
SOLVERS = {
    "DMLCBO": bilevel.DMLCBO(upper_step=0.1, hypergradient=TIGHT),
    "Neumann": bilevel.DMLCBO(upper_step=0.1, hypergradient=bilevel.Neumann(terms=10)),
    "ProjectedSOBA": bilevel.solvers.ProjectedSOBA(),
    "Approx": bilevel.Approx(upper_step=1.0, step_rule="fixed"),
    "VPBGD": bilevel.solvers.VPBGD(),
}


def data():
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(ROWS, COLUMNS, generator=generator, dtype=torch.float64)
    truth = torch.tensor([1.0, -1.0, 0.5, 0.0, 0.0, 0.0], dtype=torch.float64)
    b = A @ truth + 0.1 * torch.randn(ROWS, generator=generator, dtype=torch.float64)
    b[TRUSTED : TRUSTED + 8] *= -1
    return A, b


def cleaning(ranks, x_kind):
    """Weights of rows that are divided, whole (a ridge), or both."""
    A, b = data()
    own, labels, trusted, checked = map(ranks.part, (A[TRUSTED:], b[TRUSTED:], A[:TRUSTED], b[:TRUSTED]))

    def ridge(x):
        return x["ridge"].exp() if isinstance(x, dict) else x.exp() if x_kind == "whole" else 0.01

    def weights(x):
        return x["weights"] if isinstance(x, dict) else x

    def upper(x, y):
        return (trusted @ y - checked).square().sum() / TRUSTED

    def lower(x, y):
        losses = (own @ y - labels).square()
        if x_kind != "whole":
            losses = weights(x).sigmoid() * losses
        return losses.sum() / ROWS + ridge(x) * y @ y / ranks.size  # what all ranks compute is divided among them

    divided = {"divided": ("x",), "whole": (), "both": ("x.weights",)}[x_kind]
    start, mild = torch.zeros(len(own), dtype=torch.float64), torch.tensor(-4.0, dtype=torch.float64)
    x0 = {"divided": start, "whole": mild, "both": {"weights": start, "ridge": mild}}[x_kind]
    y0 = torch.zeros(COLUMNS, dtype=torch.float64)
    return bilevel.Problem(upper, lower, sets.L1Ball(2.0), x0=x0, y0=y0, ranks=ranks, divided=divided)


def joined(ranks, problem, x):
    """x of all ranks, on each of them."""
    parts = x if isinstance(x, dict) else {"": x}
    flags = problem.x_space.flags(parts if isinstance(x, dict) else x)
    gathered = {
        name: [v for each in ranks.gather(u.tolist()) for v in each] if divided else u.tolist()
        for divided, (name, u) in zip(flags, parts.items(), strict=True)
    }
    return gathered if isinstance(x, dict) else gathered[""]


def run(ranks, x_kind, solvers):
    found = {}
    for name in solvers:
        problem = cleaning(ranks, x_kind)
        solution = bilevel.minimize(problem, steps=100, solver=SOLVERS[name], evaluate_every=50)
        rows = [record.upper for record in solution.history]
        found[name] = [
            joined(ranks, problem, solution.x),
            solution.y.tolist(),
            rows,
            solution.stats["hessian_products"],
        ]
    return found


def flat(value):
    if isinstance(value, dict):
        return [number for each in value.values() for number in flat(each)]
    return [number for each in value for number in flat(each)] if isinstance(value, list) else [value]


@pytest.mark.parametrize("x_kind", [pytest.param("divided", marks=pytest.mark.slow), "whole", "both"])
def test_runs_are_those_of_one_process(x_kind):
    solvers = [name for name in SOLVERS if x_kind == "divided" or name == "DMLCBO"]
    alone = run(Ranks(), x_kind, solvers)
    for found in on_ranks(run, 2, x_kind, solvers):
        for name in solvers:
            assert flat(found[name]) == pytest.approx(flat(alone[name]), rel=1e-10, abs=1e-10), name


def derivatives(ranks):
    problem = cleaning(ranks, "both")
    y = torch.linspace(-0.3, 0.4, COLUMNS, dtype=torch.float64)
    lin, v = problem.linearize(problem.x0, y), torch.linspace(1, 2, COLUMNS, dtype=torch.float64)
    whole = [
        lin.upper_value,
        lin.lower_value,
        lin.upper_grad_y,
        lin.lower_grad_y,
        lin.lower_hvp(v),
        problem.lower_grad(problem.x0, y),
    ]
    in_x = [lin.upper_grad_x, lin.lower_grad_x, lin.lower_cross(v), lin.reduced_gradient(v)]
    value = bilevel.upper_value(problem, problem.x0)
    hypergradient = bilevel.hypergradient(problem, problem.x0)
    return (
        [u.tolist() for u in [*whole, value]],
        [joined(ranks, problem, u) for u in [*in_x, hypergradient]],
        lin.depends(),
    )


def test_values_and_derivatives_are_those_of_one_process():
    alone = derivatives(Ranks())
    for found in on_ranks(derivatives, 3):
        assert flat(found[:2]) == pytest.approx(flat(list(alone[:2])), rel=1e-11, abs=1e-12)
        assert found[2] == alone[2] == {"upper x": False, "upper y": True, "lower y": True, "lower cross": True}


def coupled(ranks):
    """Columns of A are divided: what f and g need of all ranks goes by ranks.sum, and autograd follows it."""
    A, _ = data()
    mine = ranks.part(A.T).T
    target = ranks.part(torch.arange(COLUMNS, dtype=torch.float64))

    def lower(x, y):
        return (y.sum() - ranks.sum(mine @ x).square().sum() / 50).square() / ranks.size + y @ y / ranks.size

    problem = bilevel.Problem(
        lambda x, y: (x - target).square().sum() + y.square().sum() / ranks.size, lower,
        y0=torch.zeros(2, dtype=torch.float64), ranks=ranks, divided=("x",),
    )  # fmt: skip
    return joined(ranks, problem, bilevel.hypergradient(problem, torch.ones_like(target)))


def test_sums_within_f_and_g():
    alone = coupled(Ranks())
    for found in on_ranks(coupled, 2):
        assert found == pytest.approx(alone, rel=1e-10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"divided": ("y",)}, r"divided=\('y',\): projections and linear systems need all of y"),
        ({"divided": "z"}, r"divided=\('z',\): write \('x',\)"),
        ({"divided": "x", "constraint": lambda x: sets.L1Ball(x.norm())}, "a set that moves with x needs all of x"),
        ({"divided": "x", "inequality": lambda x, y: y}, "function constraints need all of x"),
        ({"divided": "x", "upper_constraint": sets.L2Ball(1.0)}, r"projecting x on L2Ball.* needs all of x"),
    ],
)
def test_what_cannot_be_divided_is_refused(options, message):
    with pytest.raises(InvalidInputError, match=message):
        bilevel.Problem(lambda x, y: y.sum(), lambda x, y: (y - x).square().sum(), **options)


def diagnosed(ranks):
    problem = cleaning(ranks, "divided")
    try:
        bilevel.certificate(problem, problem.x0, 0.1, problem.y0)
    except IncompatibleError as error:
        return str(error)


def test_diagnostics_need_all_of_x():
    texts = on_ranks(diagnosed, 2)
    assert all("divided among 2 ranks: use it in one process" in text for text in texts)


def test_a_box_is_taken_for_a_divided_x():
    options = {"upper_constraint": sets.Box(0.0, 1.0), "divided": ("x",)}
    assert bilevel.Problem(lambda x, y: y.sum(), lambda x, y: (y - x).square().sum(), **options).x_space.divided
