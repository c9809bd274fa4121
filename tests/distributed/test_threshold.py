"""The threshold of a divided vector is exact, and takes few rounds whatever the vector."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bilevel import sets
from bilevel.distributed import Ranks, sharded
from bilevel.distributed.threshold import cut

ROUNDS = 7
"""One for the largest entry, at most six for the threshold."""


def rounds_of(z, radius):
    ranks = Ranks()
    p = sharded(sets.Simplex(radius), ranks).project(z)
    assert (p - sets.Simplex(radius).project(z)).abs().max() <= 1e-12 * radius
    return ranks.rounds


def near_the_level(spread, count):
    """Entries on both sides of the level, at all distances spread^-k from it."""
    steps = (spread ** -torch.arange(60, dtype=torch.float64)).repeat(count)
    z = torch.cat([-0.5 + steps, -0.5 - steps, torch.zeros(1, dtype=torch.float64)])
    return z, float((z + 0.5).clamp_min(0).sum())


@pytest.mark.parametrize("spread", [1.1, 1.5, 2.0, 4.0, 30.0, 900.0, 1024.0, 1e5])
@pytest.mark.parametrize("count", [1, 100])
def test_few_rounds_where_every_scale_has_entries(spread, count):
    assert rounds_of(*near_the_level(spread, count)) <= ROUNDS


@pytest.mark.parametrize("width", [1e-3, 1e-6, 1e-9, 1e-12, 1e-15])
def test_few_rounds_where_all_entries_lie_at_the_level(width):
    crowd = -0.5 + width * torch.randn(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = torch.cat([torch.zeros(1, dtype=torch.float64), crowd])
    assert rounds_of(z, 0.5) <= ROUNDS
    assert rounds_of(z, 0.5 + 0.3 * width * len(crowd)) <= ROUNDS


def test_few_rounds_on_usual_vectors():
    z = torch.randn(100_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert max(rounds_of(z, radius) for radius in (1.0, 1e3, 1e7)) <= 4
    assert rounds_of(torch.ones(1000, dtype=torch.float64), 1.0) <= 3


@given(
    st.lists(st.floats(-1e3, 0.0), min_size=0, max_size=30).map(lambda entries: [0.0, *entries]),
    st.floats(1e-3, 1e4),
)
@settings(max_examples=60, deadline=None)
def test_the_level_is_the_largest_quotient_in_exact_arithmetic(entries, radius):
    b = torch.tensor([entries], dtype=torch.float64)
    found = cut(b, b.abs().sum(-1, True), torch.full((1, 1), radius, dtype=torch.float64), Ranks(), inside_ends=False)
    down = sorted(map(Fraction, entries), reverse=True)
    level = max((sum(down[:j]) - Fraction(radius)) / j for j in range(1, len(down) + 1))
    assert abs(float(found.level) - float(level)) <= 4e-16 * radius


def test_rows_of_a_batch_are_found_in_the_same_rounds():
    generator = torch.Generator().manual_seed(2)
    z = torch.randn(300, 50, generator=generator, dtype=torch.float64)
    ranks = Ranks()
    p = sharded(sets.L1Ball(1.0), ranks).project(z)
    assert (p - sets.L1Ball(1.0).project(z)).abs().max() <= 1e-12
    assert ranks.rounds <= 5
    assert ranks.bytes <= 5 * 1.1e6
