"""What cleaning a table gave, as plain data: the summary on the screen, the JSON document and the report show it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np

ROW_COLUMNS = ("row", "given_label", "predicted_label", "label_quality", "is_label_issue", "weight")
"""The columns of the table of rows, in the file as on the page."""

ENOUGH_ROWS = 50
"""Accuracies measured on fewer rows are rough."""


@dataclass(frozen=True)
class Accuracy:
    """How many of `rows` labels a model got right."""

    model: str
    right: int
    rows: int

    @property
    def share(self) -> float:
        """In [0, 1]."""
        return self.right / self.rows

    @property
    def standard_error(self) -> float:
        """Of the share, as rows are drawn at random; of (right + 1) / (rows + 2), so that it is never zero.

        Examples
        --------
        >>> round(Accuracy("any", 50, 100).standard_error, 3), round(Accuracy("any", 10, 10).standard_error, 3)
        (0.05, 0.08)
        """
        share = (self.right + 1) / (self.rows + 2)
        return math.sqrt(share * (1 - share) / (self.rows + 2))


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Models side by side on rows whose labels are assumed right.

    Parameters
    ----------
    where
        Which rows: "the 40 trusted rows kept aside".
    before
        A plain model trained on all rows as they are.
    others
        The same model trained otherwise, for comparison.
    after
        The same model trained on the rows that are kept.
    cleaned
        The cleaned model itself.
    differing
        On how many rows exactly one of `before` and `after` is right.
    seen
        How many of the rows are also among those that trained.
    """

    where: str
    before: Accuracy
    others: tuple[Accuracy, ...]
    after: Accuracy
    cleaned: Accuracy
    differing: int
    seen: int = 0

    @property
    def models(self) -> tuple[Accuracy, ...]:
        """All of them, the cleaned one last."""
        return (self.before, *self.others, self.after, self.cleaned)

    @property
    def rows(self) -> int:
        """How many rows were measured on."""
        return self.before.rows

    @property
    def gain(self) -> float:
        """Like for like: of the plain model on the rows that are kept over the same one on all rows."""
        return self.after.share - self.before.share

    @property
    def gain_error(self) -> float:
        """sqrt(d / n - gain^2) / sqrt(n), the standard error of the gain, where d of n rows differ.

        Both models see the same rows, so only rows that differ count. As for one share, half a row is added to each of
        the four cases (right or wrong, before and after; Agresti and Min, 2005), so that it is never zero.
        """
        size = self.rows + 2
        gain = (self.after.right - self.before.right) / size
        return math.sqrt(((self.differing + 1) / size - gain**2) / size)

    @property
    def verdict(self) -> str:
        """What to say when cleaning did not help, or not measurably; empty when it did."""
        if self.gain > self.gain_error:
            return ""
        if self.gain < -self.gain_error:
            return "Cleaning did not help: leaving the suspected rows out made the model worse on these rows."
        return "No difference between all rows and the rows that are kept could be measured on these rows."

    @property
    def caution(self) -> str:
        """What to say of a measurement on few rows; empty when there are enough."""
        if self.rows >= ENOUGH_ROWS:
            return ""
        return f"{self.rows} rows give a rough figure: --test FILE with at least {ENOUGH_ROWS} gives a better one."


@dataclass(frozen=True, kw_only=True)
class CleaningResult:
    """Everything that is shown.

    Parameters
    ----------
    table
        Name of the training table.
    rows
        A pandas data frame with one row per training row and the columns `ROW_COLUMNS`.
    trusted
        Which of these rows are trusted themselves, shape (n,).
    trusted_rows
        How many trusted rows there were, wherever they came from.
    trusted_from
        Where they came from, for people.
    classes
        The labels, sorted.
    measurement
        Accuracy before and after, or None when there were no rows to measure on.
    unmeasured
        Why there were none.
    noise
        The model of label noise: "rows", "class-pairs" or "transition".
    selection
        For each model of noise that was tried, simplest first, the mean Brier score of trusted rows held out. The first
        one within one standard error of the smallest is used.
    radius
        Of the l1 ball, or None.
    transition
        Shares of pairs of labels, shape (classes, classes), or None. For noise "transition" lines are true labels and
        columns given ones, for "class-pairs" the other way round; lines sum to 1.
    history
        One record per step: noise, step, held_out_loss, ...
    status
        "finished", "interrupted", or what went wrong.
    seconds
        Time spent in training.
    features
        The columns of the training table without the label, to show rows.
    pixels
        Names of the columns that are pixels and the shape of the pictures, or None.
    command, versions, date
        How, with what and when this was made.
    notes
        What the user should know about the input.
    """

    table: str
    rows: Any
    trusted: np.ndarray
    trusted_rows: int
    trusted_from: str
    classes: Sequence[Any]
    measurement: Measurement | None
    unmeasured: str
    noise: str
    selection: Mapping[str, float]
    radius: float | None
    transition: np.ndarray | None
    history: Sequence[Mapping[str, Any]]
    status: str
    seconds: float
    features: Any
    pixels: tuple[list[str], tuple[int, ...]] | None
    command: str
    versions: Mapping[str, str]
    date: datetime
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def issues(self) -> int:
        """How many labels are suspected to be wrong."""
        return int(self.rows["is_label_issue"].sum())

    def suspects(self, count: int) -> Any:
        """The rows of lowest label quality among those that are not trusted, most suspicious first."""
        return self.rows[~self.trusted].sort_values(["label_quality", "row"]).head(count)

    def corrections(self, count: int) -> list[tuple[Any, Any, int]]:
        """The most frequent pairs of given and predicted label among the suspected rows, with their numbers."""
        suspected = self.rows[self.rows["is_label_issue"]]
        pairs = suspected.groupby(["given_label", "predicted_label"], observed=True).size()
        frequent = pairs.sort_values(ascending=False, kind="stable").head(count)
        return [(given, predicted, int(size)) for (given, predicted), size in frequent.items()]  # type: ignore[misc]

    def to_json(self) -> dict[str, Any]:
        """The summary as numbers, texts, lists and dictionaries."""
        accuracy = None
        if self.measurement is not None:
            accuracy = {
                "where": self.measurement.where,
                "rows": self.measurement.rows,
                **{entry.model: entry.share for entry in self.measurement.models},
                "gain": self.measurement.gain,
                "gain_standard_error": self.measurement.gain_error,
            }
        return {
            "status": self.status,
            "table": self.table,
            "rows": len(self.rows),
            "trusted_rows": self.trusted_rows,
            "classes": [plain(label) for label in self.classes],
            "label_issues": self.issues,
            "accuracy": accuracy,
            "noise": self.noise,
            "selection": {name: finite(score) for name, score in self.selection.items()},
            "radius": None if self.radius is None else finite(self.radius),
            "transition": None if self.transition is None else np.asarray(self.transition, float).tolist(),
            "most_suspicious_rows": [
                {key: plain(value) for key, value in row.items()} for row in self.suspects(10).to_dict("records")
            ],
            "seconds": round(self.seconds, 3),
            "command": self.command,
            "versions": dict(self.versions),
            "date": self.date.isoformat(timespec="seconds"),
            "notes": list(self.notes),
        }


def plain(value: Any) -> Any:
    """NumPy's scalars as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def quality_text(quality: float) -> str:
    """Examples
    --------
    >>> quality_text(0.25), quality_text(3e-9)
    ('0.2500', '<0.0001')
    """
    return f"{quality:.4f}" if quality >= 1e-4 else "<0.0001"


def finite(value: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return float(value) if math.isfinite(value) else None
