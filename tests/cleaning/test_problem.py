"""The problem of hyper-cleaning: every derivative three ways, every solver, moving radius, batches, refusals."""

import functools

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, softplus

import bilevel
from bilevel import sets
from bilevel.cleaning import ClassPairs, CleaningProblem, Design, RowWeights, Transition
from bilevel.solvers.base import solver_classes, unmet
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


def plain(loss, classes, noise, *, ridge=1e-3, intercept_ridge=1e-6, trusted_in_lower=0.0, evidence_weight=0.0):
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
        return trust(y) + evidence_weight * noisy(x, y, batch)

    return bilevel.Problem(upper, lower)


EXTRAS = {"trusted_in_lower": 0.4, "evidence_weight": 0.3}


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
    """rewrite_moving_set and other parts of the library may ask for f and g as functions."""
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
        "logistic", 2, noise, radius=0.8, ridge=0.05, intercept_ridge=1e-2, evidence_weight=0.2, trusted_in_lower=0.1
    )
    x, _ = point(problem)
    h = bilevel.hypergradient(problem, x)
    u = VECTORS.random_like(x, torch.Generator().manual_seed(2))
    slope = directional(lambda x: bilevel.upper_value(problem, x, tol=1e-12), x, u)
    assert float((h * u).sum()) == pytest.approx(float(slope), rel=1e-5)


