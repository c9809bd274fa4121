"""The duals: solutions against Clarabel and scikit-learn, optimality, and what defeats active-set iterations."""

from __future__ import annotations

from dataclasses import replace

import cvxpy
import numpy as np
import pytest
import torch
from sklearn.svm import LinearSVC

from bilevel.errors import NonFiniteError, NotConvergedError
from bilevel.few_shot import SVMHead
from bilevel.few_shot.label_coding import CODINGS
from bilevel.few_shot.svm_dual import Dual, with_ridge

from .support import KINDS, tasks_of


def dual_of(kind: str, coding: str, *, C: float, tasks=4, ways=5, shots=5, features=30, ridge=1e-3, seed=0, mask=None):
    support, labels, _ = tasks_of(kind, tasks, ways, shots, features, seed=seed)
    mask = torch.ones_like(labels, dtype=torch.bool) if mask is None else mask
    coded = CODINGS[coding](labels, mask, ways, C, torch.float64)
    support = support * mask.unsqueeze(-1)
    return Dual(coded, with_ridge(coded.quadratic(support @ support.mT), ridge))


def clarabel(dual: Dual, task: int) -> np.ndarray:
    """The dual of one task by an interior-point solver that shares nothing with ours."""
    G, b = dual.quadratic[task].numpy(), dual.coded.indicator[task].numpy()
    y = cvxpy.Variable(b.shape)
    root = np.linalg.cholesky(G).T
    constraints = [y <= dual.coded.upper[task].numpy()]
    constraints += [cvxpy.sum(y, axis=1) == 0] if dual.coded.balanced else [y >= 0]
    objective = cvxpy.sum_squares(root @ y) / 2 - cvxpy.sum(cvxpy.multiply(b, y))
    tight = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-13)
    cvxpy.Problem(cvxpy.Minimize(objective), constraints).solve(solver="CLARABEL", **tight)
    return y.value


def against_clarabel(count: int) -> float:
    """The largest difference of the solutions, relative to their size, over `count` random tasks."""
    worst, seed = 0.0, 0
    random = np.random.default_rng(0)
    while seed < count:
        kind, coding = KINDS[seed % len(KINDS)], ("centred", "crammer-singer")[seed // len(KINDS) % 2]
        ways, shots = int(random.integers(2, 7)), int(random.integers(1, 6))
        C = float(10 ** random.uniform(-2, 1))
        dual = dual_of(kind, coding, C=C, tasks=1, ways=ways, shots=shots, ridge=1e-2, seed=seed)
        ours, theirs = dual.solve(tol=1e-9).y[0].numpy(), clarabel(dual, 0)
        worst = max(worst, np.abs(ours - theirs).max() / max(1.0, np.abs(theirs).max()))
        seed += 1
    return worst


def test_solutions_agree_with_clarabel():
    assert against_clarabel(20) < 1e-6


@pytest.mark.slow
def test_solutions_agree_with_clarabel_on_200_tasks():
    assert against_clarabel(200) < 1e-6


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("C", [0.01, 0.1, 1.0, 10.0])
def test_every_task_is_solved(kind, coding, C):
    dual = dual_of(kind, coding, C=C, tasks=8)
    y = dual.solve(tol=1e-8).y
    gradient, upper = dual.gradient(y), dual.coded.upper
    if dual.coded.balanced:
        assert float(y.sum(-1).abs().max()) < 1e-12 * max(C, 1)
        level = torch.where(y < upper - 1e-9, gradient, -torch.inf).amax(-1, keepdim=True)
        gradient = gradient - level  # the multiplier of the sum
    else:
        assert float(y.min()) >= 0
        assert float(gradient[y < 1e-12].clamp_max(0).abs().sum()) < 1e-6
    assert bool((y <= upper + 1e-12).all())
    inside = (y > 1e-7) & (y < upper - 1e-7) if not dual.coded.balanced else y < upper - 1e-7
    assert float(gradient[inside].abs().max() if inside.any() else 0.0) < 1e-6
    assert float(gradient[y > upper - 1e-12].clamp_min(0).sum()) < 1e-6


def plain_active_set(dual: Dual, rounds: int = 100) -> torch.Tensor:
    """The primal-dual active-set iteration (Hintermueller, Ito & Kunisch 2002): hold, solve, look again."""
    y, upper = torch.zeros_like(dual.coded.indicator), dual.coded.upper
    for _ in range(rounds):
        z = y - dual.gradient(y)
        low, high = z <= 0, z >= upper
        held = torch.where(high, upper, 0.0)
        y = held + dual.on_face(~(low | high), -dual.gradient(held))
    return y


def test_a_plain_active_set_iteration_cycles_where_ours_does_not():
    dual = dual_of("correlated", "centred", C=0.1, tasks=32, features=100)
    cycling = dual.residual(plain_active_set(dual)) > 1e-6
    assert int(cycling.sum()) > 16  # most tasks
    assert float(dual.solve(tol=1e-8).residual.max()) <= 1e-8


def test_crammer_singer_agrees_with_scikit_learn():
    support, labels, query = tasks_of("clustered", 4, 5, 5, 12, seed=3)
    for C in (0.01, 0.1, 1.0):
        scores = SVMHead(5, C=C, ridge=1e-9, coding="crammer-singer", scale=1.0)(support, labels, query)
        for task in range(len(support)):
            peer = LinearSVC(multi_class="crammer_singer", C=C, fit_intercept=False, tol=1e-8, max_iter=200_000)
            peer.fit(support[task].numpy(), labels[task].numpy())
            assert np.abs(scores[task].numpy() - query[task].numpy() @ peer.coef_.T).max() < 1e-3


@pytest.mark.parametrize("coding", CODINGS)
def test_absent_examples_do_not_count(coding):
    support, labels, query = tasks_of("clustered", 3, 4, 4, 10)
    head, mask = SVMHead(4, coding=coding), torch.ones(3, 16, dtype=torch.bool)
    mask[0, 13:], mask[1, 6:9] = False, False
    broken = support.clone()
    broken[~mask] = torch.nan
    scores = head(broken, labels.where(mask, 99), query, mask)
    for task in range(3):
        kept = mask[task]
        alone = head(support[task, kept], labels[task, kept], query[task])
        torch.testing.assert_close(scores[task], alone, rtol=1e-9, atol=1e-9)


def test_unsolved_tasks_are_named():
    dual = replace(dual_of("correlated", "centred", C=0.1), newton_rounds=1, interior_steps=1, last_rounds=0)
    problem = r"3 of 4 tasks were left at a KKT residual of up to .* \(tol = 1e-08\) after 2 rounds: raise ridge"
    with pytest.raises(NotConvergedError, match=problem):
        dual.solve(tol=1e-8)


def test_overflow_is_named():
    support, labels, query = tasks_of("random", 2, 3, 2, 5)
    with pytest.raises(NonFiniteError, match="of 2 tasks overflow: scale the features down"):
        SVMHead(3)(1e200 * support, labels, query)


def test_float32_features_are_solved_in_float64():
    support, labels, query = tasks_of("correlated", 8, 5, 5, 50)
    head = SVMHead(5, C=0.1, ridge=1e-6, scale=1.0)
    scores = head(support.float(), labels, query.float())
    assert scores.dtype == torch.float32
    exact = head(support.float().double(), labels, query.float().double())
    torch.testing.assert_close(scores.double(), exact, rtol=1e-3, atol=1e-3)
