"""Notes at the top of a report: whether it is a quick look, the length of runs, and the choice of step sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .configuration import TABLES, Configuration, load_configuration
from .paper_values import printed_table

QUICK = (
    "This is a quick look (--quick): few step sizes, short runs and few seeds. Its numbers are not comparable with "
    "those of the paper; the same command without --quick makes the table."
)


def report_notes(tables: Sequence[Configuration], *, quick: bool = False) -> list[str]:
    """A sentence or two about the quick look, the limits and the search; tables that agree share theirs.

    Examples
    --------
    >>> from bilevel.experiments import load_configuration
    >>> (note,) = report_notes([load_configuration("table-2")])
    >>> limits, search = note.split(" Step ")
    >>> limits
    'Table 2: final runs end after 10,000 iterations or 20 s of training, whichever comes first; 10 seeds.'
    >>> search.partition(", ")[2]
    '36 or 49 settings for 5 s each.'
    """
    tables_by_text: dict[str, list[str]] = {}
    for table in tables:
        text = f"{_limits(table)} {_search(table)}{_changed_data(table)}".strip()
        tables_by_text.setdefault(text, []).append(printed_table(table.experiment).name)
    notes = [f"{', '.join(names)}: {text}" for text, names in tables_by_text.items()]
    return [QUICK, *notes] if quick else notes


def _limits(table: Configuration) -> str:
    run = table.run
    ends = [f"{run.iterations:,} iterations"]
    ends += [] if run.limit_seconds is None else [f"{run.limit_seconds:g} s of training"]
    ends += [] if run.converged is None else [f"when F changes by less than {run.converged:g} of itself in 500 steps"]
    first = ", whichever comes first" if len(ends) > 1 else ""
    seeds = "1 seed" if run.seeds == 1 else f"{run.seeds} seeds"
    return f"final runs end after {' or '.join(ends)}{first}; {seeds}."


def _search(table: Configuration) -> str:
    pairs = sorted({math.prod(map(len, method.grid.values())) for method in table.methods.values()})
    if pairs[-1] < 2:
        return "Step sizes were not searched."
    like = f"for {printed_table(table.like).name} " if table.vary and table.like else ""
    time = "to the end" if table.grid.limit_seconds is None else f"for {table.grid.limit_seconds:g} s each"
    return f"Step sizes were searched {like}on one other seed, {' or '.join(map(str, pairs))} settings {time}."


def _changed_data(table: Configuration) -> str:
    """A warning where a configuration has the name of a table of the paper but not its data."""
    if table.experiment not in TABLES:
        return ""
    known = load_configuration(table.experiment).datasets
    others = [name for name, data in table.datasets.items() if known.get(name) != data]
    text = f" Not the paper's setting: {', '.join(others)} (sizes, classes or scaling of its data are others)."
    return text if others else ""
