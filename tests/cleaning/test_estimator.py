"""HyperCleaner: the contract of scikit-learn, and what it finds."""

from __future__ import annotations

import mmap
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_digits, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import bilevel
from bilevel import HyperCleaner
from bilevel.cleaning import Design
from bilevel.errors import BilevelError, InvalidInputError, TrustWarning

NOISES = ("rows", "class-pairs", "transition")


def digits(seed=0, trusted=80, wrong=0.4):
    """Rows, given labels, trusted mask, whether a label is wrong, true labels; k is called k + 3."""
    pixels, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))[:1000]
    X, true = (pixels[order] / 16.0).astype(np.float32), labels[order]
    mask = np.isin(np.arange(1000), rng.choice(1000, trusted, replace=False))
    flipped = ~mask & (rng.random(1000) < wrong)
    return X, np.where(flipped, (true + 3) % 10, true), mask, flipped, true


@pytest.fixture(scope="module")
def fitted():
    X, y, mask, flipped, true = digits()
    return HyperCleaner(random_state=0).fit(X, y, trusted=mask), X, y, mask, flipped, true


SHORT = HyperCleaner(random_state=0, noise="transition", steps=1)


@pytest.mark.parametrize(
    ("cleaner", "legacy"),
    [
        pytest.param(SHORT, False, id="interface"),  # of scikit-learn's checks those of the interface
        pytest.param(SHORT, True, id="all checks", marks=pytest.mark.slow),
        pytest.param(HyperCleaner(), True, id="all checks, defaults", marks=pytest.mark.slow),
    ],
)
def test_check_estimator(cleaner, legacy):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # every check fits without trusted rows
        check_estimator(cleaner, on_skip=None, legacy=legacy)


def test_finds_wrong_labels_and_is_not_fooled(fitted):
    cleaner, X, y, mask, flipped, true = fitted
    issues = cleaner.label_issues()
    assert list(issues.columns) == ["is_label_issue", "label_quality", "given_label", "predicted_label"]
    assert roc_auc_score(~flipped[~mask], issues["label_quality"][~mask]) > 0.97
    naive = LogisticRegression(C=0.1, max_iter=200).fit(X, y).score(X, true)
    assert cleaner.score(X, true) > max(0.92, naive + 0.1)
    assert cleaner.refit(LogisticRegression(C=0.1, max_iter=200)).score(X, true) > naive + 0.1
    assert not issues["is_label_issue"][mask].any()
    assert cleaner.noise_ == "transition"
    assert set(cleaner.selection_) == set(NOISES)


def test_transition_matrix_shows_the_confusion(fitted):
    cleaner = fitted[0]
    assert cleaner.transition_.shape == (10, 10)
    np.testing.assert_allclose(cleaner.transition_.sum(1), 1.0, atol=1e-5)
    assert np.mean([cleaner.transition_[k, (k + 3) % 10] for k in range(10)]) == pytest.approx(0.4, abs=0.1)


@pytest.mark.parametrize("noise", NOISES)
def test_each_noise_model(noise):
    X, y, mask, flipped, _true = digits(trusted=200, wrong=0.3)
    cleaner = HyperCleaner(noise=noise, random_state=0).fit(X, y, trusted=mask)
    quality = cleaner.label_issues()["label_quality"]
    assert roc_auc_score(~flipped[~mask], quality[~mask]) > 0.9
    assert cleaner.noise_ == noise
    assert np.all((cleaner.sample_weight_ >= 0) & (cleaner.sample_weight_ <= 1))
    assert np.all(cleaner.sample_weight_[mask] == 1)
    if noise == "class-pairs":  # one weight for all rows of a label: what it says lies in the matrix
        off = cleaner.transition_ - np.diag(np.diag(cleaner.transition_))
        np.testing.assert_array_equal(off.argmax(1), (np.arange(10) - 3) % 10)
    else:
        assert cleaner.sample_weight_[flipped].mean() < cleaner.sample_weight_[~flipped & ~mask].mean()


@pytest.mark.parametrize("loss", ["squared", "smoothed hinge"])
def test_other_losses(loss):
    X, y, mask, _, true = digits(wrong=0.2)
    cleaner = HyperCleaner(loss=loss, random_state=0).fit(X, y, trusted=mask)
    assert cleaner.score(X, true) > 0.8
    assert "transition" not in cleaner.selection_  # it needs probabilities


def test_radius_is_learned_or_kept(fitted):
    X, y, mask, _, _true = fitted[1:]
    assert fitted[0].radius_ > 0
    small = HyperCleaner(radius=2.0, noise="transition", random_state=0).fit(X, y, trusted=mask)
    assert small.radius_ == 2.0
    assert np.abs(small.coef_).sum(1).max() <= 2.0 * (1 + 1e-5)
    other = HyperCleaner(constraint=bilevel.sets.L2Ball(1.0), noise="rows", random_state=0).fit(X, y, trusted=mask)
    assert other.radius_ is None
    assert np.linalg.norm(other.coef_, axis=1).max() <= 1 + 1e-5


