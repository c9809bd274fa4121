"""The kinds of the columns of a table, recognised by their cells and names.

Columns are left out that identify rows (ids, row numbers, names), have a single value, repeat another column or repeat
the label. A `ColumnDecision` states the kind of each column and the reason; the user can override it.
"""

from __future__ import annotations

import datetime
import decimal
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import pandas as pd

from ..errors import InvalidInputError
from .cells import EXACT, MOSTLY, as_texts, count_words, has_decimal_comma, known_cells, numbers_of, reads_as_dates

KINDS = ("number", "category", "date", "text", "ignore")
MOST_CATEGORIES = 50
"""A column with more distinct texts is encoded by n-grams, unless the texts are single words (names or codes)."""
FEW_IDS = 20
"""A column named id identifies rows if it has more different values."""
FREQUENT = 0.2
"""A column whose most frequent categories are in less than this fraction of the rows says nothing about most rows."""
SINGLE_WORDS = 1.5
"""Words in a cell, on average, below which it holds single words."""
EXCEPTIONS = 0.005
"""A column that determines the label in all but this fraction of the rows counts as a copy of it."""
UNIQUE = 0.8
"""A column of single words that are different in at least this fraction of the rows identifies the rows."""
COLLISIONS = 5.0
"""Random integers repeat: if this many repeats are expected and hardly any occur, the integers number the rows."""
NOT_IDS = "bid|aid|arid|grid|kid|lid|mid|raid|void"
NOT_IDS_AT_THE_END = (
    "paid|acid|covid|fluid|humid|hybrid|lipid|liquid|orchid|plasmid|rapid|solid|squid|valid|steroid|thyroid|asteroid|"
    "alkaloid|avoid|android"
)
ID_NAME = re.compile(
    rf"^(?!(?:.*[^a-z])?(?:{NOT_IDS})s?$)(?!.*(?:{NOT_IDS_AT_THE_END})s?$)"
    r".*ids?(?:[^a-z]?(?:str|code|no|nr|num|number))?$"
)
NUMBER_NAME = re.compile(
    r"(?:^|[^a-z])(?:key|index|idx|rows?|rownames?|serial|number|num|nr|no|phone|tel|fax|e.?mail|url|iban|ssn|vin)$|^unnamed"
)
"""A column with such a name identifies rows if more than half of its cells are different; an id even if fewer are."""
OWNERS = (
    "first|last|full|given|middle|family|nick|user|sur|customer|client|patient|employee|person|student|player|owner|"
    "company|firm|school|station|hospital|row"
)
NAME_NAME = re.compile(rf"^(?:names?|(?:.*[^a-z])?(?:{OWNERS})[^a-z]?names?)$")
ONE_OF_MANY = re.compile(
    "subject|patient|person|individual|customer|client|household|respondent|participant|student|employee|player|member|"
    "family|firm|company|school|hospital|district|station|authors?|address|street"
)
"""Numbers in columns with such names are ids, and texts names, if there are many different ones."""
CODE_NAME = re.compile(r"(?:^|[^a-z])(?:code|zip|plz|fips)s?$|(?:zip|postal|post)[^a-z]?codes?$")
"""Numbers in columns with such names are codes, not amounts."""


@dataclass(frozen=True)
class ColumnDecision:
    """The kind of one column, from `KINDS`, and the reason."""

    column: str
    kind: str
    reason: str


def decide_columns(table: Any, labels: Any = None, kinds: Mapping[str, str] | None = None) -> list[ColumnDecision]:
    """Decide the kind of each column of a table, in its order."""
    kinds = kinds or {}
    given = None if labels is None else pd.factorize(np.asarray(labels).astype(str))[0]
    decisions: list[ColumnDecision] = []
    earlier: dict[bytes, str] = {}
    for name in table.columns:
        if name in kinds:
            decisions.append(ColumnDecision(name, kinds[name], "as you said"))
            continue
        if strange := _strange_type(table[name]):
            decisions.append(ColumnDecision(name, "ignore", f"holds values of type {strange}"))
            continue
        code = pd.factorize(table[name])[0]
        content = _content(table[name], code)
        if why := _useless(table[name], code, given):
            kind, reason = "ignore", why
        elif content in earlier:
            kind, reason = "ignore", f"repeats the column {earlier[content]!r}"
        else:
            kind, reason = _kind_of(name, table[name])
        if kind != "ignore":
            earlier[content] = name
        decisions.append(ColumnDecision(name, kind, reason))
    return decisions


def _strange_type(column: Any) -> str:
    """The type of the first cell that is neither a number nor a text nor a date, such as a list; otherwise empty."""
    if column.dtype != object:
        return ""
    plain = (str, bytes, bool, int, float, np.generic, datetime.date, datetime.timedelta, decimal.Decimal)
    return next((type(cell).__name__ for cell in column.dropna() if not isinstance(cell, plain)), "")


def _is_few(code: np.ndarray) -> bool:
    """Whether values repeat; two columns of different values would otherwise be one another's names."""
    return int(code.max()) + 1 < len(code) / 5


def _content(column: Any, code: np.ndarray) -> bytes:
    """Equal bytes for columns that repeat each other: few values, equal in the same rows; otherwise the same texts."""
    hashed = pd.util.hash_pandas_object  # pyright: ignore[reportAttributeAccessIssue]  (public, without a stub)
    if _is_few(code):
        return sha256(code.tobytes()).digest()
    plain = pd.api.types.is_float_dtype(column) or pd.api.types.is_integer_dtype(column)
    cells = pd.Series(column.to_numpy(float, na_value=np.nan)) if plain else as_texts(column)
    return sha256(hashed(cells, index=False).to_numpy().tobytes()).digest()


