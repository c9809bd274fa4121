"""Whether cleaning helps: plain models trained on different rows, measured on separate rows with right labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from ..ranks import Ranks
from .design import replicated, spaced_rows
from .inputs import joined
from .out_of_fold import boosting, fitted, ridge_logistic
from .prepare import SAMPLE, CleaningData

ENOUGH_ROWS = 50
"""Accuracies measured on fewer rows are marked as rough."""


@dataclass(frozen=True)
class Accuracy:
    """The number of labels that a model predicted correctly, out of `rows`."""

    model: str
    right: int
    rows: int

    @property
    def share(self) -> float:
        """In [0, 1]."""
        return self.right / self.rows

    @property
    def standard_error(self) -> float:
        """The standard error of the share, computed from (right + 1) / (rows + 2) so that it is never zero.

        Examples
        --------
        >>> round(Accuracy("any", 50, 100).standard_error, 3), round(Accuracy("any", 10, 10).standard_error, 3)
        (0.05, 0.08)
        """
        share = (self.right + 1) / (self.rows + 2)
        return math.sqrt(share * (1 - share) / (self.rows + 2))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One plain model, trained on all rows as they are, on the rows that are kept, and with suggested labels.

    Parameters
    ----------
    plain
        The name of the model.
    before, after, relabelled
        Its accuracies.
    differing
        By way ("filter", "relabel"): the number of rows on which exactly one of `before` and this way is right.
    """

    plain: str
    before: Accuracy
    after: Accuracy
    relabelled: Accuracy
    differing: Mapping[str, int]

    @property
    def changes(self) -> dict[str, tuple[float, float]]:
        """The change of accuracy by leaving rows out ("filter") and by suggested labels ("relabel"), with errors."""
        others = {"filter": self.after, "relabel": self.relabelled}
        return {
            name: (other.share - self.before.share, paired_error(self.before, other, self.differing[name]))
            for name, other in others.items()
        }

    @property
    def verdict(self) -> str:
        """A sentence if leaving rows out did not help, or not measurably; otherwise empty."""
        gain, error = self.changes["filter"]
        if gain > error:
            return ""
        if gain < -error:
            return "Cleaning did not help: leaving the suspected rows out made the model worse on these rows."
        return "No difference between all rows and the rows that are kept could be measured on these rows."


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Models compared on rows whose labels are assumed to be right.

    Parameters
    ----------
    where
        A description of the rows, such as "the 40 trusted rows kept aside".
    comparisons
        The comparisons of one or two plain models; the summary shows the first.
    trusted_only
        A linear model of the trusted rows alone, or None.
    cleaned
        The cleaned model itself.
    seen
        How many of the rows are also among the training rows.
    """

    where: str
    comparisons: tuple[Comparison, ...]
    trusted_only: Accuracy | None
    cleaned: Accuracy
    seen: int = 0

    @property
    def models(self) -> tuple[Accuracy, ...]:
        """The models of the summary, the cleaned one last."""
        first = self.comparisons[0]
        found = (first.before, self.trusted_only, first.after, first.relabelled, self.cleaned)
        return tuple(entry for entry in found if entry is not None)

    @property
    def rows(self) -> int:
        """The number of rows used for measuring."""
        return self.cleaned.rows

    @property
    def caution(self) -> str:
        """A caution about a measurement on few rows; empty if there are enough."""
        if self.rows >= ENOUGH_ROWS:
            return ""
        return f"{self.rows} rows give a rough figure: --test FILE with at least {ENOUGH_ROWS} gives a better one."

    def to_json(self) -> dict[str, Any]:
        """Accuracies by the names of the models, and the gain of the first plain model with its standard error."""
        gain, error = self.comparisons[0].changes["filter"]
        shares = {entry.model: entry.share for entry in self.models}
        models = {
            each.plain: {entry.model: entry.share for entry in (each.before, each.after, each.relabelled)}
            for each in self.comparisons
        }
        facts = {"where": self.where, "rows": self.rows}
        return facts | shares | {"gain": gain, "gain_standard_error": error, "models": models}


def paired_error(before: Accuracy, after: Accuracy, differing: int) -> float:
    """sqrt(d / n - gain^2) / sqrt(n), the standard error of the gain if d of n rows differ.

    Both models predict the same rows, so that only rows with different results count. Half a row is added to each of
    the four cases (right or wrong, before and after; Agresti and Min, 2005), so that the error is never zero.
    """
    size = before.rows + 2
    gain = (after.right - before.right) / size
    return math.sqrt(((differing + 1) / size - gain**2) / size)


def measure(cleaner: Any, data: CleaningData, ranks: Ranks, issue: np.ndarray) -> Measurement | None:
    """Measure plain models and the cleaned one on held-out rows; `issue` marks the suspected noisy rows.

    All ranks train the same models, on at most `SAMPLE` of the rows that are not trusted.
    """
    if data.measured is None:
        return None
    classes, trusted, issues = cleaner.classes_, data.trusted, cleaner.label_issues()
    better = issues["suggested_label" if "suggested_label" in issues else "predicted_label"].to_numpy()
    counts = ranks.gather(len(data.noisy))
    mine = spaced_rows(sum(counts[: ranks.rank]), len(data.noisy), sum(counts), SAMPLE)
    features = replicated(data.noisy.features[mine], ranks)
    given, suggested = (
        classes[replicated(np.searchsorted(classes, labels[mine]), ranks)]
        for labels in (data.noisy.labels, np.where(issue, better, data.noisy.labels))
    )
    kept = replicated(1 - issue[mine].astype(int), ranks) > 0
    known = (trusted.features,) if len(trusted) else ()
    chosen = {
        "all rows as they are": (joined(features, *known), np.append(given, trusted.labels)),
        "rows that are kept": (joined(features[kept], *known), np.append(given[kept], trusted.labels)),
        "suggested labels": (joined(features, *known), np.append(suggested, trusted.labels)),
    }
    models = _plain_models(data)
    alone = None
    if len(np.unique(trusted.labels)) > 1:
        alone = _right(models[-1][1], (trusted.features, trusted.labels), data)
    comparisons = []
    for name, model in models:
        right = {rows: _right(model, chosen[rows], data) for rows in chosen}
        before, after, relabelled = right
        differing = {"filter": int((right[before] != right[after]).sum()),
                     "relabel": int((right[before] != right[relabelled]).sum())}  # fmt: skip
        shares = (_accuracy(rows, hits) for rows, hits in right.items())
        parts = dict(zip(("before", "after", "relabelled"), shares, strict=True))
        comparisons.append(Comparison(plain=name, differing=differing, **parts))
    return Measurement(
        where=data.where, comparisons=tuple(comparisons), seen=data.seen,
        trusted_only=None if alone is None else _accuracy("trusted rows only", alone),
        cleaned=_accuracy("cleaned", cleaner.predict(data.measured.features) == data.measured.labels),
    )  # fmt: skip


def _plain_models(data: CleaningData) -> list[tuple[str, Any]]:
    """Typical models that are trained on a cleaned table, the linear one last."""
    if not data.corrects:
        return [("logistic regression", LogisticRegression(C=0.1))]
    if not isinstance(data.noisy.features, np.ndarray):
        return [("logistic regression of texts", ridge_logistic(3.0, sparse=True))]
    return [("boosted trees", boosting()), ("a linear model", ridge_logistic(0.1))]


def _right(model: Any, rows: tuple[Any, np.ndarray], data: CleaningData) -> np.ndarray:
    """Which of the held-out rows the model predicts correctly after training on these rows."""
    X, y = rows
    measured: Any = data.measured
    if len(np.unique(y)) < 2:
        return measured.labels == y[0]
    return fitted(model, X, y).predict(measured.features) == measured.labels


def _accuracy(model: str, right: np.ndarray) -> Accuracy:
    return Accuracy(model, int(right.sum()), len(right))
