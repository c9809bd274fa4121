"""Verdicts against hand computation."""

import math

import numpy as np
import pytest

from bilevel.experiments.paper_values import Printed
from bilevel.experiments.report.tables import Spread, Verdict, spread, verdict

# s^2 = 0.4^2 / 4 + 0.3^2 / 10 = 0.04 + 0.009 = 0.049, 2 s = 0.442719
PRINTED = Printed(94.0, 0.3)


@pytest.mark.parametrize(
    ("difference", "expected"),
    [
        (0.4428, Verdict.ABOVE),
        (0.4426, Verdict.WITHIN),
        (0.0, Verdict.WITHIN),
        (-0.4426, Verdict.WITHIN),
        (-0.4428, Verdict.BELOW),
    ],
)
def test_two_standard_errors_of_the_difference(difference, expected):
    assert verdict(Spread(94.0 + difference, 0.4, 4), PRINTED) is expected


def test_without_a_spread_there_is_no_verdict():
    assert verdict(Spread(90.0, math.nan, 1), PRINTED) is Verdict.ONE_SEED
    assert verdict(Spread(math.nan, math.nan, 0), PRINTED) is Verdict.NOT_RUN
    assert verdict(Spread(90.0, 0.1, 10), None) is Verdict.NOT_PRINTED


def test_runs_that_all_agree_still_have_the_printed_error():
    assert verdict(Spread(94.15, 0.0, 10), PRINTED) is Verdict.WITHIN  # 2 x 0.3 / sqrt(10) = 0.19
    assert verdict(Spread(94.20, 0.0, 10), PRINTED) is Verdict.ABOVE


def test_spread_is_that_of_numpy():
    values = np.random.default_rng(0).normal(size=7)
    assert spread(list(values)) == pytest.approx((values.mean(), values.std(ddof=1), 7), rel=1e-12)
    assert math.isnan(spread([1.0]).std)
