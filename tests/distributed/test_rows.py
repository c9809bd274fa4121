"""Rows divided among ranks: the problem, its derivatives and its runs are those of one process."""

import numpy as np
import pytest
import torch
from tests.distributed.ranks import on_ranks

import bilevel
from bilevel.applications.hyper_cleaning import CleaningProblem
from bilevel.distributed import ShardedCleaningProblem, minimize
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
    if "witnesses" in options:
        options["witnesses"] = part(ranks, X[:50], given[:50])
    return ShardedCleaningProblem(*part(ranks, X, given), trusted, labels, ranks=ranks, **options)


def plain(options, **shape):
    X, given, trusted, labels = data(**shape)
    options = {**options, "witnesses": (X[:50], given[:50])} if "witnesses" in options else options
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
    "transition": ({"noise": "transition", "evidence": 0.5}, {"classes": 3}),
    "witnesses": ({"noise": "transition", "evidence": 0.5, "witnesses": True}, {}),
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


def sharded_derivatives(ranks, name):
    options, shape = CASES[name]
    problem = sharded(ranks, options, **shape)
    x, y = point(problem, sum(problem.counts), problem.noise.per_row, problem.first_row)
    return {name: told(value) for name, value in derivatives(problem, x, y).items()}


IN_X = ("upper_grad_x", "lower_grad_x", "lower_cross", "h")


@pytest.mark.parametrize("name", CASES)
def test_every_derivative_is_that_of_all_rows(name):
    options, shape = CASES[name]
    problem = plain(options, **shape)
    wanted = derivatives(problem, *point(problem, 161, problem.noise.per_row, 0))
    found = on_ranks(sharded_derivatives, 3, name)
    for what, value in wanted.items():
        parts = [each[what] for each in found]
        if what in IN_X:
            got = joined(parts, problem)
        else:
            assert all(p == parts[0] for p in parts), what
            got = (
                {n: torch.tensor(u, dtype=torch.float64) for n, u in parts[0].items()}
                if isinstance(parts[0], dict)
                else torch.tensor(parts[0], dtype=torch.float64)
            )
        if float(SPACE.norm(value)) == 0:
            assert float(SPACE.norm(got)) == 0
        else:
            assert difference(got, value) < 1e-9, what


def ran(ranks, name, solver, steps):
    options, shape = CASES[name]
    problem = sharded(ranks, {**options, "fused": solver == "fused"}, **shape)
    found = minimize(problem, problem.start(), solver=SOLVERS[solver], steps=steps, evaluate_every=50)
    return {
        "x": told(found.x), "y": told(found.y), "status": found.status.name, "upper": [r.upper for r in found.history],
        "stationarity": [r.stationarity for r in found.history],
    }  # fmt: skip


SOLVERS = {
    "fused": bilevel.DMLCBO(hypergradient=EXACT),
    "general": bilevel.DMLCBO(hypergradient=EXACT),
    "series": bilevel.DMLCBO(hypergradient=bilevel.Neumann(terms=5, smoothing=bilevel.Perturbed(radius=1e-3))),
    "Approx": bilevel.Approx(),
    "VPBGD": bilevel.VPBGD(),
    "Implicit": bilevel.Implicit(),
    "ProjectedSOBA": bilevel.ProjectedSOBA(),
}


def test_runs_of_200_steps_are_those_of_one_process():
    problem = plain({"intercept": False})
    wanted = bilevel.minimize(problem, problem.start(), solver=SOLVERS["fused"], steps=200, evaluate_every=50)
    for size in (1, 2, 3):
        for solver in ("fused", "general"):
            found = on_ranks(ran, size, "the paper's", solver, 200)
            assert difference(joined([each["x"] for each in found], problem), wanted.x) < 1e-10
            assert difference(torch.tensor(found[0]["y"]["weight"], dtype=torch.float64), wanted.y["weight"]) < 1e-10
            for name in ("y", "status", "upper", "stationarity"):
                assert all(each[name] == found[0][name] for each in found)
            assert found[0]["upper"] == pytest.approx([r.upper for r in wanted.history], rel=1e-10)
            assert found[0]["stationarity"] == pytest.approx([r.stationarity for r in wanted.history], rel=1e-2)


RUNS = [("class pairs", "general"), ("radius", "general"), ("three classes", "series"), ("the paper's", "Approx"),
        ("the paper's", "VPBGD"), ("three classes", "Implicit"), ("the paper's", "ProjectedSOBA")]  # fmt: skip


@pytest.mark.parametrize(("name", "solver"), RUNS)
def test_every_solver_takes_divided_rows(name, solver):
    options, shape = CASES[name]
    problem = plain(options, **shape)
    wanted = bilevel.minimize(problem, problem.start(), solver=SOLVERS[solver], steps=30, evaluate_every=50)
    found = on_ranks(ran, 2, name, solver, 30)
    assert difference(joined([each["x"] for each in found], problem), wanted.x) < 1e-8
    assert found[0]["y"] == found[1]["y"]
    y = {name: torch.tensor(u, dtype=torch.float64) for name, u in found[0]["y"].items()}
    assert difference(y, wanted.y) < 1e-8
    assert found[0]["status"] == wanted.status.name
