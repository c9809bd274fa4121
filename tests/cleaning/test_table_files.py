"""Each rank reads its rows of a table and no others, and all refuse a table that they do not see alike."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as parquet
import pytest
from tests.ranks import on_ranks

from bilevel.cleaning.table_files import PIECE, read_table
from bilevel.errors import BilevelError, InvalidInputError, MissingFileError


def frame(rows=23):
    return pd.DataFrame({"a": np.arange(rows) * 1.0, "b": np.arange(rows) % 3, "label": np.arange(rows) % 2})


def write_parquet(folder: Path, sizes=(10, 3, 10), groups=4) -> Path:
    folder.mkdir(exist_ok=True)
    whole, first = frame(sum(sizes)), 0
    for i, size in enumerate(sizes):
        part = whole[first : first + size]
        part = part[["label", "b", "a"]] if i == 1 else part  # columns go by name
        part.to_parquet(folder / f"part-{i}.parquet", index=False, row_group_size=groups)
        first += size
    return folder


def write_arrays(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    whole, first = frame(), 0
    for i, size in enumerate((10, 3, 10)):
        rows = whole[first : first + size]
        np.save(folder / f"rows-{i}.npy", rows[["a", "b"]].to_numpy(np.float32))
        np.save(folder / f"labels-{i}.npy", rows["label"].to_numpy())
        first += size
    return folder


def write_texts(folder: Path) -> Path:
    folder.mkdir()
    for i in range(3):
        frame()[i * 8 : i * 8 + 8].to_csv(folder / f"{i}.csv", index=False)
    return folder


def write_text(path: Path) -> Path:
    frame().to_csv(path, index=False)
    return path


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


def read(ranks, *paths):
    """What each path gives on this rank; RANK in it is the number of the rank."""
    found = []
    for path in paths:
        try:
            table = read_table(Path(path.replace("RANK", str(ranks.rank))), ranks)
            values = table.frame.astype(float).to_numpy().tolist()
            found.append({"first": table.first, "total": table.total, "rows": values, "columns": table.columns})
        except BilevelError as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def test_parts_are_the_table_in_order_and_balanced(tmp_path):
    tables = [
        write_parquet(tmp_path / "rows"),
        write_arrays(tmp_path / "arrays"),
        write_texts(tmp_path / "texts"),
        write_text(tmp_path / "table.csv"),
        write_shared_groups(tmp_path),
    ]
    found = on_ranks(read, 2, *map(str, tables))
    for i, table in enumerate(tables):
        assert [row for parts in found for row in parts[i]["rows"]] == frame().to_numpy().tolist(), table
        assert [parts[i]["first"] for parts in found] == [0, 11]
        assert [parts[i]["total"] for parts in found] == [23, 23]
    assert [len(read_table(table)) for table in tables[:4]] == [23] * 4
    assert found[0][0]["columns"] == found[1][0]["columns"] == ["a", "b", "label"]
    assert found[0][1]["columns"] == ["0", "1", "label"]


def read_cells(ranks, path):
    table = read_table(Path(path), ranks)
    return [table.first, *([str(cell) for cell in table.frame[name]] for name in ("code", "note"))]


def test_cells_of_a_text_file_are_read_as_if_it_were_read_whole(tmp_path):
    """In a first piece all cells of a column are numbers, in a second there are texts: then 007 is no number."""
    rows = PIECE + 10
    cells = pd.DataFrame({"code": ["007"] * PIECE + ["A1"] * 10, "note": [f'"{i}\n"' for i in range(rows)]})
    cells.to_csv(tmp_path / "table.csv", index=False)
    (tmp_path / "folder").mkdir()
    cells[:5].to_csv(tmp_path / "folder" / "0.csv", index=False)
    cells[-5:].to_csv(tmp_path / "folder" / "1.csv", index=False)
    assert read_table(tmp_path / "folder").frame["code"].tolist() == ["007"] * 5 + ["A1"] * 5
    (_, codes, notes), (first, more_codes, more_notes) = on_ranks(read_cells, 2, str(tmp_path / "table.csv"))
    assert codes + more_codes == cells["code"].tolist()
    assert notes + more_notes == cells["note"].tolist()
    assert first == len(codes) == rows // 2


def test_arrays_may_have_names(tmp_path):
    write_arrays(tmp_path)
    (tmp_path / "columns.txt").write_text("a\nb\n")
    assert read_table(tmp_path).columns == ["a", "b", "label"]
    assert read_table(tmp_path / "rows-1.npy", label="kind").columns == ["a", "b", "kind"]
    (tmp_path / "columns.txt").write_text("a\na\n")
    with pytest.raises(InvalidInputError, match="2 names, 1 of them different, for 2 columns"):
        read_table(tmp_path)


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
    frame(1).to_parquet(folder / "tiny.parquet", index=False)
    same = "on rank 1: every rank must see the same files"
    return {
        folder / "fewer-RANK": ("the size of part-0.parquet is", "on rank 0 and None", same),
        folder / "columns-RANK": ("on rank 0 and", same),
        folder / "types-RANK": ("on rank 0 and", same),
        folder / "missing-RANK": ("rank 1, looking at", "missing-1: there is no such file"),
        folder / "arrays-RANK": ("rank 1, looking at", "rows-0.npy", "write both with the same type"),
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
    with pytest.raises(MissingFileError, match="number 1 is missing"):
        read_table(tmp_path)
    frame().to_parquet(tmp_path / "part-00001-of-00003.parquet", index=False)
    assert len(read_table(tmp_path)) == 69


def test_a_gap_between_numbers_is_a_missing_file(tmp_path):
    write_parquet(tmp_path / "t")
    (tmp_path / "t" / "part-1.parquet").unlink()
    with pytest.raises(MissingFileError, match="files part-0 to part-2, and number 1 is missing"):
        read_table(tmp_path / "t")


def test_files_of_one_table_have_the_same_columns_and_types(tmp_path):
    write_parquet(tmp_path)
    frame().rename(columns={"b": "c"}).to_parquet(tmp_path / "part-1.parquet", index=False)
    with pytest.raises(
        InvalidInputError, match="part-1.parquet lacks a column of .*part-0.parquet: 'b'; it has 'c' instead"
    ):
        read_table(tmp_path)
    frame().astype({"b": "float64"}).to_parquet(tmp_path / "part-1.parquet", index=False)
    with pytest.raises(
        InvalidInputError, match="column 'b' is int64 in .*part-0.parquet and double in .*part-1.parquet"
    ):
        read_table(tmp_path)
    (tmp_path / "part-1.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(InvalidInputError, match="part-1.parquet is not a Parquet file, or it is damaged"):
        read_table(tmp_path)
    (tmp_path / "part-1.parquet").unlink()
    frame().to_csv(tmp_path / "more.csv", index=False)
    with pytest.raises(InvalidInputError, match="files of different kinds, .csv, .parquet: keep one of them"):
        read_table(tmp_path)


def test_arrays_without_labels_or_with_pickles(tmp_path):
    write_arrays(tmp_path)
    (tmp_path / "labels-1.npy").unlink()
    with pytest.raises(MissingFileError, match="labels-1.npy: there is no such file"):
        read_table(tmp_path)
    np.save(tmp_path / "labels-1.npy", np.array([{}, {}, {}], dtype=object))
    with pytest.raises(InvalidInputError, match="labels-1.npy is not an array of NumPy"):
        read_table(tmp_path)
    (tmp_path / "rows-1.npy").unlink()
    with pytest.raises(MissingFileError, match="labels-1.npy has no rows-1.npy beside it"):
        read_table(tmp_path)


def test_a_carriage_return_within_a_cell_is_no_new_row(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(b"text,label\nfirst\rsecond,1\nthird,0\n")
    assert read_table(path).column("text").tolist() == ["first\rsecond", "third"]
    path.write_bytes(b"text,label\r\nfirst,1\r\nthird,0\r\n")
    assert read_table(path).column("label").tolist() == [1, 0]
    path.write_bytes(b"text,label\rfirst,1\rthird,0\r")
    assert read_table(path).column("label").tolist() == [1, 0]


@pytest.mark.parametrize("header", [
    "[[", "(" * 3000, "'\0'", "9" * 9000, "-" * 5000 + "1",
    "{'descr': '|O', 'fortran_order': False, 'shape': (2,)}",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 3)}",
    f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({10**30}, 3)}}",
], ids=lambda text: text[:40])  # fmt: skip
def test_arrays_with_a_header_that_is_none(tmp_path, header):
    content = header.encode() + b"\n"
    (tmp_path / "rows.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(content).to_bytes(2, "little") + content + bytes(99))
    np.save(tmp_path / "labels.npy", np.zeros(2))
    with pytest.raises(InvalidInputError, match="is not an array of NumPy, or it is damaged"):
        read_table(tmp_path / "rows.npy")
