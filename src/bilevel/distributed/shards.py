"""A table in several files, or in parts of one: each rank reads its rows, and no others.

    rank r of N holds the rows  n r / N <= i < n (r + 1) / N  of all n, numbered through all files by name

Metadata alone (the footers of Parquet files, the headers of .npy files) says how many rows there are, so every rank
finds the same division without reading any. Text files do not tell how many rows they have: ranks take whole ones, in
the order of their names, balanced by bytes.

    folder/*.parquet, table.parquet      a rank reads the row groups that its rows lie in
    folder/rows-*.npy + labels-*.npy     memory-mapped; columns.txt may name the columns, which are 0, 1, ... else
    folder/*.csv                         at least as many files as ranks
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..applications.hyper_cleaning.encoder import category_names
from ..applications.hyper_cleaning.tables import (
    PARQUET_FILES,
    TEXT_FILES,
    Table,
    check_columns,
    check_size,
    listed,
    read_table,
)
from ..errors import InvalidInput, MissingExtra
from ..files import FileMissing
from .ranks import Ranks, first_line

try:
    import pandas as pd
    import pyarrow
    import pyarrow.parquet as parquet
except ImportError:
    raise MissingExtra("Reading shards", "apps") from None

ARRAY_FILES = (".npy",)
NUMBERED = re.compile(r"(.*?)(\d+)-of-(\d+)")
"""Names such as part-00002-of-00004, which tell how many there should be."""
ENDING = re.compile(r"(.*?)(\d{1,6})")
"""Names such as rows-2, without their ending; longer numbers are dates."""
SAME_FILES = "every rank must see the same files"


@dataclass(frozen=True)
class Shard:
    """A file of a table: its columns with their types, and its rows (None: a text file, known when it is read)."""

    path: Path
    size: int
    rows: int | None
    columns: dict[str, str]

    @property
    def described(self) -> list[Any]:
        """What must be the same on every rank."""
        return [self.path.name, self.size, self.rows, sorted(self.columns.items())]


@dataclass(frozen=True)
class Part(Table):
    """The rows of a table that one rank holds.

    Parameters
    ----------
    name, frame
        As in `Table`.
    first
        How many rows of the whole table are before them.
    total
        How many rows the whole table has.
    files
        How many rows of each file, by name, are among them.
    """

    first: int
    total: int
    files: dict[str, int]

    def without(self, names: Iterable[str]) -> Part:
        """The other columns."""
        gone = set(names)
        return replace(self, frame=self.frame[[name for name in self.columns if name not in gone]])

    def cell(self, row: int, column: str) -> str:
        """Where something is in the whole table; `row` counts from 0 in this part."""
        return f"{self.name}, row {self.first + row + 1} of all its files, column {column!r}"


def read_part(source: Path, label: str, ranks: Ranks, *, texts: Collection[str] = ()) -> Part:
    """The rows of this rank.

    Parameters
    ----------
    source
        A folder of files of one kind, a Parquet file, or rows.npy beside labels.npy.
    label
        The column of labels; that of .npy files, which have no names, gets this one.
    ranks
        Who shares the rows. All of them must call this, and all raise the same error when a file is missing, cannot
        be read, or differs from the others.
    texts
        Further columns of text files whose cells stay as they are written.
    """
    shards: list[Shard] = []
    with ranks.together("looking at the files"):
        shards = _shards_of(source, label)
        _check_same_columns(shards)
    _agree_on_files(shards, ranks)
    if shards[0].rows is None:
        return _read_texts(source, shards, {label, *texts}, ranks)
    total = sum(shard.rows or 0 for shard in shards)
    first, stop = (total * edge // ranks.size for edge in (ranks.rank, ranks.rank + 1))
    if total < ranks.size:
        raise InvalidInput(f"{source} has {total} rows for {ranks.size} processes: start fewer")
    frames: list[pd.DataFrame] = []
    files: dict[str, int] = {}
    with ranks.together("reading its rows"):
        before = 0
        for shard in shards:
            rows = shard.rows or 0
            here = range(max(first - before, 0), min(stop - before, rows))
            if len(here):
                frames.append(_read_rows(shard, here, label).loc[:, list(shards[0].columns)])
                files[shard.path.name] = len(here)
            before += rows
    frame = frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)
    return Part(str(source), frame, first, total, files)


# --- which files ------------------------------------------------------------------------------------------------------


def _shards_of(source: Path, label: str) -> list[Shard]:
    paths = _paths_of(source)
    _check_complete(source, [path.name for path in paths])
    return [_described(path, label) for path in paths]


def _paths_of(source: Path) -> list[Path]:
    """The files of a table, by name; they must be of one kind."""
    if not source.exists():
        raise FileMissing(f"{source}: there is no such file or folder")
    readable = (*PARQUET_FILES, *ARRAY_FILES, *TEXT_FILES)
    found = sorted(source.iterdir()) if source.is_dir() else [source]
    paths = [path for path in found if path.suffix.lower() in readable and not path.name.startswith((".", "_"))]
    arrays = any(path.suffix.lower() in ARRAY_FILES for path in paths)
    if arrays and source.is_dir():
        paths = [path for path in paths if path.name.startswith("rows") and path.suffix.lower() in ARRAY_FILES]
        spare = [path.name for path in found if path.name.startswith("labels") and not _rows_beside(path).exists()]
        if spare:
            raise FileMissing(f"{source}: {spare[0]} has no {_rows_beside(Path(spare[0])).name} beside it")
    if not paths:
        named = "rows-*.npy" if arrays else f"names ending in {', '.join(readable)}"
        raise FileMissing(f"{source} has no files to read: {named}")
    kinds = {_kind(path) for path in paths}
    if len(kinds) > 1:
        raise InvalidInput(f"{source} has files of different kinds, {', '.join(sorted(kinds))}: keep one of them")
    return paths


def _kind(path: Path) -> str:
    named = {".csv": TEXT_FILES, ".npy": ARRAY_FILES, ".parquet": PARQUET_FILES}
    return next(kind for kind, endings in named.items() if path.suffix.lower() in endings)


def _check_complete(source: Path, names: Sequence[str]) -> None:
    """Refuse a folder where a file numbered K-of-N is missing, or one between others that end in a number."""
    numbered = [found for name in names if (found := NUMBERED.match(name))]
    for start, count in sorted({(found[1], int(found[3])) for found in numbered}):
        there = {int(found[2]) for found in numbered if found[1] == start}
        wanted = range(min(there | {1}), count + min(there | {1}))  # from 0, or from 1
        if missing := [number for number in wanted if number not in there]:
            raise FileMissing(
                f"{source} has {len(there)} of {count} files {start}*-of-{count}: number {missing[0]} is missing"
            )

    plain = [found for name in names if not NUMBERED.match(name) and (found := ENDING.fullmatch(Path(name).stem))]
    for start in sorted({found[1] for found in plain}):
        there = {int(found[2]) for found in plain if found[1] == start}
        if missing := sorted(set(range(min(there), max(there))) - there):
            raise FileMissing(
                f"{source} has files {start}{min(there)} to {start}{max(there)}, and number {missing[0]} is missing: "
                "put it there, or number the files without a gap"
            )


def _described(path: Path, label: str) -> Shard:
    """A file, by its metadata alone."""
    size = path.stat().st_size
    if _kind(path) == ".csv":
        return Shard(path, size, None, {})
    if _kind(path) == ".npy":
        rows, labels = _arrays(path)
        kinds = dict.fromkeys(_column_names(path, rows.shape[1]), str(rows.dtype))
        if label in kinds:
            raise InvalidInput(f"{path} has a column {label!r}, which is to be the name of the labels: choose another")
        return Shard(path, size, len(rows), {**kinds, label: str(labels.dtype)})
    try:
        schema, rows = parquet.read_schema(path), parquet.read_metadata(path).num_rows
    except (pyarrow.ArrowException, OSError) as error:
        raise InvalidInput(f"{path} is not a Parquet file, or it is damaged ({first_line(error)})") from None
    return Shard(path, size, rows, {field.name.strip(): str(field.type) for field in schema})


def _check_same_columns(shards: Sequence[Shard]) -> None:
    """Refuse files whose columns differ by name or type; their order does not matter."""
    first = shards[0]
    for shard in shards[1:]:
        if shard.columns == first.columns:
            continue
        check_columns(
            Table(str(shard.path), pd.DataFrame(columns=list(shard.columns))), list(first.columns), str(first.path)
        )
        if extra := [name for name in shard.columns if name not in first.columns]:
            raise InvalidInput(f"{shard.path} has columns that {first.path} has not: {listed(extra)}")
        name = next(name for name, kind in first.columns.items() if shard.columns[name] != kind)
        raise InvalidInput(
            f"column {name!r} is {first.columns[name]} in {first.path} and {shard.columns[name]} in {shard.path}: "
            "write both with the same type"
        )


def _agree_on_files(shards: Sequence[Shard], ranks: Ranks) -> None:
    """Raise on every rank unless all see the same names, sizes, rows and columns."""
    described = [shard.described for shard in shards]
    found = ranks.gather(hashlib.sha256(json.dumps(described).encode()).hexdigest())
    if len(set(found)) == 1:
        return
    number = max(ranks.gather(len(described)))
    for i in range(number):
        name, size, rows, columns = described[i] if i < len(described) else (None, None, None, [])
        ranks.agree({f"file {i + 1}": name, f"the size of {name}": size, f"the rows of {name}": rows}, SAME_FILES)
        ranks.agree({f"the columns of {name}": [list(column) for column in columns]}, SAME_FILES)


# --- arrays and Parquet -----------------------------------------------------------------------------------------------


def _read_rows(shard: Shard, rows: range, label: str) -> pd.DataFrame:
    if _kind(shard.path) == ".npy":
        values, labels = _arrays(shard.path)
        names = [name for name in shard.columns if name != label]
        frame = pd.DataFrame(np.array(values[rows.start : rows.stop]), columns=names)
        frame[label] = np.array(labels[rows.start : rows.stop])
        return frame
    try:
        return _read_groups(shard.path, rows)
    except (pyarrow.ArrowException, OSError) as error:
        raise InvalidInput(f"{shard.path} cannot be read, or it is damaged ({first_line(error)})") from None


def _read_groups(path: Path, rows: range) -> pd.DataFrame:
    """Some rows of a Parquet file, from the row groups they lie in."""
    with parquet.ParquetFile(path) as file:
        ends = np.cumsum([file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)])
        groups = range(
            int(np.searchsorted(ends, rows.start, "right")), int(np.searchsorted(ends, rows.stop - 1, "right")) + 1
        )
        check_size(path, sum(file.metadata.row_group(i).total_byte_size for i in groups))
        before = int(ends[groups.start - 1]) if groups.start else 0
        table = file.read_row_groups(list(groups)).slice(rows.start - before, len(rows))
    frame = table.to_pandas().reset_index(drop=True)
    frame.columns = [str(name).strip() for name in frame.columns]
    return frame


def _arrays(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The memory-mapped rows, shape (n, d), and labels, shape (n,), of a pair of files."""
    beside = path.with_name("labels" + path.name.removeprefix("rows"))
    if not path.name.startswith("rows"):
        raise InvalidInput(f"{path}: name it rows.npy or rows-*.npy, with the labels in labels.npy or labels-*.npy")
    rows, labels = _mapped(path), _mapped(beside)
    if rows.ndim != 2 or rows.dtype.kind not in "fiu":
        raise InvalidInput(f"{path} must hold numbers of the shape (rows, columns), got {rows.dtype} {rows.shape}")
    if labels.shape != rows.shape[:1] or labels.dtype.kind not in "iubU":
        raise InvalidInput(
            f"{beside} must hold {len(rows)} whole numbers or texts, the labels of {path.name}, got {labels.dtype} "
            f"{labels.shape}"
        )
    return rows, labels


