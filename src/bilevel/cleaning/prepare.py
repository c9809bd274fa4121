"""From files to arrays: errors in the tables are reported here, on every rank, before training.

the rows to clean                        each rank has its part
trusted rows, rows to measure on         every rank has all of them: they are few
labels, scaling, categories, notes       the same on every rank
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from ..errors import InvalidInputError
from ..ranks import Ranks
from .column_kinds import kinds_of_options
from .columns import ColumnEncoder
from .design import replicated, spaced_rows
from .headers import Problems
from .inputs import PIXEL
from .options import CleanOptions
from .out_of_fold import row_keys
from .table_files import read_table, read_training, read_vectors
from .tables import Table, check_columns, folded, gathered, is_filled, labels_of, listed, marks_of, matched_labels
from .verified_labels import keys_of, match_rows, read_verified

SAMPLE = 100_000
"""The maximal number of rows from which the kinds and scales of columns are determined, on every rank."""
FEWEST_ROWS, FEWEST_TRUSTED, FEWEST_ASIDE = 10, 4, 10
"""The minimal numbers of training rows, of trusted rows and of held-out rows."""
MOST_UNKNOWN = 0.1
"""If a larger fraction of the trusted rows has labels that the table lacks, the labels count as spelled differently."""
ONLY_CORRECTION = ("verified", "group", "text", "number", "date", "features", "precision", "next")


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
    """The tables in the form that training needs.

    Parameters
    ----------
    table
        This rank's rows of the training table, with the vectors of --features.
    file_columns, columns
        The columns of the file, and the candidates for features.
    given, marked
        The labels of these rows, and which of them are trusted (none if trusted rows come from another file).
    encoder
        A `ColumnEncoder`, from the columns of the table to features.
    pixels
        Names of the columns that are pixels and the shape of the pictures, or None.
    noisy
        The rows that are not trusted.
    trusted
        The trusted rows that are used for training.
    trusted_rows
        The number of trusted rows, including those kept aside.
    measured
        Rows to measure accuracy on: those of --test, or trusted rows kept aside; None if there are none.
    where
        A description of these rows, or why there are none.
    seen
        The number of these rows that have the features of a training row.
    notes
        Notes for the user.
    corrects
        Whether noise="correction" is used; otherwise a linear model is trained.
    verified, wrong, groups
        Of the noisy rows: right labels of verified rows (None elsewhere), labels known to be wrong, and groups; None
        without --verified and --group.
    drawn
        Which of the noisy rows were drawn at random to be verified; None if --verified does not say.
    empty
        Which rows have no label; they are neither noisy nor trusted, and their label is predicted. None if none is.
    """

    table: Table
    file_columns: list[str]
    columns: list[str]
    given: np.ndarray
    marked: np.ndarray
    encoder: ColumnEncoder
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
    """Read, check and encode the tables; an error on one rank is an error on all.

    Parameters
    ----------
    training
        The training table, if it was read already.
    """
    training = read_training(options, ranks) if training is None else training
    notes = list(training.notes)
    missing = Problems()
    missing.note_columns(training.name, training.columns, options)
    missing.report()
    table = _features_of(options, training)
    shape = None if options.image_shape is None else parse_image_shape(options.image_shape)
    pixels = pixel_columns(table.without(options.ignore or ()), shape)
    corrects = options.corrects(processes=ranks.size, pixels=pixels is not None)
    if not corrects and (unused := [name for name in ONLY_CORRECTION if getattr(options, name)]):
        raise InvalidInputError(f"--{unused[0]} needs --noise correction: omit it, or choose that noise model")
    if options.noise == "auto" and pixels is None and ranks.size == 1 and options.linear_only:
        option = options.linear_only[0]
        notes.append(f"{option} is for linear models: without it, boosting and other models find the wrong labels")
    given, labels, empty = _given_labels(options, training, ranks, notes)
    marked = np.zeros(len(training), bool)
    if options.trusted_column is not None:
        with ranks.guard(f"reading column {options.trusted_column!r}"):
            marked = marks_of(training, options.trusted_column) & ~empty
    known = read_verified(options, training, labels)
    tables = _other_tables(options, training, labels, notes)
    if corrects and "trusted" in tables:
        known = known._replace(right=_matched_rows(table, tables, known.right, notes))
    noisy = ~marked & ~empty
    encoder = _fit_encoder(options, table, (given, labels, ~empty), tables, ranks, pixels=pixels, scaled=not corrects)
    large = table.total > SAMPLE and all(kind == np.float32 for kind in table.frame[encoder.columns_].dtypes)
    features: Any = None
    with ranks.guard("encoding its rows"):
        features = encoder.transform(table.frame)
        features = features.astype(np.float32) if large else features
    everything = LabelledRows(features, given)
    own = everything.pick(marked)
    codes = replicated(np.searchsorted(labels, own.labels), ranks)
    parts = {"train": everything.pick(noisy), "trusted": LabelledRows(replicated(own.features, ranks), labels[codes])}
    parts |= _encoded(encoder, tables, options.label, table.name)
    rows = sum(ranks.gather(int(noisy.sum())))
    _check_sizes(options, rows, parts["trusted"].labels, known.right, labels, notes, corrects=corrects)
    trusted, measured, where = _rows_to_measure(options, parts, known.right is not None)
    seen = 0 if measured is None else _seen(measured, parts["train"], trusted, ranks)
    if measured is not None and seen:
        names = " or ".join(path.name for path in (options.table, options.trusted) if path is not None)
        notes.append(
            f"{seen:,} of the {len(measured):,} measured rows also occur in {names}, by the columns used: accuracies "
            "may be too optimistic"
        )
    return CleaningData(
        table=training.beside(table.frame[[name for name in table.columns if name not in training.columns]]),
        file_columns=training.columns,
        columns=table.columns,
        given=given,
        marked=marked,
        encoder=encoder,
        pixels=pixels,
        noisy=parts["train"],
        trusted=trusted,
        trusted_rows=len(parts["trusted"]),
        measured=measured,
        where=where,
        seen=seen,
        notes=tuple(notes),
        corrects=corrects,
        **known.rows(noisy),
        groups=None if options.group is None else training.frame[options.group].astype(str).to_numpy()[noisy],
        empty=empty if empty.any() else None,
    )


def _features_of(options: CleanOptions, training: Table) -> Table:
    """The training table without columns that are not features, and with the vectors of --features."""
    table = training.without([options.label, *filter(None, (options.trusted_column, options.verified, options.group))])
    return table if not options.features else table.beside(read_vectors(options.features[0], len(table), table.name))


def _given_labels(
    options: CleanOptions, training: Table, ranks: Ranks, notes: list[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The labels of the rows (arbitrary for rows without one), all labels, sorted, and which rows have none."""
    empty = ~is_filled(training, options.label)
    filled = replace(training, frame=training.frame[~empty].reset_index(drop=True))
    known, labels = labels_of(filled, options.label, ranks)
    given = np.full(len(training), labels[0], dtype=known.dtype)
    given[~empty] = known
    if count := sum(ranks.gather(int(empty.sum()))):
        notes.append(f"{count:,} rows of {training.name} have no label in {options.label!r}: it is predicted")
    spelled = sorted({str(each).strip() for each in filled.column(options.label).unique()} - set(map(str, labels)))
    if alike := [each for each in spelled if folded(each) in {folded(label) for label in labels}]:
        notes.append(f"the labels {listed(alike)} differ from others in upper and lower case only: they count as these")
    return given, labels, empty


