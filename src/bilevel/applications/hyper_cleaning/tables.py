"""Tables of people: CSV and Parquet files in, arrays out, and messages that name the row, the column and the cell.

Rows are counted from 1, the first row below the header, in messages and in results.
"""

from __future__ import annotations

import codecs
import csv
import io
import math
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InvalidInput, MissingExtra, meant
from ...files import FileMissing

try:
    import pandas as pd
    import pyarrow
    import pyarrow.compute as compute
    import pyarrow.parquet as parquet
except ImportError:
    raise MissingExtra("Reading tables", "apps") from None

TEXT_FILES, PARQUET_FILES = (".csv", ".tsv", ".txt"), (".parquet", ".pq")
SEPARATORS = ",;\t|"
LARGEST_TABLE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 if hasattr(os, "sysconf") else 2**34
"""Bytes of memory that a table may fill: half of what the machine has."""
MOSTLY = 0.8
"""A column with at least this share of numbers is meant to hold numbers."""
TRUE_WORDS = ("true", "t", "yes", "y", "x", "checked", "1", "1.0")
FALSE_WORDS = ("false", "f", "no", "n", "0", "0.0", "")

Label = str | int | float | bool


@dataclass(frozen=True)
class Table:
    """A pandas data frame, and the file it came from for messages."""

    name: str
    frame: Any

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def columns(self) -> list[str]:
        """Names, in the order of the file."""
        return list(self.frame.columns)

    def column(self, name: str) -> Any:
        """A pandas Series."""
        return self.frame[name]

    def without(self, names: Iterable[str]) -> Table:
        """The other columns."""
        gone = set(names)
        return Table(self.name, self.frame[[name for name in self.columns if name not in gone]])

    def rows(self, mask: np.ndarray) -> Table:
        """The rows where `mask` is true, counted anew."""
        return Table(self.name, self.frame[mask].reset_index(drop=True))

    def require(self, column: str, option: str) -> None:
        """Refuse a table without this column."""
        if column not in self.columns:
            raise InvalidInput(
                f"{self.name} has no column {column!r}, which {option} names: its columns are {listed(self.columns)}."
                f"{meant(column, map(str, self.columns))}"
            )

    def cell(self, row: int, column: str) -> str:
        """Where something is, for messages; `row` counts from 0."""
        return f"{self.name}, row {row + 1} below the header, column {column!r}"


