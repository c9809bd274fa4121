"""A saved cleaner: the same predictions bit by bit, in a fresh process, of any labels, and nothing else is accepted."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from tests.documents import edit, setting

import bilevel
from bilevel.cleaning import HyperCleaner, load_cleaner, save_cleaner
from bilevel.cleaning.columns import ColumnEncoder
from bilevel.cleaning.losses import Squared

LABELS = {
    "texts": ["ash", "fir", "oak"],
    "objects": np.array(["a", "a longer name", "ü\"\n'"], dtype=object),
    "whole numbers": [-3, 0, 10**12],
    "small whole numbers": np.array([1, 2, 3], dtype=np.int8),
    "numbers": [-1.0, 0.0, 1e9],
    "truth values": [False, True],
}


def rows(classes: Any, size: int = 90, width: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, labels of which one in five is wrong, and which rows are trusted."""
    generator = np.random.default_rng(seed)
    classes = np.asarray(classes)
    true = generator.integers(0, len(classes), size)
    X = generator.normal(size=(size, width)) + 3 * np.eye(width)[true]
    trusted = np.arange(size) % 3 == 0
    given = np.where(~trusted & (generator.random(size) < 0.2), (true + 1) % len(classes), true)
    return X, classes[given], trusted


@pytest.fixture(scope="module")
def fitted() -> tuple[HyperCleaner, np.ndarray]:
    X, y, trusted = rows(["ash", "fir", "oak"])
    return HyperCleaner(noise="transition", steps=3, random_state=0).fit(X, y, trusted=trusted), X


@pytest.mark.parametrize("classes", LABELS.values(), ids=LABELS)
def test_labels_of_any_type_come_back(classes, tmp_path):
    X, y, trusted = rows(classes)
    cleaner = HyperCleaner(noise="class-pairs", steps=2, random_state=0).fit(X, y, trusted=trusted)
    loaded = load_cleaner(save_cleaner(tmp_path / "m.safetensors", cleaner)).cleaner
    assert loaded.classes_.dtype == cleaner.classes_.dtype
    assert loaded.classes_.tolist() == cleaner.classes_.tolist()
    np.testing.assert_array_equal(loaded.predict(X), cleaner.predict(X))
    np.testing.assert_array_equal(loaded.predict_proba(X), cleaner.predict_proba(X))


def test_a_fresh_process_predicts_the_same_bits(fitted, tmp_path):
    cleaner, X = fitted
    path = save_cleaner(tmp_path / "m.safetensors", cleaner)
    np.save(tmp_path / "X.npy", X)
    code = (
        "import sys, builtins, numpy as np, pickle\n"
        "from bilevel.cleaning.model_file import load_cleaner\n"
        "def never(*a, **k): raise AssertionError('unpickled')\n"
        "pickle.load = pickle.loads = pickle.Unpickler = never\n"
        "cleaner = load_cleaner(sys.argv[1]).cleaner\n"
        "X = np.load(sys.argv[2])\n"
        "print(cleaner.predict_proba(X).tobytes().hex(), ','.join(cleaner.predict(X)))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code, str(path), str(tmp_path / "X.npy")], capture_output=True, text=True, timeout=300
    )
    assert finished.returncode == 0, finished.stderr
    chances, labels = finished.stdout.split()
    assert chances == cleaner.predict_proba(X).tobytes().hex()
    assert labels.split(",") == cleaner.predict(X).tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_everything_comes_back(dtype, tmp_path):
    X, y, trusted = rows(["a", "b", "c"])
    frame = pd.DataFrame(X.astype(dtype), columns=["one", "two", "three", 'f"ou\nr'])
    cleaner = HyperCleaner(noise="auto", radius=5.0, steps=2, random_state=3).fit(frame, y, trusted=trusted)
    saved = load_cleaner(save_cleaner(tmp_path / "m.safetensors", cleaner, label="species"))
    loaded = saved.cleaner
    assert saved.encoder is None
    assert saved.label == "species"
    for name in ("coef_", "intercept_", "sample_weight_", "trusted_"):
        mine, theirs = getattr(loaded, name), getattr(cleaner, name)
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)
    for name in ("noise_", "radius_", "selection_", "status_", "n_iter_", "n_features_in_"):
        assert getattr(loaded, name) == getattr(cleaner, name), name
    assert loaded.feature_names_in_.tolist() == frame.columns.tolist()
    assert loaded.get_params() == cleaner.get_params()
    pd.testing.assert_frame_equal(loaded.label_issues(), cleaner.label_issues())
    assert loaded.score(frame, y) == cleaner.score(frame, y)
    refitted = loaded.refit(LogisticRegression(), frame, y)
    np.testing.assert_array_equal(refitted.coef_, cleaner.refit(LogisticRegression()).coef_)


def test_a_loss_object_is_stored_by_its_name(tmp_path):
    X, y, trusted = rows([0, 1])
    cleaner = HyperCleaner(noise="rows", loss=Squared(), steps=2, random_state=0).fit(X, y, trusted=trusted)
    loaded = load_cleaner(save_cleaner(tmp_path / "m", cleaner)).cleaner
    assert loaded.loss == "squared"
    np.testing.assert_array_equal(loaded.predict_proba(X), cleaner.predict_proba(X))


def test_the_encoder_comes_back(fitted, tmp_path):
    generator = np.random.default_rng(0)
    frame = pd.DataFrame({"x": generator.normal(size=40), "c": generator.choice(["u", "v", "w"], 40)})
    encoder = ColumnEncoder(scaled=True).fit(frame)
    cleaner, _ = fitted  # four features, as the encoder has
    loaded = load_cleaner(save_cleaner(tmp_path / "m", cleaner, encoder))
    assert loaded.encoder.decisions_ == encoder.decisions_
    np.testing.assert_array_equal(
        loaded.cleaner.predict_proba(loaded.encoder.transform(frame)),
        cleaner.predict_proba(encoder.transform(frame)),
    )


