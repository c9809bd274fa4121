"""Why a label is suspected: the columns with the strongest evidence against it, and the nearest checked rows.

The evidence of a column against the given label g of a row x is

    mean over r of  log p_g(x with the column of row r) - log p_g(x),

where r are a few rows with the same label, which is probably right: how much more likely the label would be if only
this column were as in such rows. For a table of prose, words replace columns: log p_g(x without the word) - log p_g(x).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from .inputs import joined
from .prepare import CleaningData

COLUMNS, WORDS, NEAREST = 4, 6, 3
"""The number of columns, words and checked rows shown for a row."""
REFERENCES = 4
"""The number of rows of the same label whose columns are used for comparison."""
BLOCK = 20_000
"""The number of rows that are predicted together."""


def reasons_of(cleaner: Any, data: CleaningData, places: Sequence[int]) -> dict[int, dict[str, list[Any]]]:
    """Why the labels of some noisy rows are suspected, by their place in the table (from 0).

    "against" has pairs of a column or word and how strongly it speaks against the given label, the strongest first;
    "nearest" pairs of a checked row and the number of its label, the nearest first.
    """
    noisy = np.flatnonzero(data.is_noisy)
    within = np.searchsorted(noisy, places)
    given = np.searchsorted(cleaner.classes_, data.given[list(places)])
    against = _words_against if data.encoder.prose_ else _columns_against
    found = zip(places, against(cleaner, data, within, given), _nearest(cleaner, data, within), strict=True)
    return {int(place): {"against": strong, "nearest": near} for place, strong, near in found}


def _columns_against(cleaner: Any, data: CleaningData, within: np.ndarray, given: np.ndarray) -> list[Any]:
    sources, model = np.array(data.encoder.sources_), cleaner.correction_.model
    names = list(dict.fromkeys(sources.tolist()))
    X, rows = data.noisy.features, data.noisy.features[within]
    labels, weight = np.searchsorted(cleaner.classes_, data.noisy.labels), cleaner.sample_weight_
    rng = np.random.default_rng(0)
    lenders = np.stack([_believed(labels, weight, label, rng) for label in given])  # (rows, REFERENCES)
    before = _log_probability(model, rows, given)
    scores = np.zeros((len(rows), len(names)))
    for place, name in enumerate(names):
        mine = np.flatnonzero(sources == name)
        changed = np.repeat(rows, REFERENCES, axis=0)
        changed[:, mine] = X[lenders.reshape(-1)][:, mine]
        after = _log_probability(model, changed, np.repeat(given, REFERENCES)).reshape(-1, REFERENCES)
        scores[:, place] = after.mean(1) - before
    return [_strongest(names, row, COLUMNS) for row in scores]


def _strongest(names: list[str], strengths: np.ndarray, count: int) -> list[tuple[str, float]]:
    order = np.argsort(-strengths)[:count]
    return [(names[place], round(float(strengths[place]), 3)) for place in order if strengths[place] > 0]


def _believed(labels: np.ndarray, weight: np.ndarray, label: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of a label that is probably right, drawn from the half with the higher quality."""
    members = np.flatnonzero(labels == label)
    best = members[np.argsort(-weight[members], kind="stable")][: max(1, len(members) // 2)]
    return rng.choice(best, REFERENCES)


def _log_probability(model: Any, X: Any, labels: np.ndarray) -> np.ndarray:
    parts = [model.predict_proba(X[start : start + BLOCK]) for start in range(0, X.shape[0], BLOCK)]
    P = np.concatenate(parts) if parts else np.zeros((0, 1))
    return np.log(P[np.arange(len(labels)), labels] + 1e-6)


def _words_against(cleaner: Any, data: CleaningData, within: np.ndarray, given: np.ndarray) -> list[Any]:
    encoder, model = data.encoder, cleaner.correction_.model
    frame = data.table.frame[data.is_noisy].iloc[within]
    texts = encoder.texts(frame).tolist()
    words = [list(dict.fromkeys(re.findall(r"\w+", text)))[:60] for text in texts]
    without = [
        re.sub(rf"\b{re.escape(word)}\b", " ", text) for text, each in zip(texts, words, strict=True) for word in each
    ]
    counts = [len(each) for each in words]
    before = _log_probability(model, data.noisy.features[within], given)
    after = _log_probability(model, encoder.vectorizer_.transform(without), np.repeat(given, counts)) if without else []
    gains = np.split(np.asarray(after) - np.repeat(before, counts), np.cumsum(counts)[:-1])
    return [_strongest(each, gain, WORDS) for each, gain in zip(words, gains, strict=True)]


def _nearest(cleaner: Any, data: CleaningData, within: np.ndarray) -> list[list[tuple[str, int]]]:
    """The nearest rows whose label was checked: distances of standardised features, every column counting alike."""
    checked, labels = data.trusted.features, data.trusted.labels.tolist()
    names = [f"checked row {place + 1}" for place in range(len(data.trusted))]
    if data.verified is not None:
        known = np.flatnonzero([each is not None for each in data.verified])
        checked = joined(checked, data.noisy.features[known]) if labels else data.noisy.features[known]
        labels += data.verified[known].tolist()
        names += [f"row {place + 1}" for place in np.flatnonzero(data.is_noisy)[known]]
    if not labels:
        return [[] for _ in within]
    from sklearn.neighbors import NearestNeighbors

    scale, numbers = _scaling(data), np.searchsorted(cleaner.classes_, labels).tolist()
    tree = NearestNeighbors(n_neighbors=min(NEAREST, len(labels))).fit(scale(checked))
    found = tree.kneighbors(scale(data.noisy.features[within]), return_distance=False)
    return [[(names[place], numbers[place]) for place in places] for places in found]


def _scaling(data: CleaningData) -> Any:
    """A function that scales features to be comparable; sparse rows have unit length already."""
    if data.encoder.prose_:
        return lambda X: X
    X = data.noisy.features
    mean, spread = np.nanmean(X, axis=0), np.nanstd(X, axis=0)
    sizes = pd.Series(data.encoder.sources_).map(pd.Series(data.encoder.sources_).value_counts()).to_numpy(float)
    weight = 1 / np.where(spread > 0, spread, 1.0) / np.sqrt(sizes)
    return lambda rows: np.nan_to_num((rows - mean) * weight)
