"""The numbers behind tables and figures, as CSV."""

from __future__ import annotations

from collections.abc import Sequence

from ..export import Row, columns_of, flat_row, rows_csv
from ..record import RunRecord
from .cells import is_few_shot
from .curves import after
from .tables import BUDGETS

AFTER = ("accuracy", "solved_upper_value")


def runs_csv(records: Sequence[RunRecord]) -> str:
    """One line per run, as `bilevel results export` writes it, and what it had after some seconds.

    Columns read off the curve are called ``accuracy.after.5s``.
    """
    ordered = sorted(records, key=_order)
    rows, later = [flat_row(record) for record in ordered], [_after(record) for record in ordered]
    times = sorted({name for row in later for name in row}, key=_place)
    return rows_csv([*columns_of(rows), *times], [row | more for row, more in zip(rows, later, strict=True)])


def _after(record: RunRecord) -> Row:
    if record.role != "final":
        return {}
    times = BUDGETS["few-shot" if is_few_shot(record) else "hyper-cleaning"]
    return {f"{name}.after.{time}s": after(record, name, time) for name in AFTER for time in times}


def _order(record: RunRecord) -> tuple:
    settings = sorted((name, str(value)) for name, value in record.settings.items())
    return record.experiment, record.role, record.dataset, record.method, settings, record.seed, record.identity


def _place(name: str) -> tuple[str, float]:
    """One measure after the other, in the order of time."""
    measure, _, time = name.partition(".after.")
    return measure, float(time.removesuffix("s"))
