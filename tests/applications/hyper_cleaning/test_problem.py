"""The problem of hyper-cleaning: every derivative three ways, every solver, moving radius, batches, refusals."""

import functools

import pytest
import torch
from torch.nn.functional import cross_entropy, softplus

import bilevel
from bilevel.applications.hyper_cleaning import ClassPairs, CleaningProblem, RowWeights, Transition
from bilevel.solvers.base import unmet
from bilevel.spaces import Space, leaves, tree_map

N, TRUSTED, D = 23, 9, 5
CASES = [("logistic", 2), ("softmax", 2), ("softmax", 4), ("squared", 2), ("squared", 3)]
CASES += [("smoothed hinge", 2), ("smoothed hinge", 3)]
NOISE = {"rows": RowWeights(), "class-pairs": ClassPairs(trust=0.7), "transition": Transition(trust=0.7)}
COMBINATIONS = [
    (loss, classes, noise)
    for loss, classes in CASES
    for noise in NOISE
    if noise != "transition" or loss in ("logistic", "softmax")
]
VECTORS = Space()


def data(classes, *, dtype=torch.float64, n=N, trusted=TRUSTED, d=D, seed=0):
    """Random rows and labels, noisy and trusted."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(n + trusted, d, generator=generator, dtype=torch.float64).to(dtype)
    labels = torch.randint(classes, (n + trusted,), generator=generator)
    labels[:classes] = torch.arange(classes)
    return rows[:n], labels[:n], rows[n:], labels[n:]


def clouds():
    """Two clouds far apart, 160 noisy rows (the first 40 with the label of the other cloud) and 40 trusted ones."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 2
    rows = torch.randn(200, 4, generator=generator) + 2.0 * (2 * labels[:, None] - 1)
    given = labels.clone()
    given[:40] = 1 - given[:40]
    return rows[:160], given[:160], rows[160:], labels[160:]


def make(loss, classes, noise, *, dtype=torch.float64, convert=lambda rows: rows, **options):
    rows, labels, trusted, trusted_labels = data(classes, dtype=dtype)
    return CleaningProblem(
        convert(rows),
        labels,
        convert(trusted),
        trusted_labels,
        loss=loss,
        noise=NOISE[noise],
        classes=classes,
        **options,
    )


def point(problem, seed=1):
    """A random x and a random model, not near any special place."""
    generator = torch.Generator().manual_seed(seed)
    x, y = problem.start(), problem.y0
    x = VECTORS.add(x, VECTORS.random_like(x, generator), 0.7)
    return x, VECTORS.add(y, VECTORS.random_like(y, generator), 0.6)


# --- the objective, written down a second time, row by row --------------------------------------------------------


def margin_loss(name, m):
    if name == "logistic":
        return softplus(-m)
    if name == "squared":
        return (1 - m) ** 2 / 2
    return torch.where(m >= 1, 0 * m, torch.where(m <= 0, 0.5 - m, (1 - m) ** 2 / 2))


def loss_of_class(name, s, j):
    """l_j(s) of one row."""
    if name == "softmax":
        return cross_entropy(s[None], torch.tensor([j]))
    signs = [1.0 if j == 1 else -1.0] if len(s) == 1 else [1.0 if m == j else -1.0 for m in range(len(s))]
    return sum(margin_loss(name, sign * score) for sign, score in zip(signs, s, strict=True))


def row_loss(name, noise, classes, x, i, s, b):
    """phi_i."""
    if noise == "rows":
        return torch.sigmoid(x[i]) * loss_of_class(name, s, b)
    if noise == "class-pairs":
        return sum(torch.softmax(x[b], 0)[j] * loss_of_class(name, s, j) for j in range(classes))
    probabilities = [torch.exp(-loss_of_class(name, s, j)) for j in range(classes)]
    return -torch.log(sum(torch.softmax(x[j], 0)[b] * p for j, p in enumerate(probabilities)))


