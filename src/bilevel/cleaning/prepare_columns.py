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
from .options import CleanOptions
from .prepare import FEWEST_ROWS, CleaningData, LabelledRows, found_rows, keep_aside
from .table_files import read_table
from .tables import Table, check_columns, listed, marks_of, matched_labels

VERDICTS = ("right", "wrong", "unsure")


def prepare_columns(
    options: CleanOptions, training: Table, given: np.ndarray, labels: np.ndarray, marked: np.ndarray
) -> CleaningData:
    """Encode the tables of one process; `given` and `marked` are the labels and the marks of the training table."""
    notes: list[str] = []
    verified, wrong = read_verified(options, training, labels)
    column = options.verified if options.verified in training.columns else None
    special = {options.label, *filter(None, (options.trusted_column, column))}
    table = training.without(special)
    frames, known = [table.frame], [given]
    if options.trusted is not None:
        rows, trusted_labels = other_rows(options.trusted, options, labels, table.name)
        frames.append(rows.frame[[name for name in table.columns if name in rows.columns]])
        known.append(trusted_labels)
    encoder = ColumnEncoder(_kinds(options)).fit(pd.concat(frames, ignore_index=True), np.concatenate(known))
    _check_sizes(options, given[~marked], known[-1] if options.trusted is not None else given[marked], notes)

    def encoded(rows: Table) -> Any:
        check_columns(rows, [options.label, *encoder.columns_], table.name)
        return encoder.transform(rows.frame)

    features = encoder.transform(table.frame)
    everything = LabelledRows(features, given)
    noisy, trusted = everything.pick(~marked), everything.pick(marked)
    if options.trusted is not None:
        trusted = LabelledRows(encoded(rows), known[1])
    measured, where = None, "there are no checked rows: --trusted FILE or --verified name some"
    if options.test is not None:
        test, test_labels = other_rows(options.test, options, labels, table.name)
        measured = LabelledRows(encoded(test), test_labels)
        where = f"the {len(measured):,} rows of {options.test.name}"
    elif len(trusted):
        trusted, measured, where = keep_aside(trusted, options.holdout, options.seed)
    elif verified is not None:
        where = "no row was kept aside: --test names a table to measure on"
    seen = 0 if measured is None else int(found_rows(measured.features, (noisy.features, trusted.features)).sum())
    if seen:
        names = " or ".join(path.name for path in (options.table, options.trusted) if path is not None)
        notes.append(f"{seen:,} of the rows measured on are also in {names}: these accuracies flatter")
    shown = [each.column for each in encoder.decisions_ if each.kind == "ignore"]
    return CleaningData(
        table=table,
        ignored=training.frame[[name for name in shown if name in (options.ignore or ())]],
        given=given,
        marked=marked,
        encoder=encoder,
        pixels=None,
        noisy=noisy,
        trusted=trusted,
        trusted_rows=len(trusted) + (len(measured) if measured is not None and options.test is None else 0),
        measured=measured,
        where=where,
        seen=seen,
        notes=tuple(notes),
        corrects=True,
        verified=None if verified is None else verified[~marked],
        wrong=None if wrong is None else wrong[~marked],
        drawn=_drawn(options, training, marked),
        groups=None if options.group is None else training.frame[options.group].astype(str).to_numpy()[~marked],
    )


def _kinds(options: CleanOptions) -> dict[str, str]:
    named = {"ignore": options.ignore, "category": options.categorical, "text": options.text}
    return kinds_of_options({**named, "number": options.number, "date": options.date})


def other_rows(path: Path, options: CleanOptions, labels: np.ndarray, of: str) -> tuple[Table, np.ndarray]:
    """Another table with right labels, which the training table must have too."""
    rows = read_table(path, texts={options.label}, label=options.label)
    check_columns(rows, [options.label], of)
    return rows, matched_labels(rows, options.label, labels, of=of)


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


def _drawn(options: CleanOptions, training: Table, marked: np.ndarray) -> np.ndarray | None:
    """Which rows a file of decisions says to be drawn at random, of those that are not trusted."""
    if options.verified is None or options.verified in training.columns:
        return None
    found = read_table(Path(options.verified), texts={"drawn_at_random"})
    if "drawn_at_random" not in found.columns:
        return None
    drawn = np.zeros(len(training), bool)
    drawn[found.column("row").to_numpy(int)[marks_of(found, "drawn_at_random")] - 1] = True
    return drawn[~marked]


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
    given = matched_labels(training, options.label, labels, of=training.name)
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
    filled = table.column(column).notna().to_numpy() & (table.column(column).astype(str).str.strip() != "").to_numpy()
    result = np.full(len(table), None, dtype=object)
    if filled.any():
        result[filled] = matched_labels(table.rows(filled), column, labels, of=str(options.table))
    return result
