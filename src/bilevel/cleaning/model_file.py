"""A fitted cleaner in one file: coefficients as tensors, everything else as JSON; nothing is pickled.

The file is a safetensors file with a checksum (see `bilevel._files`). It contains everything for bitwise equal
predictions: coefficients, class labels with their type, names of the features and, if rows come from a table, the
categories and the scaling of its columns. It also describes the fit: settings, weights of the rows, versions.
"""

from __future__ import annotations

import importlib.metadata
import math
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._files import document_writer, load_document, write_atomically
from .._version import __version__
from ..errors import InvalidInputError, InvalidTypeError
from .estimator import HyperCleaner
from .losses import BY_NAME, Loss

FORMAT, VERSION = "bilevel.HyperCleaner", 1

ARRAYS = ("coef_", "intercept_", "sample_weight_", "trusted_", "transition_")
"""Attributes stored as tensors; those that are None or missing are left out."""
FACTS = ("n_iter_", "noise_", "radius_", "selection_", "separate_trusted_", "status_")
"""Attributes stored as JSON, to describe the fit."""
ISSUES = {"is_label_issue": "b", "label_quality": "f", "given_label": "i", "predicted_label": "i"}
SUGGESTIONS = {"suggested_label": "i", "suggested_probability": "f"}
"""Columns stored as tensors of these dtypes, labels as numbers of classes; suggestions only for noise="correction"."""
LARGEST_LABELS = 100_000_000
"""The maximal size in bytes of the class labels in a file."""
LABEL_TYPES: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}


class SavedCleaner(NamedTuple):
    """The content of a file of `save_cleaner`.

    Parameters
    ----------
    cleaner
        The fitted `HyperCleaner`. It can predict and lists the suspected labels, but does not contain the rows.
    encoder
        The encoder of the columns of a table; None if the cleaner was fitted to numbers.
    label
        The name of the label column of that table, or None.

    Examples
    --------
    >>> import numpy as np
    >>> from bilevel.cleaning import HyperCleaner, load_cleaner, save_cleaner
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> cleaner = HyperCleaner(noise="rows", steps=5, random_state=0).fit(X, X[:, 0] > 0, trusted=np.arange(60) < 20)
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "cleaner.safetensors"
    >>> save_cleaner(path, cleaner).name
    'cleaner.safetensors'
    >>> saved = load_cleaner(path)
    >>> saved.cleaner.classes_.tolist(), saved.encoder, saved.label
    ([False, True], None, None)
    """

    cleaner: HyperCleaner
    encoder: Any
    label: str | None


