"""`bilevel reproduce`, `bilevel status` and `bilevel results`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from ..experiments.options import ReproduceOptions
from .common import command_line, one_thread


def add_to(app: App) -> None:
    """Give the program these commands."""
    app.command(reproduce)
    app.command(status)
    results = App(name="results", help="The runs that `bilevel reproduce` has stored.")
    results.command(export)
    app.command(results)


def reproduce(options: Annotated[ReproduceOptions, Parameter(name="*")]) -> int:
    """Reproduce a table or figure of the paper: search step sizes, run the chosen ones with every seed, report.

    Each run is stored when it ends. If the command is stopped, run it again: it makes only the runs that are missing.
    Step sizes are chosen on validation rows, never on test accuracy. Download the data first with `bilevel data fetch`.
    Exit codes: 0 success, 2 an error, 130 stopped by Ctrl-C.
    """
    from ..experiments import command

    one_thread()
    return command.reproduce(options, " ".join(["bilevel", *command_line]))


def status(*, results: Path | None = None) -> int:
    """Show the progress of a sweep and the stored runs.

    Parameters
    ----------
    results
        The results folder. Default: bilevel-results in this folder, or bilevel-results/quick if only that exists.
    """
    from ..experiments import command

    return command.status(results)


def export(
    *,
    out: Path,
    format: Literal["csv", "parquet"] | None = None,
    results: Path | None = None,
    experiment: str | None = None,
    without_timing: bool = False,
    force: bool = False,
) -> int:
    """Write the stored runs as one table: configuration, seed, status, counts, versions and final values of each.

    Parameters
    ----------
    out
        The file.
    format
        csv or parquet. Default: by the name of the file.
    results
        The results folder. Default: bilevel-results in this folder, or bilevel-results/quick if only that exists.
    experiment
        Only the runs of this table.
    without_timing
        Leave out columns with times: for runs limited by iterations, the result then has the same bytes on every
        repetition.
    force
        Replace a file that exists.
    """
    from ..experiments import command

    return command.export_results(
        results, out, kind=format, experiment=experiment, timing=not without_timing, force=force
    )
