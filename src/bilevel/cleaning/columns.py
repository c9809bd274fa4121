"""From the columns of a table, as they are, to numbers: skrub's TableVectorizer, and which columns to leave out.

    number     the value, also of 1.234,56 or $ 1,234 or 12 %; a gap stays a gap (NaN)
    category   one 0/1 column for each of the 50 most frequent values, and one for the others
    date       year, month, day, hour and seconds since 1970
    text       30 coordinates of its n-grams (TF-IDF, truncated SVD); a table of nothing else keeps words and n-grams

Columns are left out that name rows (ids, row numbers, names), say nothing (one value), repeat another column or repeat
the label. `ColumnDecision` says what was made of each one and why; the user may decide otherwise.
"""

from __future__ import annotations

import datetime
import decimal
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from .._checks import check_choice
from ..errors import InvalidInputError, MissingExtraError, did_you_mean

try:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_union
    from sklearn.preprocessing import OneHotEncoder
    from skrub import DatetimeEncoder, StringEncoder, TableVectorizer
except ImportError:
    raise MissingExtraError("Encoding tables", "apps") from None

KINDS = ("number", "category", "date", "text", "ignore")
MOSTLY = 0.8
"""A column with at least this share of numbers, or of dates, holds numbers, or dates; other cells are gaps."""
MOST_CATEGORIES = 50
"""A column with more different texts is encoded by their n-grams, unless they are single words: names or codes."""
SINGLE_WORDS = 1.5
"""Words in a cell, on average, below which it holds single words."""
MOST_NGRAMS = 30_000
EXCEPTIONS = 0.005
"""A column that determines the label in all but this share of the rows is a copy of it."""
UNIQUE = 0.95
"""A column of texts that are different in at least this share of the rows names the rows, unless it is prose."""
COLLISIONS = 5.0
"""Integers drawn at random from the range of a column would repeat so often: if none does, they number the rows."""
ID_NAME = re.compile(r"(?:^|[^a-z])(?:ids?|uuid|guid|key|index|idx|rows?|rownames?|serial|number|nr|no)$|^unnamed")
PERSON_NAME = re.compile(r"(?:^|[^a-z])(?:names?|rownames?|surname|lastname|firstname|fullname)$")
UNITS = re.compile(r"^([-+(]?)\s*(?:[$€£¥₹]|EUR|USD|GBP|CHF)\s*|\s*(?:[$€£¥₹%]|EUR|USD|GBP|CHF)$")
"""What may stand before or behind a number."""
DECIMAL_COMMA = re.compile(r"^[-+]?(?:\d{1,3}(?:[.' ]\d{3})+|\d+),\d+$")
THOUSANDS = re.compile(r"^[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?$")
"""1,234 could be either: it is the second if every number of the column with a comma could be."""


@dataclass(frozen=True)
class ColumnDecision:
    """What was made of one column: a kind of `KINDS`, and why."""

    column: str
    kind: str
    reason: str