def save_cleaner(
    path: str | Path,
    cleaner: HyperCleaner,
    encoder: Any = None,
    *,
    label: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a fitted cleaner to one safetensors file, atomically.

    Parameters
    ----------
    path
        The file to write, usually NAME.safetensors.
    cleaner
        A fitted `HyperCleaner`. Settings that JSON cannot represent, such as a solver object, are loaded as defaults.
    encoder
        The encoder of the columns of a table, if the rows come from a table.
    label
        The name of the label column of that table.
    overwrite
        Replace an existing file; otherwise an existing file is an error.

    Returns
    -------
    Path
        The file.

    Examples
    --------
    >>> import numpy as np
    >>> from bilevel.cleaning import HyperCleaner, load_cleaner, save_cleaner
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> cleaner = HyperCleaner(noise="rows", steps=5, random_state=0).fit(X, X[:, 0] > 0, trusted=np.arange(60) < 20)
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "cleaner.safetensors"
    >>> save_cleaner(path, cleaner).name
    'cleaner.safetensors'
    """
    return write_atomically(Path(path), cleaner_writer(cleaner, encoder, label), overwrite=overwrite)


def load_cleaner(path: str | Path) -> SavedCleaner:
    """Read a cleaner written by `save_cleaner`; its predictions have the same bits.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    SavedCleaner
        The cleaner and the encoder of a table.

    Examples
    --------
    >>> import numpy as np
    >>> from bilevel.cleaning import HyperCleaner, load_cleaner, save_cleaner
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> cleaner = HyperCleaner(noise="rows", steps=5, random_state=0).fit(X, X[:, 0] > 0, trusted=np.arange(60) < 20)
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "cleaner.safetensors"
    >>> save_cleaner(path, cleaner).name
    'cleaner.safetensors'
    >>> bool((load_cleaner(path).cleaner.predict_proba(X) == cleaner.predict_proba(X)).all())
    True
    """
    return load_document(Path(path), _decode, format=FORMAT, version=VERSION, what="a cleaner")


def cleaner_writer(cleaner: Any, encoder: Any, label: str | None) -> Callable[[Path], None]:
    """A function for `write_together` that writes a fitted `HyperCleaner`."""
    if not isinstance(cleaner, HyperCleaner):
        raise InvalidTypeError(
            f"a file holds a HyperCleaner, got {type(cleaner).__name__}: of a Pipeline save its last step, "
            "pipeline[-1]; its other steps are not in the file"
        )
    fit: Any = getattr(cleaner, "correction_", None)
    if fit is None and not hasattr(cleaner, "coef_"):
        raise InvalidInputError("this HyperCleaner is not fitted: call fit(X, y, trusted=mask) before saving it")
    names = getattr(cleaner, "feature_names_in_", None)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "settings": _encode_settings(cleaner),
        "classes": _encode_labels(cleaner.classes_),
        "feature_names": None if names is None else [str(name) for name in names],
        "features": getattr(cleaner, "n_features_in_", None),
        "facts": json_value({name: getattr(cleaner, name) for name in FACTS}),
        "label": label,
        "versions": versions(),
    }
    arrays = {name: getattr(cleaner, name, None) for name in ARRAYS} | cleaner._issues
    encoder = getattr(cleaner, "_encoder", None) if encoder is None else encoder
    if fit is not None or encoder is not None:
        from .packed_models import PACKAGES, pack

        arrays["packed"] = pack(fit, encoder)
        document["versions"] |= {name: importlib.metadata.version(name) for name in PACKAGES}
    tensors = {name: torch.tensor(np.ascontiguousarray(array)) for name, array in arrays.items() if array is not None}
    too_long = f"the names and categories of {document['features']} features are too long for one file"
    return document_writer(document, tensors, too_long=too_long)


def _encode_settings(cleaner: HyperCleaner) -> dict[str, Any]:
    """The settings that JSON can represent. The loss must be one with a name, because predictions need it."""
    settings = cleaner.get_params(deep=False)
    if isinstance(settings["loss"], Loss):
        names = {kind: name for name, kind in BY_NAME.items()}
        if type(settings["loss"]) not in names:
            raise InvalidInputError(f"files hold cleaners with a loss of {sorted(BY_NAME)}, not {settings['loss']!r}")
        settings["loss"] = names[type(settings["loss"])]
    return {name: value for name, value in settings.items() if _fits_json(value)}


def _encode_labels(classes: np.ndarray) -> dict[str, Any]:
    """Class labels with the dtype of their array, so that loaded labels compare and print as before."""
    labels = classes.tolist()
    if {type(label).__name__ for label in labels} - set(LABEL_TYPES) or not all(map(_fits_json, labels)):
        odd = next(label for label in labels if type(label).__name__ not in LABEL_TYPES or not _fits_json(label))
        raise InvalidInputError(
            f"the class label {odd!r} is of type {type(odd).__name__}: a file holds labels that are texts, numbers or "
            "truth values"
        )
    return {"dtype": classes.dtype.str, "values": labels}


def _decode_labels(content: Any) -> np.ndarray:
    values, dtype = content["values"], np.dtype(content["dtype"])
    if dtype.kind not in "biufUO" or len(values) < 2 or {type(value).__name__ for value in values} - set(LABEL_TYPES):
        raise InvalidInputError("the class labels are damaged")
    if dtype.itemsize * len(values) > LARGEST_LABELS:  # a text type may claim any length
        raise InvalidInputError(f"the class labels need {dtype.itemsize * len(values):,} bytes")
    return np.array(values, dtype=dtype)


def _decode(document: dict[str, Any], tensors: dict[str, Tensor]) -> SavedCleaner:
    cleaner: Any = HyperCleaner(**document["settings"])
    cleaner.classes_, cleaner.correction_ = _decode_labels(document["classes"]), None
    names, label = document["feature_names"], document["label"]
    if not all(isinstance(name, str) for name in (*(names or ()), label or "")):
        raise InvalidInputError("the names of its columns are damaged")
    for name in ARRAYS:
        setattr(cleaner, name, tensors[name].numpy() if name in tensors else None)
    for name in FACTS:
        setattr(cleaner, name, {"separate_trusted_": False, **document["facts"]}[name])
    cleaner._index, cleaner.history_, encoder = None, [], None
    cleaner.n_features_in_ = int(document.get("features") or tensors["coef_"].shape[-1])  # absent in older files
    if "packed" in tensors:
        from .packed_models import unpack

        cleaner.correction_, encoder = unpack(tensors["packed"].numpy(), document["versions"])
        cleaner._encoder = encoder if names is not None else None  # it was fitted to a DataFrame
    if cleaner.correction_ is None:
        _check_coefficients(cleaner, tensors["coef_"], tensors["intercept_"])
    if names is not None:
        if len(names) != cleaner.n_features_in_:
            raise InvalidInputError(f"{cleaner.n_features_in_} coefficients do not go with {len(names)} features")
        cleaner.feature_names_in_ = np.array(names, dtype=object)
    cleaner._issues = _decode_issues(cleaner, tensors)
    return SavedCleaner(cleaner, encoder, label)


def _check_coefficients(cleaner: Any, coefficients: Tensor, intercept: Tensor) -> None:
    classes, width = len(cleaner.classes_), cleaner.n_features_in_
    rows = 1 if classes == 2 else classes
    if coefficients.shape != (rows, width) or intercept.shape != (rows,):
        raise InvalidInputError(
            f"{classes} classes and {width} features do not go with coefficients of shape {tuple(coefficients.shape)} "
            f"and an intercept of shape {tuple(intercept.shape)}"
        )
    if not (coefficients.isfinite().all() and intercept.isfinite().all()):
        raise InvalidInputError("coefficients are not finite")


def _decode_issues(cleaner: HyperCleaner, tensors: dict[str, Tensor]) -> dict[str, np.ndarray]:
    size = len(cleaner.sample_weight_)
    kinds = ISSUES if cleaner.correction_ is None else ISSUES | SUGGESTIONS
    issues = {name: tensors[name].numpy() for name in kinds}
    if any(column.shape != (size,) or column.dtype.kind != kinds[name] for name, column in issues.items()):
        raise InvalidInputError(f"the data about its {size} training rows are damaged")
    labels = np.concatenate([column for name, column in issues.items() if kinds[name] == "i"])
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(cleaner.classes_):
        raise InvalidInputError("the labels of its training rows are damaged")
    return issues


def _fits_json(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))


def json_value(value: Any) -> Any:
    """Convert arrays, mappings and sequences to JSON; values that it cannot represent, such as NaN, become null.

    Examples
    --------
    >>> json_value({"shares": np.array([0.5, np.nan]), "labels": ("a", np.int64(3))})
    {'shares': [0.5, None], 'labels': ['a', 3]}
    """
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): json_value(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(entry) for entry in value]
    return value if _fits_json(value) else None


def versions() -> dict[str, str]:
    """The versions of the packages in use."""
    others = {name: importlib.metadata.version(name) for name in ("torch", "scikit-learn", "numpy")}
    return {"bilevel": __version__, **others, "Python": platform.python_version()}
