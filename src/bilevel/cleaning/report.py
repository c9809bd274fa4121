"""The report: one HTML page that needs nothing else, for a colleague who asks what was found and how.

Its texts are in report.html.j2; here are its pictures and the rows of its table.
"""

from __future__ import annotations

import base64
import io
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._html import ACCENT, CARD, INK, MUTED, SOFT, STYLE, WARN, Picture, make_picture, render_page
from ..errors import MissingExtraError
from .result import SUSPECTS, Accuracy, CleaningResult, quality_text
from .tables import plain

try:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import MaxNLocator
except ImportError:
    raise MissingExtraError("The report", "apps") from None

COLUMNS, CORRECTIONS, GALLERY = 8, 10, 24
"""How many columns of each suspicious row, how many pairs of labels and how many pictures the page shows."""
WEIGHTS = {
    "correction": "probability that the given label is right",
    "rows": "weight of a row in training",
    "class-pairs": "fraction of the given label that is correct",
    "transition": "probability that the given label is correct",
}
"""What the weight of a row is, on the axis of its histogram."""
WIDTH = 5.0  # inches of 72 pixels: texts keep their size on a telephone
LARGEST_HEAT_MAP = 20


def render_report(result: CleaningResult) -> str:
    """The page as text."""
    return render_page(
        Path(__file__).parent,
        "report.html.j2",
        result=result,
        pictures=_pictures(result),
        table=_suspicious_rows(result),
        corrections=result.corrections(CORRECTIONS),
        gallery=GALLERY,
        quality=quality_text,
    )


