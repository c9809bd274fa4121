"""Files of tables: each rank reads its rows, and no others.

    table.csv, table.csv.gz, table.parquet  one file
    rows.npy beside labels.npy              memory-mapped; columns.txt may name the columns, which are 0, 1, ... else
    folder/*.csv, *.parquet or rows-*.npy   the files of a folder, concatenated in the order of their names

Rank r of N holds the rows n r / N <= i < n (r + 1) / N of all n. It reads the row groups of a Parquet file that contain
them and maps arrays; a text file is read in pieces, of which the rank keeps its rows.
"""

from __future__ import annotations

import io
import json
import os
import re
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidInputError, MissingExtraError, MissingFileError, first_line
from .headers import (
    ARRAY_FILES,
    COMPRESSED,
    PARQUET_FILES,
    TEXT_FILES,
    check_names,
    distinct,
    ending,
    open_bytes,
    text_header,
)
from .tables import Table, check_columns, listed, map_texts, plain_formula

if TYPE_CHECKING:  # a table is read before torch is loaded
    from ..ranks import Ranks
    from .options import CleanOptions

try:
    import pandas as pd
    import pyarrow
    import pyarrow.compute as compute
    import pyarrow.parquet as parquet
except ImportError:
    raise MissingExtraError("Reading tables", "apps") from None

NUMBERED = re.compile(r"(.*?)(\d{1,6})(?:-of-(\d+).*)?")
"""Names such as rows-2, or part-00002-of-00004, which tells how many there should be; longer numbers are dates."""
DAMAGED_ARRAY = (
    OSError, ValueError, TypeError, SyntaxError, TokenError, EOFError, OverflowError, RuntimeError, KeyError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What NumPy and zipfile raise at arrays that are damaged; RuntimeError where they are encrypted."""
LARGEST_TABLE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 if hasattr(os, "sysconf") else 2**34
"""The largest size of a table in memory, in bytes: half of the memory of the machine."""
PIECE = 50_000
"""The number of rows of a text file that are read together."""
COPIES = 3
"""The approximate number of copies of a table in memory during encoding and training."""


def read_table(path: Path, ranks: Ranks | None = None, *, texts: Iterable[str] = (), label: str = "label") -> Table:
    """The rows of this rank of a file, or of a folder of files of one kind.

    Parameters
    ----------
    path
        A CSV file (separated by commas, semicolons, tabs or bars; it may be compressed), a Parquet file, rows.npy or a
        folder; the endings of names say which kind it is.
    ranks
        The processes that divide the rows, all of which must call this; default a single process.
    texts
        Columns of CSV files whose cells stay as they are written, such as labels and categories: "007" is not 7.
    label
        The name of the labels of labels.npy.
    """
    if ranks is None or ranks.size == 1:
        files = _opened_files(path, label)
        frames = _frames([(file, slice(None)) for file in files], set(texts), lambda pairs: [pairs])
        return _table(path, files, frames, 0, None)
    files = []
    with ranks.guard(f"looking at {path}"):
        files = _opened_files(path, label)
    sizes = {f"the size of {file.path.name}": file.path.stat().st_size for file in files}
    kinds = {f"the type of column {name!r}": kind for name, kind in files[0].columns.items()}
    ranks.agree({**sizes, **kinds}, "every rank must see the same files")
    parts, first, total = _division(path, files, ranks)
    frames = _frames(parts, set(texts), ranks.gather, lambda: ranks.guard(f"reading its rows of {path}"))
    return _table(path, files, frames, first, total)


def read_training(options: CleanOptions, ranks: Ranks | None = None) -> Table:
    """This rank's rows of the training table of `bilevel clean`."""
    texts = {options.label, *(options.categorical or ()), *filter(None, [options.verified])}
    return read_table(options.table, ranks, texts=texts, label=options.label)


def _opened_files(path: Path, label: str) -> list[Any]:
    files = [_opened(file, label) for file in _files_of(path)]
    _check_same_columns(files)
    return files


def _frames(
    parts: Sequence[tuple[Any, slice]], texts: set[str], gather: Callable[[Any], list[Any]],
    guard: Callable[[], Any] = nullcontext,
) -> list[pd.DataFrame]:  # fmt: skip
    """The rows of files; a column with texts in one piece and numbers in another is read again as texts."""
    frames: list[pd.DataFrame] = []
    while True:
        with guard():
            frames = [piece for file, part in parts for piece in file.read(part, texts)]
        pairs = {
            (name, "number" if kind.kind in "iuf" else kind.kind) for f in frames for name, kind in f.dtypes.items()
        }
        found = Counter(name for name, _ in {tuple(pair) for part in gather(sorted(pairs)) for pair in part})
        mixed = {name for name, kinds in found.items() if kinds > 1} - texts
        if not mixed or not any(isinstance(file, _TextFile) for file, _ in parts):
            return frames
        texts = texts | mixed


def _table(path: Path, files: Sequence[Any], frames: list[pd.DataFrame], first: int, total: int | None) -> Table:
    frame = frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)
    frame = frame[list(files[0].columns)].reset_index(drop=True)
    if len(frame) == 0:
        raise InvalidInputError(f"{path} has a header but no rows")
    notes = tuple(dict.fromkeys(note for file in files for note in getattr(file, "notes", ())))
    place = "below the header" if path.is_file() else "of all its files"
    return Table(str(path), frame, first, total, place, notes)


