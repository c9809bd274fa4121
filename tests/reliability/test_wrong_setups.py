"""Full size: every wrong setup of the zoo with 20 seeds, and 50 correct problems."""

import pytest
from tests.wrong_setups import HARD_SETUPS, WRONG_SETUPS, right_setup

from bilevel import check_hypergradient

pytestmark = pytest.mark.reliability
SEEDS = 20


def test_the_zoo_is_large_enough():
    assert len(WRONG_SETUPS) >= 30
    assert len({wrong.name for wrong in WRONG_SETUPS}) == len(WRONG_SETUPS)


@pytest.mark.parametrize("wrong", WRONG_SETUPS, ids=lambda wrong: wrong.name)
def test_the_right_cause_is_named_with_every_seed(wrong):
    named = {}
    for seed in range(SEEDS):
        setup = wrong.draw(seed)
        named[seed] = check_hypergradient(setup.problem, setup.x, seed=seed, **setup.options).cause
    assert {seed: cause for seed, cause in named.items() if cause is not wrong.cause} == {}


def test_correct_problems_are_reported_as_correct(record_property):
    record_property("figure", f"{len(WRONG_SETUPS)} wrong setups with {SEEDS} seeds each, 50 correct ones")
    for seed in range(50):
        setup = right_setup(seed)
        check = check_hypergradient(setup.problem, setup.x, seed=seed)
        assert check.ok, f"seed {seed}: {check}"
        assert check.error < 1e-5


@pytest.mark.parametrize("make", HARD_SETUPS, ids=lambda make: make.__name__)
def test_correct_problems_that_need_short_steps_are_reported_as_correct(make):
    for seed in range(SEEDS):
        setup = make(seed)
        check = check_hypergradient(setup.problem, setup.x, seed=seed)
        assert check.ok, f"seed {seed}: {check}"
