"""`bilevel clean` on tables as they are: gaps, dates, ids and texts; verified rows, suggestions, what to check."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from bilevel import cli


@pytest.fixture
def messy(forest):
    """The forest with an id, a date, a gap, decimal commas, a constant and a text column."""

    def spoil(frame: pd.DataFrame, first: int) -> pd.DataFrame:
        count = len(frame)
        height = frame.height.astype(str).str.replace(".", ",")
        return frame.assign(
            tree_id=np.arange(first, first + count),
            height=height.mask(np.arange(count) % 11 == 0),
            planted=pd.date_range("1990-01-01", periods=count).strftime("%d.%m.%Y"),
            park="north",
            note=[f"tree {i % 60} near the {'lake' if i % 2 else 'road'}" for i in range(count)],
        )

    forest.write("train.csv", spoil(forest.frame, 0))
    forest.write("trusted.csv", spoil(forest.trusted, 1000))
    forest.write("test.csv", spoil(forest.test, 2000).assign(bark="never seen").drop(columns="species"))
    return forest


def clean(*arguments: str) -> int:
    return cli.main(["clean", "train.csv", "--label", "species", *arguments])


def test_runs_through_at_the_first_try_and_predicts_unseen_values(messy, capsys):
    outputs = ["--out", "w.csv", "--model", "m.safetensors", "--report", "r.html", "--cleaned", "c.csv"]
    assert clean("--trusted", "trusted.csv", *outputs) == 0
    weights, cleaned = (pd.read_csv(messy.folder / name) for name in ("w.csv", "c.csv"))
    assert len(weights) == len(messy.frame)
    assert weights["label_quality"].between(0, 1).all()
    assert (weights["is_label_issue"] == messy.wrong).mean() > 0.75
    assert (cleaned["given_species"] == messy.frame["species"]).all()
    assert (cleaned["species"] != cleaned["given_species"]).sum() == weights["is_label_issue"].sum()
    page = messy.read("r.html")
    assert "What was made of your columns" in page
    assert "numbers the rows" in page or "identifies rows" in page
    assert cli.main(["predict", "m.safetensors", "test.csv", "--out", "p.csv"]) == 0
    assert "unknown" in capsys.readouterr().err
    predicted = pd.read_csv(messy.folder / "p.csv")
    assert len(predicted) == len(messy.test)
    np.testing.assert_allclose(predicted.filter(like="probability_").sum(axis=1), 1.0)


def test_columns_in_the_json_document_and_overridden(messy, capsys):
    options = ["--json", "--ignore", "note", "--categorical", "tree_id", "--noise", "rows", "--steps", "2"]
    assert clean("--trusted", "trusted.csv", *options) == 0
    columns = {each["column"]: each for each in json.loads(capsys.readouterr().out)["columns"]}
    kinds = {name: each["kind"] for name, each in columns.items()}
    assert kinds == {"height": "number", "width": "number", "bark": "category", "tree_id": "category",
                     "planted": "date", "park": "ignore", "note": "ignore"}  # fmt: skip
    assert columns["note"]["reason"] == "as you said"


def test_no_checked_rows_then_what_to_check_and_back(messy, capsys):
    assert clean("--out", "first.csv", "--next", "60", "--next-out", "check.csv") == 0
    notes = capsys.readouterr().err
    assert "there are no checked rows" in notes
    assert "a fifth of the labels" not in notes  # which would be said of checked rows
    found = pd.read_csv(messy.folder / "check.csv", dtype={"height": str, "verified_label": object, "verdict": object})
    assert len(found) == 60
    assert found["drawn_at_random"].sum() == 20
    cells = pd.read_csv(messy.folder / "train.csv", dtype=str).iloc[found["row"] - 1]
    assert found["height"].tolist() == cells["height"].tolist()
    others = {"fir": "oak", "ash": "fir", "oak": "ash"}  # what the labels were before they were changed
    wrong = messy.wrong[found["row"] - 1]
    found["verdict"] = np.where(wrong, "wrong", "right")
    found["verified_label"] = np.where(wrong, found["given_label"].map(others), None)
    found.loc[0, ["verdict", "verified_label"]] = "unsure", None
    found.to_csv(messy.folder / "decisions.csv", index=False)
    assert clean("--out", "second.csv", "--verified", "decisions.csv") == 0
    first, second = (pd.read_csv(messy.folder / f"{name}.csv") for name in ("first", "second"))
    unseen = ~np.isin(np.arange(240), found["row"] - 1)

    def hits(table: pd.DataFrame) -> int:
        worst = table[unseen].nsmallest(int(messy.wrong[unseen].sum()), "label_quality")
        return int(messy.wrong[worst["row"] - 1].sum())

    assert hits(second) >= hits(first)
    assert abs(second["label_quality"][unseen].mean() - (~messy.wrong[unseen]).mean()) < 0.12


def test_a_column_of_verified_labels(messy):
    table = pd.read_csv(messy.folder / "train.csv")
    others = {"fir": "oak", "ash": "fir", "oak": "ash"}
    right = table["species"].mask(pd.Series(messy.wrong), table["species"].map(others))
    table["looked"] = right.where(np.arange(240) < 80)
    table.to_csv(messy.folder / "train.csv", index=False)
    assert clean("--verified", "looked", "--out", "w.csv") == 0
    weights = pd.read_csv(messy.folder / "w.csv")
    assert (weights["suggested_label"][:80] == right[:80]).all()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("row,verdict\n9999,right\n", "from 1 to 240"),
        ("row,verdict\nfirst,right\n", "from 1 to 240"),
        ("row,verdict\n1,perhaps\n", "right, wrong, unsure"),
        ("row,given_label,verdict\n1,yew,right\n", "another table"),
        ("row,verified_label,verdict\n1,yew,wrong\n", "'yew' does not occur"),
        ("line,verdict\n1,right\n", "no column 'row'"),
    ],
)
def test_decisions_that_do_not_fit(forest, capsys, content, message):
    forest.write("decisions.csv", content)
    assert clean("--verified", "decisions.csv", "--out", "w.csv") == 2
    assert message in capsys.readouterr().err
    assert "w.csv" not in forest.files()


def test_refusals(forest, capsys):
    for arguments, message in (
        (["--verified", "nowhere"], "no column 'nowhere', which --verified names, and there is no such file"),
        (["--next-out", "n.csv"], "needs --next COUNT"),
        (["--precision", "0.9"], "--precision needs --verified"),
        (["--noise", "correction", "--checkpoint", "c.safetensors"], "no checkpoint"),
        (["--trusted", "trusted.csv", "--noise", "rows", "--text", "bark"], "--noise correction"),
        (["--text", "bark", "--ignore", "bark"], "cannot be both"),
    ):
        assert clean(*arguments) == 2
        assert message in capsys.readouterr().err


def test_texts_that_look_like_formulas_are_escaped_and_read_back(forest):
    names = {"oak": "=cmd()", "fir": "-x", "ash": "ash"}
    for name, table in (("train.csv", forest.frame), ("trusted.csv", forest.trusted)):
        forest.write(name, table.replace({"species": names}))
    forest.write("again.csv", pd.read_csv("trusted.csv").rename(columns={"species": "given_species"}))
    quick = ["--noise", "transition", "--steps", "2"]
    assert clean("--trusted", "trusted.csv", "--cleaned", "c.csv", *quick) == 0
    assert "=cmd()" not in forest.read("c.csv").replace("'=cmd()", "")
    again = ["--label", "given_species", "--trusted", "again.csv", "--ignore", "species", "--json"]
    assert cli.main(["clean", "c.csv", *again, *quick]) == 0
    assert clean("--trusted", "trusted.csv", "--cleaned", "raw.csv", "--raw", *quick) == 0
    assert "'=cmd()" not in forest.read("raw.csv")
