"""The numbers behind tables and figures, as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from ..record import RunRecord
from .cells import is_few_shot
from .curves import after
from .tables import BUDGETS

PLAIN = ("identity", "experiment", "role", "dataset", "method", "seed", "status", "reason",
         "wall_seconds", "training_seconds")  # fmt: skip
MAPPINGS = ("settings", "final", "counts", "environment")
AFTER = ("accuracy", "solved_upper_value")


def runs_csv(records: Sequence[RunRecord]) -> str:
    """One line per run: how it ended, settings, last numbers, what it had after some seconds, cost, environment.

    Columns of dictionaries are called ``settings.NAME`` and so on, those read off the curve ``accuracy.after.5s``.
    """
    rows = [_row(record) for record in sorted(records, key=_order)]
    found = {name for row in rows for name in row}
    rest = sorted(found - set(PLAIN), key=_place)
    return csv_text([*PLAIN, *rest], ([row.get(name, "") for name in (*PLAIN, *rest)] for row in rows))


def csv_text(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV, with their names first."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    return text.getvalue()


def _row(record: RunRecord) -> dict[str, Any]:
    row = {name: getattr(record, name) for name in PLAIN}
    for mapping in MAPPINGS:
        row |= {f"{mapping}.{name}": value for name, value in getattr(record, mapping).items()}
    if record.role == "final":
        times = BUDGETS["few-shot" if is_few_shot(record) else "hyper-cleaning"]
        row |= {f"{name}.after.{time}s": after(record, name, time) for name in AFTER for time in times}
    return row


def _order(record: RunRecord) -> tuple:
    settings = sorted((name, str(value)) for name, value in record.settings.items())
    return record.experiment, record.role, record.dataset, record.method, settings, record.seed, record.identity


def _place(name: str) -> tuple:
    """Columns of one mapping beside each other, those of the clock after the last numbers, in the order of time."""
    kind, _, rest = name.partition(".")
    if ".after." in name:
        return 1.5, kind, float(rest.removeprefix("after.").removesuffix("s"))
    return float(MAPPINGS.index(kind)), rest, 0.0