def _other_tables(
    options: CleanOptions, training: Table, labels: np.ndarray, notes: list[str]
) -> dict[str, tuple[Table, np.ndarray]]:
    """The tables of --trusted and --test with their labels, which the training table must have too.

    Every rank reads all their rows. Columns that are texts in the training table are read as texts.
    """
    tables, problems = {}, Problems()
    texts = {options.label, *(name for name in training.columns if training.column(name).dtype == object)}
    for place, name in enumerate(each for each in ("trusted", "test") if getattr(options, each) is not None):
        with problems.collect():
            path = getattr(options, name)
            rows = read_table(path, texts=texts, label=options.label)
            notes += rows.notes
            extra = check_columns(rows.without(set(training.columns) - {options.label}), [options.label], training.name)
            if extra:
                notes.append(f"{path} has columns that {training.name} lacks, which are ignored: {listed(extra)}")
            if options.features:
                rows = rows.beside(read_vectors(options.features[place + 1], len(rows), str(path)))
            here = is_filled(rows, options.label)
            if not here.all():
                notes.append(f"{int((~here).sum()):,} rows of {path.name} have no label and were left out")
                rows = rows.rows(here)
            right, here = matched_labels(rows, options.label, labels, of=training.name, most_unknown=MOST_UNKNOWN)
            if not here.all():
                strange = listed(rows.column(options.label)[~here].unique())
                notes.append(
                    f"{int((~here).sum()):,} rows of {path.name} have a label that no row of {training.name} has, "
                    f"{strange}, and were left out"
                )
            tables[name] = rows.rows(here), right
    problems.report()
    return tables


