"""Bad input: a message that a non-programmer understands, exit code 2, and nothing is written."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from bilevel import cli

LINEAR = ("--noise", "rows")  # models that need every cell
PROGRESS = ("bilevel: reading ", "bilevel: encoding ")
OUTPUTS = ["--out", "weights.csv", "--model", "model.safetensors", "--report", "report.html"]
QUICK = ["--noise", "transition", "--steps", "2"]


@pytest.fixture
def refused(forest, capsys):
    """Runs the command, which must end with code 2, a message, and no file; returns the message."""

    def run(*arguments: str, **names: str) -> str:
        before = forest.files()
        assert forest.clean(*arguments, *OUTPUTS, **names) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert "Traceback" not in shown.err
        lines = [line for line in shown.err.splitlines() if not line.startswith(PROGRESS)]
        assert len([line for line in lines if line.startswith("bilevel: ")]) == 1, shown.err
        assert forest.files() == before
        return "\n".join(lines)

    return run


def csv_of(frame: pd.DataFrame) -> str:
    return frame.to_csv(index=False)


# --- the label and the trusted rows ---


def test_the_label_column_is_missing(refused):
    message = refused(label="specie")
    assert "train.csv has no column 'specie', which --label names" in message
    assert "Did you mean 'species'?" in message
    assert "'height', 'width', 'bark', 'species'" in message


def test_the_trusted_table_has_no_label(refused, forest):
    forest.write("trusted.csv", forest.trusted.drop(columns="species"))
    assert "trusted.csv lacks a column of train.csv: 'species'" in refused()


def test_one_class_only(refused, forest):
    forest.write("train.csv", forest.frame.assign(species="oak"))
    message = refused()
    assert "all 240 rows have the label 'oak' in column 'species': at least two different labels are needed" in message


def test_labels_that_are_measurements(refused):
    message = refused(label="height")
    assert "column 'height' has" in message
    assert "labels are few names or numbers that many rows share" in message


def test_a_trusted_label_unseen_in_training(refused, forest):
    forest.write("trusted.csv", forest.trusted.replace({"species": {"oak": "yew"}}))
    message = refused()
    row = int((forest.trusted.species == "oak").to_numpy().argmax()) + 1
    assert f"trusted.csv, row {row} below the header, column 'species': the label 'yew' does not occur" in message
    assert "'ash', 'fir', 'oak'" in message


def test_no_trusted_rows(forest, capsys):
    assert cli.main(["clean", "train.csv", "--label", "species", "--noise", "rows", *OUTPUTS]) == 2
    message = capsys.readouterr().err
    assert "no trusted rows" in message
    assert "--trusted FILE" in message
    assert "--trusted-column COLUMN" in message
    assert "weights.csv" not in forest.files()


def test_a_trusted_column_without_a_trusted_row(refused, forest):
    forest.write("train.csv", forest.frame.assign(checked="no"))
    assert "no trusted rows: the column 'checked' of train.csv is true in no row" in refused(
        "--trusted-column", "checked"
    )


def test_a_trusted_column_that_says_perhaps(refused, forest):
    checked = ["yes"] * 100 + ["perhaps"] + ["no"] * 139
    forest.write("train.csv", forest.frame.assign(checked=checked))
    message = refused("--trusted-column", "checked")
    assert (
        "row 101 below the header, column 'checked': 'perhaps' is neither true (true, t, yes, y, x, checked, 1, "
        in message
    )
    assert "nor false (false, f, no, n, 0, 0.0, an empty cell)" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--trusted", "./train.csv"],
            "the table and --trusted both name the file train.csv: they must hold different",
        ),
        (["--test", "train.csv"], "the table and --test both name the file train.csv"),
        (["--test", "link.csv"], "--trusted and --test both name the file link.csv"),
    ],
)
def test_one_file_in_two_roles(refused, forest, arguments, message):
    (forest.folder / "link.csv").symlink_to("trusted.csv")
    assert message in refused(*arguments)


def test_a_trusted_column_that_is_not_there(refused):
    assert "train.csv has no column 'checked', which --trusted-column names" in refused("--trusted-column", "checked")


def test_both_kinds_of_trusted_rows(refused):
    assert "give one of them" in refused("--trusted", "trusted.csv", "--trusted-column", "bark")


def test_a_trusted_table_with_other_columns(refused, forest):
    forest.write("trusted.csv", forest.trusted.rename(columns={"width": "breadth"}))
    assert "trusted.csv lacks a column of train.csv: 'width'; it has 'breadth' instead" in refused()


def test_too_few_rows(refused, forest):
    forest.write("train.csv", forest.frame[:9])
    assert "train.csv has 9 rows to clean: at least 10 are needed" in refused()


def test_too_few_trusted_rows(refused, forest):
    forest.write("trusted.csv", forest.trusted[:3])
    assert "there are 3 trusted rows" in refused(*LINEAR)


def test_trusted_rows_of_one_label(refused, forest):
    forest.write("trusted.csv", forest.trusted[forest.trusted.species == "oak"])
    assert "with the labels 'oak': at least 4 with two different labels are needed" in refused(*LINEAR)


# --- cells ---


def test_columns_of_one_name_or_none_get_names(forest, capsys):
    for name in ("train.csv", "trusted.csv"):
        frame = forest.frame if name == "train.csv" else forest.trusted
        text = csv_of(frame.assign(row=range(len(frame)))).replace("width", "height", 1).replace("row", "", 1)
        forest.write(name, text)
    assert forest.clean(*QUICK, "--json") == 0
    shown = capsys.readouterr()
    assert "columns without a name, or several of one name: they are called 'height 2', 'unnamed 5'" in shown.err
    assert [each["column"] for each in json.loads(shown.out)["columns"]] == ["height", "height 2", "bark", "unnamed 5"]


def test_a_row_with_too_many_cells(refused, forest):
    lines = csv_of(forest.frame).splitlines()
    lines[10] += ",1,2"
    forest.write("train.csv", "\n".join(lines))
    assert "line 11 has 6 cells, but the header has 4 names" in refused()


def test_all_rows_with_too_many_cells(refused, forest):
    head, *lines = csv_of(forest.frame).splitlines()
    forest.write("train.csv", "\n".join([head, *(line + ",1" for line in lines)]))
    assert "the rows have more cells than the header has names (4)" in refused()


def test_a_quotation_mark_that_is_never_closed(refused, forest):
    forest.write("train.csv", csv_of(forest.frame) + '1,2,"smooth,oak\n')
    assert "a quotation mark is opened and never closed" in refused()


# --- files ---


@pytest.mark.parametrize("content", ["", "\n\n  \n", "\ufeff"])
@pytest.mark.parametrize("name", ["train.csv", "trusted.csv"])
def test_an_empty_file(refused, forest, name, content):
    forest.write(name, content)
    assert f"{name} is empty" in refused()


def test_an_empty_parquet_file(refused, forest):
    forest.write("train.parquet", b"")
    assert "train.parquet is empty" in refused(table="train.parquet")


def test_a_header_alone(refused, forest):
    forest.write("train.csv", "height,width,bark,species\n")
    assert "train.csv has a header but no rows" in refused()


def test_no_header(refused, forest):
    forest.write("train.csv", "1.5,2,2,0\n" * 50)
    message = refused()
    assert "train.csv has no header: its first line holds numbers ('1.5', '2', '2', '0')" in message


def test_one_column(refused, forest):
    forest.write("train.csv", "species\n" + "oak\nfir\n" * 50)
    assert "train.csv has only the column 'species'" in refused()


def test_a_file_that_is_not_there(refused):
    assert "elsewhere.csv: there is no such file" in refused(table="elsewhere.csv")
    assert "trian.csv: there is no such file. Did you mean 'train.csv'?" in refused(table="trian.csv")


def test_a_folder(refused, forest):
    (forest.folder / "tables").mkdir()
    assert "tables is a folder without a table: a file whose name ends in .csv," in refused(table="tables")


def test_a_file_that_may_not_be_read(refused, monkeypatch):
    from pathlib import Path

    opened = Path.open

    def denied(path, *arguments, **named):
        if path.name == "train.csv":
            raise PermissionError(13, "Permission denied")
        return opened(path, *arguments, **named)

    monkeypatch.setattr(Path, "open", denied)  # the rights of a file do not bind an administrator
    assert "train.csv cannot be read (Permission denied)" in refused()


@pytest.mark.parametrize(("encoding", "name"), [("latin-1", "Windows-1252"), ("utf-16", "UTF-16")])
def test_another_encoding_is_recognised_and_said(forest, capsys, encoding, name):
    text = csv_of(forest.frame.replace({"bark": {"rough": "rauh, geäste"}}))
    forest.write("train.csv", text.encode(encoding))
    assert forest.clean(*QUICK, "--cleaned", "c.csv") == 0
    assert f"train.csv is not in UTF-8 and was read as {name}" in capsys.readouterr().err
    assert "rauh, geäste" in pd.read_csv(forest.folder / "c.csv")["bark"].to_numpy()


def test_a_spreadsheet(refused, forest):
    forest.write("train.csv", b"PK\x03\x04" + bytes(200))
    assert "a spreadsheet or an archive: export it as CSV" in refused()


def test_another_kind_of_file(refused, forest):
    forest.write("train.xlsx", b"PK")
    assert "train.xlsx: the name of a table ends in .csv, .tsv, .txt, .parquet, .pq" in refused(table="train.xlsx")


def test_a_damaged_parquet_file(refused, forest):
    forest.frame.to_parquet("train.parquet")
    content = (forest.folder / "train.parquet").read_bytes()
    forest.write("train.parquet", content[:-30])
    assert "train.parquet is not a Parquet file, or it is damaged" in refused(table="train.parquet")
    forest.write("train.parquet", csv_of(forest.frame))
    assert "train.parquet is not a Parquet file, or it is damaged" in refused(table="train.parquet")


# --- options ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ignore", "colour"], "train.csv has no column 'colour', which --ignore names"),
        (["--categorical", "colour"], "train.csv has no column 'colour', which --categorical names"),
        (["--ignore", "height", "--ignore", "width", "--ignore", "bark"], "no column is left to learn from"),
        (["--steps", "0"], "--steps 0: at least one step is needed"),
        (["--seed", "-1"], "--seed -1: a seed is a whole number from 0"),
        (["--radius", "-2"], "--radius -2: a radius is a positive number, or auto"),
        (["--holdout", "1"], "--holdout 1: the fraction of trusted rows to hold out must be at least 0 and below 1"),
        (["--image-shape", "28"], "--image-shape 28: write height and width as in 28x28"),
        (["--image-shape", "2x2"], "--image-shape 2x2 means 4 pixels, but train.csv has 3 columns besides the label"),
        (["--test", "elsewhere.csv"], "elsewhere.csv: there is no such file"),
        (["--solver", "foo"], "--solver foo: there is no such solver; choose auto, dmlcbo, approx, "),
        (["--solver", "vpbgd"], "--solver vpbgd needs a fixed radius: add --radius 1"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit(refused, arguments, message):
    assert message in refused(*arguments)


def test_a_noise_model_that_does_not_exist(forest, capsys):
    assert forest.clean("--noise", "loud") == 2
    assert "loud" in capsys.readouterr().err
    assert forest.clean("--radius", "wide") == 2
    assert "wide" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "weights.xlsx"], "--out weights.xlsx: the name must end in .csv or"),
        (["--resume", "."], "--resume .: the name must end in .safetensors"),
        (["--report", "report.pdf"], "--report report.pdf: the name must end in .html"),
        (["--report", "missing/report.html"], "missing does not exist: create it first"),
        (["--out", "train.csv", "--force"], "--out train.csv would replace an input file"),
        (["--out", "trusted.csv", "--force"], "--out trusted.csv would replace an input file"),
        (["--out", "test.csv"], "--out test.csv: the file exists and was left as it is; --force replaces it"),
        (["--out", "folder.csv", "--force"], "folder.csv is a folder"),
    ],
)
def test_outputs_are_checked_before_anything_is_read(forest, capsys, monkeypatch, arguments, message):
    (forest.folder / "folder.csv").mkdir()
    before = forest.files()
    monkeypatch.setattr(pd, "read_csv", None)  # a call would fail
    assert forest.clean(*arguments) == 2
    assert message in capsys.readouterr().err
    assert forest.files() == before