def _useless(column: Any, code: np.ndarray, given: np.ndarray | None) -> str:
    """The reason to leave a column out whatever its kind, or an empty text."""
    count = int(code.max()) + 1
    if count == 0:
        return "empty"
    if count == 1 and (code >= 0).all():
        return f"always {str(column.iloc[0])[:40]!r}"
    if given is not None:
        if _is_few(code) and _reveals(code, given):
            return "repeats the label: it determines it in (almost) every row"
        if (code < 0).any() and _reveals(code >= 0, given):
            return "reveals the label: whether a cell is empty determines it in (almost) every row"
    return ""


def _reveals(code: np.ndarray, given: np.ndarray) -> bool:
    """Whether rows with the same value have the same label, with hardly an exception."""
    values, labels = code.astype(int) + 1, given.max() + 1
    counts = np.bincount(values * labels + given, minlength=(values.max() + 1) * labels).reshape(-1, labels)
    errors = int(counts.sum() - counts.max(axis=1).sum())
    without = int(counts.sum() - counts.sum(axis=0).max())  # if the most frequent label were believed of every row
    return errors <= EXCEPTIONS * len(given) and errors <= 10 * EXCEPTIONS * without


def _kind_of(name: Any, column: Any) -> tuple[str, str]:
    """The kind of a column that has at least two values, and why."""
    if pd.api.types.is_bool_dtype(column):
        return "number", "true or false"
    if pd.api.types.is_datetime64_any_dtype(column):
        return "date", "dates"
    known, word = known_cells(column), snake_case(name)
    different = known.nunique()
    numbers = numbers_of(known, comma=has_decimal_comma(known))
    numeric = len(known) > 0 and numbers.notna().mean() >= MOSTLY
    if why := _named_after_rows(name, word, known, len(column), numeric=numeric):
        return "ignore", why
    if numeric:
        whole = bool((numbers.dropna() % 1 == 0).all())
        if whole and _numbers_rows(numbers.dropna(), len(column)):
            return "ignore", "numbers the rows: (almost) no integer occurs twice"
        long = numbers.abs().median() >= EXACT and known.astype(str).str.isdecimal().all()  # floats may be equal
        codes = ID_NAME.search(word) or CODE_NAME.search(word) or long
        if whole and different > 2 and codes:
            return _codes(known, "codes")
        return "number", _about_numbers(known, numbers, len(column))
    if reads_as_dates(known):
        return "date", f"{different:,} different dates"
    words = count_words(known)
    if words >= SINGLE_WORDS and different > min(MOST_CATEGORIES, UNIQUE * len(known)):
        return "text", f"{different:,} different texts"
    return _codes(known, "single words" if words < SINGLE_WORDS else "values")


def _codes(known: Any, what: str) -> tuple[str, str]:
    """The kind of a column of codes or single words, and why."""
    counts = known.value_counts()
    different = len(counts)
    if different >= max(20, UNIQUE * len(known)):
        return "ignore", f"identifies rows: {what}, most are different"
    found = f"{different:,} {'codes' if what == 'codes' else 'values'}"
    if different <= MOST_CATEGORIES + 1:
        return "category", found
    share = counts.iloc[:MOST_CATEGORIES].sum() / len(known)
    if share < FREQUENT:
        return "ignore", f"{found}, of which the {MOST_CATEGORIES} most frequent are in {100 * share:.0f} % of the rows"
    return "category", f"{found}, of which the {MOST_CATEGORIES} most frequent count"


def _about_numbers(known: Any, numbers: Any, rows: int) -> str:
    odd = int(numbers.isna().sum())
    gaps = rows - len(known) + odd
    return (
        f"{numbers.nunique():,} different numbers"
        + (f", {gaps:,} {'gap' if gaps == 1 else 'gaps'}" if gaps else "")
        + (", decimal commas" if has_decimal_comma(known) else "")
        + (f" ({odd:,} cells are no numbers)" if odd else "")
    )


def _named_after_rows(name: str, word: str, known: Any, rows: int, *, numeric: bool) -> str:
    """The reason why a column with such a name identifies rows, or an empty text."""
    different = known.nunique()
    if rows < 20 or (pd.api.types.is_float_dtype(known) and (known % 1 != 0).any()):
        return ""
    one_of_many = ONE_OF_MANY.fullmatch(word)
    many = rows / 2
    if ID_NAME.search(word) or (numeric and one_of_many):
        many = min(many, FEW_IDS if word == "id" else max(MOST_CATEGORIES, rows / 10))
    if different > many and (ID_NAME.search(word) or NUMBER_NAME.search(word) or (numeric and one_of_many)):
        return f"identifies rows: named {name!r}, {different:,} different values in {rows:,} rows"
    if different > many and not numeric and (NAME_NAME.search(word) or one_of_many):
        return f"names of rows: {different:,} different ones in {rows:,} rows"
    return ""


def _numbers_rows(values: Any, rows: int) -> bool:
    """Whether integers repeat much less often than n draws from s numbers, of which s (1 - exp(-n/s)) are different."""
    if len(values) < max(20, rows):
        return False
    span = float(values.max() - values.min()) + 1
    expected = rows + span * math.expm1(-rows / span)
    return expected > COLLISIONS and rows - values.nunique() < expected / 2


def snake_case(name: Any) -> str:
    """Examples
    --------
    >>> snake_case("PassengerId")
    'passenger_id'
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(name)).lower()


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
