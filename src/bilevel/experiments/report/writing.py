"""A report: tables as Markdown, HTML and text, figures, runs and provenance; all files are written together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._files import write_together
from ...errors import InvalidInputError, WriteError
from ..export import Row, column_names, flat_row, rows_csv
from ..paper_values import SOURCE, TABLES, PrintedTable, printed_table
from ..run_folder import RunRecord, sort_key
from .curves import value_after
from .provenance import core_hours, facts, step_searches, troubles
from .tables import COMPARED, TIMES, Table, find_application, make_cells, make_tables

FOLDER = Path(__file__).parent
AFTER = ("accuracy", "solved_upper_value")
"""Measures that runs.csv also has after some seconds of training."""
TERMINAL = ("ours", "printed", "n", "F(x)", "accuracy, solved", "settings")
"""Columns of the table on the terminal."""


@dataclass(frozen=True)
class Section:
    """What the page has of an experiment; `name` is that of its files."""

    name: str
    printed: PrintedTable
    tables: list[Table]
    counts: Mapping[str, int]
    pictures: list[Any]
    measures: str


def write_report(
    records: Sequence[RunRecord],
    folder: str | Path,
    *,
    command: str,
    seeds: int | Mapping[str, int] | None = None,
    notes: Sequence[str] = (),
) -> list[Path]:
    """Write table-N.md, .html, figure-N.svg, .png, .csv, runs.csv, provenance.md and index.html; replace older ones.

    Parameters
    ----------
    records : sequence of RunRecord
        All runs, including those of the search of step sizes, whose cost is reported.
    folder : path
        The folder for the files; it is created if necessary. Either all files are written or none.
    command : str
        The command that made the runs; it is shown on the page.
    seeds : int or dict, optional
        The planned number of seeds, for all or by experiment; by default the largest number of a cell.
    notes : sequence of str
        Notes at the top, for example that this is a quick look.

    Returns
    -------
    list of Path
        The files, index.html first.

    Examples
    --------
    >>> import tempfile
    >>> from bilevel.experiments import RunRecord
    >>> about = dict(
    ...     experiment="table-2", role="final", dataset="mnist", method="dmlcbo", settings={}, status="iterations"
    ... )
    >>> last = {"step": [100.0], "training_seconds": [1.0], "accuracy": [0.94], "solved_upper_value": [0.55]}
    >>> runs = [RunRecord(**about, identity=f"{k:016x}", seed=k, curve=last) for k in range(3)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in write_report(runs, folder, command="bilevel reproduce table-2")][:3]
    ['index.html', 'table-2.md', 'table-2.html']
    """
    from ..._html import render_page

    present = {record.experiment for record in records if record.role == "final"}
    experiments = [name for name in TABLES if name in present] + sorted(present - set(TABLES))
    if not experiments:
        raise InvalidInputError(
            f"records: none of the {len(records)} runs is a final one, and there is nothing to report: run "
            "`bilevel reproduce` first, and to its end"
        )
    contents: dict[str, str | bytes] = {}
    sections = []
    for experiment in experiments:
        count = seeds.get(experiment) if isinstance(seeds, Mapping) else seeds
        section, figures = _section(records, experiment, count)
        sections.append(section)
        contents[f"{section.name}.md"] = _markdown(section.tables, notes)
        contents[f"{section.name}.html"] = render_page(FOLDER, "tables.html.j2", section=section, notes=notes)
        contents |= figures
    page = render_page(
        FOLDER,
        "index.html.j2",
        source=SOURCE,
        sections=sections,
        compared=COMPARED,
        not_run=[table.name for name, table in TABLES.items() if name not in present],
        command=command,
        notes=notes,
        facts=facts(records),
        core_hours=core_hours(records),
        troubles=troubles(records),
        search=step_searches(records),
        finals=sum(record.role == "final" for record in records),
        searches=sum(record.role == "grid" for record in records),
    )
    others = {"runs.csv": runs_csv(records), "provenance.md": render_provenance(records, command=command, notes=notes)}
    return _write({"index.html": page, **contents, **others}, Path(folder))


def _section(
    records: Sequence[RunRecord], experiment: str, seeds: int | None
) -> tuple[Section, dict[str, str | bytes]]:
    """The part of the page of an experiment, and the files of its figure."""
    from .figures import figure_files, make_panels, page_pictures  # matplotlib

    printed, name = printed_table(experiment), re.sub(r"[^\w.-]+", "-", experiment)
    tables = [table for table in make_tables(records, experiment, seeds) if table.groups]
    panels = make_panels(records, experiment) if printed.figure else []
    counts = Counter(str(cell.verdict) for cell in make_cells(records, experiment))
    measures = "; and ".join(dict.fromkeys(panel.words for panel in panels))
    section = Section(name, printed, tables, counts, page_pictures(panels), measures)
    return section, dict(figure_files(panels, printed.figure)) if panels else {}


def _write(contents: Mapping[str, str | bytes], folder: Path) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(
            f"{folder} cannot be made ({error.strerror or error}): make room or choose another folder, then run the "
            "command again; the runs are stored"
        ) from error
    writers = {folder / name: _writer(content) for name, content in contents.items()}
    write_together(writers, overwrite=True)
    return list(writers)


def _writer(content: str | bytes) -> Callable[[Path], object]:
    data = content.encode() if isinstance(content, str) else content
    return lambda temporary: temporary.write_bytes(data)


def render_markdown(
    records: Sequence[RunRecord], experiment: str, *, seeds: int | None = None, notes: Sequence[str] = ()
) -> str:
    """The tables of an experiment as Markdown: the paper's with ours next to it, and the one by training time.

    Parameters
    ----------
    records
        The runs, of any experiment.
    experiment
        The name of the experiment, such as "table-2".
    seeds
        The planned number of seeds; by default the largest number of a cell.
    notes
        Notes before the tables, as quotations.

    Returns
    -------
    str
        Markdown, one table after the other.

    Examples
    --------
    >>> print(render_markdown([], "table-5").splitlines()[4])
    | CodRNA | eta = 0.1 | 80.45 ± 0.04 | not run | 0 | not run | – | – | – | – | – | – |
    """
    return _markdown([table for table in make_tables(records, experiment, seeds) if table.groups], notes)


def _markdown(tables: Sequence[Table], notes: Sequence[str]) -> str:
    parts = _quotations(notes)
    for table in tables:
        rows = _pipe_table(("dataset", *table.headings), _rows(table))
        remarks = [f"- {_escape(remark)}" for remark in table.remarks]
        parts.append("\n".join([f"**{_escape(table.title)}**", "", *rows, "", *remarks]) + "\n")
    return "\n".join(parts)


def render_provenance(records: Sequence[RunRecord], *, command: str, notes: Sequence[str] = ()) -> str:
    """What made the numbers, as Markdown: the command, what it cost, on what, and which runs had trouble."""
    finals = sum(record.role == "final" for record in records)
    known = {
        "runs": f"{finals} with chosen step sizes, {len(records) - finals} in the search of them",
        "core-hours": f"{core_hours(records):.2f}",
        **facts(records),
    }
    rows = _pipe_table(("what", "value"), [(name.replace("_", " "), value) for name, value in known.items()])
    lines = [
        f"- {_escape(f'{run.experiment}, {run.dataset}, {run.method}, seeds {trouble.seeds}')}: "
        f"{_escape(f'{trouble.what}. {trouble.why}')}"
        for trouble in troubles(records)
        for run in trouble.runs[:1]
    ]
    return "\n".join([*_quotations(notes), f"    {command}\n", *rows, "", *lines, ""])


def _rows(table: Table) -> list[tuple[str, ...]]:
    return [(name, *line) for name, lines in table.groups for line in lines]


def _quotations(notes: Sequence[str]) -> list[str]:
    return [f"> {_escape(note)}\n" for note in notes]


def _pipe_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = (headings, ["---"] * len(headings), *rows)
    return [f"| {' | '.join(map(_escape, line))} |" for line in lines]


def _escape(text: str) -> str:
    """A text that stays in its cell and is no markup."""
    return " ".join(re.sub(r"([\\|*_`<\[])", r"\\\1", text).split())


def plain_table(records: Sequence[RunRecord], seeds: Mapping[str, int]) -> str:
    """The cells that were run, for a terminal.

    Parameters
    ----------
    records
        The runs.
    seeds
        How many were asked for, by experiment.
    """
    texts = []
    for experiment in dict.fromkeys(record.experiment for record in records if record.role == "final"):
        table = make_tables(records, experiment, seeds[experiment])[0]
        headings = ("dataset", *table.headings)
        shown = [place for place, name in enumerate(headings) if place < 2 or name in TERMINAL]
        rows = [row for row in _rows(table) if "not run" not in row]
        lines = [[row[place].replace("±", "+-").replace("–", "-") for place in shown] for row in (headings, *rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        texts.append(table.title)
        texts += ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    return "\n".join(texts)


def runs_csv(records: Sequence[RunRecord]) -> str:
    """One line per run, as `bilevel results export` writes it, and columns such as ``accuracy.after.5s``."""
    ordered = sorted(records, key=sort_key)
    rows, later = [flat_row(record) for record in ordered], [_after(record) for record in ordered]
    times = sorted({name for row in later for name in row}, key=lambda name: (name.split(".")[0], len(name), name))
    return rows_csv([*column_names(rows), *times], [row | more for row, more in zip(rows, later, strict=True)])


def _after(record: RunRecord) -> Row:
    times = TIMES[find_application([record], record.experiment)] if record.role == "final" else ()
    return {f"{name}.after.{time}s": value_after(record, name, time) for name in AFTER for time in times}