@pytest.mark.parametrize(
    "solver", [bilevel.DMLCBO(upper_step=0.1), bilevel.Approx(), bilevel.Implicit()], ids=lambda s: type(s).__name__
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
    return [cls for cls in solver_classes() if not unmet(cls, problem, constraint, problem.y0)]


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
    assert ours.status.finished
    assert_close(ours.x, theirs.x, 1e-8)
    assert_close(ours.y, theirs.y, 1e-8)
    costs = [{**solution.stats, "seconds": 0.0, "data_passes": 0.0} for solution in (ours, theirs)]
    assert costs[0] == costs[1]
    assert float((ours.x - x0).abs().max()) > 0


@pytest.mark.parametrize("batch_size", [None, 7])
@pytest.mark.parametrize("radius", [1.0, "auto"])
def test_runs_are_reproducible_and_resume_with_the_same_bits(radius, batch_size, tmp_path):
    problem = make("softmax", 3, "rows", radius=radius, batch_size=batch_size)
    x0 = problem.start()
    whole = bilevel.minimize(
        problem, x0, steps=12, evaluate_every=3, output="best", solver=bilevel.DMLCBO(upper_step=0.1)
    )
    half = bilevel.minimize(
        problem, x0, steps=6, evaluate_every=3, output="best", solver=bilevel.DMLCBO(upper_step=0.1)
    )
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
    solution = bilevel.minimize(problem, problem.start(), steps=100, solver=bilevel.DMLCBO(upper_step=0.1))
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


# --- sets and settings ---------------------------------------------------------------------------------------------


def test_one_ball_per_class_or_one_for_all():
    far = {"weight": torch.full((3, D), 9.0).double(), "bias": torch.full((3,), 9.0).double()}
    for ball, norms in (("class", [2.0, 2.0, 2.0]), ("all", [2 / 3, 2 / 3, 2 / 3])):
        problem = make("softmax", 3, "rows", radius=2.0, ball=ball)
        near = problem.constraint_at(problem.start()).project(far)
        assert near["weight"].abs().sum(1).tolist() == pytest.approx(norms)
        assert torch.equal(near["bias"], far["bias"])  # the intercept lies outside of the ball


def test_a_radius_for_all_classes_can_be_learned_too():
    problem = make("softmax", 3, "class-pairs", radius="auto", ball="all", ridge=0.05, intercept_ridge=1e-2)
    x = problem.start(radius=0.5)
    h = bilevel.hypergradient(problem, x)

    def value(t):
        return float(bilevel.upper_value(problem, {**x, "log_radius": x["log_radius"] + t}, tol=1e-12))

    assert float(h["log_radius"]) == pytest.approx((value(1e-5) - value(-1e-5)) / 2e-5, rel=1e-4)


@pytest.mark.parametrize(
    "constraint",
    [sets.L2Ball(0.5), sets.Box(-0.1, 0.1), sets.Simplex(1.0), sets.NuclearNormBall(0.5), sets.FreeSpace()],
)
def test_any_set_of_the_catalogue_can_hold_the_weight(constraint):
    problem = make("softmax", 3, "rows", constraint=constraint)
    x0 = problem.start()
    y0 = problem.constraint_at(x0).project(problem.y0)
    solution = bilevel.minimize(problem, x0, y0, steps=5, solver=bilevel.DMLCBO(upper_step=0.1))
    assert solution.status.ok
    assert constraint.contains(solution.y["weight"])
    assert float(solution.y["weight"].abs().max()) > 0


def test_the_lower_level_is_solved_as_scikit_learn_does():
    """All weights 1 (in the limit), no constraint: ridge logistic regression."""
    from sklearn.linear_model import LogisticRegression

    rows, labels, trusted, trusted_labels = data(3)
    problem = CleaningProblem(rows, labels, trusted, trusted_labels, constraint=sets.FreeSpace(), intercept_ridge=0.0)
    y = bilevel.solve_lower(problem, torch.full((N,), 40.0).double()).y
    # Its objective: C * sum of losses + |weight|^2 / 2.
    reference = LogisticRegression(C=1 / (2 * N * 1e-3), tol=1e-10, max_iter=10_000).fit(rows.numpy(), labels.numpy())
    assert torch.allclose(y["weight"], torch.from_numpy(reference.coef_), atol=1e-5)
    assert torch.allclose(y["bias"] - y["bias"].mean(), torch.from_numpy(reference.intercept_), atol=1e-4)


@pytest.mark.parametrize(("loss", "classes", "noise"), COMBINATIONS)
def test_single_precision_runs(loss, classes, noise):
    problem = make(loss, classes, noise, dtype=torch.float32, radius="auto")
    solution = bilevel.minimize(problem, problem.start(), steps=5, solver=bilevel.DMLCBO(upper_step=0.1))
    assert solution.status.finished
    assert {u.dtype for u in leaves(solution.x) + leaves(solution.y)} == {torch.float32}
    double = make(loss, classes, noise)
    x, y = point(double)
    ours, exact = (
        p.linearize(*(tree_map(lambda u, t=p.design.dtype: u.to(t), vector) for vector in (x, y)))
        for p in (make(loss, classes, noise, dtype=torch.float32), double)
    )
    for name in ("upper_grad_y", "lower_grad_x", "lower_grad_y"):
        assert_close(tree_map(torch.Tensor.double, getattr(ours, name)), getattr(exact, name), 1e-5)


def test_trusted_rows_are_converted_to_the_dtype_of_the_noisy_ones():
    rows, labels, trusted, trusted_labels = data(2)
    problem = CleaningProblem(rows.float(), labels, trusted, trusted_labels)
    assert problem.trusted_design.dtype == torch.float32
    assert problem.scores(problem.y0, trusted).shape == (TRUSTED, 1)
    assert problem.scores(problem.y0).shape == (N, 1)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"labels": torch.zeros(N)}, bilevel.InvalidTypeError, "labels must be whole numbers .* dtype torch.float32"),
        ({"labels": np.array(["a"] * N)}, bilevel.InvalidTypeError, "whole numbers .* encode the classes first"),
        ({"labels": [True] * N}, bilevel.InvalidTypeError, "labels must be whole numbers .* got dtype bool"),
        ({"labels": [0, 1]}, bilevel.InvalidInputError, r"one entry per row, shape \(23,\), got \(2,\)"),
        ({"labels": [-1] * N}, bilevel.InvalidInputError, "labels must be numbered from 0, got -1"),
        ({"labels": [0] * N, "trusted_labels": [0] * TRUSTED}, bilevel.InvalidInputError, "at least 2 classes, got 1"),
        ({"classes": 2, "trusted_labels": [2] * TRUSTED}, bilevel.InvalidInputError, "must be below classes=2, got 2"),
        ({"trusted_design": torch.zeros(TRUSTED, 3)}, bilevel.InvalidInputError, "the same columns, got 5 and 3"),
        ({"trusted_design": Design.of(torch.zeros(TRUSTED, D).float())}, bilevel.InvalidTypeError, "same dtype and"),
        ({"radius": -1.0}, bilevel.InvalidInputError, 'radius must be a positive number or "auto", got -1.0'),
        ({"radius": "large"}, bilevel.InvalidInputError, "radius must be a positive number .* got 'large'"),
        ({"ball": "each"}, bilevel.InvalidInputError, 'ball must be "class" or "all", got \'each\''),
        ({"constraint": 3.0}, bilevel.InvalidTypeError, "constraint must be a convex set of bilevel.sets for the"),
        ({"ridge": -1.0}, bilevel.InvalidInputError, "ridge must be a non-negative number, got -1.0"),
        ({"evidence_weight": float("nan")}, bilevel.InvalidInputError, "evidence_weight must be a non-negative number"),
        ({"batch_size": 0}, bilevel.InvalidInputError, "batch_size must be an integer .* None takes all rows"),
        ({"noise": "transition", "loss": "squared"}, bilevel.IncompatibleError, "Transition needs class probabilities"),
    ],
)  # fmt: skip
def test_refusals_name_argument_value_and_remedy(change, error, message):
    rows, labels, trusted, trusted_labels = data(2)
    arguments = {"design": rows, "labels": labels, "trusted_design": trusted, "trusted_labels": trusted_labels}
    with pytest.raises(error, match=message):
        CleaningProblem(**{**arguments, **change})


