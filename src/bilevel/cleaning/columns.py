"""Encode the columns of a table as numbers, by skrub's TableVectorizer and the decisions of `column_kinds`.

number     the value, also of 1.234,56 or $ 1,234 or 12 %, and seconds of 14:29; a gap stays a gap (NaN)
category   one 0/1 column for each of the 50 most frequent values, and one for the others
date       year, month, day, hour and seconds since 1970
text       30 coordinates of its n-grams (TF-IDF, truncated SVD); a table of nothing else keeps words and n-grams
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from .._checks import check_choice
from ..errors import InvalidInputError, MissingExtraError, did_you_mean
from .cells import as_codes, as_texts, dates_of, has_decimal_comma, is_day_first, numbers_of
from .column_kinds import KINDS, MOST_CATEGORIES, ColumnDecision, decide_columns

try:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_union
    from sklearn.preprocessing import OneHotEncoder
    from skrub import DatetimeEncoder, StringEncoder, TableVectorizer
except ImportError:
    raise MissingExtraError("Encoding tables", "apps") from None

MOST_NGRAMS = 30_000


class ColumnEncoder:
    """Recognise the kinds of the columns of a table and encode rows with these columns as numbers.

    Parameters
    ----------
    kinds
        Kinds set by the user, such as {"age": "category", "note": "ignore"}; see `KINDS`.
    scaled
        Standardise numbers and dates, and set gaps to zero, the mean: for linear models.
    pixels
        Columns of pixels, which share one scale: value / largest pixel, if `scaled`. (Standardising each of them would
        magnify pixels that are almost always 0.)

    Attributes
    ----------
    decisions_
        A `ColumnDecision` for each column, in the order of the table.
    columns_
        The columns that are used; later tables must have them.
    day_first_, comma_, codes_
        Columns of dates with the day before the month, of numbers with a decimal comma, and of categories that are
        written as numbers.

    Examples
    --------
    >>> table = pd.DataFrame({"id": range(100), "size": np.arange(100) % 7, "colour": ["red", "green"] * 50})
    >>> encoder = ColumnEncoder().fit(table)
    >>> [(decision.column, decision.kind) for decision in encoder.decisions_]
    [('id', 'ignore'), ('size', 'number'), ('colour', 'category')]
    >>> encoder.transform(pd.DataFrame({"size": [3, None], "colour": ["blue", "red"]}))
    array([[ 3.,  0.],
           [nan,  1.]])
    """

    def __init__(
        self, kinds: Mapping[str, str] | None = None, *, scaled: bool = False, pixels: Collection[str] = ()
    ) -> None:
        self.kinds: dict[str, str] = {**(kinds or {}), **dict.fromkeys(pixels, "number")}
        self.scaled = scaled
        self.pixels = pixels

    def fit(self, table: Any, labels: Any = None) -> ColumnEncoder:
        """Learn from the rows of a table without its label column.

        Parameters
        ----------
        labels
            The given label of each row, to recognise columns that repeat it.
        """
        for name, kind in self.kinds.items():
            check_choice(f"the kind of column {name!r}", kind, KINDS)
            if name not in table.columns:
                raise InvalidInputError(f"there is no column {name!r}{did_you_mean(name, list(table.columns))}")
        self.decisions_: list[ColumnDecision] = decide_columns(table, labels, self.kinds)
        self._kind = {each.column: each.kind for each in self.decisions_}
        self.columns_: list[str] = [name for name, kind in self._kind.items() if kind != "ignore"]
        self.prose_: bool = all(self._kind[name] == "text" for name in self.columns_)
        tests = {"date": is_day_first, "number": has_decimal_comma, "category": pd.api.types.is_numeric_dtype}
        passed = {
            kind: [name for name in self.columns_ if self._kind[name] == kind and test(table[name])]
            for kind, test in tests.items()
        }
        self.day_first_: list[str] = passed["date"]
        self.comma_: list[str] = passed["number"]
        self.codes_: list[str] = passed["category"]
        for name in self.columns_:
            asked = self.kinds.get(name) in ("number", "date")
            if asked and self._converted(name, table[name]).isna().all():
                raise InvalidInputError(f"no cell of column {name!r} is a {self._kind[name]}: choose another kind")
        if not self.columns_:
            reasons = "; ".join(f"{each.column}: {each.reason}" for each in self.decisions_)
            raise InvalidInputError(f"no column is left to learn from ({reasons})")
        self.center_: Any = None
        self.scale_: Any = None
        if self.prose_:
            self.vectorizer_: Any = _prose_vectorizer()
            self.vectorizer_.fit(self.texts(table))
        else:
            self.vectorizer_ = _table_vectorizer(self._kind) if self._others else None
            if self._others:
                self.vectorizer_.fit(self._typed(table, self._others))
        if self.scaled and not self.prose_:
            self.center_, self.scale_ = self._scaling(self.transform(table))
        return self

    def _scaling(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of the features of numbers and dates; 0 and the largest of all for pixels."""
        sources = np.array(self.sources_)
        pixels = np.isin(sources, list(self.pixels))
        plain = ~pixels & np.array([self._kind[name] in ("number", "date") for name in sources])
        with np.errstate(all="ignore"):
            center = np.where(plain, np.nanmean(X, axis=0), 0.0)
            scale = np.where(plain, np.nanstd(X, axis=0), 1.0)
        if pixels.any():
            scale[pixels] = np.nanmax(np.abs(X[:, pixels]))
        return center, np.where(scale > 0, scale, 1.0)

    def transform(self, table: Any) -> Any:
        """Numbers of shape (rows, features): an array with NaN for gaps, or a CSR matrix of a table of prose."""
        missing = [name for name in self.columns_ if name not in table.columns]
        if missing:
            names = list(table.columns)
            hints = "".join(f"{name!r}{did_you_mean(name, names)} " for name in missing[:5]).strip()
            raise InvalidInputError(f"the table lacks columns that the model uses: {hints}")
        if self.prose_:
            return self.vectorizer_.transform(self.texts(table))
        numbers = [self._converted(name, table[name]) for name in self.columns_ if self._kind[name] == "number"]
        parts = [np.column_stack(numbers)] if numbers else []
        if self._others:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Found unknown categories")
                encoded = self.vectorizer_.transform(self._typed(table, self._others))
            parts.append(encoded.to_numpy(dtype=np.float64))
        X = np.hstack(parts)
        return X if self.scale_ is None else np.nan_to_num((X - self.center_) / self.scale_)

    def unseen(self, table: Any) -> dict[str, int]:
        """The number of cells of each category column with a value that did not occur in `fit`."""
        known = self._values.items()
        counts = {
            name: int((~self._converted(name, table[name]).dropna().isin(values)).sum()) for name, values in known
        }
        return {name: count for name, count in counts.items() if count}

    @property
    def _values(self) -> dict[str, set[str]]:
        if self.prose_ or not self._others:
            return {}
        encoders = {name: self.vectorizer_.transformers_.get(name) for name in self._others}
        return {
            name: {str(value) for value in each.categories_[0]}
            for name, each in encoders.items() if isinstance(each, OneHotEncoder)
        }  # fmt: skip

    @property
    def texts_(self) -> list[str]:
        """The columns whose cells are read as text, such as 007, which is not a number."""
        return [name for name in self.columns_ if self._kind[name] in ("category", "text", "date")]

    @property
    def _others(self) -> list[str]:
        """The columns that skrub encodes; columns of numbers are features already."""
        return [name for name in self.columns_ if self._kind[name] != "number"]

    @property
    def sources_(self) -> list[str]:
        """The column that each feature was made from; empty for a table of prose."""
        if self.prose_:
            return []
        made = self.vectorizer_.output_to_input_ if self._others else {}
        return [*(name for name in self.columns_ if self._kind[name] == "number"), *made.values()]

    def _typed(self, table: Any, names: Sequence[str] | None = None) -> pd.DataFrame:
        """Columns with the type of their kind, so that skrub does not guess it."""
        return pd.DataFrame({name: self._converted(name, table[name]) for name in names or self.columns_})

    def _converted(self, name: str, column: Any) -> Any:
        kind = self._kind[name]
        if kind == "date":
            return dates_of(column, day_first=name in self.day_first_)
        if kind == "number":
            return numbers_of(column, comma=name in self.comma_)
        return as_codes(column) if name in self.codes_ else as_texts(column)

    def typical(self, name: str, column: Any) -> str:
        """What cells of a column in use mostly are: the median of numbers and dates, or the most frequent category."""
        kind, known = self._kind[name], self._converted(name, column).dropna()
        if kind == "text" or not len(known):
            return ""
        if kind == "number":
            return f"{known.median():.6g}"
        return str(known.median().date() if kind == "date" else known.mode().iloc[0])

    def texts(self, table: Any) -> Any:
        """The texts of each row, concatenated."""
        return self._typed(table).fillna("").astype(str).agg(" ".join, axis=1)


