"""scikit-learn and skrub objects as bytes, without pickle: skops, with a list of the types that a file may contain.

A model of `noise="correction"` consists of estimators and arrays, and the encoder of a table's columns is a vectorizer.
Objects of other types raise an error when writing and when reading, so that an untrusted file cannot run code.
"""

from __future__ import annotations

import importlib.metadata
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import IncompatibleError, InvalidInputError, MissingExtraError
from .candidates import SingleModel
from .column_kinds import ColumnDecision
from .columns import ColumnEncoder
from .corrected_fit import FittedDecision
from .correction import CheckedModels, CorrectedModel
from .label_likelihood import LabelModel
from .out_of_fold import FittedMixture

try:
    import skops.io
except ImportError:
    raise MissingExtraError("Saving models of tables", "apps") from None

PACKAGES = ("scikit-learn", "skrub")
"""Packages whose objects are in files: minor versions must agree."""
OURS = (FittedDecision, SingleModel, FittedMixture, CorrectedModel, CheckedModels, LabelModel)
OURS += (ColumnEncoder, ColumnDecision)
ALLOWED = frozenset(
    {
        *(f"{each.__module__}.{each.__name__}" for each in OURS),
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
"""Types that are allowed in addition to those that skops trusts."""


def pack(fit: FittedDecision | None, encoder: ColumnEncoder | None) -> np.ndarray:
    """The bytes of the predicting part of a correction and of the encoder of its columns, shape (bytes,)."""
    if fit is not None:
        if fit.model is None:
            raise InvalidInputError("this cleaner was fitted with pred_probs: there is no model to save")
        fit = FittedDecision(fit.model, fit.choice, fit.tau, fit.prior)
    content = {"fit": fit, "encoder": encoder}
    try:
        data = skops.io.dumps(content, compression=zipfile.ZIP_DEFLATED)
    except Exception as error:  # skops has no common type for what it cannot hold
        raise InvalidInputError(f"this estimator cannot be saved to a file: {error}") from error
    if strange := sorted(set(skops.io.get_untrusted_types(data=data)) - ALLOWED):
        raise InvalidInputError(
            f"a file holds estimators of scikit-learn only: {', '.join(strange[:3])} cannot be saved"
        )
    return np.frombuffer(data, np.uint8)


def unpack(data: np.ndarray, versions: Mapping[str, str]) -> tuple[FittedDecision | None, ColumnEncoder | None]:
    """The inverse of `pack`; raise for other types and for versions that are not installed."""
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
        loaded = skops.io.loads(content, trusted=sorted(ALLOWED & set(skops.io.get_untrusted_types(data=content))))
    except (zipfile.BadZipFile, KeyError, TypeError) as error:
        raise InvalidInputError(f"the estimators in the file are damaged: {error}") from error
    check_trees(loaded)
    return loaded["fit"], loaded["encoder"]


def check_trees(value: Any) -> None:
    """Raise if a tree refers to nodes or columns that do not exist, which compiled code would not check."""
    if isinstance(value, Mapping):
        parts = list(value.values())
    else:
        parts = [step for _, step in value.steps] if hasattr(value, "steps") else []
        parts += vars(value).values() if isinstance(value, OURS) else []
    for part in parts:
        check_trees(part)
    width = getattr(value, "n_features_in_", 0)
    for tree in (each.tree_ for each in getattr(value, "estimators_", ()) if hasattr(each, "tree_")):
        _check_nodes(tree.node_count, width, tree.feature[tree.children_left >= 0],
                     tree.children_left, tree.children_right)  # fmt: skip
    for nodes in (each.nodes for stage in getattr(value, "_predictors", ()) for each in stage):
        inner = nodes[nodes["is_leaf"] == 0]
        _check_nodes(len(nodes), width, inner["feature_idx"], inner["left"], inner["right"])


def _check_nodes(count: int, width: int, feature: np.ndarray, *children: np.ndarray) -> None:
    inside = all(len(each) == 0 or (each.min() >= -1 and each.max() < count) for each in map(_signed, children))
    feature = _signed(feature)
    if not inside or (len(feature) and not 0 <= feature.min() <= feature.max() < width):
        raise InvalidInputError("the trees in the file are damaged")


def _signed(numbers: np.ndarray) -> np.ndarray:
    return np.asarray(numbers).astype(np.int64)