def _division(path: Path, files: Sequence[Any], ranks: Ranks) -> tuple[list[Any], int, int]:
    """The files with the rows that this rank reads, the number of rows before them, and the number of all rows."""
    import torch

    counts = [0] * len(files)
    with ranks.guard(f"counting the rows of {path}"):  # each file is counted by one rank
        counts = [file.count() if i % ranks.size == ranks.rank else 0 for i, file in enumerate(files)]
    sizes = ranks.sum(torch.tensor(counts)).numpy()
    total, ends = int(sizes.sum()), np.cumsum(sizes)
    if total < ranks.size:
        raise InvalidInputError(f"{path} has {total} rows for {ranks.size} processes: start fewer")
    mine = np.array([total * (ranks.rank + edge) // ranks.size for edge in (0, 1)])
    cuts = [np.clip(mine - (end - size), 0, size).tolist() for end, size in zip(ends, sizes, strict=True)]
    return [(file, slice(*cut)) for file, cut in zip(files, cuts, strict=True) if cut[0] < cut[1]], int(mine[0]), total


def _files_of(path: Path) -> list[Path]:
    """The files of a table in the order of their names, which must be of one kind."""
    endings = tuple(_KINDS)
    if not path.exists():
        raise MissingFileError(f"{path}: there is no such file")
    if path.is_file():
        if ending(path) not in endings:
            raise InvalidInputError(
                f"{path}: the name of a table ends in {', '.join(endings)}; text files may be compressed "
                f"({', '.join(COMPRESSED)})"
            )
        return [path]
    if not path.is_dir():  # a device or a pipe need not end
        raise InvalidInputError(f"{path} is not a regular file")
    found = [file for file in sorted(path.iterdir()) if ending(file) in endings and file.name[0] not in "._"]
    arrays = [file for file in found if _KINDS[ending(file)] is _ArrayFile]
    alone = next((f for f in arrays if f.name.startswith("labels") and not _beside(f, "labels", "rows").exists()), None)
    if alone is not None:
        raise MissingFileError(f"{path}: {alone.name} has no {_beside(alone, 'labels', 'rows').name} beside it")
    found = [file for file in found if file.name != "columns.txt" and not (file in arrays and file.name[0] == "l")]
    if not found:
        raise MissingFileError(f"{path} is a folder without a table: a file whose name ends in {', '.join(endings)}")
    kinds = {ending(file) for file in found}
    if len({_KINDS[kind] for kind in kinds}) > 1:
        raise InvalidInputError(f"{path} has files of different kinds, {', '.join(sorted(kinds))}: keep one of them")
    _check_complete(path, found)
    return found


def _check_complete(folder: Path, files: Sequence[Path]) -> None:
    """Raise if one of several numbered files is missing."""
    there: dict[tuple[str, str], set[int]] = {}
    for file in files:
        if found := NUMBERED.fullmatch(file.stem):
            there.setdefault((found[1], found[3] or ""), set()).add(int(found[2]))
    for (start, count), numbers in sorted(there.items()):
        first = min(numbers | {1}) if count else min(numbers)  # K-of-N count from 0 or from 1
        last = first + int(count) - 1 if count else max(numbers)
        if missing := sorted(set(range(first, last + 1)) - numbers):
            raise MissingFileError(
                f"{folder} has files {start}{first} to {start}{last}, and number {missing[0]} is missing: put it "
                "there, or number the files without a gap"
            )


def _opened(path: Path, label: str) -> Any:
    try:
        return _KINDS[ending(path)](path, label)
    except InvalidInputError:
        raise
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read ({error.strerror or error})") from None


def _check_same_columns(files: Sequence[Any]) -> None:
    """Raise if the columns of files differ by name or type; their order does not matter."""
    first = files[0]
    for file in files[1:]:
        extra = check_columns(
            Table(str(file.path), pd.DataFrame(columns=list(file.columns))), list(first.columns), str(first.path)
        )
        if extra:
            raise InvalidInputError(f"{file.path} has columns that {first.path} lacks: {listed(extra)}")
        if name := next((name for name, kind in first.columns.items() if file.columns[name] != kind), None):
            raise InvalidInputError(
                f"column {name!r} is {first.columns[name]} in {first.path} and {file.columns[name]} in {file.path}: "
                "write both with the same type"
            )


def check_size(path: Path, size: int, rows: int | None = None) -> None:
    """Raise if a table would fill more memory than the machine can spare."""
    if size > LARGEST_TABLE:
        counted = "" if rows is None else f" has about {rows:,} rows and"
        raise InvalidInputError(
            f"{path}{counted} would fill {size / 1e9:,.1f} GB of memory, and this machine can spare "
            f"{LARGEST_TABLE / 1e9:,.1f} GB: leave out rows or columns"
        )


def read_vectors(path: Path, rows: int, of: str) -> pd.DataFrame:
    """One vector per row of a table, as columns "feature 1", "feature 2", ...

    Parameters
    ----------
    path
        A .npy file, a .npz file of one array, or a Parquet file of numbers or of one column of lists.
    rows, of
        How many rows the table named `of` has.
    """
    vectors = _vectors(path)
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiub" or len(vectors) != rows:
        raise InvalidInputError(
            f"{path} must hold a vector of numbers for each of the {rows} rows of {of}, shape ({rows}, columns), got "
            f"{vectors.dtype} {vectors.shape}"
        )
    return pd.DataFrame(vectors, columns=[f"feature {place}" for place in range(1, vectors.shape[1] + 1)])


def _vectors(path: Path) -> np.ndarray:
    if not path.exists():
        raise MissingFileError(f"{path}: there is no such file")
    if path.suffix.lower() == ".npy":
        return np.asarray(_mapped(path))
    if path.suffix.lower() == ".npz":
        try:
            with np.load(path, allow_pickle=False) as arrays:
                if len(arrays.files) != 1:
                    raise InvalidInputError(f"{path} holds the arrays {listed(arrays.files)}: one is needed")
                return arrays[arrays.files[0]]
        except InvalidInputError:
            raise
        except DAMAGED_ARRAY as error:
            raise InvalidInputError(f"{path} is damaged ({first_line(error)})") from None
    if path.suffix.lower() not in PARQUET_FILES:
        raise InvalidInputError(f"{path}: the name of a file of vectors ends in .npy, .npz or .parquet")
    (frame,) = _ParquetFile(path, "label").read(slice(None), set())
    if len(frame.columns) == 1 and frame.dtypes.iloc[0].kind == "O":
        return np.stack(frame.iloc[:, 0].to_list())
    return frame.to_numpy()


class _TextFile:
    """A CSV file; the types of its columns and the number of its rows are known only after reading it."""

    def __init__(self, path: Path, label: str) -> None:
        self.path = path
        if path.suffix.lower() not in COMPRESSED:  # before all of it is read: numbers fill a quarter of their text
            check_size(path, path.stat().st_size // 4)
        self.header = text_header(path)
        self.notes = self.header.notes
        self.columns = dict.fromkeys(self.header.names, "text")

    def count(self) -> int:
        return sum(len(piece) for piece in self._pieces(set(), PIECE))

    def read(self, rows: slice, texts: set[str]) -> list[pd.DataFrame]:
        if rows == slice(None):
            return list(self._checked(self._pieces(texts, PIECE)))
        wanted = (piece.loc[rows.start : rows.stop - 1] for piece in self._pieces(texts, PIECE))
        return [piece for piece in wanted if len(piece)]

    def _checked(self, pieces: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """The pieces; raise as soon as their size in memory shows that the table is too large."""
        size, rows, whole = 0, 0, self.path.stat().st_size
        for piece in pieces:
            size, rows = size + int(piece.memory_usage(deep=True).sum()), rows + len(piece)
            if len(piece) == PIECE and self.path.suffix.lower() not in COMPRESSED:
                share = max(1.0, whole / self._bytes)  # of the file, to what was read of it
                check_size(self.path, int(COPIES * size * share), int(rows * share))
            else:
                check_size(self.path, COPIES * size, rows)
            yield piece

    def _pieces(self, texts: set[str], size: int) -> Iterator[pd.DataFrame]:
        """The rows that are not empty, so many at a time, numbered through."""
        names, count = list(self.columns), 0
        try:
            with (
                warnings.catch_warnings(),
                open_bytes(self.path) as file,
                io.TextIOWrapper(file, encoding=self.header.encoding, newline="") as lines,
            ):
                warnings.simplefilter("error", pd.errors.ParserWarning)
                found: Any = pd.read_csv(
                    lines, sep=self.header.separator, lineterminator=self.header.newline,
                    names=names, header=0, skiprows=self.header.above, index_col=False,
                    dtype={name: str for name in names if name in texts},
                    keep_default_na=False, na_values=[""], skipinitialspace=True, low_memory=False, chunksize=size,
                    skip_blank_lines=len(names) > 1,  # in a table of one column, a blank line is an empty cell
                )  # fmt: skip
                for piece in found:
                    self._bytes = max(1, file.tell())
                    if len(names) > 1:  # spreadsheets write lines of commas
                        piece = piece.dropna(how="all")
                    piece.index = pd.RangeIndex(count, count := count + len(piece))
                    yield map_texts(piece, plain_formula)
        except pd.errors.ParserWarning:
            raise InvalidInputError(
                f"{self.path}: the rows have more cells than the header has names ({len(names)})"
            ) from None
        except (pd.errors.ParserError, ValueError, EOFError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise InvalidInputError(f"{self.path}: the table cannot be parsed ({_parser_message(error)})") from None


def _parser_message(error: Exception) -> str:
    """The message of pandas' parser in plain words.

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


class _ParquetFile:
    """A Parquet file, of which only the row groups with the requested rows are read."""

    def __init__(self, path: Path, label: str) -> None:
        self.path = path
        if path.stat().st_size == 0:
            raise InvalidInputError(f"{path} is empty")
        with self._damage_named(), parquet.ParquetFile(path) as file:
            self.metadata, self.schema = file.metadata, file.schema_arrow
            names = [name.strip() for name in self.schema.names]
        check_names(path, names)
        if distinct(names) != tuple(names):
            raise InvalidInputError(f"{path} has columns without a name, or several of one name: {listed(names)}")
        self.columns = {part.name.strip(): str(part.type) for part in self.schema if part.name not in self._index}

    @cached_property
    def _index(self) -> list[str]:
        """The columns that pandas wrote as the index of a frame: row numbers, not features."""
        try:
            listed = json.loads(self.schema.metadata[b"pandas"])["index_columns"]
        except (LookupError, TypeError, ValueError, RecursionError):  # whatever somebody has written there
            listed = []
        return [name for name in self.schema.names if name in (listed if isinstance(listed, list) else ())]

    def count(self) -> int:
        return self.metadata.num_rows

    def read(self, rows: slice, texts: set[str]) -> list[pd.DataFrame]:
        first, stop, _ = rows.indices(self.count())
        ends = np.cumsum([self.metadata.row_group(i).num_rows for i in range(self.metadata.num_row_groups)])
        groups = [i for i, end in enumerate(ends) if first < end and end - self.metadata.row_group(i).num_rows < stop]
        before = 0 if not groups else int(ends[groups[0]]) - self.metadata.row_group(groups[0]).num_rows
        with self._damage_named():
            frame = self._expanded(groups).slice(first - before, stop - first)
            frame = frame.drop_columns(self._index).replace_schema_metadata().to_pandas()
        frame.columns = [str(name).strip() for name in frame.columns]
        return [frame]

    @contextmanager
    def _damage_named(self) -> Iterator[None]:
        try:
            yield
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise InvalidInputError(
                f"{self.path} is not a Parquet file, or it is damaged ({first_line(error)})"
            ) from None

    def _expanded(self, groups: list[int]) -> pyarrow.Table:
        """The rows, checked for their size in memory first: a few bytes may represent billions of cells."""
        chunks = [self.metadata.row_group(i).column(j) for i in groups for j in range(self.metadata.num_columns)]
        check_size(self.path, sum(max(8 * chunk.num_values, chunk.total_uncompressed_size) for chunk in chunks))
        texts = [field.name for field in self.schema if _is_text(field.type)]
        with parquet.ParquetFile(self.path, read_dictionary=texts) as file:
            table = file.read_row_groups(groups)  # each different text once
        lengths_of: Any = getattr(compute, "binary_length")  # noqa: B009  (made at run time)
        lengths = [
            int(lengths_of(chunk.dictionary).take(chunk.indices.drop_null()).to_numpy(zero_copy_only=False).sum())
            for name in texts
            for chunk in table.column(name).chunks
        ]
        check_size(self.path, sum(lengths))
        return table.cast(self.schema)


def _is_text(kind: Any) -> bool:
    types = pyarrow.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)


class _ArrayFile:
    """rows*.npy, memory-mapped, with labels*.npy; columns.txt in the same folder may name the columns."""

    def __init__(self, path: Path, label: str) -> None:
        self.path, self.label = path, label
        if not path.name.startswith("rows"):
            raise InvalidInputError(
                f"{path}: name it rows.npy or rows-*.npy, with the labels in labels.npy or labels-*.npy"
            )
        beside = _beside(path, "rows", "labels")
        self.rows, self.labels = _mapped(path), _mapped(beside)
        if self.rows.ndim != 2 or self.rows.dtype.kind not in "fiu":
            raise InvalidInputError(
                f"{path} must hold numbers of the shape (rows, columns), got {self.rows.dtype} {self.rows.shape}"
            )
        if self.labels.shape != self.rows.shape[:1] or self.labels.dtype.kind not in "iubU":
            raise InvalidInputError(
                f"{beside} must hold {len(self.rows)} whole numbers or texts, the labels of {path.name}, got "
                f"{self.labels.dtype} {self.labels.shape}"
            )
        names, count = self._names(), self.rows.shape[1]
        if len(names) != count or len({*names, label}) != count + 1:
            raise InvalidInputError(
                f"columns.txt beside {path} has {len(names)} names, {len(set(names))} of them different, for {count} "
                f"columns beside the labels, {label!r}"
            )
        self.columns = {**dict.fromkeys(names, str(self.rows.dtype)), label: str(self.labels.dtype)}

    def _names(self) -> list[str]:
        named = self.path.with_name("columns.txt")
        if not named.exists():
            return [str(i) for i in range(self.rows.shape[1])]
        return [name.strip() for name in named.read_text(encoding="utf-8").split("\n") if name.strip()]

    def count(self) -> int:
        return len(self.rows)

    def read(self, rows: slice, texts: set[str]) -> list[pd.DataFrame]:
        frame = pd.DataFrame(np.array(self.rows[rows]), columns=self._names())
        return [frame.assign(**{self.label: np.array(self.labels[rows])})]


def _beside(path: Path, start: str, other: str) -> Path:
    return path.with_name(other + path.name.removeprefix(start))


def _mapped(path: Path) -> np.ndarray:
    try:
        return np.lib.format.open_memmap(path, mode="r")  # which holds no objects of Python
    except FileNotFoundError:
        raise MissingFileError(f"{path}: there is no such file") from None
    except DAMAGED_ARRAY as error:
        raise InvalidInputError(f"{path} is not an array of NumPy, or it is damaged ({first_line(error)})") from None


_KINDS = {
    **dict.fromkeys(TEXT_FILES, _TextFile),
    **dict.fromkeys(PARQUET_FILES, _ParquetFile),
    **dict.fromkeys(ARRAY_FILES, _ArrayFile),
}
"""The reader of a file, by the ending of its name."""
