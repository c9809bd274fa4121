"""`bilevel clean` and `bilevel predict` from files to files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from bilevel import cli
from bilevel.cleaning import HyperCleaner, load_cleaner, save_cleaner
from bilevel.cleaning.result import ROW_COLUMNS

QUICK = ["--noise", "transition", "--steps", "5"]
COLUMNS = ["row", "given_label", "predicted_label", "label_quality", "is_label_issue", "weight"]


def bilevel(*arguments: str, cwd) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bilevel", *arguments], capture_output=True, text=True, timeout=300, cwd=cwd
    )


def test_wrong_labels_are_found(forest, capsys):
    assert forest.clean("--test", "test.csv", "--out", "weights.csv", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    weights = pd.read_csv("weights.csv")
    assert list(weights.columns) == [*COLUMNS, "suggested_label", "suggested_probability"]
    assert weights.row.tolist() == list(range(1, 241))
    assert weights.given_label.tolist() == forest.frame.species.tolist()
    # A wrong label has lower quality than a right one with a probability of more than 95 % (the area under ROC).
    wrong, right = weights.label_quality[forest.wrong], weights.label_quality[~forest.wrong]
    assert (wrong.to_numpy()[:, None] < right.to_numpy()).mean() > 0.95
    suspected = weights.is_label_issue.to_numpy()
    assert (suspected & forest.wrong).sum() > 0.5 * forest.wrong.sum()
    assert (suspected & forest.wrong).sum() > 0.8 * suspected.sum()
    assert document["label_issues"] == suspected.sum()
    assert document["accuracy"]["cleaned"] > document["accuracy"]["all rows as they are"]
    assert document["accuracy"]["rows"] == len(forest.test)


def test_the_screen(forest, capsys):
    assert forest.clean(*QUICK, "--report", "report.html") == 0
    shown = capsys.readouterr()
    for part in (
        "Which labels of train.csv are wrong?",
        "suspected labels",
        "of 240 rows",
        "80 from trusted.csv",
        "accuracy, all rows as they are",
        "accuracy, rows that are kept",
        "accuracy, cleaned",
        "on the 16 trusted rows that were kept aside",
        "16 rows give a rough figure: --test FILE with at least 50 gives a better one.",
        "Most suspicious rows",
        "report: report.html",
    ):
        assert part in " ".join(shown.out.split()), part
    assert "learning" not in shown.out  # progress goes to standard error


def test_all_outputs_tell_the_same(forest, capsys):
    outputs = ["--out", "weights.parquet", "--model", "model.safetensors", "--report", "report.html"]
    assert forest.clean(*QUICK, *outputs, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["status"] == "finished"
    assert document["outputs"] == {"out": "weights.parquet", "model": "model.safetensors", "report": "report.html"}
    assert document["classes"] == ["ash", "fir", "oak"]
    assert document["trusted_rows"] == 80
    assert document["noise"] == "transition"
    assert document["versions"].keys() >= {"bilevel", "torch", "scikit-learn", "Python"}
    assert np.allclose(np.sum(document["transition"], axis=1), 1)
    weights = pd.read_parquet("weights.parquet")
    assert list(weights.columns) == COLUMNS
    worst = weights.sort_values("label_quality").iloc[0]
    assert document["most_suspicious_rows"][0]["row"] == worst.row
    page = forest.read("report.html")
    command_line = (
        "bilevel clean train.csv --label species --trusted trusted.csv --noise transition --steps 5 "
        "--out weights.parquet --model model.safetensors --report report.html --json"
    )
    assert command_line in page
    saved = load_cleaner("model.safetensors")
    assert saved.label == "species"
    assert saved.encoder is not None
    assert saved.encoder.columns_ == ["height", "width", "bark"]
    np.testing.assert_array_equal(saved.cleaner.sample_weight_, weights.weight)


def test_the_same_seed_gives_the_same_bytes(forest):
    for name in ("a.csv", "b.csv"):
        assert forest.clean(*QUICK, "--seed", "3", "--out", name) == 0
    assert forest.clean(*QUICK, "--seed", "4", "--out", "c.csv") == 0
    first, again, other = (forest.read(name) for name in ("a.csv", "b.csv", "c.csv"))
    assert first == again
    assert first != other


def test_parquet_and_csv_give_the_same(forest):
    forest.frame.to_parquet("train.parquet")
    forest.trusted.to_parquet("trusted.parquet")
    assert forest.clean(*QUICK, "--out", "a.csv") == 0
    assert forest.clean(*QUICK, "--trusted", "trusted.parquet", "--out", "b.csv", table="train.parquet") == 0
    assert forest.read("a.csv") == forest.read("b.csv")


@pytest.mark.parametrize("numbered", [False, True])
def test_a_trusted_column_is_a_trusted_table(forest, numbered):
    codes = {"ash": 1, "fir": 2, "oak": 3} if numbered else {name: name for name in ("ash", "fir", "oak")}
    frame, trusted = (table.assign(species=table.species.map(codes)) for table in (forest.frame, forest.trusted))
    forest.write("train.csv", frame)
    forest.write("trusted.csv", trusted)
    forest.write("both.csv", pd.concat([frame.assign(checked="no"), trusted.assign(checked="yes")]))
    settings = [*QUICK, "--holdout", "0"]
    assert forest.clean(*settings, "--out", "a.csv", "--model", "a.safetensors") == 0
    arguments = ["--trusted-column", "checked", "--out", "b.csv", "--model", "b.safetensors"]
    assert forest.clean(*settings, *arguments, table="both.csv") == 0
    one, two = pd.read_csv("a.csv"), pd.read_csv("b.csv")
    pd.testing.assert_frame_equal(one, two[:240])
    assert (two.weight[240:] == 1).all()
    assert not two.is_label_issue[240:].any()
    assert two.given_label[240:].tolist() == trusted.species.tolist()
    np.testing.assert_array_equal(
        load_cleaner("a.safetensors").cleaner.coef_, load_cleaner("b.safetensors").cleaner.coef_
    )


@pytest.mark.parametrize(
    ("labels", "kind"),
    [({"oak": 1, "fir": 2, "ash": 7}, "int"), ({"oak": True, "fir": False, "ash": False}, "bool")],
)
def test_labels_that_are_no_texts(forest, labels, kind, capsys):
    for name, frame in (("train.csv", forest.frame), ("trusted.csv", forest.trusted)):
        forest.write(name, frame.assign(species=frame.species.map(labels)))
    assert forest.clean(*QUICK, "--model", "m.safetensors", "--json") == 0
    assert json.loads(capsys.readouterr().out)["classes"] == sorted(set(labels.values()))
    assert type(load_cleaner("m.safetensors").cleaner.classes_.tolist()[0]).__name__ == kind


def test_pictures_are_recognised(forest, capsys):
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(n_class=3, return_X_y=True)
    frame = pd.DataFrame(pixels.astype(int), columns=[f"pixel{i}" for i in range(64)]).assign(digit=digits)
    forest.write("digits.csv", frame[:300])
    forest.write("known.csv", frame[300:400])
    arguments = ["--trusted", "known.csv", "--report", "r.html", "--model", "m.safetensors"]
    assert forest.clean(*QUICK, *arguments, table="digits.csv", label="digit") == 0
    page = forest.read("r.html")
    assert page.count("data:image/png;base64,") == 100
    encoder = load_cleaner("m.safetensors").encoder
    assert encoder is not None
    assert set(encoder.scale_) == {16.0}


# --- what is noted ---


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_in_common_are_counted(sparse):
    from scipy.sparse import csr_matrix

    from bilevel.cleaning.prepare import found_rows

    rows = np.random.default_rng(0).integers(0, 3, (4000, 8)).astype(float)
    some, others = rows[:1500], rows[1500:]
    expected = sum(bool((others == row).all(axis=1).any()) for row in some)
    assert 0 < expected < 1500
    kind = csr_matrix if sparse else np.asarray
    assert found_rows(kind(some), [kind(others[:10]), kind(others[10:])]).sum() == expected


def test_rows_measured_on_that_are_in_the_table_are_noted(forest, capsys):
    forest.write("test.csv", pd.concat([forest.test, forest.frame[:7], forest.trusted[:3]]))
    assert forest.clean(*QUICK, "--test", "test.csv", "--report", "r.html") == 0
    note = (
        f"10 of the {len(forest.test) + 10} measured rows also occur in train.csv or trusted.csv, by the columns used"
    )
    assert note in capsys.readouterr().err
    assert note in forest.read("r.html")
    assert "none of these models was trained" not in forest.read("r.html")


def test_trusted_rows_kept_aside_that_are_in_the_table_are_noted(forest, capsys):
    forest.write("train.csv", pd.concat([forest.frame, forest.trusted]))
    assert forest.clean(*QUICK) == 0
    assert "16 of the 16 measured rows also occur in train.csv" in capsys.readouterr().err


def test_cleaning_that_did_not_help_is_said(forest, capsys):
    """All trusted labels are wrong."""
    wrong = forest.trusted.species.map({"oak": "fir", "fir": "ash", "ash": "oak"})
    forest.write("trusted.csv", forest.trusted.assign(species=wrong))
    assert forest.clean(*QUICK, "--test", "test.csv") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Cleaning did not help: leaving the suspected rows out made the model worse on these rows." in shown
    assert "rough figure" not in shown


def test_few_trusted_rows_are_not_kept_aside(forest, capsys):
    forest.write("trusted.csv", forest.trusted[:20])
    assert forest.clean(*QUICK) == 0
    assert "not measured: 20 trusted rows are too few to keep some aside" in " ".join(capsys.readouterr().out.split())


def test_a_label_without_a_trusted_row_is_noted(forest, capsys):
    forest.write("trusted.csv", forest.trusted[forest.trusted.species != "ash"])
    assert forest.clean(*QUICK, "--json") == 0
    shown = capsys.readouterr()
    note = "No trusted row has the label 'ash': wrong labels of that kind are hard to tell from right ones"
    assert note in shown.err
    assert note in json.loads(shown.out)["notes"]


def test_further_columns_of_the_trusted_table_are_noted(forest, capsys):
    forest.write("trusted.csv", forest.trusted.assign(reviewer="Ada"))
    assert forest.clean(*QUICK) == 0
    assert "trusted.csv has columns that train.csv lacks, which are ignored: 'reviewer'" in capsys.readouterr().err


def test_codes_that_look_like_numbers_in_one_table_only(forest, capsys):
    """007 and 7 are different codes, also in a table in which every code looks like a number."""
    codes = np.where(np.arange(240) % 3 == 0, "A1", np.where(np.arange(240) % 3 == 1, "007", "7"))
    forest.write("train.csv", forest.frame.assign(code=codes))
    forest.write("trusted.csv", forest.trusted.assign(code="007"))
    forest.write("test.csv", forest.test.assign(code="07"))
    assert forest.clean(*QUICK, "--model", "m.safetensors") == 0
    assert cli.main(["predict", "m.safetensors", "trusted.csv"]) == 0
    assert "unknown" not in capsys.readouterr().err
    assert cli.main(["predict", "m.safetensors", "test.csv"]) == 0
    assert "100 in column 'code'" in capsys.readouterr().err


def test_warnings_of_training_are_notes(forest, capsys, monkeypatch):
    import warnings

    fit = HyperCleaner.fit

    def fit_and_warn(self, *arguments, **named):
        warnings.warn("the lower level is far from solved", UserWarning, stacklevel=2)
        return fit(self, *arguments, **named)

    monkeypatch.setattr(HyperCleaner, "fit", fit_and_warn)
    assert forest.clean(*QUICK, "--report", "r.html") == 0
    assert "bilevel: the lower level is far from solved" in capsys.readouterr().err
    assert "the lower level is far from solved" in forest.read("r.html")


def test_control_characters_do_not_reach_the_terminal(forest, capsys):
    for name, frame in (("train.csv", forest.frame), ("trusted.csv", forest.trusted)):
        forest.write(name, frame.replace({"species": {"oak": "o\x1b[2Jak[red]"}}))
    assert forest.clean(*QUICK) == 0
    shown = capsys.readouterr()
    assert "\x1b[2J" not in shown.out + shown.err
    assert "\\x1b[2Jak[red]" in shown.out


# --- files ---


def test_nothing_is_overwritten_without_force(forest, capsys):
    forest.write("weights.csv", "precious")
    assert forest.clean(*QUICK, "--out", "weights.csv") == 2
    assert "--out weights.csv: the file exists and was left as it is; --force replaces it" in capsys.readouterr().err
    assert forest.read("weights.csv") == "precious"
    assert forest.clean(*QUICK, "--out", "weights.csv", "--force") == 0
    assert len(pd.read_csv("weights.csv")) == 240


def test_a_full_disk_leaves_nothing_half_written(forest, capsys, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    before = forest.files()
    monkeypatch.setattr(pd.DataFrame, "to_parquet", full)
    assert forest.clean(*QUICK, "--report", "r.html", "--out", "weights.parquet") == 2
    assert (
        "weights.parquet could not be written (No space left on device), and nothing was changed"
        in capsys.readouterr().err
    )
    assert forest.files() == before


def test_json_is_all_there_is_on_standard_output(forest, capfd):
    assert forest.clean(*QUICK, "--json") == 0
    assert json.loads(capfd.readouterr().out)["rows"] == 240


def test_a_mistake_in_a_process_of_its_own(forest):
    finished = bilevel("clean", "train.csv", "--label", "genus", "--trusted", "trusted.csv", cwd=forest.folder)
    assert finished.returncode == 2
    assert finished.stdout == ""
    assert finished.stderr.startswith("bilevel: train.csv has no column 'genus'")


# --- Ctrl-C ---


def test_ctrl_c_keeps_the_best_so_far(forest):
    process = subprocess.Popen(
        [
            sys.executable, "-m", "bilevel", "clean", "train.csv", "--label", "species", "--trusted", "trusted.csv",
            "--noise", "rows", "--steps", "1000000", "--out", "w.csv", "--report", "r.html", "--model", "m.safetensors",
        ],
        cwd=forest.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "FORCE_COLOR": "1", "COLUMNS": "120"},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        began, shown = time.monotonic(), ""
        while "learning rows, held-out loss" not in shown:  # a step is done
            shown += process.stderr.read(1)
            assert time.monotonic() - began < 300, shown
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode in (130, -signal.SIGINT), err  # a shell shows 130 for both
    assert "Traceback" not in err
    assert "stopped by Ctrl-C: the results so far are kept and marked as interrupted" in err
    assert "interrupted" in out
    assert len(pd.read_csv(forest.folder / "w.csv")) == 240
    assert "Interrupted." in (forest.folder / "r.html").read_text()
    assert load_cleaner(forest.folder / "m.safetensors").cleaner.status_ == "interrupted"


def test_ctrl_c_before_there_is_anything_to_keep(forest, monkeypatch, capsys):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(pd, "read_csv", stopped)
    before = forest.files()
    assert forest.clean(*QUICK, "--out", "w.csv") == 130
    assert capsys.readouterr().err.endswith("\nbilevel: stopped by Ctrl-C\n")
    assert forest.files() == before


def test_ctrl_c_while_measuring_keeps_the_result(forest, monkeypatch, capsys):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(LogisticRegression, "fit", stopped)
    assert forest.clean(*QUICK, "--out", "w.csv", "--json") == 130
    assert json.loads(capsys.readouterr().out)["status"] == "interrupted"
    assert len(pd.read_csv("w.csv")) == 240


# --- predict ---


@pytest.fixture
def model(forest, capsys):
    assert forest.clean(*QUICK, "--model", "model.safetensors", "--holdout", "0") == 0
    capsys.readouterr()
    return load_cleaner("model.safetensors")


def test_predict_agrees_with_the_model(forest, model, capsys):
    new = forest.test.drop(columns="species")
    forest.write("new.csv", new)
    assert cli.main(["predict", "model.safetensors", "new.csv", "--out", "p.csv"]) == 0
    assert capsys.readouterr().out == ""
    frame = pd.read_csv("p.csv")
    assert list(frame.columns) == ["row", "predicted_label", "probability_ash", "probability_fir", "probability_oak"]
    features = model.encoder.transform(new)
    assert frame.predicted_label.tolist() == model.cleaner.predict(features).tolist()
    np.testing.assert_array_equal(frame.filter(like="probability"), model.cleaner.predict_proba(features))
    assert (frame.predicted_label == forest.test.species).mean() > 0.8


def test_predict_to_standard_output_and_parquet(forest, model, capsys):
    assert cli.main(["predict", "model.safetensors", "test.csv"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""  # the label column is not worth a note
    assert shown.out.splitlines()[0] == "row,predicted_label,probability_ash,probability_fir,probability_oak"
    assert len(shown.out.splitlines()) == 101
    assert cli.main(["predict", "model.safetensors", "test.csv", "--out", "p.parquet"]) == 0
    assert capsys.readouterr().err == "bilevel: 100 predictions are in p.parquet\n"
    assert len(pd.read_parquet("p.parquet")) == 100


def test_a_reader_that_leaves_early(forest, model):
    forest.write("long.csv", pd.concat([forest.test] * 40))  # more than a pipe holds
    line = f"{sys.executable} -m bilevel predict model.safetensors long.csv | head -1"
    finished = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=300, cwd=forest.folder)
    assert finished.stdout.startswith("row,predicted_label")
    assert finished.stderr == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: frame.drop(columns="width"), "new.csv lacks a column of model.safetensors: 'width'"),
        (lambda frame: frame.rename(columns={"width": "Width"}), "'width'; it has 'Width' instead"),
    ],
)  # fmt: skip
def test_tables_that_do_not_fit_the_model(forest, model, capsys, change, message):
    forest.write("new.csv", change(forest.test.drop(columns="species")))
    assert cli.main(["predict", "model.safetensors", "new.csv", "--out", "p.csv"]) == 2
    assert message in capsys.readouterr().err
    assert "p.csv" not in forest.files()


def test_unknown_categories_gaps_and_further_columns(forest, model, capsys):
    forest.write("new.csv", forest.test.assign(bark=["mossy"] * 7 + ["rough"] * 93, height=["tall", None] * 50, age=3))
    assert cli.main(["predict", "model.safetensors", "new.csv"]) == 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 101
    note = (
        "new.csv has cells unknown to model.safetensors, which count as none of the known values: 7 in column 'bark'\n"
    )
    assert note in shown.err


def test_columns_that_were_left_out_on_purpose_are_not_worth_a_note(forest, capsys):
    both = pd.concat([forest.frame, forest.trusted.assign(checked="x")]).assign(name="tree", owner="Ada")
    forest.write("both.csv", both)
    arguments = ["--trusted-column", "checked", "--ignore", "name", "--ignore", "owner", "--model", "m.safetensors"]
    assert forest.clean(*QUICK, *arguments, table="both.csv") == 0
    capsys.readouterr()
    assert cli.main(["predict", "m.safetensors", "both.csv"]) == 0
    assert capsys.readouterr().err == ""


def test_columns_left_out_still_tell_which_row_is_which(forest):
    names = [f"tree {k}" for k in range(len(forest.frame))]
    forest.write("named.csv", forest.frame.assign(name=names, weight="heavy"))
    arguments = ["--ignore", "name", "weight", "--out", "w.csv", "--report", "r.html"]
    assert forest.clean(*QUICK, *arguments, table="named.csv") == 0
    written = pd.read_csv("w.csv")
    assert list(written.columns) == [*ROW_COLUMNS, "name"]  # the weight is that of the row
    assert list(written["name"]) == names
    assert '"tree 7"' in Path("r.html").read_text(encoding="utf-8")


def test_a_table_of_one_column(forest, capsys):
    for name in ("train.csv", "trusted.csv"):
        forest.write(name, pd.read_csv(name)[["height", "species"]])
    assert forest.clean(*QUICK, "--model", "m.safetensors") == 0
    forest.write("new.csv", forest.test[["height"]])
    capsys.readouterr()
    assert cli.main(["predict", "m.safetensors", "new.csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 101


def test_predict_refuses_to_replace_files(forest, model, capsys):
    for arguments, message in (
        (["--out", "test.csv", "--force"], "would replace an input file"),
        (["--out", "trusted.csv"], "the file exists and was left as it is; --force replaces it"),
        (["--out", "p.html"], "--out p.html: the name must end in .csv or"),
    ):
        assert cli.main(["predict", "model.safetensors", "test.csv", *arguments]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"height,width\n1,2\n", bytes(1000)])
def test_predict_with_a_foreign_model(forest, capsys, content):
    forest.write("model.safetensors", content)
    assert cli.main(["predict", "model.safetensors", "test.csv"]) == 2
    assert "model.safetensors" in capsys.readouterr().err


def test_a_model_saved_from_python_predicts_a_table(forest, capsys):
    numbers = forest.frame[["height", "width"]]
    cleaner = HyperCleaner(noise="rows", steps=2, random_state=0)
    cleaner.fit(numbers, forest.frame.species.to_numpy(), trusted=np.arange(240) < 60)
    save_cleaner("model.safetensors", cleaner)
    assert cli.main(["predict", "model.safetensors", "test.csv", "--out", "p.csv"]) == 0
    frame = pd.read_csv("p.csv")
    np.testing.assert_array_equal(frame.predicted_label, cleaner.predict(forest.test[["height", "width"]]))
    cleaner.fit(numbers.to_numpy(), forest.frame.species.to_numpy(), trusted=np.arange(240) < 60)
    save_cleaner("model.safetensors", cleaner, overwrite=True)
    forest.write("numbers.csv", forest.test[["height", "width"]])
    assert cli.main(["predict", "model.safetensors", "numbers.csv", "--out", "q.csv"]) == 0
    pd.testing.assert_frame_equal(pd.read_csv("q.csv"), frame)
    capsys.readouterr()
    assert cli.main(["predict", "model.safetensors", "test.csv"]) == 2
    assert "model.safetensors takes 2 columns of numbers, and test.csv has 4" in capsys.readouterr().err


# --- help ---


def test_help_teaches(capsys):
    assert cli.main(["clean", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for part in ("--trusted-column", "Exit codes: 0 success", "--json", "weights.csv", "jq .label_issues", "Ctrl-C"):
        assert part in text
    assert cli.main(["predict", "--help"]) == 0
    assert "bilevel predict model.safetensors new.csv" in " ".join(capsys.readouterr().out.split())
