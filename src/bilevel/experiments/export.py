"""The runs as one flat table, CSV or Parquet: one row per run, dictionaries spread over columns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._files import write_atomically
from ..errors import InvalidInputError, MissingExtraError
from .run_folder import TIMING, RunRecord, csv_text

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("csv", "parquet")
SPREAD = ("settings", "configuration", "counts", "environment", "final")
"""Fields whose entries are columns of their own."""

Row = dict[str, Any]


def flat_row(record: RunRecord, *, timing: bool = True) -> Row:
    """One run as a row; entries of dictionaries are columns such as ``final.accuracy`` or ``configuration.data.rows``.

    Examples
    --------
    >>> about = dict(experiment="table-2", role="final", dataset="mnist", method="dmlcbo", status="iterations", seed=0)
    >>> record = RunRecord(**about, identity="0", settings={"upper_step": 0.1}, curve={"accuracy": [0.5, 0.9]})
    >>> row = flat_row(record)
    >>> row["settings.upper_step"], row["final.accuracy"]
    (0.1, 0.9)
    """
    values = dict(vars(record))
    values["configuration"] = {key: value for key, value in record.configuration.items() if key not in values}
    row = {name: value for name, value in values.items() if name not in (*SPREAD, "curve")}
    for name in SPREAD:
        row |= dict(_spread(name, values[name]))
    return row if timing else {name: value for name, value in row.items() if name.rsplit(".", 1)[-1] not in TIMING}


def _spread(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _spread(f"{name}.{key}", part)
    else:
        yield name, json.dumps(value) if isinstance(value, list | tuple) else value


def column_names(rows: Sequence[Row]) -> list[str]:
    """Plain columns in their order, then those of each dictionary by name."""
    plain = [name for name in (rows[0] if rows else ()) if "." not in name]
    spread = {name for row in rows for name in row if "." in name}
    return [*plain, *sorted(spread, key=lambda name: (SPREAD.index(name.split(".")[0]), name))]


def rows_csv(names: Sequence[str], rows: Sequence[Row]) -> str:
    """These columns of rows as CSV."""
    return csv_text(names, ([row.get(name) for name in names] for row in rows))


def export(
    records: Sequence[RunRecord], path: Path, *, kind: str, timing: bool = True, overwrite: bool = False
) -> Path:
    """Write the runs to a file, in the order they are given.

    Parameters
    ----------
    records
        The runs.
    path
        The file.
    kind
        "csv" or "parquet".
    timing
        Whether columns with seconds are part of it; without them the table of the same runs has the same bytes.
    overwrite
        Replace a file that exists.
    """
    if kind not in FORMATS:
        raise InvalidInputError(f"format must be one of {', '.join(FORMATS)}, got {kind!r}")
    rows = [flat_row(record, timing=timing) for record in records]
    if kind == "csv":
        text = rows_csv(column_names(rows), rows)
        return write_atomically(path, lambda file: file.write_text(text, "utf-8", newline=""), overwrite=overwrite)
    frame = _frame(rows)
    return write_atomically(path, lambda file: frame.to_parquet(file, index=False), overwrite=overwrite)


def _frame(rows: Sequence[Row]) -> pd.DataFrame:
    """A column of Parquet has one type: settings that are numbers for one method and words for another are words."""
    try:
        import pandas as pd
    except ImportError:
        raise MissingExtraError("Exporting results", "apps") from None
    columns = {name: [row.get(name) for row in rows] for name in column_names(rows)}
    return pd.DataFrame({name: _unified(values) for name, values in columns.items()})


def _unified(values: list[Any]) -> list[Any]:
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) < 2 or kinds == {int, float}:
        return values
    return [None if value is None else str(value) for value in values]
