"""Tables as Markdown, for documentation and for reading as text."""

from __future__ import annotations

from collections.abc import Sequence

from ..record import RunRecord
from .provenance import core_hours, facts, troubles
from .tables import Table, tables_of


def render_markdown(
    records: Sequence[RunRecord], experiment: str, *, seeds: int | None = None, notes: Sequence[str] = ()
) -> str:
    """The tables of an experiment as Markdown: the paper's with ours beside it, and the one against the clock.

    Parameters
    ----------
    records
        The runs, of any experiment.
    experiment
        Which of them: "table-2" ...
    seeds
        How many were asked for; by default as many as the cell with most of them has.
    notes
        What a reader must know first: they stand before the tables, as quotations.

    Returns
    -------
    str
        Markdown, one table after the other.

    Examples
    --------
    >>> print(render_markdown([], "table-5").splitlines()[4])
    | CodRNA | eta = 0.1 | 80.45 ± 0.04 | not run | 0 | not run | – | – | – | – | – |
    """
    first = [f"> {_cell(note)}\n" for note in notes]
    return "\n".join([*first, *(_markdown(table) for table in tables_of(records, experiment, seeds) if table.groups)])


def render_provenance(records: Sequence[RunRecord], *, command: str, notes: Sequence[str] = ()) -> str:
    """What made the numbers: the command, the limits, what it cost, on what, and which runs had trouble."""
    finals = sum(record.role == "final" for record in records)
    known = {
        "runs": f"{finals} with chosen step sizes, {len(records) - finals} in the search of them",
        "core-hours": f"{core_hours(records):.2f}",
        **facts(records),
    }
    told = [
        f"- {_cell(f'{found.run.experiment}, {found.run.dataset}, {found.run.method}, seeds {found.seeds}')}: "
        f"{_cell(f'{found.what}. {found.why}')}"
        for found in troubles(records)
    ]
    return "\n".join(
        [
            *(f"> {_cell(note)}\n" for note in notes),
            f"    {command}\n",
            "| what | value |",
            "| --- | --- |",
            *(_line(name.replace("_", " "), value) for name, value in known.items()),
            "",
            *told,
            "",
        ]
    )


def _markdown(table: Table) -> str:
    lines = [
        f"**{_cell(table.title)}**",
        "",
        _line("dataset", *table.headings),
        _line(*(["---"] * (1 + len(table.headings)))),
        *(_line(name, *line) for name, lines in table.groups for line in lines),
        "",
        *(f"- {_cell(remark)}" for remark in table.remarks),
    ]
    return "\n".join(lines) + "\n"


def _line(*texts: str) -> str:
    return f"| {' | '.join(map(_cell, texts))} |"


def _cell(text: str) -> str:
    """A text that stays in its cell and is no markup."""
    for sign in "\\|*_`<[":
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())
