"""`bilevel clean` and `HyperCleaner.fit` on several ranks mean what they mean in one process."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.cleaning.on_ranks import arguments, finished, rank_of, start, write_tables
from tests.ranks import free_port, on_ranks

from bilevel import HyperCleaner, cli
from bilevel.cleaning import load_cleaner
from bilevel.errors import BilevelError

pytestmark = pytest.mark.slow  # each starts several processes


def on_two(folder, *words):
    """Exit codes, outputs and errors of two ranks."""
    port = free_port()
    return [
        finished(process) for process in [start(folder, ["bilevel", *words], rank_of(r, 2, port)) for r in range(2)]
    ]


def alone(monkeypatch, *words):
    """The same command as the only rank."""
    for name, value in rank_of(0, 1, free_port()).items():
        monkeypatch.setenv(name, str(value))
    try:
        return cli.main(list(words))
    finally:
        for name in rank_of(0, 1, 0):
            monkeypatch.delenv(name)


def assert_same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    assert list(expected) == list(found)
    for name in expected:
        if expected[name].dtype.kind == "f":
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-10, atol=1e-10)
        else:
            assert (expected[name] == found[name]).all(), name


@pytest.mark.parametrize(
    ("rows", "settings"),
    [
        (2600, ["--noise", "rows", "--steps", "6"]),
        (2600, ["--steps", "3", "--radius", "4"]),  # all noise models
        (300, ["--steps", "3"]),  # every rank has all rows
    ],
)
def test_two_ranks_find_what_one_process_finds(tmp_path, monkeypatch, capsys, rows, settings):
    """With texts of one rank alone, a column constant on one rank, one constant everywhere, and columns by name."""
    write_tables(tmp_path, rows=rows)
    monkeypatch.chdir(tmp_path)
    outputs = {n: ["--out", f"{n}.csv", "--model", f"{n}.safetensors", "--report", f"{n}.html"] for n in ("one", "two")}
    assert cli.main(arguments("train.parquet", *settings, *outputs["one"], "--json")) == 0
    one = json.loads(capsys.readouterr().out)
    ended = on_two(tmp_path, *arguments("train", *settings, *outputs["two"], "--json"))
    assert [code for code, _, _ in ended] == [0, 0], ended
    assert ended[1][1:] == ("", "")  # only rank 0 speaks
    two = json.loads(ended[0][1])
    for name in ("status", "rows", "trusted_rows", "classes", "label_issues", "accuracy", "noise"):
        assert one[name] == two[name], name
    assert [note for note in one["notes"] if "is for linear models" not in note] == two["notes"]  # ranks have no others
    np.testing.assert_allclose(two["radius"], one["radius"], rtol=1e-10)
    found = pd.read_csv("two.csv")
    assert_same(found, pd.read_csv("one.csv"))
    first, second = (load_cleaner(f"{name}.safetensors") for name in ("one", "two"))
    np.testing.assert_allclose(second.cleaner.coef_, first.cleaner.coef_, rtol=1e-10, atol=1e-10)
    assert_same(second.cleaner.label_issues(), first.cleaner.label_issues())
    assert second.encoder.decisions_ == first.encoder.decisions_
    table = pd.read_parquet("train.parquet")
    np.testing.assert_array_equal(second.encoder.transform(table), first.encoder.transform(table))
    pages = [Path(f"{name}.html").read_text() for name in ("one", "two")]
    assert [page.count("<tr>") for page in pages] == [pages[0].count("<tr>")] * 2
    assert cli.main(["predict", "two.safetensors", "train.parquet", "--out", "predicted.csv"]) == 0
    assert (pd.read_csv("predicted.csv")["predicted_label"] == found["predicted_label"]).all()
    assert not list(tmp_path.glob(".*"))


def test_a_column_of_trusted_rows_in_a_text_file(tmp_path, monkeypatch):
    """Ranks hold different numbers of rows that are not trusted."""
    write_tables(tmp_path, rows=2600)
    monkeypatch.chdir(tmp_path)
    trusted = pd.read_csv("trusted.csv").assign(checked="yes")
    train = pd.read_parquet("train.parquet").assign(checked="")
    pd.concat([train[:400], trusted, train[400:]]).to_csv("both.csv", index=False)
    words = ["clean", "both.csv", "--label", "species", "--ignore", "name", "--trusted-column", "checked"]
    words += ["--steps", "3", "--noise", "rows", "--holdout", "0.4"]
    assert cli.main([*words, "--out", "one.csv"]) == 0
    ended = on_two(tmp_path, *words, "--out", "two.csv")
    assert [code for code, _, _ in ended] == [0, 0], ended
    assert_same(pd.read_csv("two.csv"), pd.read_csv("one.csv"))


def test_what_cannot_be_is_refused_by_name(tmp_path, monkeypatch, capsys):
    write_tables(tmp_path)
    monkeypatch.chdir(tmp_path)
    wanted = {
        ("--resume", "none.safetensors"): "--resume none.safetensors: there is no such file; --checkpoint none",
        ("--checkpoint", "folder"): "--checkpoint folder: the name must end in .safetensors",
        ("--solver", "vpbgd"): "--solver vpbgd needs a fixed radius: add --radius 1",
        ("--categorical", "nothing"): "train has no column 'nothing', which --categorical names",
    }
    for words, told in wanted.items():
        assert alone(monkeypatch, *arguments("train", *words)) == 2
        assert told in capsys.readouterr().err
    assert cli.main(arguments("train.parquet", "--timeout", "3")) == 2
    assert "--timeout 3 needs torchrun" in capsys.readouterr().err


def test_labels_and_cells_that_are_empty(tmp_path, monkeypatch):
    write_tables(tmp_path)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train" / "part-2.parquet"
    frame = pd.read_parquet(path)
    frame.loc[5, ["species", "a", "town"]] = None
    frame.to_parquet(path, index=False)
    ended = on_two(tmp_path, *arguments("train", "--radius", "2", "--steps", "2", "--out", "w.csv"))
    assert [code for code, _, _ in ended] == [0, 0], ended
    assert "1 rows of train have no label in 'species': it is predicted" in ended[0][2]
    found = pd.read_csv("w.csv")
    assert found.index[found["label_quality"].isna()].tolist() == [205]


# --- checkpoints ------------------------------------------------------------------------------------------------------


def rows(count=2400):
    generator = np.random.default_rng(3)
    X = generator.normal(size=(count + 100, 6))
    right = (X @ generator.normal(size=(6, 3))).argmax(1)
    given = np.where(np.arange(len(X)) % 4 == 0, (right + 1) % 3, right)
    return X[:count], given[:count], X[count:], right[count:]


SETTINGS = {"noise": "rows", "steps": 6, "random_state": 2}


def fit(ranks, path, stop, resume, settings):
    """The coefficients and this rank's weights; or the error. The ranks divide the rows unevenly."""
    X, y, X_trusted, y_trusted = rows()
    cut = 1000 if ranks.size > 1 else len(y)
    mine = slice(0, cut) if ranks.rank == 0 else slice(cut, None)
    calls = []

    def callback(event):
        calls.append(event)
        if len(calls) == stop:
            raise KeyboardInterrupt

    cleaner = HyperCleaner(**settings, callback=callback)
    try:
        cleaner.fit(
            X[mine], y[mine], X_trusted=X_trusted, y_trusted=y_trusted, ranks=ranks, checkpoint=path,
            resume=path if resume else None,
        )  # fmt: skip
    except BilevelError as error:
        return str(error)
    return [cleaner.status_, cleaner.coef_.tolist(), cleaner.sample_weight_.tolist()]


