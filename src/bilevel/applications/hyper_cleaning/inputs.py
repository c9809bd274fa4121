"""What users give to scikit-learn estimators: refusals that name the cell, and rows taken and joined in any form."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import InvalidInput
from .design import BLOCK_BYTES, give_back


def refuse_gaps(X: Any, name: str, columns: Any) -> None:
    """Missing and infinite values, with the cell named."""
    gap = _gap_in_sparse(X) if hasattr(X, "tocsr") else _gap_in_array(X)
    if gap is None:
        return
    row, column, value = gap
    where = f"column {columns[column]!r}" if columns is not None else f"column {column}"
    kind = "NaN, a missing value" if np.isnan(value) else "inf, an infinite value"
    raise InvalidInput(
        f"Input {name} contains {kind}: row {row}, {where}. Fill it in (sklearn.impute.SimpleImputer) or drop the row"
    )


def _gap_in_sparse(X: Any) -> tuple[int, int, Any] | None:
    """Row, column and value of the first number that is not finite."""
    gaps = np.flatnonzero(~np.isfinite(X.data))
    if not len(gaps):
        return None
    return int(np.searchsorted(X.indptr, gaps[0], side="right")) - 1, int(X.indices[gaps[0]]), X.data[gaps[0]]


def _gap_in_array(X: np.ndarray) -> tuple[int, int, Any] | None:
    """The same, block by block."""
    step = max(1, BLOCK_BYTES // max(1, X[:1].nbytes))
    for start in range(0, len(X), step):
        block = X[start : start + step]
        finite = np.isfinite(block)
        if not finite.all():
            row, column = (int(i) for i in np.argwhere(~finite)[0])
            return start + row, column, block[row, column]
        give_back(block)
    return None


def refuse_missing_labels(y: Any, name: str) -> None:
    """None, NaN and pandas' NA, with the row named."""
    if hasattr(y, "isna"):
        missing = y.isna().to_numpy()
    else:
        array = np.asarray(y)
        labels = array.tolist() if array.dtype.kind in "Of" and array.ndim == 1 else []
        missing = np.array([label is None or label != label for label in labels], dtype=bool)
    if missing.ndim == 1 and missing.any():
        raise InvalidInput(f"Input {name} contains NaN, a missing label: row {int(np.flatnonzero(missing)[0])}")


def refuse_texts(X: Any, name: str) -> None:
    """Columns of a data frame that hold texts."""
    for column, dtype in getattr(X, "dtypes", {}).items() if hasattr(X, "columns") else ():
        if dtype.kind in "OUS" and any(isinstance(value, str) for value in X[column].head(100)):
            raise InvalidInput(
                f"column {column!r} of {name} holds texts: encode it first, for example with "
                "sklearn.preprocessing.OneHotEncoder in a ColumnTransformer"
            )


def refuse_other_order(X: Any, column: Any, name: str) -> None:
    """A pandas Series with the rows of X in another order: scikit-learn goes by position, and would mix them up."""
    ours: Any = getattr(X, "index", None)
    theirs: Any = getattr(column, "index", None)
    if not (hasattr(ours, "equals") and hasattr(theirs, "equals")) or ours.equals(theirs):
        return
    if ours.is_unique and theirs.is_unique and set(ours) == set(theirs):
        raise InvalidInput(f"{name} has the rows of X in another order: give {name}.loc[X.index]")


def plain_labels(y: Any) -> Any:
    """pandas' own integers and truth values as NumPy's; they would come back as floats."""
    kinds = {"i": np.int64, "u": np.uint64, "b": np.bool_}
    dtype = getattr(y, "dtype", None)
    if not hasattr(y, "isna") or isinstance(dtype, np.dtype) or getattr(dtype, "kind", None) not in kinds:
        return y
    return y.to_numpy(dtype=kinds[y.dtype.kind])


def take(X: Any, index: np.ndarray) -> Any:
    """Some rows of anything that scikit-learn takes."""
    if hasattr(X, "iloc"):
        return X.iloc[index]
    return (X.tocsr() if hasattr(X, "tocsr") else np.asanyarray(X))[index]


def joined(first: Any, second: Any) -> Any:
    """The rows of both, in the form of the first."""
    if hasattr(first, "iloc"):
        import pandas as pd

        return pd.concat([first, second if hasattr(second, "iloc") else pd.DataFrame(second, columns=first.columns)])
    if hasattr(first, "tocsr"):
        from scipy import sparse

        return sparse.vstack([first, sparse.csr_array(second)]).tocsr()
    return np.concatenate([first, second.toarray() if hasattr(second, "tocsr") else np.asarray(second)])