def test_trusted_rows_beside_or_among_the_others_are_the_same():
    X, y, mask, _, _true = digits()
    among = HyperCleaner(noise="transition", random_state=0).fit(np.r_[X[~mask], X[mask]], np.r_[y[~mask], y[mask]],
                                                               trusted=np.arange(1000) >= (~mask).sum())  # fmt: skip
    beside = HyperCleaner(noise="transition", random_state=0).fit(
        X[~mask], y[~mask], X_trusted=X[mask], y_trusted=y[mask]
    )
    # Up to rounding: sums of float32 rows depend on where in memory these begin.
    np.testing.assert_allclose(among.coef_, beside.coef_, rtol=1e-4, atol=1e-5)
    assert len(beside.label_issues()) == (~mask).sum()
    one, other = (c.refit(LogisticRegression(C=0.1, max_iter=200)).coef_ for c in (among, beside))
    np.testing.assert_allclose(one, other, atol=1e-4)


def test_dense_sparse_and_mapped_rows_agree(tmp_path):
    X, y, mask, _, _ = digits()
    X = X.astype(np.float64)
    path = tmp_path / "rows.npy"
    np.save(path, X)
    models = [
        HyperCleaner(noise="transition", random_state=0, steps=5).fit(rows, y, trusted=mask)
        for rows in (X, sparse.csr_matrix(X), np.load(path, mmap_mode="r"))
    ]
    for model in models[1:]:
        np.testing.assert_allclose(model.coef_, models[0].coef_, rtol=1e-6, atol=1e-8)


def test_pandas_in_pandas_out_and_labels_of_any_type():
    X, y, mask, _, _ = digits()
    names = np.array([f"digit {k}" for k in range(10)], dtype=object)
    table = pd.DataFrame(X, columns=[f"pixel {i}" for i in range(64)], index=[f"row {i}" for i in range(1000)])
    cleaner = HyperCleaner(noise="transition", random_state=0).fit(
        table, pd.Series(names[y], index=table.index), trusted=mask
    )
    issues = cleaner.label_issues()
    assert list(issues.index) == list(table.index)
    assert set(issues["predicted_label"]) <= set(names)
    assert cleaner.predict(table)[0] in names
    assert list(cleaner.feature_names_in_) == list(table.columns)
    assert cleaner.refit(LogisticRegression(max_iter=500)).predict(table)[0] in names


def test_without_trusted_rows_it_warns():
    X, y, *_ = digits(wrong=0.1)
    with pytest.warns(TrustWarning, match="ASSUMED TO BE RIGHT"):
        cleaner = HyperCleaner(noise="transition", random_state=0).fit(X, y)
    assert cleaner.trusted_.sum() == 100


def test_clone_and_pickle(fitted):
    cleaner, X, y, _mask, *_ = fitted
    assert clone(cleaner).get_params() == cleaner.get_params()
    copy = pickle.loads(pickle.dumps(cleaner))
    np.testing.assert_array_equal(copy.predict_proba(X), cleaner.predict_proba(X))
    assert len(pickle.dumps(cleaner)) < X.nbytes / 2  # the rows stay behind
    with pytest.raises(InvalidInputError, match="does not contain its rows"):
        copy.refit(LogisticRegression())
    again = copy.refit(LogisticRegression(C=0.1, max_iter=200), X, y)
    np.testing.assert_array_equal(again.coef_, cleaner.refit(LogisticRegression(C=0.1, max_iter=200)).coef_)


def test_pipeline_and_grid_search_split_the_mask():
    X, y, mask, *_ = digits()
    pipeline = make_pipeline(StandardScaler(), HyperCleaner(noise="transition", random_state=0, steps=5))
    search = GridSearchCV(pipeline, {"hypercleaner__ridge": [1e-3, 1.0]}, cv=3)
    search.fit(X, y, hypercleaner__trusted=mask)
    assert search.best_params_["hypercleaner__ridge"] == 1e-3  # the other leaves little of the model
    assert search.best_estimator_[-1].trusted_.sum() == mask.sum()


def test_a_fold_without_trusted_rows_says_how_to_split(fitted):
    X, y = fitted[1:3]
    with pytest.raises(InvalidInputError, match=r"every fold needs trusted rows: shuffle"):
        HyperCleaner().fit(X, y, trusted=np.zeros(len(y), bool))