def plain(loss, classes, noise, *, ridge=1e-3, intercept_ridge=1e-6, trusted_in_lower=0.0, evidence=0.0):
    """The same problem for autograd, by its definition."""
    rows, labels, trusted, trusted_labels = data(classes)

    def scores(y, a):
        return a @ y["weight"].T + y.get("bias", 0.0)

    def noisy(x, y, batch=None):
        x = x["noise"] if isinstance(x, dict) else x
        index = range(N) if batch is None else batch.tolist()
        parts = [
            row_loss(loss, noise, classes, x, i, s, int(labels[i]))
            for i, s in zip(index, scores(y, rows[list(index)]), strict=True)
        ]
        return sum(parts) / len(parts)

    def trust(y):
        parts = [loss_of_class(loss, s, int(b)) for s, b in zip(scores(y, trusted), trusted_labels, strict=True)]
        return sum(parts) / len(parts)

    def lower(x, y, batch=None):
        ridges = ridge * y["weight"].square().sum() + (
            intercept_ridge * y["bias"].square().sum() if "bias" in y else 0.0
        )
        return noisy(x, y, batch) + trusted_in_lower * trust(y) + ridges

    def upper(x, y, batch=None):
        return trust(y) + evidence * noisy(x, y, batch)

    return bilevel.Problem(upper, lower)


EXTRAS = {"trusted_in_lower": 0.4, "evidence": 0.3}


def directional(function, at, v, step=1e-5):
    """The derivative of function(at + t v) at t = 0, by central differences."""
    return VECTORS.scaled(
        VECTORS.add(function(VECTORS.add(at, v, step)), function(VECTORS.add(at, v, -step)), -1.0), 1 / (2 * step)
    )


def assert_close(a, b, tol=1e-10):
    for u, v in zip(leaves(a), leaves(b), strict=True):
        assert u.shape == v.shape
        assert torch.allclose(u, v, atol=tol * (1 + float(v.abs().max())), rtol=0)


def assert_same_linearization(ours, theirs, x, y, tol=1e-10):
    """Values and every derivative agree."""
    generator = torch.Generator().manual_seed(3)
    v = VECTORS.random_like(y, generator)
    for name in ("upper_value", "lower_value", "upper_grad_x", "upper_grad_y", "lower_grad_x", "lower_grad_y"):
        assert_close(getattr(ours, name), getattr(theirs, name), tol)
    assert_close(ours.lower_hvp(v), theirs.lower_hvp(v), tol)
    assert_close(ours.lower_cross(v), theirs.lower_cross(v), tol)


@pytest.mark.parametrize("extras", [{}, EXTRAS], ids=["paper", "extras"])
@pytest.mark.parametrize(("loss", "classes", "noise"), COMBINATIONS)
def test_closed_forms_agree_with_autograd_of_the_definition(loss, classes, noise, extras):
    problem = make(loss, classes, noise, **extras)
    x, y = point(problem)
    assert_same_linearization(problem.linearize(x, y), plain(loss, classes, noise, **extras).linearize(x, y), x, y)
    assert_close(problem.lower_grad(x, y), problem.linearize(x, y).lower_grad_y)


@pytest.mark.parametrize(("loss", "classes", "noise"), COMBINATIONS)
def test_closed_forms_agree_with_finite_differences(loss, classes, noise):
    problem = make(loss, classes, noise, **EXTRAS)
    x, y = point(problem)
    lin = problem.linearize(x, y)
    generator = torch.Generator().manual_seed(4)
    u, v = VECTORS.random_like(x, generator), VECTORS.random_like(y, generator)

    def at(x, y):
        return problem.linearize(x, y)

    assert_close(VECTORS.dot(lin.upper_grad_x, u), directional(lambda x: at(x, y).upper_value, x, u), 1e-8)
    assert_close(VECTORS.dot(lin.upper_grad_y, v), directional(lambda y: at(x, y).upper_value, y, v), 1e-8)
    assert_close(VECTORS.dot(lin.lower_grad_x, u), directional(lambda x: at(x, y).lower_value, x, u), 1e-8)
    assert_close(VECTORS.dot(lin.lower_grad_y, v), directional(lambda y: at(x, y).lower_value, y, v), 1e-8)
    assert_close(lin.lower_hvp(v), directional(lambda y: at(x, y).lower_grad_y, y, v), 1e-8)
    assert_close(lin.lower_cross(v), directional(lambda y: at(x, y).lower_grad_x, y, v), 1e-8)


@pytest.mark.parametrize(("loss", "classes", "noise"), COMBINATIONS)
def test_its_own_objective_can_be_followed_by_autograd(loss, classes, noise):
    """fixed_form and other parts of the library may ask for f and g as functions."""
    problem = make(loss, classes, noise, **EXTRAS)
    x, y = point(problem)
    theirs = bilevel.Problem(problem.upper, problem.lower).linearize(x, y)
    assert_same_linearization(problem.linearize(x, y), theirs, x, y)