class ColumnEncoder:
    """Learn what the columns of a table are, and turn rows with these columns into numbers.

    Parameters
    ----------
    kinds
        What the user says of columns: {"age": "category", "note": "ignore"}; see `KINDS`.
    scaled
        Standardise numbers and dates, and set gaps to zero, the mean: for linear models.
    pixels
        Columns of pixels, which are numbers of one scale: value / largest pixel, if `scaled`. (A pixel that is almost
        always 0 must not be blown up.)

    Attributes
    ----------
    decisions_
        A `ColumnDecision` for each column, in the order of the table.
    columns_
        The columns that are used; later tables must have them.
    day_first_, comma_
        Columns of dates with the day before the month, and of numbers whose comma is a decimal one.

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
        self.scaled, self.pixels = scaled, pixels

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
        decisions = decide_columns(table, labels, self.kinds)
        kinds = {each.column: each.kind for each in decisions}
        self.learned(
            decisions,
            day_first=[name for name, kind in kinds.items() if kind == "date" and _is_day_first(table[name])],
            comma=[name for name, kind in kinds.items() if kind == "number" and _has_decimal_comma(table[name])],
        )
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
        if (odd := np.flatnonzero(~np.isfinite(center + scale))).size:
            raise InvalidInputError(f"the numbers in column {str(sources[odd[0]])!r} are too large to be standardised")
        return center, np.where(scale > 0, scale, 1.0)

    def learned(self, decisions: list[ColumnDecision], day_first: list[str], comma: list[str]) -> None:
        """Take over what was decided about the columns."""
        self.decisions_, self.day_first_, self.comma_ = decisions, day_first, comma
        self._kind = {each.column: each.kind for each in decisions}
        self.columns_: list[str] = [each.column for each in decisions if each.kind != "ignore"]
        self.prose_: bool = all(self._kind[name] == "text" for name in self.columns_)

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
        """How many cells of each category column hold a value that `fit` did not see."""
        known = self._values.items()
        counts = {name: int((~_texts(table[name]).dropna().isin(values)).sum()) for name, values in known}
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
        """The columns whose cells stay as they are written, in a file: 007 is no number."""
        return [name for name in self.columns_ if self._kind[name] in ("category", "text", "date")]

    @property
    def _others(self) -> list[str]:
        """The columns that skrub encodes: those of numbers are features already."""
        return [name for name in self.columns_ if self._kind[name] != "number"]

    @property
    def sources_(self) -> list[str]:
        """The column that each feature was made from; empty for a table of prose."""
        if self.prose_:
            return []
        made = self.vectorizer_.output_to_input_ if self._others else {}
        return [*(name for name in self.columns_ if self._kind[name] == "number"), *made.values()]

    def _typed(self, table: Any, names: Sequence[str] | None = None) -> pd.DataFrame:
        """Columns, each with the type of its kind: skrub need not guess again."""
        return pd.DataFrame({name: self._converted(name, table[name]) for name in names or self.columns_})

    def _converted(self, name: str, column: Any) -> Any:
        kind = self._kind[name]
        if kind == "date":
            return _dates(column, day_first=name in self.day_first_)
        return _numbers(column, comma=name in self.comma_) if kind == "number" else _texts(column)

    def plain(self, name: str, column: Any) -> Any:
        """A column in use as numbers, or as it is."""
        return self._converted(name, column) if self._kind.get(name) == "number" else column

    def texts(self, table: Any) -> Any:
        """The texts of each row, one after the other."""
        return self._typed(table).fillna("").astype(str).agg(" ".join, axis=1)


def _prose_vectorizer() -> Any:
    """TF-IDF of words and of 2 to 4 letters of a word: stems of any language, spelling mistakes, hashtags."""
    words = TfidfVectorizer(sublinear_tf=True, max_features=MOST_NGRAMS)
    letters = TfidfVectorizer(
        analyzer="char_wb", ngram_range=(2, 4), min_df=2, sublinear_tf=True, max_features=MOST_NGRAMS
    )
    return make_union(words, letters)


def _table_vectorizer(kinds: Mapping[str, str]) -> Any:
    """Every column has its type already; texts are n-grams, however few there are, and categories are not."""
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


# --- what a column is -------------------------------------------------------------------------------------------------


def decide_columns(table: Any, labels: Any = None, kinds: Mapping[str, str] | None = None) -> list[ColumnDecision]:
    """What to make of each column of a table, in its order."""
    kinds = kinds or {}
    given = None if labels is None else pd.factorize(np.asarray(labels).astype(str))[0]
    decisions: list[ColumnDecision] = []
    earlier: dict[bytes, list[str]] = {}
    for name in table.columns:
        if name in kinds:
            decisions.append(ColumnDecision(name, kinds[name], "as you said"))
            continue
        if strange := _strange_type(table[name]):
            decisions.append(ColumnDecision(name, "ignore", f"holds values of type {strange}"))
            continue
        code = pd.factorize(table[name])[0]
        alike = earlier.setdefault(code.tobytes(), [])  # columns whose values are equal in the same rows
        kind, reason = _useless(table[name], code, given, table[alike]) or _kind_of(name, table[name])
        if kind != "ignore":
            alike.append(name)
        decisions.append(ColumnDecision(name, kind, reason))
    return decisions


def _strange_type(column: Any) -> str:
    """The type of the first cell that is neither a number nor a text nor a date, such as a list; otherwise empty."""
    if column.dtype != object:
        return ""
    plain = (str, bytes, bool, int, float, np.generic, datetime.date, datetime.timedelta, decimal.Decimal)
    return next((type(cell).__name__ for cell in column.dropna() if not isinstance(cell, plain)), "")


def _useless(column: Any, code: np.ndarray, given: np.ndarray | None, alike: Any) -> tuple[str, str] | None:
    """Why a column is left out whatever its kind, or None."""
    count = int(code.max()) + 1
    if count == 0:
        return "ignore", "empty"
    if count == 1 and (code >= 0).all():
        return "ignore", f"always {str(column.iloc[0])[:40]!r}"
    few = count < len(code) / 5  # otherwise every two columns of different values would be one another's names
    for other in alike:
        if few or _texts(column).equals(_texts(alike[other])):
            return "ignore", f"repeats the column {other!r}"
    if given is not None:
        if few and _reveals(code, given):
            return "ignore", "repeats the label: it determines it in (almost) every row"
        if (code < 0).any() and _reveals(code >= 0, given):
            return "ignore", "reveals the label: whether a cell is empty determines it in (almost) every row"
    return None


def _reveals(code: np.ndarray, given: np.ndarray) -> bool:
    """Whether rows with the same value have the same label, with hardly an exception."""
    values, labels = code.astype(int) + 1, given.max() + 1
    counts = np.bincount(values * labels + given, minlength=(values.max() + 1) * labels).reshape(-1, labels)
    errors = int(counts.sum() - counts.max(axis=1).sum())
    without = int(counts.sum() - counts.sum(axis=0).max())  # if the most frequent label were believed of every row
    return errors <= EXCEPTIONS * len(given) and errors <= 10 * EXCEPTIONS * without


def _kind_of(name: str, column: Any) -> tuple[str, str]:
    """The kind of a column that has at least two values, and why."""
    rows, filled = len(column), column.dropna()
    different = filled.nunique()
    if pd.api.types.is_bool_dtype(column):
        return "number", "true or false"
    if pd.api.types.is_datetime64_any_dtype(column):
        return "date", "dates"
    if (numbers := _as_numbers(filled)) is not None:
        if why := _numbers_rows(name, numbers, rows):
            return "ignore", why
        gaps = rows - int(numbers.notna().sum())
        odd = int(numbers.isna().sum())
        about = f"{different:,} different numbers" + (f", {gaps:,} {'gap' if gaps == 1 else 'gaps'}" if gaps else "")
        about += ", decimal commas" if _has_decimal_comma(filled) else ""
        return "number", about + (f" ({odd:,} cells are no numbers)" if odd else "")
    texts = filled.astype(str)
    if _are_dates(texts):
        return "date", f"{different:,} different dates"
    if why := _names_rows(name, texts, rows):
        return "ignore", why
    if different > MOST_CATEGORIES and texts.str.split().str.len().mean() >= SINGLE_WORDS:
        return "text", f"{different:,} different texts"
    rare = f", of which the {MOST_CATEGORIES} most frequent count" if different > MOST_CATEGORIES + 1 else ""
    return "category", f"{different:,} values{rare}"


def _numbers_rows(name: str, numbers: Any, rows: int) -> str:
    """Why integers number the rows, or an empty text."""
    values = numbers.dropna()
    if len(values) < 20 or (values % 1 != 0).any():
        return ""
    different = values.nunique()
    if ID_NAME.search(_plain(name)) and different > 0.5 * rows:
        return f"identifies rows: named {name!r}, {different:,} different values in {rows:,} rows"
    span = float(values.max() - values.min()) + 1
    if different == len(values) == rows and rows * rows / (2 * span) > COLLISIONS:
        return "numbers the rows: no integer occurs twice"
    return ""


def _names_rows(name: str, texts: Any, rows: int) -> str:
    """Why texts name the rows, or an empty text."""
    different = texts.nunique()
    if rows < 20 or different < 0.5 * rows:
        return ""
    if ID_NAME.search(_plain(name)):
        return f"identifies rows: named {name!r}, {different:,} different values in {rows:,} rows"
    if different < UNIQUE * len(texts):
        return ""
    if PERSON_NAME.search(_plain(name)):
        return "names of rows: (almost) every one is different"
    words = texts.str.split().str.len().mean()
    return "identifies rows: single words, (almost) every one is different" if words < SINGLE_WORDS else ""


def _plain(name: Any) -> str:
    """lower_case from CamelCase.

    Examples
    --------
    >>> _plain("PassengerId")
    'passenger_id'
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(name)).lower()


