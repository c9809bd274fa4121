"""How much of the training is done, in passes over rows: an estimate that stays honest when rows are many.

A gradient or a product with second derivatives costs one pass over the rows it sums. Noise models compete on a sample
of the rows, the last training takes all of them, so steps of different stages are not alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

STEP = {"transition": 14, "class-pairs": 14, "rows": 5}
"""Passes of a step of learning x, about; the first also measures the curvature and may train a first model."""
FIRST = {"transition": 60, "class-pairs": 30, "rows": 30}
TRIAL, TRAINING = 35, 35
"""Passes of the trial of a candidate and of the last training, about."""


class Work:
    """Passes done, and passes expected at most in each of the stages that are left.

    Examples
    --------
    >>> work = Work()
    >>> work.expect("learning", 30.0), work.expect("training", 10.0)
    (None, None)
    >>> work.advance("learning", 10.0)
    >>> work.share
    0.25
    >>> work.expect("learning", 0.0)  # ended early
    >>> work.share
    0.5
    """

    def __init__(self) -> None:
        self.done = 0.0
        self.left: dict[str, float] = {}
        self._shown = 0.0

    def expect(self, stage: str, passes: float) -> None:
        """So many passes are left in this stage."""
        self.left[stage] = passes

    def advance(self, stage: str, passes: float) -> None:
        """So many passes of this stage were made."""
        self.done += passes
        self.left[stage] = max(self.left.get(stage, 0.0) - passes, 0.0)

    @property
    def values(self) -> dict[str, Any]:
        """For a checkpoint; `resume` takes them."""
        return {"done": self.done, "left": dict(self.left)}

    def resume(self, values: Mapping[str, Any]) -> None:
        """Go on from `values`, if there are any."""
        self.done, self.left = values.get("done", self.done), dict(values.get("left", self.left))

    @property
    def share(self) -> float:
        """Done, of all, from 0 to 1; it never falls."""
        self._shown = max(self._shown, self.done / max(self.done + sum(self.left.values()), 1e-300))
        return self._shown


def expected(steps: dict[str, int], sample: int, rows: int) -> Work:
    """The work of candidates on a sample, `steps` of each, of row weights for all rows, and of the last training."""
    work, alone = Work(), list(steps) == ["rows"]
    learning = {name: FIRST[name] + (count - 1) * STEP[name] for name, count in steps.items()}
    for name, passes in learning.items():
        work.expect(name, passes * (rows if alone else sample) + TRIAL * sample)
    if "rows" in learning and not alone and rows > sample:
        work.expect("all rows", learning["rows"] * rows)
    work.expect("training", TRAINING * rows)
    return work


def strides_left(before: float, after: float, tol: float, most: int) -> float:
    """Strides until the residual is at `tol`, if each divides it as the last one did; at most `most`.

    Examples
    --------
    >>> strides_left(1.0, 0.1, tol=0.01, most=5)
    1.0
    >>> strides_left(math.inf, 0.1, tol=0.01, most=5)
    5
    """
    if after <= tol:
        return 0.0
    if not math.isfinite(before) or after >= before:
        return most
    return min(math.log(after / tol) / math.log(before / after), most)