def _matched_rows(
    table: Table, tables: dict[str, tuple[Table, np.ndarray]], verified: np.ndarray | None, notes: list[str]
) -> np.ndarray | None:
    """Move trusted rows that also occur in the table to the verified labels."""
    rows, right = tables["trusted"]
    key, verified = match_rows(table, rows, right, verified)
    if key is not None:
        same = np.isin(keys_of(rows, key), keys_of(table, key))
        notes.append(
            f"{int(same.sum()):,} rows of {rows.name} are also in {table.name}, by the column {key!r}: their given and "
            "correct labels are both known"
        )
        tables["trusted"] = rows.rows(~same), right[~same]
    return verified


def _fit_encoder(
    options: CleanOptions, table: Table, known: tuple[np.ndarray, ...], tables: Mapping[str, Any], ranks: Ranks,
    *, pixels: Any, scaled: bool,
) -> ColumnEncoder:  # fmt: skip
    """Fit the encoder of the columns to a sample of the rows of all ranks and to those of --trusted."""
    given, labels, here = known
    sample = np.zeros(len(table), bool)
    sample[spaced_rows(table.first, len(table), table.total, SAMPLE)] = True
    frames = [gathered(table.frame[sample & here], ranks, everywhere=True)]
    codes = [replicated(np.searchsorted(labels, given[sample & here]), ranks)]
    if "trusted" in tables:
        rows, right = tables["trusted"]
        frames.append(rows.frame[[name for name in table.columns if name in rows.columns]])
        codes.append(np.searchsorted(labels, right))
    named = {"ignore": options.ignore, "category": options.categorical, "text": options.text}
    kinds = kinds_of_options({**named, "number": options.number, "date": options.date})
    if options.features:
        kinds |= {name: "number" for name in table.columns if name.startswith("feature ")}
    encoder = ColumnEncoder(kinds, scaled=scaled, pixels=pixels[0] if pixels else ())
    return encoder.fit(pd.concat([each for each in frames if len(each)], ignore_index=True), np.concatenate(codes))


def _encoded(encoder: ColumnEncoder, tables: Mapping[str, Any], label: str, of: str) -> dict[str, LabelledRows]:
    """The encoded rows of the other tables; empty tables are left out."""
    parts, problems = {}, Problems()
    for name, (rows, right) in tables.items():
        with problems.collect():
            check_columns(rows.without([label]), encoder.columns_, of)
            if len(rows):  # all of them may be rows of the training table
                parts[name] = LabelledRows(encoder.transform(rows.frame), right)
    problems.report()
    return parts


def _check_sizes(
    options: CleanOptions, rows: int, trusted: np.ndarray, verified: Any, labels: np.ndarray, notes: list[str],
    *, corrects: bool,
) -> None:  # fmt: skip
    """Raise if there are too few rows; note labels that no trusted row has."""
    if rows < FEWEST_ROWS:
        raise InvalidInputError(f"{options.table} has {rows} rows to clean: at least {FEWEST_ROWS} are needed")
    if options.trusted_column is not None and len(trusted) == 0:
        raise InvalidInputError(
            f"no trusted rows: the column {options.trusted_column!r} of {options.table} is true in no row"
        )
    if not corrects and (len(trusted) < FEWEST_TRUSTED or len(np.unique(trusted)) < 2):
        raise InvalidInputError(
            f"there are {len(trusted)} trusted rows, with the labels {listed(np.unique(trusted))}: at least "
            f"{FEWEST_TRUSTED} with two different labels are needed, and several per label are better"
        )
    checked = [*trusted.tolist(), *(each for each in (() if verified is None else verified) if each is not None)]
    if not checked and options.verified is None:
        notes.append(
            "there are no checked rows: the probabilities are those of models that assume all labels to be right. "
            "--next 20 --next-out check.csv lists rows whose check would help most"
        )
    elif checked and (absent := [label for label in labels if label not in checked]):
        notes.append(
            f"No trusted row has the label {listed(absent)}: wrong labels of that kind are hard to tell from right ones"
        )