@pytest.mark.filterwarnings("ignore:the fit was interrupted")
def test_a_fit_that_was_stopped_goes_on_with_another_number_of_ranks(tmp_path):
    X, y, X_trusted, y_trusted = rows()
    whole = HyperCleaner(**SETTINGS).fit(X, y, X_trusted=X_trusted, y_trusted=y_trusted)
    path = str(tmp_path / "run.safetensors")
    stopped = on_ranks(fit, 2, path, 3, False, SETTINGS)
    assert [status for status, *_ in stopped] == ["interrupted"] * 2
    assert [entry.name for entry in sorted(tmp_path.iterdir())] == ["run.previous.safetensors", "run.safetensors"]
    copy = tmp_path / "alone.safetensors"
    copy.write_bytes(Path(path).read_bytes())
    resumed = on_ranks(fit, 2, path, 0, True, SETTINGS)
    resumed_alone = on_ranks(fit, 1, str(copy), 0, True, SETTINGS)
    for parts in (resumed, resumed_alone):
        assert {status for status, *_ in parts} == {"finished"}
        for _, coefficients, _ in parts:
            np.testing.assert_allclose(coefficients, whole.coef_, rtol=1e-10, atol=1e-10)
        weights = [weight for *_, own in parts for weight in own]
        np.testing.assert_allclose(weights, whole.sample_weight_, rtol=1e-10, atol=1e-10)
    for told in on_ranks(fit, 2, path, 0, True, {**SETTINGS, "steps": 7}):
        assert "cannot be continued, since steps differs from that of its run: 6 then, 7 now" in told


UNLIKE = {
    "rows": "the content of trusted rows is",
    "settings": "ridge is 0.001 on rank 0 and 0.1 on rank 1: give every rank the same",
    "batches": "batch_size=10: every step uses all rows that ranks divide",
    "nothing is trusted": "on several ranks trusted rows are needed",
    "all is trusted": "trusted marks every row",
}


def fit_unlike(ranks):
    """What each of these changes is told on this rank."""
    told = []
    for change in UNLIKE:
        X, y, X_trusted, y_trusted = rows()
        settings, mine, other = dict(SETTINGS), slice(ranks.rank, None, ranks.size), ranks.rank == 1
        settings |= {"ridge": 0.1} if change == "settings" and other else {}
        settings |= {"batch_size": 10} if change == "batches" else {}
        named = {"X_trusted": X_trusted + (change == "rows" and other), "y_trusted": y_trusted}
        named = {} if change == "nothing is trusted" else named
        named |= {"trusted": np.full(len(y[mine]), other)} if change == "all is trusted" else {}
        try:
            HyperCleaner(**settings).fit(X[mine], y[mine], **named, ranks=ranks)
        except BilevelError as error:
            told.append(str(error))
    return told


def test_what_ranks_cannot_do_is_an_error_on_all_before_training():
    for messages in on_ranks(fit_unlike, 2):
        for message, told in zip(messages, UNLIKE.values(), strict=True):
            assert told in message
