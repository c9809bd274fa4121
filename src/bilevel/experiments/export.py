"""The runs as one flat table, CSV or Parquet: one row per run, dictionaries spread over columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInput, MissingExtra
from ..files import write_atomically
from .record import MAPPINGS, TIMING, RunRecord

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("csv", "parquet")
SPREAD = tuple(name for name in MAPPINGS if name != "curve")


def flat_row(record: RunRecord, *, timing: bool = True) -> dict[str, Any]:
    """One run as a row; entries of settings, counts, environment and final are columns such as ``final.accuracy``.

    Examples
    --------
    >>> about = dict(experiment="table-2", role="final", dataset="mnist", method="dmlcbo", status="iterations", seed=0)
    >>> record = RunRecord(**about, identity="0", settings={"upper_step": 0.1}, curve={"accuracy": [0.5, 0.9]})
    >>> row = flat_row(record)
    >>> row["settings.upper_step"], row["final.accuracy"]
    (0.1, 0.9)
    """
    values = vars(record)
    row = {name: value for name, value in values.items() if name not in MAPPINGS}
    for name in SPREAD:
        row |= {f"{name}.{key}": value for key, value in values[name].items()}
    return row if timing else {name: value for name, value in row.items() if name.rsplit(".", 1)[-1] not in TIMING}


def to_frame(records: Sequence[RunRecord], *, timing: bool = True) -> pd.DataFrame:
    """All runs, in the order they are given; columns that a run does not have are empty."""
    try:
        import pandas as pd
    except ImportError:
        raise MissingExtra("Exporting results", "apps") from None
    rows = [flat_row(record, timing=timing) for record in records]
    plain = [name for name in (rows[0] if rows else ()) if "." not in name]
    spread = sorted({name for row in rows for name in row if "." in name})
    return pd.DataFrame(rows, columns=[*plain, *spread])


def export(
    records: Sequence[RunRecord], path: Path, *, kind: str, timing: bool = True, overwrite: bool = False
) -> Path:
    """Write the runs to a file.

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
        raise InvalidInput(f"format must be one of {', '.join(FORMATS)}, got {kind!r}")
    frame = to_frame(records, timing=timing)
    if kind == "csv":
        text = frame.to_csv(index=False, lineterminator="\n")
        return write_atomically(path, lambda file: file.write_text(text, "utf-8", newline=""), overwrite=overwrite)
    return write_atomically(path, lambda file: frame.to_parquet(file, index=False), overwrite=overwrite)
