"""All solvers alike: warm starts, the problem's own linearisation, and nothing computed twice at one point."""

from collections import Counter
from itertools import pairwise

import pytest
import torch

import bilevel
from bilevel import sets
from bilevel.random import Seeds
from bilevel.solvers.base import solver_classes
from bilevel.testing.known_problems import known_problems

METRIC = torch.linspace(0.5, 2.0, 4).double()
TARGET = torch.tensor([1.0, -0.5, 0.3, 0.0]).double()
each_solver = pytest.mark.parametrize("solver_class", solver_classes(), ids=lambda cls: cls.__name__)


class Recorded(bilevel.Linearization):
    """f = |y - t|^2/2 + |x|^2/20 and g = (y - x)' G (y - x)/2 written out; every question is noted with its point."""

    def note(self, kind, *more):
        self.problem.asked[(kind, *(tuple(v.tolist()) for v in (self.x, self.y, *more)))] += 1

    def _upper_value(self):
        return (self.y - TARGET).square().sum() / 2 + 0.05 * self.x.square().sum()

    def _lower_value(self):
        return (METRIC * (self.y - self.x).square()).sum() / 2

    def _upper_gradients(self):
        self.note("f")
        return 0.1 * self.x, self.y - TARGET

    def _lower_gradient_y(self):
        self.note("g_y")
        return METRIC * (self.y - self.x)

    def _lower_gradient_x(self):
        self.note("g_x")
        return -METRIC * (self.y - self.x)

    def _lower_hvp(self, v):
        self.note("hvp", v)
        return METRIC * v

    def _lower_cross(self, v):
        self.note("cross", v)
        return -METRIC * v


class Structured(bilevel.Problem):
    """On {y : sum y = 0.2}, which every solver takes; f and g themselves cannot be called."""

    def __init__(self):
        affine = sets.AffineSet(torch.ones(1, 4).double(), torch.tensor([0.2]).double())
        super().__init__(self.never, self.never, affine, x0=torch.tensor([0.7, 0.1, -0.4, 0.2]).double())
        self.y0, self.asked = affine.project(torch.zeros(4).double()), Counter()

    def never(self, x, y):
        raise AssertionError("f and g are given by their linearisation")

    def linearize(self, x, y, batch=None):
        return Recorded(self, x, y, batch)


@each_solver
def test_the_linearisation_of_the_problem_serves_every_solver(solver_class):
    problem = Structured()
    solution = bilevel.minimize(problem, solver=solver_class(), steps=3, evaluate_every=3)
    assert solution.status.finished


class Idle:
    """A solver that evaluates nothing."""

    def init(self, problem, x, y, seeds):
        return bilevel.solvers.State(x=x, y=y, seeds=seeds)

    def step(self, problem, state):
        return state


@each_solver
def test_nothing_is_computed_twice_at_one_point(solver_class):
    """From the first step on, where auxiliary points have left y; gradients of f and products from the start."""
    problem, checked = Structured(), Structured()
    for each in (problem, checked):
        next(bilevel.iterate(each, solver=bilevel.Implicit()))  # the first look at a problem, which is the last
        each.asked.clear()
    next(bilevel.iterate(checked, solver=Idle()))  # what is evaluated before any method starts
    first = Counter()
    for state in bilevel.iterate(problem, solver=solver_class()):
        if state.step == 1:
            first = problem.asked - checked.asked
            problem.asked.clear()
        if state.step == 6:
            break
    if solver_class is bilevel.DMLCBO:  # which asks twice at its start, whether f is noisy
        first -= Counter({question: 1 for question in first if question[0] == "f"})
    repeated = [question[0] for question, times in problem.asked.items() if times > 1]
    repeated += [question[0] for question, times in first.items() if times > 1 and question[0] not in ("g_y", "g_x")]
    assert not repeated


WARM = {
    "Approx": bilevel.Approx(step_rule="fixed", upper_step=1e-30),
    "Implicit": bilevel.Implicit(step_rule="fixed", upper_step=1e-30),
    "IGAL": bilevel.solvers.IGAL(step_rule="fixed", upper_step=1e-30),
    "SIGD": bilevel.solvers.SIGD(upper_step=1e-30),
    "RMDPCD": bilevel.solvers.RMDPCD(steps=2, inner="full", step_rule="fixed", upper_step=1e-30),
    "VPBGD": bilevel.solvers.VPBGD(gamma=1e6, first_gamma=1e6, upper_step=1e-30, lower_steps=2, penalty_steps=2),
    "AiPOD": bilevel.solvers.AiPOD(upper_step=1e-30, lower_steps=2),
    "EAiPOD": bilevel.solvers.EAiPOD(upper_step=1e-30, lower_steps=2),
}


@pytest.mark.parametrize("name", WARM)
def test_double_loops_start_from_the_last_lower_level(name):
    """With x at rest a warm-started lower level is either solved, and costs next to nothing, or keeps improving."""
    known = next(known for known in known_problems() if known.name == "affine set")
    start = known.problem.constraint.project(known.y0 + 1.0)
    history = bilevel.minimize(
        known.problem, known.x0, start, solver=WARM[name], steps=12, evaluate_every=1
    ).history  # fmt: skip
    costs = [record.costs["lower_gradients"] for record in history]
    spent = [later - sooner for sooner, later in pairwise(costs)]
    residuals = [record.lower_residual for record in history]
    assert residuals[-1] < 0.1 * residuals[1] or spent[-1] <= 2


def test_what_an_inexact_lower_level_hides():
    """|f(x, y) - F(x)| <= state.slack at a loosely solved y, for a g with mu = 1e-3; residual |f_y| is far less."""
    metric = torch.tensor([1e-3, 1.0]).double()
    problem = bilevel.Problem(
        lambda x, y: (y - 3.0).square().sum() / 2, lambda x, y: (metric * (y - x).square()).sum() / 2,
        sets.Box(-10.0, 10.0), y0=torch.zeros(2).double(),
    )  # fmt: skip
    x, y = torch.tensor([1.0, 1.0]).double(), torch.tensor([0.0, 0.999]).double()
    state = bilevel.Implicit(tol=2e-3).init(problem, x, y, Seeds())
    lin = problem.linearize(x, state.y)
    error = abs(float(lin.upper_value) - float(bilevel.upper_value(problem, x)))
    assert float(lin.lower_grad_y.norm()) * float(lin.upper_grad_y.norm()) < 0.1 * error
    # f is quadratic: to second order in y - y*, which the bound leaves out, there is |y - y*|^2 / 2 more.
    assert error <= state.slack <= 3 * error
