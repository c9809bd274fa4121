"""What runs had reached after some seconds of training, read off their stored curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..run_folder import RunRecord

SLACK = 0.01
"""A budget of t seconds is met by evaluations until (1 + SLACK) t: a run at its time limit stops just after it."""
POINTS = 80
"""Points of a line of a figure."""


def value_after(run: RunRecord, measure: str, seconds: float) -> float:
    """The last value known when `seconds` of training were over; NaN when the run did not get so far.

    A run that had finished its iterations earlier keeps its last value; one that was stopped earlier has none.

    Examples
    --------
    >>> run = RunRecord(
    ...     identity="0",
    ...     experiment="table-2",
    ...     role="final",
    ...     dataset="mnist",
    ...     method="dmlcbo",
    ...     settings={},
    ...     seed=0,
    ...     status="time limit",
    ...     curve={"training_seconds": [0.0, 2.0, 4.0], "accuracy": [0.5, 0.8, 0.9]},
    ... )
    >>> [value_after(run, "accuracy", seconds) for seconds in (1, 3, 4, 5)]
    [0.5, 0.8, 0.9, nan]
    """
    times, values = run.curve.get("training_seconds", []), run.curve.get(measure, [])
    if not times or not values:
        return math.nan
    if not _took_all_steps(run) and not is_reached(run, seconds):
        return math.nan
    known = int(np.searchsorted(times, (1 + SLACK) * seconds, side="right"))
    return values[known - 1] if known else math.nan


def is_reached(run: RunRecord, seconds: float) -> bool:
    """Whether it trained for so long."""
    return max(run.curve.get("training_seconds", []), default=0.0) >= (1 - SLACK) * seconds


def _took_all_steps(run: RunRecord) -> bool:
    """Whether it converged, or ended by iterations, of which the environment tells the number."""
    steps, planned = run.final.get("step", 0), int(run.environment.get("iterations", 0))
    return run.status == "converged" or (run.status == "iterations" and steps >= planned)


class Band(NamedTuple):
    """A line of a figure: mean and standard deviation over runs at times (or costs) that all of them have reached."""

    times: np.ndarray
    mean: np.ndarray
    std: np.ndarray


def band(runs: Sequence[RunRecord], measure: str, scale: float = 1.0, against: str = "training_seconds") -> Band | None:
    """Mean and standard deviation of `scale` times a measure over runs; None without anything to draw.

    Between evaluations by straight lines. Times are evenly spaced in the logarithm, from the first evaluation that has
    taken time in all runs until the first run ends.
    """
    curves = [_finite(run, measure, against) for run in runs]
    if not curves or any(len(times) == 0 for times, _ in curves):
        return None
    first, last = max(times[0] for times, _ in curves), min(times[-1] for times, _ in curves)
    times = np.geomspace(first, last, POINTS) if last > first else np.array([last])
    values = scale * np.array([np.interp(times, *curve) for curve in curves])
    std = values.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros_like(times)
    return Band(times, values.mean(axis=0), std)


def _finite(run: RunRecord, measure: str, against: str) -> tuple[np.ndarray, np.ndarray]:
    """The curve at positive times, without values that are not numbers."""
    nothing = [math.nan] * len(next(iter(run.curve.values()), ()))
    times, values = (np.asarray(run.curve.get(name, nothing), dtype=float) for name in (against, measure))
    fit = (times > 0) & np.isfinite(values)
    return times[fit], values[fit]
