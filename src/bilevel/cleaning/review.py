"""The rows to check on the report's page: their order, the evidence against their labels, and earlier decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from .prepare import CleaningData
from .reasons import reasons_of
from .tables import cell_text

QUEUE = 200
"""The number of rows to check on the page."""
RANDOM = 3
"""Every so many-th of them is drawn at random: suspicious rows are no fair sample."""
DETAILS = 40
"""Columns of a row to check."""
EXPLAINED = 120
"""With more columns than this, columns are not compared one by one, because that would take too long."""


def review_of(cleaner: Any, data: CleaningData, rows: pd.DataFrame, named: Sequence[str]) -> dict[str, Any]:
    """The most suspicious rows, among them rows drawn at random, as the script of the page reads them.

    Parameters
    ----------
    rows
        What is said of each row, `CleaningResult.rows`.
    named
        Columns that tell people which row is which.

    Returns
    -------
    Rows go by their number, labels by their place among the classes.

    queue
        (row, whether it was drawn at random), in the order in which to check them.
    columns, details, cells
        The columns in use that speak most against labels first; those that are shown of a row; their cells by row.
    reasons
        By row: see `reasons_of`.
    typical
        typical[column][label]: the typical value of a column in rows whose label is probably right.
    decisions
        (row, verdict, correct label or None, drawn at random), as --verified says.
    prose
        Whether words take the place of columns.
    """
    encoder, number, frame = data.encoder, rows["row"].to_numpy(), data.table.frame
    decisions = _decisions(cleaner, data)
    known = np.isin(np.arange(len(rows)), [place for place, *_ in decisions])
    queue, drawn = queue_of(rows["label_quality"].to_numpy(), np.flatnonzero(data.is_noisy & ~known))
    explain = encoder.prose_ or len(set(encoder.sources_)) <= EXPLAINED
    explain = explain and cleaner.correction_.model is not None
    reasons = reasons_of(cleaner, data, np.sort(queue).tolist()) if explain else {}
    weight: dict[str, float] = {}
    for name, strength in (pair for reason in reasons.values() for pair in reason["against"]):
        weight[name] = weight.get(name, 0.0) + strength
    columns = sorted((name for name in encoder.columns_ if name in frame), key=lambda name: -weight.get(name, 0.0))
    details = list(dict.fromkeys([*named, *columns[:DETAILS]]))
    believed = data.is_noisy & (rows["label_quality"].to_numpy() > 0.5)
    typical = {
        name: {label: encoder.typical(name, frame[name][believed & (data.given == value)])
               for label, value in enumerate(cleaner.classes_)}
        for name in details if name in weight and not encoder.prose_
    }  # fmt: skip
    return {
        "queue": [(int(number[place]), bool(random)) for place, random in zip(queue, drawn, strict=True)],
        "reasons": {int(number[place]): reason for place, reason in reasons.items()},
        "typical": typical,
        "decisions": [(int(number[place]), *rest) for place, *rest in decisions],
        "details": details,
        "cells": {int(number[place]): [cell_text(frame[name].iloc[place], 400) for name in details] for place in queue},
        "columns": columns,
        "prose": encoder.prose_,
    }


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


def _decisions(cleaner: Any, data: CleaningData) -> list[tuple[int, str, int | None, bool]]:
    """What is known of rows of the table: place, verdict, correct label, drawn at random."""
    if data.verified is None:
        return []
    none = np.zeros(len(data.verified), bool)
    wrong, drawn = (none if flags is None else flags for flags in (data.wrong, data.drawn))
    numbers = {label: place for place, label in enumerate(cleaner.classes_)}
    rows = zip(np.flatnonzero(data.is_noisy), data.noisy.labels, data.verified, wrong, drawn, strict=True)
    return [
        (int(place), "right" if right == given else "wrong", numbers.get(right), bool(random))
        for place, given, right, is_wrong, random in rows
        if right is not None or is_wrong
    ]