def listed(names: Iterable[Any], limit: int = 12) -> str:
    """A few names for a message.

    Examples
    --------
    >>> listed(["a", "b"]), listed(range(20), limit=3)
    ("'a', 'b'", '0, 1, 2 and 17 more')
    """
    names = list(names)
    shown = ", ".join(shortened(name) for name in names[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")


def shortened(value: Any, limit: int = 40) -> str:
    """A cell for a message: quoted when it is a text, and cut when it is long."""
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= limit else f"{text[: limit - 4]}...{text[0]}"


# --- reading ----------------------------------------------------------------------------------------------------------


def read_table(path: Path, *, texts: Iterable[str] = ()) -> Table:
    """A CSV file (UTF-8; separated by commas, semicolons, tabs or bars) or a Parquet file.

    Parameters
    ----------
    path
        The file; its ending says which kind it is.
    texts
        Columns of CSV files whose cells stay as they are written, such as labels and categories: "007" is not 7.
    """
    if path.is_dir():
        raise InvalidInput(
            f"{path} is a folder: name a CSV or Parquet file in it (folders of shards: torchrun -m bilevel clean)"
        )
    if not path.exists():
        raise FileMissing(f"{path}: there is no such file")
    if not path.is_file():  # a device or a pipe need not end
        raise InvalidInput(f"{path} is not a regular file")
    check_ending(path)
    try:
        frame = _read_parquet(path) if path.suffix.lower() in PARQUET_FILES else _read_text(path, set(texts))
    except InvalidInput:
        raise
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read ({error.strerror or error})") from None
    if len(frame) == 0:
        raise InvalidInput(f"{path} has a header but no rows")
    return Table(str(path), frame)


def check_ending(path: Path) -> None:
    """Refuse a name that tells neither CSV nor Parquet."""
    if path.suffix.lower() not in TEXT_FILES + PARQUET_FILES:
        raise InvalidInput(f"{path}: the name of a table ends in {', '.join(TEXT_FILES + PARQUET_FILES)}")


def _read_text(path: Path, texts: set[str]) -> pd.DataFrame:
    content = path.read_bytes()
    if not content.removeprefix(codecs.BOM_UTF8).strip():
        raise InvalidInput(f"{path} is empty")
    if content[:2] == b"PK":
        raise InvalidInput(f"{path} is not text but a spreadsheet or an archive: export it as CSV (UTF-8) first")
    try:
        names, separator = _header(content)
    except UnicodeDecodeError:
        raise _wrong_encoding(path, content) from None
    except csv.Error as error:
        raise InvalidInput(f"{path}: the header cannot be taken apart ({error})") from None
    _check_names(path, names)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return pd.read_csv(
                io.BytesIO(content), sep=separator, names=names, header=0, encoding="utf-8-sig", index_col=False,
                dtype={name: str for name in names if name in texts}, keep_default_na=False, na_values=[""],
                skipinitialspace=True, low_memory=False,
                skip_blank_lines=len(names) > 1,  # in a table of one column, a blank line is a row with an empty cell
            )  # fmt: skip
    except UnicodeDecodeError:
        raise _wrong_encoding(path, content) from None
    except pd.errors.ParserWarning:
        raise InvalidInput(f"{path}: the rows have more cells than the header has names ({len(names)})") from None
    except (pd.errors.ParserError, ValueError) as error:
        raise InvalidInput(f"{path}: the table cannot be taken apart ({_parser_message(error)})") from None


def _header(content: bytes) -> tuple[list[str], str]:
    """The names above the first row, and what separates them: the candidate that gives most names."""
    readings: dict[str, list[str]] = {}
    for mark in SEPARATORS:
        lines = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")
        readings[mark] = next(
            (names for names in csv.reader(lines, delimiter=mark, skipinitialspace=True) if names), []
        )
    separator = max(SEPARATORS, key=lambda mark: len(readings[mark]))
    return [name.strip() for name in readings[separator]], separator


def _parser_message(error: Exception) -> str:
    """pandas' reason in other words.

    Examples
    --------
    >>> _parser_message(ValueError("Error tokenizing data. C error: Expected 2 fields in line 3, saw 5"))
    'line 3 has 5 cells, but the header has 2 names'
    """
    if found := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error)):
        expected, line, seen = found.groups()
        return f"line {line} has {seen} cells, but the header has {expected} names"
    if "EOF inside string" in str(error):
        return "a quotation mark is opened and never closed"
    return str(error).splitlines()[0]


def _wrong_encoding(path: Path, content: bytes) -> InvalidInput:
    try:
        content.decode("utf-8")
        where = ""
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        where = f" (byte {content[error.start]:#04x} in line {line})"
    return InvalidInput(
        f"{path} is not in the encoding UTF-8{where}: save it again as UTF-8, in spreadsheets under 'Save as', "
        "'CSV UTF-8'"
    )


def _check_names(path: Path, names: Sequence[str]) -> None:
    if len(names) > 1 and all(_is_number(name) for name in names):
        raise InvalidInput(
            f"{path} has no header: its first line holds numbers ({listed(names, 4)}), but must hold the names of the "
            "columns"
        )
    nameless = [place + 1 for place, name in enumerate(names) if not name]
    if nameless:
        raise InvalidInput(f"{path}: column {nameless[0]} has no name in the header")
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise InvalidInput(f"{path} has more than one column named {listed(twice)}: names must differ")


def _read_parquet(path: Path) -> pd.DataFrame:
    if path.stat().st_size == 0:
        raise InvalidInput(f"{path} is empty")
    try:
        content = parquet.ParquetFile(path)
        _check_names(path, [name.strip() for name in content.schema_arrow.names])
        frame = _expanded(path, content).to_pandas().reset_index(drop=True)
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = str(error).splitlines()[0]
        raise InvalidInput(f"{path} is not a Parquet file, or it is damaged ({reason})") from None
    frame.columns = [str(name).strip() for name in frame.columns]
    return frame


def _expanded(path: Path, content: parquet.ParquetFile) -> pyarrow.Table:
    """The table, whose size in memory is known before it is made: a few bytes may stand for billions of cells."""
    groups = [content.metadata.row_group(i) for i in range(content.metadata.num_row_groups)]
    chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
    check_size(path, sum(max(8 * chunk.num_values, chunk.total_uncompressed_size) for chunk in chunks))
    texts = [field.name for field in content.schema_arrow if _is_text(field.type)]
    table = parquet.ParquetFile(path, read_dictionary=texts).read()  # each different text once
    lengths_of: Any = getattr(compute, "binary_length")  # noqa: B009  (made at run time)
    lengths = [
        int(lengths_of(chunk.dictionary).take(chunk.indices.drop_null()).to_numpy(zero_copy_only=False).sum())
        for name in texts
        for chunk in table.column(name).chunks
    ]
    check_size(path, sum(lengths))
    return table.cast(content.schema_arrow)


