"""The result of cleaning a table as plain data, for the summary on the screen, the JSON document and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd

from ..ranks import Ranks
from .corrected_fit import precision_threshold, wrong_among_suspected
from .correction import decide, expected_accuracy
from .estimator import HyperCleaner
from .measurement import ENOUGH_ROWS, Measurement, measure
from .model_file import json_value, versions
from .options import CleanOptions
from .prepare import CleaningData
from .review import review_of
from .tables import gathered

ROW_COLUMNS = ("row", "given_label", "predicted_label", "label_quality", "is_label_issue", "weight")
"""The columns of the table of rows, in the file and on the page."""

SUSPECTS = 100
"""The number of suspicious rows whose cells are on the page, for images and tables that ranks divide."""
ADVICE_TEXTS = {
    "filter": "leave the suspected rows out",
    "relabel": "use the suggested labels",
    "leave alone": "do not filter: train on all rows as they are",
}
"""The texts for `HyperCleaner.advice`."""


@dataclass(frozen=True, kw_only=True)
class CleaningResult:
    """The result of cleaning a table.

    Parameters
    ----------
    table
        Name of the training table.
    rows
        A pandas data frame with one row per training row and the columns `ROW_COLUMNS`.
    names
        The columns that --ignore leaves out, by which users identify rows.
    checked
        Which of these rows are trusted or were verified, shape (n,).
    trusted_rows
        The number of trusted rows, including those of another file.
    trusted_from
        A description of the source of the trusted rows.
    classes
        The labels, sorted.
    measurement
        Accuracy before and after, or None without rows for measuring.
    unmeasured
        Why there were none.
    noise
        The model of label noise: "rows", "class-pairs" or "transition".
    selection
        The mean Brier score on held-out trusted rows of each noise model that was tried, simplest first. The first one
        within one standard error of the smallest is used.
    radius
        The radius of the l1 ball, or None.
    transition
        Frequencies of pairs of labels, shape (classes, classes), or None. For noise "transition" rows are true labels
        and columns given ones, for "class-pairs" the other way round; rows sum to 1.
    history
        One record per step: noise, step, held_out_loss, ...
    status
        "finished", "interrupted", or a description of an error.
    seconds
        Time spent in training.
    features
        The columns of the training table without the label, with the index of `rows`; for images and tables that ranks
        divide, only the `SUSPECTS` most suspicious rows.
    pixels
        Names of the columns that are pixels and the shape of the images, or None.
    command, versions, date
        The command line, the versions of packages and the date.
    columns
        The `ColumnDecision` of each column; empty if columns are numbers.
    to_check
        A pandas data frame of rows whose check would help most, or None.
    wrong_suspected
        A 95 % interval for the number of wrong labels among the suspected ones, and the number of these; None without
        verified rows.
    threshold
        The quality below which labels are suspected, for --precision.
    advice
        What to do with the suspected labels, an `Advice`, or None.
    reliability
        Of the verified rows drawn at random: the stated probability that each given label is right, computed without
        its check, and whether it is right, shape (2, rows); None with too few rows.
    review
        What people need to check rows on the page, see `review_of`; None where labels are not corrected.
    verified_rows
        The number of verified rows of the table.
    notes
        Notes about the input.
    """

    table: str
    rows: Any
    names: Any = None
    checked: np.ndarray
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
    columns: Sequence[Any] = ()
    to_check: Any = None
    wrong_suspected: tuple[int, int, int] | None = None
    threshold: float | None = None
    advice: Any = None
    reliability: np.ndarray | None = None
    review: Any = None
    verified_rows: int = 0
    notes: Sequence[str] = ()

    @property
    def issues(self) -> int:
        """The number of suspected labels."""
        return int(self.rows["is_label_issue"].sum())

    def suspects(self, count: int) -> Any:
        """The rows of lowest label quality that nobody has checked, most suspicious first."""
        return most_suspicious(self.rows, self.checked, count)

    @property
    def suggestion(self) -> str:
        """The name of the column with the suggested labels."""
        return "suggested_label" if "suggested_label" in self.rows else "predicted_label"

    def counts(self) -> list[tuple[Any, int, int]]:
        """For each given label, the numbers of rows that are kept and that are suspected."""
        issue = self.rows["is_label_issue"].groupby(self.rows["given_label"], observed=True)
        sizes, suspected = issue.size(), issue.sum()
        return [(label, int(sizes[label] - suspected[label]), int(suspected[label])) for label in sizes.index]

    def confusion(self) -> tuple[list[Any], np.ndarray]:
        """Labels, and the number of rows for each given label (row) and suggested label (column)."""
        given = self.rows["given_label"].dropna()
        best = self.rows[self.suggestion].where(self.rows["is_label_issue"], self.rows["given_label"])[given.index]
        labels = list(self.classes)
        table = pd.crosstab(given, best).reindex(index=labels, columns=labels, fill_value=0)
        return labels, table.to_numpy()

    def corrections(self, count: int) -> list[tuple[Any, Any, int]]:
        """The most frequent pairs of given and predicted label among the suspected rows, with their numbers."""
        suspected = self.rows[self.rows["is_label_issue"]]
        pairs = suspected.groupby(["given_label", self.suggestion], observed=True).size()
        frequent = pairs.sort_values(ascending=False, kind="stable").head(count)
        return [(given, predicted, int(size)) for (given, predicted), size in frequent.items()]  # type: ignore[misc]

    def to_json(self) -> dict[str, Any]:
        """The summary as numbers, texts, lists and dictionaries."""
        names = ("status", "table", "trusted_rows", "classes", "noise", "selection", "radius", "transition",
                 "threshold", "command", "versions", "notes")  # fmt: skip
        facts: dict[str, Any] = {name: getattr(self, name) for name in names}
        facts |= {
            "rows": len(self.rows),
            "label_issues": self.issues,
            "accuracy": None if self.measurement is None else self.measurement.to_json(),
            "advice": self.advice and {"choice": self.advice.choice, "accuracy": self.advice.accuracy},
            "wrong_among_suspected": self.wrong_suspected,
            "to_check": None if self.to_check is None else self.to_check.to_dict("records"),
            "columns": [dict(vars(decision)) for decision in self.columns],
            "most_suspicious_rows": self.suspects(10).to_dict("records"),
            "seconds": round(self.seconds, 3),
            "date": self.date.isoformat(timespec="seconds"),
        }
        return json_value(facts)


def most_suspicious(rows: Any, checked: np.ndarray, count: int) -> Any:
    """The rows of lowest label quality that nobody has checked, most suspicious first."""
    return rows[~checked].sort_values(["label_quality", "row"]).head(count)


def quality_text(quality: float) -> str:
    """Examples
    --------
    >>> quality_text(0.25), quality_text(3e-9)
    ('0.2500', '<0.0001')
    """
    return f"{quality:.4f}" if quality >= 1e-4 else "<0.0001"


# --- how it comes about -----------------------------------------------------------------------------------------------


def rows_frame(cleaner: Any, data: CleaningData) -> pd.DataFrame:
    """One row for each row that this rank has, in their order. Trusted rows count fully and are never suspected."""
    issues: Any = cleaner.label_issues().assign(weight=cleaner.sample_weight_.astype(float))
    noisy, others = np.flatnonzero(data.is_noisy), np.flatnonzero(~data.is_noisy)
    issues = issues.set_axis(noisy)
    if len(others):
        issues = pd.concat([issues, _other_rows(cleaner, data)[issues.columns].set_axis(others)]).sort_index()
    numbers = issues.index + data.table.first + 1
    if data.empty is not None:
        issues["given_label"] = issues["given_label"].astype(object).mask(data.empty, None)
    names = [*ROW_COLUMNS, *(name for name in issues.columns if name not in ROW_COLUMNS)]
    return issues.assign(row=numbers).set_axis(numbers - 1)[names]


def _other_rows(cleaner: Any, data: CleaningData) -> pd.DataFrame:
    """Trusted rows, whose label is right, and rows without a label, for which the model's is suggested."""
    mask = ~data.is_noisy
    given, empty = data.given[mask], np.zeros(mask.sum(), bool) if data.empty is None else data.empty[mask]
    features = data.encoder.transform(data.table.rows(mask).frame)
    P, predicted = cleaner.predict_proba(features), cleaner.predict(features)
    best = np.where(empty, predicted, given)

    def chance(labels: np.ndarray) -> np.ndarray:
        return P[np.arange(len(P)), np.searchsorted(cleaner.classes_, labels)]

    return pd.DataFrame(
        {
            "given_label": given,
            "predicted_label": predicted,
            "label_quality": np.where(empty, np.nan, 1.0 if data.corrects else chance(given)),
            "is_label_issue": False,
            "weight": np.where(empty, 0.0, 1.0),
            "suggested_label": best,
            "suggested_probability": np.where(empty, chance(best), 1.0),
        }
    )


