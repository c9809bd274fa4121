"""The report: one HTML page that needs nothing else, for a colleague who asks what was found and how."""

from __future__ import annotations

import math
from typing import Any

from ...pages import Picture, render_page
from .figures import (
    accuracy_bars,
    convergence,
    pair_map,
    quality_histogram,
    row_picture,
    weight_histogram,
)
from .result import CleaningResult, plain, quality_text

SUSPECTS, COLUMNS, CORRECTIONS, GALLERY = 100, 8, 10, 24
"""How many suspicious rows, how many columns of each, how many pairs of labels and how many pictures the page shows."""

NOISE = {
    "rows": "one weight for each row",
    "class-pairs": "one probability for each pair of given and true label",
    "transition": "a matrix of probabilities of each given label for each true one",
}

PAIRS = {
    "transition": (
        "true label",
        "given label",
        "Estimated: of 100 rows whose true label is that of the line, how many were given the label of the column.",
    ),
    "class-pairs": (
        "given label",
        "true label",
        "Estimated: of 100 rows that were given the label of the line, how many truly are of the label of the column.",
    ),
}
"""What lines and columns of the matrix are, and how to read it."""

WEIGHTS = {
    "rows": (
        "weight of a row in training",
        "How much each row counts in training, from 0 (left out) to 1.",
    ),
    "class-pairs": (
        "share of the given label that is right",
        "For each row, the estimated share of rows with its given label whose label is right: one number per label.",
    ),
    "transition": (
        "probability that the given label is right",
        "For each row, the probability that its given label is right, by the cleaned model and the estimated mix-ups.",
    ),
}
"""What the weight of a row is, on the axis and in the caption."""


def render_report(result: CleaningResult) -> str:
    """The page as text."""
    return render_page(
        str(__package__),
        "report.html.j2",
        result=result,
        pictures=_pictures(result),
        pairs_caption=PAIRS.get(result.noise, PAIRS["transition"])[2],
        weights_caption=WEIGHTS.get(result.noise, WEIGHTS["rows"])[1],
        noise=NOISE.get(result.noise, result.noise),
        table=_suspicious_rows(result),
        corrections=result.corrections(CORRECTIONS),
        gallery=GALLERY,
        quality=quality_text,
    )


def _pictures(result: CleaningResult) -> dict[str, Picture | None]:
    suspected = result.rows["is_label_issue"].to_numpy(bool)
    meaning, _ = WEIGHTS.get(result.noise, WEIGHTS["rows"])
    lines, columns, _ = PAIRS.get(result.noise, PAIRS["transition"])
    return {
        "accuracy": accuracy_bars(result.measurement.models) if result.measurement else None,
        "weights": weight_histogram(result.rows["weight"].to_numpy(float), suspected, meaning),
        "quality": quality_histogram(result.rows["label_quality"].to_numpy(float), suspected),
        "pairs": None
        if result.transition is None
        else pair_map(result.transition, result.classes, lines=lines, columns=columns),
        "convergence": convergence(result.history),
    }


def _suspicious_rows(result: CleaningResult) -> dict[str, Any]:
    """The names of further columns, and for each suspicious row its numbers, picture and cells."""
    suspects = result.suspects(SUSPECTS)
    shown, shape, largest = [], (), 0.0
    if result.pixels is None:
        shown = list(result.features.columns[:COLUMNS])
    else:
        pixels, shape = result.pixels
        largest = float(result.features[pixels].to_numpy(float).max())
    rows = []
    for place, row in zip(suspects.index, suspects.to_dict("records"), strict=True):
        picture = None
        if result.pixels is not None:
            picture = row_picture(result.features.loc[place, result.pixels[0]].to_numpy(float), shape, largest)
        cells = [_cell(result.features.loc[place, name]) for name in shown]
        rows.append({key: plain(value) for key, value in row.items()} | {"picture": picture, "cells": cells})
    return {"columns": shown, "left_out": len(result.features.columns) - len(shown), "rows": rows}


def _cell(value: Any) -> dict[str, Any]:
    """What is shown of a cell, and what it is sorted by when it is a number."""
    value = plain(value)
    if isinstance(value, float):
        return {"text": f"{value:.6g}", "number": value if math.isfinite(value) else None}
    if isinstance(value, int):
        return {"text": str(value), "number": value}
    text = str(value)
    return {"text": text if len(text) <= 80 else text[:79] + "…", "number": None}
