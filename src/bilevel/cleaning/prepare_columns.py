"""Tables as they are, for `bilevel clean` by correction: no cell is refused that a model can do without.

Columns are recognised by `columns`; gaps, dates, texts and new categories are features like others. Checked rows come
from another file, from a column of marks, or from what people found in rows of the table itself; none are needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..errors import InvalidInputError
from .columns import ColumnEncoder, kinds_of_options
from .headers import Problems
from .options import CleanOptions
from .prepare import FEWEST_ROWS, CleaningData, LabelledRows, found_rows, keep_aside
from .table_files import read_table, read_vectors
from .tables import Table, check_columns, is_filled, labels_of, listed, marks_of, matched_labels

VERDICTS = ("right", "wrong", "unsure")
SAME_CELLS = 0.9
"""Rows with the same key are the same if this share of their other cells is."""


def prepare_columns(options: CleanOptions, training: Table) -> CleaningData:
    """Encode the tables of one process."""
    notes = list(training.notes)
    empty = ~is_filled(training, options.label)
    if empty.all():
        raise InvalidInputError(f"{training.name}: every cell of the label column {options.label!r} is empty")
    known, labels = labels_of(training.rows(~empty), options.label)
    given = np.full(len(training), labels[0], dtype=known.dtype)
    given[~empty] = known
    notes += _label_notes(training, options.label, labels, int(empty.sum()))
    marked = np.zeros(len(training), bool)
    if options.trusted_column is not None:
        marked = marks_of(training, options.trusted_column) & ~empty
    verified, wrong = read_verified(options, training, labels)
    drawn = _drawn(options, training)
    tables: dict[str, Any] = {}
    problems = Problems()
    for name in ("trusted", "test"):
        with problems.collect():
            if getattr(options, name) is not None:
                tables[name] = other_rows(options, name, labels, training.name, notes)
    problems.report()
    table = _features_of(options, training)
    if "trusted" in tables:
        key, verified = match_rows(table, tables["trusted"][0], tables["trusted"][1], verified)
        if key is not None:
            same = np.isin(_keys(tables["trusted"][0], key), _keys(table, key))
            notes.append(
                f"{int(same.sum()):,} rows of {tables['trusted'][0].name} are also in {training.name}, by the column "
                f"{key!r}: their given and correct labels are both known"
            )
            tables["trusted"] = tuple(_rows(each, ~same) for each in tables["trusted"])
    encoder = _fit_encoder(options, table, given, empty, tables)
    noisy, trusted = ~marked & ~empty, tables["trusted"][1] if "trusted" in tables else given[marked]
    checked = () if verified is None else verified[[each is not None for each in verified]]
    _check_sizes(options, given[noisy], np.append(trusted, checked), notes)
    everything = LabelledRows(encoder.transform(table.frame), given)
    parts = {"train": everything.pick(noisy), "trusted": everything.pick(marked)}
    for name, (rows, right) in tables.items():
        with problems.collect():
            check_columns(rows, [options.label, *encoder.columns_], table.name)
            if len(rows):
                parts[name] = LabelledRows(encoder.transform(rows.frame), right)
    problems.report()
    trusted, measured, where = _rows_to_measure(options, parts, verified is not None)
    seen = (
        0 if measured is None else int(found_rows(measured.features, (parts["train"].features, trusted.features)).sum())
    )
    if seen:
        names = " or ".join(path.name for path in (options.table, options.trusted) if path is not None)
        notes.append(f"{seen:,} of the rows measured on are also in {names}: these accuracies flatter")
    return CleaningData(
        table=table,
        ignored=training.frame[[name for name in training.columns if name in (options.ignore or ())]],
        given=given,
        marked=marked,
        encoder=encoder,
        pixels=None,
        noisy=parts["train"],
        trusted=trusted,
        trusted_rows=len(trusted) + (len(measured) if measured is not None and options.test is None else 0),
        measured=measured,
        where=where,
        seen=seen,
        notes=tuple(notes),
        corrects=True,
        verified=None if verified is None else verified[noisy],
        wrong=None if wrong is None else wrong[noisy],
        drawn=None if drawn is None else drawn[noisy],
        groups=None if options.group is None else training.frame[options.group].astype(str).to_numpy()[noisy],
        empty=empty if empty.any() else None,
    )


def _features_of(options: CleanOptions, training: Table) -> Table:
    """The training table without what is no feature, and with the vectors of --features."""
    column = options.verified if options.verified in training.columns else None
    table = training.without({options.label, *filter(None, (options.trusted_column, column, options.group))})
    return table if not options.features else table.beside(read_vectors(options.features[0], len(table), table.name))


def _label_notes(training: Table, label: str, labels: np.ndarray, empty: int) -> list[str]:
    notes = []
    if empty:
        notes.append(f"{empty:,} rows of {training.name} have no label in {label!r}: it is predicted")
    spelled = pd.Series([str(each) for each in labels])
    alike = spelled[spelled.str.casefold().duplicated(keep=False)].tolist()
    if alike:
        notes.append(f"the labels {listed(alike)} differ in upper and lower case only: they count as different")
    return notes


def _fit_encoder(
    options: CleanOptions, table: Table, given: np.ndarray, empty: np.ndarray, tables: dict[str, Any]
) -> ColumnEncoder:
    """What the columns are, by the rows of the table and those of --trusted."""
    frames, labels = [table.frame[~empty] if empty.any() else table.frame], [given[~empty]]
    if "trusted" in tables and len(tables["trusted"][0]):
        rows, right = tables["trusted"]
        frames.append(rows.frame[[name for name in table.columns if name in rows.columns]])
        labels.append(right)
    kinds = _kinds(options) | {
        name: "number" for name in table.columns if name.startswith("feature ") and options.features
    }
    return ColumnEncoder(kinds).fit(pd.concat(frames, ignore_index=True), np.concatenate(labels))


def _rows_to_measure(
    options: CleanOptions, parts: dict[str, LabelledRows], verified: bool
) -> tuple[LabelledRows, LabelledRows | None, str]:
    """Trusted rows that train, rows that accuracy is measured on, and which these are or why there are none."""
    trusted = parts["trusted"]
    if "test" in parts:
        return trusted, parts["test"], f"the {len(parts['test']):,} rows of {options.test.name}"  # type: ignore[union-attr]
    if len(trusted):
        return keep_aside(trusted, options.holdout, options.seed)
    if verified:
        return trusted, None, "no row was kept aside: --test names a table to measure on"
    return trusted, None, "there are no checked rows: --trusted FILE or --verified name some"


def _kinds(options: CleanOptions) -> dict[str, str]:
    named = {"ignore": options.ignore, "category": options.categorical, "text": options.text}
    return kinds_of_options({**named, "number": options.number, "date": options.date})


def other_rows(
    options: CleanOptions, name: str, labels: np.ndarray, of: str, notes: list[str]
) -> tuple[Table, np.ndarray]:
    """Another table with right labels, which the training table must have too; rows without a label are left out."""
    path = getattr(options, name)
    rows = read_table(path, texts={options.label}, label=options.label)
    notes += rows.notes
    check_columns(rows, [options.label], of)
    if options.features:
        place = 1 if name == "trusted" or options.trusted is None else 2
        rows = rows.beside(read_vectors(options.features[place], len(rows), str(path)))
    here = is_filled(rows, options.label)
    if not here.all():
        notes.append(f"{int((~here).sum()):,} rows of {path.name} have no label and were left out")
        rows = rows.rows(here)
    return rows, matched_labels(rows, options.label, labels, of=of)


def match_rows(
    table: Table, rows: Table, right: np.ndarray, verified: np.ndarray | None
) -> tuple[str | None, np.ndarray | None]:
    """The column by which rows of another table are rows of this one, and the verified labels with theirs.

    A key is different in every row of both tables, and rows with the same key have (almost) the same other cells:
    numbers of rows that were counted anew in each file are no key.
    """
    for name in (each for each in table.columns if each in rows.columns):
        ours, theirs = pd.Index(_keys(table, name)), pd.Index(_keys(rows, name))
        if not (ours.is_unique and theirs.is_unique and "" not in ours):
            continue
        places = ours.get_indexer(theirs)
        found = np.flatnonzero(places >= 0)
        others = [each for each in table.columns if each in rows.columns and each != name]
        if not len(found) or not others:
            continue
        pairs = ((_keys(table, each)[places[found]], _keys(rows, each)[found]) for each in others)
        if np.mean([a == b for a, b in pairs]) < SAME_CELLS:
            continue
        verified = np.full(len(table), None, dtype=object) if verified is None else verified.copy()
        verified[places[found]] = right[found]
        return name, verified
    return None, verified


def _keys(table: Table, name: str) -> np.ndarray:
    column = table.column(name)
    return column.astype("string").fillna("").str.strip().to_numpy(dtype=object)


def _rows(part: Any, mask: np.ndarray) -> Any:
    return part.rows(mask) if isinstance(part, Table) else part[mask]


def _check_sizes(options: CleanOptions, noisy: np.ndarray, trusted: np.ndarray, notes: list[str]) -> None:
    if len(noisy) < FEWEST_ROWS:
        raise InvalidInputError(f"{options.table} has {len(noisy)} rows to clean: at least {FEWEST_ROWS} are needed")
    if len(np.unique(noisy)) < 2:
        raise InvalidInputError(f"all rows of {options.table} to be cleaned have the same label: nothing to clean")
    if options.trusted_column is not None and len(trusted) == 0:
        raise InvalidInputError(
            f"no trusted rows: the column {options.trusted_column!r} of {options.table} says yes in no row"
        )
    if len(trusted) == 0 and options.verified is None:
        notes.append(
            "no row was checked: the probabilities are those of models that believe all labels. --next 20 --next-out "
            "check.csv lists rows whose check would help most"
        )
    absent = [label for label in np.unique(noisy) if label not in trusted]
    if len(trusted) and absent:
        notes.append(
            f"No trusted row has the label {listed(absent)}: wrong labels of that kind are hard to tell from right ones"
        )


# --- verified labels --------------------------------------------------------------------------------------------------


def read_verified(
    options: CleanOptions, training: Table, labels: np.ndarray
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The right label of each row, None where nobody looked, and which labels are wrong without a right one."""
    if options.verified is None:
        return None, None
    count = len(training)
    if options.verified in training.columns:
        return _matched(training, options.verified, labels, options), np.zeros(count, bool)
    path = Path(options.verified)
    if not path.is_file():
        raise InvalidInputError(
            f"--verified {options.verified}: neither a column of {training.name}, whose columns are "
            f"{listed(training.columns)}, nor a file"
        )
    found = read_table(path, texts={"verified_label", "verdict", "given_label"})
    for name in ("row", "verdict"):
        found.require(name, "--verified")
    rows = found.column("row").to_numpy(dtype=float)
    if not ((rows % 1 == 0) & (rows >= 1) & (rows <= count)).all():
        raise InvalidInputError(f"{path}: 'row' is a number from 1 to {count}, counting the rows of {training.name}")
    places = rows.astype(int) - 1
    given = np.asarray(labels_at(training, options.label, places))
    if "given_label" in found.columns:
        theirs = found.column("given_label").astype(str).str.strip().to_numpy()
        if (differs := np.flatnonzero(theirs != given)).size:
            row = places[differs[0]] + 1
            raise InvalidInputError(
                f"{path}: row {row} has the label {theirs[differs[0]]!r} there and {given[differs[0]]!r} in "
                f"{training.name}: it was made for another table"
            )
    return _decided(found, path, places, labels, options, training)


