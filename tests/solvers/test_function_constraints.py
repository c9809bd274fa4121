"""BiCGAFFA and LVHBA: sets and function constraints h(x, y) <= 0, multipliers, bias; the problem's h itself."""

import pytest
import torch
from tests.biased_problem import BiasedProblem
from tests.solver_contract import assert_feasible_path, assert_reproducible, run_known

import bilevel
from bilevel.testing.known_problems import known_problems

KNOWN = known_problems()
BY_NAME = {known.name: known for known in KNOWN}
each = pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name.replace(" ", "-"))
GAFFA = bilevel.solvers.BiCGAFFA(penalty=1.0, growth=0.0, gamma=10.0, upper_step=0.4)
LVHBA = bilevel.solvers.LVHBA(penalty=1.0, growth=0.0, gamma=10.0, step_size=0.3)
both = pytest.mark.parametrize("solver", [GAFFA, LVHBA], ids=["bic-gaffa", "lv-hba"])

FUNCTIONS = {
    "half-space": lambda x, y: (y.sum() - 0.3).reshape(1),
    "non-negative": lambda x, y: -y,
    "l2 ball": lambda x, y: (y.square().sum() / 2 - 0.5).reshape(1),
    "box": lambda x, y: torch.cat([y - 0.5, -y - 0.5]),
}


def with_functions(name):
    """The known problem with its set written as h(x, y) <= 0."""
    problem = BY_NAME[name].problem
    return bilevel.Problem(problem.upper, problem.lower, inequality=FUNCTIONS[name], y0=problem.y0)


def gap_with_functions(name, solver, steps):
    known = BY_NAME[name]
    solution = bilevel.minimize(
        with_functions(name), known.x0, known.y0, solver=solver, steps=steps, evaluate_every=steps
    )
    values = [float(bilevel.upper_value(known.problem, x)) for x in (known.x0, solution.x)]
    return solution, values[1] / values[0]


@each
@both
def test_reaches_the_minimum_on_a_set(known, solver):
    """c = 1, p = 0, gamma = 10; BiC-GAFFA with upper_step 0.4, LV-HBA with 0.3; 90 steps."""
    assert run_known(known, solver, 90).gap <= 0.01


@pytest.mark.parametrize("name", FUNCTIONS)
def test_bic_gaffa_reaches_the_minimum_with_function_constraints(name):
    """c = 1, p = 0, gamma_1 = 1, gamma_2 = 3, upper_step 0.3, 300 steps; y obeys h in the limit."""
    solver = bilevel.solvers.BiCGAFFA(penalty=1.0, growth=0.0, upper_step=0.3, multiplier_gamma=3.0)
    solution, gap = gap_with_functions(name, solver, 300)
    assert gap <= 0.01
    assert float(FUNCTIONS[name](solution.x, solution.y).max()) <= 5e-3


@pytest.mark.parametrize(("name", "steps"), [
    ("half-space", 80),
    pytest.param("l2 ball", 100, marks=pytest.mark.slow),
    pytest.param("non-negative", 300, marks=pytest.mark.slow),
])  # fmt: skip
def test_lv_hba_reaches_the_minimum_with_function_constraints(name, steps):
    """c = 1, p = 0, gamma_1 = 1, gamma_2 = 10, step 0.3; every iterate obeys h."""
    solver = bilevel.solvers.LVHBA(penalty=1.0, growth=0.0, step_size=0.3, multiplier_gamma=10.0)
    solution, gap = gap_with_functions(name, solver, steps)
    assert gap <= 0.01
    assert float(FUNCTIONS[name](solution.x, solution.y).max()) <= 1e-12


@pytest.mark.parametrize(
    ("solver", "field"),
    [
        (bilevel.solvers.BiCGAFFA(penalty=1.0, growth=0.0, upper_step=1e-9, multiplier_gamma=3.0), "multipliers"),
        (bilevel.solvers.LVHBA(penalty=1e6, growth=0.0, step_size=0.1, multiplier_gamma=10.0), "multipliers"),
    ],
    ids=["bic-gaffa", "lv-hba"],
)
def test_multipliers_satisfy_the_lower_level(solver, field):
    """grad_y g + z a = 0 on the half-space a . y <= 0.3: z is the KKT multiplier at the solver's own x."""
    problem, known = with_functions("half-space"), BY_NAME["half-space"]
    loose = bilevel.Problem(
        lambda x, y: 1e-4 * known.problem.upper(x, y), problem.lower, inequality=problem.inequality, y0=problem.y0
    )
    solution = bilevel.minimize(loose, known.x0, known.y0, solver=solver, steps=200, evaluate_every=200)
    gradient = problem.lower_grad(solution.x, solution.y)
    z = float(getattr(solution.state, field))
    assert z == pytest.approx(float(-gradient.mean()), rel=1e-2)
    assert z > 0.1


