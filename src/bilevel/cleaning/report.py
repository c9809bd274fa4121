"""The report: a self-contained HTML page with the results of `bilevel clean` and how they were computed.

Its texts are in report.html.j2; this module makes its pictures and the rows of its table.
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

from .._html import ACCENT, INK, LINE, MUTED, STYLE, WARN, Picture, json_block, make_picture, render_page
from ..errors import MissingExtraError
from .result import ADVICE_TEXTS, CleaningResult
from .tables import cell_text

try:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
    from scipy.stats import beta
except ImportError:
    raise MissingExtraError("The report", "apps") from None

COLUMNS, CORRECTIONS, GALLERY = 8, 10, 100
"""How many columns of the list, pairs of labels and pictures the page shows."""
NO_REVIEW: dict[str, Any] = {
    **dict.fromkeys(("queue", "decisions", "details"), ()), "reasons": {}, "typical": {}, "cells": {},
    "prose": False,
}  # fmt: skip
MOST_ROWS = 20_000
"""The maximal number of rows on the page, those of lowest quality."""
WEIGHTS = {
    "correction": "probability that the given label is right",
    "rows": "weight of a row in training",
    "class-pairs": "fraction of the given label that is correct",
    "transition": "probability that the given label is correct",
}
"""The meaning of the weight of a row, for the axis of its histogram."""
WIDTH = 5.0  # inches of 72 pixels: texts keep their size on a telephone
MOST_PAIRED = 20
"""With more labels than this, no table of pairs of labels is shown."""


def render_report(result: CleaningResult) -> str:
    """The page as text."""
    labels, confusion = result.confusion()
    few, shares = len(labels) <= MOST_PAIRED, result.transition
    return render_page(
        Path(__file__).parent,
        "report.html.j2",
        script=(Path(__file__).parent / "report.js").read_text(encoding="utf-8"),
        result=result,
        pictures=_pictures(result),
        gallery=_gallery(result),
        corrections=result.corrections(CORRECTIONS),
        labels=[str(label) for label in labels],
        confusion=confusion.tolist() if few else None,
        transition=(100 * shares).round().astype(int).tolist() if few and shares is not None else None,
        headline=headline(result),
        shown=_shown_columns(result),
        data=json_block(_data(result)),
    )


def headline(result: CleaningResult) -> dict[str, str]:
    """The measured gain, or that it was not measured: a few words, and a sentence."""
    found = result.measurement
    if found is None:
        return {
            "kind": "none",
            "title": "Not measured",
            "text": f"Whether cleaning helps was not measured: {result.unmeasured}.",
        }
    choice = "filter" if result.advice is None else result.advice.choice
    advice = "" if result.advice is None else f"Advice, by all checked rows: {ADVICE_TEXTS[choice]}."
    if choice == "leave alone":
        return {"kind": "none", "title": "Do not filter", "text": f"{advice} Use the list to correct labels."}
    first = found.comparisons[0]
    gain, error = first.changes[choice]
    after = {"filter": first.after, "relabel": first.relabelled}[choice]
    what = {"filter": "without the suspected rows", "relabel": "with the suggested labels"}[choice]
    text = (
        f"Accuracy of {first.plain} on {found.where}: {100 * first.before.share:.1f} % trained on all rows, "
        f"{100 * after.share:.1f} % {what} ({100 * gain:+.1f} ± {100 * error:.1f} points). {advice} {found.caution}"
    )
    if gain > error:
        return {"kind": "good", "title": f"{100 * gain:+.1f} points", "text": text}
    if gain < -error:
        return {"kind": "bad", "title": f"{100 * gain:+.1f} points", "text": f"{text} On these rows it did not help."}
    return {"kind": "none", "title": "No difference measured", "text": text}


def _pictures(result: CleaningResult) -> dict[str, Picture | None]:
    rows = result.rows[result.rows["label_quality"].notna()]
    suspected = rows["is_label_issue"].to_numpy(bool)
    weights, quality = (rows[name].to_numpy(float) for name in ("weight", "label_quality"))
    same = result.noise == "correction"  # then the weight is the quality
    return {
        "weights": None if same else histogram(weights, suspected, "Weights of the rows", WEIGHTS[result.noise]),
        "quality": histogram(quality, suspected, "Quality of the labels", "probability of the given label"),
        "reliability": None if result.reliability is None else reliability_curve(*result.reliability),
        "convergence": convergence(result.history),
    }


# --- rows -------------------------------------------------------------------------------------------------------------


def _gallery(result: CleaningResult) -> list[dict[str, Any]]:
    """The most suspicious rows as pictures."""
    if result.pixels is None:
        return []
    pixels, shape = result.pixels
    suspects = result.suspects(GALLERY)
    largest = float(result.features[pixels].to_numpy(float).max())
    return [
        {"row": row["row"], "given": row["given_label"], "seen": row[result.suggestion],
         "picture": row_picture(result.features.loc[place, pixels].to_numpy(float), shape, largest)}
        for place, row in zip(suspects.index, suspects.to_dict("records"), strict=True)
    ]  # fmt: skip


def _shown_columns(result: CleaningResult) -> list[str]:
    """Columns of the list of rows: names first, then those with the strongest evidence; none for images."""
    if result.pixels is not None:
        return []
    there = [str(name) for name in result.features.columns]
    named = [] if result.names is None else list(result.names.columns)
    ordered = there if result.review is None else result.review["columns"]
    return [name for name in dict.fromkeys([*named, *ordered]) if name in there][:COLUMNS]


def _data(result: CleaningResult) -> dict[str, Any]:
    """The data for the script of the page: rows, rows to check, and known facts about them."""
    number = {label: place for place, label in enumerate(result.classes)}
    held, review = result.rows.sort_values(["label_quality", "row"]), result.review or NO_REVIEW
    if len(held) > MOST_ROWS:
        wanted = [row for row, *_ in [*review["queue"], *review["decisions"]]]
        held = held[held.index.isin(held.index[:MOST_ROWS]) | held["row"].isin(wanted)]
    shown = _shown_columns(result)
    there = held.index.intersection(result.features.index)
    cells = {name: dict(zip(there, map(cell_text, result.features.loc[there, name]), strict=True)) for name in shown}
    probability = held["suggested_probability"] if "suggested_probability" in held else held["label_quality"]
    parts = (held.index, held["row"], held["given_label"], held[result.suggestion], held["label_quality"], probability,
             held["is_label_issue"])  # fmt: skip
    rows = [
        [int(row), number.get(given, -1), number.get(best, -1), _rounded(quality), _rounded(chance), int(issue),
         [cells[name].get(place, "") for name in shown]]
        for place, row, given, best, quality, chance, issue in zip(*parts, strict=True)
    ]  # fmt: skip
    made = result.date.strftime("%Y%m%d%H%M%S")
    return {
        **review, "id": f"{result.table}-{made}", "file": f"decisions-{Path(result.table).stem}.csv",
        "total": len(result.rows), "classes": [str(label) for label in result.classes], "rows": rows,
    }  # fmt: skip


def _rounded(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else round(float(value), 5)


# --- pictures ---------------------------------------------------------------------------------------------------------


def histogram(values: np.ndarray, suspected: np.ndarray, title: str, label: str) -> Picture:
    """A histogram of values of the rows, with suspected labels in another colour; `label` names the axis."""
    top = max(1.0, float(values.max(initial=0.0)))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
        axes = figure.subplots()
        axes.hist(
            [values[~suspected], values[suspected]], bins=np.linspace(0, top, 26).tolist(), stacked=True,
            color=[ACCENT, WARN], label=["label kept", "label suspected"], rwidth=0.92,
        )  # fmt: skip
        axes.grid(axis="x", visible=False)
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set(xlabel=label, ylabel="rows", xlim=(0, top))
        figure.legend(loc="outside upper left", ncols=2, handlelength=1.0)
        low = int((values < top / 10).sum())
        description = (
            f"Histogram of {len(values)} rows by {label}, from 0 to {top:.3g}: median {np.median(values):.2g}, "
            f"{low} rows below {top / 10:.2g}; {int(suspected.sum())} rows have a suspected label."
        )
        return make_picture(figure, title, description)


def reliability_curve(stated: np.ndarray, right: np.ndarray, groups: int = 5) -> Picture:
    """A reliability diagram: the fraction of right labels in groups of rows with similar stated probabilities.

    Parameters
    ----------
    stated, right
        The stated probability that each label is right, and whether it is, shape (rows,).
    """
    parts = np.array_split(np.argsort(stated, kind="stable"), groups)
    counts = np.array([len(part) for part in parts])
    predicted, observed = (np.array([values[part].mean() for part in parts]) for values in (stated, right))
    ends = beta(observed * counts + 0.5, (1 - observed) * counts + 0.5).interval(0.95)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
        axes = figure.subplots()
        axes.plot([0, 100], [0, 100], color=LINE, linewidth=1.2)
        axes.vlines(100 * predicted, *(100 * end for end in ends), color=INK)
        axes.plot(100 * predicted, 100 * observed, color=ACCENT, marker="o", linestyle="none")
        axes.set(xlim=(0, 100), ylim=(0, 100), xlabel="stated probability of being right, %", ylabel="labels right, %")
        pairs = "; ".join(f"stated {a:.0%}, right {b:.0%}" for a, b in zip(predicted, observed, strict=True))
        return make_picture(figure, "Are the probabilities right?", f"{len(stated)} verified rows in groups: {pairs}.")


def convergence(history: Sequence[Mapping[str, Any]]) -> Picture | None:
    """The loss on held-out trusted rows against steps, a line per noise model; None without a history."""
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
        return make_picture(figure, "Convergence", f"Loss on held-out trusted rows, by noise model. {words}.")


def row_picture(pixels: np.ndarray, shape: tuple[int, ...], largest: float) -> str:
    """One row as a small PNG, as the text of a data: address."""
    from PIL import Image

    levels = np.clip(255 * pixels.reshape(shape) / (largest or 1.0), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels).save(file, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
