"""Steps of DMLCBO on hyper-cleaning: those of plain autograd, on all columns or on few, resumed, copied and shared."""

import copy
import pickle
import threading

import numpy as np
import pytest
import torch

import bilevel
from bilevel.cleaning import CleaningProblem
from bilevel.spaces import Space, leaves

SPACE = Space()
EXACT = bilevel.LinearSolve(tol=1e-13, max_iterations=200)
SOLVERS = {
    "auto": bilevel.DMLCBO(upper_step=0.1, hypergradient=EXACT, refresh=30),
    "steps given": bilevel.DMLCBO(
        upper_step=1.0, lower_step=0.1, hypergradient=bilevel.LinearSolve(tol=1e-13, max_iterations=200, eta=0.3)
    ),
    "perturbed": bilevel.DMLCBO(
        upper_step=0.1,
        hypergradient=bilevel.LinearSolve(
            tol=1e-13, max_iterations=200, smoothing=bilevel.hypergradients.Perturbed(radius=1e-4)
        ),
    ),
    "a term of the series": bilevel.DMLCBO(
        upper_step=1.0, lower_step=0.1, hypergradient=bilevel.Neumann(terms=4, eta=0.5)
    ),
    "the series": bilevel.DMLCBO(upper_step=0.1, hypergradient=bilevel.Neumann(terms=5, truncation="full")),
}


def pixels(*, classes=2, n=160, trusted=80, d=120, seed=0):
    """Rows in [0, 1] of which few columns matter, 30 % of the labels wrong."""
    rng = np.random.default_rng(seed)
    X = rng.random((n + trusted, d)) * (rng.random(d) < 0.7)
    y = (X @ (rng.normal(size=(d, classes)) * (np.arange(d) < 12)[:, None])).argmax(1)
    given = y[:n].copy()
    wrong = rng.random(n) < 0.3
    given[wrong] = (given[wrong] + 1) % classes
    return X[:n], given, X[n:], y[n:]


def paper_problem(dtype=float, **options):
    X, given, trusted, labels = pixels()
    return CleaningProblem(X.astype(dtype), given, trusted.astype(dtype), labels, intercept=False, **options)


def states(problem, solver, steps, seed=0):
    run = bilevel.iterate(problem, problem.start(), solver=solver, seed=seed)
    return [next(run) for _ in range(steps)]


def difference(a, b):
    """Relative, over all tensors of two vectors."""
    return float(SPACE.norm(SPACE.add(a, b, -1.0)) / SPACE.norm(b))


def assert_same_state(a, b, tol):
    for name in ("x", "y", "upper_momentum", "lower_momentum", "adjoint"):
        assert difference(getattr(a, name), getattr(b, name)) < tol, name
    for name in ("upper_moment", "lower_moment"):
        assert difference(getattr(a, name), getattr(b, name)) < tol, name
    assert a.curvature == pytest.approx(b.curvature, rel=tol, nan_ok=True)


@pytest.mark.parametrize("name", SOLVERS)
def test_steps_are_those_of_autograd_alone(name):
    """The problem as its two formulas, without any structure."""
    problem = paper_problem()
    generic = bilevel.Problem(problem.upper, problem.lower, problem.constraint, y0=problem.y0)
    run = bilevel.iterate(generic, problem.start(), solver=SOLVERS[name])
    assert_same_state(states(problem, SOLVERS[name], 60)[-1], [next(run) for _ in range(60)][-1], 1e-9)


def test_threads_that_share_a_problem_and_a_solver():
    problem, solver, found = paper_problem(), SOLVERS["steps given"], {}

    def run(seed):
        x = problem.start() + seed  # another run
        found[seed] = [s for _, s in zip(range(150), bilevel.iterate(problem, x, solver=solver), strict=False)][-1]

    run(0)  # the step is there, and would be shared
    alone = {}
    for seed in (1, 2):
        run(seed)
        alone[seed] = found[seed].x
    threads = [threading.Thread(target=run, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[seed].x, alone[seed]) for seed in (1, 2))


def test_a_problem_can_be_copied_and_pickled_in_the_middle_of_a_run():
    problem, solver = paper_problem(), SOLVERS["auto"]
    last = states(problem, solver, 50)[-1]
    wanted = solver.step(problem, last).x
    for twin in (copy.copy(problem), copy.deepcopy(problem), pickle.loads(pickle.dumps(problem))):
        assert torch.equal(solver.step(twin, last).x, wanted)


def test_steps_in_inference_mode_and_after_it():
    problem, solver = paper_problem(), SOLVERS["steps given"]
    with torch.inference_mode():
        last = states(problem, solver, 30)[-1]
    assert solver.step(problem, last).step == 31


def test_what_is_kept_of_a_state_keeps_nothing_else():
    last = states(paper_problem(), SOLVERS["steps given"], 50)[-1]
    for vector in (last.x, last.y["weight"]):
        assert vector.untyped_storage().nbytes() == vector.nbytes


