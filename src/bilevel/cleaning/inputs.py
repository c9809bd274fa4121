"""The rows passed to `HyperCleaner.fit`: checks, whose errors name the cell, and conversions for training."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from .._checks import check_number
from .._fingerprint import fingerprint, row_fingerprint
from ..errors import InvalidInputError, TrustWarning
from ..ranks import Ranks
from .design import Design, PickedDesign, array_blocks, dtype_for, replicated
from .learning import Rows

PIXEL = re.compile(r"(?:pixel|px)[ _-]?(\d+)", re.IGNORECASE)
"""Names of columns that are pixels."""


@dataclass(frozen=True)
class FitRows:
    """The rows of a fit, checked.

    Parameters
    ----------
    X, y, mask
        The rows of this rank, shape (n, d), their labels, and which of them are trusted.
    X_trusted, y_trusted
        Further trusted rows, the same on every rank, or None.
    ranks
        The processes that hold the other rows of X.
    """

    X: Any
    y: np.ndarray
    mask: np.ndarray
    X_trusted: Any
    y_trusted: np.ndarray | None
    ranks: Ranks

    @cached_property
    def marks_any(self) -> bool:
        """Whether some rank trusts a row of X."""
        return any(self.ranks.gather(bool(self.mask.any())))

    @cached_property
    def classes(self) -> np.ndarray:
        """The labels of the rows of X on all ranks, which must include all labels of the trusted rows."""
        if self.X_trusted is None and not self.marks_any:
            raise InvalidInputError(
                "trusted marks no row: at least one label must be known to be right. In a search or a cross-validation "
                "every fold needs trusted rows: shuffle, for example cv=StratifiedKFold(shuffle=True)"
            )
        classes = np.unique(self.y)
        if self.ranks.size > 1:
            classes = np.unique(np.array([label for part in self.ranks.gather(classes.tolist()) for label in part]))
        refuse_one_class(classes)
        known = set(() if self.y_trusted is None else self.y_trusted.tolist())
        if unseen := sorted(known - set(classes.tolist()), key=str):
            raise InvalidInputError(
                f"trusted rows have labels that no row of X has: {unseen[:5]}; are they spelled alike?"
            )
        return classes

    @cached_property
    def labels(self) -> np.ndarray:
        """y, numbered from 0."""
        return np.searchsorted(self.classes, self.y)

    @property
    def trusted_labels(self) -> np.ndarray | None:
        """y_trusted, numbered from 0."""
        return None if self.y_trusted is None else np.searchsorted(self.classes, self.y_trusted)

    def noisy_and_trusted(self) -> tuple[Rows, Rows]:
        """The noisy rows of this rank and the trusted ones of all, with labels numbered from 0."""
        dtype = dtype_for(self.X)
        noisy, features, known = Rows(Design.of(self.X, dtype=dtype), torch.from_numpy(self.labels)), [], []
        if self.marks_any:
            left = torch.from_numpy(np.flatnonzero(~self.mask))
            noisy = Rows(PickedDesign(noisy.design, left), noisy.labels[left])
            features, known = ([replicated(part[self.mask], self.ranks)] for part in (self.X, self.labels))
        if self.X_trusted is not None:
            features.append(self.X_trusted)
            known.append(self.trusted_labels)
        return noisy, Rows(Design.of(joined(*features), dtype=dtype), torch.from_numpy(np.concatenate(known)))

    def identity(self) -> dict[str, str]:
        """Fingerprints of the rows, the same for any division among ranks; a resumed fit must have the same ones."""
        first = sum(self.ranks.gather(len(self.y))[: self.ranks.rank])
        marks = [_mark_of_rows(self.X, first), *(row_fingerprint([part], first) for part in (self.labels, self.mask))]
        rows, given, chosen = self.ranks.sum(torch.tensor(marks)).tolist()
        return {
            "X": fingerprint(rows, self.X.shape[1], str(self.X.dtype)),
            "y": fingerprint(given, self.classes.tolist()),
            "the choice of trusted rows": fingerprint(chosen, self.X_trusted, self.trusted_labels),
        }


def classes_of(y: np.ndarray) -> np.ndarray:
    """The labels, sorted; at least two."""
    classes = np.unique(y)
    refuse_one_class(classes)
    return classes


def refuse_one_class(classes: np.ndarray) -> None:
    """Raise if there is only one class."""
    if len(classes) < 2:
        raise InvalidInputError(
            f"Classifier can't train when only one class is present: every label is {classes.tolist()[0]!r}"
        )


def _mark_of_rows(X: Any, first: int) -> int:
    """A number of these rows; the sum over ranks is the same for every division."""
    if hasattr(X, "indptr"):  # products with sparse rows are summed row by row: the same bits, however X is divided
        probes = np.random.default_rng(0).normal(size=(X.shape[1], 2))
        return row_fingerprint((X @ probes).T, first)
    total = sum(row_fingerprint(np.asarray(block).T, first + start) for start, block in array_blocks(X))
    return (total + 2**63) % 2**64 - 2**63


def truth_values(trusted: Any, count: int) -> np.ndarray:
    """Which rows are trusted, shape (count,)."""
    if hasattr(trusted, "isna") and trusted.isna().any():
        raise InvalidInputError(
            f"trusted has {int(trusted.isna().sum())} missing values: it must be True or False for every row"
        )
    mask = np.asarray(trusted)
    if mask.shape != (count,):
        raise InvalidInputError(f"trusted must have one truth value per row, shape ({count},), got shape {mask.shape}")
    if mask.dtype != bool and not set(np.unique(mask).tolist()) <= {0, 1}:
        raise InvalidInputError(
            "trusted must hold truth values, one per row: True where the label is known to be right"
        )
    if mask.all():
        raise InvalidInputError("trusted marks every row: there is nothing to clean")
    return mask.astype(bool)


def taken_on_trust(y: np.ndarray, share: float, seed: int, ranks: Ranks) -> np.ndarray:
    """A mask with this fraction of the rows of every class, with a warning that their labels are unchecked."""
    if ranks.size > 1:
        raise InvalidInputError("on several ranks trusted rows are needed: pass trusted, or X_trusted and y_trusted")
    share = check_number("trusted_fraction", share, high=1.0)
    warnings.warn(
        f"no trusted rows were given, so {share:.0%} of the rows are held out and their labels are ASSUMED TO BE "
        "RIGHT; pass fit(X, y, trusted=mask) to mark the labels that are known",
        TrustWarning,
        stacklevel=3,
    )
    count = round(share * len(y)) or 1
    if count >= len(y):
        raise InvalidInputError(f"trusted_fraction={share} leaves none of the {len(y)} rows to be cleaned")
    labels = np.unique(y, return_inverse=True)[1]
    order = np.random.default_rng(seed).permutation(len(y))
    order = order[np.argsort(labels[order], kind="stable")]
    mask = np.zeros(len(y), bool)
    mask[order[np.arange(count) * len(y) // count]] = True
    return mask


# --- refusals ---------------------------------------------------------------------------------------------------------


def refuse_half(X_trusted: Any, y_trusted: Any) -> None:
    """Raise for trusted rows without labels, or labels without rows."""
    if (X_trusted is None) != (y_trusted is None):
        raise InvalidInputError("X_trusted and y_trusted go together: give both or neither")


def refuse_gaps(X: Any, name: str, columns: Any, *, allow_nan: bool = False) -> None:
    """Raise for missing and infinite values, or only for infinite ones, and name the cell."""
    odd = np.isinf if allow_nan else lambda values: ~np.isfinite(values)
    gap = _gap_in_sparse(X, odd) if hasattr(X, "tocsr") else _gap_in_array(X, odd)
    if gap is None:
        return
    row, column, value = gap
    where = f"column {columns[column]!r}" if columns is not None else f"column {column}"
    kind = "NaN, a missing value" if np.isnan(value) else "inf, an infinite value"
    raise InvalidInputError(
        f"Input {name} contains {kind}: row {row}, {where}. Fill it in (sklearn.impute.SimpleImputer) or drop the row"
    )


def _gap_in_sparse(X: Any, odd: Callable[[Any], Any]) -> tuple[int, int, Any] | None:
    """Row, column and value of the first missing or infinite number."""
    X = X.tocsr()
    gaps = np.flatnonzero(odd(X.data))
    if not len(gaps):
        return None
    return int(np.searchsorted(X.indptr, gaps[0], side="right")) - 1, int(X.indices[gaps[0]]), X.data[gaps[0]]


def _gap_in_array(X: np.ndarray, odd: Callable[[Any], Any]) -> tuple[int, int, Any] | None:
    """The same for an array, block by block."""
    for start, block in array_blocks(X):
        gaps = odd(block)
        if gaps.any():
            row, column = (int(i) for i in np.argwhere(gaps)[0])
            return start + row, column, block[row, column]
    return None


def refuse_missing_labels(y: Any, name: str) -> None:
    """Raise for None, NaN and pandas' NA, and name the row."""
    if hasattr(y, "isna"):
        missing = y.isna().to_numpy()
    else:
        array = np.asarray(y)
        labels = array.tolist() if array.dtype.kind in "Of" and array.ndim == 1 else []
        missing = np.array([label is None or label != label for label in labels], dtype=bool)
    if missing.ndim == 1 and missing.any():
        raise InvalidInputError(f"Input {name} contains NaN, a missing label: row {int(np.flatnonzero(missing)[0])}")


