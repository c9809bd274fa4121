"""Cells of a table as numbers, dates and texts, in the usual notations."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pandas as pd

LARGEST = 1e30
EXACT = 2.0**53
"""Floats below this have every whole number."""
MOSTLY = 0.8
"""A column with at least this share of numbers, or of dates, holds numbers or dates; its other cells are gaps."""
GAPS = ("", "-", "--", ".", "...", "?", "na", "n/a", "#n/a", "nan", "none", "null", "nil", "missing", "unknown", r"\n")
"""Words that stand for a missing value."""
UNITS = re.compile(r"^([-+(]?)\s*(?:[$€£¥₹]|EUR|USD|GBP|CHF)\s*|^[<>≤≥~]=?\s*|\s*(?:[$€£¥₹%+]|EUR|USD|GBP|CHF)$")
"""Signs and units before or after a number, also those of < 0.5 (below the limit of detection) and 10+ (or more)."""
DECIMAL_COMMA = re.compile(r"^[-+]?(?:\d{1,3}(?:[.' ]\d{3})+|\d+),\d+$")
THOUSANDS = re.compile(r"^[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?$")
"""1,234 is ambiguous: the comma separates thousands if it can do so in all numbers of the column that have one."""
TRUTH = re.compile(r"^(?:(true)|false)$", re.IGNORECASE)
"""Truth values as texts, as they occur in columns with gaps."""
CLOCK = re.compile(r"^(\d{1,3}):([0-5]\d)(?::([0-5]\d(?:\.\d+)?))?\s*(?:([ap])\.?m\.?)?$", re.IGNORECASE)
"""A time of day or a duration: hours, minutes and seconds."""
MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
DATE = re.compile(
    r"\s*(?:(?:\d{4}|\d{1,2})[-/. ]\d{1,2}[-/. ](?:\d{4}|\d\d)(?!\d)"  # 2020-05-17, 17.5.20
    r"|(?:19|20)\d\d(?:[-/.](?:0?[1-9]|1[0-2])|[- ]?q[1-4])\s*$|(?:0?[1-9]|1[0-2])[-/.](?:19|20)\d\d\s*$"  # 2020-05
    rf"|(?:19|20)\d\d[-/. ]{MONTH}\s*$"  # 2020 May
    rf"|(?:\w+,? )?(?:\d+\w*[-/. ,]+)?{MONTH}[-/. ,]+\d)",  # 17 May 2020, May 17, 2020, Sun, 17 May 2020
    re.IGNORECASE,
)
QUARTER = re.compile(r"^\s*(\d{4})[- ]q([1-4])\s*$", re.IGNORECASE)
"""2020 Q3, which pandas knows as 2020Q3."""


def known_cells(column: Any) -> Any:
    """The cells that are neither empty nor a word of `GAPS`."""
    column = column.dropna()
    if pd.api.types.is_numeric_dtype(column):
        return column
    return column[~column.astype(str).str.strip().str.lower().isin(GAPS)]


def as_texts(column: Any) -> Any:
    """Texts without surrounding spaces, None for gaps; whole numbers have no point, so that 1 and 1.0 are equal."""
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        known = column.dropna()
        whole = len(known) and (known.abs() < EXACT).all() and (known % 1 == 0).all()
        column = column.astype("Int64") if whole else column
    return column.astype("string").str.strip().astype(object).where(column.notna(), None)


def as_codes(column: Any) -> Any:
    """Texts in which 007 and 7 are equal."""
    numbers: Any = pd.to_numeric(column, errors="coerce")
    return as_texts(column).where(numbers.isna(), as_texts(numbers))


def count_words(column: Any) -> float:
    """The mean number of words in a cell."""
    return float(column.astype(str).str.split().str.len().mean()) if len(column) else 0.0


# --- numbers ----------------------------------------------------------------------------------------------------------


def numbers_of(column: Any, *, comma: bool = False) -> Any:
    """Numbers, also with units, thousands and decimal commas, 1 and 0 for truth values, seconds of times; else NaN.

    Numbers beyond `LARGEST` count as this number: squares of larger ones overflow, and trees compute in float32.
    """
    if not pd.api.types.is_numeric_dtype(column):
        texts = _bare(column).str.replace(TRUTH, lambda word: "1" if word[1] else "0", regex=True)
        numbers: Any = pd.to_numeric(texts, errors="coerce")
        left = numbers.isna() & texts.notna() if not comma else texts.notna()
        if left.any():  # neither 12 nor 1.5
            texts = texts[left]
            thousands = texts.str.match(THOUSANDS) if not comma else texts.notna() & False
            german = texts.str.replace(r"\.(?=\d{3}(?:\D|$))", "", regex=True).str.replace(",", ".", regex=False)
            rest: Any = pd.to_numeric(german.mask(thousands, texts.str.replace(",", "", regex=False)), errors="coerce")
            numbers = numbers.astype(float)
            numbers[left] = rest.astype(float).fillna(_seconds(texts))
        column = numbers
    return column.astype(float).replace([np.inf, -np.inf], np.nan).clip(-LARGEST, LARGEST)


def has_decimal_comma(column: Any) -> bool:
    """Whether commas are decimal commas: in some number of the column the comma cannot separate thousands."""
    if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_datetime64_any_dtype(column):
        return False
    texts = _bare(column.dropna())
    return bool((texts.str.match(DECIMAL_COMMA) & ~texts.str.match(THOUSANDS)).any())


def _bare(column: Any) -> Any:
    """Texts of numbers without units and spaces; (12) is -12, as in accounting."""
    texts = column.astype("string").str.strip().str.replace(UNITS, r"\1", regex=True)
    texts = texts.str.replace(r"(?<=\d)[\s\u00a0\u202f'](?=\d{3}(?:\D|$))", "", regex=True)
    return texts.str.replace(r"^\((.+)\)$", r"-\1", regex=True).str.strip()


def _seconds(texts: Any) -> Any:
    """Seconds of times such as 14:29, 2:29 pm or 1:02:03.5; NaN for others."""
    parts: Any = texts.str.extract(CLOCK)
    hours, minutes, seconds = (parts[place].astype("Float64") for place in range(3))
    half = parts[3].str.lower()
    hours = hours.mask(half.notna(), hours % 12 + 12 * (half == "p").fillna(False).astype(int))
    return (3600 * hours + 60 * minutes + seconds.fillna(0.0)).astype(float)


# --- dates ------------------------------------------------------------------------------------------------------------


def reads_as_dates(known: Any) -> bool:
    """Whether most cells that are not missing are dates."""
    sample = known.iloc[:200].astype(str)
    if not len(sample) or sample.str.match(DATE).mean() < MOSTLY:
        return False
    return max(dates_of(sample, day_first=each).notna().mean() for each in (True, False)) >= MOSTLY


def dates_of(column: Any, *, day_first: bool = False) -> Any:
    """Times in UTC without a zone; cells that are not dates are gaps."""
    mixed: dict[str, Any] = {}
    if not pd.api.types.is_datetime64_any_dtype(column):
        texts = column.astype("string").str.replace(QUARTER, r"\1Q\2", regex=True)
        column = texts.where(texts.str.match(DATE), None)  # pandas takes 14:29 for a moment of today
        mixed = {"format": "mixed", "dayfirst": day_first}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # formats that are guessed
        dates: Any = pd.to_datetime(column, errors="coerce", utc=True, **mixed)
    return dates.dt.tz_localize(None)


def is_day_first(column: Any) -> bool:
    """Whether 3.4.2020 is in April: dates are written with points, or months would otherwise exceed 12."""
    texts = column.dropna().astype(str)
    return bool(
        texts.str.match(r"\s*\d{1,2}\.\d{1,2}\.").mean() > 0.5
        or texts.str.match(r"\s*(1[3-9]|[23]\d)[/-]\d{1,2}[/-]").any()
    )
