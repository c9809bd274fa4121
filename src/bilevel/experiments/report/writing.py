"""All files of a report, written together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ...errors import InvalidInput
from ...files import NotWritten, write_together
from ..printed import TABLES
from ..record import RunRecord
from .csv_file import runs_csv
from .markdown import render_markdown, render_provenance
from .tables import tables_of


def write_report(
    records: Sequence[RunRecord],
    folder: str | Path,
    *,
    command: str,
    seeds: int | Mapping[str, int] | None = None,
    notes: Sequence[str] = (),
) -> list[Path]:
    """Write table-N.md, .html, figure-N.svg, .png, .csv, runs.csv, provenance.md and index.html, for older ones.

    Parameters
    ----------
    records : sequence of RunRecord
        All runs, those of the search of step sizes included: they count as cost.
    folder : path
        Where to; it is made if need be. All files are there, or none has changed.
    command : str
        What made the runs; it stands on the page.
    seeds : int or dict, optional
        How many were asked for, in all or by experiment; by default as many as the cell with most of them has.
    notes : sequence of str
        What a reader must know first, such as that this is a quick look.

    Returns
    -------
    list of Path
        What was written, index.html first.

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
    from .figures import FIGURES, figure_files, panels_of  # matplotlib
    from .page import render_index, render_tables, section

    found = {record.experiment for record in records if record.role == "final"}
    experiments = [name for name in TABLES if name in found] + sorted(found - set(TABLES))
    if not experiments:
        raise InvalidInput(
            f"records: none of the {len(records)} runs is a final one, and there is nothing to report: run "
            "`bilevel reproduce` first, and to its end"
        )
    contents: dict[str, bytes] = {}
    sections = []
    for experiment in experiments:
        panels = panels_of(records, experiment) if experiment in FIGURES else []
        asked = seeds.get(experiment) if isinstance(seeds, Mapping) else seeds
        part = section(records, experiment, tables_of(records, experiment, asked), panels)
        sections.append(part)
        contents[f"{part.name}.md"] = render_markdown(records, experiment, seeds=asked, notes=notes).encode()
        contents[f"{part.name}.html"] = render_tables(part, notes=notes).encode()
        if panels:
            contents |= figure_files(panels, FIGURES[experiment])
    contents["runs.csv"] = runs_csv(records).encode()
    contents["provenance.md"] = render_provenance(records, command=command, notes=notes).encode()
    page = render_index(records, sections, command=command, notes=notes)
    return _write({"index.html": page.encode(), **contents}, Path(folder))


def _write(contents: dict[str, bytes], folder: Path) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotWritten(
            f"{folder} cannot be made ({error.strerror or error}): make room or choose another folder, then run the "
            "command again; the runs are stored"
        ) from error
    writers = {folder / name: _writer(content) for name, content in contents.items()}
    write_together(writers, overwrite=True)
    return list(writers)


def _writer(content: bytes) -> Callable[[Path], object]:
    return lambda temporary: temporary.write_bytes(content)