# --- cells ------------------------------------------------------------------------------------------------------------


def _as_numbers(filled: Any) -> Any:
    """The numbers of a column, NaN where a cell is none; None if too few cells are numbers."""
    numbers = _numbers(filled, comma=_has_decimal_comma(filled))
    return numbers if len(filled) and numbers.notna().mean() >= MOSTLY else None


def _bare(column: Any) -> Any:
    """Texts without the units and the spaces of numbers; (12) is -12, as bookkeepers write."""
    texts = column.astype("string").str.strip().str.replace(UNITS, r"\1", regex=True)
    texts = texts.str.replace(r"(?<=\d)[\s\u00a0\u202f'](?=\d{3}(?:\D|$))", "", regex=True)
    return texts.str.replace(r"^\((.+)\)$", r"-\1", regex=True).str.strip()


def _has_decimal_comma(column: Any) -> bool:
    """Whether 1,234 is a little more than one: some number of the column has a comma that separates no thousands."""
    if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_datetime64_any_dtype(column):
        return False
    texts = _bare(column.dropna())
    return bool((texts.str.match(DECIMAL_COMMA) & ~texts.str.match(THOUSANDS)).any())


def _numbers(column: Any, *, comma: bool = False) -> Any:
    """Numbers, also with units, thousands and decimal commas; other cells are NaN."""
    if not pd.api.types.is_numeric_dtype(column):
        texts = _bare(column)
        numbers: Any = pd.to_numeric(texts, errors="coerce")
        left = numbers.isna() & texts.notna() if not comma else texts.notna()
        if left.any():  # neither 12 nor 1.5
            texts = texts[left]
            thousands = texts.str.match(THOUSANDS) if not comma else texts.notna() & False
            german = texts.str.replace(r"\.(?=\d{3}(?:\D|$))", "", regex=True).str.replace(",", ".", regex=False)
            rest: Any = pd.to_numeric(german.mask(thousands, texts.str.replace(",", "", regex=False)), errors="coerce")
            numbers = numbers.astype(float)
            numbers[left] = rest.astype(float)
        column = numbers
    return column.astype(float).replace([np.inf, -np.inf], np.nan)


