"""The header of a table's file: names of columns, separator, encoding and compression.

This module imports nothing heavy, so that a wrong name of a file, an option or a column is reported at once.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import math
import os
import shlex
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ..errors import InvalidInputError, did_you_mean

if TYPE_CHECKING:
    from .options import CleanOptions

TEXT_FILES, PARQUET_FILES, ARRAY_FILES = (".csv", ".tsv", ".txt"), (".parquet", ".pq"), (".npy",)
COMPRESSED: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zip": None}
SEPARATORS = ",;\t|"
DECODED = 2**28
"""The number of bytes of a file that must agree with an encoding."""
START = 1 << 20
"""The number of bytes in which the separator and the names of the columns are searched."""
FIRST_LINES = 30
"""The number of first lines among which the header is searched."""
UTF16 = ("utf-16", "utf-16-le", "utf-16-be")
ENCODINGS = {"cp1252": "Windows-1252", "latin-1": "ISO 8859-1", **dict.fromkeys(UTF16, "UTF-16")}
"""The encodings that are tried in addition to UTF-8, and their usual names."""


@dataclass(frozen=True)
class TextHeader:
    """The format of a CSV file, from its first bytes; `notes` are for the user.

    `above` is the number of lines above the header, such as a title or sep=; of Excel. `newline` ends each line; None
    is any of CR, LF and CR LF. If it is LF, a CR within a cell does not end the row.
    """

    names: tuple[str, ...]
    above: int
    separator: str
    encoding: str
    newline: str | None
    notes: tuple[str, ...]


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
    """A cell for a message, quoted if it is a text and shortened if it is long."""
    text = repr(value.item() if hasattr(value, "item") else value)  # NumPy's numbers as Python's
    return text if len(text) <= limit else f"{text[: limit - 4]}...{text[0]}"


def is_number(text: str) -> bool:
    """Whether a text is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def ending(path: Path) -> str:
    """The ending of a file name that states the kind of table, without the ending of a compression.

    Examples
    --------
    >>> ending(Path("train.CSV.gz")), ending(Path("train.zip")), ending(Path("rows.npy"))
    ('.csv', '.csv', '.npy')
    """
    suffix = path.suffix.lower()
    if suffix not in COMPRESSED:
        return suffix
    return Path(path.stem).suffix.lower() or ".csv"


def open_bytes(path: Path) -> BinaryIO:
    """A file, decompressed."""
    suffix = path.suffix.lower()
    if suffix == ".zip":
        return _only_member(path)
    return COMPRESSED[suffix](path, "rb") if suffix in COMPRESSED else path.open("rb")


def _only_member(path: Path) -> BinaryIO:
    with zipfile.ZipFile(path) as archive:
        members = [name for name in archive.namelist() if not name.endswith("/") and "__MACOSX" not in name]
        if len(members) != 1:
            raise InvalidInputError(f"{path} holds {len(members)} files: a table is one file, compressed by itself")
        return archive.open(members[0])  # type: ignore[return-value]


def blocks(path: Path) -> Iterator[bytes]:
    """The decompressed bytes of a file, piece by piece."""
    try:
        with open_bytes(path) as file:
            while block := file.read(START):
                yield block
    except PermissionError as error:
        raise InvalidInputError(f"{path} cannot be read ({error.strerror})") from None
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise InvalidInputError(f"{path} is damaged, or not compressed as its name says ({error})") from None


def text_header(path: Path) -> TextHeader:
    """The header of a CSV file; columns without a name get one, and repeated names a number."""
    about = path.stat()
    return _text_header(path, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=16)
