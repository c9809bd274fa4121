"""The later single-loop solvers with their default settings, on other draws of the ten known problems."""

import pytest

import bilevel
from bilevel.testing.known_problems import known_problems
from bilevel.testing.solvers import run_known

SOLVERS = [
    bilevel.ProjectedSOBA(), bilevel.PenaltyMomentum(), bilevel.MEHA(), bilevel.BiCGAFFA(), bilevel.LVHBA(),
    bilevel.SIGD(), bilevel.DSBLO(),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
def test_defaults_reach_the_minimum(solver, seed):
    """300 steps."""
    for known in known_problems(seed=seed):
        if isinstance(solver, bilevel.SIGD | bilevel.DSBLO) and known.name == "l2 ball":
            continue
        assert run_known(known, solver, 300).gap <= 0.01, known.name