def refuse_texts(X: Any, name: str) -> None:
    """Raise for columns of a data frame that hold texts."""
    for column, dtype in getattr(X, "dtypes", {}).items() if hasattr(X, "columns") else ():
        if dtype.kind in "OUS" and any(isinstance(value, str) for value in X[column].head(100)):
            raise InvalidInputError(
                f"column {column!r} of {name} holds texts: encode it first, for example with "
                "sklearn.preprocessing.OneHotEncoder in a ColumnTransformer"
            )


def refuse_other_order(X: Any, column: Any, name: str) -> None:
    """Raise for a pandas Series with the rows of X in another order: scikit-learn aligns by position, not by index."""
    ours: Any = getattr(X, "index", None)
    theirs: Any = getattr(column, "index", None)
    if not (hasattr(ours, "equals") and hasattr(theirs, "equals")) or ours.equals(theirs):
        return
    if ours.is_unique and theirs.is_unique and set(ours) == set(theirs):
        raise InvalidInputError(f"{name} has the rows of X in another order: give {name}.loc[X.index]")


def of_pixels(X: Any) -> bool:
    """Whether rows seem to be images, or are in a memory-mapped file.

    Rows seem to be images if columns are named pixel0, ..., or if an array has k * k or 3 * k * k columns, at least 64,
    of numbers from 0 to 1 or of whole numbers from 0 to 255.

    Examples
    --------
    >>> of_pixels(np.random.default_rng(0).random((9, 64))), of_pixels(np.ones((9, 5)))
    (True, False)
    """
    if isinstance(X, np.memmap) or (hasattr(X, "columns") and all(PIXEL.fullmatch(str(name)) for name in X.columns)):
        return True
    if hasattr(X, "iloc") and all(getattr(kind, "kind", "O") in "fiu" for kind in X.dtypes):
        X = X.iloc[:200].to_numpy(dtype=float)
    if not hasattr(X, "dtype") or getattr(X, "ndim", 0) != 2 or X.dtype.kind not in "fiu" or hasattr(X, "tocsr"):
        return False
    width = X.shape[1]
    square = any(width % k == 0 and round((width // k) ** 0.5) ** 2 == width // k for k in (1, 3))
    some = np.asarray(X[:200], dtype=float)
    if width < 64 or not square or some.size == 0 or not np.isfinite(some).all() or some.min() < 0:
        return False
    return bool(some.max() <= 1 or (some.max() <= 255 and (some % 1 == 0).all()))


# --- rows in any form -------------------------------------------------------------------------------------------------


def plain_labels(y: Any) -> Any:
    """Convert pandas' integers and truth values to NumPy's, which would otherwise become floats."""
    kinds = {"i": np.int64, "u": np.uint64, "b": np.bool_}
    dtype = getattr(y, "dtype", None)
    if not hasattr(y, "isna") or isinstance(dtype, np.dtype) or getattr(dtype, "kind", None) not in kinds:
        return y
    return y.to_numpy(dtype=kinds[y.dtype.kind])


def take(X: Any, index: np.ndarray) -> Any:
    """Some rows of any input that scikit-learn supports."""
    if hasattr(X, "iloc"):
        return X.iloc[index]
    return (X.tocsr() if hasattr(X, "tocsr") else np.asanyarray(X))[index]


def joined(first: Any, second: Any = None) -> Any:
    """The rows of both, in the form of the first."""
    if second is None:
        return first
    if hasattr(first, "iloc"):
        import pandas as pd

        return pd.concat([first, second if hasattr(second, "iloc") else pd.DataFrame(second, columns=first.columns)])
    if hasattr(first, "tocsr"):
        from scipy import sparse

        return sparse.vstack([first, sparse.csr_array(second)]).tocsr()
    return np.concatenate([first, second.toarray() if hasattr(second, "tocsr") else np.asarray(second)])
