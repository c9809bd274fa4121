"""Tables and their encoding: what is read is what was meant, and numbers are those of the formulas."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import bilevel
from bilevel.cleaning import tables
from bilevel.cleaning.encoding import Encoder, pixel_columns
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
        (["True", "false", "true"], [True, False, True]),
        (["01", "1", "1"], ["01", "1", "1"]),
        (["1", "x", "1"], ["1", "x", "1"]),
        (["NA", "x", "x"], ["NA", "x", "x"]),
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
    found = matched_labels(table, "label", classes, of="train.csv")
    assert found.tolist() == matched
    assert found.dtype == classes.dtype


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


# --- the encoder ---


FRAME = pd.DataFrame(
    {
        "height": [1.0, 2.0, 6.0],
        "flag": [True, False, True],
        "colour": ["red", "blue", "red"],
        "same": [4.0, 4.0, 4.0],
        "region": [10, 2, 10],
    }
)


def test_numbers_are_standardised_and_categories_become_zeros_and_ones():
    table = Table("t", FRAME)
    encoder = Encoder.fit([table], categorical=["region"])
    assert encoder.feature_names == [
        "height", "flag", "same", "colour=blue", "colour=red", "region=10", "region=2",
    ]  # fmt: skip
    height, flag = FRAME.height.to_numpy(), FRAME.flag.to_numpy(float)
    expected = np.column_stack(
        [
            (height - height.mean()) / height.std(),
            (flag - flag.mean()) / flag.std(),
            np.zeros(3),
            [0, 1, 0], [1, 0, 1], [1, 0, 1], [0, 1, 0],
        ]
    )  # fmt: skip
    np.testing.assert_allclose(encoder.transform(table, of="t"), expected, atol=1e-15)


def test_a_transformer_of_scikit_learn_fitted_to_the_same_rows_agrees_bit_by_bit():
    from sklearn.compose import ColumnTransformer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    generator = np.random.default_rng(0)
    frame = pd.DataFrame({"a": generator.normal(3, 7, 100), "b": generator.choice(["x", "y", "z"], 100)})
    theirs = ColumnTransformer([("n", StandardScaler(), ["a"]), ("c", OneHotEncoder(sparse_output=False), ["b"])])
    ours = Encoder.fit([Table("t", frame)])
    np.testing.assert_array_equal(ours.transform(Table("t", frame), of="t"), theirs.fit_transform(frame))


def test_an_encoder_survives_json_and_a_fresh_process(tmp_path):
    table = Table("t", FRAME)
    encoder = replace(Encoder.fit([table], categorical=["region"]), ignored=("name",))
    text = json.dumps(encoder.to_json())
    again = Encoder.from_json(json.loads(text))
    assert again == encoder
    np.testing.assert_array_equal(again.transform(table, of="t"), encoder.transform(table, of="t"))
    FRAME.to_parquet(tmp_path / "t.parquet")
    code = (
        "import json, sys, pathlib\n"
        "from bilevel.cleaning.encoding import Encoder\n"
        "from bilevel.cleaning.table_files import read_table\n"
        "encoder = Encoder.from_json(json.loads(sys.argv[1]))\n"
        "rows = encoder.transform(read_table(pathlib.Path(sys.argv[2])), of='t')\n"
        "print(rows.tobytes().hex())"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code, text, str(tmp_path / "t.parquet")], capture_output=True, text=True, timeout=120
    )
    assert finished.stdout.strip() == encoder.transform(table, of="t").tobytes().hex(), finished.stderr


def test_the_columns_left_out_may_be_absent_from_a_file_but_not_damaged():
    content = {"numbers": [["a", 0.0, 1.0]], "categories": []}
    assert Encoder.from_json(content).ignored == ()
    with pytest.raises(bilevel.InvalidInputError, match="the names of the columns left out are damaged: 3"):
        Encoder.from_json({**content, "ignored": [3]})


def test_the_order_of_columns_and_further_columns_do_not_matter():
    encoder = Encoder.fit([Table("t", FRAME)])
    other = Table("o", FRAME[["colour", "region", "height", "same", "flag"]].assign(more=1))
    np.testing.assert_array_equal(encoder.transform(other, of="t"), encoder.transform(Table("t", FRAME), of="t"))


def test_unknown_categories_are_refused_or_count_as_none():
    encoder = Encoder.fit([Table("t", FRAME)])
    other = Table("new.csv", FRAME.assign(colour=["red", "teal", "blue"]))
    with pytest.raises(
        bilevel.InvalidInputError, match="new.csv, row 2 .* 'teal' does not occur in m, .* 'blue', 'red'"
    ):
        encoder.transform(other, of="m")
    rows = encoder.transform(other, of="m", allow_unknown=True)
    assert rows[:, -2:].tolist() == [[0, 1], [0, 0], [1, 0]]


def test_missing_columns_are_named():
    encoder = Encoder.fit([Table("t", FRAME)])
    with pytest.raises(bilevel.InvalidInputError, match="new.csv lacks 2 columns of m: 'height', 'region'"):
        encoder.transform(Table("new.csv", FRAME.drop(columns=["height", "region"])), of="m")


def test_wide_categories_are_sparse(tmp_path):
    size = 4000
    frame = pd.DataFrame({"x": np.arange(size, dtype=float), "word": [f"w{i % 1500}" for i in range(size)]})
    encoder = Encoder.fit([Table("t", frame)])
    rows = encoder.transform(Table("t", frame), of="t")
    assert rows.format == "csr"
    assert rows.shape == (size, 1501)
    assert rows[:, 1:].sum() == size
    one = encoder.transform(Table("t", frame[:1]), of="t")
    assert (one != rows[:1]).nnz == 0


def test_a_column_of_huge_numbers_is_refused():
    with pytest.raises(bilevel.InvalidInputError, match="column 'x' are too large"), np.errstate(all="ignore"):
        Encoder.fit([Table("t", pd.DataFrame({"x": [1e300, -1e300, 1e308], "y": [1.0, 2.0, 3.0]}))])


# --- pictures ---


def test_pixels_are_found_by_their_names_and_share_one_scale():
    names = [f"pixel{i}" for i in (2, 0, 1, 3)]
    frame = pd.DataFrame([[0, 8, 2, 4], [1, 0, 0, 0]], columns=names)
    table = Table("t", frame)
    found = pixel_columns(table, None)
    assert found == (["pixel0", "pixel1", "pixel2", "pixel3"], (2, 2))
    rows = Encoder.fit([table], pixels=found[0]).transform(table, of="t")
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
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "pip install 'bilevel[apps]'" in finished.stderr


def test_written_tables_are_read_back(tmp_path):
    frame = pd.DataFrame({"row": [1, 2], "given_label": ["a,b", 'c"d'], "weight": [0.1, 1 / 3]})
    for name in ("w.csv", "w.tsv", "w.parquet"):
        tables.table_writer(frame, Path(name))(tmp_path / name)
        pd.testing.assert_frame_equal(read_table(tmp_path / name).frame, frame)