def checked_rows(data: CleaningData) -> np.ndarray:
    """Which rows of the table are trusted or were verified, shape (n,)."""
    checked = data.marked.copy()
    if data.verified is not None:
        checked[data.is_noisy] |= np.array([each is not None for each in data.verified], bool)
    if data.wrong is not None:
        checked[data.is_noisy] |= data.wrong
    return checked


def rows_to_look_at(cleaner: Any, data: CleaningData, count: int) -> pd.DataFrame:
    """Rows, counted from 1, whose check would help most, and which of them were drawn at random."""
    found = cleaner.next_to_check(count)
    return found.assign(row=np.flatnonzero(data.is_noisy)[found["row"].to_numpy()] + 1).reset_index(drop=True)


def fair_rows(data: CleaningData) -> np.ndarray | None:
    """Which rows were drawn at random to be verified, those of the table first; None if that is unknown."""
    if data.drawn is None:
        return None
    return np.concatenate([data.drawn, np.zeros(len(data.trusted), bool)])


def reliability(cleaner: Any, data: CleaningData) -> np.ndarray | None:
    """Stated probabilities of given labels of verified rows, computed without their check, and which are right."""
    fit = cleaner.correction_
    if fit is None or fit.held_out is None:
        return None
    evidence, fair = fit.correction.evidence, fair_rows(data)
    given, right = evidence.given[evidence.checked], evidence.right[evidence.checked]
    rows = np.flatnonzero((given >= 0) & (True if fair is None else fair[evidence.checked]))
    return None if len(rows) < ENOUGH_ROWS else np.stack([fit.held_out[rows, given[rows]], given[rows] == right[rows]])


