"""HyperCleaner(noise="correction"): scikit-learn's contract, tables as they are, verified labels, what to check."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.utils.estimator_checks import check_estimator

from bilevel import HyperCleaner
from bilevel.cleaning import load_cleaner, save_cleaner
from bilevel.cleaning.corrected_fit import wrong_among_suspected
from bilevel.errors import LabelWarning

LINEAR = LogisticRegression(C=0.1)


def cleaner(**settings) -> HyperCleaner:
    return HyperCleaner(**{"noise": "correction", "estimator": LINEAR, "random_state": 0, **settings})


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    right = rng.choice(["low", "mid", "top"], 500, p=[0.45, 0.45, 0.1])
    centre = {"low": -2.0, "mid": 0.0, "top": 2.0}
    X = rng.normal(size=(500, 4)) + np.array([centre[label] for label in right])[:, None] * [1, 0.5, 0, 0]
    given = np.where(rng.random(500) < 0.3, rng.permutation(right), right)
    return X, given, right


def test_scikit_learn_contract():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LabelWarning)
        results = check_estimator(cleaner(), on_fail=None, on_skip=None)
    failed = [result for result in results if result["status"] == "failed"]
    assert not failed, [(result["check_name"], result["exception"]) for result in failed]


def test_trusted_rows_find_wrong_labels_and_predict(data):
    X, given, right = data
    trusted = np.arange(500) < 100
    model = cleaner().fit(X, np.where(trusted, right, given), trusted=trusted)
    issues = model.label_issues()
    rest = ~trusted
    assert not issues["is_label_issue"][trusted].any()
    assert (issues["is_label_issue"] == (given != right))[rest].mean() > 0.8
    assert (model.predict(X) == right).mean() > 0.75
    simple = {"filter", "all labels", "gold loss correction", "checked only"}
    assert set(model.selection_) == {"average", "correction", *simple}
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(X), model.predict_proba(X))
    assert (model.refit(LINEAR).predict(X) == right).mean() > 0.7


def test_rows_beside_are_the_same_as_rows_marked(data):
    X, given, right = data
    beside = cleaner().fit(X[100:], given[100:], X_trusted=X[:100], y_trusted=right[:100])
    assert beside.separate_trusted_
    assert len(beside.label_issues()) == 400
    assert (beside.predict(X) == right).mean() > 0.7


def test_verified_labels_suggest_the_right_ones(data):
    X, given, right = data
    verified = np.where(np.arange(500) < 150, right, None)
    model = cleaner().fit(X, given, verified=verified)
    issues = model.label_issues()
    np.testing.assert_array_equal(issues["suggested_label"][:150], right[:150])
    np.testing.assert_array_equal(issues["given_label"], given)
    assert (issues["label_quality"][:150].round() == (given == right)[:150]).all()
    assert abs(issues["label_quality"][150:].mean() - (given == right)[150:].mean()) < 0.06


@pytest.mark.slow
def test_the_interval_of_wrong_labels_holds_in_most_draws(data):
    """Rows drawn at random to be verified: 95 % intervals, of which at least 16 of 20 must hold."""
    X, given, right = data
    held = 0
    for seed in range(20):
        looked = np.isin(np.arange(500), np.random.default_rng(seed).permutation(500)[:120])
        model = cleaner().fit(X, given, verified=np.where(looked, right, None))
        low, high, total = wrong_among_suspected(model.correction_)
        issues = model.label_issues()["is_label_issue"].to_numpy() & ~looked
        assert total == issues.sum()
        held += low <= (issues & (given != right)).sum() <= high
    assert held >= 16


def test_no_interval_without_given_labels_of_checked_rows(data):
    X, given, right = data
    model = cleaner().fit(X[100:], given[100:], X_trusted=X[:100], y_trusted=right[:100])
    assert wrong_among_suspected(model.correction_) is None


def test_no_checked_rows_at_all_and_what_to_check_next(data):
    X, given, _ = data
    model = cleaner().fit(X, given)
    assert model.selection_ == {}
    rows = model.next_to_check(30)
    assert len(rows) == rows["row"].nunique() == 30
    assert rows["drawn_at_random"].sum() == 10


def test_a_table_as_it_is(data):
    X, given, right = data
    table = pd.DataFrame({
        "id": np.arange(500), "a": np.where(np.arange(500) % 7 == 0, np.nan, X[:, 0]),
        "b": np.where(X[:, 1] > 0, "yes", "no"), "day": pd.date_range("2020-01-01", periods=500).astype(str),
    })  # fmt: skip
    model = cleaner(estimator=None).fit(table, given, verified=np.where(np.arange(500) < 100, right, None))
    assert [(each.column, each.kind) for each in model.columns_] == [
        ("id", "ignore"), ("a", "number"), ("b", "category"), ("day", "date")
    ]  # fmt: skip
    strange = table[:3].assign(b=["never seen", None, "yes"], a=None)
    assert model.predict_proba(strange).shape == (3, 3)
    assert (model.predict(table) == right).mean() > 0.6


def test_kinds_of_columns_that_the_user_gives(data):
    X, given, right = data
    table = pd.DataFrame({"a": X[:, 0], "code": np.arange(500) % 7})
    verified = np.where(np.arange(500) < 100, right, None)
    model = cleaner().fit(table, given, verified=verified, kinds={"code": "category"})
    assert [(each.column, each.kind) for each in model.columns_] == [("a", "number"), ("code", "category")]
    assert model.predict_proba(table).shape == (500, 3)
    with pytest.raises(ValueError, match="kinds\\['code'\\]"):
        cleaner().fit(table, given, kinds={"code": "colour"})
    with pytest.raises(ValueError, match="columns of a DataFrame"):
        cleaner().fit(X, given, kinds={"a": "number"})


def test_a_saved_cleaner_predicts_the_same_and_keeps_what_was_said_of_the_rows(data, tmp_path):
    X, given, right = (part[:200] for part in data)
    table = pd.DataFrame({"a": X[:, 0], "b": np.where(X[:, 1] > 0, "yes", "no")})
    model = cleaner(estimator=None).fit(table, given, verified=np.where(np.arange(200) < 60, right, None))
    loaded = load_cleaner(save_cleaner(tmp_path / "m.safetensors", model)).cleaner
    np.testing.assert_array_equal(loaded.predict_proba(table), model.predict_proba(table))
    np.testing.assert_array_equal(loaded.predict(table), model.predict(table))
    pd.testing.assert_frame_equal(loaded.label_issues(), model.label_issues())
    assert loaded.advice() is None  # the rows are not in the file
    with pytest.raises(ValueError, match="next_to_check"):
        loaded.next_to_check()


def test_an_estimator_of_another_package_is_not_saved(data, tmp_path):
    class Constant(LogisticRegression):
        """A type that no file may hold."""

    X, given, _ = data
    with pytest.raises(ValueError, match="cannot be saved"):
        save_cleaner(tmp_path / "m.safetensors", cleaner(estimator=Constant()).fit(X, given))
    assert not list(tmp_path.iterdir())


def test_probabilities_of_the_user(data):
    X, given, right = data
    order = np.array(["low", "mid", "top"])
    P = 0.1 + 0.7 * (order[None] == right[:, None])
    model = cleaner().fit(None, given, verified=np.where(np.arange(500) < 80, right, None), pred_probs=P)
    assert (model.label_issues()["is_label_issue"] == (given != right))[80:].mean() > 0.9
    with pytest.raises(ValueError, match="cannot predict new rows"):
        model.predict(X)
    with pytest.raises(ValueError, match="sums to 1"):
        cleaner().fit(X, given, pred_probs=2 * P)


def test_a_balanced_decision_predicts_rare_classes_more_often(data):
    X, given, right = data
    trusted = np.arange(500) < 100
    given = np.where(trusted, right, given)
    plain, balanced = (cleaner(decision=way).fit(X, given, trusted=trusted) for way in ("argmax", "balanced"))
    np.testing.assert_array_equal(plain.predict_proba(X), balanced.predict_proba(X))
    assert (balanced.predict(X) == "top").sum() > (plain.predict(X) == "top").sum()


def test_a_class_that_is_never_predicted_is_a_warning():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 3)), np.where(np.arange(300) < 4, "rare", "usual")
    with pytest.warns(LabelWarning, match="rare"):
        cleaner().fit(X, y)


def test_equal_rows_with_different_labels_are_listed(data):
    X, given, _ = data
    X, given = np.vstack([X, X[:3]]), np.concatenate([given, given[:2], ["top" if given[2] != "top" else "low"]])
    assert [rows.tolist() for rows in cleaner().fit(X, given).contradictions_] == [[2, 502]]


def test_groups_are_never_used_to_predict_each_other():
    """Rows of one group are alike and share a label at random: only a leak could tell it."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(60), 6)
    X = rng.normal(size=(60, 5))[group] + 0.01 * rng.normal(size=(360, 5))
    y = rng.integers(0, 2, 60)[group]
    neighbours = KNeighborsClassifier(3)
    leaky = cleaner(estimator=neighbours).fit(X, y).label_issues()["label_quality"]
    grouped = cleaner(estimator=neighbours).fit(X, y, groups=group).label_issues()["label_quality"]
    assert leaky.mean() > 0.95
    assert abs(grouped.mean() - 0.5) < 0.15


