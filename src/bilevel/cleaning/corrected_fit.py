"""`HyperCleaner(noise="correction")`: the fit by correction, without bilevel training.

rows -> `Evidence` -> `correct` -> `compare` with simple baselines -> the model for new rows and the decision
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .._checks import check_choice
from ..errors import InvalidInputError, LabelWarning
from .candidates import chosen_model, compare
from .correction import Correction, Evidence, correct, decide, suspected
from .inputs import joined, truth_values
from .out_of_fold import of_labels, row_numbers

if TYPE_CHECKING:
    from .columns import ColumnEncoder

DECISIONS = ("argmax", "balanced")


@dataclass(frozen=True)
class FittedDecision:
    """The model and decision rule for new rows: the part of a fit by correction that a file stores.

    Parameters
    ----------
    model
        A model with predict_proba; None if only probabilities were given.
    choice
        The name of the candidate.
    tau, prior
        The power of the priors in the decision argmax_c p_c / prior_c^tau, and the priors, shape (classes,).
    """

    model: Any
    choice: str
    tau: float
    prior: np.ndarray

    def predict(self, P: np.ndarray) -> np.ndarray:
        """Numbers of classes, shape (n,)."""
        return decide(P, self.prior, self.tau)


@dataclass(frozen=True)
class CorrectedFit(FittedDecision):
    """The result of a fit by correction.

    Parameters
    ----------
    correction
        The corrected labels of the rows: those of X first, then those of X_trusted.
    selection
        The mean Brier score of each candidate on held-out checked rows; empty with too few rows.
    held_out
        Q(c|x,g) of the checked rows, each computed without its right label, shape (m, classes); None with too few rows.
    """

    correction: Correction
    selection: Mapping[str, float]
    held_out: np.ndarray | None

    def issues(self, count: int) -> dict[str, np.ndarray]:
        """The columns of `HyperCleaner.label_issues` for the first rows, labels as numbers."""
        found, Q = self.correction, self.correction.posterior[:count]
        given, right, suggested = found.evidence.given[:count], found.evidence.right[:count], Q.argmax(1)
        labels = np.where(given >= 0, given, right)
        return {
            "is_label_issue": found.is_issue[:count],
            "label_quality": of_labels(Q, labels),
            "given_label": labels,
            "predicted_label": self.predict(found.p[:count]),
            "suggested_label": suggested,
            "suggested_probability": of_labels(Q, suggested),
        }


def fit_corrected(
    evidence: Evidence,
    *,
    estimator: Any,
    pred_probs: np.ndarray | None,
    decision: str,
    seed: int,
    progress: Callable[[str], None] = lambda stage: None,
) -> CorrectedFit:
    """Learn which labels are right, and choose a model for new rows and its decision rule."""
    found = correct(evidence, estimator=estimator, pred_probs=pred_probs, seed=seed, progress=progress)
    progress("comparison")
    comparison = compare(found, seed, balanced=decision == "balanced")
    model = None
    if found.mixture is not None:
        progress("model")
        model = chosen_model(found, comparison, seed)
    tau, scores = comparison.tau, comparison.scores
    return CorrectedFit(model, comparison.choice, tau, found.prior, found, scores, comparison.posterior)


# --- what the user gives ----------------------------------------------------------------------------------------------


def known_labels(
    X: Any, y: np.ndarray, classes: np.ndarray, *, trusted: Any = None, X_trusted: Any = None, y_trusted: Any = None,
    verified: Any = None, wrong: Any = None, groups: Any = None,
) -> Evidence:  # fmt: skip
    """The known labels of the rows of X, then of those of X_trusted; see `HyperCleaner.fit`."""
    count, beside = len(y), 0 if X_trusted is None else X_trusted.shape[0]
    for name, column in (("wrong", wrong), ("groups", groups)):
        if column is not None and np.shape(column) != (count,):
            raise InvalidInputError(
                f"{name} must have one value per row of X, shape ({count},), got shape {np.shape(column)}"
            )
    given = np.searchsorted(classes, y)
    right = np.full(count, -1) if verified is None else verified_labels(verified, count, classes)
    if trusted is not None:
        # Rows that are known to be right were often corrected: they say nothing of how many labels are wrong.
        mask = truth_values(trusted, count)
        right[mask], given = given[mask], np.where(mask, -1, given)
    if beside:
        right = np.concatenate([right, verified_labels(y_trusted, beside, classes)])
        X = joined(X, X_trusted)
        if groups is not None:
            groups = np.concatenate([np.asarray(groups).astype(str), [f"trusted row {i}" for i in range(beside)]])
    wrong = np.zeros(count, bool) if wrong is None else np.asarray(wrong, bool)
    return Evidence.of(
        X, np.pad(given, (0, beside), constant_values=-1), right, len(classes), wrong=np.pad(wrong, (0, beside)),
        groups=groups,
    )  # fmt: skip


def verified_labels(verified: Any, count: int, classes: np.ndarray) -> np.ndarray:
    """The numbers of the verified labels, -1 where there is none, shape (count,).

    Examples
    --------
    >>> verified_labels([None, "a", float("nan"), "b"], 4, np.array(["a", "b"]))
    array([-1,  0, -1,  1])
    """
    labels = np.asarray(verified, dtype=object)
    if labels.shape != (count,):
        raise InvalidInputError(
            f"verified must have one label per row, None for unchecked rows: shape ({count},), got {labels.shape}"
        )
    numbers = {label: number for number, label in enumerate(classes.tolist())}
    known = ~_missing(labels)
    unseen = sorted({str(label) for label in labels[known] if label not in numbers})
    if unseen:
        raise InvalidInputError(f"verified has labels that no row of X has: {unseen[:5]}; are they spelled alike?")
    return np.array([numbers[label] if here else -1 for label, here in zip(labels, known, strict=True)], dtype=np.int64)


def _missing(labels: np.ndarray) -> np.ndarray:
    """None, NaN, pandas' NA and empty texts."""
    return np.array([str(label) in ("None", "nan", "<NA>", "NaT", "") for label in labels], dtype=bool)


