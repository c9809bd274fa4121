"""Rows divided among ranks: the problem, its derivatives and its runs are those of one process."""

import numpy as np
import pytest
import torch
from tests.ranks import on_ranks

import bilevel
from bilevel import minimize
from bilevel.cleaning import CleaningProblem
from bilevel.errors import InvalidInputError, RankError
from bilevel.spaces import Space

SPACE = Space()
EXACT = bilevel.LinearSolve(tol=1e-13, max_iterations=200)


def data(*, classes=2, n=161, trusted=40, d=60, seed=0):
    """Rows in [0, 1] of which few columns matter, 30 % of the labels wrong."""
    rng = np.random.default_rng(seed)
    X = rng.random((n + trusted, d)) * (rng.random(d) < 0.7)
    y = (X @ (rng.normal(size=(d, classes)) * (np.arange(d) < 12)[:, None])).argmax(1)
    given = np.where(rng.random(n) < 0.3, (y[:n] + 1) % classes, y[:n])
    return X[:n], given, X[n:], y[n:]


def part(ranks, X, labels):
    """Neighbouring rows: two thirds on rank 0, for parts of different sizes."""
    cuts = (
        [0, 2 * len(X) // 3, *(len(X) - 5 * k for k in range(ranks.size - 2, -1, -1))]
        if ranks.size > 1
        else [0, len(X)]
    )
    mine = slice(cuts[ranks.rank], cuts[ranks.rank + 1])
    return X[mine], labels[mine]


def sharded(ranks, options, **shape):
    X, given, trusted, labels = data(**shape)
    options = {**options}
    if "evidence_rows" in options:
        options["evidence_rows"] = part(ranks, X[:50], given[:50])
    return CleaningProblem(*part(ranks, X, given), trusted, labels, ranks=ranks, **options)


def plain(options, **shape):
    X, given, trusted, labels = data(**shape)
    options = {**options, "evidence_rows": (X[:50], given[:50])} if "evidence_rows" in options else options
    return CleaningProblem(X, given, trusted, labels, **options)


def joined(parts, problem):
    """x of all ranks as one: side by side where it has entries per row."""
    if isinstance(parts[0], dict):
        return {name: joined([p[name] for p in parts], problem) for name in parts[0]}
    tensors = [torch.tensor(p, dtype=torch.float64) for p in parts]
    if problem.noise.per_row and tensors[0].ndim:
        return torch.cat(tensors)
    assert all(torch.equal(t, tensors[0]) for t in tensors)
    return tensors[0]


def told(tree):
    return {name: told(entry) for name, entry in tree.items()} if isinstance(tree, dict) else tree.tolist()


def difference(a, b):
    return float(SPACE.norm(SPACE.add(a, b, -1.0)) / SPACE.norm(b))


CASES = {
    "the paper's": ({"intercept": False}, {}),
    "three classes": ({}, {"classes": 3}),
    "class pairs": ({"noise": "class-pairs"}, {"classes": 3}),
    "transition": ({"noise": "transition", "evidence_weight": 0.5}, {"classes": 3}),
    "evidence_rows": ({"noise": "transition", "evidence_weight": 0.5, "evidence_rows": True}, {}),
    "squared": ({"loss": "squared", "trusted_in_lower": 0.3}, {}),
    "smoothed hinge": ({"loss": "smoothed hinge", "ball": "all"}, {"classes": 3}),
    "radius": ({"radius": "auto"}, {}),
}


def point(problem, rows, per_row, first):
    """A point that is the same for any number of ranks."""
    g = torch.Generator().manual_seed(0)
    y = {name: 0.1 * torch.randn(u.shape, generator=g, dtype=u.dtype) for name, u in problem.y0.items()}
    start = problem.start()
    noise = problem.noise_part(start)
    if per_row:
        noise = torch.randn(rows, generator=g, dtype=noise.dtype)[first : first + len(noise)]
    else:
        noise = noise + torch.randn(noise.shape, generator=g, dtype=noise.dtype)
    x = {"noise": noise, "log_radius": start["log_radius"]} if isinstance(start, dict) else noise
    return x, problem.constraint_at(x).project(y)


def derivatives(problem, x, y):
    lin = problem.linearize(x, y)
    v = {name: u.sin() for name, u in y.items()}
    return {
        "values": torch.stack([lin.upper_value, lin.lower_value]),
        "upper_grad_x": lin.upper_grad_x,
        "upper_grad_y": lin.upper_grad_y,
        "lower_grad_x": lin.lower_grad_x,
        "lower_grad_y": lin.lower_grad_y,
        "lower_hvp": lin.lower_hvp(v),
        "lower_cross": lin.lower_cross(v),
        "norm": problem.x_space.norm(lin.lower_cross(v)),
        "mean_square": problem.x_space.mean_square(lin.lower_cross(v)),
        "size": torch.tensor(problem.x_space.size(x)),
        "F": bilevel.upper_value(problem, x, problem.y0),
        "h": bilevel.hypergradient(problem, x, y),
    }


def sharded_derivatives(ranks):
    found = {}
    for name, (options, shape) in CASES.items():
        problem = sharded(ranks, options, **shape)
        rows = ranks.gather(len(problem.labels))
        x, y = point(problem, sum(rows), problem.noise.per_row, sum(rows[: ranks.rank]))
        found[name] = {what: told(value) for what, value in derivatives(problem, x, y).items()}
    return found


IN_X = ("upper_grad_x", "lower_grad_x", "lower_cross", "h")


def tensors(tree):
    if isinstance(tree, dict):
        return {name: tensors(entry) for name, entry in tree.items()}
    return torch.tensor(tree, dtype=torch.float64)


@pytest.mark.slow
def test_every_derivative_is_that_of_all_rows():
    """Of every loss and noise model, on three ranks with parts of different sizes."""
    everything = on_ranks(sharded_derivatives, 3)
    for name, (options, shape) in CASES.items():
        problem, found = plain(options, **shape), [each[name] for each in everything]
        for what, value in derivatives(problem, *point(problem, 161, problem.noise.per_row, 0)).items():
            parts = [each[what] for each in found]
            assert what in IN_X or all(p == parts[0] for p in parts), (name, what)
            got = joined(parts, problem) if what in IN_X else tensors(parts[0])
            assert float(SPACE.norm(SPACE.add(got, value, -1.0))) <= 1e-9 * float(SPACE.norm(value)), (name, what)


SOLVERS = {
    "general": bilevel.DMLCBO(upper_step=0.1, hypergradient=EXACT),
    "perturbed": bilevel.DMLCBO(
        upper_step=0.1,
        hypergradient=bilevel.LinearSolve(
            tol=1e-13, max_iterations=200, smoothing=bilevel.hypergradients.Perturbed(radius=1e-3)
        ),
    ),
    "whole series": bilevel.DMLCBO(upper_step=0.1, hypergradient=bilevel.Neumann(terms=5, truncation="full")),
    "series": bilevel.DMLCBO(
        upper_step=0.1, hypergradient=bilevel.Neumann(terms=5, smoothing=bilevel.hypergradients.Perturbed(radius=1e-3))
    ),
    "Approx": bilevel.Approx(),
    "VPBGD": bilevel.solvers.VPBGD(),
    "Implicit": bilevel.Implicit(),
    "ProjectedSOBA": bilevel.solvers.ProjectedSOBA(),
}


def ran(ranks, name, solver, steps):
    options, shape = CASES[name]
    problem = sharded(ranks, options, **shape)
    found = minimize(problem, problem.start(), solver=SOLVERS[solver], steps=steps, evaluate_every=50)
    return {
        "x": told(found.x), "y": told(found.y), "status": found.status.name, "upper": [r.upper for r in found.history],
        "stationarity": [r.stationarity for r in found.history],
    }  # fmt: skip


def all_ran(ranks, runs):
    return [ran(ranks, *run) for run in runs]


def assert_as_in_one_process(found, name, solver, steps, tol):
    """The parts of a run on all ranks, against the whole."""
    options, shape = CASES[name]
    problem = plain(options, **shape)
    wanted = bilevel.minimize(problem, problem.start(), solver=SOLVERS[solver], steps=steps, evaluate_every=50)
    assert difference(joined([each["x"] for each in found], problem), wanted.x) < tol, solver
    assert difference(tensors(found[0]["y"]), wanted.y) < tol, solver
    for what in ("y", "status", "upper", "stationarity"):
        assert all(each[what] == found[0][what] for each in found)
    assert found[0]["upper"] == pytest.approx([r.upper for r in wanted.history], rel=tol)
    assert found[0]["status"] == wanted.status.name


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3])
def test_200_steps_are_those_of_one_process(size):
    runs = [("the paper's", solver, 200) for solver in ("general", "perturbed", "whole series")]
    found = on_ranks(all_ran, size, runs)
    for k, run in enumerate(runs):
        assert_as_in_one_process([each[k] for each in found], *run, 1e-10)