def test_labels_known_to_be_wrong_are_issues(data):
    X, given, right = data
    wrong = (given != right) & (np.arange(500) < 200)
    issues = cleaner().fit(X, given, wrong=wrong).label_issues()
    assert (issues["label_quality"][wrong] == 0).all()
    assert issues["is_label_issue"][wrong].all()


def test_automatic_choice_corrects_whatever_only_the_correction_takes():
    digits = np.random.default_rng(0).random((120, 64))  # looks like pictures
    y = (digits[:, 0] > 0.5).astype(int)
    trusted = np.arange(120) < 40
    assert HyperCleaner(random_state=0).fit(digits, y, trusted=trusted).noise_ != "correction"
    assert HyperCleaner(random_state=0, estimator=LINEAR).fit(digits, y, trusted=trusted).noise_ == "correction"
    verified = np.where(trusted, y, None)
    fitted = HyperCleaner(random_state=0, estimator=[LINEAR, GaussianNB()]).fit(digits, y, verified=verified)
    assert set(fitted.correction_.correction.mixture.weights) <= {"LogisticRegression", "GaussianNB"}


def test_classes_without_checked_rows_and_one_class(data):
    X, given, right = data
    verified = np.where((np.arange(500) < 40) & (right != "top"), right, None)
    model = cleaner().fit(X, given, verified=verified)
    top = model.predict_proba(X)[:, 2]
    assert top[right == "top"].mean() > 3 * top[right != "top"].mean()
    assert (model.predict(X) == "top").sum() > 10
    with pytest.raises(ValueError, match="only one class"):
        cleaner().fit(X, np.full(500, "low"))