def notes_on_probabilities(data: CleaningData) -> tuple[str, ...]:
    """Notes on the assumptions of the stated probabilities."""
    if not data.corrects or data.verified is not None or not data.trusted_rows:
        return ()
    return (
        "There is no row whose given and correct labels are both known, so the probabilities assume that about a fifth "
        "of the labels is wrong. Rely on the order of the rows, not on the probabilities, until you check rows of the "
        "table and pass them with --verified.",
    )


def notes_on_decision(cleaner: Any, data: CleaningData) -> tuple[str, ...]:
    """What the balanced decision gains and costs, measured or else expected, if there is one."""
    fit = cleaner.correction_
    if fit is None or not fit.tau:
        return ()
    P, labels = fit.correction.p, None
    if data.measured is not None:
        P, labels = cleaner.predict_proba(data.measured.features), data.measured.labels
    chosen = [decide(P, fit.prior, power) for power in (fit.tau, 0.0)]
    if (chosen[0] == chosen[1]).all():
        return ()
    if labels is None:
        found = [expected_accuracy(P, each) for each in chosen]
    else:
        predicted = [cleaner.classes_[each] for each in chosen]
        parts = [labels == label for label in np.unique(labels)]  # a predicted class may have no measured row
        found = [
            ((each == labels).mean(), np.mean([(each == labels)[part].mean() for part in parts])) for each in predicted
        ]
    (accuracy, balanced), (plain, plain_balanced) = found
    return (
        f"Rare classes count more in predictions (probability / share^{fit.tau:.1f}): "
        f"{'expected ' if labels is None else ''}accuracy {accuracy:.1%} and balanced accuracy {balanced:.1%}, instead "
        f"of {plain:.1%} and {plain_balanced:.1%} by the most probable class.",
    )


