"""IG-AL: linear inequalities, active rows."""

import pytest
import torch
from tests.solver_contract import assert_feasible_path, assert_reproducible, run_known

import bilevel
from bilevel import sets
from bilevel.random import Seeds
from bilevel.solvers.ig_al import active_rows
from bilevel.testing.known_problems import known_problems

BY_NAME = {known.name: known for known in known_problems()}
LINEAR = ["free space", "box", "non-negative", "simplex", "half-space", "affine set"]
each = pytest.mark.parametrize("name", LINEAR)


@each
def test_reaches_the_minimum_untuned(name):
    """The known problems in its class, default settings, 18 steps."""
    assert run_known(BY_NAME[name], bilevel.solvers.IGAL(), steps=18).gap <= 0.01


@each
def test_the_hypergradient_is_the_closed_form(name):
    known = BY_NAME[name]
    state = bilevel.solvers.IGAL(tol=1e-10).init(known.problem, known.x0, known.y0, Seeds())
    truth = known.gradient(known.x0)
    assert float((state.gradient - truth).norm() / truth.norm()) < 1e-8


def test_a_polyhedron_by_the_kkt_system():
    """The whole KKT matrix, inverted: [G B'; B 0] [w; mu] = [f_y; 0]."""
    generator = torch.Generator().manual_seed(1)
    B, G = torch.randn(8, 4, generator=generator).double(), torch.diag(torch.linspace(0.5, 2, 4).double())
    E = torch.ones(1, 4).double()
    polyhedron = sets.Polyhedron(B, torch.full((8,), 0.5).double(), E, torch.tensor([0.2]).double())
    target = torch.randn(4, generator=generator).double()
    problem = bilevel.Problem(
        lambda x, y: (y - target).square().sum() / 2,
        lambda x, y: (y - x) @ G @ (y - x) / 2,
        polyhedron,
        y0=torch.full((4,), 0.05).double(),
    )
    x = 2 * torch.randn(4, generator=generator).double()
    state = bilevel.solvers.IGAL(tol=1e-10).init(problem, x, polyhedron.project(problem.y0), Seeds())
    active = (B @ state.y - 0.5).abs() < 1e-6
    assert int(active.sum()) >= 1
    rows = torch.cat([E, B[active]])
    k = len(rows)
    kkt = torch.cat([torch.cat([G, rows.T], 1), torch.cat([rows, torch.zeros(k, k).double()], 1)])
    solution = torch.linalg.solve(kkt, torch.cat([state.y - target, torch.zeros(k).double()]))
    assert state.stats["active_rows"] == k
    assert torch.allclose(state.gradient, G @ solution[:4], atol=1e-7)


def test_active_rows_of_each_set():
    y = torch.tensor([0.0, 0.4, 0.6]).double()
    eye = torch.eye(3).double()
    assert torch.equal(active_rows(sets.Box(0.0, 0.6), y, 1e-9), eye[[0, 2]])
    assert torch.equal(active_rows(sets.NonNegative(), y, 1e-9), eye[:1])
    assert len(active_rows(sets.Simplex(1.0), y, 1e-9)) == 2
    assert len(active_rows(sets.FreeSpace(), y, 1e-9)) == 0
    ones = torch.ones(3).double()
    assert [len(active_rows(sets.HalfSpace(ones, offset), y, 1e-9)) for offset in (1.0, 1.1)] == [1, 0]
    assert len(active_rows(sets.Hyperplane(ones, 1.0), y, 1e-9)) == 1


@pytest.mark.parametrize("name", ["box", "half-space"])
def test_feasible_and_reproducible(name):
    known = BY_NAME[name]
    assert_feasible_path(known.problem, known.x0, known.y0, bilevel.solvers.IGAL(), steps=10)
    assert_reproducible(known.problem, known.x0, known.y0, bilevel.solvers.IGAL(refresh=5))


def test_costs_are_counted_once():
    """One cross product and one gradient of f per accepted step; the lower gradients are those of the inner loop."""
    known = BY_NAME["simplex"]
    solver = bilevel.solvers.IGAL(step_rule="fixed", upper_step=0.1)
    solution = bilevel.minimize(known.problem, known.x0, known.y0, solver=solver, steps=10)
    assert solution.stats["cross_products"] == solution.stats["upper_gradients"] == 11
    assert solution.stats["lower_gradients"] == solution.stats["projections"]


def test_other_sets_are_refused():
    for name, need in {"l1 ball": "linear inequalities", "batch of simplices": "one vector y"}.items():
        known = BY_NAME[name]
        with pytest.raises(bilevel.IncompatibleError, match=f"IGAL cannot use set .*it needs .*{need}"):
            bilevel.minimize(known.problem, known.x0, known.y0, solver=bilevel.solvers.IGAL(), steps=1)
