"""Ranks read their part of a table and no more, and all refuse a table that they do not see alike."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as parquet
import pytest
from tests.distributed.ranks import on_ranks

from bilevel.distributed import Ranks
from bilevel.distributed.shards import read_part
from bilevel.errors import BilevelError, InvalidInput
from bilevel.files import FileMissing


def frame(rows=23):
    return pd.DataFrame({"a": np.arange(rows) * 1.0, "b": np.arange(rows) % 3, "label": np.arange(rows) % 2})


def write_parquet(folder: Path, sizes=(10, 3, 10), groups=4) -> None:
    folder.mkdir(exist_ok=True)
    whole, first = frame(sum(sizes)), 0
    for i, size in enumerate(sizes):
        part = whole[first : first + size]
        part = part[["label", "b", "a"]] if i == 1 else part  # columns go by name
        part.to_parquet(folder / f"part-{i}.parquet", index=False, row_group_size=groups)
        first += size


def write_arrays(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    whole, first = frame(), 0
    for i, size in enumerate((10, 3, 10)):
        rows = whole[first : first + size]
        np.save(folder / f"rows-{i}.npy", rows[["a", "b"]].to_numpy(np.float32))
        np.save(folder / f"labels-{i}.npy", rows["label"].to_numpy())
        first += size


def read(ranks, *paths):
    """What each path gives on this rank; RANK in it is the number of the rank."""
    found = []
    for path in paths:
        try:
            part = read_part(Path(path.replace("RANK", str(ranks.rank))), "label", ranks)
            values = part.frame.to_numpy().tolist()
            found.append({"first": part.first, "rows": values, "columns": part.columns, "files": part.files})
        except BilevelError as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def write_shared_groups(folder: Path) -> Path:
    """A table for each of two ranks, in which the pages of row groups that are not its own are overwritten."""
    for rank, mine in enumerate((range(0, 3), range(2, 6))):  # 23 rows in groups of 4, cut at row 11: group 2 is shared
        path = folder / f"groups-{rank}" / "table.parquet"
        path.parent.mkdir()
        frame().to_parquet(path, index=False, row_group_size=4)
        content, metadata = bytearray(path.read_bytes()), parquet.read_metadata(path)
        for group in set(range(metadata.num_row_groups)) - set(mine):
            for i in range(metadata.num_columns):
                column = metadata.row_group(group).column(i)
                start = column.dictionary_page_offset or column.data_page_offset
                content[start : start + column.total_compressed_size] = bytes(column.total_compressed_size)
        path.write_bytes(content)
        with pytest.raises(Exception, match=r".+"):
            parquet.read_table(path)
    return folder / "groups-RANK" / "table.parquet"


def write_texts(folder: Path) -> Path:
    folder.mkdir()
    for i in range(3):
        frame()[i * 8 : i * 8 + 8].to_csv(folder / f"{i}.csv", index=False)
    return folder


def test_parts_are_the_table_in_order_and_balanced(tmp_path):
    write_parquet(tmp_path / "rows")
    write_arrays(tmp_path / "arrays")
    folders = [tmp_path / "rows", tmp_path / "arrays", write_texts(tmp_path / "texts"), write_shared_groups(tmp_path)]
    found = on_ranks(read, 2, *map(str, folders))
    for i in range(len(folders)):
        rows = [row for parts in found for row in parts[i]["rows"]]
        assert [[float(cell) for cell in row] for row in rows] == frame().to_numpy().tolist(), folders[i]
        assert [parts[i]["first"] for parts in found] == [0, 16 if i == 2 else 11]
    alone = read(Ranks(), *map(str, folders[:3]))
    assert [len(part["rows"]) for part in alone] == [23] * 3
    assert found[0][0]["columns"] == found[1][0]["columns"] == ["a", "b", "label"]
    assert found[0][1]["columns"] == ["0", "1", "label"]
    assert [parts[1]["files"] for parts in found] == [
        {"rows-0.npy": 10, "rows-1.npy": 1},
        {"rows-1.npy": 2, "rows-2.npy": 10},
    ]


def test_arrays_may_have_names(tmp_path):
    write_arrays(tmp_path)
    (tmp_path / "columns.txt").write_text("a\nb\n")
    assert read_part(tmp_path, "label", Ranks()).columns == ["a", "b", "label"]
    (tmp_path / "columns.txt").write_text("a\na\n")
    with pytest.raises(InvalidInput, match="2 names, 1 of them different, for 2 columns"):
        read_part(tmp_path, "label", Ranks())


def write_differing(folder: Path) -> dict[Path, tuple[str, ...]]:
    """Tables that the two ranks do not see alike, and what they must be told."""
    for rank in range(2):
        write_parquet(folder / f"fewer-{rank}")
        tables = {"columns": frame().rename(columns={"b": "c"}), "types": frame().astype({"a": "float32"})}
        for kind, other in tables.items():
            (folder / f"{kind}-{rank}").mkdir()
            (other if rank else frame()).to_parquet(folder / f"{kind}-{rank}" / "table.parquet", index=False)
    (folder / "fewer-1" / "part-0.parquet").unlink()
    write_parquet(folder / "missing-0")
    write_arrays(folder / "arrays-0")
    write_arrays(folder / "arrays-1")
    np.save(folder / "arrays-1" / "rows-0.npy", np.zeros((10, 2)))
    (folder / "kinds").mkdir()
    frame(5).to_csv(folder / "kinds" / "0.csv", index=False)
    frame(5).assign(a=list("vwxyz")).to_csv(folder / "kinds" / "1.csv", index=False)
    frame().to_csv(folder / "alone.csv", index=False)
    frame(1).to_parquet(folder / "tiny.parquet", index=False)
    return {
        folder / "fewer-RANK": ("file 1 is 'part-0.parquet' on rank 0 and 'part-1.parquet' on rank 1", "same files"),
        folder / "columns-RANK": ("table.parquet", "on rank 0 and", "on rank 1: every rank must see the same files"),
        folder / "types-RANK": ("table.parquet", "on rank 0 and", "on rank 1: every rank must see the same files"),
        folder / "missing-RANK": ("rank 1, looking at the files", "missing-1: there is no such file or folder"),
        folder / "arrays-RANK": ("rank 1, looking at the files", "rows-0.npy", "write both with the same type"),
        folder / "kinds": ("whether column 'a' holds texts is False on rank 0 and True on rank 1",),
        folder / "alone.csv": ("1 text files for 2 processes", "write it as Parquet"),
        folder / "tiny.parquet": ("has 1 rows for 2 processes: start fewer",),
    }


def test_what_ranks_do_not_see_alike_is_an_error_on_every_rank(tmp_path):
    wanted = write_differing(tmp_path)
    first, second = on_ranks(read, 2, *map(str, wanted))
    assert first == second
    for told, words in zip(first, wanted.values(), strict=True):
        assert isinstance(told, str), told
        for word in words:
            assert word in told


def test_a_shard_that_its_name_says_is_missing(tmp_path):
    for i in (0, 2):
        frame().to_parquet(tmp_path / f"part-0000{i}-of-00003.parquet", index=False)
    with pytest.raises(FileMissing, match="number 1 is missing"):
        read_part(tmp_path, "label", Ranks())


def test_a_gap_between_numbers_is_a_missing_file(tmp_path):
    write_parquet(tmp_path / "t")
    (tmp_path / "t" / "part-1.parquet").unlink()
    with pytest.raises(FileMissing, match="files part-0 to part-2, and number 1 is missing"):
        read_part(tmp_path / "t", "label", Ranks())


def test_files_of_one_table_have_the_same_columns_and_types(tmp_path):
    write_parquet(tmp_path)
    frame().rename(columns={"b": "c"}).to_parquet(tmp_path / "part-1.parquet", index=False)
    with pytest.raises(
        InvalidInput, match="part-1.parquet lacks a column of .*part-0.parquet: 'b'; it has 'c' instead"
    ):
        read_part(tmp_path, "label", Ranks())
    frame().astype({"b": "float64"}).to_parquet(tmp_path / "part-1.parquet", index=False)
    with pytest.raises(InvalidInput, match="column 'b' is int64 in .*part-0.parquet and double in .*part-1.parquet"):
        read_part(tmp_path, "label", Ranks())
    (tmp_path / "part-1.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(InvalidInput, match="part-1.parquet is not a Parquet file, or it is damaged"):
        read_part(tmp_path, "label", Ranks())


def test_arrays_without_labels_or_with_pickles(tmp_path):
    write_arrays(tmp_path)
    (tmp_path / "labels-1.npy").unlink()
    with pytest.raises(FileMissing, match="labels-1.npy: there is no such file"):
        read_part(tmp_path, "label", Ranks())
    np.save(tmp_path / "labels-1.npy", np.array([{}, {}, {}], dtype=object))
    with pytest.raises(InvalidInput, match="labels-1.npy is not an array of NumPy"):
        read_part(tmp_path, "label", Ranks())
    (tmp_path / "rows-1.npy").unlink()
    with pytest.raises(FileMissing, match="labels-1.npy has no rows-1.npy beside it"):
        read_part(tmp_path, "label", Ranks())


def test_text_files_whose_columns_are_of_different_kinds(tmp_path):
    frame(5).to_csv(tmp_path / "0.csv", index=False)
    frame(5).assign(a=list("vwxyz")).to_csv(tmp_path / "1.csv", index=False)
    with pytest.raises(InvalidInput, match="column 'a' holds numbers in .*0.csv and not in .*1.csv"):
        read_part(tmp_path, "label", Ranks())