def _prose_vectorizer() -> Any:
    """TF-IDF of words and of n-grams of 2 to 4 letters, which work for any language and for spelling mistakes."""
    words = TfidfVectorizer(sublinear_tf=True, max_features=MOST_NGRAMS)
    letters = TfidfVectorizer(
        analyzer="char_wb", ngram_range=(2, 4), min_df=2, sublinear_tf=True, max_features=MOST_NGRAMS
    )
    return make_union(words, letters)


def _table_vectorizer(kinds: Mapping[str, str]) -> Any:
    """A vectorizer for columns that have their types: texts are encoded by n-grams, categories are not."""
    texts = [name for name, kind in kinds.items() if kind == "text"]
    categories = [name for name, kind in kinds.items() if kind == "category"]
    one_hot = OneHotEncoder(
        drop="if_binary", handle_unknown="infrequent_if_exist", max_categories=MOST_CATEGORIES + 1, sparse_output=False
    )
    chosen: list[Any] = [(one_hot, categories)] if categories else []
    if texts:
        chosen.append((StringEncoder(random_state=0), texts))
    settings: Any = {"drop_null_fraction": None, "n_jobs": 1}  # None: gaps are no reason to leave a column out
    return TableVectorizer(datetime=DatetimeEncoder(), specific_transformers=chosen, **settings)
