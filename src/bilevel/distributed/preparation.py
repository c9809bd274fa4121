"""From shards to arrays: classes, scaling and categories are those of all rows, whichever rank has them.

    mean   m = (1/n) sum over ranks and rows of a        deviation  s^2 = (1/n) sum over ranks and rows of (a - m)^2

A column that is constant on one rank and not on another is scaled like any other; one that is constant everywhere is
left at its scale, as scikit-learn's StandardScaler leaves it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from ..applications.hyper_cleaning.encoder import (
    Encoder,
    category_names,
    number_frame,
    parse_image_shape,
    pixel_columns,
)
from ..applications.hyper_cleaning.preparation import FEWEST_ROWS, FEWEST_TRUSTED, Request, Rows, keep_aside
from ..applications.hyper_cleaning.result import plain
from ..applications.hyper_cleaning.tables import (
    Table,
    category_column,
    check_columns,
    filled,
    labels_of,
    listed,
    matched_labels,
    read_table,
)
from ..errors import InvalidInput
from .fingerprint import of_rows
from .ranks import Ranks
from .shards import Part, read_part

MOST_LABELS, MOST_CATEGORIES = 1_000, 10_000
"""Different labels, and different texts of a column of categories: more are names of rows."""
BLOCK = 1 << 16
"""Rows that are looked at together."""


@dataclass(frozen=True, kw_only=True)
class ShardedData:
    """What a rank has read, in the form that training takes.

    Parameters
    ----------
    part
        Its rows, without the label and the columns that are left out.
    ignored
        A pandas data frame of the columns left out.
    given, classes
        The labels of its rows, and those of all rows, sorted.
    encoder
        From columns to features, the same on every rank.
    features
        Its rows as numbers, shape (n_r, features).
    trusted, measured
        The trusted rows that train and the rows to measure on (or None), the same on every rank.
    trusted_rows, where
        How many trusted rows there are, and which are measured on, for people.
    fingerprint
        Of all rows and labels in their order, however they are divided.
    notes
        What the user should know.
    """

    part: Part
    ignored: Any
    given: np.ndarray
    classes: np.ndarray
    encoder: Encoder
    features: Any
    trusted: Rows
    measured: Rows | None
    trusted_rows: int
    where: str
    fingerprint: str
    notes: tuple[str, ...]


def prepare(request: Request, ranks: Ranks) -> ShardedData:
    """Read, check and encode the rows of this rank; what is wrong on one rank is an error on all."""
    whole = read_part(request.table, request.label, ranks, texts=request.categorical)
    with ranks.together("looking at the columns"):
        for option, names in (
            ("--label", [request.label]),
            ("--ignore", request.ignore),
            ("--categorical", request.categorical),
        ):
            for name in names:
                whole.require(name, option)
    given, classes = global_labels(whole, request.label, ranks)
    part = whole.without({request.label, *request.ignore})
    texts: list[str] = []
    pixels: list[str] = []
    with ranks.together("looking at the columns"):
        if not part.columns:
            raise InvalidInput(f"{part.name}: no column is left to learn from")
        shape = None if request.image_shape is None else parse_image_shape(request.image_shape)
        pixels = (pixel_columns(part, shape) or ([], ()))[0]
        texts = category_names(part, request.categorical, pixels)
    kinds = {f"whether column {name!r} holds texts": name in texts for name in part.columns}
    ranks.agree(kinds, "correct its cells, or name it with --categorical")

    notes: list[str] = []
    tables: dict[str, tuple[Table, np.ndarray]] = {}
    contents: dict[str, str] = {}
    with ranks.together("reading the trusted rows"):
        for option, path in (("--trusted", request.trusted), ("--test", request.test)):
            if path is not None:
                tables[option] = _other_table(path, part, request, texts, classes, notes)
                contents[f"the content of {path.name}"] = hashlib.sha256(path.read_bytes()).hexdigest()
    ranks.agree(contents, "every rank must see the same file")
    trusted_table, trusted_labels = tables["--trusted"]
    _check_sizes(part, trusted_labels, classes, notes)
    encoder = fit_encoder(part, trusted_table, texts, pixels, ranks, notes)
    encoder = replace(encoder, ignored=tuple(request.ignore))
    features: Any = None
    trusted = measured = None
    where = ""
    with ranks.together("encoding its rows"):
        dtype = np.float32 if not texts and all(kind == np.float32 for kind in part.frame.dtypes) else np.float64
        features = encoder.transform(part, of=part.name).astype(dtype)
        trusted = Rows(encoder.transform(trusted_table, of=part.name).astype(dtype), trusted_labels)
        if request.test is None:
            trusted, measured, where = keep_aside(trusted, request.holdout, request.seed)
        else:
            test, labels = tables["--test"]
            measured = Rows(encoder.transform(test, of=part.name, allow_unknown=True).astype(dtype), labels)
            where = f"the {len(measured):,} rows of {request.test.name}"
    assert trusted is not None
    return ShardedData(
        part=part,
        ignored=whole.frame[[name for name in whole.columns if name in request.ignore]],
        given=given,
        classes=classes,
        encoder=encoder,
        features=features,
        trusted=trusted,
        measured=measured,
        trusted_rows=len(trusted_labels),
        where=where,
        fingerprint=fingerprint(part, encoder, np.searchsorted(classes, given), ranks),
        notes=tuple(dict.fromkeys(notes)),
    )


def _other_table(
    path: Path, part: Part, request: Request, texts: Sequence[str], classes: np.ndarray, notes: list[str]
) -> tuple[Table, np.ndarray]:
    """A table with the columns of the shards, by name, and its labels."""
    rows = read_table(path, texts={request.label, *texts})
    extra = check_columns(rows, [request.label, *part.columns], part.name)
    if unused := [name for name in extra if name not in request.ignore]:
        notes.append(f"{path} has columns that {part.name} has not, which are ignored: {listed(unused)}")
    return rows, matched_labels(rows, request.label, classes, of=part.name)


def _check_sizes(part: Part, trusted: np.ndarray, classes: np.ndarray, notes: list[str]) -> None:
    """The same on every rank, like what it looks at."""
    if part.total < FEWEST_ROWS:
        raise InvalidInput(f"{part.name} has {part.total} rows to clean: at least {FEWEST_ROWS} are needed")
    if len(trusted) < FEWEST_TRUSTED or len(np.unique(trusted)) < 2:
        raise InvalidInput(
            f"there are {len(trusted)} trusted rows, with the labels {listed(np.unique(trusted))}: at least "
            f"{FEWEST_TRUSTED} with two different labels are needed, and several per label are better"
        )
    if absent := [label for label in classes if label not in trusted]:
        notes.append(
            f"No trusted row has the label {listed(absent)}: wrong labels of that kind are hard to tell from right ones"
        )


# --- what is learned from all rows ------------------------------------------------------------------------------------


def global_labels(part: Part, column: str, ranks: Ranks) -> tuple[np.ndarray, np.ndarray]:
    """The labels of these rows, shape (n_r,), and the classes: those of the rows of all ranks, sorted."""
    values: Any = None
    distinct: list[Any] = []
    with ranks.together("reading its labels"):
        values = filled(part, column)
        distinct = [plain(value) for value in values.unique()]
        if blank := [value for value in distinct if isinstance(value, str) and not value.strip()]:
            row = int(np.flatnonzero(values.isin(blank))[0])
            raise InvalidInput(f"{part.cell(row, column)}: the label is empty. Fill it in, or delete the row")
        if len(distinct) > MOST_LABELS:
            raise InvalidInput(
                f"column {column!r} has {len(distinct)} different values: labels are few names or numbers"
            )
    union = sorted({value for found in ranks.gather(distinct) for value in found}, key=str)
    if len(union) < 2 or len(union) > max(2, part.total / 2):
        raise InvalidInput(
            f"{part.name}: column {column!r} has {len(union)} different values in {part.total} rows: labels are few "
            "names or numbers that many rows share, and at least two"
        )
    typed = labels_of(Table(part.name, pd.DataFrame({column: union * 2})), column)[: len(union)]
    codes, here = pd.factorize(values)
    places = {value: i for i, value in enumerate(union)}
    return typed[[places[plain(value)] for value in here]][codes], np.unique(typed)


def fit_encoder(
    part: Part, trusted: Table, texts: Collection[str], pixels: Collection[str], ranks: Ranks, notes: list[str]
) -> Encoder:
    """What `Encoder.fit` learns from the rows of all ranks and the trusted rows."""
    numbers = [name for name in part.columns if name not in texts]
    values = known = np.zeros((0, 0))
    words: dict[str, list[str]] = {}
    with ranks.together("reading its columns"):
        values, known = (number_frame(table, numbers).to_numpy(float) for table in (part, trusted))
        words = {name: sorted(set(category_column(part, name))) for name in texts}
        if many := next((name for name, found in words.items() if len(found) > MOST_CATEGORIES), None):
            raise InvalidInput(_too_many(part, many, words[many]))
    count = part.total + len(trusted)
    means = (_total(values, 0.0, 1, ranks) + known.sum(0)) / count
    variances = (_total(values, means, 2, ranks) + np.square(known - means).sum(0)) / count
    scales = np.where(_constant(means, variances, count), 1.0, np.sqrt(variances))
    if pixels:
        largest = max(ranks.gather(float(np.abs(values[:, np.isin(numbers, list(pixels))]).max(initial=0.0))))
        largest = max(largest, float(np.abs(known[:, np.isin(numbers, list(pixels))]).max(initial=0.0)))
        means = np.where(np.isin(numbers, list(pixels)), 0.0, means)
        scales = np.where(np.isin(numbers, list(pixels)), largest or 1.0, scales)
    if not np.isfinite(means + scales).all():
        worst = numbers[int(np.flatnonzero(~np.isfinite(means + scales))[0])]
        raise InvalidInput(f"{part.name}: the numbers in column {worst!r} are too large to be standardised")
    everywhere = ranks.gather(words)
    categories: dict[str, tuple[str, ...]] = {}
    for name in texts:
        seen = {value for found in everywhere for value in found[name]}
        extra = set(category_column(trusted, name)) - seen
        if extra:
            notes.append(
                f"Only trusted rows have {listed(sorted(extra))} in column {name!r}: is it spelled as elsewhere?"
            )
        categories[name] = tuple(sorted(seen | extra))
        if len(categories[name]) > max(20, count / 2):
            raise InvalidInput(_too_many(part, name, categories[name]))
    return Encoder(tuple(numbers), tuple(means.tolist()), tuple(scales.tolist()), categories)


def _too_many(part: Part, name: str, found: Sequence[str]) -> str:
    return (
        f"{part.name}: column {name!r} holds {len(found)} different texts, such as {listed(found, 2)}: that is a name "
        f"of each row rather than a category. Leave it out with --ignore {name}"
    )


def _constant(means: np.ndarray, variances: np.ndarray, count: int) -> np.ndarray:
    """Columns whose variance is within the rounding of its sum (Chan et al., 1983, as scikit-learn has it)."""
    eps = np.finfo(float).eps
    return variances <= count * eps * variances + np.square(count * means * eps)


def _total(values: np.ndarray, centre: Any, power: int, ranks: Ranks) -> np.ndarray:
    """The sum over all rows of (a - centre)^power, column by column."""
    total = np.zeros(values.shape[1])
    for block in _blocks(values):
        total += ((block - centre) ** power).sum(0)
    return ranks.all_sum(torch.from_numpy(total).to(ranks.device)).cpu().numpy()


def _blocks(values: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(values), BLOCK):
        yield values[start : start + BLOCK]


def fingerprint(part: Part, encoder: Encoder, labels: np.ndarray, ranks: Ranks) -> str:
    """A text that other rows, labels or another order of rows would change, and another division does not."""
    numbers = number_frame(part, encoder.numbers)
    columns = [numbers[name].to_numpy() for name in encoder.numbers]
    for name, known in encoder.categories.items():
        columns.append(np.searchsorted(np.array(known), category_column(part, name).astype(str)))
    summed = ranks.all_sum(torch.tensor([of_rows([*columns, labels], part.first)], device=ranks.device))
    return f"sha256:{hashlib.sha256(f'{int(summed[0])} {encoder.columns}'.encode()).hexdigest()}"
