"""x is one number, a tensor without dimensions: the most common hyperparameter."""

import pytest
import torch

import bilevel
from bilevel import certificate, check_hypergradient, sets
from bilevel.diagnostics import estimate_constants, goldstein_measure
from bilevel.spaces import Space


def number(value):
    return torch.tensor(value, dtype=torch.float64)


def shrinkage():
    """F(x) = (x - 1)^2 for x >= 0: one number scales y* = (x, 0)."""
    direction, target = torch.tensor([1.0, -1.0]).double(), torch.tensor([1.0, 0.0]).double()
    return bilevel.Problem(
        lambda x, y: (y - target).square().sum(), lambda x, y: (y - x * direction).square().sum() / 2,
        sets.NonNegative(), y0=torch.zeros(2).double(),
    )  # fmt: skip


def test_unravel_is_the_inverse_of_ravel():
    space, tree = Space(), {"a": number(2.0), "b": torch.arange(3.0).double()}
    back = space.unravel(space.ravel(tree), tree)
    assert back["a"].shape == ()
    assert all(torch.equal(back[name], tree[name]) for name in tree)
    assert space.unravel(torch.ones(5, 4).double(), tree)["a"].shape == (5,)
    assert space.unravel(number(3.0)[None], number(0.0)) == 3.0


def test_the_diagnostics_take_it():
    """F'(0.3) = -1.4, and the kink of P at y_2 = -0.3 is not in reach."""
    problem, x = shrinkage(), number(0.3)
    check = check_hypergradient(problem, x, directions=1)
    assert check.ok
    assert abs(check.slopes[0].central) == pytest.approx(1.4)
    assert certificate(problem, x, 0.1, samples=20).eps == pytest.approx(1.4)
    assert goldstein_measure(problem, x, 1e-6, samples=5).value == pytest.approx(1.4, rel=1e-5)
    assert estimate_constants(problem, x).cross == pytest.approx(2**0.5)
