"""Step sizes are chosen on validation rows or classes, never on test accuracy.

hyper-cleaning   the smallest F(x) = f(x, y*(x)), f the mean loss of the trusted (validation) rows
few-shot         the largest accuracy on tasks of validation classes
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .record import RunRecord

if TYPE_CHECKING:
    from .plan import RunSpec

TIE = 1e-6
"""Scores nearer than this are equal: F is that of a lower level solved to 1e-7."""


def score(record: RunRecord) -> float:
    """What is made small; infinite for a run that diverged, failed or has no finite value.

    Examples
    --------
    >>> about = dict(identity="", experiment="", role="grid", dataset="", method="", settings={}, seed=0)
    >>> score(RunRecord(**about, status="iterations", curve={"solved_upper_value": [0.7, 0.5], "accuracy": [0.5, 0.9]}))
    0.5
    >>> score(RunRecord(**about, status="diverged", curve={"solved_upper_value": [0.7, 0.5]}))
    inf
    """
    if record.status in ("diverged", "failed"):
        return math.inf
    value = record.final.get("solved_upper_value", -record.final.get("validation_accuracy", -math.inf))
    return value if math.isfinite(value) else math.inf


def best_of_each(name: str, asked: Sequence[RunSpec], finished: Mapping[str, RunRecord]) -> list[dict[str, Any]]:
    """For each value of a setting its best pair, in the order they were asked for; none before all have finished.

    Values of which every run diverged or failed are passed over, unless there are no others.
    """
    if any(spec.identity not in finished for spec in asked):
        return []
    best: dict[Any, RunSpec] = {}
    for spec in sorted(asked, key=lambda spec: _score(spec, finished)):
        best.setdefault(spec.settings[name], spec)
    sound = [spec for spec in asked if spec in best.values() and _score(spec, finished) < math.inf]
    return [dict(spec.settings) for spec in sound or asked[:1]]


def chosen(asked: Sequence[RunSpec], finished: Mapping[str, RunRecord]) -> list[dict[str, Any]]:
    """The settings of the best run, in a list; none before all have finished.

    Scores that differ by less than `TIE` are equal, and the smallest upper step wins: it is the safest on other seeds.
    When every run diverged or failed, the first settings are returned so that the table shows what happened.
    """
    if not asked or any(spec.identity not in finished for spec in asked):
        return []
    least = min(_score(spec, finished) for spec in asked)
    equal = [spec for spec in asked if _score(spec, finished) <= least + TIE] if least < math.inf else asked[:1]
    best = min(equal, key=lambda spec: (spec.settings.get("upper_step", 0.0), _score(spec, finished)))
    return [dict(best.settings)]


def _score(spec: RunSpec, finished: Mapping[str, RunRecord]) -> float:
    return score(finished[spec.identity])