def test_checked_rows_of_one_class_do_not_hide_the_others(data):
    X, given, right = data
    verified = np.where((np.arange(500) < 120) & (right == "mid"), right, None)
    model, without = cleaner().fit(X, given, verified=verified), cleaner().fit(X, given)
    assert (model.predict(X) == right).mean() > (without.predict(X) == right).mean() - 0.03


@pytest.mark.parametrize("open_rows", [0, 1])
def test_rows_that_were_all_verified(data, open_rows):
    X, given, right = (each[:120] for each in data)
    verified = np.where(np.arange(120) < 120 - open_rows, right, None)
    model = cleaner().fit(X, given, verified=verified)
    np.testing.assert_array_equal(model.label_issues()["suggested_label"][: 120 - open_rows], right[: 120 - open_rows])
    assert (model.predict(X) == right).mean() > 0.7


def test_refusals(data):
    X, given, right = data
    with pytest.raises(ValueError, match="takes no ranks"):
        cleaner().fit(X, given, checkpoint="file.safetensors")
    with pytest.raises(ValueError, match='only noise="correction"'):
        HyperCleaner(noise="rows").fit(X, given, groups=np.arange(500))
    with pytest.raises(ValueError, match="decision"):
        cleaner(decision="fair").fit(X, given)
    with pytest.raises(ValueError, match="spelled alike"):
        cleaner().fit(X, given, verified=np.where(np.arange(500) < 9, "Low", None))
    with pytest.raises(ValueError, match="one group"):
        cleaner().fit(X, given, groups=np.zeros(500))
    for name in ("wrong", "groups"):
        with pytest.raises(ValueError, match=f"{name} must have one value per row"):
            cleaner().fit(X, given, **{name: np.zeros(9)})
    with pytest.raises(ValueError, match="one label per row"):
        cleaner().fit(X, given, verified=right[:5])