@pytest.mark.slow
def test_every_solver_takes_divided_rows():
    """To the tolerance of their inner loops."""
    runs = [("class pairs", "general", 30), ("radius", "general", 30), ("three classes", "series", 30),
            ("the paper's", "Approx", 10), ("the paper's", "VPBGD", 10), ("three classes", "Implicit", 5),
            ("the paper's", "ProjectedSOBA", 30)]  # fmt: skip
    found = on_ranks(all_ran, 2, runs)
    for k, run in enumerate(runs):
        assert_as_in_one_process([each[k] for each in found], *run, 1e-6)


# --- float32 -----------------------------------------------------------------------------------------


SINGLE = bilevel.DMLCBO(upper_step=0.1)


def in_float32(ranks):
    X, given, trusted, labels = data()
    problem = CleaningProblem(
        *part(ranks, X.astype("float32"), given), trusted.astype("float32"), labels, ranks=ranks, intercept=False
    )
    run = bilevel.iterate(problem, problem.start(), solver=SINGLE)
    state = [next(run) for _ in range(120)][-1]
    return {"x": told(state.x), "y": told(state.y), "dtype": str(state.x.dtype)}


def test_float32_stays_float32_and_ends_where_one_process_does():
    X, given, trusted, labels = data()
    problem = CleaningProblem(X.astype("float32"), given, trusted.astype("float32"), labels, intercept=False)
    run = bilevel.iterate(problem, problem.start(), solver=SINGLE)
    wanted = [next(run) for _ in range(120)][-1]
    found = on_ranks(in_float32, 2)
    assert {each["dtype"] for each in found} == {"torch.float32"}
    assert found[0]["y"] == found[1]["y"]
    assert difference(joined([each["x"] for each in found], problem), wanted.x.double()) < 1e-3
    assert difference(tensors(found[0]["y"]), {"weight": wanted.y["weight"].double()}) < 1e-3