def test_the_problem_of_the_paper():
    """c = 1e-3, means, r = 1, no intercept: written as in its section on hyper-cleaning, labels -1 and +1."""
    rows, labels, trusted, trusted_labels = data(2)
    problem = CleaningProblem(rows, labels, trusted, trusted_labels, noise="rows", intercept=False)
    x, y = point(problem)
    w, signs, trusted_signs = y["weight"][0], 2.0 * labels - 1, 2.0 * trusted_labels - 1
    lower = (torch.sigmoid(x) * softplus(-signs * (rows @ w))).mean() + 1e-3 * w @ w
    assert float(problem.linearize(x, y).lower_value) == pytest.approx(float(lower), rel=1e-12)
    upper = softplus(-trusted_signs * (trusted @ w)).mean()
    assert float(problem.linearize(x, y).upper_value) == pytest.approx(float(upper), rel=1e-12)
    assert list(problem.y0) == ["weight"]
    assert float(
        problem.constraint_at(x).project(tree_map(lambda u: 100 + u, y))["weight"].abs().sum()
    ) == pytest.approx(1.0)


# --- the radius as part of x --------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", NOISE)
def test_the_hypergradient_reaches_the_radius(noise):
    problem = make("softmax", 3, noise, radius="auto", intercept=True, intercept_ridge=1e-2, ridge=0.05)
    x = problem.start(radius=0.3)
    h = bilevel.hypergradient(problem, x)

    def value(t):
        return float(bilevel.upper_value(problem, {**x, "log_radius": x["log_radius"] + t}, tol=1e-12))

    step = 1e-5
    assert float(h["log_radius"]) == pytest.approx((value(step) - value(-step)) / (2 * step), rel=1e-5)
    assert abs(float(h["log_radius"])) > 1e-3


@pytest.mark.parametrize("noise", NOISE)
def test_the_hypergradient_of_the_noise_is_that_of_the_upper_value(noise):
    problem = make(
        "logistic", 2, noise, radius=0.8, ridge=0.05, intercept_ridge=1e-2, evidence=0.2, trusted_in_lower=0.1
    )
    x, _ = point(problem)
    h = bilevel.hypergradient(problem, x)
    u = VECTORS.random_like(x, torch.Generator().manual_seed(2))
    slope = directional(lambda x: bilevel.upper_value(problem, x, tol=1e-12), x, u)
    assert float((h * u).sum()) == pytest.approx(float(slope), rel=1e-5)


@pytest.mark.parametrize(
    "solver", [bilevel.DMLCBO(), bilevel.Approx(), bilevel.Implicit()], ids=lambda s: type(s).__name__
)
def test_solvers_that_take_moving_sets_learn_the_radius(solver):
    problem = CleaningProblem(*clouds(), radius="auto")
    x0 = problem.start(radius=0.1)
    start = float(bilevel.upper_value(problem, x0))
    solution = bilevel.minimize(problem, x0, solver=solver, steps=30, evaluate_every=30)
    assert solution.status.ok
    assert float(solution.x["log_radius"]) > float(x0["log_radius"])  # so small a ball leaves no room to learn
    assert float(bilevel.upper_value(problem, solution.x, solution.y)) < start
    assert problem.constraint_at(solution.x).contains(solution.y)


# --- solvers -------------------------------------------------------------------------------------------------------


SHORTER = {"RMDPCD": {"steps": 10}}  # settings of solvers that take long through autograd


def takers():
    """Every solver of the library that does not refuse a product of a ball and free space."""
    problem = make("logistic", 2, "rows")
    constraint = problem.constraint_at(problem.start())
    classes = [getattr(bilevel.solvers, name) for name in bilevel.solvers.__all__]
    solvers = [cls for cls in classes if hasattr(cls, "init") and cls.__name__ != "Solver"]
    return [cls for cls in solvers if not unmet(cls, problem, constraint, problem.y0)]


def test_the_solvers_for_general_sets_are_among_them():
    named = {cls.__name__ for cls in takers()}
    assert named >= {"DMLCBO", "VPBGD", "Approx", "Implicit", "RMDPCD", "ProjectedSOBA", "MEHA", "SIGD"}


