"""Tables of users as data frames and arrays, with messages that name the row, the column and the cell.

Rows are counted from 1, the first row below the header, in messages and in results.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidInputError, MissingExtraError, did_you_mean
from .headers import is_number, listed, shortened

if TYPE_CHECKING:  # a table is read before torch is loaded
    from ..ranks import Ranks

try:
    import pandas as pd
    import pyarrow
    import pyarrow.ipc
except ImportError:
    raise MissingExtraError("Reading tables", "apps") from None

MOST_LABELS = 1_000
"""The maximal number of labels on a rank, or half the number of its rows; more labels are names of rows."""
TRUE_WORDS = ("true", "t", "yes", "y", "x", "checked", "1", "1.0")
FALSE_WORDS = ("false", "f", "no", "n", "0", "0.0", "")

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters of cells that a spreadsheet evaluates as formulas."""

Label = str | int | float | bool


@dataclass(frozen=True)
class Table:
    """The rows of a table that this rank holds.

    Parameters
    ----------
    name
        The file or folder of the table, for messages.
    frame
        A pandas data frame, numbered from 0.
    first, all_rows
        The number of rows of the whole table before these, and the number of all its rows (None: these).
    place
        A description of where row numbers start, for messages.
    notes
        Notes about how the table was read.
    """

    name: str
    frame: Any
    first: int = 0
    all_rows: int | None = None
    place: str = "below the header"
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def total(self) -> int:
        """The number of rows on all ranks."""
        return len(self) if self.all_rows is None else self.all_rows

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
        return replace(self, frame=self.frame[[name for name in self.columns if name not in gone]])

    def rows(self, mask: np.ndarray) -> Table:
        """The rows where `mask` is true, renumbered."""
        return Table(self.name, self.frame[mask].reset_index(drop=True))

    def beside(self, frame: Any) -> Table:
        """The table with further columns."""
        if twice := [name for name in frame.columns if name in self.columns]:
            raise InvalidInputError(f"{self.name} has the column {twice[0]!r} already: rename it")
        return replace(self, frame=pd.concat([self.frame, frame], axis=1))

    def require(self, column: str, option: str) -> None:
        """Raise if the table has no such column."""
        if column not in self.columns:
            raise InvalidInputError(
                f"{self.name} has no column {column!r}, which {option} names: its columns are {listed(self.columns)}."
                f"{did_you_mean(column, map(str, self.columns))}"
            )

    def cell(self, row: int, column: str) -> str:
        """The position of a cell, for messages; `row` counts from 0 in these rows."""
        return f"{self.name}, row {self.first + row + 1} {self.place}, column {column!r}"


# --- labels and marks -------------------------------------------------------------------------------------------------


def is_filled(table: Table, column: str) -> np.ndarray:
    """Which cells of a column are not empty, shape (n,); cells of spaces are empty."""
    values = table.column(column)
    here = values.notna().to_numpy()
    return here & (values.astype(str).str.strip() != "").to_numpy() if values.dtype == object else here