def check_pred_probs(pred_probs: Any, rows: int, classes: int) -> np.ndarray | None:
    """Probabilities of shape (rows, classes)."""
    if pred_probs is None:
        return None
    P = np.asarray(pred_probs, dtype=np.float64)
    if P.shape != (rows, classes):
        raise InvalidInputError(
            f"pred_probs must have a probability per row and class, shape ({rows}, {classes}), got shape {P.shape}"
        )
    if not np.isfinite(P).all() or P.min() < 0 or np.abs(P.sum(1) - 1).max() > 1e-3:
        raise InvalidInputError("pred_probs must be probabilities: no number below 0, and each row sums to 1")
    return np.maximum(P, 1e-12)


def encode_frames(
    X: Any, others: Sequence[Any], labels: np.ndarray, kinds: Mapping[str, str] | None = None
) -> tuple[ColumnEncoder, Any]:
    """Fit a `ColumnEncoder` to the rows of all frames; their labels are in the same order."""
    import pandas as pd

    from .columns import KINDS, ColumnEncoder

    for name, kind in (kinds or {}).items():
        check_choice(f"kinds[{name!r}]", kind, KINDS)
    frames = [X, *(other for other in others if other is not None)]
    return ColumnEncoder(kinds).fit(pd.concat(frames, ignore_index=True), labels), frames


# --- what to be warned of ---------------------------------------------------------------------------------------------


