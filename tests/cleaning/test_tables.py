"""Tables and their encoding: what is read is what was meant, and numbers are those of the formulas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import bilevel
from bilevel.cleaning import tables
from bilevel.cleaning.columns import ColumnEncoder
from bilevel.cleaning.prepare import pixel_columns
from bilevel.cleaning.table_files import read_table
from bilevel.cleaning.tables import Table, labels_of, marks_of, matched_labels


def write(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
@pytest.mark.parametrize("start", ["", "\ufeff", "\n\n"])
def test_separators_byte_order_mark_and_blank_lines(tmp_path, mark, start):
    text = start + "name,size,note\na,1.5,x\nb,-2e3,y\n".replace(",", mark)
    table = read_table(write(tmp_path, text))
    assert table.columns == ["name", "size", "note"]
    assert table.frame["size"].tolist() == [1.5, -2000.0]


def test_quoted_cells_spaces_and_line_ends(tmp_path):
    text = '"the name" , size,label\r\n"a, b\nc", 1,x\r\n d ,2,y\r\n'
    table = read_table(write(tmp_path, text))
    assert table.columns == ["the name", "size", "label"]
    assert table.frame["the name"].tolist() == ["a, b\nc", "d "]
    assert table.frame["size"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("Our penguins\n\nname,mass\na,1\nb,2\n", ["name", "mass"]),
        ("sep=;\r\nname;mass\r\na;1\r\nb;2\r\n", ["name", "mass"]),
        ("Our penguins,,\n,,\nname,mass,note\na,1,x\nb,2,y\n", ["name", "mass", "note"]),
        ('"a title,\nof two lines"\nname,mass\na,1\nb,2\n', ["name", "mass"]),
        ("name,mass\n1,a,1\n2,b,2\n", ["unnamed 1", "name", "mass"]),  # as write.table of R
        ("name,mass\na,1,\nb,2,\n", ["name", "mass", "unnamed 3"]),
        ("name,mass\na,1\nb,2\n,\n,\n\n", ["name", "mass"]),
    ],
)
def test_titles_numbers_of_rows_and_lines_of_separators_are_no_cells(tmp_path, text, columns):
    path = tmp_path / "table.csv"
    path.write_text(text)
    table = read_table(path)
    assert table.columns == columns
    assert table.frame["name"].tolist() == ["a", "b"]
    assert table.frame["mass"].tolist() == [1, 2]
    assert any("above its header" in note for note in table.notes) == (not text.startswith("name"))


@pytest.mark.parametrize(
    ("text", "columns"), [("#,name\n1,a\n2,b\n", ["#", "name"]), ('note\n"a, b"\n"c, d"\n', ["note"]),
                      (",label\n0,a\n1,b\n", ["unnamed 1", "label"])]
)  # fmt: skip
def test_the_first_line_is_the_header_of_other_tables(tmp_path, text, columns):
    path = tmp_path / "table.csv"
    path.write_text(text)
    assert read_table(path).columns == columns
    assert len(read_table(path)) == 2


def test_texts_stay_as_they_are_written(tmp_path):
    table = read_table(write(tmp_path, "code,size\n007,1\n7,2\nNA,3\n"), texts=["code"])
    assert table.frame["code"].tolist() == ["007", "7", "NA"]


def test_numbers_are_read_to_the_last_bit(tmp_path):
    values = np.random.default_rng(0).normal(size=500) * 10.0 ** np.random.default_rng(1).integers(-8, 8, 500)
    path = tmp_path / "t.csv"
    pd.DataFrame({"x": values, "label": "a"}).to_csv(path, index=False)
    assert read_table(path).frame["x"].tolist() == values.tolist()


def test_csv_and_parquet_say_the_same(tmp_path):
    frame = pd.DataFrame({"x": [0.5, 1.5], "n": [1, 2], "b": [True, False], "t": ["u", "v"]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.set_index(pd.Index([7, 9])).to_parquet(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(read_table(tmp_path / "t.csv").frame, read_table(tmp_path / "t.parquet").frame)


# --- labels ---


@pytest.mark.parametrize(
    ("cells", "labels"),
    [
        (["2", "10", "2"], [2, 10, 2]),
        (["-1", "1", "1"], [-1, 1, 1]),
        (["2.0", "1.0", "2.0"], [2.0, 1.0, 2.0]),
        (["0.5", "1.0", "0.5"], ["0.5", "1.0", "0.5"]),
        (["True", "False", "True"], [True, False, True]),
        (["TRUE", "FALSE", "TRUE"], ["TRUE", "FALSE", "TRUE"]),
        (["Oak", "oak", "oak", "fir"], ["oak", "oak", "oak", "fir"]),
        (["01", "1", "1"], ["01", "1", "1"]),
        (["1", "x", "1"], ["1", "x", "1"]),
        (["NA", "x", "x"], ["NA", "x", "x"]),
        (["Yes ", "no", "yes", "NO"], ["Yes", "NO", "Yes", "NO"]),
        (["m", "M", "m"], ["m", "M", "m"]),  # male, married
    ],
)
def test_labels_have_the_plainest_type_that_fits_all(tmp_path, cells, labels):
    text = "label,x\n" + "".join(f"{cell},0\n" for cell in cells)
    found, _ = labels_of(read_table(write(tmp_path, text), texts=["label"]), "label")
    assert found.tolist() == labels
    assert [type(label) for label in found.tolist()] == [type(label) for label in labels]


@pytest.mark.parametrize(
    "values",
    [
        pd.Series([1, 2, 1], dtype="int8"),
        pd.Series([True, False, True]),
        pd.Series(["a", "b", "a"], dtype="category"),
        pd.Series([2, 3, 2], dtype="category"),
        pd.Series([1.0, 2.0, 1.0]),
        pd.Series(["a", "b", "a"], dtype="string"),
    ],
)
def test_labels_of_a_parquet_file(tmp_path, values):
    pd.DataFrame({"label": values, "x": 0.0}).to_parquet(tmp_path / "t.parquet")
    found, _ = labels_of(read_table(tmp_path / "t.parquet"), "label")
    assert found.tolist() == values.tolist()


def test_fractions_of_a_parquet_file_are_names(tmp_path):
    pd.DataFrame({"label": [0.5, 1.0, 0.5], "x": 0.0}).to_parquet(tmp_path / "t.parquet")
    assert labels_of(read_table(tmp_path / "t.parquet"), "label")[0].tolist() == ["0.5", "1.0", "0.5"]


@pytest.mark.parametrize(
    ("classes", "cells", "matched"),
    [
        (np.array([1, 2]), ["1", "2.0"], [1, 2]),
        (np.array(["1", "x"]), [1, 1], ["1", "1"]),
        (np.array([False, True]), ["TRUE", "0"], [True, False]),
        (np.array([2.0, 1.0]), ["1", "2."], [1.0, 2.0]),
        (np.array(["0.5", "1.0"]), [1.0, 0.5], ["1.0", "0.5"]),
        (np.array(["oak", "Oak"]), ["Oak", "oak"], ["Oak", "oak"]),
        (np.array(["fir", "oak"]), ["FIR", " oak "], ["fir", "oak"]),
    ],
)
def test_labels_of_another_table_are_matched(classes, cells, matched):
    table = Table("other.csv", pd.DataFrame({"label": cells}))
    found, here = matched_labels(table, "label", classes, of="train.csv")
    assert found.tolist() == matched
    assert found.dtype == classes.dtype
    assert here.all()


def test_a_few_labels_that_the_table_has_not_are_left_out():
    table = Table("other.csv", pd.DataFrame({"label": ["oak", "ash"] + ["fir"] * 9}))
    found, here = matched_labels(table, "label", np.array(["fir", "oak"]), of="train.csv", most_unknown=0.1)
    assert found.tolist() == ["oak"] + ["fir"] * 9
    assert np.flatnonzero(~here).tolist() == [1]
    with pytest.raises(bilevel.InvalidInputError, match="row 2 .* 'ash' does not occur"):
        matched_labels(table, "label", np.array(["fir", "oak"]), of="train.csv", most_unknown=0.05)


def test_a_label_that_could_be_two_is_refused():
    table = Table("other.csv", pd.DataFrame({"label": ["OAK"]}))
    with pytest.raises(bilevel.InvalidInputError, match="other.csv, row 1 .* 'OAK' does not occur in train.csv"):
        matched_labels(table, "label", np.array(["oak", "Oak"]), of="train.csv")


@pytest.mark.parametrize(
    "cells",
    [
        ["yes", "no"], [True, False], [1, 0], [1.0, 0.0], ["TRUE", "False"], [" y ", "n"],
        ["X", None], ["checked", " "], [1.0, None], [True, None], pd.Categorical(["yes", None]),
    ],
)  # fmt: skip
def test_marks(cells):
    assert marks_of(Table("t", pd.DataFrame({"m": cells})), "m").tolist() == [True, False]


def test_a_blank_line_in_a_table_of_one_column_is_a_row(tmp_path):
    table = read_table(write(tmp_path, "size\n1\n\n3\n"))
    assert table.frame["size"].isna().tolist() == [False, True, False]


# --- pictures ---


def test_pixels_are_found_by_their_names_and_share_one_scale():
    names = [f"pixel{i}" for i in (2, 0, 1, 3)]
    frame = pd.DataFrame([[0, 8, 2, 4], [1, 0, 0, 0]], columns=names)
    table = Table("t", frame)
    found = pixel_columns(table, None)
    assert found == (["pixel0", "pixel1", "pixel2", "pixel3"], (2, 2))
    rows = ColumnEncoder(scaled=True, pixels=found[0]).fit(frame).transform(frame)
    np.testing.assert_array_equal(rows, frame.to_numpy() / 8)


@pytest.mark.parametrize(
    "names",
    [
        ["pixel0", "pixel1", "pixel2"],
        ["pixel0", "pixel1", "pixel2", "pixel4"],
        ["pixel5", "pixel6", "pixel7", "pixel8"],
    ],
)
def test_columns_that_are_no_pictures(names):
    assert pixel_columns(Table("t", pd.DataFrame(columns=names)), None) is None


def test_a_shape_that_is_given():
    table = Table("t", pd.DataFrame(columns=list("abcdef")))
    assert pixel_columns(table, (2, 3)) == (list("abcdef"), (2, 3))


def test_a_missing_package_names_the_extra(tmp_path):
    (tmp_path / "pandas.py").write_text("raise ImportError('not installed')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import bilevel.cleaning.tables"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert "pip install 'bilevel[apps]'" in finished.stderr


def test_written_tables_are_read_back(tmp_path):
    frame = pd.DataFrame({"row": [1, 2], "given_label": ["a,b", 'c"d'], "weight": [0.1, 1 / 3]})
    for name in ("w.csv", "w.tsv", "w.parquet"):
        tables.table_writer(frame, Path(name))(tmp_path / name)
        pd.testing.assert_frame_equal(read_table(tmp_path / name).frame, frame)
