"""From files to arrays: what could be wrong with the tables is found here, on every rank, before training.

the rows to clean                        each rank has its part
trusted rows, rows to measure on         every rank has all of them: they are few
labels, scaling, categories, notes       the same on every rank
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import InvalidInputError
from ..ranks import Ranks
from .design import replicated
from .encoding import SAMPLE, Encoder, category_names, parse_image_shape, pixel_columns
from .headers import Problems
from .options import CleanOptions
from .table_files import read_table, read_training
from .tables import Table, category_column, check_columns, labels_of, listed, marks_of, matched_labels

FEWEST_ROWS, FEWEST_TRUSTED, FEWEST_ASIDE = 10, 4, 10
"""Training rows, trusted rows and rows kept aside below which nothing can be learned or measured."""
ONLY_CORRECTION = ("verified", "group", "text", "number", "date", "features", "precision", "next")
BLOCK_ROWS = 1000
"""Sparse rows that are made dense at a time."""


@dataclass(frozen=True)
class LabelledRows:
    """Encoded rows, shape (n, features), and their labels, shape (n,)."""

    features: Any
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def pick(self, mask: np.ndarray) -> LabelledRows:
        """The rows where the mask is true."""
        return LabelledRows(self.features[np.flatnonzero(mask)], self.labels[mask])


@dataclass(frozen=True, kw_only=True)
class CleaningData:
    """What was read, in the form that training takes.

    Parameters
    ----------
    table
        This rank's rows of the training table, without the label and the columns that are left out.
    ignored
        A pandas data frame of the columns left out by --ignore, which tell people which row is which.
    given, marked
        The labels of these rows, and which of them are trusted: none when trusted rows come from another file.
    encoder
        From the columns of the table to features.
    pixels
        Names of the columns that are pixels and the shape of the pictures, or None.
    noisy
        The rows that are not trusted.
    trusted
        The trusted rows that train.
    trusted_rows
        How many trusted rows there are, with those kept aside.
    measured
        Rows that do not train, to measure on: those of --test, or trusted rows kept aside; None when there are none.
    where
        Which rows these are, for people, or why there are none.
    seen
        How many of these have the features of a row that trains.
    notes
        What the user should know.
    corrects
        Whether labels are corrected by models of any kind; then `encoder` is a `ColumnEncoder`.
    verified, wrong, groups
        Of the noisy rows: right labels where somebody looked (None elsewhere), labels known to be wrong, and what the
        rows belong to; None without --verified and --group.
    drawn
        Which of the noisy rows were drawn at random to be looked at; None if --verified does not say.
    empty
        Which rows have no label: they are neither noisy nor trusted, and their label is predicted; None if none is.
    """

    table: Table
    ignored: Any
    given: np.ndarray
    marked: np.ndarray
    encoder: Any
    pixels: tuple[list[str], tuple[int, ...]] | None
    noisy: LabelledRows
    trusted: LabelledRows
    trusted_rows: int
    measured: LabelledRows | None
    where: str
    seen: int
    notes: tuple[str, ...]
    corrects: bool = False
    verified: np.ndarray | None = None
    wrong: np.ndarray | None = None
    groups: np.ndarray | None = None
    drawn: np.ndarray | None = None
    empty: np.ndarray | None = None

    @property
    def is_noisy(self) -> np.ndarray:
        """Which rows of the table are in `noisy`, shape (n,)."""
        return ~self.marked if self.empty is None else ~self.marked & ~self.empty


def prepare(options: CleanOptions, ranks: Ranks, training: Table | None = None) -> CleaningData:
    """Read, check and encode the tables; what is wrong on one rank is an error on all.

    Parameters
    ----------
    training
        The training table, if it was read already.
    """
    training = read_training(options, ranks) if training is None else training
    notes: list[str] = list(training.notes)
    categorical, ignore = options.categorical or (), options.ignore or ()
    _check_columns(options, training)
    table = training.without({options.label, options.trusted_column or options.label, *ignore})
    if not table.columns and not options.features:
        raise InvalidInputError(f"{table.name}: no column is left to learn from")
    pixels = pixel_columns(table, None if options.image_shape is None else parse_image_shape(options.image_shape))
    if options.corrects(processes=ranks.size, pixels=pixels is not None):
        from .prepare_columns import prepare_columns

        return prepare_columns(options, training)
    if unused := [name for name in ONLY_CORRECTION if getattr(options, name)]:
        raise InvalidInputError(f"--{unused[0]} is for --noise correction: leave it out, or choose that")
    given, labels = labels_of(training, options.label, ranks)
    marked = np.zeros(len(training), dtype=bool)
    if options.trusted_column is not None:
        with ranks.guard(f"reading column {options.trusted_column!r}"):
            marked = marks_of(training, options.trusted_column)
    pixel_names = pixels[0] if pixels else []
    texts = category_names(table, categorical, pixel_names, ranks)

    counts = _total(np.searchsorted(labels, given[~marked]), len(labels), ranks)
    classes = labels[counts > 0]
    tables, trusted_labels = [table], labels[replicated(np.searchsorted(labels, given[marked]), ranks)]
    if options.trusted is not None:
        trusted_table, trusted_labels = _other_table(options.trusted, options, table, texts, classes, notes)
        tables.append(trusted_table)
    _check_sizes(options, int(counts.sum()), trusted_labels, classes, notes)
    encoder = _fit_encoder(tables, categorical, pixel_names, ranks)
    encoder = replace(encoder, ignored=(*ignore, *filter(None, [options.trusted_column])))
    _note_categories(encoder, table.rows(~marked), ranks, notes)

    large = table.total > SAMPLE and not texts and all(kind == np.float32 for kind in table.frame.dtypes)

    def encoded(rows: Table, **settings: Any) -> Any:
        features = encoder.transform(rows, of=table.name, **settings)
        return features.astype(np.float32) if large else features

    features: list[Any] = []
    with ranks.guard("encoding its rows"):
        features = [encoded(table.rows(mask)) for mask in (marked, ~marked)]
    checked = replicated(features[0], ranks) if options.trusted is None else encoded(tables[1])
    trusted, noisy = LabelledRows(checked, trusted_labels), LabelledRows(features[1], given[~marked])
    if options.test is None:
        trusted, measured, where = keep_aside(trusted, options.holdout, options.seed)
    else:
        test, test_labels = _other_table(options.test, options, table, texts, classes, notes)
        measured = LabelledRows(encoded(test, allow_unknown=True), test_labels)
        where = f"the {len(measured):,} rows of {options.test.name}"
    seen = 0 if measured is None else _seen(measured, noisy, trusted, ranks)
    if seen:
        names = " or ".join(path.name for path in (options.table, options.trusted) if path is not None)
        notes.append(f"{seen:,} of the rows measured on are also in {names}: these accuracies flatter")
    return CleaningData(
        table=table,
        ignored=training.frame[[name for name in training.columns if name in ignore]],
        given=given,
        marked=marked,
        encoder=encoder,
        pixels=pixels,
        noisy=noisy,
        trusted=trusted,
        trusted_rows=len(trusted_labels),
        measured=measured,
        where=where,
        seen=seen,
        notes=tuple(notes),
    )


def _check_columns(options: CleanOptions, training: Table) -> None:
    problems = Problems()
    for option, names in options.named_columns.items():
        for name in names:
            with problems.collect():
                training.require(name, option)
    problems.report()


def _other_table(
    path: Path, options: CleanOptions, table: Table, texts: Sequence[str], classes: np.ndarray, notes: list[str]
) -> tuple[Table, np.ndarray]:
    """A table with the columns of the training table, which every rank reads whole, and its labels.

    What is text in the training table is read as text.
    """
    rows = read_table(path, texts={options.label, *texts}, label=options.label)
    extra = check_columns(rows, [options.label, *table.columns], table.name)
    if unused := [name for name in extra if name not in (options.ignore or ())]:
        notes.append(f"{path} has columns that {table.name} has not, which are ignored: {listed(unused)}")
    return rows, matched_labels(rows, options.label, classes, of=table.name)


def _fit_encoder(tables: Sequence[Table], categorical: Sequence[str], pixels: Sequence[str], ranks: Ranks) -> Encoder:
    """An encoder; if columns cannot be used, all of them are named."""
    try:
        return Encoder.fit(tables, categorical, pixels, ranks)
    except InvalidInputError:
        problems, bad = Problems(), []
        for name in tables[0].columns:
            others = [each for each in tables[0].columns if each != name]
            with problems.collect():
                Encoder.fit([table.without(others) for table in tables], categorical, pixels, ranks)
                continue
            bad.append(name)
        if len(bad) > 1:
            problems.found.append(f"to leave them out, add --ignore {shlex.join(bad)}")
        problems.report()
        raise


def _total(numbers: np.ndarray, size: int, ranks: Ranks) -> np.ndarray:
    """How often each of 0, ..., size - 1 occurs on all ranks."""
    return ranks.sum(torch.from_numpy(np.bincount(numbers, minlength=size))).numpy()


def _note_categories(encoder: Encoder, doubtful: Table, ranks: Ranks, notes: list[str]) -> None:
    """Note categories that only trusted rows have."""
    for name, values in encoder.categories.items():
        counts = _total(np.searchsorted(values, category_column(doubtful, name).astype(str)), len(values), ranks)
        if alone := [value for value, count in zip(values, counts, strict=True) if count == 0]:
            notes.append(f"Only trusted rows have {listed(alone)} in column {name!r}: is it spelled as elsewhere?")


def _check_sizes(options: CleanOptions, rows: int, trusted: np.ndarray, classes: np.ndarray, notes: list[str]) -> None:
    """Raise if there are too few rows; note labels that no trusted row has."""
    if len(trusted) == 0:
        raise InvalidInputError(
            f"no trusted rows: the column {options.trusted_column!r} of {options.table} says yes in no row"
        )
    if rows < FEWEST_ROWS:
        raise InvalidInputError(f"{options.table} has {rows} rows to clean: at least {FEWEST_ROWS} are needed")
    if len(classes) < 2:
        raise InvalidInputError(
            f"all rows of {options.table} that are not trusted have the same label: nothing to clean"
        )
    if len(trusted) < FEWEST_TRUSTED or len(np.unique(trusted)) < 2:
        raise InvalidInputError(
            f"there are {len(trusted)} trusted rows, with the labels {listed(np.unique(trusted))}: at least "
            f"{FEWEST_TRUSTED} with two different labels are needed, and several per label are better"
        )
    strange = sorted(set(trusted.tolist()) - set(classes.tolist()))
    if strange:
        raise InvalidInputError(
            f"{options.table}: trusted rows have the label {listed(strange)}, which no other row has: the others have "
            f"{listed(classes)}"
        )
    absent = [label for label in classes if label not in trusted]
    if absent:
        notes.append(
            f"No trusted row has the label {listed(absent)}: wrong labels of that kind are hard to tell from right ones"
        )


def keep_aside(trusted: LabelledRows, share: float, seed: int) -> tuple[LabelledRows, LabelledRows | None, str]:
    """Trusted rows that train, those kept aside to measure on (a share of each label), and what these are."""
    if share == 0:
        return trusted, None, "no trusted rows were kept aside (--holdout 0), and no test table was given (--test)"
    generator = np.random.default_rng(seed)
    aside = np.zeros(len(trusted), dtype=bool)
    for label in np.unique(trusted.labels):
        members = generator.permutation(np.flatnonzero(trusted.labels == label))
        aside[members[: min(round(share * len(members)), len(members) - 1)]] = True
    count = int(aside.sum())
    if count < FEWEST_ASIDE:
        reason = f"{len(trusted)} trusted rows are too few to keep some aside; --test names a table to measure on"
        return trusted, None, reason
    return trusted.pick(~aside), trusted.pick(aside), f"the {count} trusted rows that were kept aside"


def _seen(measured: LabelledRows, noisy: LabelledRows, trusted: LabelledRows, ranks: Ranks) -> int:
    """How many of the rows measured on have the features of a row that trains, on any rank."""
    flags = found_rows(measured.features, (noisy.features, trusted.features))
    return int((ranks.sum(torch.from_numpy(flags).long()) > 0).sum())


def found_rows(rows: Any, others: Sequence[Any]) -> np.ndarray:
    """Which of the rows are, number by number, among the others, shape (n,).

    Examples
    --------
    >>> found_rows(np.array([[1.0, 2.0], [1.0, 2.0], [3.0, 4.0]]), [np.eye(2), np.array([[1.0, 2.0]])])
    array([ True,  True, False])
    """
    wanted = list(_row_bytes(rows))
    missing = set(wanted)
    for matrix in others:
        missing.difference_update(_row_bytes(matrix))
    return np.array([row not in missing for row in wanted])


def _row_bytes(matrix: Any) -> Iterator[bytes]:
    for start in range(0, matrix.shape[0], BLOCK_ROWS):
        block = matrix[start : start + BLOCK_ROWS]
        for row in block if isinstance(block, np.ndarray) else block.toarray():
            yield row.tobytes()
