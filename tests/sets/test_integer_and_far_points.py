"""Polyhedral sets at integer points, full of kinks and of places where P is constant, and at points far away."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import nnls

from bilevel.errors import NotConvergedError
from bilevel.sets import (
    BirkhoffPolytope,
    BoxSection,
    CappedSimplex,
    MonotoneCone,
    Permutahedron,
    Polyhedron,
    WeightedL1Ball,
)
from bilevel.testing.cases import dense


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def integers(generator, low, high, *shape):
    return torch.randint(low, high + 1, shape, generator=generator).double()


def distance_to_hull(Y, z, count=60, reach=1e-5, step=1e-9):
    """From H(z) to the convex hull of the derivatives of P, by central differences, at points around z."""
    generator = torch.Generator().manual_seed(0)
    near = z + reach * torch.randn((count, *z.shape), generator=generator, dtype=z.dtype)
    moves = step * torch.eye(len(z), dtype=z.dtype)[:, None]
    limits = (Y.project(near + moves) - Y.project(near - moves)).movedim(1, 0) / (2 * step)
    limits = np.unique(limits.reshape(count, -1).numpy().round(5), axis=0)
    system = np.vstack([limits.T, 10 * np.ones(len(limits))])
    return nnls(system, np.append(dense(Y.jacobian(z), z).reshape(-1).numpy(), 10.0))[1]


def differences(Y, z, step=1e-5):
    """The derivative of P by central differences, for one vector z."""
    moves = step * torch.eye(len(z), dtype=z.dtype)
    return ((Y.project(z + moves) - Y.project(z - moves)) / (2 * step)).mT


def capped_simplex(generator, n):
    cap = integers(generator, 1, 2, n)
    return CappedSimplex(cap, integers(generator, 1, int(cap.sum()) - 1))


def box_section(generator, n):
    lower = integers(generator, -2, 0, n)
    upper, weight = lower + integers(generator, 0, 2, n), integers(generator, -2, 2, n)
    corner = torch.where(integers(generator, 0, 1, n) > 0, lower, upper)
    return BoxSection(lower, upper, weight, (weight * corner).sum())


def weighted_l1_ball(generator, n):
    return WeightedL1Ball(integers(generator, 1, 3, n), integers(generator, 1, 4))


def permutahedron(generator, n):
    return Permutahedron(integers(generator, 0, 2, n))


def polyhedron(generator, n):
    """A box cut by one equation with integer coefficients, or a pyramid: many degenerate vertices."""
    eye = torch.eye(n, dtype=torch.float64)
    if integers(generator, 0, 1) > 0:
        corners = torch.cartesian_prod(*[tensor(-1, 1)] * (n - 1))
        G = torch.cat([torch.cat([corners, torch.ones(len(corners), 1).double()], -1), -eye[-1:]])
        return Polyhedron(G, torch.cat([torch.ones(len(corners)), torch.zeros(1)]).double())
    A, corner = integers(generator, -1, 1, 1, n), integers(generator, 0, 1, n)
    A[0, 0] = 1
    return Polyhedron(torch.cat([eye, -eye]), torch.cat([torch.ones(n), torch.zeros(n)]).double(), A, A @ corner)


def monotone_cone(generator, n):
    return MonotoneCone()


@pytest.mark.parametrize(
    ("make", "cases"),
    [
        (capped_simplex, 30),
        (box_section, 30),
        (weighted_l1_ball, 30),
        (permutahedron, 30),
        (monotone_cone, 30),
        (polyhedron, 6),
        pytest.param(polyhedron, 60, marks=pytest.mark.reliability),
    ],
)
def test_jacobian_at_integer_points(make, cases):
    """H is in the hull of its limits, and autograd gives the same H."""
    generator = torch.Generator().manual_seed(0)
    for k in range(cases):
        n = 3 + k % 3
        Y, z = make(generator, n), integers(generator, -4, 4, n)
        assert distance_to_hull(Y, z) < 1e-4, f"{Y} at {z.tolist()}"
        by_autograd = torch.autograd.functional.jacobian(Y.project, z)
        torch.testing.assert_close(by_autograd, dense(Y.jacobian(z), z), rtol=0, atol=1e-9)


@pytest.mark.parametrize("make", [capped_simplex, box_section])
def test_parameter_derivatives_at_integer_points(make):
    """H and autograd take the same face at kinks: P is homogeneous, so P = H z + sum of P_theta theta (Euler)."""
    generator = torch.Generator().manual_seed(1)
    for k in range(20):
        n = 3 + k % 3
        Y, z = make(generator, n), integers(generator, -4, 4, n)
        Y = Y.replace(**{name: value.clone().requires_grad_() for name, value in Y.tensor_parameters().items()})
        u = torch.randn(n, generator=generator, dtype=torch.float64)
        value = Y.project(z) @ u
        lengths = [theta for name, theta in Y.tensor_parameters().items() if name != "weight"]
        grads = torch.autograd.grad(value, lengths, allow_unused=True)
        moved = [
            (grad * theta)[grad != 0].sum() for theta, grad in zip(lengths, grads, strict=True) if grad is not None
        ]
        total = Y.jacobian(z).apply(u) @ z + sum(moved)
        torch.testing.assert_close(total, value, rtol=0, atol=1e-9, msg=f"{Y} at {z}")


@pytest.mark.parametrize(
    ("Y", "z", "margin"),
    [
        (CappedSimplex(1.0, 2.0), tensor(4, 4, -3, -4), 6 / 2**0.5),
        (CappedSimplex(1.0, 2.0), tensor(5, 4, -3, -4), 6 / 2**0.5),
        (BoxSection(0.0, 1.0, tensor(1, 2, 2), 2.0), tensor(0, 6, 1), 2.5 / (1 + 1 / 4) ** 0.5),
        (BoxSection(0.0, 1.0, tensor(1, -1), 0.0), tensor(3, 2), 3 / 2**0.5),
        (Permutahedron(tensor(1, 1, 0, 0)), tensor(5, 5, 0, 1), 3 / 2**0.5),
        (Permutahedron(tensor(2, 1, 1, 0)), tensor(9, 5, 6, 1), 2 / 2**0.5),
    ],
)
def test_margin_where_the_projection_is_constant(Y, z, margin):
    """H = 0 as the differences say, up to the margin: the nearest point at which two entries become free."""
    torch.testing.assert_close(dense(Y.jacobian(z), z), differences(Y, z))
    assert int(Y.jacobian(z).dimension) == 0
    torch.testing.assert_close(Y.margin(z), torch.tensor(margin, dtype=torch.float64))
    generator = torch.Generator().manual_seed(0)
    d = torch.randn((20_000, len(z)), generator=generator, dtype=torch.float64)
    d = margin * d / d.norm(dim=-1, keepdim=True)
    assert (Y.project(z + 0.99 * d) == Y.project(z)).all()
    assert (Y.project(z + 1.05 * d) != Y.project(z)).any()


def test_a_degenerate_vertex_of_a_polyhedron_holds_everything_back():
    """[1, 0, 1] has three tight bounds and the equation: one multiplier alone would explain z - P(z)."""
    eye = torch.eye(3, dtype=torch.float64)
    Y = Polyhedron(torch.cat([eye, -eye]), tensor(1, 1, 1, 0, 0, 0), torch.ones(1, 3).double(), tensor(2))
    z = tensor(3, -3, 3)
    torch.testing.assert_close(Y.project(z), tensor(1, 0, 1))
    torch.testing.assert_close(dense(Y.jacobian(z), z), differences(Y, z))
    assert int(Y.jacobian(z).dimension) == 0


FAR = {
    "CappedSimplex": lambda dtype: CappedSimplex(torch.tensor([0.7, 0.9, 1.2, 0.5], dtype=dtype), 1.5),
    "BoxSection": lambda dtype: BoxSection(-0.5, 1.0, torch.tensor([0.7, -0.9, 1.2, 0.3], dtype=dtype), 0.3),
    "Permutahedron": lambda dtype: Permutahedron(torch.tensor([3.0, 2.0, 1.5, 1.0], dtype=dtype)),
    "WeightedL1Ball": lambda dtype: WeightedL1Ball(torch.tensor([0.7, 0.9, 1.2, 0.5], dtype=dtype), 1.5),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("far", [1e4, 1e8, 1e12, 1e17])
@pytest.mark.parametrize("name", FAR)
def test_far_points(name, far, dtype):
    """The answer is in the set and stays where it is: all entries far, one far entry, a far common offset."""
    Y = FAR[name](dtype)
    noise = torch.randn((50, 4), generator=torch.Generator().manual_seed(0), dtype=dtype)
    one = torch.zeros(4, dtype=dtype)
    one[1] = far
    for z in (far * noise, noise + one, noise + far, noise - far):
        y = Y.project(z)
        inside = Y.contains(y)
        assert inside, inside.reason
        assert (Y.project(y) - y).abs().max() <= 16 * torch.finfo(dtype).eps


@pytest.mark.parametrize("far", [1e4, 1e8, 1e12])
def test_far_matrices(far):
    """One far entry of a doubly stochastic matrix takes its row and column; the others are projected on their own."""
    noise = torch.randn((8, 4, 4), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one = torch.zeros(4, 4, dtype=torch.float64)
    one[3, 3] = far
    Y = BirkhoffPolytope(4)
    for z in (noise + one, noise + far, noise - one):
        y = Y.project(z)
        inside = Y.contains(y)
        assert inside, inside.reason
        assert (Y.project(y) - y).abs().max() <= 1e-14
    expected = torch.nn.functional.pad(BirkhoffPolytope(3).project(noise[:, :3, :3]), (0, 1, 0, 1))
    expected[:, 3, 3] = 1
    torch.testing.assert_close(Y.project(noise + one), expected, rtol=0, atol=4e-16 * far + 1e-12)


def test_matrices_too_far_away_are_refused():
    z = torch.zeros(4, 4, dtype=torch.float64)
    z[3, 3] = -1e15
    with pytest.raises(
        NotConvergedError, match=r"entries up to 5\.6e\+14 are too large beside sums up to 1: scale z down"
    ):
        BirkhoffPolytope(4).project(z)


@pytest.mark.parametrize("far", [1e3, 1e8, 1e17, 1e30])
def test_a_far_entry_leaves_the_others_alone(far):
    """Beside one far entry the projection on a permutahedron is that of the others on the rest of the vertex."""
    z, vertex = torch.tensor([far, 4.0, 2.0, 0.5]), torch.tensor([4.0, 3.0, 2.0, 1.0])
    y = Permutahedron(vertex).project(z)
    assert y[0] == 4
    torch.testing.assert_close(y[1:], Permutahedron(vertex[1:]).project(z[1:]))