def _rows_to_measure(
    options: CleanOptions, parts: Mapping[str, LabelledRows], verified: bool
) -> tuple[LabelledRows, LabelledRows | None, str]:
    """Trusted rows for training, rows for measuring, and a description of the latter or why there are none."""
    trusted = parts["trusted"]
    if options.test is not None:
        return trusted, parts["test"], f"the {len(parts['test']):,} rows of {options.test.name}"
    if len(trusted):
        return keep_aside(trusted, options.holdout, options.seed)
    if verified:
        return trusted, None, "no rows were kept aside; pass a table with --test"
    return trusted, None, "there are no checked rows; pass some with --trusted or --verified"


def keep_aside(trusted: LabelledRows, share: float, seed: int) -> tuple[LabelledRows, LabelledRows | None, str]:
    """Trusted rows for training, those kept aside for measuring (a fraction of each label), and their description."""
    if share == 0:
        return trusted, None, "no trusted rows were kept aside (--holdout 0), and no test table was given (--test)"
    generator = np.random.default_rng(seed)
    aside = np.zeros(len(trusted), dtype=bool)
    for label in np.unique(trusted.labels):
        members = generator.permutation(np.flatnonzero(trusted.labels == label))
        aside[members[: min(round(share * len(members)), len(members) - 1)]] = True
    count = int(aside.sum())
    if count < FEWEST_ASIDE:
        reason = f"{len(trusted)} trusted rows are too few to keep some aside; pass a table with --test"
        return trusted, None, reason
    return trusted.pick(~aside), trusted.pick(aside), f"the {count} trusted rows that were kept aside"


def _seen(measured: LabelledRows, noisy: LabelledRows, trusted: LabelledRows, ranks: Ranks) -> int:
    """The number of measured rows that have the features of a training row on any rank."""
    flags = found_rows(measured.features, (noisy.features, trusted.features))
    return int((ranks.sum(torch.from_numpy(flags).long()) > 0).sum())


def found_rows(rows: Any, others: Sequence[Any]) -> np.ndarray:
    """Which of the rows are equal to one of the others, shape (n,).

    Examples
    --------
    >>> found_rows(np.array([[1.0, 2.0], [1.0, 2.0], [3.0, 4.0]]), [np.eye(2), np.array([[1.0, 2.0]])])
    array([ True,  True, False])
    """
    wanted = list(row_keys(rows))
    missing = set(wanted)
    for matrix in others:
        missing.difference_update(row_keys(matrix))
    return np.array([row not in missing for row in wanted])


# --- pictures ---------------------------------------------------------------------------------------------------------


def pixel_columns(table: Table, shape: tuple[int, ...] | None) -> tuple[list[str], tuple[int, ...]] | None:
    """The columns that are pixels, in order, and the shape of the images; None if rows are not images.

    Parameters
    ----------
    table
        The columns without the label.
    shape
        (height, width) or (height, width, 3) if set by the user. Otherwise columns are pixels if they are named pixel0,
        pixel1, ... (or px0; from 0 or 1) and their number is a square.
    """
    if shape is not None:
        if int(np.prod(shape)) != len(table.columns):
            size = "x".join(map(str, shape))
            raise InvalidInputError(
                f"--image-shape {size} means {int(np.prod(shape))} pixels, but {table.name} has {len(table.columns)} "
                "columns besides the label; --ignore leaves columns out"
            )
        return table.columns, shape
    numbered = {int(found[1]): name for name in table.columns if (found := PIXEL.fullmatch(name))}
    side = round(len(numbered) ** 0.5)
    first = min(numbered, default=-1)
    if side < 2 or side * side != len(numbered) or first not in (0, 1) or max(numbered) != first + side * side - 1:
        return None
    return [numbered[place] for place in sorted(numbered)], (side, side)


def parse_image_shape(text: str) -> tuple[int, ...]:
    """Examples
    --------
    >>> parse_image_shape("28x28"), parse_image_shape("32x32x3")
    ((28, 28), (32, 32, 3))
    """
    if not re.fullmatch(r"[1-9]\d*x[1-9]\d*(x3)?", text):
        raise InvalidInputError(f"--image-shape {text}: write height and width as in 28x28, or 32x32x3 for colours")
    return tuple(int(size) for size in text.split("x"))
