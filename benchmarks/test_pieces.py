"""Small pieces of a DMLCBO step, by pytest-benchmark: `make pieces`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import bilevel
from bilevel.cleaning import CleaningProblem

pytest.importorskip("pytest_benchmark")
COLUMNS, ROWS = 784, 2000
BALL = bilevel.sets.L1Ball(1.0)


@pytest.fixture
def z():
    return torch.from_numpy(np.random.default_rng(0).normal(size=COLUMNS) * 0.1)


def test_projection_on_the_l1_ball(benchmark, z):
    assert float(benchmark(BALL.project, z).abs().sum()) == pytest.approx(1.0)


def test_product_with_the_jacobian(benchmark, z):
    face = BALL.jacobian(z)
    v = face.apply(torch.ones_like(z))
    assert torch.allclose(benchmark(face.apply, v), v)  # a projector


def test_step(benchmark):
    rng = np.random.default_rng(0)
    X = rng.random((2 * ROWS, COLUMNS)) * (rng.random((2 * ROWS, COLUMNS)) < 0.2)
    y = (X[:, :5].sum(1) > X[:, 5:10].sum(1)).astype(int)
    problem = CleaningProblem(X[:ROWS], y[:ROWS], X[ROWS:], y[ROWS:], intercept=False)
    states = bilevel.iterate(problem, problem.start())
    for _ in range(60):
        next(states)
    assert benchmark(next, states).step > 60
