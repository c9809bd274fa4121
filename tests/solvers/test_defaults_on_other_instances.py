"""Every solver on other draws of the known problems in its class, with its default settings where they suffice."""

import pytest
from tests.solver_contract import run_known

import bilevel
from bilevel.solvers.base import solver_classes, unmet
from bilevel.testing.known_problems import known_problems

RUNS = [
    (bilevel.solvers.ProjectedSOBA(), 300),
    (bilevel.solvers.PenaltyMomentum(), 300),
    (bilevel.solvers.MEHA(), 300),
    (bilevel.solvers.BiCGAFFA(), 300),
    (bilevel.solvers.LVHBA(), 300),
    (bilevel.solvers.SIGD(), 300),
    (bilevel.solvers.DSBLO(), 300),
    (bilevel.solvers.VPBGD(), 300),
    (bilevel.solvers.SmoothedBFGS(), 100),
    (bilevel.Approx(), 60),
    (bilevel.Implicit(), 60),
    (bilevel.solvers.RMDPCD(steps=6), 100),
    (bilevel.solvers.RMDPCD(steps=6, mode="implicit-forward"), 100),
    (bilevel.solvers.AiPOD(), 300),
    (bilevel.solvers.EAiPOD(), 300),
    (bilevel.solvers.IGAL(), 60),
]
"""Solvers and how many steps they take."""


def test_every_solver_is_among_them():
    """DMLCBO has `test_known_problems.py::test_dmlcbo_untuned_on_other_instances`."""
    assert {type(solver) for solver, _ in RUNS} == set(solver_classes()) - {bilevel.DMLCBO}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("solver", "steps"), RUNS, ids=lambda value: type(value).__name__)
def test_defaults_reach_the_minimum(solver, steps, seed):
    """F(x) - F* <= 0.01 (F(x0) - F*) on the problems in the solver's class; F* = 0."""
    inside = [k for k in known_problems(seed=seed) if not unmet(solver, k.problem, k.problem.constraint, k.y0)]
    assert len(inside) >= 2
    for known in inside:
        assert run_known(known, solver, steps).gap <= 0.01, known.name