def _drawn(options: CleanOptions, training: Table) -> np.ndarray | None:
    """Which rows a file of decisions says to be drawn at random."""
    if options.verified is None or options.verified in training.columns:
        return None
    found = read_table(Path(options.verified), texts={"drawn_at_random"})
    if "drawn_at_random" not in found.columns:
        return None
    drawn = np.zeros(len(training), bool)
    drawn[found.column("row").to_numpy(int)[marks_of(found, "drawn_at_random")] - 1] = True
    return drawn


def labels_at(training: Table, label: str, places: np.ndarray) -> list[str]:
    """The given labels of some rows, as they are written."""
    return training.column(label).iloc[places].astype(str).str.strip().tolist()


def _decided(
    found: Table, path: Path, places: np.ndarray, labels: np.ndarray, options: CleanOptions, training: Table
) -> tuple[np.ndarray, np.ndarray]:
    """What a file of decisions says of all rows."""
    verdict = found.column("verdict").fillna("").astype(str).str.strip().str.lower().to_numpy()
    if strange := sorted(set(verdict) - {*VERDICTS, ""}):
        raise InvalidInputError(f"{path}: the verdict is one of {', '.join(VERDICTS)} or empty, not {strange[0]!r}")
    right = np.full(len(training), None, dtype=object)
    wrong = np.zeros(len(training), bool)
    given = _matched(training, options.label, labels, options)
    if "verified_label" in found.columns:
        right[places] = _matched(found, "verified_label", labels, options)
    is_right, is_wrong = places[verdict == "right"], places[verdict == "wrong"]
    right[is_right] = given[is_right]
    unknown = np.array([right[place] is None for place in is_wrong], dtype=bool)
    wrong[is_wrong[unknown]] = True
    right[places[verdict == "unsure"]] = None
    return right, wrong


def _matched(table: Table, column: str, labels: np.ndarray, options: CleanOptions) -> np.ndarray:
    """Labels of a column as members of `labels`, None where the cell is empty."""
    here = is_filled(table, column)
    result = np.full(len(table), None, dtype=object)
    if here.any():
        result[here] = matched_labels(table.rows(here), column, labels, of=str(options.table))
    return result
