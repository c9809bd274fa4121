"""`bilevel clean` on tables of any kind: how they are read, matched and measured, and what is said at once."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bilevel import cli
from bilevel.cleaning.headers import distinct
from bilevel.cleaning.options import NEEDS_RADIUS, SOLVERS, CleanOptions
from bilevel.cleaning.prepare import prepare
from bilevel.cleaning.table_files import check_size, read_table
from bilevel.errors import InvalidInputError
from bilevel.ranks import Ranks


def clean(*arguments: str) -> int:
    return cli.main(["clean", "train.csv", "--label", "species", *arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--label", "Specie"], "Did you mean 'species'?"),
        (["--label", "species", "--ignore", "x", "BARK"], "2 problems:"),
        (["--label", "species", "--trusted", "missing.csv"], "missing.csv: there is no such file"),
        (["--label", "species", "--trusted", "trusted.csv", "--steps", "0"], "at least one step"),
    ],
)
def test_mistakes_are_reported_without_torch_and_pandas(forest, arguments, message):
    program = "import sys; from bilevel import cli; code = cli.main(sys.argv[1:]); "
    program += "print(code, [name for name in ('torch', 'pandas', 'sklearn', 'skrub') if name in sys.modules])"
    command = [sys.executable, "-c", program, "clean", "train.csv", *arguments]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "2 []"
    assert message in found.stderr


def test_a_table_is_read_without_torch(forest):
    forest.write("train.csv", "a,species\n1,x,3\n1,2,3,4\n")
    program = "import sys; from bilevel import cli; code = cli.main(sys.argv[1:]); print(code, 'torch' in sys.modules)"
    command = [sys.executable, "-c", program, "clean", "train.csv", "--label", "species"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "2 False"
    assert "reading train.csv" in found.stderr
    assert "line 3 has 4 cells" in found.stderr


def test_all_problems_and_a_command_that_solves_them(forest, capsys):
    assert clean("--trusted", "trusted.csv", "--group", "BARK", "--number", "Width") == 2
    message = capsys.readouterr().err
    assert "no column 'BARK', which --group names" in message
    assert "no column 'Width', which --number names" in message
    assert "Try: bilevel clean train.csv --label species --trusted trusted.csv --group bark --number width" in message


def test_a_cleaned_table_has_all_other_cells_as_they_were(forest):
    zips, cuts = [f"{i % 5:03d}" for i in range(240)], [i % 9 if i % 7 else None for i in range(240)]
    frame = forest.frame.assign(zip=zips, cut=cuts, species=forest.frame["species"].str.upper(), given_species="x")
    forest.write("train.csv", frame.to_csv(index=False, float_format="%.3f"))
    options = ["--noise", "rows", "--steps", "3", "--out", "w.csv", "--cleaned", "c.csv"]
    assert clean("--trusted", "trusted.csv", *options, "--ignore", "zip", "cut", "given_species") == 0
    table, cleaned = (pd.read_csv(name, dtype=str, keep_default_na=False) for name in ("train.csv", "c.csv"))
    assert list(cleaned) == [*table, "given_species 2"]
    assert cleaned.drop(columns=["species", "given_species 2"]).equals(table.drop(columns="species"))
    assert (cleaned["given_species 2"] == table["species"]).all()
    suspected = pd.read_csv("w.csv")["is_label_issue"]
    assert suspected.any()
    assert ((cleaned["species"] != table["species"]) == suspected).all()
    assert set(cleaned["species"]) <= set(table["species"])


def test_a_linear_model_takes_the_same_tables(forest, capsys):
    """With gaps, dates, names, words among numbers and a row without a label."""
    day = pd.date_range("2024-01-01", periods=240).strftime("%d.%m.%Y")
    frame = forest.frame.assign(name=[f"tree {i}" for i in range(240)], day=day, height=forest.frame.height.astype(str))
    frame.loc[[3, 5], ["height", "bark", "species"]] = ["tall", None, None]
    forest.write("train.csv", frame)
    forest.write("trusted.csv", forest.trusted.assign(name=[f"shrub {i}" for i in range(80)], day=day[:80]))
    forest.write("test.csv", forest.test.assign(bark="mossy", day=None))
    options = ["--noise", "rows", "--steps", "3", "--out", "w.csv", "--cleaned", "c.csv", "--model", "m", "--json"]
    assert clean("--trusted", "trusted.csv", *options) == 0
    shown = capsys.readouterr()
    kinds = {each["column"]: each["kind"] for each in json.loads(shown.out)["columns"]}
    assert kinds == {"height": "number", "width": "number", "bark": "category", "name": "ignore", "day": "date"}
    assert "2 rows of train.csv have no label" in shown.err
    found, cleaned = pd.read_csv("w.csv"), pd.read_csv("c.csv")
    assert found["label_quality"].isna().sum() == 2
    assert cleaned["species"].notna().all()
    assert list(cleaned) == [*frame, "given_species"]
    assert cli.main(["predict", "m", "test.csv", "--out", "p.csv"]) == 0
    assert "100 in column 'bark'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["train.csv.gz", "train.csv.zip", "train.tsv.xz"])
def test_compressed_tables(forest, capsys, name):
    import lzma

    separator = "\t" if ".tsv" in name else ","
    text = forest.frame.to_csv(index=False, sep=separator).encode()
    if name.endswith(".zip"):
        with zipfile.ZipFile(forest.folder / name, "w") as archive:
            archive.writestr("train.csv", text)
    else:
        forest.write(name, (gzip if name.endswith(".gz") else lzma).compress(text))
    table = read_table(forest.folder / name).frame
    pd.testing.assert_frame_equal(table, pd.read_csv(forest.folder / "train.csv"))
    forest.write("bad.csv.gz", b"not compressed")
    assert cli.main(["clean", "bad.csv.gz", "--label", "species"]) == 2
    assert "not compressed as its name says" in capsys.readouterr().err


def test_rows_without_a_label_are_predicted_and_counted(forest, capsys):
    truth = forest.frame["species"].copy()
    frame = forest.frame.astype({"species": object})
    frame.loc[10:29, "species"] = [None, " "] * 10
    frame.loc[200:, "species"] = frame["species"][200:].str.title()
    forest.write("train.csv", frame)
    assert clean("--trusted", "trusted.csv", "--out", "w.csv", "--cleaned", "c.csv", "--report", "r.html") == 0
    notes = capsys.readouterr().err
    assert "20 rows of train.csv have no label in 'species': it is predicted" in notes
    assert "the labels 'Ash', 'Fir', 'Oak' differ from others in upper and lower case only" in notes
    found, cleaned = pd.read_csv(forest.folder / "w.csv"), pd.read_csv(forest.folder / "c.csv")
    assert len(found) == 240
    assert found["given_label"].isna().sum() == found["label_quality"].isna().sum() == 20
    right = ~forest.wrong[10:30]
    assert (found["suggested_label"][10:30].str.lower().to_numpy() == truth[10:30])[right].mean() > 0.6
    assert found["given_label"].nunique() == 3
    assert (cleaned["species"][10:30] == found["suggested_label"][10:30]).all()


def test_trusted_rows_that_are_rows_of_the_table_are_matched_by_a_key(forest, capsys):
    numbered = forest.frame.assign(tree=[f"T{i}" for i in range(240)])
    forest.write("train.csv", numbered)
    others = {"fir": "oak", "ash": "fir", "oak": "ash"}
    right = np.where(forest.wrong, forest.frame["species"].map(others), forest.frame["species"])
    forest.write("trusted.csv", numbered.assign(species=right)[:100])
    assert clean("--trusted", "trusted.csv", "--out", "w.csv", "--json") == 0
    shown = capsys.readouterr()
    assert "100 rows of trusted.csv are also in train.csv, by the column 'tree'" in shown.err
    assert json.loads(shown.out)["wrong_among_suspected"] is not None
    found = pd.read_csv(forest.folder / "w.csv")
    assert (found["label_quality"][:100] == ~forest.wrong[:100]).all()
    forest.write("trusted.csv", forest.trusted.assign(tree=[f"T{i}" for i in range(len(forest.trusted))]))
    options = CleanOptions(Path("train.csv"), label="species", trusted=Path("trusted.csv"))
    notes = prepare(options, Ranks()).notes  # numbers that were counted anew are no key
    assert not [note for note in notes if "are also in train.csv" in note]


@pytest.mark.slow
def test_fewer_suspicions_for_more_precision_and_rows_to_check_on_the_screen(forest, capsys):
    others = {"fir": "oak", "ash": "fir", "oak": "ash"}
    right = np.where(forest.wrong, forest.frame["species"].map(others), forest.frame["species"])
    looked = np.random.default_rng(0).random(240) < 0.5
    forest.write("train.csv", forest.frame.assign(seen=np.where(looked, right, "")))
    assert clean("--verified", "seen", "--json", "--next", "9") == 0
    first = json.loads(capsys.readouterr().out)
    assert len(first["to_check"]) == 9
    assert sum(row["drawn_at_random"] for row in first["to_check"]) == 3
    assert clean("--verified", "seen", "--precision", "0.95", "--out", "w.csv", "--next", "9") == 0
    assert "Rows to check next" in capsys.readouterr().out
    found = pd.read_csv(forest.folder / "w.csv")
    chosen = found["is_label_issue"].to_numpy() & ~looked
    assert 0 < found["is_label_issue"].sum() <= first["label_issues"]
    assert forest.wrong[chosen].mean() > 0.85


@pytest.mark.parametrize(
    "kind", ["npy", pytest.param("npz", marks=pytest.mark.slow), pytest.param("parquet", marks=pytest.mark.slow)]
)
def test_vectors_beside_the_table(forest, capsys, kind):
    vectors = {}
    for name, frame in (("train", forest.frame), ("trusted", forest.trusted), ("test", forest.test)):
        array = np.column_stack([frame["height"], frame["width"], frame["bark"] == "rough"]).astype(np.float32)
        vectors[name] = str(forest.folder / f"{name}.{kind}")
        if kind == "npy":
            np.save(vectors[name], array)
        elif kind == "npz":
            np.savez(vectors[name], embeddings=array)
        else:
            pd.DataFrame({"vector": list(array)}).to_parquet(vectors[name])
        forest.write(f"{name}.csv", frame[["species"]])
    files = [vectors["train"], vectors["trusted"]]
    assert clean("--trusted", "trusted.csv", "--features", *files, "--out", "w.csv", "--model", "m.any") == 0
    assert (pd.read_csv(forest.folder / "w.csv")["is_label_issue"] == forest.wrong).mean() > 0.75
    assert cli.main(["predict", "m.any", "test.csv", "--features", vectors["test"], "--out", "p.csv"]) == 0
    predicted = pd.read_csv(forest.folder / "p.csv")["predicted_label"]
    assert (predicted == forest.test["species"]).mean() > 0.75
    capsys.readouterr()
    assert clean("--features", vectors["test"]) == 2
    assert "a vector of numbers for each of the 240 rows" in capsys.readouterr().err
    assert clean("--trusted", "trusted.csv", "--features", vectors["train"]) == 2
    assert "one for each of the table, --trusted, in this order" in capsys.readouterr().err


def test_a_table_that_does_not_fit_into_memory_is_refused_with_its_size(forest, capsys):
    with (forest.folder / "huge.csv").open("wb") as file:
        file.write(b"height,species\n1.0,oak\n")
        file.truncate(4 * 10**12)  # a hole, which takes no space on the disk
    assert forest.clean(table="huge.csv") == 2
    message = capsys.readouterr().err
    assert "huge.csv would fill 1,000.0 GB of memory, and this machine can spare" in message
    assert "leave out rows or columns" in message
    with pytest.raises(InvalidInputError, match="table.csv has about 7 rows and would fill 1,000.0 GB of memory"):
        check_size(Path("table.csv"), 10**12, rows=7)


def test_names_of_columns_become_distinct():
    assert distinct(["a", "a", "", "a 2", "a"]) == ("a", "a 3", "unnamed 3", "a 2", "a 4")


def test_solvers_that_need_a_radius_are_known_before_they_are_loaded():
    from bilevel import solvers
    from bilevel.solvers.base import FIXED_SET, needs_of

    assert (
        tuple(name for name, kind in SOLVERS.items() if FIXED_SET in needs_of(getattr(solvers, kind)())) == NEEDS_RADIUS
    )