def _are_dates(texts: Any) -> bool:
    sample = texts.iloc[:200]
    digits = sample.str.contains(r"\d{1,4}[-/.:]\d{1,2}", regex=True).mean() >= MOSTLY
    return bool(digits and max(_dates(sample, day_first=each).notna().mean() for each in (True, False)) >= MOSTLY)


def _dates(column: Any, *, day_first: bool = False) -> Any:
    """Moments in universal time without zone; cells that are no dates are gaps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # formats that are guessed
        mixed: Any = {} if pd.api.types.is_datetime64_any_dtype(column) else {"format": "mixed", "dayfirst": day_first}
        dates: Any = pd.to_datetime(column, errors="coerce", utc=True, **mixed)
    return dates.dt.tz_localize(None)


def _is_day_first(column: Any) -> bool:
    """Whether 3.4.2020 is in April: with points, or where months would otherwise be too large."""
    texts = column.dropna().astype(str)
    return bool(
        texts.str.match(r"\s*\d{1,2}\.\d{1,2}\.").mean() > 0.5
        or texts.str.match(r"\s*(1[3-9]|[23]\d)[/-]\d{1,2}[/-]").any()
    )


def _texts(column: Any) -> Any:
    """Texts; whole numbers without a point, so that 1 and 1.0 are one category."""
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        whole = column.dropna() % 1 == 0
        column = column.astype("Int64") if len(whole) and whole.all() else column
    return column.astype("string").astype(object).where(column.notna(), None)


def kinds_of_options(options: Mapping[str, Collection[str] | None]) -> dict[str, str]:
    """{"column": kind} of the options --ignore, --categorical, --text, --number and --date.

    Examples
    --------
    >>> kinds_of_options({"ignore": ["name"], "category": None})
    {'name': 'ignore'}
    """
    kinds: dict[str, str] = {}
    for kind, names in options.items():
        for name in names or ():
            if name in kinds:
                raise InvalidInputError(f"column {name!r} cannot be both {kinds[name]} and {kind}")
            kinds[name] = kind
    return kinds