def settings_shown(options: CleanOptions, cleaner: Any) -> dict[str, Any]:
    """How the model was trained, for the report."""
    if cleaner.correction_ is None:
        return {"solver": options.solver, "steps": cleaner.n_iter_, "seed": options.seed}
    fit = cleaner.correction_
    weights = {} if fit.correction.mixture is None else fit.correction.mixture.weights
    mixed = ", ".join(f"{name} {weight:.0%}" for name, weight in weights.items())
    facts = {"models of the labels": mixed, "final model": fit.choice, "power of priors": f"{fit.tau:g}"}
    return {**facts, "seed": options.seed}


def collect(
    options: CleanOptions,
    data: CleaningData,
    cleaner: HyperCleaner,
    ranks: Ranks,
    *,
    seconds: float,
    notes: Sequence[str],
    command: str,
) -> CleaningResult:
    """Collect the result as plain data; rank 0 has the rows of all ranks."""
    status, unmeasured, measurement = cleaner.status_, data.where, None
    rows, threshold, fit = rows_frame(cleaner, data), None, cleaner.correction_
    if options.precision is not None and fit is not None:
        threshold = precision_threshold(fit, options.precision)
        rows["is_label_issue"] &= rows["label_quality"] < threshold
    try:
        measurement = measure(cleaner, data, ranks, rows["is_label_issue"].to_numpy(bool)[data.is_noisy])
    except KeyboardInterrupt:
        if ranks.size > 1:  # the others wait
            raise
        unmeasured = status = "interrupted"
    frame, named = data.table.frame.set_index(rows.index), list(options.ignore or ())
    checked = checked_rows(data)
    few = ranks.size > 1 or data.pixels is not None
    worst = most_suspicious(rows, checked, SUSPECTS).index if few else rows.index
    return CleaningResult(
        table=options.table.name,
        rows=gathered(rows, ranks),
        names=gathered(frame[[name for name in named if name not in ROW_COLUMNS]], ranks),
        checked=gathered(pd.DataFrame({"checked": checked}), ranks)["checked"].to_numpy(),
        trusted_rows=data.trusted_rows,
        trusted_from=options.trusted_from,
        classes=list(cleaner.classes_),
        measurement=measurement,
        unmeasured=unmeasured,
        **{name: getattr(cleaner, f"{name}_") for name in ("noise", "selection", "radius", "transition", "history")},
        status=status,
        seconds=seconds,
        features=gathered(frame.loc[worst, list(dict.fromkeys([*named, *data.columns]))], ranks),
        pixels=data.pixels,
        command=command,
        versions={**versions(), "pandas": pd.__version__},
        date=datetime.now().astimezone(),
        settings=settings_shown(options, cleaner),
        columns=data.encoder.decisions_ if data.pixels is None else (),
        wrong_suspected=None if fit is None else wrong_among_suspected(fit, fair_rows(data), threshold),
        threshold=threshold,
        advice=cleaner.advice() if rows["is_label_issue"].to_numpy().any() else None,
        reliability=reliability(cleaner, data),
        review=review_of(cleaner, data, rows, named) if options.report is not None and data.corrects else None,
        to_check=None if options.next is None else rows_to_look_at(cleaner, data, options.next),
        verified_rows=0 if data.verified is None else sum(each is not None for each in data.verified),
        notes=(*data.notes, *notes, *notes_on_probabilities(data), *notes_on_decision(cleaner, data)),
    )
