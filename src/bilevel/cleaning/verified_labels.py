"""Verified labels: `--verified`, a column or a file of decisions, and rows that occur in two tables."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from ..errors import InvalidInputError
from .options import CleanOptions
from .table_files import read_table
from .tables import Table, folded, is_filled, listed, marks_of, matched_labels

VERDICTS = ("right", "wrong", "unsure")
SAME_CELLS = 0.9
"""Rows with the same key are the same if this fraction of their other cells agrees."""


class Verified(NamedTuple):
    """Verified labels, each array of shape (rows,) or None.

    Parameters
    ----------
    right
        The right label of each row, None for unverified rows.
    wrong
        Which labels are known to be wrong while the right one is unknown.
    drawn
        Which rows were drawn at random to be verified.
    """

    right: np.ndarray | None = None
    wrong: np.ndarray | None = None
    drawn: np.ndarray | None = None

    def rows(self, mask: np.ndarray) -> dict[str, np.ndarray | None]:
        """The verified labels of these rows, by the names of the fields of `CleaningData`."""
        parts = (None if part is None else part[mask] for part in self)
        return dict(zip(("verified", "wrong", "drawn"), parts, strict=True))


def read_verified(options: CleanOptions, training: Table, labels: np.ndarray) -> Verified:
    """Read --verified: a column of the table or a file of decisions."""
    if options.verified is None:
        return Verified()
    count = len(training)
    if options.verified in training.columns:
        return Verified(_matched(training, options.verified, labels, options), np.zeros(count, bool))
    path = Path(options.verified)
    if not path.is_file():
        raise InvalidInputError(
            f"--verified {options.verified}: neither a column of {training.name}, whose columns are "
            f"{listed(training.columns)}, nor a file"
        )
    found = read_table(path, texts={"verified_label", "verdict", "given_label", "drawn_at_random"})
    for name in ("row", "verdict"):
        found.require(name, "--verified")
    rows: np.ndarray = np.asarray(pd.to_numeric(found.column("row"), errors="coerce"), dtype=float)
    if not ((rows % 1 == 0) & (rows >= 1) & (rows <= count)).all():
        raise InvalidInputError(f"{path}: 'row' is a number from 1 to {count}, counting the rows of {training.name}")
    places = rows.astype(int) - 1
    if "given_label" in found.columns:
        given = training.column(options.label).iloc[places].astype(str).str.strip().to_numpy()
        theirs = found.column("given_label").astype(str).str.strip().to_numpy()
        if (differs := np.flatnonzero([folded(a) != folded(b) for a, b in zip(theirs, given, strict=True)])).size:
            row = places[differs[0]] + 1
            raise InvalidInputError(
                f"{path}: row {row} has the label {theirs[differs[0]]!r} there and {given[differs[0]]!r} in "
                f"{training.name}: it was made for another table"
            )
    drawn = None
    if "drawn_at_random" in found.columns:
        drawn = np.zeros(count, bool)
        drawn[places[marks_of(found, "drawn_at_random")]] = True
    return Verified(*_decided(found, path, places, labels, options, training), drawn)


def _decided(
    found: Table, path: Path, places: np.ndarray, labels: np.ndarray, options: CleanOptions, training: Table
) -> tuple[np.ndarray, np.ndarray]:
    """The verified labels of all rows, from a file of decisions."""
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
    """Labels of a column as members of `labels`, None for empty cells."""
    here = is_filled(table, column)
    result = np.full(len(table), None, dtype=object)
    if here.any():
        result[here] = matched_labels(table.rows(here), column, labels, of=str(options.table))[0]
    return result


# --- rows of another table --------------------------------------------------------------------------------------------


def match_rows(
    table: Table, rows: Table, right: np.ndarray, verified: np.ndarray | None
) -> tuple[str | None, np.ndarray | None]:
    """The key column by which rows of another table are recognised in this one, and the extended verified labels.

    A key is different in every row of both tables, and rows with the same key have (almost) the same other cells, so
    that row numbers of each file are not a key.
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