@pytest.mark.parametrize("solver_class", [bilevel.solvers.BiCGAFFA, bilevel.solvers.LVHBA])
@pytest.mark.parametrize("written", ["as a set", "as a function"])
def test_the_bias_is_that_of_the_penalty_and_shrinks(solver_class, written):
    """Along the face both see the Moreau envelope: sigma = 1/(c kappa) with kappa = gamma/(1 + gamma).

    With the half-space as a function, BiC-GAFFA's y lies inside it by 0.5/(1 + c gamma_2), and LV-HBA's on its face.
    Across the face x has no bias; it settles slowly there, by rho alpha/c a step.
    """
    biased, gamma, gamma_2, errors = BiasedProblem(), 4.0, 2.0, []
    problem = biased.problem if written == "as a set" else biased.with_functions
    step = {"step_size": 0.4} if solver_class is bilevel.solvers.LVHBA else {"upper_step": 0.8}
    for penalty in (2.0, 8.0):
        solver = solver_class(penalty=penalty, growth=0.0, gamma=gamma, multiplier_gamma=gamma_2, **step)
        solution = bilevel.minimize(problem, solver=solver, steps=400, evaluate_every=400)
        sigma = (1 + gamma) / (gamma * penalty)
        assert float(biased.along(solution.x - biased.answer(sigma)).norm()) < 1e-3
        errors.append(float(biased.along(solution.x - biased.answer(0.0)).norm()))
        inside = written == "as a function" and solver_class is bilevel.solvers.BiCGAFFA
        excess = biased.excess(penalty, gamma_2) if inside else 0.0
        assert float(biased.normal @ solution.y - biased.offset) == pytest.approx(excess, abs=3e-3)
    assert 0 < errors[1] < errors[0] / 3


@both
def test_feasibility_same_bits_and_resume(solver):
    known = BY_NAME["dictionary"]
    assert_feasible_path(known.problem, known.x0, known.y0, solver, 20)
    assert_reproducible(known.problem, known.x0, known.y0, solver)
    assert_reproducible(with_functions("box"), BY_NAME["box"].x0, BY_NAME["box"].y0, solver)


def test_costs_per_step():
    """First order: no Hessian product; one product with h's Jacobian per Lagrangian gradient."""
    known = BY_NAME["half-space"]
    gaffa = bilevel.solvers.BiCGAFFA(lower_step=0.1, envelope_step=0.1)
    stats = bilevel.minimize(known.problem, known.x0, solver=gaffa, steps=20).stats
    assert (stats["upper_gradients"], stats["lower_gradients"], stats["projections"]) == (20, 80, 40)
    assert stats["hessian_products"] == stats["inequality_products"] == 0
    stats = bilevel.minimize(with_functions("half-space"), known.x0, known.y0, solver=gaffa, steps=20).stats
    assert stats["inequality_products"] == 3 * 20 + 1  # and one for the largest slope
    lv_hba = bilevel.solvers.LVHBA(step_size=0.1, envelope_step=0.1)
    stats = bilevel.minimize(known.problem, known.x0, solver=lv_hba, steps=20).stats
    assert (stats["upper_gradients"], stats["lower_gradients"], stats["projections"]) == (20, 80, 40)
    assert stats["hessian_products"] == 0


def curved(scale):
    """The unit ball as scale (|y|^2 - 1) <= 0, with x0 and the same problem with a set."""
    target = torch.tensor([2.0, 1.0, -1.0, 0.5]).double()
    functions = (
        lambda x, y: (y - target).square().sum() / 2 + 0.05 * x.square().sum(),
        lambda x, y: (y - x).square().sum() / 2,
    )
    y0, x0 = torch.zeros(4).double(), torch.tensor([3.0, 2.0, 1.0, -1.0]).double()
    with_set = bilevel.Problem(*functions, bilevel.sets.L2Ball(1.0), y0=y0)
    with_h = bilevel.Problem(*functions, inequality=lambda x, y: scale * (y.square().sum() - 1).reshape(1), y0=y0)
    return x0, with_set, with_h


@pytest.mark.parametrize(
    ("solver", "steps"),
    [(bilevel.solvers.BiCGAFFA(growth=0.0), 300), (bilevel.solvers.LVHBA(growth=0.0), 150)],
    ids=["bic-gaffa", "lv-hba"],
)
def test_automatic_steps_follow_the_curvature_of_h(solver, steps):
    """With multipliers of up to 3 the curvature of z . h is six times that of g: steps of 1/L would diverge."""
    x0, with_set, with_h = curved(1.0)
    solution = bilevel.minimize(with_h, x0, solver=solver, steps=steps, evaluate_every=steps)
    assert solution.status is bilevel.Status.STEPS
    best = bilevel.minimize(with_set, x0, solver=bilevel.Implicit(), steps=60, evaluate_every=60).x
    least, start, end = (float(bilevel.upper_value(with_set, x)) for x in (best, x0, solution.x))
    assert end - least <= 0.2 * (start - least)