def test_a_radius_starts_positive():
    problem = make("logistic", 2, "rows", radius="auto")
    assert float(problem.start(radius=3.0)["log_radius"].exp()) == pytest.approx(3.0)
    with pytest.raises(bilevel.InvalidInputError, match="radius must be a positive number to start from, got 0"):
        problem.start(radius=0)


# --- what it costs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", NOISE)
def test_every_derivative_takes_at_most_two_passes_over_the_data(noise):
    problem = make("softmax", 3, noise)
    x, y = point(problem)

    def passes():
        found, problem.costs.data_passes = problem.costs.data_passes, 0.0
        return found

    problem.lower_grad(x, y)
    assert passes() == 2  # A V and A' R
    lin = problem.linearize(x, y)
    lin.lower_value, lin.lower_grad_x, lin.lower_grad_y  # the scores once, then one product
    assert passes() == 2
    lin.lower_hvp(y)
    assert passes() == 2
    lin.lower_cross(y)
    assert passes() == 1
    lin.upper_value, lin.upper_grad_y  # of the trusted rows alone
    assert passes() == pytest.approx(2 * len(problem.trusted_labels) / N)


@pytest.mark.parametrize("noise", NOISE)
def test_nothing_changes_when_what_a_point_knows_is_too_much_to_be_kept(noise):
    """The same 23 rows 32,000 times: the derivatives are those of the 23 rows."""
    (rows, labels, trusted, trusted_labels), times = data(3), 32_000
    small, large = (
        CleaningProblem(rows.repeat(k, 1), labels.repeat(k), trusted, trusted_labels, noise=noise, classes=3, **EXTRAS)
        for k in (1, times)
    )
    x, y = point(small)
    many = x.repeat(times) if noise == "rows" else x
    ours, wanted = large.linearize(many, y), small.linearize(x, y)
    for _ in range(2):
        for name in ("upper_value", "lower_value", "upper_grad_y", "lower_grad_y"):
            assert_close(getattr(ours, name), getattr(wanted, name), 1e-10)
        assert_close(ours.lower_hvp(y), wanted.lower_hvp(y), 1e-10)
        per_row = (lambda u: u.view(times, -1).sum(0)) if noise == "rows" else lambda u: u
        assert_close(per_row(ours.lower_cross(y)), wanted.lower_cross(y), 1e-10)
        assert_close(per_row(ours.lower_grad_x), wanted.lower_grad_x, 1e-10)
    assert large.costs.data_passes > small.costs.data_passes + 3  # scores were computed again


def test_no_graph_is_kept_when_x_and_y_carry_gradients():
    problem = make("softmax", 3, "class-pairs", **EXTRAS)
    x, y = (tree_map(lambda u: u.requires_grad_(), vector) for vector in point(problem))
    lin = problem.linearize(x, y)
    answers = [lin.upper_value, lin.lower_value, lin.upper_grad_x, lin.upper_grad_y, lin.lower_grad_x, lin.lower_grad_y]
    answers += [lin.lower_hvp(y), lin.lower_cross(y), problem.lower_grad(x, y)]
    assert not any(u.requires_grad for answer in answers for u in leaves(answer))