def _is_text(kind: Any) -> bool:
    types = pyarrow.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)


def check_size(path: Path, size: int) -> None:
    """Refuse a table that would fill more memory than the machine can spare."""
    if size > LARGEST_TABLE:
        raise InvalidInput(
            f"{path} would fill {size / 1e9:,.1f} GB of memory, and this machine can spare "
            f"{LARGEST_TABLE / 1e9:,.1f} GB: leave out rows or columns"
        )


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


# --- labels and marks -------------------------------------------------------------------------------------------------


def labels_of(table: Table, column: str) -> np.ndarray:
    """The labels of the rows, shape (n,): whole numbers, truth values or texts, whichever fits all of them.

    Numbers with a fractional part are texts: scikit-learn takes them for measurements.
    """
    values = filled(table, column)
    if pd.api.types.is_float_dtype(values) and (values % 1 != 0).any():
        values = values.astype(str)
    kinds = {value: value for value in values.unique()}
    if all(isinstance(value, str) for value in kinds):
        kinds = _typed([value.strip() for value in kinds], kinds)
    labels = np.array([kinds[value] for value in values])
    classes = np.unique(labels)
    if len(classes) < 2:
        raise InvalidInput(
            f"{table.name}: all {len(table)} rows have the label {shortened(classes[0])} in column {column!r}: "
            "at least two different labels are needed"
        )
    if len(classes) > max(2, len(table) / 2):
        raise InvalidInput(
            f"{table.name}: column {column!r} has {len(classes)} different values in {len(table)} rows: labels are few "
            "names or numbers that many rows share"
        )
    return labels


def _typed(texts: list[str], keys: Iterable[str]) -> dict[str, Label]:
    """Texts as the plainest type that all of them fit."""
    if all(re.fullmatch(r"0|-?[1-9]\d{0,17}", text) for text in texts):
        typed: list[Label] = [int(text) for text in texts]
    elif all(text.lower() in ("true", "false") for text in texts):
        typed = [text.lower() == "true" for text in texts]
    elif all(re.fullmatch(r"-?(0|[1-9]\d{0,14})\.0", text) for text in texts):
        typed = [float(text) for text in texts]
    else:
        typed = list(texts)
    return dict(zip(keys, typed, strict=True))


def matched_labels(table: Table, column: str, classes: np.ndarray, of: str) -> np.ndarray:
    """The labels of another table as members of `classes`, the labels of the table named `of`."""
    known = {str(value): value for value in classes.tolist()}
    values = filled(table, column)
    matches: dict[Any, Label] = {}
    for value in values.unique():
        text = str(value).strip()
        same = [label for label in known.values() if _same_number(label, text) or str(label).lower() == text.lower()]
        if text in known:
            matches[value] = known[text]
        elif len(same) == 1:
            matches[value] = same[0]
        else:
            row = int(np.flatnonzero(values == value)[0])
            raise InvalidInput(
                f"{table.cell(row, column)}: the label {shortened(value)} does not occur in {of}, where the labels are "
                f"{listed(classes)}"
            )
    return np.array([matches[value] for value in values], dtype=classes.dtype)


def _same_number(label: Label, text: str) -> bool:
    return not isinstance(label, str) and _is_number(text) and float(text) == float(label)


def marks_of(table: Table, column: str) -> np.ndarray:
    """A column of yes and no, true and false, 1 and 0 or of ticks, as booleans, shape (n,); an empty cell means no."""
    values = table.column(column).astype(object)
    words = values.map(lambda cell: str(cell).strip().lower(), na_action="ignore").fillna("")
    known = words.isin(TRUE_WORDS + FALSE_WORDS).to_numpy()
    if not known.all():
        row = int(np.flatnonzero(~known)[0])
        raise InvalidInput(
            f"{table.cell(row, column)}: {shortened(values[row])} is neither true ({', '.join(TRUE_WORDS)}) nor false "
            f"({', '.join(word or 'an empty cell' for word in FALSE_WORDS)})"
        )
    return words.isin(TRUE_WORDS).to_numpy()


