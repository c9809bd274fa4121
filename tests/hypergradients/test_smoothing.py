"""Estimators of the smoothed Jacobian: shapes, blocks, sizes. Their bias is tested in test_errata."""

import pytest
import torch

import bilevel
from bilevel import sets
from bilevel.random import RandomStreams
from bilevel.spaces import Space

DOUBLE = torch.float64


def inside_an_orthant(d):
    """A point outside the l1 ball, far from all kinks: P is affine around it and H is known."""
    return torch.linspace(1.0, 1.2, d, dtype=DOUBLE) * torch.tensor([1.0, -1.0]).repeat(d)[:d]


def jacobian_matrix(face, d):
    return torch.stack([face.apply(e) for e in torch.eye(d, dtype=DOUBLE)], dim=1)


def test_products_of_one_draw_are_the_same_each_time_and_linear():
    z = inside_an_orthant(6)
    for smoothing in (
        bilevel.hypergradients.TwoPoint(directions=131),
        bilevel.hypergradients.Perturbed(radius=0.5),
    ):
        face = smoothing.sample(sets.L1Ball(1.0), z, Space(), RandomStreams(step=3), 2)
        v, w = torch.randn(2, 6, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
        assert torch.equal(face.apply(v), face.apply(v))
        assert torch.allclose(face.apply(v + 2 * w), face.apply(v) + 2 * face.apply(w), atol=1e-8)


def test_draws_differ_by_index_step_and_seed():
    z, v = inside_an_orthant(6), torch.ones(6, dtype=DOUBLE)
    smoothing = bilevel.hypergradients.TwoPoint(directions=3)

    def product(streams, index):
        return smoothing.sample(sets.L1Ball(1.0), z, Space(), streams, index).apply(v)

    base = product(RandomStreams(), 0)
    others = [
        product(RandomStreams(), 1),
        product(RandomStreams(step=1), 0),
        product(RandomStreams(bilevel.Seeds(smoothing=1)), 0),
    ]
    assert not any(torch.equal(base, other) for other in others)


@pytest.mark.parametrize("directions", [16, 100])
def test_the_mean_is_the_jacobian(directions):
    """Few directions or more than a block of them (4 standard errors)."""
    z, v, Y = inside_an_orthant(4), torch.tensor([1.0, -2.0, 0.5, 1.0], dtype=DOUBLE), sets.L1Ball(1.0)
    smoothing = bilevel.hypergradients.TwoPoint(directions=directions)
    draws = torch.stack([smoothing.sample(Y, z, Space(), RandomStreams(step=k), 0).apply(v) for k in range(300)])
    error = (draws.mean(0) - Y.jacobian(z).apply(v)).abs() / (draws.std(0) / 300**0.5)
    assert float(error.max()) < 4


def test_dictionaries_and_batches_are_smoothed_as_one_space():
    z = {"weight": inside_an_orthant(3).repeat(2, 1), "bias": torch.zeros(2, dtype=DOUBLE)}
    Y = sets.ProductSet({"weight": sets.L1Ball(1.0), "bias": sets.FreeSpace()})
    v = {"weight": torch.ones(2, 3, dtype=DOUBLE), "bias": torch.ones(2, dtype=DOUBLE)}
    exact = Y.jacobian(z).apply(v)
    smoothing, space = bilevel.hypergradients.TwoPoint(directions=100), Space(Y.event_ndim)
    draws = [smoothing.sample(Y, z, space, RandomStreams(step=k)).apply(v) for k in range(200)]
    for name in z:
        drawn = torch.stack([draw[name] for draw in draws])
        error = (drawn.mean(0) - exact[name]).abs() / (drawn.std(0) / 200**0.5)
        assert float(error.max()) < 4


def test_no_square_array_is_formed():
    """d2 = 200,000 and 32 directions: one d2 x d2 array would take 320 GB."""
    d = 200_000
    generator = torch.Generator().manual_seed(0)
    center = torch.randn(d, generator=generator, dtype=DOUBLE)
    problem = bilevel.Problem(
        upper=lambda x, y: (y * center).sum(),
        lower=lambda x, y: (y - x * center).square().sum() / 2,
        constraint=sets.L1Ball(1.0),
    )
    x, y = torch.ones((), dtype=DOUBLE), torch.zeros(d, dtype=DOUBLE)
    two_point = bilevel.hypergradients.TwoPoint(directions=32)
    for method in (bilevel.Neumann(terms=2, eta=0.5, truncation="full", smoothing=two_point), bilevel.LinearSolve()):
        h = bilevel.hypergradient(problem, x, y, method=method)
        assert torch.isfinite(h)
