"""SIGD and DS-BLO: the known problems with polyhedral sets, and what the random linear term costs in accuracy."""

import pytest
from tests.solver_contract import assert_feasible_path, assert_reproducible, run_known

import bilevel
from bilevel.testing.known_problems import known_problems

KNOWN = [known for known in known_problems() if known.name != "l2 ball"]
CURVED = next(known for known in known_problems() if known.name == "l2 ball")
each = pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name.replace(" ", "-"))
SIGD = bilevel.solvers.SIGD(upper_step=0.5, perturbation=1e-3)
DSBLO = bilevel.solvers.DSBLO(upper_step=0.5, momentum=0.5, perturbation=1e-3)


@each
def test_sigd_reaches_the_minimum(known):
    """upper_step 0.5, |q| <= 1e-3, at most 100 inner steps to 1e-4, 50 steps."""
    assert run_known(known, SIGD, 50).gap <= 0.01


@each
def test_dsblo_reaches_the_minimum(known):
    """upper_step 0.5, longest move 1, beta = 0.5, |q| <= 1e-3, 50 steps."""
    assert run_known(known, DSBLO, 50).gap <= 0.01


@pytest.mark.parametrize("solver", [SIGD, DSBLO], ids=["sigd", "dsblo"])
def test_a_curved_set_is_refused_with_names_of_others(solver):
    with pytest.raises(bilevel.IncompatibleError, match="polyhedral set.*solvers that can: .*ProjectedSOBA"):
        run_known(CURVED, solver, 1)


def test_the_error_is_within_the_bound_and_shrinks_with_the_perturbation():
    """|y_q* - y*| <= |q| / mu (mu = 0.5 here), for the fixed q of SIGD."""
    known = KNOWN[0]
    errors = []
    for radius in (0.2, 0.002):
        solver = bilevel.solvers.SIGD(upper_step=0.5, perturbation=radius, inner_tol=1e-10)
        solution = bilevel.minimize(known.problem, known.x0, known.y0, solver=solver, steps=1)
        exact = bilevel.solve_lower(known.problem, known.x0).y
        errors.append(float((solution.y - exact).norm()))
        assert 0 < errors[-1] <= radius / 0.5 + 1e-8
    assert errors[1] == pytest.approx(errors[0] / 100, rel=1e-4)


@pytest.mark.parametrize("solver", [SIGD, DSBLO], ids=["sigd", "dsblo"])
def test_same_bits_resume_and_feasibility(solver):
    known = KNOWN[3]
    assert_reproducible(known.problem, known.x0, known.y0, solver)
    assert_feasible_path(known.problem, known.x0, known.y0, solver, 10)


def test_another_seed_is_another_perturbation():
    known = KNOWN[0]
    first, second = (
        bilevel.minimize(known.problem, known.x0, known.y0, solver=SIGD, steps=2, seed=bilevel.Seeds(smoothing=seed)).y
        for seed in (0, 1)
    )
    assert not first.equal(second)


def test_warm_starts_make_later_steps_cheaper():
    """After 40 steps an inner solve starts next to its answer."""
    known = next(known for known in KNOWN if known.name == "half-space")
    run = {"solver": bilevel.solvers.SIGD(upper_step=0.5, refresh=1000), "evaluate_every": 1}
    history = bilevel.minimize(known.problem, known.x0, known.y0, steps=40, **run).history
    costs = [record.costs["lower_gradients"] for record in history]
    assert costs[-1] - costs[-2] < costs[1] - costs[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"perturbation": 0.0}, "perturbation must be a positive number, got 0.0"),
        ({"inner_steps": 0}, "inner_steps must be an integer of at least 1, got 0"),
        ({"momentum": 1.0}, r"momentum must lie in \[0, 1\), got 1.0"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(bilevel.InvalidInputError, match=message):
        bilevel.solvers.DSBLO(**settings)
