"""index.html and table-N.html: everything on one offline page, and each table on its own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...pages import Picture, render_page
from ..printed import SOURCE, TABLES, printed_table
from ..record import RunRecord
from .cells import cells_of
from .figures import FIGURES, MEASURES, Panel, pictures_of
from .provenance import core_hours, facts, search_of_steps, troubles
from .tables import Table
from .verdicts import COMPARED, remarks


@dataclass(frozen=True)
class Section:
    """A table of the paper and, for tables 2 and 3, its figure."""

    experiment: str
    tables: list[Table]
    counts: dict[str, int]
    pictures: list[Picture] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of its files and of its place on the page."""
        return re.sub(r"[^\w.-]+", "-", self.experiment)

    @property
    def title(self) -> str:
        """ "Table 2"."""
        return printed_table(self.experiment).name

    @property
    def caption(self) -> str:
        """What it is about."""
        return printed_table(self.experiment).caption

    @property
    def others(self) -> str:
        """Cells without such a verdict."""
        return ", ".join(f"{count} {name}" for name, count in self.counts.items() if name not in COMPARED)

    @property
    def figure(self) -> str:
        """Name of the files of its figure."""
        return FIGURES.get(self.experiment, "")

    @property
    def figure_title(self) -> str:
        """ "Figure 1"."""
        return self.figure.replace("figure-", "Figure ")

    @property
    def remarks(self) -> list[str]:
        """What is to be known of the times in the figure."""
        return remarks(self.experiment, "clock")

    @property
    def measures(self) -> str:
        """What the figure shows."""
        return "; and ".join(words for _, words in MEASURES[self.experiment].values())


def section(
    records: Sequence[RunRecord], experiment: str, tables: list[Table], panels: Sequence[Panel] = ()
) -> Section:
    """What the page has of an experiment."""
    counts = Counter(str(cell.verdict) for cell in cells_of(records, experiment))
    return Section(experiment, tables, dict(counts), pictures_of(panels))


def render_index(
    records: Sequence[RunRecord], sections: Sequence[Section], *, command: str, notes: Sequence[str] = ()
) -> str:
    """The page with everything."""
    names = {section.experiment for section in sections}
    return render_page(
        str(__package__),
        "index.html.j2",
        source=SOURCE,
        experiments=sections,
        not_run=[table.name for name, table in TABLES.items() if name not in names],
        command=command,
        notes=notes,
        facts=facts(records),
        core_hours=core_hours(records),
        troubles=troubles(records),
        search=search_of_steps(records),
        finals=sum(record.role == "final" for record in records),
        searches=sum(record.role == "grid" for record in records),
    )


def render_tables(section: Section, *, notes: Sequence[str] = ()) -> str:
    """The tables of one experiment as a page of their own."""
    return render_page(
        str(__package__), "tables.html.j2", title=section.title, name=section.name, notes=notes,
        tables=[table for table in section.tables if table.groups],
    )  # fmt: skip
