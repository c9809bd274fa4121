"""What each solver takes: fixed and moving sets, refusals by name."""

import functools

import pytest
import torch
from tests.solver_contract import assert_reproducible

import bilevel
from bilevel import sets
from bilevel.solvers.base import solver_classes, unmet
from bilevel.testing.known_problems import known_problems

KNOWN = known_problems()
TARGET, METRIC = torch.tensor([1.5, -0.7, 0.2]).double(), torch.tensor([1.0, 2.0, 0.5]).double()
X0 = torch.tensor([0.3, 0.2, -0.1, 0.0]).double()

MOVING = {
    "translated": lambda x: sets.Translated(sets.L1Ball(1.0), 0.3 * x[:3]),
    "scaled": lambda x: sets.Scaled(sets.L1Ball(1.0), x[3].exp()),
    "both": lambda x: sets.Translated(sets.Scaled(sets.L1Ball(1.0), x[3].exp()), 0.3 * x[:3]),
    "both, the other way": lambda x: sets.Scaled(sets.Translated(sets.L1Ball(1.0), 0.3 * x[:3]), x[3].exp()),
    "radius": lambda x: sets.L1Ball(x[3].exp()),
}


def moving_problem(constraint):
    return bilevel.Problem(
        lambda x, y: (y - TARGET).square().sum() / 2 + 0.05 * x.square().sum(),
        lambda x, y: ((y - 2 * x[:3]).square() * METRIC).sum() / 2,
        constraint,
        y0=constraint(X0).project(torch.zeros(3).double()),
    )


@functools.cache
def minimum(name):
    """F at the end of a longer run of Implicit."""
    problem = moving_problem(MOVING[name])
    solution = bilevel.minimize(problem, X0, solver=bilevel.Implicit(), steps=100, evaluate_every=100)
    return float(bilevel.upper_value(problem, solution.x, solution.y))


TAKE_MOVING = [bilevel.Approx(), bilevel.Implicit(), bilevel.solvers.RMDPCD(steps=8)]


@pytest.mark.parametrize("name", ["radius", "both"])
@pytest.mark.parametrize("solver", TAKE_MOVING, ids=lambda solver: type(solver).__name__)
def test_moving_sets_are_followed(name, solver):
    problem = moving_problem(MOVING[name])
    solution = bilevel.minimize(problem, X0, solver=solver, steps=40, evaluate_every=40)
    start, least = float(bilevel.upper_value(problem, X0)), minimum(name)
    end = float(bilevel.upper_value(problem, solution.x, solution.y))
    assert end - least <= 0.01 * (start - least)
    assert problem.constraint_at(solution.x).contains(solution.y)


@pytest.mark.parametrize("name", ["translated", "both"])
def test_solvers_for_fixed_sets_take_moved_and_stretched_sets(name):
    problem = moving_problem(MOVING[name])
    solver = bilevel.solvers.VPBGD(upper_step=0.05, gamma=20.0, ramp=20, lower_steps=2, penalty_steps=3)
    solution = bilevel.minimize(problem, X0, solver=solver, steps=150, evaluate_every=150)
    start, least = float(bilevel.upper_value(problem, X0)), minimum(name)
    end = float(bilevel.upper_value(problem, solution.x, solution.y))
    assert end - least <= 0.05 * (start - least)
    assert problem.constraint_at(solution.x).contains(solution.y)


def test_moved_sets_resume_and_iterate_like_fixed_ones():
    problem, solver = moving_problem(MOVING["both"]), bilevel.solvers.VPBGD(upper_step=0.02)
    assert_reproducible(problem, X0, problem.y0, solver)
    solution = bilevel.minimize(problem, X0, solver=solver, steps=5)
    for state in bilevel.iterate(problem, X0, solver=solver):
        if state.step == 5:
            break
    assert torch.equal(state.x, solution.x)
    assert torch.equal(state.y, solution.y)


def fixed_form(problem, x, y):
    """The problem, x and y that a solver for fixed sets is given, and the run."""
    given = []

    class Given(bilevel.solvers.VPBGD):
        def init(self, problem, x, y, seeds):
            given.extend((problem, x, y))
            return super().init(problem, x, y, seeds)

    solution = bilevel.minimize(problem, x, y, solver=Given(upper_step=1e-9), steps=1)
    return *given, solution


@pytest.mark.parametrize("name", ["translated", "scaled", "both", "both, the other way"])
def test_the_fixed_form_has_the_same_upper_function_and_gradient(name):
    problem = moving_problem(MOVING[name])
    form, _, inner, solution = fixed_form(problem, X0, problem.y0)
    assert not form.moving
    assert solution.history[0].upper == pytest.approx(float(problem.upper(X0, problem.y0)), rel=1e-12)
    x = X0 + torch.tensor([0.4, -0.2, 0.1, 0.2]).double()
    values = [float(bilevel.upper_value(p, x, y)) for p, y in ((problem, problem.y0), (form, inner))]
    assert values[0] == pytest.approx(values[1], rel=1e-9)
    y = bilevel.solve_lower(problem, x, tol=1e-12).y
    form, _, inner, _ = fixed_form(problem, x, y)
    h, fixed = bilevel.hypergradient(problem, x, y), bilevel.hypergradient(form, x, inner)
    assert torch.allclose(h, fixed, atol=1e-8)


