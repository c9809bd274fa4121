"""Full size: 200 certificates with known answers, and a descent into a stationary kink."""

import itertools

import pytest
import torch
from tests.known_stationarity import KNOWN_STATIONARITY

import bilevel
from bilevel import certificate, sets
from bilevel.diagnostics import BoundEvidence

pytestmark = pytest.mark.reliability
# The interval was tuned while the seeds 0 to 39 were looked at. Those from 20,000 on were drawn once it was final: they
# must stay unused in any tuning; whoever changes the interval takes a new block.
TUNED, FRESH = range(25), range(20_000, 20_025)


@pytest.mark.parametrize("seeds", [TUNED, FRESH], ids=["tuned", "fresh"])
def test_the_smallest_norm_is_in_its_interval(seeds):
    """Nine kinds of points, 25 seeds each: at least 182 of every 200, 22 of 25 of each kind, all without samples."""
    inside, outside = dict.fromkeys(KNOWN_STATIONARITY, 0), []
    for make in KNOWN_STATIONARITY:
        for seed in seeds:
            known = make(seed)
            found = certificate(known.problem, known.x, known.delta, eta=known.eta, seed=seed)
            low, high = found.interval
            if low - 1e-6 <= known.smallest <= high + 1e-6:
                inside[make] += 1
            else:
                assert found.evidence is BoundEvidence.SAMPLES, (known.name, seed)
                outside.append((known.name, seed, known.smallest, low, high))
            if "many dimensions" in known.name:
                assert high <= known.smallest * (1 + 1e-6), (known.name, seed)  # directed points meet the kinks
    assert sum(inside.values()) >= 0.91 * len(inside) * len(seeds), outside
    assert min(inside.values()) >= 22, outside


def test_no_lower_end_exceeds_what_another_seed_finds():
    """The l1 ball in R^10, where the truth is not known: every eps is a bound on it, so no lower end may exceed it."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(10):
        a, c, x = (torch.randn(10, generator=generator).double() for _ in range(3))
        problem = bilevel.Problem(
            lambda x, y, a=a, c=c: a @ y + c @ x, lambda x, y: (y - x).square().sum() / 2, sets.L1Ball(1.0),
            y0=torch.zeros(10).double(),
        )  # fmt: skip
        found = [certificate(problem, 0.5 * x, 0.2, eta=1.0, seed=seed) for seed in range(4)]
        assert max(f.interval[0] for f in found) <= min(f.eps for f in found) + 1e-6


def test_towards_a_stationary_kink_eps_vanishes_and_the_gradient_norm_does_not():
    """F(x) = |x_1| + 2 |x_2| with its minimum at the kink 0; delta is fixed, x comes nearer."""
    a = torch.tensor([2.0, 4.0]).double()
    problem = bilevel.Problem(
        lambda x, y: a @ y - a @ x / 2, lambda x, y: (y - x).square().sum() / 2, sets.NonNegative(),
        y0=torch.zeros(2).double(),
    )  # fmt: skip
    direction, found = torch.tensor([0.6, -0.8]).double(), []
    for distance in (0.3, 0.12, 0.09, 1e-2, 1e-4, 0.0):
        found.append(certificate(problem, distance * direction, delta=0.1))
    assert [round(f.eps, 6) for f in found[:1]] == [round(5**0.5, 6)]
    assert all(first.eps >= second.eps - 1e-9 for first, second in itertools.pairwise(found))
    assert all(f.eps < 1e-6 for f in found[3:])
    assert all(f.gradient_norm == pytest.approx(5**0.5) for f in found)