def warn_of_lost_classes(fit: CorrectedFit, classes: np.ndarray) -> None:
    """Warn if all labels of a class are suspected, or if no row is predicted to be of it."""
    found = fit.correction
    given, issue = found.evidence.given, found.is_issue
    lost = [classes[c] for c in range(len(classes)) if (given == c).any() and issue[given == c].all()]
    predicted = fit.predict(found.p)
    never = [classes[c] for c in range(len(classes)) if (given == c).any() and not (predicted == c).any()]
    if lost:
        warnings.warn(f"every label {_some(lost)} is suspected to be wrong: no row of it is kept", LabelWarning, 3)
    if never:
        remedy = "" if fit.tau else '; decision="balanced" lets rare classes count more'
        warnings.warn(f"no row is predicted to be {_some(never)}{remedy}", LabelWarning, stacklevel=3)


def _some(labels: Sequence[Any]) -> str:
    return ", ".join(repr(getattr(label, "item", lambda label=label: label)()) for label in labels[:5])


def contradictions(X: Any, given: np.ndarray) -> list[np.ndarray]:
    """Numbers of the rows with equal features and different given labels, one array for each set of equal rows.

    Examples
    --------
    >>> contradictions(np.array([[1.0], [2.0], [1.0], [2.0]]), np.array([0, 1, 1, 1]))
    [array([0, 2])]
    """
    if X is None:
        return []
    same = row_numbers(X[: len(given)])
    order = np.argsort(same, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(same[order])) + 1)
    return [rows for rows in groups if len(np.unique(given[rows])) > 1]


def precision_threshold(fit: CorrectedFit, precision: float) -> float:
    """The largest t such that the fraction `precision` of the unchecked labels with quality q < t is wrong.

    The fraction is estimated from the probabilities: the mean of 1 - q over all rows with q < t is at least
    `precision`.
    """
    q = np.sort(fit.correction.label_quality[fit.correction.evidence.unchecked])
    share = np.cumsum(1 - q) / np.arange(1, len(q) + 1)  # it falls
    count = int((share >= precision).sum())
    return float(q[count]) if count < len(q) else 1.0


def wrong_among_suspected(
    fit: CorrectedFit, fair: np.ndarray | None = None, threshold: float | None = None
) -> tuple[int, int, int] | None:
    """A 95 % interval for the number of wrong labels among the N suspected unchecked labels, and N.

    If k of n verified rows that are suspected without the use of their right label are wrong, the number among N has
    the beta-binomial distribution of the posterior Beta(k + 1/2, n - k + 1/2) of Jeffreys' prior.

    Parameters
    ----------
    fair
        Which rows were drawn at random to be verified, shape (all rows,); default every verified row. Rows that were
        verified because they are suspicious are not representative.
    threshold
        Suspect only labels with a quality below this.

    Returns
    -------
    Lowest and highest number, and N; None if no verified row is suspected.
    """
    from scipy.stats import betabinom

    found, evidence = fit.correction, fit.correction.evidence
    limit = 1.0 if threshold is None else threshold
    total = int((found.is_issue & (found.label_quality < limit))[evidence.unchecked].sum())
    if fit.held_out is None or total == 0:
        return None
    given, right = evidence.given[evidence.checked], evidence.right[evidence.checked]
    flagged = suspected(fit.held_out, given, found.prior)
    flagged &= of_labels(fit.held_out, given) < limit
    if fair is not None:
        flagged &= fair[evidence.checked]
    n, k = int(flagged.sum()), int((flagged & (given != right)).sum())
    if n == 0:
        return None
    low, high = betabinom(total, k + 0.5, n - k + 0.5).interval(0.95)
    return int(low), int(high), total


def next_rows(found: Correction, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of rows whose check would help most, and which of them are drawn at random (a third).

    The others are the rows whose right label is least certain. They are not representative: only the random rows may be
    used to estimate how many labels are wrong.
    """
    open_rows = found.evidence.unchecked
    count = min(count, len(open_rows))
    drawn = np.random.default_rng(seed).permutation(open_rows)[: round(count / 3)]
    rest = np.setdiff1d(open_rows, drawn)
    unsure = rest[np.argsort(found.posterior[rest].max(1), kind="stable")][: count - len(drawn)]
    return np.concatenate([unsure, drawn]), np.arange(count) >= len(unsure)
