"""Our mean next to the printed one.

    above     ours - printed >  2 s
    within   |ours - printed| <= 2 s        s^2 = std^2 / n + printed_std^2 / 10
    below     ours - printed < -2 s

s is the standard error of the difference of two means, ours over n seeds and the paper's over its 10 runs.
"""

from __future__ import annotations

import math
import statistics
import tomllib
from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import NamedTuple

from ..printed import RUNS, Printed

ERRORS = 2.0
"""How many standard errors of the difference are no difference."""


class Verdict(StrEnum):
    """Where our mean lies, or why nothing can be said."""

    ABOVE = "above"
    WITHIN = "within two standard errors"
    BELOW = "below"
    ONE_SEED = "none from one seed"
    NOT_RUN = "not run"
    NOT_PRINTED = "not printed"


COMPARED = (Verdict.ABOVE, Verdict.WITHIN, Verdict.BELOW)
"""Verdicts on a difference."""


class Spread(NamedTuple):
    """Mean, standard deviation (n - 1 in its denominator; NaN for n < 2) and number of values."""

    mean: float
    std: float
    n: int


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation of what there is.

    Examples
    --------
    >>> spread([1.0, 3.0])
    Spread(mean=2.0, std=1.4142135623730951, n=2)
    >>> spread([])
    Spread(mean=nan, std=nan, n=0)
    """
    n = len(values)
    return Spread(
        statistics.fmean(values) if n else math.nan,
        statistics.stdev(values) if n > 1 else math.nan,
        n,
    )


def verdict(ours: Spread, printed: Printed | None) -> Verdict:
    """Ours against the print, both in percent.

    Examples
    --------
    >>> verdict(Spread(94.0, 0.3, 10), Printed(94.24, 0.01))  # 2 s = 2 sqrt(0.3^2 / 10 + 0.01^2 / 10) = 0.19
    <Verdict.BELOW: 'below'>
    """
    if ours.n == 0:
        return Verdict.NOT_RUN
    if printed is None:
        return Verdict.NOT_PRINTED
    if ours.n == 1:
        return Verdict.ONE_SEED
    difference = ours.mean - printed.mean
    margin = ERRORS * math.sqrt(ours.std**2 / ours.n + printed.std**2 / RUNS)
    if abs(difference) <= margin:
        return Verdict.WITHIN
    return Verdict.ABOVE if difference > 0 else Verdict.BELOW


def explanations(experiment: str, dataset: str) -> dict[str, str]:
    """What we know of a row of a table: texts by verdict ("above", "within", "below"), and "any" for all of them.

    Examples
    --------
    >>> sorted(explanations("table-4", "fashion-mnist"))  # those of table 2
    ['above']
    >>> explanations("table-2", "no such data")
    {}
    """
    known = _explanations().get(experiment, {})
    return explanations(known["like"], dataset) if "like" in known else known.get(dataset, {})


def remarks(experiment: str, about: str = "remarks") -> list[str]:
    """What is to be known of a whole table ("remarks"), or of its times ("clock")."""
    return _explanations().get(experiment, {}).get(about, [])


def explanation(experiment: str, dataset: str, found: Verdict) -> str:
    """Why a cell is above, within or below; "" where we do not know."""
    return explanations(experiment, dataset).get(found.value.split()[0], "")


@cache
def _explanations() -> dict[str, dict]:
    return tomllib.loads(resources.files(str(__package__)).joinpath("explanations.toml").read_text(encoding="utf-8"))
