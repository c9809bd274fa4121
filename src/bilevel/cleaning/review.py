"""The rows to check on the report's page: their order, the evidence against their labels, and earlier decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from .prepare import CleaningData
from .reasons import Reason, reasons_of

QUEUE = 200
"""The number of rows to check on the page."""
RANDOM = 3
"""One in this many rows is drawn at random, because suspicious rows are not representative."""
EXPLAINED = 120
"""With more columns than this, columns are not compared one by one, because that would take too long."""


@dataclass(frozen=True)
class Review:
    """The data for checking rows on the page.

    Parameters
    ----------
    queue
        Positions of rows in the table, from 0, in the order in which to check them.
    drawn
        Which of these were drawn at random.
    reasons
        By position: why the label is suspected.
    typical
        typical[column][label]: the typical value of a column in rows whose label is probably right.
    decisions
        By position: (verdict, correct label or None, drawn at random), from --verified.
    columns
        The columns, those with the strongest evidence against labels first.
    """

    queue: Sequence[int]
    drawn: Sequence[bool]
    reasons: Mapping[int, Reason]
    typical: Mapping[str, Mapping[Any, str]]
    decisions: Mapping[int, tuple[str, Any, bool]]
    columns: Sequence[str]


def review_of(cleaner: Any, data: CleaningData, rows: pd.DataFrame) -> Review:
    """The review of the most suspicious rows, mixed with rows drawn at random."""
    decisions = decisions_of(data)
    known = np.isin(np.arange(len(rows)), list(decisions))
    open_rows = np.flatnonzero(data.is_noisy & ~known)
    queue, drawn = queue_of(rows["label_quality"].to_numpy(), open_rows)
    explain = data.encoder.prose_ or len(set(data.encoder.sources_)) <= EXPLAINED
    reasons = (
        reasons_of(cleaner, data, np.sort(queue).tolist()) if explain and cleaner.correction_.model is not None else {}
    )
    weight: dict[str, float] = {}
    for reason in reasons.values():
        for name, strength in reason.against:
            weight[name] = weight.get(name, 0.0) + strength
    names = [name for name in data.encoder.columns_ if name in data.table.columns]
    columns = sorted(names, key=lambda name: -weight.get(name, 0.0))
    believed = data.is_noisy & (rows["label_quality"].to_numpy() > 0.5)
    frame, labels = data.table.frame[believed], data.given[believed]
    shown = [] if data.encoder.prose_ else [name for name in columns if name in weight]
    typical = {
        name: {label: data.encoder.typical(name, frame[name][labels == label]) for label in np.unique(labels)}
        for name in shown
    }
    return Review(queue.tolist(), drawn.tolist(), reasons, typical, decisions, columns)


def queue_of(quality: np.ndarray, open_rows: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows in the order in which to check them, and which of them were drawn at random: every third.

    Examples
    --------
    >>> rows, drawn = queue_of(np.array([0.9, 0.1, 0.5, 0.2, 0.8, 0.7]), np.arange(6))
    >>> rows[~drawn][:3].tolist(), drawn.tolist()
    ([1, 5, 4], [False, False, True, False, False, True])
    """
    count = min(QUEUE, len(open_rows))
    drawn = np.arange(count) % RANDOM == RANDOM - 1
    random = np.random.default_rng(seed).permutation(open_rows)[: int(drawn.sum())]
    rest = np.setdiff1d(open_rows, random)
    queue = np.empty(count, int)
    queue[drawn] = random
    queue[~drawn] = rest[np.argsort(quality[rest], kind="stable")][: int((~drawn).sum())]
    return queue, drawn


def decisions_of(data: CleaningData) -> dict[int, tuple[str, Any, bool]]:
    """The known decisions about rows of the table, by position."""
    if data.verified is None:
        return {}
    wrong = np.zeros(len(data.verified), bool) if data.wrong is None else data.wrong
    drawn = np.zeros(len(wrong), bool) if data.drawn is None else data.drawn
    places, found = np.flatnonzero(data.is_noisy), {}
    for place, given, right, is_wrong, random in zip(
        places, data.noisy.labels, data.verified, wrong, drawn, strict=True
    ):
        if right is not None or is_wrong:
            found[int(place)] = ("right" if right == given else "wrong", right, bool(random))
    return found
