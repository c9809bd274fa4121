"""A batch of tasks as a bilevel problem: its own derivatives against autograd, and every solver of the paper on it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import bilevel
from bilevel.few_shot import FewShotProblem, SVMHead
from bilevel.problem import AutogradLinearization

from .support import tasks_of

CODINGS = ("centred", "crammer-singer")


def small_tasks(*, mask: bool = False, seed: int = 0, ways: int = 3, pixels: int = 6):
    support, labels, query = tasks_of("clustered", 2, ways, 2, pixels, seed=seed)
    tasks = SimpleNamespace(
        support=support, support_labels=labels, query=query, query_labels=torch.arange(16).reshape(2, 8) % ways
    )
    if mask:
        tasks.support_mask = torch.ones(labels.shape, dtype=torch.bool)
        tasks.support_mask[0, -1] = False
    return tasks


def small_problem(coding: str = "centred", *, C: float = 0.2, mask: bool = False, **settings) -> FewShotProblem:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    return FewShotProblem(network, SVMHead(3, C=C, ridge=1e-2, coding=coding), small_tasks(mask=mask), **settings)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("coding", CODINGS)
def test_linearization_agrees_with_autograd(coding, mask):
    problem = small_problem(coding, mask=mask)
    generator = torch.Generator().manual_seed(1)
    constraint, x = problem.constraint_at(problem.x0), problem.x0
    y = constraint.project(torch.randn(problem.y0.shape, generator=generator, dtype=torch.float64))
    v = torch.randn(problem.y0.shape, generator=generator, dtype=torch.float64)
    if mask:
        v[0, -1] = 0.0
    ours, plain = problem.linearize(x, y), AutogradLinearization(problem, x, y)
    for name in ("upper_value", "lower_value", "upper_grad_x", "upper_grad_y", "lower_grad_x", "lower_grad_y"):
        torch.testing.assert_close(getattr(ours, name), getattr(plain, name))
    torch.testing.assert_close(ours.lower_hvp(v), plain.lower_hvp(v))
    torch.testing.assert_close(ours.lower_cross(v), plain.lower_cross(v))
    torch.testing.assert_close(ours.reduced_gradient(v), plain.reduced_gradient(v))


def test_what_the_mask_hides_is_not_looked_at():
    """Neither by the head nor by the statistics of a batch."""
    problems = []
    for filling in (0.0, torch.nan):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)).double()
        tasks = small_tasks(mask=True)
        tasks.support[0, -1] = filling
        problems.append(FewShotProblem(network, SVMHead(3), tasks))
    gradients = [problem.linearize(problem.x0, problem.solve(problem.x0)).upper_grad_x for problem in problems]
    torch.testing.assert_close(*gradients)
    torch.testing.assert_close(*(problem.buffers for problem in problems))


@pytest.mark.parametrize("coding", CODINGS)
def test_its_own_solver_solves_the_lower_level(coding):
    problem = small_problem(coding)
    y = problem.solve(problem.x0)
    assert bilevel.lower_residual(problem, problem.x0, y) < 1e-8
    torch.testing.assert_close(y, bilevel.solve_lower(problem, problem.x0).y, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("coding", CODINGS)
def test_hypergradient_of_the_problem_is_that_of_the_head(coding):
    problem = small_problem(coding)
    h = bilevel.hypergradient(problem, problem.x0, problem.solve(problem.x0), method=bilevel.LinearSolve(tol=1e-12))
    network, head, tasks = problem.network, problem.head, problem.tasks
    scores = head(network(tasks.support), tasks.support_labels, network(tasks.query))
    nn.functional.cross_entropy(scores.flatten(0, 1), tasks.query_labels.flatten()).backward()
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(h[name], parameter.grad, rtol=1e-6, atol=1e-9)


def test_the_network_runs_once_for_each_x():
    problem = small_problem()
    calls = []
    problem.network.register_forward_hook(lambda *_: calls.append(1))
    x, y = problem.x0, problem.solve(problem.x0)
    for _ in range(3):
        lin = problem.linearize(x, y)
        lin.lower_grad_y, lin.upper_grad_y, lin.lower_hvp(y), lin.upper_value
        y = 0.5 * y
    assert len(calls) == 1
    x["0.bias"].add_(1.0)  # the same dictionary, other values
    problem.linearize(x, y).lower_grad_y
    assert len(calls) == 2


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize(
    "solver",
    [
        bilevel.DMLCBO(upper_step=0.3),
        bilevel.solvers.VPBGD(upper_step=0.1),
        bilevel.solvers.RMDPCD(steps=5, upper_step=0.1),
        bilevel.Approx(upper_step=0.1),
        bilevel.Implicit(upper_step=0.1, tol=1e-4),
    ],
    ids=lambda solver: type(solver).__name__,
)
def test_every_solver_of_the_paper_learns(solver, coding):
    problem = small_problem(coding, C=1.0)

    def loss(x) -> float:
        return float(problem.linearize(x, problem.solve(x)).upper_value)

    solution = bilevel.minimize(problem, y0=problem.solve(problem.x0), solver=solver, steps=6, evaluate_every=6)
    assert solution.status.ok
    assert loss(solution.x) < loss(problem.x0) - 1e-3


def test_a_state_for_fresh_tasks_keeps_what_it_knows_of_x():
    problem = small_problem()
    solver = bilevel.DMLCBO(upper_step=0.1)
    state = solver.init(problem, problem.x0, problem.solve(problem.x0), bilevel.Seeds())
    state = solver.step(problem, state)
    y = 0.5 * state.y
    new = state.reset_lower(y)
    assert new.y is y
    assert new.upper_momentum is state.upper_momentum
    assert new.adjoint is None
    assert not new.lower_momentum.any()
    assert torch.equal(solver.next_x(problem, new)["0.bias"], solver.step(problem, new).x["0.bias"])
    with pytest.raises(bilevel.InvalidInputError, match=r"y is float64\[2, 3\], but the state has float64\[2, 6\]"):
        state.reset_lower(y[:, :3])


def test_batch_normalisation_and_dropout_leave_the_network_alone_and_f_a_function():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 4)).double()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    problem = FewShotProblem(network, SVMHead(3), small_tasks(), seed=5)
    x, y = problem.x0, problem.y0 + 0.1
    value = problem.linearize(x, y).upper_value
    problem.forget()
    assert torch.equal(problem.linearize(x, y).upper_value, value)
    assert not torch.equal(
        FewShotProblem(network, SVMHead(3), small_tasks(), seed=6).linearize(x, y).upper_value, value
    )
    torch.testing.assert_close(network.state_dict(), before, rtol=0, atol=0)
    assert not torch.equal(problem.buffers["1.running_mean"], before["1.running_mean"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query_labels": torch.full((2, 8), 3)}, "query_labels has 3, but a 3-way head takes 0 to 2"),
        ({"support_labels": torch.zeros(2, 5, dtype=torch.long)}, "support_labels of shape"),
        ({"support_labels": torch.zeros(2, 6, dtype=torch.long)}, "class 1 of task 0 has no support example"),
        ({"query": torch.zeros(3, 8, 6)}, "query_labels of shape|differ in more"),
        ({"query": None}, "must have a tensor 'query'"),
    ],
)
def test_tasks_that_do_not_fit_are_refused(change, message):
    tasks = SimpleNamespace(**{**vars(small_tasks()), **change})
    with pytest.raises(bilevel.BilevelError, match=message):
        FewShotProblem(nn.Linear(6, 4).double(), SVMHead(3), tasks)


def test_a_network_without_features_is_refused():
    problem = FewShotProblem(nn.Sequential(nn.Linear(6, 4), nn.Flatten(0)).double(), SVMHead(3), small_tasks())
    with pytest.raises(bilevel.InvalidInputError, match=r"network returned .* for 28 images"):
        problem.linearize(problem.x0, problem.y0).upper_value