def _text_header(path: Path, *version: int) -> TextHeader:
    start = next(blocks(path), b"")
    if not start.removeprefix(codecs.BOM_UTF8).strip():
        raise InvalidInputError(f"{path} is empty")
    if start[:2] == b"PK":
        raise InvalidInputError(f"{path} is not text but a spreadsheet or an archive: export it as CSV first")
    if start[:2] == b"\x1f\x8b":
        raise InvalidInputError(f"{path} is compressed: its name should end in .csv.gz")
    encoding = _encoding(path)
    notes = []
    if encoding in ENCODINGS:
        notes.append(f"{path.name} is not in UTF-8 and was read as {ENCODINGS[encoding]}")
    try:
        raw, above, separator = max(
            (_names(start, encoding, mark) for mark in SEPARATORS), key=lambda found: len(found[0])
        )
    except csv.Error as error:
        raise InvalidInputError(f"{path}: the header cannot be parsed ({error})") from None
    if not raw:
        raise InvalidInputError(f"{path} is empty")
    if above:
        lines = "a line" if above == 1 else f"{above} lines"
        notes.append(f"{path.name} has {lines} above its header that were left out")
    check_names(path, raw)
    names = distinct(raw)
    if renamed := [name for name, before in zip(names, raw, strict=True) if name != before and name[-1:].isdigit()]:
        shown = ", ".join(map(repr, renamed[:5]))
        notes.append(f"{path.name} has columns without a name, or several of one name: they are called {shown}")
    line = start[: start.find(b"\n") + 1]
    return TextHeader(names, above, separator, encoding, "\n" if line and b"\r" not in line else None, tuple(notes))


def _encoding(path: Path) -> str:
    """UTF-8 if every byte of the first 256 MB agrees, UTF-16 by its mark or zeros, else Windows-1252 or ISO 8859-1."""
    start = next(blocks(path), b"")[:100]
    if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    if min(zeros := (start[::2].count(0), start[1::2].count(0))) == 0 < max(zeros) and max(zeros) > len(start) / 4:
        return "utf-16-be" if zeros[0] else "utf-16-le"
    return next((name for name in ("utf-8-sig", "cp1252") if _decodes(path, name)), "latin-1")


def _decodes(path: Path, encoding: str) -> bool:
    decoder, size = codecs.getincrementaldecoder(encoding)(), 0
    try:
        for block in blocks(path):
            decoder.decode(block)
            size += len(block)
            if size >= DECODED:
                return True
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _names(start: bytes, encoding: str, mark: str) -> tuple[list[str], int, str]:
    """The names above the first row if `mark` separates them, how many lines are above them, and `mark`.

    A line with one cell is a title where the next one has several names. Rows may begin with their number, which has no
    name, or end with a separator.
    """
    lines = io.TextIOWrapper(io.BytesIO(start), encoding=encoding, errors="replace", newline="")
    reader = csv.reader(lines, delimiter=mark, skipinitialspace=True)
    found: list[tuple[int, list[str]]] = []
    try:
        for place, cells in enumerate(islice(reader, FIRST_LINES)):
            if any(map(str.strip, cells)):
                found.append((place, [cell.strip() for cell in cells]))
    except csv.Error:
        if not found:  # reading the rows below the header says what is wrong with them
            raise
    above, rows = [place for place, _ in found], [cells for _, cells in found]
    names, place = rows[0] if rows else [], 0
    while _is_title(names) and place + 1 < len(rows):
        names, place = rows[place + 1], place + 1
    if place and not (len(names) == len(set(names)) > 1 and all(names) and not any(map(is_number, names))):
        names, place = rows[0], 0
    more = [cells for cells in rows[place + 1 :] if len(cells) == len(names) + 1]
    if more and len(more) == len(rows) - place - 1:
        if not any(cells[-1] for cells in more):
            names = [*names, ""]
        elif all(cells[0].isdecimal() for cells in more):
            numbers = [int(cells[0]) for cells in more]
            names = ["", *names] if sorted(set(numbers)) == numbers else names
    return names, above[place] if place else 0, mark


def _is_title(cells: Sequence[str]) -> bool:
    return any(cells[:1]) and ((not any(cells[1:]) and len(cells) != 2) or cells[0].lower() == "sep=")


def distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Make names distinct: an empty one becomes "unnamed 3" by its position, a repeated one "x 2".

    Examples
    --------
    >>> distinct(["", "x", "y", "x"])
    ('unnamed 1', 'x', 'y', 'x 2')
    """
    taken = set(names)
    found: list[str] = []
    for place, name in enumerate(names):
        choice = name or f"unnamed {place + 1}"
        number = 2
        while choice in found or (choice != name and choice in taken):
            choice, number = f"{name or 'unnamed'} {number}", number + 1
        found.append(choice)
    return tuple(found)


def check_names(path: Path, names: Sequence[str]) -> None:
    """Raise if the first line is not a header."""
    if len(names) > 1 and all(is_number(name) for name in names):
        raise InvalidInputError(
            f"{path} has no header: its first line holds numbers ({listed(names, 4)}), but must hold the names of the "
            "columns"
        )
    if odd := next((name for name in names if "\0" in name), None):
        raise InvalidInputError(f"{path}: the name of the column {odd!r} has a zero byte in it: is this a text file?")


def column_names(path: Path) -> tuple[str, ...] | None:
    """The columns of a CSV or Parquet file; None if they are only known after reading it."""
    if not os.path.isfile(path) or path.stat().st_size == 0:  # False for a name that is too long
        return None
    if ending(path) in TEXT_FILES:
        return text_header(path).names
    if ending(path) in PARQUET_FILES:
        import pyarrow
        import pyarrow.parquet as parquet

        try:
            return tuple(name.strip() for name in parquet.read_schema(path).names)
        except (pyarrow.ArrowException, OSError):
            return None  # reading it says what is wrong
    return None


# --- all problems in one message --------------------------------------------------------------------------------------


class Problems:
    """Problems with the input, reported together.

    Examples
    --------
    >>> problems = Problems()
    >>> for name in ("a", "b"):
    ...     with problems.collect():
    ...         raise InvalidInputError(f"{name} is wrong")
    >>> problems.report()
    Traceback (most recent call last):
    ...
    bilevel.errors.InvalidInputError: 2 problems:
      - a is wrong
      - b is wrong
    """

    def __init__(self) -> None:
        self.found: list[str] = []
        self.replacements: dict[str, str] = {}

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Collect an `InvalidInputError` and continue."""
        try:
            yield
        except InvalidInputError as error:
            self.found.append(str(error))

    def note_columns(self, table: Path | str, names: Sequence[str], options: CleanOptions) -> None:
        """Take note of the columns that options name and the table has not."""
        wanted = [(option, name) for option, several in options.named_columns.items() for name in several]
        for option, name in (pair for pair in wanted if pair[1] not in names):
            hint = did_you_mean(name, names)
            which = ", and there is no such file" if option == "--verified" else ": its columns are " + listed(names)
            which = "" if self.found else which  # once is enough
            self.found.append(f"{table} has no column {name!r}, which {option} names{which}.{hint}")
            if hint:
                self.replacements[name] = next(each for each in names if repr(each) in hint)

    def report(self, arguments: Sequence[str] = ()) -> None:
        """Raise if there is a problem; show a corrected command line if there is one that solves all of them."""
        if not self.found:
            return
        text = self.found[0]
        if len(self.found) > 1:
            text = "\n  - ".join([f"{len(self.found)} problems:", *self.found])
        if arguments and len(self.replacements) == len(self.found):
            words = [self.replacements.get(word, word) for word in arguments]
            text += f"\nTry: {shlex.join(['bilevel', *words])}"
        raise InvalidInputError(text)


def check_headers(options: CleanOptions, problems: Problems, arguments: Sequence[str] = ()) -> None:
    """Raise one error with earlier problems and all columns that options name and tables lack."""
    names = column_names(options.table)
    if names is None:
        return problems.report(arguments)
    if len(names) < 2 and not options.features:
        shown = ", ".join(map(repr, names))
        problems.found.append(
            f"{options.table} has only the column {shown}: a label column and at least one other are needed, and the "
            "first line must hold their names, separated by commas"
        )
        return problems.report(arguments)
    problems.note_columns(options.table, names, options)
    for path in filter(None, (options.trusted, options.test)):
        there = column_names(path)
        if there is not None and options.label in names and options.label not in there:
            problems.found.append(
                f"{path} lacks a column of {options.table}: {options.label!r}, the label; its columns are "
                f"{listed(there)}.{did_you_mean(options.label, there)}"
            )
    problems.report(arguments)