def test_pipeline_scales_trusted_rows_too():
    X, y, mask, *_ = digits()
    X = X * 1000.0 + 500.0
    with sklearn.config_context(enable_metadata_routing=True):
        cleaner = HyperCleaner(noise="transition", random_state=0).set_fit_request(X_trusted=True, y_trusted=True)
        scaler = StandardScaler()
        pipeline = Pipeline([("scale", scaler), ("clean", cleaner)], transform_input=["X_trusted"])
        pipeline.fit(X[~mask], y[~mask], X_trusted=X[mask], y_trusted=y[mask])
    scale = StandardScaler().fit(X[~mask])
    by_hand = HyperCleaner(noise="transition", random_state=0).fit(
        scale.transform(X[~mask]), y[~mask], X_trusted=scale.transform(X[mask]), y_trusted=y[mask]
    )
    np.testing.assert_allclose(pipeline[-1].coef_, by_hand.coef_, rtol=1e-5, atol=1e-6)


def test_interruption_keeps_what_was_learned():
    X, y, mask, *_ = digits()

    moments = []

    def interrupt(moment):
        moments.append(moment)
        if len(moments) == 8:
            raise KeyboardInterrupt

    cleaner = HyperCleaner(random_state=0, callback=interrupt).fit(X, y, trusted=mask)
    assert cleaner.status_ == "interrupted"
    assert cleaner.noise_ == "transition"
    assert cleaner.n_iter_ == 8
    assert cleaner.predict(X).shape == (1000,)


def test_progress_counts_to_its_end(capsys):
    X, y, mask, *_ = digits()
    moments = []
    HyperCleaner(random_state=0, callback=moments.append, verbose=True).fit(X, y, trusted=mask)
    shares = [moment.share for moment in moments]
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.1
    assert shares[-1] == 1
    assert "training" in capsys.readouterr().err


def test_refit_after_pickling_asks_for_the_trusted_rows_beside_x(fitted):
    X, y, mask = fitted[1:4]
    extra = {"X_trusted": X[mask], "y_trusted": y[mask]}
    cleaner = HyperCleaner(noise="transition", steps=2, random_state=0).fit(X[~mask], y[~mask], **extra)
    copy, model = pickle.loads(pickle.dumps(cleaner)), LogisticRegression(C=0.1)
    with pytest.raises(InvalidInputError, match="X_trusted=..., y_trusted=..."):
        copy.refit(model, X[~mask], y[~mask])
    again = copy.refit(model, X[~mask], y[~mask], **extra)
    np.testing.assert_array_equal(again.coef_, cleaner.refit(model).coef_)


def test_poor_models_are_said():
    """Columns of very different size: gradient steps end far from the solution."""
    X, y = load_wine(return_X_y=True)
    trusted = np.arange(len(y)) % 4 == 0
    with pytest.warns(ConvergenceWarning, match=r"the cleaned model is poor: it ended at a residual of .* scale the"):
        HyperCleaner(noise="transition", random_state=0).fit(X, y, trusted=trusted)
    with pytest.warns(ConvergenceWarning, match="its columns are so small"):
        HyperCleaner(noise="transition", random_state=0).fit(1e-8 * X, y, trusted=trusted)


