"""scikit-learn and skrub objects as bytes, without pickle: skops, with a list of the types that a file may hold.

A model of `noise="correction"` is a few estimators and arrays, and the encoder of a table's columns is a vectorizer.
Objects of other types are refused, when writing as when reading: a file from a stranger can run no code.
"""

from __future__ import annotations

import importlib.metadata
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import IncompatibleError, InvalidInputError, MissingExtraError
from .candidates import SingleModel
from .columns import ColumnDecision, ColumnEncoder
from .corrected_fit import CorrectedFit
from .correction import CheckedModels, CorrectedModel, decide
from .label_likelihood import LabelModel
from .out_of_fold import FittedMixture

try:
    import skops.io
except ImportError:
    raise MissingExtraError("Saving models of tables", "apps") from None

PACKAGES = ("scikit-learn", "skrub")
"""Files hold their objects: they must be of the same minor version."""
ALLOWED = frozenset(
    {
        "numpy.dtype", "datetime.timedelta", "datetime.timezone", "pandas.DatetimeTZDtype",
        *(f"sklearn._loss.{name}" for name in (
            "link.Interval", "link.LogitLink", "link.MultinomialLogit", "loss.HalfBinomialLoss",
            "loss.HalfMultinomialLoss", "_loss.CyHalfBinomialLoss", "_loss.CyHalfMultinomialLoss")),
        "sklearn.ensemble._hist_gradient_boosting.binning._BinMapper",
        "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor", "sklearn.tree._tree.Tree",
        *(f"skrub._{name}" for name in (
            "apply_to_each_col.ApplyToEachCol", "apply_to_cols.ApplyToCols", "check_input.CheckInputDataFrame",
            "clean_categories.CleanCategories", "clean_null_strings.CleanNullStrings", "dataframe._common.is_any_date",
            "dataframe._common.is_categorical", "dataframe._common.is_numeric", "datetime_encoder.DatetimeEncoder",
            "drop_uninformative.DropUninformative", "duration_to_float.DurationToFloat",
            "string_encoder.StringEncoder", "table_vectorizer.PassThrough", "table_vectorizer.ShortReprDict",
            "table_vectorizer.TableVectorizer", "table_vectorizer._created_by_predicate", "to_datetime.ToDatetime",
            "to_float.ToFloat", "to_str.ToStr")),
        *(f"skrub.selectors._{name}" for name in (
            "base.All", "base.And", "base.Cols", "base.Filter", "base.Sub", "selectors._cardinality_below")),
    }
)  # fmt: skip
"""Types beside those that skops itself trusts."""


def package_versions() -> dict[str, str]:
    """The versions that `unpack` compares."""
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def pack(content: Mapping[str, Any]) -> np.ndarray:
    """The bytes of a dictionary of estimators, arrays, texts and numbers, shape (bytes,)."""
    try:
        data = skops.io.dumps(dict(content), compression=zipfile.ZIP_DEFLATED)
    except Exception as error:  # skops has no common type for what it cannot hold
        raise InvalidInputError(f"this estimator cannot be saved to a file: {error}") from error
    if strange := sorted(set(skops.io.get_untrusted_types(data=data)) - ALLOWED):
        raise InvalidInputError(
            f"a file holds estimators of scikit-learn only: {', '.join(strange[:3])} cannot be saved"
        )
    return np.frombuffer(data, np.uint8)


def unpack(data: np.ndarray, versions: Mapping[str, str]) -> dict[str, Any]:
    """What `pack` was given, if it is of allowed types and of the versions that are installed."""
    for package in PACKAGES:
        ours, theirs = importlib.metadata.version(package), versions.get(package, "")
        if ours.split(".")[:2] != theirs.split(".")[:2]:
            raise IncompatibleError(
                f"the model was saved with {package} {theirs}, and {ours} is installed: "
                f"pip install '{package}=={theirs}'"
            )
    content = bytes(np.ascontiguousarray(data, np.uint8))
    try:
        strange = sorted(set(skops.io.get_untrusted_types(data=content)) - ALLOWED)
        if strange:
            raise InvalidInputError(f"the file holds objects of types that are not allowed: {', '.join(strange[:3])}")
        return skops.io.loads(content, trusted=sorted(ALLOWED & set(skops.io.get_untrusted_types(data=content))))
    except (zipfile.BadZipFile, KeyError, TypeError) as error:
        raise InvalidInputError(f"the estimators in the file are damaged: {error}") from error