@pytest.mark.parametrize("solver_class", [bilevel.solvers.BiCGAFFA, bilevel.solvers.LVHBA])
def test_automatic_steps_do_not_depend_on_the_units_of_h(solver_class):
    """h in other units, with gamma_2 in theirs: multipliers in theirs, and the same x and y."""
    ends = []
    for scale in (1.0, 100.0):
        x0, _, with_h = curved(scale)
        solver = solver_class(multiplier_gamma=1.0 / scale**2, largest_multiplier=1e3 / scale)
        ends.append(bilevel.minimize(with_h, x0, solver=solver, steps=15, evaluate_every=15))
    assert torch.allclose(ends[0].x, ends[1].x, atol=1e-8)
    assert torch.allclose(ends[0].y, ends[1].y, atol=1e-8)
    assert torch.allclose(ends[0].state.multipliers, 100.0 * ends[1].state.multipliers, atol=1e-8)
    assert float(ends[0].state.multipliers) > 0


def test_the_projections_of_lv_hba_are_counted():
    """A step with a curved h asks for far more products than the two of its Lagrangian gradients."""
    x0, _, with_h = curved(1.0)
    solver = bilevel.solvers.LVHBA(step_size=0.1, envelope_step=0.1, multiplier_step=0.1)
    stats = bilevel.minimize(with_h, x0, solver=solver, steps=10).stats
    assert stats["inequality_products"] > 2 * 10 + 100


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_lower_level_with_functions_is_that_with_the_set(name):
    known = BY_NAME[name]
    with_set = bilevel.solve_lower(known.problem, known.x0, tol=1e-10).y
    with_h = bilevel.solve_lower(with_functions(name), known.x0, tol=1e-9)
    assert with_h.converged
    assert float((with_h.y - with_set).norm()) < 1e-7
    assert float(bilevel.upper_value(with_functions(name), known.x0)) == pytest.approx(float(known.value(known.x0)))


def test_functions_and_a_set_together():
    """A half-space by h within the non-negative set: both hold, and the point is the nearest one (KKT)."""
    problem = bilevel.Problem(
        lambda x, y: y.sum() + x.sum(),
        lambda x, y: (y - x).square().sum() / 2,
        bilevel.sets.NonNegative(),
        inequality=lambda x, y: (y.sum() - 1.0).reshape(1),
        y0=torch.zeros(3).double(),
    )
    y = bilevel.solve_lower(problem, torch.tensor([2.0, 0.5, -1.0]).double()).y
    assert torch.allclose(y, torch.tensor([1.0, 0.0, 0.0]).double(), atol=1e-9)


def test_solvers_that_would_ignore_h_refuse_it():
    with pytest.raises(
        bilevel.IncompatibleError, match="without function constraints.*solvers that can: BiCGAFFA, LVHBA"
    ):
        bilevel.minimize(with_functions("box"), BY_NAME["box"].x0, solver=bilevel.DMLCBO(), steps=1)


def test_derivatives_that_would_ignore_h_are_refused():
    problem, x = with_functions("box"), BY_NAME["box"].x0
    for function in (bilevel.hypergradient, bilevel.argmin):
        with pytest.raises(bilevel.IncompatibleError, match="cannot use function constraints"):
            function(problem, x)


def test_bad_inequalities_are_explained():
    problem = bilevel.Problem(
        lambda x, y: y.sum() + x.sum(), lambda x, y: (y - x).square().sum(), inequality=lambda x, y: y.sum(),
        y0=torch.zeros(2).double(),
    )  # fmt: skip
    with pytest.raises(bilevel.InvalidTypeError, match=r"inequality returned a tensor of shape \(\): return a tensor"):
        bilevel.minimize(problem, torch.zeros(2).double(), solver=GAFFA, steps=1)
    with pytest.raises(bilevel.InvalidTypeError, match="inequality must be a function"):
        bilevel.Problem(lambda x, y: y, lambda x, y: y, inequality=3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bilevel.solvers.BiCGAFFA(multiplier_gamma=0), "multiplier_gamma must be a positive number, got 0"),
        (lambda: bilevel.solvers.LVHBA(center_step=2.0), r"center_step must lie in \(0, 1\], got 2.0"),
        (lambda: bilevel.solvers.LVHBA(center_step=0), r"center_step must lie in \(0, 1\], got 0"),
        (lambda: bilevel.solvers.LVHBA(step_size=-1.0), 'step_size must be a positive number or "auto", got -1.0'),
    ],
)
def test_settings_are_checked(make, message):
    with pytest.raises(bilevel.InvalidInputError, match=message):
        make()


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_minimize_solves_function_constraints_by_default(name):
    known = BY_NAME[name]
    solution = bilevel.minimize(with_functions(name), known.x0, known.y0, steps=2000)
    values = [float(bilevel.upper_value(known.problem, x)) for x in (known.x0, solution.x)]
    assert values[1] <= 0.01 * values[0]
    assert "BiCGAFFA" in solution.solver