def filled(table: Table, column: str) -> Any:
    """The column, a pandas Series, refused when cells are empty; dates and categories as texts."""
    values = table.column(column)
    empty = values.isna().to_numpy()
    if empty.any():
        row = int(np.flatnonzero(empty)[0])
        others = f" ({int(empty.sum())} empty cells in this column)" if empty.sum() > 1 else ""
        raise InvalidInput(
            f"{table.cell(row, column)}: the cell is empty{others}. Fill in or delete rows with missing values"
        )
    if isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype(values.cat.categories.dtype)
    if pd.api.types.is_datetime64_any_dtype(values):
        return values.astype(str)
    if pd.api.types.is_float_dtype(values) and (odd := ~np.isfinite(values.to_numpy(float))).any():
        row = int(np.flatnonzero(odd)[0])
        raise InvalidInput(f"{table.cell(row, column)}: {values[row]} is not a finite number")
    return values


# --- columns ----------------------------------------------------------------------------------------------------------


def number_column(table: Table, column: str) -> np.ndarray:
    """A column of numbers as floating point, shape (n,); the first cell that is none is named."""
    values = filled(table, column)
    if pd.api.types.is_bool_dtype(values) or pd.api.types.is_numeric_dtype(values):
        return values.to_numpy(float)
    numbers = _as_numbers(values.astype(str).str.strip())
    odd = ~np.isfinite(numbers)
    if odd.any():
        row = int(np.flatnonzero(odd)[0])
        text = str(values[row])
        others = f" ({int(odd.sum())} such cells in this column)" if odd.sum() > 1 else ""
        hint = ""
        if _is_number(text.replace(",", ".")):
            hint = f" (write {text.replace(',', '.')})"
        raise InvalidInput(
            f"{table.cell(row, column)}: {shortened(text)} is not a number{hint}{others}. Correct it, or say that the "
            f"column holds names with --categorical {column}"
        )
    return numbers


def holds_numbers(table: Table, column: str) -> bool:
    """Whether a column is meant to hold numbers: at least four fifths of its cells are."""
    values = table.column(column)
    if isinstance(values.dtype, pd.CategoricalDtype):
        return False
    if pd.api.types.is_datetime64_any_dtype(values):
        raise InvalidInput(
            f"{table.name}: column {column!r} holds dates: turn them into numbers, or leave them out with "
            f"--ignore {column}"
        )
    if pd.api.types.is_bool_dtype(values) or pd.api.types.is_numeric_dtype(values):
        return True
    odd = next((value for value in values.dropna() if not isinstance(value, str | bool | int | float)), None)
    if odd is not None:
        raise InvalidInput(
            f"{table.name}: column {column!r} holds values of type {type(odd).__name__}, neither numbers nor texts: "
            f"leave it out with --ignore {column}"
        )
    texts = values.dropna().astype(str).str.strip().str.replace(",", ".")
    return len(texts) > 0 and bool((~np.isnan(_as_numbers(texts))).mean() >= MOSTLY)


def _as_numbers(texts: Any) -> np.ndarray:
    """The numbers that texts say, NaN where they say none, shape (n,)."""
    numbers: Any = pd.to_numeric(texts, errors="coerce")
    return np.asarray(numbers, dtype=float)


def category_column(table: Table, column: str) -> np.ndarray:
    """A column of categories as texts, shape (n,)."""
    return filled(table, column).astype(str).str.strip().to_numpy(dtype=object)


def check_columns(table: Table, expected: Sequence[str], of: str) -> list[str]:
    """Refuse a table that lacks columns of the table `of`; returns the columns that `of` does not have."""
    present, wanted = table.columns, set(expected)
    missing = sorted(wanted - set(present), key=list(expected).index)
    extra = [name for name in present if name not in wanted]
    if missing:
        also = f"; it has {listed(extra)} instead" if extra else ""
        raise InvalidInput(f"{table.name} lacks {_count(missing)} of {of}: {listed(missing)}{also}")
    return extra


def _count(names: Sequence[str]) -> str:
    return "a column" if len(names) == 1 else f"{len(names)} columns"


# --- writing ----------------------------------------------------------------------------------------------------------


def table_writer(frame: pd.DataFrame, path: Path) -> Callable[[Path], None]:
    """What `write_together` calls to write the frame in the kind that the ending of `path` says."""
    if path.suffix.lower() in PARQUET_FILES:
        return lambda temporary: frame.to_parquet(temporary, index=False)
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    return lambda temporary: frame.to_csv(temporary, index=False, sep=separator)