def check_trees(model: Any) -> None:
    """Raise if a tree of the model points outside of its nodes or columns: compiled code would follow it."""
    steps = [step for _, step in model.steps] if hasattr(model, "steps") else [model]
    for step in steps:
        width = getattr(step, "n_features_in_", 0)
        for tree in (each.tree_ for each in getattr(step, "estimators_", ())):
            _check_nodes(tree.node_count, width, tree.feature[tree.children_left >= 0],
                         tree.children_left, tree.children_right)  # fmt: skip
        for nodes in (each.nodes for stage in getattr(step, "_predictors", ()) for each in stage):
            inner = nodes[nodes["is_leaf"] == 0]
            _check_nodes(len(nodes), width, inner["feature_idx"], inner["left"], inner["right"])


def _check_nodes(count: int, width: int, feature: np.ndarray, *children: np.ndarray) -> None:
    inside = all(len(each) == 0 or (each.min() >= -1 and each.max() < count) for each in map(_signed, children))
    feature = _signed(feature)
    if not inside or (len(feature) and not 0 <= feature.min() <= feature.max() < width):
        raise InvalidInputError("the trees in the file are damaged")


def _signed(numbers: np.ndarray) -> np.ndarray:
    return np.asarray(numbers).astype(np.int64)


# --- what is packed ---------------------------------------------------------------------------------------------------


def model_content(fit: CorrectedFit) -> dict[str, Any]:
    """The model for new rows, and how it decides."""
    model, found = fit.model, fit.correction
    content: dict[str, Any] = {"choice": fit.choice, "tau": fit.tau, "prior": found.prior}
    if isinstance(model, SingleModel):
        return {**content, "single": model.model, "classes": model.classes}
    mixture = model.mixture if isinstance(model, CorrectedModel) else model
    content |= {"models": dict(mixture.models), "weights": dict(mixture.weights), "classes": mixture.classes}
    if isinstance(model, CorrectedModel) and model.label_model is not None and model.checked_models is not None:
        checked = model.checked_models
        content["label_model"] = dict(vars(model.label_model))
        content["checked"] = {"own": checked.own, "corrector": checked.corrector, "seen": checked.seen}
        content["kept"] = model.kept
    return content


class LoadedFit:
    """The part of a `CorrectedFit` that predicts."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.choice, self.tau, self.prior = str(content["choice"]), float(content["tau"]), content["prior"]
        classes = int(content["classes"])
        for model in (
            (content["single"],) if "single" in content else (*content["models"].values(), content.get("kept"))
        ):
            check_trees(model)
        if "single" in content:
            self.model: Any = SingleModel(content["single"], classes)
            return
        self.model = FittedMixture(content["models"], content["weights"], classes)
        if "checked" in content:
            self.model = CorrectedModel(
                self.model, CheckedModels(**content["checked"]), LabelModel(**content["label_model"]), content["kept"]
            )

    def predict(self, P: np.ndarray) -> np.ndarray:
        """Numbers of classes, shape (n,)."""
        return decide(P, self.prior, self.tau)


def encoder_content(encoder: ColumnEncoder) -> dict[str, Any]:
    """A fitted `ColumnEncoder`."""
    decisions = [[each.column, each.kind, each.reason] for each in encoder.decisions_]
    names = ("day_first_", "comma_", "vectorizer_", "center_", "scale_")
    return {"decisions": decisions, **{name: getattr(encoder, name) for name in names}}


def loaded_encoder(content: Mapping[str, Any]) -> ColumnEncoder:
    """A `ColumnEncoder` that transforms as the one that was packed."""
    encoder = ColumnEncoder()
    decisions = [ColumnDecision(*each) for each in content["decisions"]]
    encoder.learned(decisions, content["day_first_"], content["comma_"])
    encoder.vectorizer_, encoder.center_, encoder.scale_ = (
        content[name] for name in ("vectorizer_", "center_", "scale_")
    )
    return encoder