def test_labels_that_no_file_can_hold_are_refused(fitted, tmp_path):
    X, y, trusted = rows([0, 1])
    cleaner = HyperCleaner(noise="rows", steps=2, random_state=0).fit(X, y, trusted=trusted)
    cleaner.classes_ = np.array([(1, 2), None], dtype=object)
    with pytest.raises(bilevel.InvalidInputError, match="of type tuple: a file holds labels that are texts"):
        save_cleaner(tmp_path / "m", cleaner)
    assert os.listdir(tmp_path) == []


def test_a_cleaner_that_is_not_fitted(tmp_path):
    with pytest.raises(bilevel.InvalidInputError, match="not fitted"):
        save_cleaner(tmp_path / "m", HyperCleaner())


def test_an_existing_file_is_left_alone(fitted, tmp_path):
    path = tmp_path / "m"
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="was left as it is"):
        save_cleaner(path, fitted[0])
    assert path.read_text() == "precious"
    save_cleaner(path, fitted[0], overwrite=True)
    load_cleaner(path)


# --- damaged and foreign files ---


def test_truncation_and_flipped_bytes_are_detected(fitted, tmp_path):
    content = save_cleaner(tmp_path / "m", fitted[0]).read_bytes()
    damaged = tmp_path / "damaged"
    for size in {0, 1, 7, 8, 9, 100, *range(0, len(content), len(content) // 20), len(content) - 1}:
        damaged.write_bytes(content[:size])
        with pytest.raises(bilevel.InvalidInputError, match="damaged"):  # the message names the file
            load_cleaner(damaged)
    for position in range(0, len(content), 31):
        changed = bytearray(content)
        changed[position] ^= 0x15
        damaged.write_bytes(changed)
        with pytest.raises(bilevel.InvalidInputError):
            load_cleaner(damaged)


class Bomb:
    def __reduce__(self) -> Any:
        return (os.mkdir, ("exploded",))


def test_foreign_files_are_refused_and_nothing_in_them_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("pickle").write_bytes(pickle.dumps(Bomb()))
    save_file({"coef_": torch.ones(1, 2)}, "weights")
    target = torch.tensor([0.5, -0.2])
    problem = bilevel.Problem(
        lambda x, y: (y - target).square().sum(), lambda x, y: (y - x).square().sum(), bilevel.sets.L1Ball(1.0)
    )
    bilevel.minimize(problem, torch.zeros(2), torch.zeros(2), steps=2, solver=bilevel.DMLCBO(upper_step=0.1)).save(
        "solution"
    )
    Path("text").write_text("x,y\n1,2\n" * 100)
    Path("folder").mkdir()
    for name in ("pickle", "weights", "solution", "text", "folder", "missing"):
        with pytest.raises(bilevel.InvalidInputError, match=name):
            load_cleaner(name)
    with pytest.raises(bilevel.InvalidInputError, match="holds no bilevel.HyperCleaner"):
        load_cleaner("solution")
    assert not Path("exploded").exists()


def tensor(name: str, to: torch.Tensor | None) -> Any:
    def change(document: Any, tensors: dict[str, torch.Tensor]) -> None:
        if to is None:
            del tensors[name]
        else:
            tensors[name] = to

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (setting("version", to=99), "format version 99 .* upgrade bilevel"),
        (
            setting("classes", "values", to=["ash", "fir"]),
            "2 classes and 4 features do not go with coefficients of shape",
        ),
        (setting("classes", "values", to=[None, [], {}]), "class labels are damaged"),
        (setting("classes", "dtype", to="O8,O8"), "class labels are damaged"),
        (setting("classes", "dtype", to="nonsense"), "not a cleaner saved by bilevel"),
        (setting("settings", to={"unknown": 1}), "not a cleaner saved by bilevel"),
        (setting("settings", to=3), "not a cleaner saved by bilevel"),
        (setting("feature_names", to=["a", "b"]), "4 coefficients do not go with 2 features"),
        (setting("facts", to={}), "not a cleaner saved by bilevel"),
        (tensor("packed", torch.zeros(9, dtype=torch.uint8)), "was saved with skrub"),
        (tensor("coef_", None), "not a cleaner saved by bilevel"),
        (tensor("coef_", torch.ones(3)), "do not go with coefficients of shape"),
        (tensor("coef_", torch.full((3, 4), torch.nan)), "coefficients are not finite"),
        (tensor("intercept_", torch.zeros(2)), "an intercept of shape"),
        (tensor("given_label", torch.zeros(2, dtype=torch.int64)), "training rows are damaged"),
        (tensor("given_label", torch.full((90,), 7)), "labels of its training rows are damaged"),
    ],
)
def test_a_document_with_other_content_is_refused(fitted, tmp_path, change, message):
    """With a valid checksum: what a hostile or buggy writer could make."""
    path = save_cleaner(tmp_path / "m", fitted[0])
    edit(path, change)
    with pytest.raises(bilevel.InvalidInputError, match=message):
        load_cleaner(path)


def test_only_a_cleaner_is_saved(tmp_path):
    with pytest.raises(
        bilevel.InvalidTypeError, match=r"got Pipeline: of a Pipeline save its last step, pipeline\[-1\]"
    ):
        save_cleaner(tmp_path / "m.safetensors", make_pipeline(HyperCleaner()))