class Quadratic(bilevel.Linearization):
    """f and g of `moving_problem` with their derivatives written out."""

    def _upper_value(self):
        return (self.y - TARGET).square().sum() / 2 + 0.05 * self.x.square().sum()

    def _lower_value(self):
        return ((self.y - 2 * self.x[:3]).square() * METRIC).sum() / 2

    def _upper_gradients(self):
        return 0.1 * self.x, self.y - TARGET

    def _lower_gradient_y(self):
        return METRIC * (self.y - 2 * self.x[:3])

    def _lower_gradient_x(self):
        return self._lower_cross(self.y - 2 * self.x[:3])

    def _lower_hvp(self, v):
        return METRIC * v

    def _lower_cross(self, v):
        return torch.cat([-2 * METRIC * v, torch.zeros(1).double()])


class Structured(bilevel.Problem):
    """`moving_problem` with its own linearisation; f and g themselves cannot be called."""

    def __init__(self, constraint):
        super().__init__(self.never, self.never, constraint, y0=moving_problem(constraint).y0)

    def never(self, x, y):
        raise AssertionError("the linearisation was dropped")

    def linearize(self, x, y, batch=None):
        return Quadratic(self, x, y, batch)


@pytest.mark.parametrize("name", ["translated", "scaled", "both", "both, the other way"])
def test_the_fixed_form_keeps_a_linearisation_of_the_problem_itself(name):
    plain, structured = (make(MOVING[name]) for make in (moving_problem, Structured))
    x = X0 + torch.tensor([0.4, -0.2, 0.1, 0.2]).double()
    y, v = torch.tensor([0.3, -0.2, 0.4]).double(), torch.tensor([0.5, 1.0, -2.0]).double()
    a, b = (fixed_form(p, X0, p.y0)[0].linearize(x, y) for p in (plain, structured))
    for quantity in ("upper_value", "lower_value", "upper_grad_x", "upper_grad_y", "lower_grad_x", "lower_grad_y"):
        assert torch.allclose(getattr(a, quantity), getattr(b, quantity)), quantity
    assert torch.allclose(a.lower_hvp(v), b.lower_hvp(v))
    assert torch.allclose(a.lower_cross(v), b.lower_cross(v))
    assert torch.allclose(a.problem.lower_grad(x, y), b.problem.lower_grad(x, y))
    solver = bilevel.solvers.VPBGD(upper_step=0.02)
    ends = [bilevel.minimize(p, X0, solver=solver, steps=5) for p in (plain, structured)]
    assert torch.allclose(ends[0].x, ends[1].x)
    assert ends[0].stats["lower_gradients"] == ends[1].stats["lower_gradients"]


def test_other_motions_have_no_fixed_form():
    inner = moving_problem(lambda x: sets.Translated(sets.L1Ball(x[3].exp()), 0.3 * x[:3]))
    for problem in (moving_problem(MOVING["radius"]), inner):
        with pytest.raises(bilevel.IncompatibleError, match="it needs a set that does not move with x"):
            fixed_form(problem, X0, problem.y0)
    still = KNOWN[3]
    assert fixed_form(still.problem, still.x0, still.y0)[0].constraint is still.problem.constraint


def test_the_refusal_names_solver_set_need_and_alternatives():
    problem = moving_problem(MOVING["radius"])
    with pytest.raises(bilevel.IncompatibleError) as caught:
        bilevel.minimize(problem, X0, solver=bilevel.solvers.VPBGD(), steps=1)
    message = str(caught.value)
    assert message.startswith(
        "VPBGD cannot use set L1Ball(radius=1) that moves with x: it needs a set that does not move with x "
        "(Translated and Scaled sets are rewritten as fixed ones); solvers that can: "
    )
    able = message.split("solvers that can: ")[1].split(", ")
    assert {"DMLCBO", "Approx", "Implicit", "RMDPCD"} <= set(able)
    assert not {"VPBGD", "IGAL", "AiPOD", "EAiPOD"} & set(able)
    with pytest.raises(bilevel.IncompatibleError, match="VPBGD cannot use set"):
        next(iter(bilevel.iterate(problem, X0, solver=bilevel.solvers.VPBGD())))


def test_every_listed_alternative_takes_the_problem():
    """The list in the message is true: one step of each solver it names."""
    for known in (KNOWN[1], KNOWN[7], KNOWN[9]):
        for cls in solver_classes():
            constraint = known.problem.constraint_at(known.x0)
            if not unmet(cls, known.problem, constraint, known.y0):
                solution = bilevel.minimize(known.problem, known.x0, known.y0, solver=cls(), steps=1)
                assert solution.status.finished, (cls, known.name)