def _pictures(result: CleaningResult) -> dict[str, Picture | None]:
    suspected = result.rows["is_label_issue"].to_numpy(bool)
    weights, quality = (result.rows[name].to_numpy(float) for name in ("weight", "label_quality"))
    lines, columns = ("given label", "true label") if result.noise == "class-pairs" else ("true label", "given label")
    pairs = None if result.transition is None else pair_map(result.transition, result.classes, lines, columns)
    return {
        "accuracy": accuracy_bars(result.measurement.models) if result.measurement else None,
        "weights": histogram(weights, suspected, "Weights of the rows", WEIGHTS[result.noise]),
        "quality": histogram(quality, suspected, "Quality of the labels", "probability of the given label"),
        "pairs": pairs,
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


# --- pictures ---------------------------------------------------------------------------------------------------------


def accuracy_bars(models: Sequence[Accuracy]) -> Picture:
    """Accuracy of each model with its standard error; the last one is the cleaned model."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 0.75 + 0.52 * len(models)), layout="constrained")
        axes = figure.subplots()
        shares = [100 * entry.share for entry in models]
        colours = [MUTED] * (len(models) - 1) + [ACCENT]
        places = range(len(models))
        axes.barh(places, shares, color=colours, height=0.58)
        errors = [100 * entry.standard_error for entry in models]
        axes.errorbar(shares, places, xerr=errors, fmt="none", color=INK, ecolor=INK, capsize=3)
        for place, entry in zip(places, models, strict=True):
            axes.text(1.5, place, f"{100 * entry.share:.1f} %", va="center", color=CARD, fontweight="bold")
        axes.set_yticks(places, [entry.model for entry in models], color=INK, parse_math=False)
        axes.tick_params(left=False)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="y", visible=False)
        axes.set(xlim=(0, 100), xlabel="accuracy, %")
        axes.invert_yaxis()
        words = "; ".join(f"{entry.model}: {entry.share:.1%} ± {entry.standard_error:.1%}" for entry in models)
        return make_picture(figure, "Accuracy before and after", f"Accuracy of each model. {words}.")


def histogram(values: np.ndarray, suspected: np.ndarray, title: str, label: str) -> Picture:
    """Numbers of the rows, those with a suspected label in another colour; `label` says what they are."""
    top = max(1.0, float(values.max(initial=0.0)))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
        axes = figure.subplots()
        axes.hist(
            [values[~suspected], values[suspected]], bins=np.linspace(0, top, 26).tolist(), stacked=True,
            color=[ACCENT, WARN], label=["label kept", "label suspected"], rwidth=0.92,
        )  # fmt: skip
        axes.grid(axis="x", visible=False)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel=label, ylabel="rows", xlim=(0, top))
        figure.legend(loc="outside upper left", ncols=2, handlelength=1.0)
        low = int((values < top / 10).sum())
        description = (
            f"Histogram of {len(values)} rows by {label}, from 0 to {top:.3g}: median {np.median(values):.2g}, "
            f"{low} rows below {top / 10:.2g}; {int(suspected.sum())} rows have a suspected label."
        )
        return make_picture(figure, title, description)


def pair_map(matrix: np.ndarray, classes: Sequence[Any], lines: str, columns: str) -> Picture | None:
    """A matrix of shares of pairs of labels, each line of which sums to 1; None for too many labels.

    Parameters
    ----------
    matrix
        Shape (classes, classes).
    classes
        The labels.
    lines, columns
        What the lines and the columns of the matrix are: "true label", "given label".
    """
    size = len(classes)
    if size > LARGEST_HEAT_MAP:
        return None
    names = [_short(label) for label in classes]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, min(WIDTH, 1.4 + 0.45 * size)), layout="constrained")
        axes = figure.subplots()
        for true in range(size):
            for given in range(size):
                share = min(max(float(matrix[true, given]), 0.0), 1.0)
                colour = ACCENT if true == given else WARN
                axes.add_patch(Rectangle((given - 0.47, true - 0.47), 0.94, 0.94, color=SOFT, linewidth=0))
                axes.add_patch(
                    Rectangle((given - 0.47, true - 0.47), 0.94, 0.94, color=colour, alpha=share, linewidth=0)
                )
                if share >= 0.015:
                    axes.text(
                        given, true, f"{100 * share:.0f}", ha="center", va="center", fontsize=9 if size <= 12 else 7,
                        color=CARD if share > 0.55 else INK,
                    )  # fmt: skip
        rotation = 45 if max(map(len, names)) > 3 else 0
        axes.set_xticks(range(size), names, parse_math=False, rotation=rotation, ha="right" if rotation else "center")
        axes.set_yticks(range(size), names, parse_math=False)
        axes.set(xlim=(-0.5, size - 0.5), ylim=(size - 0.5, -0.5), xlabel=columns, ylabel=lines)
        axes.tick_params(length=0)
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        off = [(float(matrix[j, b]), j, b) for j in range(size) for b in range(size) if j != b]
        worst = ", ".join(
            f"{lines} {classes[j]}, {columns} {classes[b]}: {share:.0%}" for share, j, b in sorted(off)[:-4:-1]
        )
        return make_picture(
            figure, "Which labels are mixed up",
            f"Estimated share, in %, of each {columns} (column) for each {lines} (line). Largest: {worst}.",
        )  # fmt: skip


def convergence(history: Sequence[Mapping[str, Any]]) -> Picture | None:
    """The loss on trusted rows held out against steps, a line per noise model; None when there is nothing to draw."""
    runs: dict[str, list[tuple[int, float]]] = {}
    for entry in history:
        runs.setdefault(str(entry["noise"]), []).append((int(entry["step"]), float(entry["held_out_loss"])))
    runs = {name: points for name, points in runs.items() if len(points) > 1}
    if not runs:
        return None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
        axes = figure.subplots()
        for (name, points), colour in zip(runs.items(), itertools.cycle((ACCENT, WARN, MUTED)), strict=False):
            axes.plot(*zip(*points, strict=True), color=colour, linewidth=1.8, label=name)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel="step", ylabel="held-out loss", xlim=(0, None))
        figure.legend(loc="outside upper left", ncols=3, handlelength=1.2)
        words = "; ".join(
            f"{name}: from {points[0][1]:.4g} to {points[-1][1]:.4g} in {points[-1][0]} steps"
            for name, points in runs.items()
        )
        return make_picture(figure, "Convergence", f"Loss on trusted rows held out, by noise model. {words}.")


def _short(label: Any, limit: int = 12) -> str:
    text = str(label)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def row_picture(pixels: np.ndarray, shape: tuple[int, ...], largest: float) -> str:
    """One row as a small PNG, as the text of a data: address."""
    from PIL import Image

    levels = np.clip(255 * pixels.reshape(shape) / (largest or 1.0), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels).save(file, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
