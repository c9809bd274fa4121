"""What is made of the columns of a table, and rows with gaps, new categories and other surprises."""

from __future__ import annotations

import time

import numpy as np
import pandas as pd
import pytest

from bilevel.cleaning.column_kinds import decide_columns, kinds_of_options
from bilevel.cleaning.columns import ColumnEncoder

N = 300
RNG = np.random.default_rng(0)
WORDS = ["red", "green", "blue", "small", "large", "old", "new", "fast", "slow", "round"]


def prose(count: int = N) -> list[str]:
    return [" ".join(RNG.choice(WORDS, 8)) + f" {i}" for i in range(count)]


def kind_of(name: str, values, labels=None, **others) -> tuple[str, str]:
    table = pd.DataFrame({**others, name: values})
    decision = decide_columns(table, labels)[-1]
    return decision.kind, decision.reason


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("height", RNG.normal(size=N), "number"),
        ("age", RNG.integers(0, 90, N), "number"),
        ("price", [f"{value:.2f}".replace(".", ",") for value in RNG.random(N)], "number"),
        ("mostly numbers", ["n/a" if i % 10 == 0 else str(i % 7) for i in range(N)], "number"),
        ("lead", [f"< {0.5 + i % 3}" if i % 3 else f"{i % 7}.25" for i in range(N)], "number"),  # below a limit
        ("children", [str(i % 6) if i % 6 < 5 else "5+" for i in range(N)], "number"),
        ("flag", RNG.random(N) < 0.5, "number"),
        ("colour", RNG.choice(WORDS, N), "category"),
        ("town", [f"town {i % 60}" for i in range(N)], "text"),
        ("plane", [f"N{i % 70}" for i in range(N)], "category"),
        ("report", prose(), "text"),
        ("day", pd.date_range("2020-01-01", periods=N).strftime("%d.%m.%Y"), "date"),
        ("when", pd.date_range("2020-01-01", periods=N, tz="UTC"), "date"),
        ("a", RNG.permutation(4 * N)[:N], "ignore"),  # numbers the rows
        ("income", RNG.permutation(10**9 // 2 + np.arange(N) * 1_000_003), "number"),  # all different, but far apart
        ("PassengerId", [f"P {i}" for i in range(N)], "ignore"),
        ("Sample Number", np.arange(N) % 200, "ignore"),
        ("code", [f"X{i:05d}" for i in range(N)], "ignore"),
        ("full name", [f"Jane {i} Doe Esq." for i in range(N)], "ignore"),
        ("year", [2013] * N, "ignore"),
        ("birds seen", RNG.choice(["1", "2-10", "11-100"], N), "category"),
        ("started", [f"{i % 24:02d}:{i % 60:02d}" for i in range(N)], "number"),
        ("finished", [f"{1 + i % 12}:{i % 60:02d} pm" for i in range(N)], "number"),
        ("month", pd.date_range("2020-01-01", periods=N).strftime("%b %Y"), "date"),
        ("written", pd.date_range("2020-01-01", periods=N).strftime("%B %d, %Y"), "date"),
        ("shown", [f"{2000 + i % 20} May" for i in range(N)], "date"),
        ("Quarter", [f"{1950 + i // 4 % 70} Q{1 + i % 4}" for i in range(N)], "date"),
        ("half of them", ["NA" if i % 2 else str(i % 7) for i in range(N)], "number"),
        ("userId", RNG.integers(0, 90, N), "ignore"),
        ("unitid", RNG.integers(10**5, 10**6, N), "ignore"),
        ("id", np.arange(N) % 30, "ignore"),
        ("subject", [f"{100 + i % 90}{'a' if i % 9 == 0 else ''}" for i in range(N)], "ignore"),
        ("family", np.arange(N) % 9, "number"),  # how many they are
        ("school_name", [f"{i} Road Elementary" for i in range(N)], "ignore"),
        ("product_name", [f"shirt {i} blue" for i in range(N)], "text"),
        ("account", 10**18 + np.arange(N) % 30, "category"),  # as floats they would be equal
        ("zipcode", RNG.permutation(9 * 10**4)[:N] + 10**4, "ignore"),
        ("plane", [f"N{i % 600}" for i in range(1000)], "ignore"),  # each is in one or two rows
        ("league_id", RNG.integers(0, 9, N), "category"),
        ("thyroid", RNG.integers(0, 900, N), "number"),
        ("paid", RNG.integers(10**3, 10**4, N), "number"),
        ("zip", RNG.integers(10**4, 10**4 + 30, N), "category"),
        ("row", [*range(N // 2), *range(N // 2)], "number"),  # half of the numbers are not different
        ("order", [*range(N - 30), *range(30)], "ignore"),  # counted anew in a second file
        ("first_name", [f"Jo{i % 200}" for i in range(N)], "ignore"),
        ("e-mail", [f"jo{i % 250}@x.org" for i in range(N)], "ignore"),
        ("Phone", [f"+49 170 {i:03d} 007" for i in range(N)], "ignore"),
        ("product_name", [f"{WORDS[i % 9]} {WORDS[i % 7]} {i}" for i in range(N)], "text"),
        ("nothing", [None] * N, "ignore"),
        ("amount", [*RNG.integers(0, 90, N - 1).tolist(), 2**63 - 1], "number"),  # one cell for "unknown"
        ("comment", [f"{word} and {i} more words" if i < 40 else None for i, word in enumerate(prose())], "text"),
        ("course_name", prose(), "text"),
        ("geoid", RNG.permutation(10**9 + 7919 * np.arange(N)), "ignore"),
        ("itemid", RNG.integers(10**6, 10**7, N), "ignore"),
        ("humidity grid", RNG.integers(0, 90, N), "number"),
    ],
)
def test_kinds(name, values, kind):
    assert kind_of(name, values)[0] == kind


def test_a_column_that_repeats_another_or_the_label_is_left_out():
    labels = RNG.choice(["yes", "no"], N)
    assert kind_of("copy", labels, other=labels) == ("ignore", "repeats the column 'other'")
    kind, reason = kind_of("code", np.where(labels == "yes", 7, 3), labels)
    assert kind == "ignore"
    assert "label" in reason
    nearly = np.where(np.arange(N) == 5, 7, np.where(labels == "yes", 7, 3))
    nearly[6], nearly[7] = 10 - nearly[6], 10 - nearly[7]
    assert kind_of("code", nearly, labels)[0] == "number"


@pytest.fixture
def table() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "id": np.arange(N),
            "size": np.where(np.arange(N) % 9 == 0, np.nan, RNG.normal(size=N)),
            "colour": RNG.choice(WORDS[:3], N),
            "day": pd.date_range("2020-01-01", periods=N).strftime("%Y-%m-%d"),
            "town": [f"town {i % 60}" for i in range(N)],
        }
    )


def test_rows_with_gaps_new_values_and_texts_for_numbers(table):
    encoder = ColumnEncoder().fit(table)
    strange = pd.DataFrame(
        {"size": ["much", 1.5, None], "colour": ["pink", None, "red"], "day": ["?", None, "2021-05-05"],
         "town": [None, "elsewhere", "town 1"]}
    )  # fmt: skip
    X = encoder.transform(strange)
    assert X.shape == (3, encoder.transform(table).shape[1])
    assert np.isnan(X[[0, 2], 0]).all()
    assert X[1, 0] == 1.5
    assert encoder.unseen(strange) == {"colour": 1}


def test_same_numbers_whatever_the_other_rows_are(table):
    encoder = ColumnEncoder().fit(table)
    np.testing.assert_array_equal(encoder.transform(table)[:5], encoder.transform(table[:5]))
    shuffled = table[["town", "day", "colour", "size", "id"]]
    np.testing.assert_array_equal(encoder.transform(table), encoder.transform(shuffled))


@pytest.mark.parametrize("form", ["%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y-%m-%dT%H:%M:%SZ"])
def test_dates_mean_the_same_in_any_form(form):
    days = pd.date_range("2020-01-01", periods=N)
    expected = ColumnEncoder().fit(pd.DataFrame({"when": days})).transform(pd.DataFrame({"when": days[40:43]}))
    encoder = ColumnEncoder().fit(pd.DataFrame({"when": days.strftime(form)}))
    np.testing.assert_array_equal(encoder.transform(pd.DataFrame({"when": days.strftime(form)[40:43]})), expected)


def test_scaled_numbers_and_dates_have_mean_zero_and_deviation_one_and_gaps_are_zero(table):
    X = ColumnEncoder().fit(table).transform(table)
    encoder = ColumnEncoder(scaled=True).fit(table)
    plain = np.isin(encoder.sources_, ["size", "day"])
    deviation = np.nanstd(X, axis=0)
    expected = (X - np.nanmean(X, axis=0)) / np.where(deviation > 0, deviation, 1)
    found = encoder.transform(table)
    np.testing.assert_allclose(found[:, plain], np.nan_to_num(expected)[:, plain], atol=1e-12)
    np.testing.assert_array_equal(found[:, ~plain], X[:, ~plain])
    assert (found[table["size"].isna().to_numpy(), 0] == 0).all()


def test_numbers_too_large_for_squares_are_limited():
    huge = pd.DataFrame({"x": [1e300, -1e300, 1e5] * 9, "y": [1.0, 2.0, 3.0] * 9})
    np.testing.assert_array_equal(ColumnEncoder().fit(huge).transform(huge)[:3, 0], [1e30, -1e30, 1e5])
    assert np.isfinite(ColumnEncoder(scaled=True).fit(huge).transform(huge)).all()


def test_a_column_without_numbers_cannot_be_one_of_numbers(table):
    with pytest.raises(ValueError, match="no cell of column 'colour' is a number"):
        ColumnEncoder({"colour": "number"}).fit(table)


def test_times_are_seconds_whatever_the_day_is():
    table = pd.DataFrame({"at": [f"{i % 24}:{i % 60:02d}" for i in range(N)]})
    rows = pd.DataFrame({"at": ["14:29", "1:02:03.5", "2:29 PM", "12:01 am", "noon"]})
    found = ColumnEncoder().fit(table).transform(rows)[:, 0]
    np.testing.assert_array_equal(found, [52140.0, 3723.5, 52140.0, 60.0, np.nan])


def test_truth_values_with_gaps_are_those_without(table):
    table = table[["size"]].assign(flag=RNG.random(N) < 0.5)
    rows = pd.DataFrame({"size": 1.0, "flag": [True, False, None, "TRUE", "false"]})
    for flags in (table["flag"], table["flag"].astype(object).where(np.arange(N) > 9, None)):
        found = ColumnEncoder().fit(table.assign(flag=flags)).transform(rows)[:, 1]
        np.testing.assert_array_equal(found, [1.0, 0.0, np.nan, 1.0, 0.0])


def test_spaces_and_leading_zeros_make_no_other_category():
    table = pd.DataFrame({"zip": RNG.integers(100, 105, N), "size": RNG.choice(["small", "small ", "large"], N)})
    encoder = ColumnEncoder().fit(table)
    rows = pd.DataFrame({"zip": ["00104", "104"], "size": ["small ", "small"]})
    assert encoder.transform(table).shape[1] == 6
    assert encoder.unseen(rows) == {}
    np.testing.assert_array_equal(*encoder.transform(rows))


def test_a_table_of_prose_keeps_its_words():
    table = pd.DataFrame({"headline": prose()})
    X = ColumnEncoder().fit(table).transform(table)
    assert X.format == "csr"
    assert X.shape[0] == N


def test_the_user_decides(table):
    encoder = ColumnEncoder({"id": "number", "colour": "ignore"}).fit(table)
    assert encoder.columns_ == ["id", "size", "day", "town"]
    assert encoder.decisions_[0].reason == "as you said"


def test_messages(table):
    with pytest.raises(ValueError, match="no column 'Colour'"):
        ColumnEncoder({"Colour": "ignore"}).fit(table)
    with pytest.raises(ValueError, match="no column is left.*id: "):
        ColumnEncoder().fit(table[["id"]])
    with pytest.raises(ValueError, match="lacks columns.*'size'"):
        ColumnEncoder().fit(table).transform(table.drop(columns="size"))
    with pytest.raises(ValueError, match="cannot be both"):
        kinds_of_options({"ignore": ["a"], "text": ["a"]})


def test_a_wide_table_is_judged_in_time_proportional_to_its_columns():
    rows = np.random.default_rng(0).normal(size=(100, 400))
    began = time.process_time()
    decisions = decide_columns(pd.DataFrame(rows).assign(again=rows[:, 7]))
    assert time.process_time() - began < 10  # comparing each pair of columns took a minute
    assert [each.reason for each in decisions if each.kind == "ignore"] == ["repeats the column 7"]
