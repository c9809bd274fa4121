"""Hypergradients and DMLCBO against problems whose answer is known in closed form."""

from contextlib import nullcontext

import pytest
import torch

import bilevel
from bilevel.spaces import tree_map
from bilevel.testing.known_problems import known_problems

KNOWN = known_problems()
each = pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name.replace(" ", "-"))
DIFFERENT = ("box", "l1 ball", "half-space", "dictionary")
"""A separable set, one that is not, one without a bound, and several of them: what runs are made on by default."""
each_run = pytest.mark.parametrize(
    "known",
    [pytest.param(known, marks=[] if known.name in DIFFERENT else pytest.mark.slow) for known in KNOWN],
    ids=lambda known: known.name.replace(" ", "-"),
)


def relative(a, b):
    return float((a - b).norm() / b.norm())


def test_there_are_ten():
    assert len(KNOWN) == 10


@each
def test_lower_level_is_solved(known):
    solution = bilevel.solve_lower(known.problem, known.x0, tol=1e-12)
    expected = known.lower_solution(known.center(known.flat(known.x0)))
    assert solution.converged
    assert relative(known.flat(solution.y), expected) < 1e-10


@each
def test_linear_solve_agrees_with_the_closed_form(known):
    h = known.flat(bilevel.hypergradient(known.problem, known.x0))
    assert relative(h, known.gradient(known.x0)) < 1e-8


@each
def test_the_constraint_is_active_somewhere(known):
    """Otherwise these problems would test unconstrained derivatives only."""
    jacobian = known.lower_jacobian(known.center(known.flat(known.x0)))
    free = known.name == "free space"
    assert (torch.linalg.matrix_rank(jacobian) < len(jacobian)) != free


@each
def test_central_differences_of_the_upper_value(known):
    gradient, flat = known.gradient(known.x0), known.flat(known.x0)
    space, width = known.problem.x_space, 1e-5
    differences = []
    for direction in torch.eye(len(flat), dtype=flat.dtype):
        ahead, behind = (
            bilevel.upper_value(known.problem, space.unravel(flat + sign * width * direction, known.x0), tol=1e-13)
            for sign in (1, -1)
        )
        differences.append((ahead - behind) / (2 * width))
    assert relative(torch.stack(differences), gradient) < 1e-5


@each
def test_unrolled_agrees(known):
    h = bilevel.hypergradient(known.problem, known.x0, method=bilevel.Unrolled(steps=200))
    assert relative(known.flat(h), known.gradient(known.x0)) < 1e-6


@each
def test_neumann_converges_at_the_predicted_rate(known):
    """The error after Q terms is bounded by a multiple of rate^Q with rate = |I - eta G| (here at most 1 - eta mu)."""
    truth, eta, mu = known.gradient(known.x0), 0.25, 0.5
    y = bilevel.solve_lower(known.problem, known.x0, tol=1e-13).y

    def error(terms):
        method = bilevel.Neumann(terms=terms, eta=eta, truncation="full", smoothing=bilevel.hypergradients.Exact())
        h = bilevel.hypergradient(known.problem, known.x0, y, method=method)
        return float((known.flat(h) - truth).norm())

    errors = {terms: error(terms) for terms in (10, 20, 400)}
    assert errors[400] < 1e-9 * float(truth.norm())
    assert errors[20] <= (1 - eta * mu) ** 10 * errors[10] * (1 + 1e-6) + 1e-13


def test_neumann_rate_is_sharp_for_a_multiple_of_the_identity():
    """With G = 2 I and eta = 0.25 every term halves: the error is exactly |A' H (y* - t)| / 2^Q."""
    known = next(known for known in KNOWN if known.name == "l1 ball")
    y = bilevel.solve_lower(known.problem, known.x0, tol=1e-13).y
    method = bilevel.Neumann(terms=5, eta=0.25, truncation="full", smoothing=bilevel.hypergradients.Exact())
    h = bilevel.hypergradient(known.problem, known.x0, y, method=method)
    implicit = known.gradient(known.x0) - 0.1 * (known.x0 - known.optimum)
    assert float((h - known.gradient(known.x0)).norm()) == pytest.approx(float(implicit.norm()) / 2**5, rel=1e-8)


@each
def test_argmin_backward_is_the_hypergradient(known):
    """A second route to the same derivative: torch's chain rule through `argmin`."""
    x = tree_map(lambda u: u.clone().requires_grad_(), known.x0)
    known.problem.upper(x, bilevel.argmin(known.problem, x)).backward()
    gradient = known.flat(tree_map(lambda u: u.grad, x))
    assert relative(gradient, known.gradient(known.x0)) < 1e-8


@each_run
def test_dmlcbo_untuned_reaches_the_minimum(known):
    """F(x) - F* <= 0.01 (F(x0) - F*) with default settings and 300 steps; F* = 0."""
    solution = bilevel.minimize(
        known.problem, known.x0, known.y0, steps=300, evaluate_every=150, solver=bilevel.DMLCBO()
    )
    assert solution.status is bilevel.Status.STEPS
    start = float(bilevel.upper_value(known.problem, known.x0))
    assert start == pytest.approx(float(known.value(known.x0)), rel=1e-8)
    assert float(bilevel.upper_value(known.problem, solution.x)) <= 0.01 * start


@pytest.mark.slow
@each
def test_dmlcbo_forgets_a_bad_start_of_y(known):
    """y0 far from y*(x0) makes the first hypergradient far too large: that must not bound the steps for good."""
    space = known.problem.y_space(known.problem.constraint)
    noise = space.random_like(known.y0, torch.Generator().manual_seed(0))
    y0 = known.problem.constraint.project(space.add(known.y0, noise, 10.0))
    solution = bilevel.minimize(known.problem, known.x0, y0, steps=500, evaluate_every=500, solver=bilevel.DMLCBO())
    assert float(known.value(solution.x)) <= 0.01 * float(known.value(known.x0))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_dmlcbo_untuned_on_other_instances(seed):
    for known in known_problems(seed=seed):
        solution = bilevel.minimize(
            known.problem, known.x0, known.y0, steps=500, evaluate_every=500, solver=bilevel.DMLCBO()
        )
        assert float(known.value(solution.x)) <= 0.01 * float(known.value(known.x0)), known.name


@each_run
def test_published_preset(known):
    """As published (two-point, Q = 3 at random, eta = 0.5, elementwise): a biased direction. Where the elementwise form
    has the right fixed points (boxes, free space: erratum 3) F must go down; elsewhere a warning is due, and F falls
    on these instances except on the half-space, where it ends 13 % above its start.
    """
    solver = bilevel.DMLCBO.as_published(gamma=0.1, tau=0.1)
    separable = known.problem.constraint.separable
    with nullcontext() if separable else pytest.warns(bilevel.errors.AdaptivityWarning):
        solution = bilevel.minimize(known.problem, known.x0, known.y0, solver=solver, steps=300)
    assert known.problem.constraint.contains(solution.y)
    if known.name != "half-space":
        assert float(known.value(solution.x)) < 0.7 * float(known.value(known.x0))


@each
def test_every_iterate_is_feasible(known):
    states = bilevel.iterate(known.problem, known.x0, known.y0)
    constraint = known.problem.constraint
    for state in states:
        member = constraint.contains(state.y)
        assert member, (state.step, member)
        if state.step == 50:
            break