def test_the_state_given_is_left_as_it_was():
    problem, solver = paper_problem(), SOLVERS["auto"]
    last = states(problem, solver, 50)[-1]
    kept = copy.deepcopy(last)
    first, again = solver.step(problem, last), solver.step(problem, last)
    for name, value in vars(kept).items():
        if isinstance(value, dict | torch.Tensor) and name != "stats":
            assert all(torch.equal(u, v) for u, v in zip(leaves(value), leaves(getattr(last, name)), strict=True))
    assert torch.equal(first.x, again.x)


@pytest.mark.parametrize("name", ["auto", "perturbed"])
def test_a_resumed_run_has_the_same_bits(name, tmp_path):
    problem = paper_problem()
    options = {"solver": SOLVERS[name], "evaluate_every": 1000}
    whole = bilevel.minimize(problem, problem.start(), steps=70, **options)
    part = bilevel.minimize(problem, problem.start(), steps=43, **options)
    part.save(tmp_path / "run.safetensors")
    resumed = bilevel.minimize(paper_problem(), resume=tmp_path / "run.safetensors", steps=27, **options)
    for name in ("x", "y", "adjoint", "lower_momentum", "upper_momentum"):
        pairs = zip(leaves(getattr(whole.state, name)), leaves(getattr(resumed.state, name)), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs), name


# --- through the linearisation -----------------------------------------------------------------------------------


def several_classes(**options):
    X, given, trusted, labels = pixels(classes=4)
    return CleaningProblem(X, given, trusted, labels, classes=4, **options)


@pytest.mark.parametrize("ball", ["class", "all"])
@pytest.mark.parametrize("noise", ["rows", "class-pairs", "transition"])
@pytest.mark.parametrize("intercept", [True, False])
def test_products_on_the_support_of_a_face(ball, noise, intercept):
    options = {"trusted_in_lower": 0.3, "evidence_weight": 0.2} if noise == "transition" else {}
    problem = several_classes(ball=ball, noise=noise, intercept=intercept, **options)
    x, y = problem.start(), problem.y0
    lin = problem.linearize(x, y)
    z = {**y, "weight": torch.where(torch.arange(120) % 11 == 0, 1.0, y["weight"])}
    face = problem.constraint.jacobian(z)
    assert int(face.support["weight"].sum()) == 4 * 11
    near = lin.restrict(face)
    lin.lower_grad_y, near.lower_hvp(y)
    problem.costs.data_passes = 0.0
    near.lower_hvp(y), near.lower_cross(y), near.upper_grad_y
    assert 0 < problem.costs.data_passes < 0.5
    v = face.apply(SPACE.random_like(y, torch.Generator().manual_seed(1)))
    for product in ("lower_hvp", "lower_cross"):
        a, b = getattr(near, product)(v), getattr(lin, product)(v)
        if product == "lower_hvp":
            a, b = face.apply(a), face.apply(b)
        assert difference(a, b) < 1e-12
    assert difference(face.apply(near.upper_grad_y), face.apply(lin.upper_grad_y)) < 1e-12
    assert all(torch.equal(a, b) for a, b in zip(leaves(near.upper_grad_x), leaves(lin.upper_grad_x), strict=True))


def test_restricted_steps_of_several_classes_are_those_of_autograd():
    problem = several_classes(radius=0.3)
    generic = bilevel.Problem(problem.upper, problem.lower, problem.constraint, y0=problem.y0)
    for estimator in (EXACT, bilevel.Neumann(terms=3, smoothing=bilevel.hypergradients.Perturbed(radius=1e-4))):
        solver = bilevel.DMLCBO(upper_step=0.1, hypergradient=estimator)
        run = bilevel.iterate(generic, problem.start(), solver=solver)
        assert_same_state(states(problem, solver, 30)[-1], [next(run) for _ in range(30)][-1], 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 4])
def test_the_published_estimator_ends_at_the_same_value(seed):
    """d = 20: Q = 3 terms truncated at random, two-point estimates with d directions; against the solve on the face.

    F is not convex: with the seeds 0 and 2 the two end in different minima, 0.003 and 0.016 apart.
    """
    X, given, trusted, labels = pixels(d=20, n=200, trusted=100, seed=seed)
    problem = CleaningProblem(X, given, trusted, labels, intercept=False)
    series = bilevel.Neumann(terms=3, eta=0.3, truncation="random", smoothing=bilevel.hypergradients.TwoPoint())
    values = []
    for estimator, count in ((EXACT, 1000), (series, 1500)):
        solver = bilevel.DMLCBO(upper_step=5.0, hypergradient=estimator)
        solution = bilevel.minimize(problem, problem.start(), solver=solver, steps=count, evaluate_every=count)
        values.append(float(bilevel.upper_value(problem, solution.x, tol=1e-8)))
    assert values[1] == pytest.approx(values[0], abs=1e-3)
    start = float(bilevel.upper_value(problem, problem.start(), tol=1e-8))
    assert values[0] < start - 1e-2  # there was something to gain