# --- what is refused -------------------------------------------------------------------------------------------------


def refused(ranks):
    """What each rank says when rank 1 differs."""
    X, given, trusted, labels = data()
    other = ranks.rank == 1
    mine = part(ranks, X, given)
    few = X[:0], given[:0]
    changed = trusted + (other and np.arange(len(trusted) * 60).reshape(-1, 60) == 77)
    cases = {
        "columns": lambda: (mine[0][:, : 60 - other], mine[1], trusted[:, : 60 - other], labels, {}),
        "dtype": lambda: (mine[0].astype("float32" if other else float), mine[1], trusted, labels, {}),
        "trusted": lambda: (*mine, changed, labels, {}),
        "radius": lambda: (*mine, trusted, labels, {"radius": 1.0 + other}),
        "ridge": lambda: (*mine, trusted, labels, {"ridge": 1e-3 * (1 + other)}),
        "noise": lambda: (*mine, trusted, labels, {"noise": "class-pairs" if other else "rows"}),
        "empty": lambda: (*(few if other else mine), trusted, labels, {}),
        "label": lambda: (mine[0], mine[1] - other, trusted, labels, {}),
        "batch": lambda: (*mine, trusted, labels, {"batch_size": 7}),
    }
    said = {}
    for name, make in cases.items():
        *arguments, options = make()
        try:
            CleaningProblem(*arguments, ranks=ranks, **options)
        except RankError as error:
            said[name] = str(error)
    return said


def test_ranks_that_differ_are_told_what_differs():
    one, two = on_ranks(refused, 2)
    assert one == two
    assert "the number of columns is 60 on rank 0 and 59 on rank 1" in one["columns"]
    assert "the dtype is 'torch.float64' on rank 0 and 'torch.float32' on rank 1" in one["dtype"]
    assert "the trusted rows (by their fingerprint)" in one["trusted"]
    assert "radius=2" in one["radius"]
    assert "the ridges" in one["ridge"]
    assert "noise is 'RowWeights(weight=0.5)' on rank 0 and 'ClassPairs(trust=0.9)' on rank 1" in one["noise"]
    assert one["empty"].startswith("rank 1, making its part of the problem: X must have rows and columns")
    assert "labels must be numbered from 0, got -1" in one["label"]
    assert "batch_size=7" in one["batch"]


def by_autograd(ranks):
    problem = sharded(ranks, {})
    y = {name: u.requires_grad_() for name, u in problem.y0.items()}
    with pytest.raises(InvalidInputError, match=r"problem.linearize"):
        problem.call_lower(problem.start(), y)
    return True


def test_autograd_is_told_where_it_cannot_follow():
    assert on_ranks(by_autograd, 2) == [True, True]
