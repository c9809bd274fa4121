"""The largest curvature: exact in few products, on the space and on a face."""

from dataclasses import replace

import pytest
import torch

import bilevel
from bilevel import sets
from bilevel.random import RandomStreams, Seeds


def quadratic(matrix, constraint=None):
    return bilevel.Problem(lambda x, y: y.sum(), lambda x, y: y @ matrix @ y / 2 - x.sum() * y.sum(), constraint)


def curvature(problem, x, y):
    """What a solver takes for the largest curvature of g at its start."""
    return bilevel.solvers.VPBGD().init(problem, x, y, Seeds()).curvature


def test_clustered_eigenvalues():
    """Eigenvalues 0.9 ... 1: power iteration would stop at 0.977 of the largest one after 20 products."""
    matrix = torch.diag(torch.linspace(0.9, 1.0, 200).double())
    found = curvature(quadratic(matrix), torch.zeros(1).double(), torch.zeros(200).double())
    assert 0.998 < found <= 1 + 1e-12


def test_exact_when_the_dimension_is_small():
    basis = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(0)).double()).Q
    matrix = basis @ torch.diag(torch.tensor([1.0, 1.0, 2.0, 3.0, 7.2, 7.3], dtype=torch.float64)) @ basis.T
    found = curvature(quadratic(matrix), torch.zeros(1).double(), torch.zeros(6).double())
    assert found == pytest.approx(7.3, rel=1e-10)


@pytest.mark.parametrize(("y", "largest"), [([0.0, 1.0, 1.0], 2.0), ([0.0, 0.0, 0.0], 0.0)])
def test_only_the_face_counts(y, largest):
    """With x = -1 the first entry of y, or all of y, stays at its bound 0."""
    matrix = torch.diag(torch.tensor([9.0, 2.0, 1.0]).double())
    lin = quadratic(matrix, sets.NonNegative()).linearize(-torch.ones(1).double(), torch.tensor(y).double())
    assert bilevel.Neumann(eta=0.1).contraction(lin, RandomStreams()) == pytest.approx(0.1 * largest - 1, rel=1e-10)


def test_a_refresh_near_the_last_point_takes_few_products():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(300, 40, generator=generator).double()
    problem = bilevel.Problem(lambda x, y: y.sum(), lambda x, y: (x * (rows @ y).square()).sum() / 2)
    x, y = torch.ones(300).double(), torch.zeros(40).double()
    curvature(problem, x, y)
    anew = problem.costs.hessian_products
    near = x + 0.05 * torch.randn(300, generator=generator).double()
    products = {}
    for refresh in (1, 1000):
        solver = bilevel.DMLCBO(upper_step=1e-9, refresh=refresh)
        state = replace(solver.init(problem, x, y, Seeds()), x=near)
        before = problem.costs.hessian_products
        found = solver.step(problem, state)
        products[refresh] = problem.costs.hessian_products - before
        if refresh == 1:
            exact = torch.linalg.eigvalsh(rows.T @ (found.x[:, None] * rows))[-1]
            assert found.curvature == pytest.approx(float(exact), rel=2e-3)
    assert products[1] - products[1000] <= 5 < anew


def test_linear_lower_level_has_none():
    problem = bilevel.Problem(lambda x, y: y.sum(), lambda x, y: x.sum() * y.sum(), sets.Box(0.0, 1.0))
    assert curvature(problem, torch.ones(1), torch.zeros(3)) == 0.0


def test_two_point_in_float32_is_announced():
    smoothing = bilevel.hypergradients.TwoPoint()
    problem = quadratic(torch.eye(30), sets.L1Ball(1.0))
    method = bilevel.Neumann(smoothing=smoothing, eta=0.5)
    with pytest.warns(bilevel.errors.PrecisionWarning, match="float32.*use float64"):
        bilevel.hypergradient(problem, torch.ones(1), torch.zeros(30), method=method)


def test_divergence_on_a_curved_set_is_seen():
    """L2 ball, G = diag(1, 10), at eta = 0.05 and 0.5: the spectral radius of (I - eta G) H decides."""
    matrix = torch.diag(torch.tensor([1.0, 10.0]).double())
    problem = bilevel.Problem(
        lambda x, y: y.sum(), lambda x, y: (y - x) @ matrix @ (y - x) / 2, sets.L2Ball(1.0), y0=torch.zeros(2).double()
    )
    x = torch.tensor([1.3, 0.05]).double()
    lin = problem.linearize(x, bilevel.solve_lower(problem, x).y)
    for eta, diverges in ((0.05, False), (0.5, True)):
        method = bilevel.Neumann(eta=eta, truncation="full", smoothing=bilevel.hypergradients.Exact())
        face = lin.constraint.jacobian(lin.y - eta * lin.lower_grad_y)
        columns = torch.stack([face.apply(e) for e in torch.eye(2).double()], dim=1)
        radius = torch.linalg.eigvals((torch.eye(2).double() - eta * matrix) @ columns).abs().max()
        assert method.contraction(lin, RandomStreams()) == pytest.approx(float(radius), rel=1e-3)
        assert (float(radius) >= 1) == diverges
