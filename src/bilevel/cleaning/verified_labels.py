"""What people found out about labels: `--verified`, a column or a file of decisions, and rows that two tables share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from ..errors import InvalidInputError
from .options import CleanOptions
from .table_files import read_table
from .tables import Table, is_filled, listed, marks_of, matched_labels

VERDICTS = ("right", "wrong", "unsure")
SAME_CELLS = 0.9
"""Rows with the same key are the same if this share of their other cells is."""


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


def read_drawn(options: CleanOptions, training: Table) -> np.ndarray | None:
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
        result[here] = matched_labels(table.rows(here), column, labels, of=str(options.table))[0]
    return result


# --- rows of another table --------------------------------------------------------------------------------------------


def match_rows(
    table: Table, rows: Table, right: np.ndarray, verified: np.ndarray | None
) -> tuple[str | None, np.ndarray | None]:
    """The column by which rows of another table are rows of this one, and the verified labels with theirs.

    A key is different in every row of both tables, and rows with the same key have (almost) the same other cells:
    numbers of rows that were counted anew in each file are no key.
    """
    for name in (each for each in table.columns if each in rows.columns):
        ours, theirs = pd.Index(keys_of(table, name)), pd.Index(keys_of(rows, name))
        if not (ours.is_unique and theirs.is_unique and "" not in ours):
            continue
        places = ours.get_indexer(theirs)
        found = np.flatnonzero(places >= 0)
        others = [each for each in table.columns if each in rows.columns and each != name]
        if not len(found) or not others:
            continue
        pairs = ((keys_of(table, each)[places[found]], keys_of(rows, each)[found]) for each in others)
        if np.mean([a == b for a, b in pairs]) < SAME_CELLS:
            continue
        verified = np.full(len(table), None, dtype=object) if verified is None else verified.copy()
        verified[places[found]] = right[found]
        return name, verified
    return None, verified


def keys_of(table: Table, name: str) -> np.ndarray:
    column = table.column(name)
    return column.astype("string").fillna("").str.strip().to_numpy(dtype=object)