@pytest.mark.parametrize("kind", ["anonymous", "copied"])
def test_fit_leaves_arrays_on_private_maps_alone(kind, tmp_path, fitted):
    X, y, mask = fitted[1:4]
    if kind == "anonymous":
        file = mmap.mmap(-1, X.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    else:
        (tmp_path / "rows").write_bytes(bytes(X.nbytes))
        with open(tmp_path / "rows", "rb") as rows:
            file = mmap.mmap(rows.fileno(), 0, access=mmap.ACCESS_COPY)
    mine = np.ndarray(X.shape, X.dtype, buffer=file)
    mine[:] = X
    HyperCleaner(noise="transition", steps=1, random_state=0).fit(mine, y, trusted=mask)
    np.testing.assert_array_equal(mine, X)


def test_a_mapped_file_of_bytes_is_not_copied(tmp_path, fitted, monkeypatch):
    X, y, mask = fitted[1:4]
    np.save(tmp_path / "rows.npy", (16 * X).astype(np.uint8))
    rows, kinds = np.load(tmp_path / "rows.npy", mmap_mode="r"), []
    of = Design.of
    monkeypatch.setattr(Design, "of", lambda X, dtype=None: kinds.append(X) or of(X, dtype=dtype))
    cleaner = HyperCleaner(noise="transition", steps=2, random_state=0).fit(rows, y, trusted=mask)
    assert np.shares_memory(kinds[0], rows)
    assert kinds[0].dtype == np.uint8
    assert cleaner.predict_proba(rows).shape == (1000, 10)


def test_labels_of_pandas_come_back_as_they_were(fitted):
    X, y, mask = fitted[1:4]
    cleaner = HyperCleaner(noise="transition", steps=1, random_state=0)
    cleaner.fit(X, pd.Series(y, dtype="Int64"), trusted=pd.Series(mask, dtype="boolean"))
    assert cleaner.classes_.dtype == np.int64


def test_numbers_of_numpy_are_numbers(fitted):
    X, y, mask = fitted[1:4]
    settings = {"radius": np.int64(3), "ridge": np.float32(1e-3), "batch_size": np.int64(50), "steps": np.int64(2)}
    assert HyperCleaner(noise="rows", random_state=0, **settings).fit(X, y, trusted=mask).radius_ == 3


def test_the_same_seed_gives_the_same_bits(fitted):
    cleaner, X, y, mask, *_ = fitted
    np.testing.assert_array_equal(HyperCleaner(random_state=0).fit(X, y, trusted=mask).coef_, cleaner.coef_)


@pytest.mark.parametrize(
    "solver", ["dmlcbo", "approx", "implicit", "vpbgd", "projected-soba", bilevel.DMLCBO(upper_step=0.5)]
)
def test_solvers(solver):
    X, y, mask, _, true = digits(wrong=0.2)
    cleaner = HyperCleaner(noise="class-pairs", radius=15.0, solver=solver, steps=5, random_state=0).fit(
        X, y, trusted=mask
    )
    assert cleaner.score(X, true) > 0.7


def test_a_solver_that_needs_a_fixed_set_asks_for_a_radius(fitted):
    X, y, mask = fitted[1:4]
    with pytest.raises(InvalidInputError, match="solver='vpbgd' needs a fixed set: give a radius"):
        HyperCleaner(solver="vpbgd").fit(X, y, trusted=mask)


def test_refusals_of_data_frames(fitted):
    X, y, mask = fitted[1:4]
    frame, given = pd.DataFrame(X).assign(color="red"), pd.Series(y)
    with pytest.raises(InvalidInputError, match="column 'color' of X holds texts: encode it first"):
        HyperCleaner(noise="transition").fit(frame, given, trusted=mask)
    frame = frame.drop(columns="color")
    with pytest.raises(InvalidInputError, match="y has the rows of X in another order"):
        HyperCleaner().fit(frame, given[::-1], trusted=mask)
    with pytest.raises(InvalidInputError, match="contains NaN, a missing label: row 3"):
        HyperCleaner().fit(frame, given.astype("Int64").where(given.index != 3), trusted=mask)
    with pytest.raises(InvalidInputError, match="trusted has 1 missing values"):
        HyperCleaner().fit(frame, given, trusted=pd.Series(mask, dtype="boolean").where(given.index != 3))
    with pytest.raises(InvalidInputError, match="leaves none of the 1000 rows"), pytest.warns(TrustWarning):
        HyperCleaner(trusted_fraction=0.9999).fit(frame, given)


BAD = {
    "noise": ({"noise": "row"}, {}, "noise must be"),
    "loss": ({"loss": "hinge"}, {}, "loss"),
    "radius": ({"radius": -1.0}, {}, "radius must be"),
    "solver": ({"solver": "adam"}, {}, "solver must be"),
    "steps": ({"steps": 0}, {}, "steps must be"),
    "ridge": ({"ridge": -1.0}, {}, "ridge must be"),
    "mask of another length": ({}, {"trusted": np.ones(3, bool)}, "one truth value per row"),
    "mask of names": ({}, {"trusted": np.array(["yes"] * 1000)}, "truth values"),
    "empty mask": ({}, {"trusted": np.zeros(1000, bool)}, "marks no row"),
    "full mask": ({}, {"trusted": np.ones(1000, bool)}, "nothing to clean"),
    "half a pair": ({}, {"X_trusted": np.zeros((2, 64))}, "go together"),
    "unknown trusted label": ({}, {"X_trusted": np.zeros((2, 64)), "y_trusted": [0, 99]}, "99"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case):
    X, y, mask, *_ = digits()
    settings, arguments, message = BAD[case]
    with pytest.raises(BilevelError, match=message):
        HyperCleaner(**settings).fit(X, y, **(arguments if arguments else {"trusted": mask}))


def test_missing_values_are_named():
    X, y, mask, *_ = digits()
    table = pd.DataFrame(X, columns=[f"pixel {i}" for i in range(64)])
    table.iloc[7, 5] = np.nan
    with pytest.raises(InvalidInputError, match="NaN.*row 7, column 'pixel 5'"):
        HyperCleaner().fit(table, y, trusted=mask)
    holes = sparse.csr_matrix(X)
    holes.data[0] = np.inf
    with pytest.raises(InvalidInputError, match="inf.*row 0"):
        HyperCleaner().fit(holes, y, trusted=mask)


def test_one_class_is_refused():
    X, _, mask, *_ = digits()
    with pytest.raises(InvalidInputError, match="one class"):
        HyperCleaner().fit(X, np.zeros(1000, int), trusted=mask)