@pytest.mark.parametrize(("loss", "classes", "noise"), [("logistic", 2, "rows"), ("softmax", 3, "class-pairs")])
@pytest.mark.parametrize("cls", takers(), ids=lambda cls: cls.__name__)
def test_every_solver_takes_the_same_steps_as_with_autograd(cls, loss, classes, noise):
    problem = make(loss, classes, noise, ridge=0.05)
    twin = bilevel.Problem(problem.upper, problem.lower, problem.constraint, y0=problem.y0)
    x0 = problem.start()
    solver = cls(**SHORTER.get(cls.__name__, {}))
    ours, theirs = (bilevel.minimize(p, x0, solver=solver, steps=4, evaluate_every=2) for p in (problem, twin))
    assert ours.status.ok
    assert_close(ours.x, theirs.x, 1e-8)
    assert_close(ours.y, theirs.y, 1e-8)
    costs = [{**solution.stats, "seconds": 0.0} for solution in (ours, theirs)]
    assert costs[0] == costs[1]
    assert float((ours.x - x0).abs().max()) > 0


@pytest.mark.parametrize("batch_size", [None, 7])
@pytest.mark.parametrize("radius", [1.0, "auto"])
def test_runs_are_reproducible_and_resume_with_the_same_bits(radius, batch_size, tmp_path):
    problem = make("softmax", 3, "rows", radius=radius, batch_size=batch_size)
    x0 = problem.start()
    whole = bilevel.minimize(problem, x0, steps=12, evaluate_every=3, output="best")
    half = bilevel.minimize(problem, x0, steps=6, evaluate_every=3, output="best")
    half.save(tmp_path / "run.safetensors")
    resumed = bilevel.minimize(
        problem, resume=bilevel.Solution.load(tmp_path / "run.safetensors"), steps=6, evaluate_every=3, output="best"
    )
    for a, b in zip(
        leaves(whole.state.x) + leaves(whole.state.y), leaves(resumed.state.x) + leaves(resumed.state.y), strict=True
    ):
        assert torch.equal(a, b)


def test_learned_weights_tell_wrong_labels_from_right_ones():
    problem = CleaningProblem(*clouds(), radius=3.0)
    solution = bilevel.minimize(problem, problem.start(), steps=100)
    weights = problem.noise.weights(solution.x)
    assert float(weights[:40].max()) < float(weights[40:].min())


# --- batches -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", NOISE)
def test_batches_agree_with_autograd_of_the_definition(noise):
    problem = make("softmax", 3, noise, batch_size=6, **EXTRAS)
    x, y = point(problem)
    batch = torch.tensor([0, 3, 3, 11, 20, 22])  # drawn with replacement: a row may come twice
    theirs = plain("softmax", 3, noise, **EXTRAS).linearize(x, y, batch)
    assert_same_linearization(problem.linearize(x, y, batch), theirs, x, y)
    assert_close(problem.lower_grad(x, y, batch), theirs.lower_grad_y)


def test_batches_are_a_function_of_the_generator_and_cover_all_rows():
    problem = make("logistic", 2, "rows", batch_size=8)
    draw = [problem.sampler(torch.Generator().manual_seed(seed)) for seed in (5, 5, 6)]
    assert torch.equal(draw[0], draw[1])
    assert not torch.equal(draw[0], draw[2])
    assert draw[0].shape == (8,)
    seen = torch.cat([problem.sampler(torch.Generator().manual_seed(seed)) for seed in range(200)])
    assert set(seen.tolist()) == set(range(N))


def test_the_gradient_of_a_batch_is_right_on_average():
    """With replacement every row has the same chance: the mean over all single-row batches is the full gradient."""
    problem = make("logistic", 2, "rows", batch_size=1)
    x, y = point(problem)
    single = [problem.linearize(x, y, torch.tensor([i])) for i in range(N)]
    v = VECTORS.random_like(y, torch.Generator().manual_seed(0))
    full = problem.linearize(x, y)

    def mean(vectors):
        return VECTORS.scaled(functools.reduce(VECTORS.add, vectors), 1 / N)

    assert_close(mean([lin.lower_grad_y for lin in single]), full.lower_grad_y)
    assert_close(mean([lin.lower_hvp(v) for lin in single]), full.lower_hvp(v))
    assert_close(mean([lin.lower_cross(v) for lin in single]), full.lower_cross(v))