def labels_of(table: Table, column: str, ranks: Ranks | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The labels of the rows, shape (n,), and all labels that rows of any rank have, sorted.

    They are whole numbers, truth values or texts, whichever fits all of them. Numbers with a fractional part become
    texts, because scikit-learn treats them as regression targets. Words that differ in case only are one label, in its
    most frequent spelling.
    """
    from ..ranks import Ranks

    ranks = Ranks() if ranks is None else ranks
    values: Any = None
    here: dict[Any, int] = {}
    with ranks.guard(f"reading the labels of {table.name}"):
        values = filled(table, column)
        here = {plain(value): int(size) for value, size in values.value_counts(sort=False).items()}
        if len(here) > max(MOST_LABELS, len(table) / 2):
            raise _too_many_labels(table, column, len(here))
    found: Counter[Any] = Counter()
    for part in ranks.gather(here):
        found.update(part)
    if not found:
        raise InvalidInputError(f"{table.name}: every cell of the label column {column!r} is empty")
    typed: dict[Any, Label] = {value: value for value in found}
    if any(isinstance(value, float) and value % 1 for value in found):
        typed = {value: str(value) for value in found}
    if all(isinstance(value, str) for value in typed.values()):
        typed = dict(zip(found, _typed([str(value).strip() for value in typed.values()]), strict=True))
    spellings: Counter[Label] = Counter()
    for value, size in found.items():
        spellings[typed[value]] += size
    first: dict[Any, Label] = {}
    for label in sorted(spellings, key=lambda each: (-spellings[each], str(each))):
        first.setdefault(folded(label), label)
    typed = {value: first[folded(label)] for value, label in typed.items()}
    classes = np.unique(np.array(list(typed.values())))
    if len(classes) < 2:
        raise InvalidInputError(
            f"{table.name}: all {table.total} rows have the label {shortened(classes[0])} in column {column!r}: "
            "at least two different labels are needed"
        )
    if len(classes) > max(2, table.total / 2):
        raise _too_many_labels(table, column, len(classes))
    code, different = pd.factorize(values)
    return np.array([typed[plain(value)] for value in different], dtype=classes.dtype)[code], classes


def _too_many_labels(table: Table, column: str, count: int) -> InvalidInputError:
    return InvalidInputError(
        f"{table.name}: column {column!r} has {count} different values in {table.total} rows: labels are few names or "
        "numbers that many rows share"
    )


def plain(value: Any) -> Any:
    """Convert NumPy scalars to Python's."""
    return value.item() if isinstance(value, np.generic) else value


def cell_text(value: Any, limit: int = 80) -> str:
    """A cell for people: nothing of a gap, six digits of a number, so many letters of a text."""
    value = plain(value)
    if value is None or (isinstance(value, float) and math.isnan(value)) or str(value) in ("NaT", "<NA>"):
        return ""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def folded(label: Any) -> Any:
    """A word in lower case; m and M may be two labels."""
    return label.casefold() if isinstance(label, str) and len(label) > 1 else label


def _typed(texts: list[str]) -> list[Any]:
    """Convert texts to the simplest type that fits all of them."""
    if all(re.fullmatch(r"0|-?[1-9]\d{0,17}", text) for text in texts):
        return [int(text) for text in texts]
    if all(text in ("True", "False") for text in texts):  # others are written as the file spells them
        return [text == "True" for text in texts]
    if all(re.fullmatch(r"-?(0|[1-9]\d{0,14})\.0", text) for text in texts):
        return [float(text) for text in texts]
    return texts


def matched_labels(
    table: Table, column: str, classes: np.ndarray, of: str, most_unknown: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """The labels of another table as members of `classes`, the labels of the table named `of`, and which rows have one.

    At most the fraction `most_unknown` of the rows may have another label.
    """
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
    here = values.isin(list(matches)).to_numpy(bool)
    if (~here).mean() > most_unknown:
        row = int(np.flatnonzero(~here)[0])
        raise InvalidInputError(
            f"{table.cell(row, column)}: the label {shortened(values[row])} does not occur in {of}, where the labels "
            f"are {listed(classes)}"
        )
    return np.array([matches[value] for value in values[here]], dtype=classes.dtype), here


def _same_number(label: Label, text: str) -> bool:
    return is_number(text) and (not isinstance(label, str) or is_number(label)) and float(text) == float(label)


def marks_of(table: Table, column: str) -> np.ndarray:
    """A column of yes and no, true and false, 1 and 0 or of ticks, as booleans, shape (n,); an empty cell means no."""
    values = table.column(column).astype(object)
    words = values.map(lambda cell: str(cell).strip().lower(), na_action="ignore").fillna("")
    known = words.isin(TRUE_WORDS + FALSE_WORDS).to_numpy()
    if not known.all():
        row = int(np.flatnonzero(~known)[0])
        raise InvalidInputError(
            f"{table.cell(row, column)}: {shortened(values[row])} is neither true ({', '.join(TRUE_WORDS)}) nor false "
            f"({', '.join(word or 'an empty cell' for word in FALSE_WORDS)})"
        )
    return words.isin(TRUE_WORDS).to_numpy()


def filled(table: Table, column: str) -> Any:
    """The column, a pandas Series, with dates and categories as texts; raise if cells are empty."""
    values = table.column(column)
    empty = values.isna().to_numpy()
    if empty.any():
        row = int(np.flatnonzero(empty)[0])
        others = f" ({int(empty.sum())} empty cells in this column)" if empty.sum() > 1 else ""
        raise InvalidInputError(
            f"{table.cell(row, column)}: the cell is empty{others}. Fill in or delete rows with missing values"
        )
    if isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype(values.cat.categories.dtype)
    if pd.api.types.is_datetime64_any_dtype(values):
        return values.astype(str)
    if pd.api.types.is_float_dtype(values) and (odd := ~np.isfinite(values.to_numpy(float))).any():
        row = int(np.flatnonzero(odd)[0])
        raise InvalidInputError(f"{table.cell(row, column)}: {values[row]} is not a finite number")
    return values


# --- columns ----------------------------------------------------------------------------------------------------------


def check_columns(table: Table, expected: Sequence[str], of: str) -> list[str]:
    """Raise if a table lacks columns of the table `of`; return the columns that `of` does not have."""
    present, wanted = table.columns, set(expected)
    missing = sorted(wanted - set(present), key=list(expected).index)
    extra = [name for name in present if name not in wanted]
    if missing:
        also = f"; it has {listed(extra)} instead" if extra else ""
        raise InvalidInputError(f"{table.name} lacks {_count(missing)} of {of}: {listed(missing)}{also}")
    return extra


def _count(names: Sequence[str]) -> str:
    return "a column" if len(names) == 1 else f"{len(names)} columns"


# --- writing ----------------------------------------------------------------------------------------------------------


def table_writer(frame: pd.DataFrame, path: Path, *, raw: bool = False) -> Callable[[Path], None]:
    """A function for `write_together` that writes the frame in the format given by the ending of `path`.

    In text files, cells that a spreadsheet would evaluate as formulas are escaped unless `raw` is set.
    """
    if path.suffix.lower() in (".parquet", ".pq"):
        return lambda temporary: frame.to_parquet(temporary, index=False)
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    shown = frame if raw else map_texts(frame, escape_formula)
    return lambda temporary: shown.to_csv(temporary, index=False, sep=separator)


def map_texts(frame: pd.DataFrame, convert: Callable[[str], str]) -> pd.DataFrame:
    """The frame with its texts converted and everything else unchanged."""
    texts = [name for name, kind in frame.dtypes.items() if getattr(kind, "kind", "O") not in "biufcmM"]
    changed = {name: frame[name].map(lambda cell: convert(cell) if isinstance(cell, str) else cell) for name in texts}
    return frame.assign(**changed) if changed else frame


def escape_formula(text: str) -> str:
    """Escape a text that a spreadsheet would evaluate; numbers are unchanged.

    Examples
    --------
    >>> escape_formula("=1+1"), escape_formula("-3.5"), escape_formula("oak")
    ("'=1+1", '-3.5', 'oak')
    """
    return f"'{text}" if text.startswith(FORMULA) and not is_number(text) else text


def plain_formula(text: str) -> str:
    """The inverse of `escape_formula`.

    Examples
    --------
    >>> plain_formula("'=1+1"), plain_formula("'tis")
    ('=1+1', "'tis")
    """
    return text[1:] if text.startswith("'") and text[1:].startswith(FORMULA) and not is_number(text[1:]) else text


def gathered(frame: pd.DataFrame, ranks: Ranks, *, everywhere: bool = False) -> pd.DataFrame:
    """The rows of all ranks, concatenated, with their index, on rank 0 or `everywhere`; else the frame itself."""
    if ranks.size == 1:
        return frame
    import torch

    from .design import replicated

    content = pyarrow.BufferOutputStream()
    table = pyarrow.Table.from_pandas(frame, preserve_index=True)
    with pyarrow.ipc.new_stream(content, table.schema) as stream:
        stream.write_table(table)
    sent = torch.frombuffer(bytearray(content.getvalue()), dtype=torch.uint8)
    lengths, received = ranks.gather(len(sent)), replicated(sent, ranks) if everywhere else ranks.concat(sent)
    if received is None:
        return frame
    parts = [pyarrow.ipc.open_stream(part.numpy().tobytes()).read_all() for part in received.split(lengths)]
    return pyarrow.concat_tables(parts, promote_options="permissive").to_pandas()