def _mapped(path: Path) -> np.ndarray:
    try:
        return np.lib.format.open_memmap(path, mode="r")  # which holds no objects of Python
    except FileNotFoundError:
        raise FileMissing(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} is not an array of NumPy, or it is damaged ({first_line(error)})") from None


def _rows_beside(labels: Path) -> Path:
    return labels.with_name("rows" + labels.name.removeprefix("labels"))


def _column_names(path: Path, count: int) -> list[str]:
    """What columns.txt beside the arrays says, a name per line, or else 0, 1, ..."""
    told = path.with_name("columns.txt")
    names = told.read_text(encoding="utf-8").split("\n") if told.exists() else [str(i) for i in range(count)]
    names = [name.strip() for name in names if name.strip()]
    if len(names) != count or len(set(names)) != count:
        raise InvalidInput(f"{told} has {len(names)} names, {len(set(names))} of them different, for {count} columns")
    return names


# --- text files -------------------------------------------------------------------------------------------------------


def _read_texts(source: Path, shards: Sequence[Shard], texts: set[str], ranks: Ranks) -> Part:
    """Whole text files, whose columns must be of one kind in all of them: numbers or texts."""
    if len(shards) < ranks.size:
        raise InvalidInput(
            f"{source} has {len(shards)} text files for {ranks.size} processes, and each takes whole files: divide it "
            "into more files, or write it as Parquet, of which processes read parts"
        )
    tables: list[Table] = []
    kinds: list[list[Any]] = []
    with ranks.together("reading its files"):
        tables = [read_table(shard.path, texts=texts) for shard in _share(shards, ranks)]
        kinds = [
            [name, name in texts or name in category_names(table)] for table in tables[:1] for name in table.columns
        ]
        for table in tables[1:]:
            _check_same_texts(table, tables[0], {str(name): bool(text) for name, text in kinds}, texts)
    first_columns = ranks.gather(kinds)[0]
    ranks.agree({"the columns": sorted(name for name, _ in kinds)}, "files of one table have the same columns")
    texts_found = {f"whether column {name!r} holds texts": text for name, text in sorted(kinds)}
    ranks.agree(texts_found, "correct its cells, or name it with --categorical")
    frame = pd.concat([table.frame[[name for name, _ in first_columns]] for table in tables], ignore_index=True)
    counts = ranks.gather(len(frame))
    files = {Path(table.name).name: len(table) for table in tables}
    return Part(str(source), frame, sum(counts[: ranks.rank]), sum(counts), files)


def _share(shards: Sequence[Shard], ranks: Ranks) -> Sequence[Shard]:
    """Consecutive files of about the same number of bytes for each rank, at least one."""
    ends = np.cumsum([shard.size for shard in shards])
    cuts = [0]
    for edge in range(1, ranks.size):
        wanted = int(np.searchsorted(ends, ends[-1] * edge / ranks.size)) + 1
        cuts.append(min(max(wanted, cuts[-1] + 1), len(shards) - (ranks.size - edge)))
    return shards[slice(*[*cuts, len(shards)][ranks.rank : ranks.rank + 2])]


def _check_same_texts(table: Table, first: Table, kinds: dict[str, bool], texts: set[str]) -> None:
    if extra := check_columns(table, first.columns, first.name):
        raise InvalidInput(f"{table.name} has columns that {first.name} has not: {listed(extra)}")
    found = set(category_names(table)) | texts
    if odd := next((name for name, text in kinds.items() if text != (name in found)), None):
        raise InvalidInput(
            f"column {odd!r} holds {'texts' if kinds[odd] else 'numbers'} in {first.name} and not in {table.name}: "
            f"correct its cells, or add --categorical {odd}"
        )
