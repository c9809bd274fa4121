"""Step sizes are chosen on validation rows or classes, never on test accuracy.

hyper-cleaning   the smallest F(x) = f(x, y*(x)), f the mean loss of the trusted (validation) rows
few-shot         the largest accuracy on tasks of validation classes
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from .record import RunRecord


class Known(Protocol):
    """A run that was asked for."""

    @property
    def identity(self) -> str: ...
    @property
    def settings(self) -> dict[str, Any]: ...


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


def best_runs(asked: Sequence[Known], finished: Mapping[str, RunRecord], count: int) -> list[dict[str, Any]]:
    """The settings of the `count` best runs, the best first; none before all runs have finished.

    Of runs with the same score the one that was asked for first is taken. When every run diverged or failed there is
    nothing to choose, and the first settings are returned so that the table shows what happened.
    """
    if any(spec.identity not in finished for spec in asked):
        return []
    scores = {spec.identity: score(finished[spec.identity]) for spec in asked}
    ordered = sorted(asked, key=lambda spec: scores[spec.identity])
    sound = [spec for spec in ordered if scores[spec.identity] < math.inf] or ordered[:1]
    return [dict(spec.settings) for spec in sound[:count]]
