"""Margins carried along, products on few columns, the fused step: each the same as the plain form of it."""

import copy
import dataclasses
import pickle
import subprocess
import sys
import threading
import tracemalloc

import numpy as np
import pytest
import torch

import bilevel
from bilevel.applications.hyper_cleaning import CleaningProblem, on_arrays
from bilevel.applications.hyper_cleaning import fused as steps
from bilevel.applications.hyper_cleaning.fused import FusedStep
from bilevel.applications.hyper_cleaning.linearization import OnColumns
from bilevel.applications.hyper_cleaning.on_arrays import FEW, SMALL
from bilevel.spaces import Space, leaves, tree_map

SPACE = Space()
EXACT = bilevel.LinearSolve(tol=1e-13, max_iterations=200)
SOLVERS = {
    "auto": bilevel.DMLCBO(hypergradient=EXACT, refresh=30),
    "steps given": bilevel.DMLCBO(
        upper_step=1.0, lower_step=0.1, hypergradient=bilevel.LinearSolve(tol=1e-13, max_iterations=200, eta=0.3)
    ),
    "perturbed": bilevel.DMLCBO(
        hypergradient=bilevel.LinearSolve(tol=1e-13, max_iterations=200, smoothing=bilevel.Perturbed(radius=1e-4))
    ),
    "a term of the series": bilevel.DMLCBO(
        upper_step=1.0, lower_step=0.1, hypergradient=bilevel.Neumann(terms=4, eta=0.5)
    ),
    "the series": bilevel.DMLCBO(hypergradient=bilevel.Neumann(terms=5, truncation="full")),
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


# --- the fused step -------------------------------------------------------------------------------------------------

FORMS = ["NumPy", "compiled"]


@pytest.fixture
def form(request, monkeypatch):
    """In NumPy, or compiled by numba."""
    if request.param == "NumPy":
        monkeypatch.setattr(steps, "arithmetic", lambda *_: on_arrays)
    else:
        from bilevel.applications.hyper_cleaning import compiled

        assert steps.arithmetic() is compiled
    return request.param


@pytest.fixture
def taken(monkeypatch):
    """The numbers of the steps that were fused."""
    numbers = []
    call = FusedStep.__call__

    def counted(self, problem, state):
        after = call(self, problem, state)
        numbers.extend([] if after is None else [after.step])
        return after

    monkeypatch.setattr(FusedStep, "__call__", counted)
    return numbers


@pytest.mark.parametrize("form", FORMS, indirect=True)
@pytest.mark.parametrize("name", SOLVERS)
def test_200_fused_steps_are_those_of_the_general_step(form, name, taken):
    fused, plain = paper_problem(), paper_problem(fused=False)
    a, b = (states(problem, SOLVERS[name], 200)[-1] for problem in (fused, plain))
    assert len(taken) > 150
    assert plain.fused_step(SOLVERS[name]) is None
    assert_same_state(a, b, 1e-10)
    assert difference(a.carried["noisy"], b.carried["noisy"]) < 1e-10
    assert vars(fused.costs) == pytest.approx(vars(plain.costs), rel=0.01)  # at 1e-13 rounding may cost a product more
    iterations, expected = a.stats.pop("iterations", 0.0), b.stats.pop("iterations", 0.0)
    assert a.stats == pytest.approx(b.stats, rel=1e-10, abs=1e-12)
    assert abs(iterations - expected) <= 2


@pytest.mark.parametrize("form", FORMS, indirect=True)
def test_a_series_with_faces_of_its_own_is_left_to_the_general_step(form, taken):
    """Noise that often decides on the face: of 120 steps some are fused, some are not, and all are the general ones."""
    solver = bilevel.DMLCBO(hypergradient=bilevel.Neumann(terms=3, smoothing=bilevel.Perturbed(radius=1e-4)))
    a, b = (states(problem, solver, 120)[-1] for problem in (paper_problem(), paper_problem(fused=False)))
    assert 10 < len(taken) < 110
    assert_same_state(a, b, 1e-10)


@pytest.mark.parametrize("form", FORMS, indirect=True)
@pytest.mark.parametrize(("radius", "fewest", "most"), [(1e-7, 0, 20), (1e-5, 0, 60), (1e-3, 1, 110), (0.005, 60, 120)])
def test_noise_is_drawn_only_where_it_decides_on_the_face(form, radius, fewest, most, monkeypatch, taken):
    """The state is that of the general step, which draws at each step."""
    solver = bilevel.DMLCBO(
        hypergradient=bilevel.LinearSolve(tol=1e-13, max_iterations=200, smoothing=bilevel.Perturbed(radius=radius))
    )
    drawn, draw = [], FusedStep._drawn
    monkeypatch.setattr(FusedStep, "_drawn", lambda self, generator: drawn.append(1) or draw(self, generator))
    a, b = (states(problem, solver, 120)[-1] for problem in (paper_problem(), paper_problem(fused=False)))
    assert fewest <= len(drawn) <= most
    assert len(taken) > 70
    assert_same_state(a, b, 1e-10)


@pytest.mark.parametrize("form", FORMS, indirect=True)
def test_no_point_within_reach_has_another_face_where_it_is_settled(form):
    """Against points at that distance, those along one entry among them."""
    rng, settled = np.random.default_rng(0), steps.arithmetic().settled
    project, found, sizes = steps.arithmetic().project, [], set()
    for _ in range(60):
        z, reach = np.where(np.arange(40) < 6, 2.0, 0.03) * rng.normal(size=40), 10.0 ** rng.uniform(-3, -0.5)
        face, value = project(z, 1.0, np.zeros(40))
        directions = np.concatenate([np.eye(40), -np.eye(40), rng.normal(size=(200, 40))])
        directions *= reach / np.linalg.norm(directions, axis=1, keepdims=True)
        others = [project(z + u, 1.0, np.zeros(40)) for u in directions]
        same = [np.array_equal(f, face) and (v * value > 0).all() for f, v in others if len(f) == len(face)]
        found.append(settled(z, face, value, reach))
        assert not found[-1] or (len(same) == len(others) and all(same))
        sizes.add(len(face))
    assert 10 < sum(found) < len(found)
    assert {1, 2, 3} < sizes


def test_both_are_those_of_autograd_alone():
    """The problem as its two formulas, without any structure."""
    problem = paper_problem()
    generic = bilevel.Problem(problem._plain_upper, problem._plain_lower, problem.constraint, y0=problem.y0)
    run = bilevel.iterate(generic, problem.start(), solver=SOLVERS["steps given"])
    assert_same_state(states(problem, SOLVERS["steps given"], 60)[-1], [next(run) for _ in range(60)][-1], 1e-9)


@pytest.mark.parametrize("form", FORMS, indirect=True)
def test_one_fused_step_in_float32_is_that_of_float64_to_its_precision(form, taken):
    last = states(paper_problem(), SOLVERS["steps given"], 80)[-1]
    narrow = copy.deepcopy(last)
    for name in ("x", "y", "upper_momentum", "lower_momentum", "upper_moment", "lower_moment", "upper_floor",
                 "lower_floor", "adjoint", "carried"):  # fmt: skip
        setattr(narrow, name, tree_map(torch.Tensor.float, getattr(last, name)))
    solver = bilevel.DMLCBO(upper_step=1.0, lower_step=0.1, hypergradient=bilevel.LinearSolve(eta=0.3))
    after = solver.step(paper_problem(np.float32), narrow)
    wanted = SOLVERS["steps given"].step(paper_problem(), last)
    assert taken[-2:] == [81, 81]
    assert after.x.dtype == torch.float32
    for name in ("x", "y", "lower_momentum"):
        assert difference(tree_map(torch.Tensor.double, getattr(after, name)), getattr(wanted, name)) < 1e-5, name


@pytest.mark.parametrize("form", FORMS, indirect=True)
def test_100_fused_steps_in_float32_are_those_of_the_general_step(form, taken):
    solver = bilevel.DMLCBO(upper_step=1.0, lower_step=0.1, hypergradient=bilevel.LinearSolve(eta=0.3))
    a, b = (states(paper_problem(np.float32, fused=fused), solver, 100)[-1] for fused in (True, False))
    assert len(taken) > 50
    for name in ("x", "y", "lower_momentum"):
        assert difference(getattr(a, name), getattr(b, name)) < 1e-3, name


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


def test_a_problem_can_be_copied_and_pickled_in_the_middle_of_a_run(taken):
    problem, solver = paper_problem(), SOLVERS["auto"]
    last = states(problem, solver, 50)[-1]
    wanted = solver.step(problem, last).x
    for twin in (copy.copy(problem), copy.deepcopy(problem), pickle.loads(pickle.dumps(problem))):
        assert torch.equal(solver.step(twin, last).x, wanted)
    assert taken[-4:] == [51] * 4


CHANGES = {
    "the ridge": lambda problem: problem.ridges.update(weight=0.5),
    "the radius": lambda problem: setattr(problem.constraint.sets["weight"], "radius", 0.5),
    "the labels": lambda problem: setattr(problem, "labels", 1 - problem.labels),
    "the trusted rows": lambda problem: setattr(problem, "trusted_design", problem.design),
    "fused": lambda problem: setattr(problem, "fused", False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_problem_changed_between_two_steps(change):
    def twice(fused):
        problem = paper_problem(fused=fused)
        last = states(problem, SOLVERS["steps given"], 50)[-1]
        CHANGES[change](problem)
        if change == "the trusted rows":
            problem.trusted_labels = problem.labels
            last.carried = problem.linearize(last.x, last.y).carried
        first = SOLVERS["steps given"].step(problem, last)
        return SOLVERS["steps given"].step(problem, first)

    assert_same_state(twice(True), twice(False), 1e-10)


def test_a_state_changed_between_two_steps():
    problem, plain, solver = paper_problem(), paper_problem(fused=False), SOLVERS["steps given"]
    last = states(problem, solver, 50)[-1]
    assert_same_state(solver.step(problem, dataclasses.replace(last, adjoint=None)),
                      solver.step(plain, dataclasses.replace(last, adjoint=None)), 1e-10)  # fmt: skip
    last = solver.step(problem, last)
    last.x.data = last.x + 1.0
    assert_same_state(solver.step(problem, last), solver.step(plain, last), 1e-10)
    last.y["weight"].mul_(0.9)
    last.carried = problem.linearize(last.x, last.y).carried
    assert_same_state(solver.step(problem, last), solver.step(plain, last), 1e-10)


def test_steps_in_inference_mode_and_after_it():
    problem, solver = paper_problem(), SOLVERS["steps given"]
    with torch.inference_mode():
        last = states(problem, solver, 30)[-1]
    assert solver.step(problem, last).step == 31


def test_what_is_kept_of_a_state_keeps_nothing_else():
    last = states(paper_problem(), SOLVERS["steps given"], 50)[-1]
    for vector in (last.x, last.y["weight"]):
        assert vector.untyped_storage().nbytes() == vector.nbytes


@pytest.mark.parametrize("form", FORMS, indirect=True)
def test_the_state_given_is_left_as_it_was(form, taken):
    problem, solver = paper_problem(), SOLVERS["auto"]
    last = states(problem, solver, 50)[-1]
    kept = copy.deepcopy(last)
    first, again = solver.step(problem, last), solver.step(problem, last)
    assert taken[-2:] == [51, 51]
    for name, value in vars(kept).items():
        if isinstance(value, dict | torch.Tensor) and name != "stats":
            assert all(torch.equal(u, v) for u, v in zip(leaves(value), leaves(getattr(last, name)), strict=True))
    assert torch.equal(first.x, again.x)


@pytest.mark.parametrize("form", FORMS, indirect=True)
@pytest.mark.parametrize(("name", "fused"), [("auto", True), ("perturbed", True), ("perturbed", False)])
def test_a_resumed_run_has_the_same_bits(form, name, fused, tmp_path):
    problem = paper_problem(fused=fused)
    options = {"solver": SOLVERS[name], "evaluate_every": 1000}
    whole = bilevel.minimize(problem, problem.start(), steps=70, **options)
    part = bilevel.minimize(problem, problem.start(), steps=43, **options)
    part.save(tmp_path / "run.safetensors")
    resumed = bilevel.minimize(paper_problem(fused=fused), resume=tmp_path / "run.safetensors", steps=27, **options)
    for name in ("x", "y", "adjoint", "lower_momentum", "upper_momentum", "carried"):
        pairs = zip(leaves(getattr(whole.state, name)), leaves(getattr(resumed.state, name)), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs), name


def test_what_is_not_written_out_takes_the_general_step():
    solver = bilevel.DMLCBO()
    assert isinstance(paper_problem().fused_step(solver), FusedStep)
    X, given, trusted, labels = pixels()
    others = [
        CleaningProblem(X, given, trusted, labels),  # an intercept
        paper_problem(radius="auto"),
        paper_problem(loss="squared"),
        paper_problem(noise="class-pairs"),
        paper_problem(batch_size=10),
        paper_problem(trusted_in_lower=0.5),
        paper_problem(constraint=bilevel.sets.L2Ball(1.0)),
    ]
    assert [problem.fused_step(solver) for problem in others] == [None] * len(others)
    problem = paper_problem()
    series = bilevel.DMLCBO(hypergradient=bilevel.Neumann(smoothing=bilevel.TwoPoint()))
    elementwise = bilevel.DMLCBO(adaptivity="elementwise")
    assert problem.fused_step(series) is problem.fused_step(elementwise) is problem.fused_step(bilevel.Approx()) is None


@pytest.mark.parametrize("form", FORMS, indirect=True)
def test_a_point_inside_of_the_ball_takes_the_general_step(form, taken):
    problem = paper_problem(radius=1000.0)
    last = states(problem, SOLVERS["auto"], 30)[-1]
    assert float(last.y["weight"].abs().sum()) < 1000.0
    assert taken == []


def test_large_faces_are_for_compiled_steps_alone(monkeypatch, taken):
    """Both the same as the general step: a face of more than a quarter of the columns, and more than `SMALL`."""

    def last(**options):
        problem = CleaningProblem(*pixels(d=60), intercept=False, radius=2.0, **options)
        return states(problem, SOLVERS["steps given"], 60)[-1]

    general = last(fused=False)
    assert int((general.adjoint["weight"] != 0).sum()) > max(FEW * 60, SMALL)
    assert_same_state(last(), general, 1e-10)
    assert len(taken) > 40
    taken.clear()
    monkeypatch.setattr(steps, "arithmetic", lambda *_: on_arrays)
    assert_same_state(last(), general, 1e-10)
    assert taken == []


def test_rows_are_held_once_by_columns():
    X, given, trusted, labels = pixels()
    problem = CleaningProblem(X, given, trusted, labels, intercept=False)
    assert problem.design.array.T.is_contiguous()
    assert np.shares_memory(problem.fused_step(SOLVERS["auto"])._noisy, problem.design.array.numpy())
    assert np.array_equal(problem.design.array.numpy(), X)
    columns = np.asfortranarray(X)
    assert np.shares_memory(CleaningProblem(columns, given, trusted, labels, intercept=False).design.array, columns)
    for other in ({"fused": False}, {"intercept": True}):  # what has no use for columns keeps the rows as they are
        problem = CleaningProblem(X, given, trusted, labels, **{"intercept": False, **other})
        assert np.shares_memory(problem.design.array.numpy(), X)


def test_steps_without_numba_are_those_of_numpy(monkeypatch):
    compiled = "bilevel.applications.hyper_cleaning.compiled"
    monkeypatch.delitem(sys.modules, compiled, raising=False)
    monkeypatch.delattr(sys.modules["bilevel.applications.hyper_cleaning"], "compiled", raising=False)
    monkeypatch.setitem(sys.modules, "numba", None)  # what an import finds when it is not installed
    assert steps.arithmetic() is on_arrays
    assert states(paper_problem(), SOLVERS["auto"], 3)[-1].step == 3


def test_damaged_compiled_code_is_told_and_done_without(monkeypatch):
    from bilevel.applications.hyper_cleaning import compiled

    monkeypatch.setattr(compiled, "estimate", lambda *_: pickle.loads(b"cut off"))
    with pytest.warns(UserWarning, match="compiled steps do not work here .*delete the files"):
        assert steps.arithmetic() is on_arrays


def test_numba_is_loaded_by_the_fused_step_alone():
    code = """
import sys, bilevel, numpy as np
from bilevel.applications.hyper_cleaning import CleaningProblem
X, y = np.eye(4, 3), np.array([0, 1, 0, 1])
problem = CleaningProblem(X, y, X, y, intercept=False)
problem.linearize(problem.start(), problem.y0).lower_grad_y
print("numba" in sys.modules, "llvmlite" in sys.modules)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["False", "False"]


def test_columns_of_a_face_are_not_copied():
    """NumPy's form on ten columns of 4,000 rows: margins and the linear system take three vectors at most."""
    columns, support, value = np.random.default_rng(0).random((30, 4000)), np.arange(10), np.ones(10)
    s, moved = np.zeros((2, 4000))
    tracemalloc.start()
    on_arrays.margins(columns, s, support, value, 0.5, moved)
    product = on_arrays._product(columns, support, np.ones(4000), 0.1, by_matrix=True)
    on_arrays._solve(product, value, np.arange(10.0), value, 1e-3, 3)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 8 * 4000 < taken < 3.5 * 8 * 4000


# --- through the linearisation -----------------------------------------------------------------------------------


def several_classes(**options):
    X, given, trusted, labels = pixels(classes=4)
    return CleaningProblem(X, given, trusted, labels, classes=4, **options)


@pytest.mark.parametrize("ball", ["class", "all"])
@pytest.mark.parametrize("noise", ["rows", "class-pairs", "transition"])
@pytest.mark.parametrize("intercept", [True, False])
def test_products_on_the_support_of_a_face(ball, noise, intercept):
    options = {"trusted_in_lower": 0.3, "evidence": 0.2} if noise == "transition" else {}
    problem = several_classes(ball=ball, noise=noise, intercept=intercept, **options)
    x, y = problem.start(), problem.y0
    lin = problem.linearize(x, y)
    z = {**y, "weight": torch.where(torch.arange(120) % 11 == 0, 1.0, y["weight"])}
    face = problem.constraint.jacobian(z)
    near = lin.restrict(face)
    assert isinstance(near, OnColumns)
    assert int(face.support["weight"].sum()) == 4 * 11
    v = face.apply(SPACE.random_like(y, torch.Generator().manual_seed(1)))
    for product in ("lower_hvp", "lower_cross"):
        a, b = getattr(near, product)(v), getattr(lin, product)(v)
        if product == "lower_hvp":
            a, b = face.apply(a), face.apply(b)
        assert difference(a, b) < 1e-12
    assert difference(face.apply(near.upper_grad_y), face.apply(lin.upper_grad_y)) < 1e-12
    assert all(torch.equal(a, b) for a, b in zip(leaves(near.upper_grad_x), leaves(lin.upper_grad_x), strict=True))


@pytest.mark.parametrize("make", [several_classes, paper_problem])
def test_margins_carried_along_do_not_drift(make):
    """200 steps without a refresh: rounding errors are averaged as the margins are."""
    problem = make(fused=False, radius=0.3)
    last = states(problem, bilevel.DMLCBO(refresh=1000), 200)[-1]
    fresh = problem.linearize(last.x, last.y).carried
    assert not torch.equal(last.carried["noisy"], fresh["noisy"])  # it is not computed anew
    assert difference(last.carried, fresh) < 1e-14


def test_restricted_and_carried_steps_of_several_classes_are_those_of_autograd():
    problem = several_classes(radius=0.3)
    generic = bilevel.Problem(problem._plain_upper, problem._plain_lower, problem.constraint, y0=problem.y0)
    for estimator in (EXACT, bilevel.Neumann(terms=3, smoothing=bilevel.Perturbed(radius=1e-4))):
        solver = bilevel.DMLCBO(hypergradient=estimator)
        run = bilevel.iterate(generic, problem.start(), solver=solver)
        assert_same_state(states(problem, solver, 30)[-1], [next(run) for _ in range(30)][-1], 1e-9)


def test_margins_are_refreshed_at_fixed_steps():
    problem, solver = paper_problem(fused=False), bilevel.DMLCBO(refresh=10)
    for state in states(problem, solver, 30)[9::10]:
        fresh = problem.linearize(state.x, state.y).carried
        assert all(torch.equal(state.carried[rows], fresh[rows]) for rows in fresh)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 4])
def test_the_published_estimator_ends_at_the_same_value(seed):
    """d = 20: Q = 3 terms truncated at random, two-point estimates with d directions; against the solve on the face.

    F is not convex: with the seeds 0 and 2 the two end in different minima, 0.003 and 0.016 apart.
    """
    X, given, trusted, labels = pixels(d=20, n=200, trusted=100, seed=seed)
    problem = CleaningProblem(X, given, trusted, labels, intercept=False)
    series = bilevel.Neumann(terms=3, eta=0.3, truncation="random", smoothing=bilevel.TwoPoint())
    values = []
    for estimator, count in ((EXACT, 1000), (series, 1500)):
        solver = bilevel.DMLCBO(upper_step=5.0, hypergradient=estimator)
        solution = bilevel.minimize(problem, problem.start(), solver=solver, steps=count, evaluate_every=count)
        values.append(float(bilevel.upper_value(problem, solution.x, tol=1e-8)))
    assert values[1] == pytest.approx(values[0], abs=1e-3)
    start = float(bilevel.upper_value(problem, problem.start(), tol=1e-8))
    assert values[0] < start - 1e-2  # there was something to gain
